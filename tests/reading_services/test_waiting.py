"""An idle loader sleeps in one wait; it does not poll."""

import functools
from multiprocessing import connection

import pytest
from scenes import full_chain, write_cases

import voxpipe as vp
from voxpipe.core.errors import WorkerDied
from voxpipe.reading_services.workers import pool


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


@pytest.fixture
def waits(monkeypatch):
    """Count the waits of the consumer, with what each waited for."""
    seen = []

    class Connection:
        Connection = connection.Connection

        @staticmethod
        def wait(objects, timeout):
            seen.append((len(objects), timeout))
            return connection.wait(objects, timeout)

    monkeypatch.setattr(pool, "connection", Connection)
    return seen


def test_one_wait_per_answer_over_channels_and_deaths(cases, waits):
    """Every wait covers each worker's channel and sentinel, and the word to leave; it ends soon."""
    service = vp.MultiProcessingReadingService(2, "fork")
    with vp.DataLoader2(full_chain(cases, samples=8), vp.Timeout(item=77), service) as loader:
        batches = len(list(loader))

    # At most one wait per batch, and per worker one for its start and three for its slots.
    assert batches == 6
    assert 1 <= len(waits) <= batches + 2 * 4 + 2
    assert {count for count, _ in waits} == {2 * 2 + 1}
    assert all(0 < timeout <= 77 + 120 for _, timeout in waits)


def die(batch):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_ends_the_wait(cases, waits):
    """A worker that is killed wakes the consumer: no wait runs into its limit."""
    service = vp.MultiProcessingReadingService(2, "fork", max_restarts=0)
    pipe = full_chain(cases).map(functools.partial(die))
    with vp.DataLoader2(pipe, None, service) as loader, pytest.raises(WorkerDied):
        list(loader)

    # Workers come up, announce slots, and one dies: a handful, where polling makes hundreds.
    assert len(waits) <= 10


def test_jobs_in_flight_are_bounded(cases, monkeypatch):
    """However slow the consumer, at most worker_prefetch_cnt batches per worker are ahead."""
    given = []
    give = pool.WorkerPool.give
    monkeypatch.setattr(
        pool.WorkerPool, "give", lambda self, *a: given.append(a[1].index) or give(self, *a)
    )
    service = vp.MultiProcessingReadingService(2, "fork", worker_prefetch_cnt=2)
    with vp.DataLoader2(full_chain(cases, samples=16), None, service) as loader:
        for delivered, _ in enumerate(loader):
            assert max(given) < delivered + 1 + 4
