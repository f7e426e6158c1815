"""Pipes that apply functions: to groups, concurrently, to several items of each."""

import asyncio
import itertools
import threading
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack_sources import Counting, NoLength, first

import voxpipe as vp
from voxpipe.batching.collate import usable_cores
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.datapipes.map import SequenceWrapper

LIMIT = 30  # seconds after which a wait is taken for a hang


def itself(value):
    return value


def tenfold(value):
    return 10 * value


async def tenfold_later(value):
    await asyncio.sleep(0)
    return 10 * value


def columns():
    return IterableWrapper([(n - 1, n, n + 1) for n in range(20)])


# --- map_batches -----------------------------------------------------------------------------


def test_groups_are_mapped_and_unpacked():
    """The last one too, whatever the number of items that comes back."""
    numbers = IterableWrapper(range(20))

    sizes = []
    mapped = numbers.map_batches(lambda group: sizes.append(len(group)) or group[::2], 9)

    assert list(mapped) == [*range(0, 9, 2), *range(9, 18, 2), 18]
    assert sizes == [9, 9, 2]
    with pytest.raises(TypeError, match="length relies on the output of its function"):
        len(mapped)


def test_groups_of_columns():
    """The function gets what it asked for."""
    assert list(columns().map_batches(itself, 9, input_col=0)) == [*range(-1, 19)]
    assert list(columns().map_batches(itself, 9, input_col=[1, 2]))[:2] == [[0, 1], [1, 2]]
    with pytest.raises(ValueError, match="batch_size is a whole number of at least 1"):
        columns().map_batches(itself, 0)


# --- flatmap, shuffled_flatmap -----------------------------------------------------------------


def test_flatmap_unpacks_what_a_function_returns():
    """Of the item, a column or several."""
    assert list(IterableWrapper(range(3)).flatmap(range)) == [0, 0, 1]
    assert list(columns().flatmap(lambda n: [n] * 2, input_col=1))[:4] == [0, 0, 1, 1]
    assert list(columns().flatmap(lambda a, b: [a - b], input_col=(0, 2))) == [-2] * 20
    with pytest.raises(TypeError, match="length relies on the output of its function"):
        len(columns().flatmap(itself))
    with pytest.raises(ValueError, match="takes 1 parameters, but 2 are required"):
        columns().flatmap(tenfold, input_col=(0, 1))


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=8), st.integers(1, 4))
def test_shuffled_flatmap_loses_nothing(lists, buffer_size):
    """Every item comes, and those of one result in its order."""
    marked = [[(n, k) for k in range(len(items))] for n, items in enumerate(lists)]

    seen = list(IterableWrapper(marked).shuffled_flatmap(buffer_size=buffer_size))

    assert sorted(seen) == sorted(itertools.chain(*marked))
    for n, items in enumerate(marked):
        assert [item for item in seen if item[0] == n] == items


def test_shuffled_flatmap_holds_a_bounded_number_of_results():
    """It asks for the next one only when one has ended."""
    parent = Counting(100)

    first(parent.shuffled_flatmap(lambda n: [n] * 1000, buffer_size=5), 10)

    assert parent.asked == 5


def test_shuffled_flatmap_mixes_and_knows_what_it_can():
    """Results come mixed; sequences know their length, functions do not."""
    pipe = IterableWrapper([[0] * 50, [1] * 50])
    with vp.DataLoader2(pipe.shuffled_flatmap(), seed=1) as loader:
        seen = list(loader)

    assert seen != sorted(seen)
    assert list(pipe.shuffled_flatmap().set_shuffle(False)) == sorted(seen)
    assert len(pipe.shuffled_flatmap()) == 100
    with pytest.raises(TypeError, match="length relies on the output of its function"):
        len(pipe.shuffled_flatmap(itself))
    with pytest.raises(ValueError, match="buffer_size"):
        pipe.shuffled_flatmap(buffer_size=0)


# --- async_map_batches -----------------------------------------------------------------------


