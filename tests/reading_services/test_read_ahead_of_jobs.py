"""Workers fetch what waiting jobs read; it changes when bytes come, never which."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from s3_server import Fault, S3Server

from voxpipe.batching.job import Job, tickets_of
from voxpipe.core.errors import StoreUnavailable
from voxpipe.dataloader2 import DataLoader2
from voxpipe.datapipes.iter import from_cases
from voxpipe.reading_services import MultiProcessingReadingService
from voxpipe.reading_services.transport.messages import DoJob
from voxpipe.reading_services.workers.pool import WorkerPool
from voxpipe.reading_services.workers.worker import JobQueue

zarr = pytest.importorskip("zarr")


class Load:
    """Counts what it loads, and fails where it is told."""

    def __init__(self):
        self.loaded = []

    def __call__(self, data):
        self.loaded.append(data)
        if data == b"bad":
            raise ValueError("cannot be loaded")
        return data.decode()


def message(job):
    return pickle.dumps(DoJob(0, job, 0, 0))


def test_a_job_is_loaded_once():
    """Looked at ahead and then asked for: loaded once; in the order of arrival."""
    load = Load()
    queued = JobQueue(load)
    queued.put(message(b"one"))
    queued.put(message(b"two"))

    first, second = queued.get(), queued.get()
    second.look()

    assert (first.job(), second.job(), second.job()) == ("one", "two", "two")
    assert sorted(load.loaded) == [b"one", b"two"]


def test_free_slots_are_known_before_their_job_has_its_turn():
    """What the last of the jobs that wait says is free can hold the batch of the first."""
    queued = JobQueue(Load())
    queued.put(pickle.dumps(DoJob(0, b"one", 0, 0)))
    queued.put(pickle.dumps(DoJob(1, b"two", 0, 0, free_slots=(3, 3), given_up=(4,))))

    queued.put(
        pickle.dumps(DoJob(-1, b"", 0, 0, (5,)))
    )  # of a batch that was dropped without a new job

    told = [(m.free_slots, m.given_up) for m in queued.messages()]
    assert told == [((), ()), ((3, 3), (4,)), ((5,), ())]
    assert list(queued.messages()) == []
    assert [queued.get().message.index for _ in range(2)] == [0, 1]


def test_workers_that_get_no_job_are_told_which_slots_are_free():
    """One that is busy hears of a slot before its next job; one that is idle, with that."""
    told = []
    busy, idle, nothing_free = (
        SimpleNamespace(jobs=jobs, slots=SimpleNamespace(take_freed=free.copy, take_given_up=list))
        for jobs, free in (([1], [7]), ([], [8]), ([2], []))
    )
    pool = SimpleNamespace(workers=[busy, idle, nothing_free], send=lambda *sent: told.append(sent))

    WorkerPool.tell_free_slots(pool)

    assert told == [(busy, DoJob(-1, b"", 0, 0, (7,)))]


def test_what_cannot_be_loaded_is_raised_in_its_turn():
    """Looking ahead never raises; asking for the job does, each time."""
    queued = JobQueue(Load())
    queued.put(message(b"bad"))
    waiting = queued.get()
    waiting.look()

    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be loaded"):
            waiting.job()


def test_things_that_are_no_patches_are_left_alone():
    """Jobs of other pipes have nothing to fetch."""
    assert tickets_of(7) == []
    assert tickets_of(Job(0, (1, {"a": 2}, SimpleNamespace()))) == []


@pytest.fixture
def server(tmp_path, monkeypatch, started_clients):
    root = tmp_path / "s3"
    (root / "bucket").mkdir(parents=True)
    array = np.arange(16**3, dtype=np.int32).reshape(16, 16, 16)
    for name in ("a", "b"):
        stored = zarr.create_array(
            root / "bucket" / f"{name}.zarr", shape=array.shape, dtype=array.dtype, chunks=(8, 8, 8)
        )
        stored[...] = array
    with S3Server(root) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def batches(server, workers):
    """Return all batches of one epoch, as bytes."""
    names = [f"s3://bucket/{name}.zarr" for name in ("a", "b")]
    options = server.storage_options
    pipe = from_cases([{"image": name} for name in names])
    pipe = pipe.open_volume(storage_options=options).lazy_patch(6, samples_per_volume=6)
    service = MultiProcessingReadingService(workers)
    with DataLoader2(pipe.batch_patches(2), None, service, seed=3) as loader:
        return [batch["image"].numpy().tobytes() for batch in loader]


def test_patches_of_a_bucket_are_the_same_with_workers(server):
    """In process and with a worker: the same bytes, and no chunk is asked for with HEAD."""
    expected = batches(server, 0)
    server.forget()

    assert batches(server, 1) == expected
    assert {line.method for line in server.requests} == {"GET"}
    assert len(server.requests) < 60


def test_what_fails_ahead_is_told(server, monkeypatch):
    """A store that fails for good is an error of the batch that needed it."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.2")
    server.fail(Fault("slow_down", key=r"b\.zarr/c/"))

    with pytest.raises(StoreUnavailable, match=r"b\.zarr/c/"):
        batches(server, 1)
