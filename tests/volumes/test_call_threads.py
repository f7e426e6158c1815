"""Calls for an event loop in threads: what they hand over, and what they keep."""

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest

from voxpipe.storage.in_flight import CallThreads


def slow_to_go_on(loop, monkeypatch):
    """Let threads stand still right after they woke the loop; return what lets them go on."""
    go_on = threading.Event()
    true = loop.call_soon_threadsafe

    def wake(*given):
        handle = true(*given)
        assert go_on.wait(60)
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", wake)
    return go_on


@pytest.mark.parametrize("fails", [False, True], ids=["answers", "fails"])
def test_a_thread_that_is_kept_waiting_keeps_nothing(monkeypatch, fails):
    """The answer and the error are gone with the future, wherever the thread stands."""

    def call():
        array = np.zeros(3)
        kept.append(weakref.ref(array))
        if fails:
            raise ValueError(array)
        return array

    async def run():
        go_on = slow_to_go_on(asyncio.get_running_loop(), monkeypatch)
        try:
            (found,) = await asyncio.gather(CallThreads().run(call), return_exceptions=True)
            kinds = type(found)
            del found
            await asyncio.sleep(0)
            return kinds, kept[0]()
        finally:
            go_on.set()

    kept = []
    gc.disable()
    try:
        assert asyncio.run(run()) == (ValueError if fails else np.ndarray, None)
    finally:
        gc.enable()


def test_one_call_after_another_needs_one_thread(monkeypatch):
    """A thread is free for the next call before it delivers the answer of the last one."""

    async def run():
        threads = CallThreads()
        go_on = slow_to_go_on(asyncio.get_running_loop(), monkeypatch)
        try:
            first = await threads.run(threading.current_thread)
            before = set(threading.enumerate())
            second = threads.run(threading.current_thread)
            return set(threading.enumerate()) - before, first
        finally:
            go_on.set()
            assert await asyncio.wait_for(second, 60) is first

    added, first = asyncio.run(run())

    assert added == set()
    assert first.name == "voxpipe-get"


def test_answers_and_errors_come_back():
    """Each to who asked for it, more at once than there are threads."""

    def call(number):
        if number % 5 == 4:
            raise ValueError(number)
        return number

    async def run():
        threads = CallThreads(most=3)
        asked = [threads.run(lambda number=number: call(number)) for number in range(20)]
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)

    found = asyncio.run(run())

    told = [each.args[0] if isinstance(each, ValueError) else each for each in found]
    assert told == list(range(20))
    assert [isinstance(each, ValueError) for each in found] == [n % 5 == 4 for n in range(20)]


def test_a_call_that_nobody_waits_for_is_not_made():
    """It was cancelled before its turn came."""
    made, go_on = [], threading.Event()

    async def run():
        threads = CallThreads(most=1)
        first = threads.run(lambda: go_on.wait(60))
        second = threads.run(lambda: made.append("second"))
        third = threads.run(lambda: made.append("third"))
        second.cancel()
        go_on.set()
        await asyncio.wait_for(asyncio.gather(first, third), 60)

    asyncio.run(run())

    assert made == ["third"]
