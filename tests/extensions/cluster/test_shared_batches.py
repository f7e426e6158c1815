"""Loaders of one pool share batches if everything is equal that decides on them."""

import os
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import nibabel
import numpy as np
import pytest
from ranks import run_ranks
from test_cluster_matrix import chain, digest

import voxpipe as vp
from voxpipe.batching.job import BatchResult, ErrorPolicy, Job
from voxpipe.core.errors import VolumeChanged
from voxpipe.extensions.cluster import shared_batches
from voxpipe.extensions.cluster.node_affinity import NodeAffinity
from voxpipe.extensions.cluster.shared_batches import BatchStore, SharingUnpickler
from voxpipe.reading_services.planner import DeliveredBatches, jobs
from voxpipe.reading_services.workers.payload import payload_of, pickle_job

MEGABYTE = 1024**2


class Counted:
    """Adds a line to a file for each batch that is made."""

    def __init__(self, file, *, warns=False, seconds=0.0):
        self.file, self.warns, self.seconds = str(file), warns, seconds

    def __call__(self, batch):
        with open(self.file, "a") as file:
            file.write("made\n")
        if self.warns:
            warnings.warn("of this batch", UserWarning, stacklevel=1)
        threading.Event().wait(self.seconds)
        return batch


def made(file):
    """Return how many batches were made."""
    return len(file.read_text().split())


@pytest.fixture
def kept(monkeypatch):
    """Return the kept batches of this process, which stands for an actor."""
    own = BatchStore()
    own.most_bytes = MEGABYTE
    monkeypatch.setattr(shared_batches, "STORE", own)
    return own


def loads(pipe, seed=7, epoch=0, policy=None):
    """Return the maker and the pickled jobs of one loader and pass, as an actor gets them."""
    work = vp.MultiProcessingReadingService(1).distribute(pipe)
    work = work if policy is None else replace(work, errors=policy)
    maker = SharingUnpickler(payload_of(work, 1).data, {}).load()[3]
    plan = jobs(work.cut, seed, epoch, DeliveredBatches(), work.part, work.errors)
    return maker, [pickle_job(job) for job in plan]


def batches_of(pipe, seed=7, epoch=0, policy=None):
    """Return the batches of one loader and pass, made as an actor makes them."""
    maker, pickles = loads(pipe, seed, epoch, policy)
    return [maker.run(SharingUnpickler(data, {}).load(), seed, epoch) for data in pickles]


def bytes_of(batches):
    images = [(batch["image"], batch["meta"]) for batch in batches]
    arrays = [(np.asarray(getattr(image, "array", image)), meta) for image, meta in images]
    return [(array.tobytes(), array.strides, repr(meta)) for array, meta in arrays]


def of_files(folder):
    """Return a chain of three files in a folder."""
    for number in range(3):
        path = folder / str(number) / "ct.nii"
        if not path.exists():
            path.parent.mkdir()
            voxels = np.random.default_rng(number).integers(0, 99, (8, 9, 10)).astype(np.int16)
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), path)
    patches = vp.list_cases(f"{folder}/*/", image="ct.nii").shuffle().open_volume()
    return patches.lazy_patch(4, samples_per_volume=4).augment(rotate=15).batch_patches(2)


def counted(monkeypatch):
    """Return a list that grows with each batch that is made, and not taken from the kept ones."""
    numbers, keep = [], shared_batches._keep

    def note(key, *others):
        numbers.append(key)
        keep(key, *others)

    monkeypatch.setattr(shared_batches, "_keep", note)
    return numbers


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_second_loader_gets_the_batches_of_the_first(kind, tmp_path, monkeypatch):
    """Another seed or epoch has its own."""
    make = chain if kind == "memory" else partial(of_files, tmp_path)
    numbers = counted(monkeypatch)
    first = bytes_of(batches_of(make()))
    count = len(numbers)
    assert count == len(first)
    assert bytes_of(batches_of(make())) == first
    assert len(numbers) == count
    for other in ({"seed": 8}, {"epoch": 1}):
        assert bytes_of(batches_of(make(), **other)) != first
    assert len(numbers) == 3 * count
    monkeypatch.setattr(shared_batches, "STORE", BatchStore())
    assert bytes_of(batches_of(make())) == first


@pytest.mark.usefixtures("kept")
def test_another_chain_or_another_file_has_its_own_batches(tmp_path, monkeypatch):
    """Also a file that was written again, whose kept batches are old."""
    numbers = counted(monkeypatch)
    before = bytes_of(batches_of(of_files(tmp_path)))
    count = len(numbers)
    assert bytes_of(batches_of(of_files(tmp_path).map(Counted(tmp_path / "made")))) == before
    assert len(numbers) == 2 * count
    image = nibabel.Nifti1Image(np.full((8, 9, 10), 7, np.int16), np.eye(4))
    nibabel.save(image, tmp_path / "0" / "ct.nii")
    assert bytes_of(batches_of(of_files(tmp_path))) != before
    assert 2 * count < len(numbers) <= 3 * count


@pytest.mark.usefixtures("kept")
def test_a_file_that_changes_within_a_pass_is_refused(tmp_path):
    """Although its batch is kept."""
    batches_of(of_files(tmp_path))
    maker, pickles = loads(of_files(tmp_path))
    job = SharingUnpickler(pickles[0], {}).load()
    assert not isinstance(job, Job)
    for number in range(3):
        os.utime(tmp_path / str(number) / "ct.nii", (1, 1))
    with pytest.raises(VolumeChanged):
        maker.run(job, 7, 0)


