"""Workers on the nodes of a Ray cluster."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import (
    ItemTimeout,
    MissingDependency,
    NotPicklable,
    VolumeNotFound,
    WorkerDied,
)
from voxpipe.testing import PoolContract


def chain(cases=None):
    """24 batches of two turned patches."""
    voxels = np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10)
    cases = cases or [{"case": f"case{n}", "image": voxels + n} for n in range(12)]
    patches = vp.from_cases(cases).shuffle().open_volume().lazy_patch(4, samples_per_volume=4)
    return patches.augment(rotate=15).batch_patches(2)


def contents(batches):
    return [(batch["image"].numpy().tobytes(), batch["meta"]) for batch in batches]


def expected():
    with vp.DataLoader2(chain(), seed=7) as loader:
        return contents(loader), contents(loader)


@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.WorkerReplaced")
def test_workers_here_and_on_other_nodes_make_the_batches_of_one_process():
    """Also after a kill, with more and fewer workers, and from a state."""
    first, second = expected()
    service = vp.RayReadingService(3, local_workers=1)
    with vp.DataLoader2(chain(), None, service, seed=7) as loader:
        batches = []
        for number, batch in enumerate(loader):
            batches.append(batch)
            pool = loader.reading_service._pool
            if number == 6:
                os.kill(pool.workers[-1].process.pid, signal.SIGKILL)
            if number in (12, 18):
                service.scale({12: 4, 18: 2}[number])
        assert contents(batches) == first
        it = iter(loader)
        start = contents(next(it) for _ in range(9))
        state = loader.state_dict()
        del it
        assert "workers: 1 process of this node, and 1 actor of Ray" in loader.explain()
    assert start == second[:9]
    with vp.DataLoader2(chain(), seed=7) as loader:
        loader.load_state_dict(state)
        assert contents(loader) == second[9:]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_node_without_a_local_file_is_named(tmp_path, monkeypatch):
    """The error has the node, the file, and the cure."""
    file = tmp_path / "a.nii"
    nibabel.save(nibabel.Nifti1Image(np.zeros((8, 8, 8), np.int16), np.eye(4)), file)
    pipe = chain([{"image": str(file)}]).map(Elsewhere(str(file)))
    service = vp.RayReadingService(1, local_workers=0)

    with vp.DataLoader2(pipe, None, service, seed=7) as loader, pytest.raises(VolumeNotFound) as e:
        list(loader)

    assert f") has no file {file}, which this node has." in str(e.value)
    assert " on node 127.0.0." in str(e.value)
    assert "Put it on a disk that all nodes share" in str(e.value)


class Elsewhere:
    """Raises the error of a node that has no such file."""

    def __init__(self, file):
        self.file, self.pid = file, os.getpid()

    def __call__(self, batch):
        raise VolumeNotFound(f"there is no file {self.file}.")


NOWHERE = {"resources": {"nowhere": 1}}


@pytest.mark.usefixtures("cluster")
def test_no_job_waits_for_an_actor_that_has_no_room():
    """Workers that are up make all batches; without any, the error says what is waited for."""
    with vp.DataLoader2(chain(), None, vp.RayReadingService(3, 1, resources=NOWHERE), seed=7) as it:
        assert contents(it) == expected()[0]
    limits, service = vp.Timeout(item=0.5, start=0.5), vp.RayReadingService(2, 0, resources=NOWHERE)
    with (
        vp.DataLoader2(chain(), limits, service, seed=7) as loader,
        pytest.raises(ItemTimeout, match="no worker is up, and 2 of them wait for a node that has"),
    ):
        list(loader)


@pytest.mark.slow
def test_actors_that_waited_work_once_a_node_has_room(cluster):
    """The pass begins as soon as the node is there."""
    service = vp.RayReadingService(2, 0, resources=NOWHERE)
    with vp.DataLoader2(chain(), None, service, seed=7) as loader, ThreadPoolExecutor(1) as thread:
        batches = thread.submit(contents, loader)
        node = cluster.add_node(
            num_cpus=2,
            resources={"nowhere": 2},
            node_ip_address="127.0.0.30",
            object_store_memory=80 * 1024**2,
        )
        try:
            assert batches.result(120) == expected()[0]
        finally:
            loader.shutdown()
            cluster.remove_node(node)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.WorkerReplaced")
def test_the_workers_of_a_lost_node_count_as_one_death():
    """So ``max_restarts`` does not depend on the number of actors of a node."""
    service = vp.RayReadingService(4, local_workers=0, max_restarts=1)
    with vp.DataLoader2(chain(), None, service, seed=7) as loader:
        batches = []
        for number, batch in enumerate(loader):
            batches.append(batch)
            if number == 3:
                workers = loader.reading_service._pool.workers
                for worker in [w for w in workers if w.node == workers[0].node]:
                    os.kill(worker.process.pid, signal.SIGKILL)
        assert contents(batches) == expected()[0]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_file_that_one_node_lacks_is_no_bad_case(tmp_path):
    """``OnError("skip")`` leaves out the same cases wherever batches are made."""
    file = tmp_path / "a.nii"
    file.touch()
    pipe = chain().map(Elsewhere(str(file)))
    service = vp.RayReadingService(1, local_workers=0)
    with (
        vp.DataLoader2(pipe, vp.OnError("skip"), service, seed=7) as loader,
        pytest.raises(VolumeNotFound, match="which this node has"),
    ):
        list(loader)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_job_that_cannot_travel_spoils_no_later_pass():
    """The next pass has all of its batches."""
    lock = threading.Lock()
    cases = [{"case": f"case{n}", "image": np.full((8, 9, 10), n, np.int16)} for n in range(12)]
    cases[5]["note"] = lock
    service = vp.RayReadingService(2, local_workers=0)
    with vp.DataLoader2(chain(cases), None, service, seed=7) as loader:
        with pytest.raises(NotPicklable, match="cannot travel"):
            list(loader)
        del cases[5]["note"]
        assert len(list(loader)) == 24


TWO_LOADERS = """
from pathlib import Path
import numpy as np
import ray
import voxpipe as vp

