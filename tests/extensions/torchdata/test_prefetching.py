"""What is made ahead: bounded, in order, owned by its iterator, and gone with it."""

import copy
import gc
import os
import pickle
import threading

import numpy as np
import pytest
from stack_sources import Counting, Failing, NoLength, Stream, first
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.utils.common import StreamWrapper

import voxpipe as vp
from voxpipe.datapipes.background_iterator import BackgroundIterator, Exhausted, stop_limit
from voxpipe.datapipes.iter import IterableWrapper, Prefetcher

LIMIT = 30  # seconds after which a wait is taken for a hang
MB = 2**20


class Gated(IterDataPipe):
    """Yields numbers; each waits for a permit, and tells that it was asked for."""

    def __init__(self):
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)
        self.count = 0

    def __iter__(self):
        while True:
            self.count += 1
            self.asked.release()
            assert self.permits.acquire(timeout=LIMIT)
            yield self.count


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    if not set(threading.enumerate()) <= before:
        gc.collect()  # an error's traceback may keep an iterator in a circle
    assert set(threading.enumerate()) <= before


def settled(pipe):
    """Wait until the thread of a pipe takes nothing more."""
    pipe._ahead.pause()
    pipe._ahead.resume()


@pytest.mark.parametrize("size", [1, 2, 10, 1000])
def test_prefetching_changes_nothing(size):
    """Neither the items nor their number."""
    pipe = IterableWrapper(range(50)).prefetch(size)

    assert list(pipe) == [*range(50)] == list(pipe)
    assert len(pipe) == 50
    with pytest.raises(TypeError, match="has no len"):
        len(NoLength([]).prefetch())


@pytest.mark.parametrize(
    "arguments", [{"buffer_size": 0}, {"buffer_size": -1}, {"buffer_bytes": 0}]
)
def test_a_buffer_of_nothing_is_refused(arguments):
    """At construction, naming the argument."""
    with pytest.raises(ValueError, match=next(iter(arguments))):
        IterableWrapper([1]).prefetch(**arguments)


def test_what_is_ahead_is_bounded_in_items():
    """Never more than ``buffer_size``, the one in the making included."""
    parent = Counting(100)
    pipe = parent.prefetch(4)
    reading = iter(pipe)
    ahead = []
    for taken in range(1, 20):
        next(reading)
        ahead.append(parent.asked - taken)
    # Now that nothing is taken, let it run as far as it goes.
    while len(pipe._ahead._items) < 4:
        os.sched_yield()
    settled(pipe)

    assert max(ahead) <= 4
    assert parent.asked - 19 == 4


def test_what_is_ahead_is_bounded_in_bytes():
    """Large items, fewer of them; one that is too large alone still comes."""
    sizes = [1, 1, 1, 1, 9, 1, 1]
    arrays = [np.full(size * MB, number, np.uint8) for number, size in enumerate(sizes)]
    pipe = IterableWrapper(arrays, deepcopy=False).prefetch(100, buffer_bytes=3 * MB)
    seen, held = [], []
    for array in pipe:
        seen.append(int(array[0]))
        with pipe._ahead._condition:
            held.append((pipe._ahead._bytes, len(pipe._ahead._items)))

    assert seen == [*range(7)]
    assert all(size <= 3 * MB or count == 1 for size, count in held)


@pytest.mark.parametrize("kind", [LookupError, SystemExit, KeyboardInterrupt, StopAsyncIteration])
def test_errors_come_in_order_and_as_themselves(kind):
    """After the items made before; SystemExit too, at which torchdata hangs."""
    error = kind("seven")
    reading = iter(Failing(7, error).prefetch(3))

    assert [next(reading) for _ in range(7)] == [*range(7)]
    with pytest.raises(kind, match="seven") as raised:
        next(reading)
    assert raised.value is error


def test_a_pass_can_follow_one_that_failed():
    """The pipe is as good as new."""
    pipe = Failing(2, LookupError("two")).prefetch()

    for _ in range(2):
        with pytest.raises(LookupError):
            list(pipe)


def test_an_iterator_that_is_dropped_takes_its_thread_along():
    """In the middle of a pass; the fixture looks for threads."""
    for _ in range(5):
        assert first(Counting(10**6).prefetch(3), 4) == [0, 1, 2, 3]


def test_a_new_iterator_ends_the_thread_of_the_old_one():
    """And begins anew."""
    pipe = Counting(100).prefetch(3)
    older = iter(pipe)
    next(older)
    thread = pipe._ahead._thread

    newer = iter(pipe)
    assert next(newer) == 0
    assert not thread.is_alive()
    with pytest.raises(RuntimeError, match="This iterator has been invalidated"):
        next(older)