def test_coroutines_keep_the_order():
    """Flat, or in groups; as long as the parent."""
    numbers = IterableWrapper(range(10))

    flat = numbers.async_map_batches(tenfold_later, 4)
    grouped = numbers.async_map_batches(tenfold_later, 4, flatten=False)

    assert list(flat) == [*range(0, 100, 10)]
    assert list(grouped) == [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90]]
    assert (len(flat), len(grouped)) == (10, 3)
    with pytest.raises(TypeError, match="has no len"):
        len(NoLength([1]).async_map_batches(tenfold_later, 4))


def test_coroutines_run_together_within_their_bound():
    """As many as allowed are under way at once, and no more."""
    under_way, most = 0, []

    async def count(value):
        nonlocal under_way
        under_way += 1
        most.append(under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return value

    list(IterableWrapper(range(12)).async_map_batches(count, 12, max_concurrency=3))

    assert max(most) == 3


def test_one_failing_coroutine_cancels_its_group():
    """Its error arrives as itself, and nothing keeps running."""
    ended = []

    async def fail_at_one(value):
        if value == 1:
            raise LookupError("one")
        try:
            await asyncio.sleep(LIMIT)
        except asyncio.CancelledError:
            ended.append(value)
            raise

    with pytest.raises(LookupError, match="one"):
        list(IterableWrapper(range(3)).async_map_batches(fail_at_one, 3))
    assert sorted(ended) == [0, 2]


def test_coroutines_run_inside_a_running_loop():
    """As in a notebook, where a loop runs already."""

    async def notebook():
        return list(IterableWrapper(range(3)).async_map_batches(tenfold_later, 2))

    assert asyncio.run(notebook()) == [0, 10, 20]


def test_results_are_put_where_they_belong():
    """In place of the input, at the end, under a new key; the items given stay as they are."""
    given_items = [(1, 2), (3, 4)]
    pipe = IterableWrapper(given_items)
    assert list(pipe.async_map_batches(tenfold_later, 2, input_col=1)) == [(1, 20), (3, 40)]
    assert list(pipe.async_map_batches(tenfold_later, 2, input_col=0, output_col=-1)) == [
        (1, 2, 10),
        (3, 4, 30),
    ]
    rows = [{"a": 1, "b": 5}]
    added = IterableWrapper(rows, deepcopy=False).threadpool_map(
        tenfold, input_col="a", output_col="c"
    )
    assert list(added) == [{"a": 1, "b": 5, "c": 10}]
    assert rows == [{"a": 1, "b": 5}]


def test_threads_are_four_more_than_the_cores_of_this_process(monkeypatch):
    """Within its mask and quota: other cores of a node belong to other jobs."""
    monkeypatch.setattr("os.cpu_count", lambda: 60)
    count, threads = usable_cores() + 4, []
    barrier = threading.Barrier(count, timeout=LIMIT)
    pipe = IterableWrapper(range(2 * count)).threadpool_map(
        lambda item: barrier.wait(), initializer=lambda: threads.append(threading.get_ident())
    )

    assert sorted(pipe) == sorted([*range(count)] * 2)
    assert len(threads) == count


def test_several_inputs_become_one_output():
    """In place of the first; the others are removed, whichever comes first in the item."""
    pipe = IterableWrapper([[1, 2, 3, 4]])
    keyed = IterableWrapper([{"a": 1, "b": 2, "c": 3}])

    assert list(pipe.threadpool_map(max, input_col=[3, 0, 1])) == [[3, 4]]
    assert list(pipe.threadpool_map(max, input_col=[0, 1, 3])) == [[4, 3]]
    assert list(keyed.threadpool_map(max, input_col=["a", "c"])) == [{"a": 3, "b": 2}]


def test_functions_on_samples_keep_their_provenance():
    """A sample stays a sample."""
    cases = [{"image": np.zeros((2, 2, 2)), "age": 3, "case": "x"}]

    (sample,) = vp.from_cases(cases).threadpool_map(tenfold, input_col="age")

    assert (sample["age"], sample.case) == (30, "x")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.async_map_batches(tenfold, 2), "corotine function"),
        (lambda p: p.async_map_batches(tenfold_later, 0), "batch_size"),
        (lambda p: p.async_map_batches(tenfold_later, 2, max_concurrency=0), "max_concurrency"),
        (lambda p: p.async_map_batches(tenfold_later, 2, output_col=1), "must be None when"),
        (lambda p: p.threadpool_map(tenfold, output_col=1), "when `input_col` is None"),
        (lambda p: p.threadpool_map(tenfold, 0, [1, 2]), "single-element list"),
        (lambda p: p.threadpool_map(tenfold, scheduled_tasks=0), "scheduled_tasks"),
        (lambda p: p.threadpool_map(tenfold, max_workers=0), "max_workers"),
        (lambda p: p.threadpool_map(tenfold, buffer_bytes=0), "buffer_bytes"),
    ],
)
def test_bad_arguments_are_refused_at_construction(call, message):
    """With a sentence that names the argument."""
    with pytest.raises(ValueError, match=message):
        call(IterableWrapper([1]))


