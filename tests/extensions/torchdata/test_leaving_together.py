"""Several pipes with threads are left within one limit, however many they are."""

import threading
from functools import partial

import pytest
from torch.utils.data import IterDataPipe

from voxpipe.datapipes import background_iterator as leaving_module
from voxpipe.datapipes.background_iterator import STOP_SECONDS, stop_limit
from voxpipe.datapipes.iter import IterableWrapper

LIMIT = 30.0
MOST = 1.5 * STOP_SECONDS
PIPES = 6

pytestmark = pytest.mark.filterwarnings("ignore:the thread .* is still at one item:RuntimeWarning")


@pytest.fixture
def waits(monkeypatch):
    """Return what every wait for a thread was allowed, in seconds; time stands still else."""
    seen, clock = [], [0.0]

    def join(thread, timeout=None):
        if thread.is_alive() and timeout > 0:  # one pool is one wait, whatever its threads
            seen.append(timeout)
            clock[0] += timeout

    with monkeypatch.context() as patched:
        patched.setattr(leaving_module, "monotonic", lambda: clock[0])
        patched.setattr(threading.Thread, "join", join)
        leaving_module.note_progress()
        yield seen
    leaving_module.note_progress()


@pytest.fixture
def gate():
    """An event that nobody sets before the test is over; then all threads end."""
    event, before = threading.Event(), set(threading.enumerate())
    yield event
    event.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT)


class UntilCtrlC(IterDataPipe):
    """Yields numbers, and is interrupted as soon as so many functions are stuck."""

    def __init__(self, count=0, are_stuck=None):
        super().__init__()
        self.count, self.are_stuck = count, are_stuck

    def __iter__(self):
        yield from range(self.count)
        for _ in range(self.count):
            assert self.are_stuck.acquire(timeout=LIMIT)
        raise KeyboardInterrupt


def stuck(number, gate, say, item):
    if item == number:
        say()
        gate.wait(LIMIT)
    return item


def stuck_at(number, gate, say=lambda: None):
    """A function that returns what it is given, but for ``number`` not before the test is over."""
    return partial(stuck, number, gate, say)


def chain(pipes, gate):
    """Pipes of which each is stuck, the first at a later item than the next; then Ctrl-C."""
    are_stuck = threading.Semaphore(0)
    pipe = UntilCtrlC(pipes, are_stuck)
    for number in reversed(range(pipes)):
        function = stuck_at(number, gate, are_stuck.release)
        pipe = pipe.threadpool_map(function, max_workers=2, scheduled_tasks=2)
    return pipe


def test_ctrl_c_in_a_chain_of_pipes_waits_once(gate, waits):
    """Every pipe is waited for, and all of them together as long as one may take and a half."""
    with pytest.raises(KeyboardInterrupt):
        list(chain(PIPES, gate))

    assert len(waits) == PIPES
    assert waits[0] == pytest.approx(STOP_SECONDS)
    assert sum(waits) <= MOST + 1e-9


def test_dropped_iterators_wait_once(gate, waits):
    """As when the traceback of Ctrl-C in the loop itself goes: nobody asks for an item between."""
    readings = []
    for _ in range(PIPES):
        items = iter(IterableWrapper(range(5)).map(stuck_at(1, gate)).prefetch(2))
        next(items)
        readings.append(items)
        del items

    readings.clear()

    assert len(waits) == PIPES
    assert sum(waits) <= MOST + 1e-9


def test_who_goes_on_has_all_the_time_again(gate, waits):
    """What an inner loop was waited for is not taken from the loop around it."""
    outer = iter(IterableWrapper(range(5)).map(stuck_at(3, gate)).prefetch(1))
    next(outer)
    inner = iter(IterableWrapper(range(5)).map(stuck_at(1, gate)).prefetch(1))
    next(inner)
    inner.close()
    assert waits == [pytest.approx(STOP_SECONDS)]
    next(outer), next(outer)

    outer.close()

    assert waits == [pytest.approx(STOP_SECONDS)] * 2


def test_a_loaders_limit_holds_for_all_of_them(gate, waits):
    """``Timeout(stop=...)`` in the place of the usual seconds; what is told is told once."""
    told = []
    with pytest.raises(KeyboardInterrupt), stop_limit(0.5, lambda: told.append(len(waits))):
        list(chain(PIPES, gate))

    assert waits[0] == pytest.approx(0.5)
    assert sum(waits) <= 0.75 + 1e-9
    assert told == [0]


def test_what_a_loader_waited_for_is_taken_from_what_comes_after(gate, waits):
    """A traceback may hold iterators that are dropped when the loader has been left."""
    reading = iter(IterableWrapper(range(5)).map(stuck_at(1, gate)).prefetch(1))
    other = iter(IterableWrapper(range(5)).map(stuck_at(1, gate)).prefetch(1))
    next(reading), next(other)

    with stop_limit(1.5):
        reading.close()
    other.close()

    assert waits == [pytest.approx(1.5), pytest.approx(1.0)]


def test_time_between_two_waits_is_not_counted(gate, waits, monkeypatch):
    """A pass of hours that ends does not take from the next, as a clock that runs would."""
    reading = iter(IterableWrapper(range(5)).map(stuck_at(1, gate)).prefetch(1))
    other = iter(IterableWrapper(range(5)).map(stuck_at(1, gate)).prefetch(1))
    next(reading), next(other)
    with stop_limit(1.0):
        reading.close()
        now = leaving_module.monotonic()
        monkeypatch.setattr(leaving_module, "monotonic", lambda: now + 3600.0 + sum(waits))
        other.close()

    assert waits == [pytest.approx(1.0), pytest.approx(1 / 3)]
