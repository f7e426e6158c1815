"""One epoch has one content, wherever its batches are made, and states go from each to each."""

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import psutil
import pytest
from checkout import ROOT
from ranks import run_ranks

import voxpipe as vp
from voxpipe.core.errors import VolumeChanged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore::voxpipe.core.errors.WorkerReplaced"),
]


def chain(cases=12, size=2):
    """Batches of turned patches, four of each case."""
    voxels = np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10)
    made = [{"case": f"case{n}", "image": voxels + n} for n in range(cases)]
    patches = vp.from_cases(made).shuffle().open_volume().lazy_patch(4, samples_per_volume=4)
    return patches.augment(rotate=15).batch_patches(size)


def digest(batches):
    """Return the SHA-256 of voxels and provenance."""
    sha = hashlib.sha256()
    for batch in batches:
        sha.update(batch["image"].contiguous().numpy().tobytes())
        sha.update(repr(batch["meta"]).encode())
    return sha.hexdigest()


def processes(count):
    return vp.MultiProcessingReadingService(count)


def actors(count, local_workers=0):
    return vp.RayReadingService(count, local_workers=local_workers)


SERVICES = {
    "in process": lambda: None,
    **{f"{n} processes": partial(processes, n) for n in (1, 2, 4)},
    **{f"{n} actors": partial(actors, n) for n in (1, 2, 4)},
    "2 processes and 2 actors": partial(actors, 4, 2),
}


@pytest.fixture(scope="module")
def whole():
    with vp.DataLoader2(chain(), seed=7) as loader:
        return digest(loader), digest(loader)


@pytest.mark.parametrize("name", SERVICES)
def test_two_epochs_are_those_of_one_process(name, whole):
    with vp.DataLoader2(chain(), None, SERVICES[name](), seed=7) as loader:
        assert (digest(loader), digest(loader)) == whole


PLACES = ("in process", "2 processes", "2 actors", "2 processes and 2 actors")


@pytest.mark.parametrize(("first", "second"), [*itertools.product(PLACES, PLACES)])
def test_a_state_goes_from_each_to_each(first, second, whole):
    with vp.DataLoader2(chain(), None, SERVICES[first](), seed=7) as loader:
        batches = list(itertools.islice(loader, 7))
        state = json.loads(json.dumps(loader.state_dict()))
    with vp.DataLoader2(chain(), None, SERVICES[second](), seed=7) as loader:
        loader.load_state_dict(state)
        assert digest([*batches, *loader]) == whole[0]


def two_ways(rank, address):
    """Return the digests of this rank's part, in its process and with actors."""
    import ray

    ray.init(address, log_to_driver=False, configure_logging=False, _node_ip_address="127.0.0.2")
    digests = []
    for inner in (vp.reading_services.InProcessReadingService(), actors(1)):
        ranks = vp.DistributedReadingService()
        service = vp.reading_services.SequentialReadingService(ranks, inner)
        with vp.DataLoader2(chain(size=4), None, service, seed=7) as loader:
            digests += [(digest(loader), digest(loader))]
    ray.shutdown()
    return digests


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_have_the_parts_that_they_have_without_actors(world, cluster):
    every = run_ranks(world, two_ways, cluster.address)

    assert all(plain == actors for plain, actors in every)
    assert len({plain for plain, _ in every}) == world


class OfItsNode(vp.Backend):
    """A file whose copies on the nodes were written at different times."""

    def __init__(self, request):
        self._voxels = np.load(request.path)[None]
        super().__init__(vp.Header.of(self._voxels.shape, self._voxels.dtype, np.eye(4)))

    def read(self, region, channels=None):
        return vp.Voxels(self._voxels[(slice(*(channels or (0, 1))), *region.slices)])

    @property
    def version(self):
        return os.getpid()


def is_of_node(request):
    return str(request.path).endswith(".node")


def test_copies_of_a_local_file_may_differ_in_their_times_on_two_nodes(tmp_path):
    """Two processes of one node must read one version."""
    with open(tmp_path / "a.node", "wb") as file:
        np.save(file, np.arange(512, dtype=np.int16).reshape(8, 8, 8))
    vp.register_backend("node", is_of_node, OfItsNode)
    try:
        pipe = vp.from_cases([{"image": str(tmp_path / "a.node")}]).open_volume()
        pipe = pipe.lazy_patch(4, samples_per_volume=40).batch_patches(2)
        with vp.DataLoader2(pipe, seed=7) as loader:
            expected = digest(loader)
        with vp.DataLoader2(pipe, None, actors(2), seed=7) as loader:
            assert digest(loader) == expected
        with (
            vp.DataLoader2(pipe, None, processes(2), seed=7) as loader,
            pytest.raises(VolumeChanged, match="two workers have read two versions"),
        ):
            digest(loader)
    finally:
        vp.volumes.unregister_backend("node")


