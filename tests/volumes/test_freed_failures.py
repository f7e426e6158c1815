"""What a read held is freed when it has failed, and not with the next collection of garbage."""

import asyncio
import gc
import weakref
from contextlib import suppress

import numpy as np
import pytest
from fsspec.asyn import get_loop
from s3_server import Fault

from voxpipe.core.errors import StoreUnavailable, VoxpipeError
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.read_ahead import ReadAhead
from voxpipe.storage.remote import open_remote
from voxpipe.storage.remote_answers import Answer
from voxpipe.storage.remote_ranges import RemoteRanges
from voxpipe.storage.retry import MOST_MISSING, Retry

QUICK = Retry(deadline=0.05, first=0.01, most=0.02)


@pytest.fixture(autouse=True)
def no_collection():
    """A worker may see none in an epoch."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left_by(call, expected):
    """Return whether what the caller of a failing function holds outlives the failure."""

    def work():
        held = np.zeros(3)
        try:
            call()
        except expected:
            return weakref.ref(held)
        raise AssertionError

    return work()() is not None


def turned():
    """Wait until the loop of the requests has turned to something else."""

    async def nothing():
        pass

    asyncio.run_coroutine_threadsafe(nothing(), get_loop()).result(60)


def test_a_read_that_fails(server, client):
    """Whoever skips what cannot be read goes on with the memory of before."""
    store = open_remote("s3://bucket", server.storage_options, QUICK)
    server.fail(Fault("slow_down"))

    assert not left_by(lambda: store.get_ranges([ReadRange("a", 0, 4)]), StoreUnavailable)


class Answers(RemoteRanges):
    """Brings large answers, and fails for one."""

    def __init__(self):
        super().__init__("s3://bucket", {}, QUICK)
        self.sent = []

    async def ask(self, asked):
        if asked.key == "bad":
            await asyncio.sleep(0)
            raise ValueError(asked.key)
        answer = np.zeros(asked.stop - asked.start, np.uint8)
        self.sent.append(weakref.ref(answer))
        return Answer(answer.data)

    async def ask_facts(self, key):
        raise NotImplementedError

    async def ask_keys(self, prefix):
        raise NotImplementedError


def test_answers_beside_one_that_fails():
    """They came for nothing."""
    store = Answers()
    with suppress(VoxpipeError):
        store.get_ranges([ReadRange(key, 0, 100) for key in ("a", "bad", "b")])
    turned()

    assert [answer() is None for answer in store.sent] == [True, True]


def test_a_read_of_what_was_asked_for_ahead():
    """It is told there, and leaves nothing."""
    store, ahead = Answers(), ReadAhead()

    async def fetch_chunks(chunks, later):
        await store.get_ranges_async([ReadRange("bad", 0, 100)])

    def read():
        ticket = ahead.begin("a", [(0,)], lambda _: 100, store, fetch_chunks)
        try:
            ahead.take("a", [(0,)])
        finally:
            ticket.close()

    assert not left_by(read, VoxpipeError)


def test_an_object_that_is_not_there():
    """Of an array that is mostly fill every other answer is such a one."""
    store, seen = Answers(), []

    class Held:
        pass

    async def ask(asked):
        held = Held()
        seen.append(weakref.ref(held))
        raise FileNotFoundError

    store.ask = ask

    assert store.get("a") is None
    turned()
    # Others may have been there: it is looked for again.
    assert [held() for held in seen] == [None] * MOST_MISSING
