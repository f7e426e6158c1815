"""What is under way stays within its bounds, and whoever waits gets a turn."""

import asyncio
from contextlib import asynccontextmanager, suppress

from hypothesis import given
from hypothesis import strategies as st

from voxpipe.storage.in_flight import InFlight, RequestPriority

sizes = st.lists(st.integers(0, 60), min_size=1, max_size=12)


@asynccontextmanager
async def room(bound, size, *, ahead=None):
    """Hold the room of one request."""
    await bound.enter(size, ahead=ahead)
    try:
        yield
    finally:
        bound.leave(size)


@given(sizes, st.sets(st.integers(0, 11)), st.lists(st.integers(0, 11), max_size=4))
def test_everybody_gets_a_turn(sizes, cancelled, order):
    """Whichever are cancelled while they wait or run, the others end and nothing is held."""

    async def run():
        bound = InFlight(most_requests=3, most_bytes=100)
        most = [0, 0]

        async def one(size):
            async with room(bound, size):
                most[0] = max(most[0], bound.requests)
                most[1] = max(most[1], bound.bytes)
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(one(size)) for size in sizes]
        await asyncio.sleep(0)
        for number in [*order, *cancelled]:
            if number < len(tasks) and number in cancelled:
                tasks[number].cancel()
                if number % 2:
                    await asyncio.sleep(0)
        for number, task in enumerate(tasks):
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(task, 10)
            assert task.done(), number
        return most, bound

    most, bound = asyncio.run(run())
    assert most[0] <= 3
    assert most[1] <= 100
    assert (bound.requests, bound.bytes) == (0, 0)


def test_a_waiter_that_gives_up_keeps_nobody():
    """The last to leave finds a cancelled waiter in front: the one behind it still gets in."""

    async def run():
        bound = InFlight(most_requests=1)
        leave, entered = asyncio.Event(), []

        async def one(name, hold):
            async with room(bound, 1):
                entered.append(name)
                if hold:
                    await leave.wait()

        tasks = [asyncio.ensure_future(one(name, name == "a")) for name in "abc"]
        await asyncio.sleep(0)
        # In one step of the loop: b is cancelled, and a leaves before b has taken itself out.
        tasks[0].cancel()
        tasks[1].cancel()
        await asyncio.wait_for(tasks[2], 10)
        return entered

    assert asyncio.run(run()) == ["a", "c"]


def test_who_waits_goes_before_what_is_fetched_ahead():
    """A read that comes last is served before everything that nobody waits for yet."""

    async def run():
        bound = InFlight(most_requests=1, most_bytes=100)
        order = []

        async def one(name, ahead):
            async with room(bound, 1, ahead=ahead):
                order.append(name)
                await asyncio.sleep(0)

        names = [
            ("first", RequestPriority()),
            ("second", RequestPriority()),
            ("third", RequestPriority()),
            ("read", None),
        ]
        await asyncio.gather(*(one(*each) for each in names))
        return order

    assert asyncio.run(run()) == ["first", "read", "second", "third"]


def test_one_that_is_too_large_goes_alone():
    """A request beyond the bound of bytes is not stuck: it waits for the others."""

    async def run():
        bound = InFlight(most_bytes=10)
        async with room(bound, 1000):
            return bound.bytes

    assert asyncio.run(run()) == 1000


def test_what_somebody_waits_for_by_now_goes_first():
    """Of what was queued for later, the part that is hurried overtakes the rest."""

    async def run():
        bound, order = InFlight(most_requests=1), []
        parts = {name: RequestPriority() for name in "abcd"}

        async def one(name):
            async with room(bound, 1, ahead=parts[name]):
                order.append(name)
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(one(name)) for name in "abccd"]
        await asyncio.sleep(0)
        bound.hurry(parts["c"])
        bound.hurry(parts["c"])
        tasks[2].cancel()
        await asyncio.gather(*tasks, one("c"), return_exceptions=True)
        return order, bound.requests

    assert asyncio.run(run()) == (["a", "c", "c", "b", "d"], 0)