def test_kills_and_nodes_that_come_and_go_change_nothing(cluster):
    """30 kills, 5 nodes removed and 5 added in 2 000 batches; no wait is longer than 4 s."""
    with vp.DataLoader2(chain(1000), seed=7) as loader:
        expected = digest(loader)
    service = vp.RayReadingService(4, local_workers=0, max_restarts=200)
    rng, sha, gaps, extra = np.random.default_rng(0), hashlib.sha256(), [], None
    with vp.DataLoader2(chain(1000), None, service, seed=7) as loader:
        pause, last = Pause(), None
        for number, batch in enumerate(loader):
            now = time.monotonic()
            gaps.append(now - (last or now))
            sha.update(batch["image"].contiguous().numpy().tobytes())
            sha.update(repr(batch["meta"]).encode())
            pool = loader.reading_service._pool
            if number % 66 == 33 and pool.workers:
                os.kill(pool.workers[rng.integers(len(pool.workers))].process.pid, signal.SIGKILL)
            if number % 400 == 100:
                extra = cluster.add_node(
                    num_cpus=2,
                    node_ip_address=f"127.0.0.{10 + number // 400}",
                    object_store_memory=80 * 1024**2,
                )
            if number % 400 == 300:
                cluster.remove_node(extra)
            pause(0.01)  # a training step, so that workers can start meanwhile
            last = time.monotonic()

    assert number == 1999
    assert sha.hexdigest() == expected
    assert max(gaps) <= 4.0


class Pause:
    """Waits without an event."""

    def __init__(self):
        import threading

        self._never = threading.Event()

    def __call__(self, seconds):
        self._never.wait(seconds)


def test_a_silent_node_costs_three_seconds(whole):
    """SIGSTOP of one actor and of the raylet of its node; a free worker makes its batches."""
    with vp.DataLoader2(chain(), None, actors(2), seed=7) as loader:
        it = iter(loader)
        batches = list(itertools.islice(it, 10))
        worker = loader.reading_service._pool.workers[0]
        raylet = psutil.Process(worker.process.pid).ppid()
        stopped = [worker.process.pid, raylet]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            start = time.monotonic()
            batches += it
            seconds = time.monotonic() - start
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    assert digest(batches) == whole[0]
    assert seconds <= 3.0


def test_epochs_leave_nothing():
    """30 whole epochs and 50 that are dropped keep the actors, threads and slots of the first."""
    import gc
    import threading

    def state():
        gc.collect()
        maps = open("/proc/self/maps").read().count("memfd:voxpipe")  # noqa: SIM115
        return maps, threading.active_count()

    with vp.DataLoader2(chain(3), None, actors(2), seed=7) as loader:
        digest(loader)
        _, threads = state()
        for number in range(80):
            digest(itertools.islice(loader, None if number < 30 else 1))
        digest(loader)
        after = state()
        pids = [worker.process.pid for worker in loader.reading_service._pool.workers]
    # Three slots of each worker, for two batches in flight and one in use, mapped on both sides.
    assert after[0] <= 2 * 3 * 2
    assert after[1] <= threads + 2
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
        Pause()(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


TRAINER = """
import sys
sys.path.insert(0, sys.argv[2])
import ray
from test_cluster_matrix import actors, chain
import voxpipe as vp
if __name__ == "__main__":
    ray.init(sys.argv[1], log_to_driver=False, _node_ip_address="127.0.0.2")
    loader = vp.DataLoader2(chain(), None, actors(2), seed=7)
    next(iter(loader))
    print(*[w.process.pid for w in loader.reading_service._pool.workers], flush=True)
    sys.stdin.read()
"""


def test_a_trainer_that_is_killed_leaves_no_actor(cluster, tmp_path):
    """Nothing of ours is left ten seconds after SIGKILL."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    folder = str(ROOT / "tests" / "extensions" / "cluster")
    command = [sys.executable, str(script), cluster.address, folder]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as trainer:
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        trainer.kill()
    assert pids
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
        Pause()(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