def test_paused_nothing_more_is_taken():
    """Nothing of the parent after ``pause()`` returned; afterwards all goes on, nothing is lost."""
    parent = Counting(30)
    pipe = parent.prefetch(5)
    reading = iter(pipe)
    seen = [next(reading)]
    pipe.pause()
    asked = parent.asked

    held = len(pipe._ahead._items)
    seen += [next(reading) for _ in range(held)]
    with pytest.raises(RuntimeError, match=r"call resume\(\) first"):
        pipe._ahead.take()
    assert parent.asked == asked
    pipe.resume()

    assert seen + list(reading) == [*range(30)]


def test_pausing_waits_for_the_item_at_hand():
    """And says so if that takes too long."""
    parent = Gated()
    ahead = BackgroundIterator(parent, most=5, most_bytes=MB)
    assert parent.asked.acquire(timeout=LIMIT)

    with pytest.raises(vp.errors.PrefetchTimeoutError):
        ahead.pause(timeout=0)
    parent.permits.release()
    ahead.pause()
    ahead.resume()
    assert ahead.take(LIMIT) == 1
    parent.permits.release(100)
    ahead.stop()


def test_waiting_has_a_limit_where_one_is_given():
    """The error is a timeout, and tells the seconds."""
    parent = Gated()
    ahead = BackgroundIterator(parent, most=1, most_bytes=MB)

    with pytest.raises(vp.errors.PrefetchTimeoutError, match="within 0 seconds") as late:
        ahead.take(0.0)
    assert isinstance(late.value, TimeoutError)
    assert isinstance(late.value, RuntimeError)
    assert late.value.timeout == 0
    parent.permits.release(100)
    ahead.stop()


def test_shutdown_ends_the_thread_any_number_of_times():
    """Before, in and after a pass; then another one can begin."""
    pipe = Counting(20).prefetch(3)
    pipe.shutdown()
    reading = iter(pipe)
    next(reading)
    pipe.shutdown()
    pipe.shutdown()
    pipe.pause()
    pipe.resume()

    assert list(pipe) == [*range(20)]
    pipe.shutdown()


def test_streams_that_nobody_took_are_closed():
    """With the iterator that is dropped."""
    files = [Stream() for _ in range(3)]
    pipe = IterableWrapper([StreamWrapper(f) for f in files], deepcopy=False).prefetch(3)
    reading = iter(pipe)
    taken = next(reading)
    while len(pipe._ahead._items) < 2:
        os.sched_yield()
    del reading

    assert [f.closed for f in files] == [False, True, True]
    assert taken is not None


def test_the_parent_is_closed_when_a_pass_is_left():
    """By the thread that runs it, as a generator can be closed by nobody else."""
    closed = []

    class Opened(IterDataPipe):
        def __iter__(self):
            try:
                yield from range(1000)
            finally:
                closed.append(threading.current_thread().name)

    first(Opened().prefetch(3), 2)

    assert closed == ["prefetch"]


def test_a_slow_item_does_not_hold_up_the_end_for_ever():
    """A word is said, and the thread ends after that item."""
    parent = Gated()
    ahead = BackgroundIterator(parent, most=5, most_bytes=MB, name="prefetch")
    assert parent.asked.acquire(timeout=LIMIT)

    with stop_limit(0.0), pytest.warns(RuntimeWarning, match="'prefetch' is still at one item"):
        ahead.stop()
    parent.permits.release()
    ahead._thread.join(LIMIT)
    assert parent.count <= 2


def test_copies_share_no_thread():
    """Neither a pickle nor a copy of a running pipe."""
    pipe = Counting(20).prefetch(3)
    reading = iter(pipe)
    next(reading)

    for twin in (copy.copy(pipe), pickle.loads(pickle.dumps(pipe))):
        assert isinstance(twin, Prefetcher)
        assert twin._ahead is None
        assert (twin.buffer_size, twin.buffer_bytes) == (3, pipe.buffer_bytes)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_that_the_thread_is_elsewhere():
    """An error instead of a wait without end; and the child can begin anew."""
    pipe = Counting(20).prefetch(3)
    reading = iter(pipe)
    next(reading)
    settled(pipe)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(reading)
        except RuntimeError as error:
            code = 0 if "begun before a fork" in str(error) and list(pipe)[:2] == [0, 1] else 2
        finally:
            os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert next(reading) == 1


def test_an_ended_iterator_stays_ended():
    """Also the machinery itself."""
    ahead = BackgroundIterator([1], most=1, most_bytes=MB)
    assert ahead.take() == 1
    for _ in range(2):
        with pytest.raises(Exhausted):
            ahead.take()
    ahead.stop()


def test_pipes_can_be_prefetched_twice():
    """A thread that reads from a thread."""
    assert list(IterableWrapper(range(99)).prefetch(3).prefetch(2)) == [*range(99)]


def test_an_abandoned_loader_leaves_no_thread():
    """With the loader, its epochs and their threads are gone."""
    for _ in range(5):
        with vp.DataLoader2(Counting(1000).prefetch(3).enumerate()) as loader:
            next(iter(loader))