def chain():
    cases = [{"case": f"case{n}", "image": np.full((8, 9, 10), n, np.int16)} for n in range(6)]
    patches = vp.from_cases(cases).shuffle().open_volume().lazy_patch(4, samples_per_volume=4)
    return patches.augment(rotate=15).batch_patches(2)

if __name__ == "__main__":
    service = vp.RayReadingService(1, local_workers=0)
    one, two = (vp.DataLoader2(chain(), None, service, seed=7) for _ in range(2))
    with two:
        with one:
            count = len(list(one))
            it = iter(two)
            next(it)
        folder = Path(ray._private.worker._global_node.get_temp_dir_path())
        print(count, ray.is_initialized(), 1 + len(list(it)))
    print(ray.is_initialized(), folder.exists())
"""


@pytest.mark.slow
def test_the_last_of_two_loaders_ends_the_ray_that_they_share(tmp_path):
    """A Ray that we start leaves neither processes nor files."""
    script = tmp_path / "two.py"
    script.write_text(TWO_LOADERS)
    environment = {name: v for name, v in os.environ.items() if not name.startswith("RAY_")}
    run = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, timeout=200
    )
    assert run.stdout == "12 True 12\nFalse False\n", run.stderr


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"cpus": 1}, "resources has no option 'cpus' of an actor: give num_cpus"),
        ({"max_restarts": 1}, "resources has no option 'max_restarts' of an actor: give "),
        ({"num_cpus": "two"}, r"resources\['num_cpus'\] is a number >= 0, got 'two'"),
    ],
)
def test_options_that_an_actor_does_not_have_are_refused(resources, message):
    """By one sentence, when the service is made."""
    with pytest.raises(ValueError, match=message):
        vp.RayReadingService(2, 0, resources=resources)


def test_a_graph_that_is_not_split_has_the_local_workers_only():
    """Actors never run it, so no further process starts."""
    pipe = vp.from_cases([{"number": n} for n in range(9)]).shuffle().sharding_filter()
    for local, count in ((2, 2), (0, 1)):
        service = vp.RayReadingService(30, local_workers=local, worker_init_fn=unchanged)
        assert service.distribute(pipe.map(dict)).workers == count


def unchanged(pipe, info):
    return pipe


def test_a_worker_that_all_wait_for_rests(monkeypatch):
    """Each failed trial doubles the rest; a good one ends it."""
    from voxpipe.extensions.cluster import ray_pool

    monkeypatch.setattr(ray_pool.time, "monotonic", lambda: 0.0)
    pace = ray_pool._Pace()
    found = []
    for seconds in (1.0, 1.0, 1.5, 1.5, 9.0, 9.0, 9.0, 1.0):
        pace.seconds.append(seconds)
        pace.limit(usual=1.0, window=2.5)
        found.append((min(pace.most_jobs, 2), pace.rest))
    assert found == [(2, 0), (2, 0), (2, 0), (1, 0), (1, 0), (0, 90), (0, 180), (2, 0)]


class WarnsLate:
    """Waits and warns in the first process that comes here."""

    def __init__(self, file):
        self.file = file

    def __call__(self, batch):
        with contextlib.suppress(FileExistsError), open(self.file, "x") as note:
            note.write(str(os.getpid()))
            note.flush()
            threading.Event().wait(1.5)
            warnings.warn("of the late one", UserWarning, stacklevel=1)
        threading.Event().wait(0.05)
        return batch


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_warnings_of_a_late_batch_arrive(tmp_path):
    """Also when the batch itself comes from another worker."""
    cases = [{"case": f"case{n}", "image": np.full((8, 9, 10), n, np.int16)} for n in range(30)]
    pipe = chain(cases).map(WarnsLate(str(tmp_path / "pid")))
    service = vp.RayReadingService(2, local_workers=0)
    with (
        vp.DataLoader2(pipe, None, service, seed=7) as loader,
        pytest.warns(UserWarning, match="of the late one"),
    ):
        assert len(list(loader)) == 60


def test_without_ray_one_sentence_says_what_to_install(monkeypatch):
    """The service is refused when it is made."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("voxpipe.extensions.cluster.ray_service.find_spec", lambda name: None)

    with pytest.raises(MissingDependency, match=r"needs ray, which is not installed\n.*\[ray\]"):
        vp.RayReadingService(2)