# --- threadpool_map --------------------------------------------------------------------------


def test_threads_keep_the_order():
    """Also where the first call ends last."""
    later = threading.Event()

    def wait_for_the_next(value):
        if value == 0:
            assert later.wait(LIMIT)
        if value == 1:
            later.set()
        return 10 * value

    pipe = IterableWrapper(range(5)).threadpool_map(wait_for_the_next, max_workers=2)

    assert list(pipe) == [0, 10, 20, 30, 40]
    assert len(pipe) == 5


def test_tasks_in_flight_are_bounded():
    """Never more of the parent is asked for than ``scheduled_tasks`` beyond what was taken."""
    parent = Counting(50)
    reading = iter(parent.threadpool_map(itself, scheduled_tasks=7, max_workers=2))
    ahead = []
    for taken in range(1, 30):
        next(reading)
        ahead.append(parent.asked - taken)

    assert max(ahead) == 6  # the seventh is the one that was just taken


def test_results_in_flight_are_bounded_in_bytes():
    """Large results, fewer calls at once."""
    parent = Counting(100)

    def megabyte(value):
        return np.zeros(2**20, np.uint8)

    reading = iter(parent.threadpool_map(megabyte, max_workers=2, buffer_bytes=4 * 2**20))
    ahead = []
    for taken in range(1, 30):
        next(reading)
        ahead.append(parent.asked - taken)

    assert max(ahead) <= 3


def test_an_error_in_a_thread_comes_in_its_turn():
    """As itself, after the results before it; the pool is gone then."""

    def fail_at_three(value):
        if value == 3:
            raise LookupError("three")
        return value

    reading = iter(IterableWrapper(range(9)).threadpool_map(fail_at_three, max_workers=3))

    assert [next(reading) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError, match="three"):
        next(reading)


def test_an_abandoned_pass_leaves_no_thread():
    """Calls that have not begun are cancelled."""
    before = set(threading.enumerate())

    first(Counting(1000).threadpool_map(itself, max_workers=3), 5)
    first(Counting(1000).async_map_batches(tenfold_later, 4), 5)

    assert set(threading.enumerate()) <= before


def test_threads_of_a_loader_realize_batches(tmp_path):
    """One item for one item, so it stays behind the cut."""
    from voxpipe.reading_services.work import PlannedWork, work_of

    cases = [{"image": np.full((4, 4, 4), n, np.float32)} for n in range(4)]
    pipe = vp.from_cases(cases).open_volume().realize().threadpool_map(itself).batch_patches(2)

    assert isinstance(work_of(pipe), PlannedWork)
    with vp.DataLoader2(pipe) as loader:
        assert [b["image"].mean().item() for b in loader] == [0.5, 2.5]


def test_futures_are_no_results():
    """The pool's own futures never leak out."""
    (result,) = IterableWrapper([1]).threadpool_map(itself)

    assert not isinstance(result, Future)


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.map_batches(5, 2),
        lambda p: p.flatmap(5),
        lambda p: p.shuffled_flatmap(5),
        lambda p: p.threadpool_map(5),
        lambda p: p.max_token_bucketize(5, len_fn=5),
        lambda p: p.zip_with_iter(p, key_fn=5),
        lambda p: p.zip_with_map(SequenceWrapper([1]), key_fn=5),
        lambda p: p.to_map_datapipe(5),
    ],
    ids=lambda call: call.__code__.co_names[0],
)
def test_what_is_no_function_is_refused_at_construction(call):
    """Not in the middle of an epoch."""
    with pytest.raises(TypeError, match=r"A callable function is expected as .*, but int is"):
        call(IterableWrapper([1]))
