"""Ranks of one job share actors: batches stay the same, and all actors end with the last rank."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from checkout import ROOT
from ranks import run_ranks
from test_cluster_matrix import chain, digest

import voxpipe as vp
from voxpipe.core.errors import BadSetting


def wait_for(condition, seconds=10.0):
    """Return whether a condition holds within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    return condition()


def shared(count):
    return vp.RayReadingService(count, local_workers=0, pool="shared")


def pausing(batches, seconds):
    """Yield batches, with a pause after the second one."""
    for number, batch in enumerate(batches):
        if number == 2:
            threading.Event().wait(seconds)
        yield batch


def two_ways(rank, address, pause):
    """Return the digests of this rank's part, in its process and with shared actors, and pids."""
    import ray

    ray.init(address, log_to_driver=False, configure_logging=False, _node_ip_address="127.0.0.2")
    digests, pids = [], set()
    for inner in (vp.reading_services.InProcessReadingService(), shared(2)):
        ranks = vp.DistributedReadingService()
        both = vp.reading_services.SequentialReadingService(ranks, inner)
        with vp.DataLoader2(chain(size=4), None, both, seed=7) as loader:
            first = digest(loader)
            # The second rank makes most batches after the end of the first one's connection.
            second = pausing(loader, pause if rank and digests else 0.0)
            digests += [(first, digest(second))]
            if len(digests) == 2:
                pids = {worker.process.pid for worker in loader.reading_service._pool.workers}
    ray.shutdown()
    return digests, pids


@pytest.mark.slow
def test_two_ranks_have_the_same_actors_and_their_own_batches(cluster):
    """The second rank goes on after the end of the first."""
    every = run_ranks(2, two_ways, cluster.address, 6.0)

    assert all(digests[0] == digests[1] for digests, _ in every)
    assert every[0][0][0] != every[1][0][0]
    assert every[0][1] & every[1][1]
    pids = every[0][1] | every[1][1]
    assert len(pids) <= 2
    assert wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


TRAINER = """
import sys
sys.path[:0] = sys.argv[2:]
import ray
from test_shared_pool import chain, shared
import voxpipe as vp
if __name__ == "__main__":
    ray.init(sys.argv[1], log_to_driver=False, _node_ip_address="127.0.0.2")
    loader = vp.DataLoader2(chain(), None, shared(8), seed=7)
    next(iter(loader))
    print(*[w.process.pid for w in loader.reading_service._pool.workers], flush=True)
    sys.stdin.read()
"""


def actors_of_pools(kinds=("SharedActor", "Manager")):
    """Return the classes of our actors of these kinds that run or wait for room."""
    from ray._private.state import actors

    alive = [one["ActorClassName"] for one in actors().values() if one["State"] != "DEAD"]
    return [name for name in alive if name in kinds]


@pytest.mark.slow
def test_nothing_is_left_of_ranks_that_are_killed(cluster, tmp_path):
    """Neither actors, also those that wait for room, nor the manager, ten seconds later."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    folders = [str(ROOT / "tests" / "extensions" / "cluster"), str(ROOT / "tests")]
    command = [sys.executable, str(script), cluster.address, *folders]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    first, second = (subprocess.Popen(command, **pipes) for _ in range(2))
    with first, second:
        pids = [{*map(int, one.stdout.readline().split())} for one in (first, second)]
        first.kill()
        threading.Event().wait(4.0)
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids[1])
        assert len(actors_of_pools()) == 9
        second.kill()
    assert pids[0]
    assert wait_for(lambda: not actors_of_pools())
    assert wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids[0] | pids[1]))


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.WorkerReplaced")
def test_a_manager_that_is_killed_is_replaced():
    """Its actors end with it, and others make their batches."""
    with vp.DataLoader2(chain(), seed=7) as plain:
        expected = digest(plain)
    with vp.DataLoader2(chain(), None, shared(2), seed=7) as loader:
        it = iter(loader)
        batches = [next(it)]
        for process in psutil.process_iter(["cmdline"]):
            if process.info["cmdline"] and process.info["cmdline"][0] == "ray::Manager":
                process.kill()
        assert digest([*batches, *it]) == expected
    assert wait_for(lambda: not actors_of_pools())


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.WorkerReplaced")
def test_both_replace_a_shared_actor_that_is_killed():
    """Two loaders of one process stand for two ranks."""
    with vp.DataLoader2(chain(), seed=7) as plain:
        expected = digest(plain)
    one, two = (vp.DataLoader2(chain(), None, shared(2), seed=7) for _ in range(2))
    with one, two:
        first, second = iter(one), iter(two)
        batches = [next(first)], [next(second)]
        pool = one.reading_service._pool
        os.kill(pool.workers[0].process.pid, signal.SIGKILL)
        assert digest([*batches[0], *first]) == expected
        assert digest([*batches[1], *second]) == expected
        assert "of Ray, which ranks share as 'shared'" in one.explain()


def test_turns_are_fair():
    """A thread that comes back waits for all others that came meanwhile."""
    from voxpipe.extensions.cluster.shared_actor import _Turns

    turns, order, barrier = _Turns(), [], threading.Barrier(3)

    def work(name):
        barrier.wait()
        for _ in range(20):
            with turns:
                order.append(name)
                threading.Event().wait(0.002)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len({*order[n : n + 3]}) == 3 for n in range(3, 54))


def test_a_shared_pool_needs_a_cluster_and_a_name(monkeypatch):
    """Each rank would start a Ray of its own otherwise."""
    with pytest.raises(ValueError, match="pool is the name of shared actors or None, got 3"):
        vp.RayReadingService(2, 0, pool=3)
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        vp.DataLoader2(chain(), None, shared(2), seed=7) as loader,
        pytest.raises(BadSetting, match="ranks can share pool='shared' only in a cluster"),
    ):
        next(iter(loader))