def other_version(patch, fact):
    """Give this process another version, and return the name of the fact."""
    facts = "voxpipe.extensions.cluster.ray_pool.facts_of_process"
    patch.setattr(facts, lambda modules: {fact: "9.9"})
    return fact


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "fact", ["voxpipe", *(pytest.param(f, marks=pytest.mark.slow) for f in ("kernel", "h5py"))]
)
def test_another_version_is_refused_by_name(fact, monkeypatch):
    """Before the first job."""
    other_version(monkeypatch, fact)
    service = vp.RayReadingService(1, local_workers=0)

    with vp.DataLoader2(chain(), None, service, seed=7) as loader, pytest.raises(WorkerDied) as e:
        list(loader)

    assert f"cannot be used: {fact} is " in str(e.value)
    assert "there, and 9.9 here" in str(e.value)


def test_a_function_of_a_script_that_no_node_has_is_refused(tmp_path):
    """By its name, with the node and the path of the script."""
    from voxpipe.extensions.cluster.actor import NodeUnpickler

    path = str(tmp_path / "train.py")
    data = b"c__main__\nmy_function\n."

    with pytest.raises(NotPicklable, match=rf"my_function .* has no {path}"):
        NodeUnpickler(data, {"init_main_from_path": path}).load()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
class TestActors(PoolContract):
    """Two actors, on the two other nodes."""

    makes_late_batches_again = True

    def make(self):
        return vp.RayReadingService(2, local_workers=0)

    def make_without_room(self):
        return vp.RayReadingService(2, local_workers=0, resources=NOWHERE)

    def pretend(self, patch):
        return other_version(patch, "voxpipe")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
class TestMixed(PoolContract):
    """A process of the trainer's node and an actor of another one."""

    makes_late_batches_again = True

    def make(self):
        return vp.RayReadingService(2, local_workers=1)