def test_kept_batches_are_bounded_in_bytes(kept):
    """The oldest ones leave; without room none is kept."""
    kept.most_bytes = 4000
    batches_of(chain())
    assert 2000 < kept.bytes <= 4000
    assert kept.bytes == sum(one.bytes for one in kept._batches.values())
    kept.most_bytes = 0
    assert type(SharingUnpickler(pickle_job(Job(0, ())), {}).load()) is Job


def test_batches_with_failures_are_not_kept(kept, tmp_path):
    """Each loader tries a bad file itself."""
    pipe = of_files(tmp_path)
    (tmp_path / "1" / "ct.nii").write_bytes(b"nothing")
    for _ in range(2):
        batches = batches_of(pipe, policy=ErrorPolicy("skip"))
        bad = sum(isinstance(batch, BatchResult) for batch in batches)
        assert 0 < bad < len(batches)
        assert len(kept._batches) == len(batches) - bad


@pytest.mark.usefixtures("kept")
def test_warnings_come_with_kept_batches(tmp_path):
    """Each loader has them all."""
    for _ in range(2):
        pipe = of_files(tmp_path).map(Counted(tmp_path / "made", warns=True))
        with pytest.warns(UserWarning, match="of this batch") as record:
            count = len(batches_of(pipe))
        assert len(record) == made(tmp_path / "made") == count


STRENGTH = 1


def strengthened(batch):
    return {"strength": STRENGTH, "meta": batch["meta"]}


@pytest.mark.usefixtures("kept")
def test_loaders_with_other_values_take_turns(monkeypatch):
    """A value that a function reads is that of the batch's own loader."""
    makers = []
    for value in (1, 2):
        monkeypatch.setattr(sys.modules[__name__], "STRENGTH", value)
        makers += [loads(chain().map(strengthened))]
    for n in range(3):
        for value, (maker, pickles) in enumerate(makers, 1):
            batch = maker.run(SharingUnpickler(pickles[n], {}).load(), 7, 0)
            assert batch["strength"] == value


def test_equal_jobs_go_to_one_actor():
    """Its place decides, also if others have fewer jobs; a slow one gets no more than it may."""
    from types import SimpleNamespace

    workers = [
        SimpleNamespace(number=n, place=n, node="", jobs=[0] * (2 - n), most_jobs=8, is_gone=False)
        for n in range(3)
    ]
    affinity = NodeAffinity("home", lambda: 3)
    chosen = [affinity.choose(Job(n, ()), workers, 2, 9).place for n in range(6)]
    assert chosen == [0, 1, 2, 0, 1, 2]
    workers[0].most_jobs = 1
    assert affinity.choose(Job(0, ()), workers, 2, 9).place == 2


def test_what_shared_bytes_needs():
    """The error names both."""
    for options in ({"local_workers": 0}, {"local_workers": 1, "pool": "search"}):
        with pytest.raises(ValueError, match="shared_bytes needs pool= and local_workers=0"):
            vp.RayReadingService(2, shared_bytes=MEGABYTE, **options)


def trial(file, actors):
    """Return a loader that stands for a trial of a search."""
    options = {"local_workers": 0, "pool": f"trials-{actors}", "shared_bytes": MEGABYTE}
    service = vp.RayReadingService(actors, late=0, **options)
    return vp.DataLoader2(chain().map(Counted(file, seconds=0.05)), None, service, seed=7)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_trial_that_follows_has_no_batch_made(tmp_path):
    """Also one that begins later, from a state; the digests are those of one process."""
    with vp.DataLoader2(chain(), seed=7) as plain:
        expected = digest(plain), digest(plain)
    file = tmp_path / "made"
    with trial(file, 1) as one, trial(file, 1) as two:
        assert digest(one) == digest(two) == expected[0]
        assert made(file) == 24
        assert digest(one) == expected[1]
        state = two.state_dict()
        with trial(file, 1) as three:
            three.load_state_dict(state)
            assert digest(three) == expected[1]
    assert made(file) == 48


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_trials_at_equal_pace_have_few_batches_made_twice(tmp_path):
    """All loaders send equal jobs to one of the two actors, once both are up."""
    file = tmp_path / "made"
    with trial(file, 2) as one, trial(file, 2) as two, ThreadPoolExecutor(2) as threads:
        first = [*threads.map(digest, (one, two))]
        before = made(file)
        second = [*threads.map(digest, (one, two))]
    assert first[0] == first[1] != second[0] == second[1]
    assert made(file) - before <= 1.2 * 24


def in_a_process(rank, address, file):
    """Return the digest of an epoch of a trial in this process."""
    import ray
    import torch.distributed as dist

    ray.init(address, log_to_driver=False, configure_logging=False, _node_ip_address="127.0.0.2")
    with trial(file, 1) as loader:
        found = digest(loader)
        dist.barrier()  # the actor ends with the last trial
    ray.shutdown()
    return found


@pytest.mark.slow
def test_trials_in_two_processes_make_each_batch_once(cluster, tmp_path):
    """Each process has hashes of its own, which decide on nothing."""
    file = tmp_path / "made"
    first, second = run_ranks(2, in_a_process, cluster.address, file)
    with vp.DataLoader2(chain(), seed=7) as plain:
        assert first == second == digest(plain)
    assert made(file) == 24
