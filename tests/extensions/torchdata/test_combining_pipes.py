"""Pipes that go round, take turns, mix, divide and join."""

import threading
import warnings
from collections import Counter
from itertools import chain
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack_sources import Counting, NoLength, Stream, first
from torch.utils.data.datapipes.utils.common import StreamWrapper

import voxpipe as vp
from voxpipe.datapipes.iter import (
    IterableWrapper,
    MapKeyZipper,
    RandomSplitter,
    SampleMultiplexer,
    UnZipper,
)
from voxpipe.datapipes.map import SequenceWrapper


def numbers(*values):
    return IterableWrapper(values)


def itself(value):
    return value


# --- cycle, repeat ---------------------------------------------------------------------------


def test_cycle_goes_round():
    """As often as asked for, not at all, or for ever."""
    pipe = IterableWrapper(range(5))

    assert list(pipe.cycle(3)) == [*range(5)] * 3
    assert list(pipe.cycle(0)) == []
    assert first(pipe.cycle(), 23) == ([*range(5)] * 5)[:23]


def test_cycle_knows_its_length():
    """Unless it has none."""
    assert len(IterableWrapper(range(5)).cycle(3)) == 15
    with pytest.raises(TypeError, match="cycles forever, and therefore doesn't have valid length"):
        len(IterableWrapper(range(5)).cycle())


def test_cycling_through_nothing_ends():
    """Where torchdata turns in circles without ever yielding."""
    assert list(numbers().cycle()) == []


@pytest.mark.parametrize(("count", "error"), [(-1, ValueError), (1.5, TypeError)])
def test_cycle_refuses(count, error):
    """What is no count."""
    with pytest.raises(error, match="count is a whole number of at least 0"):
        numbers(1).cycle(count)


def test_every_turn_of_a_loader_is_drawn_from_its_seed():
    """Turns are shuffled differently, and an epoch can be repeated."""
    pipe = IterableWrapper(range(8)).shuffle().cycle(3)
    epochs = []
    for _ in range(2):
        with vp.DataLoader2(pipe, seed=3) as loader:
            epochs.append(list(loader))

    turns = [tuple(epochs[0][start : start + 8]) for start in (0, 8, 16)]
    assert epochs[0] == epochs[1]
    assert len(set(turns)) == 3
    assert [sorted(turn) for turn in turns] == [[*range(8)]] * 3


def test_patches_of_every_turn_are_others():
    """Samples keep the identity of their case, and draw anew."""
    cases = [{"image": np.arange(216, dtype=np.float32).reshape(6, 6, 6), "case": n} for n in "ab"]
    pipe = vp.from_cases(cases).cycle(2).open_volume().lazy_patch(3).augment(rotate=(-15, 15))
    epochs = []
    for _ in range(2):
        with vp.DataLoader2(pipe.batch_patches(4), seed=3) as loader:
            (batch,) = loader
            epochs.append(batch)

    image = epochs[0]["image"]
    assert [m["case"] for m in epochs[0]["meta"]] == ["a", "b", "a", "b"]
    assert (image == epochs[1]["image"]).all()
    assert not (image[:2] == image[2:]).all()


def test_repeat_yields_each_item_several_times():
    """One after the other, and knows how many that makes."""
    pipe = numbers(1, 2).repeat(3)

    assert list(pipe) == [1, 1, 1, 2, 2, 2]
    assert len(pipe) == 6
    for times in (1, 0, -2):
        with pytest.raises(ValueError, match="times is a whole number of at least 2"):
            numbers(1).repeat(times)


def test_repeated_samples_draw_for_themselves():
    """The same case, another identity, so another patch."""
    cases = [{"image": np.arange(1000, dtype=np.float32).reshape(10, 10, 10)}]
    samples = list(vp.from_cases(cases).repeat(3).open_volume().lazy_patch(3))

    assert len({sample.identity for sample in samples}) == 3
    assert {sample.case for sample in samples} == {samples[0].case}


# --- mux_longest, zip_longest, SampleMultiplexer -----------------------------------------------


@given(st.lists(st.lists(st.integers(), max_size=5), min_size=1, max_size=4))
def test_longest_pipes_lose_nothing(lists):
    """Taking turns and zipping both yield every item of every pipe, however long."""
    pipes = [IterableWrapper(items) for items in lists]
    longest = max(map(len, lists))

    taken = list(pipes[0].mux_longest(*pipes[1:]))
    together = list(pipes[0].zip_longest(*pipes[1:], fill_value="-"))

    assert Counter(taken) == Counter(chain.from_iterable(lists))
    assert len(together) == longest == len(pipes[0].zip_longest(*pipes[1:]))
    assert [[row[n] for row in together] for n in range(len(lists))] == [
        items + ["-"] * (longest - len(items)) for items in lists
    ]


def test_turns_pass_over_what_has_ended():
    """One item of each in turn."""
    pipe = numbers(1, 2, 3, 4).mux_longest(numbers(10), numbers(100, 200, 300))

    assert list(pipe) == [1, 10, 100, 2, 200, 3, 300, 4]
    assert len(pipe) == 8


@pytest.mark.parametrize("name", ["mux_longest", "zip_longest"])
def test_only_iterable_pipes_are_combined(name):
    """Refused at construction; and a length that is not known is said to be so."""
    with pytest.raises(TypeError, match="takes IterDataPipes, got list"):
        getattr(numbers(1), name)([1])
    with pytest.raises(TypeError, match=r"instance doesn't have valid length$"):
        len(getattr(numbers(1), name)(NoLength([1])))


def test_mixtures_follow_their_weights():
    """The heavy one first, until it has ended; the lighter one goes on."""
    heavy, light = numbers(*[0] * 10), numbers(*[1] * 10)

    assert list(SampleMultiplexer({heavy: 99999999, light: 1e-7}, seed=0)) == [0] * 10 + [1] * 10
    many = SampleMultiplexer({numbers(0).cycle(): 3, numbers(1).cycle(): 1}, seed=1)
    assert 0.70 < first(many, 4000).count(0) / 4000 < 0.80
    assert len(SampleMultiplexer({heavy: 1, light: 2})) == 20


def test_mixtures_of_a_loader_follow_its_seed():
    """Another in each epoch, the same in each run, with a seed of its own and without."""
    for seed in (None, 4):
        pipe = SampleMultiplexer({numbers(*[0] * 20): 1, numbers(*[1] * 20): 1}, seed=seed)
        runs = []
        for _ in range(2):
            with vp.DataLoader2(pipe, seed=9) as loader:
                runs.append([list(loader), list(loader)])
        assert runs[0] == runs[1]
        assert runs[0][0] != runs[0][1]


def test_bad_mixtures_are_refused():
    """At construction."""
    with pytest.raises(ValueError, match="Empty dictionary"):
        SampleMultiplexer({})
    for weight in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="Expecting a positive and non-zero weight"):
            SampleMultiplexer({numbers(1): weight})


def test_a_copied_mixture_holds_its_own_pipes_only():
    """The pipes were arguments; a loader's copy must not carry the user's along."""
    from voxpipe.graph import clone, walk

    pipe = SampleMultiplexer({numbers(1): 1})
    twin = clone(pipe)

    assert not {id(p) for p in walk(pipe)} & {id(p) for p in walk(twin)}
    assert "Iterable" not in repr(vars(twin)["_arguments"])


# --- unzip, round_robin_demux --------------------------------------------------------------------


def table():
    return IterableWrapper([(n, n + 10, n + 20) for n in range(10)])


def test_unzip_gives_a_pipe_per_column():
    """All, or those that are not skipped; each as long as the parent."""
    one, two, three = table().unzip(3)
    assert [list(one), list(two), list(three)] == [[*range(s, s + 10)] for s in (0, 10, 20)]
    (middle,) = UnZipper(table(), 3, buffer_size=0, columns_to_skip=[0, 2])
    assert list(middle) == [*range(10, 20)]
    assert len(middle) == 10


def test_unzip_refuses():
    """A division into nothing."""
    with pytest.raises(RuntimeError, match="skips all 2 columns"):
        table().unzip(2, columns_to_skip=[0, 1])
    with pytest.raises(ValueError, match="sequence_length"):
        table().unzip(0)


def test_the_parent_is_read_once_for_all_branches():
    """However they are read."""
    parent = Counting(10)
    even, odd = parent.round_robin_demux(2)

    assert list(zip(even, odd, strict=True)) == [(n, n + 1) for n in range(0, 10, 2)]
    assert parent.asked == 10


def test_branches_cannot_run_too_far_ahead():
    """The buffer is bounded: the error names the pipe and says what to do, on every branch."""
    one, two = IterableWrapper([(n, n) for n in range(10)]).unzip(2, buffer_size=4)
    reading = iter(one)
    assert [next(reading) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(BufferError, match=r"unzip\(\) buffer overflow, buffer size 4 is insuf"):
        next(reading)
    with pytest.raises(BufferError):
        list(two)
    even, _ = IterableWrapper(range(30)).round_robin_demux(2, buffer_size=5)
    with pytest.raises(BufferError, match="buffer_size="):
        list(even)


def test_branches_share_one_generation():
    """A second iterator of a branch resets all, and says that some were not at their end."""
    one, two = table().unzip(3, columns_to_skip=[2])
    a, b = iter(one), iter(two)
    assert (next(a), next(b)) == (0, 10)

    with pytest.warns(UserWarning, match="Some child DataPipes are not exhausted"):
        a = iter(one)

    with pytest.raises(RuntimeError, match="iterator has been invalidated"):
        next(b)
    assert list(zip(a, two, strict=True)) == [(n, n + 10) for n in range(10)]


def test_exhausted_branches_begin_again_silently():
    """From one epoch to the next; warnings are errors in these tests."""
    one, two = table().unzip(3, columns_to_skip=[2])

    for _ in range(3):
        assert list(zip(one, two, strict=True)) == [(n, n + 10) for n in range(10)]


def test_streams_that_nobody_took_are_closed():
    """What waits for a branch that is left is closed with the pass."""
    files = [Stream() for _ in range(4)]
    pairs = [(StreamWrapper(f), StreamWrapper(f)) for f in files]
    one, two = IterableWrapper(pairs, deepcopy=False).unzip(2)
    a, b = iter(one), iter(two)
    next(a), next(a), next(b)
    del a, b

    assert [f.closed for f in files] == [False, True, False, False]


def test_branches_can_be_read_by_threads():
    """Each gets all its items, in order, whichever thread comes first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unlimited buffer is warned of
        branches = IterableWrapper([(n, -n, 2 * n) for n in range(500)]).unzip(3, buffer_size=-1)
    seen = [[] for _ in branches]
    threads = [
        threading.Thread(target=lambda s=s, b=b: s.extend(b))
        for s, b in zip(seen, map(iter, branches), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert seen == [[f * n for n in range(500)] for f in (1, -1, 2)]


def test_an_unlimited_buffer_is_warned_of():
    """It can fill the memory."""
    with pytest.warns(UserWarning, match="Unlimited buffer size is set for `unzip`"):
        table().unzip(3, buffer_size=-1)


def test_dealing_out_in_turn():
    """Each branch knows its length; one branch is the parent; none is an error."""
    branches = IterableWrapper(range(8)).round_robin_demux(3)
    assert [list(b) for b in branches] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert [len(b) for b in branches] == [3, 3, 2]
    parent = numbers(1)
    with pytest.warns(UserWarning, match="no-op"):
        assert parent.round_robin_demux(1)[0] is parent
    with pytest.raises(ValueError, match="num_instances"):
        parent.round_robin_demux(0)


def test_an_error_above_a_branch_arrives_as_itself():
    """And the pass is over."""
    one, two = IterableWrapper([(1, 2), 3]).unzip(2)

    with pytest.raises(TypeError, match="not subscriptable"):
        list(zip(one, two, strict=True))


def test_profiles_leave_a_trunk_and_its_branches_together():
    """What adapters wrap must not come between them."""
    one, two = table().unzip(3, columns_to_skip=[2])
    with vp.DataLoader2(one.zip(two), [vp.Profile()]) as loader:
        assert len(list(loader)) == 10
        assert "unzip" in loader.explain()


# --- zip_with_iter, zip_with_map -------------------------------------------------------------


def test_items_are_joined_by_key():
    """In the order of the parent; with the key and merged if asked for."""
    one = IterableWrapper([("a", 1), ("b", 2)])
    two = IterableWrapper([("b", 20), ("c", 30), ("a", 10)])
    key = itemgetter(0)

    assert list(one.zip_with_iter(two, key)) == [
        (("a", 1), ("a", 10)),
        (("b", 2), ("b", 20)),
    ]
    merged = one.zip_with_iter(two, key, keep_key=True, merge_fn=lambda a, b: a[1] + b[1])
    assert list(merged) == [("a", 11), ("b", 22)]
    assert len(merged) == 2


def test_the_buffer_drops_the_oldest_and_says_so_once():
    """Then what it dropped is missed."""
    late = IterableWrapper([*range(1, 10), 0])
    reading = iter(IterableWrapper(range(10)).zip_with_iter(late, itself, buffer_size=5))

    with pytest.warns(UserWarning, match="Buffer reaches the upper limit") as told:
        assert next(reading) == (0, 0)
    assert len(told) == 1
    with pytest.raises(BufferError, match="No matching key can be found"):
        next(reading)
    enough = IterableWrapper(range(10)).zip_with_iter(late, itself, buffer_size=10)
    assert list(enough) == [(n, n) for n in range(10)]


def test_joins_that_cannot_be_are_errors():
    """Two items of one key, no item at all, a reference that is no pipe, a buffer of nothing."""
    one = numbers(1, 2)
    with pytest.raises(ValueError, match="Duplicate key is found in reference DataPipe: 5"):
        list(one.zip_with_iter(numbers(5, 5, 1), itself))
    with pytest.raises(BufferError, match="for the data 1"):
        list(one.zip_with_iter(numbers(2), itself))
    with pytest.raises(TypeError, match="ref_datapipe must be a IterDataPipe"):
        one.zip_with_iter([1], itself)
    with pytest.raises(ValueError, match="buffer_size"):
        one.zip_with_iter(numbers(1), itself, buffer_size=0)


def test_streams_left_in_the_buffer_are_closed():
    """Those dropped, and those left when the pass ends or is abandoned."""
    files = {key: Stream() for key in "abcd"}
    opened = [(key, StreamWrapper(f)) for key, f in files.items()]
    reference = IterableWrapper(opened, deepcopy=False)
    joined = IterableWrapper("dx").zip_with_iter(
        reference, itself, ref_key_fn=itemgetter(0), buffer_size=2
    )

    reading = iter(joined)
    with pytest.warns(UserWarning, match="upper limit"):
        next(reading)
    assert [f.closed for f in files.values()] == [True, True, False, False]
    del reading

    assert [f.closed for f in files.values()] == [True, True, True, False]


def test_items_are_joined_with_a_map():
    """By the key of each; a key that is not there is named."""
    words = SequenceWrapper(["even", "odd"])
    joined = IterableWrapper(range(3)).zip_with_map(words, lambda n: n % 2)
    assert list(joined) == [(0, "even"), (1, "odd"), (2, "even")]
    assert len(joined) == 3
    named = IterableWrapper(range(2)).zip_with_map(
        words, itself, lambda n, word: f"{n} is {word}", keep_key=True
    )
    assert list(named) == [(0, "0 is even"), (1, "1 is odd")]
    with pytest.raises(KeyError, match="is not a valid key in the given MapDataPipe"):
        list(MapKeyZipper(numbers(7), words, itself))
    with pytest.raises(TypeError, match="map_datapipe must be a MapDataPipe"):
        numbers(1).zip_with_map(["a"], itself)


# --- random_split ----------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 2**32))
def test_a_split_is_a_division(weights, seed):
    """Every item is in exactly one part, and whole weights are the lengths."""
    length = sum(weights)
    parts = IterableWrapper(range(length)).random_split(dict(enumerate(weights)), seed)

    assert sorted(chain.from_iterable(parts)) == [*range(length)]
    assert [len(part) for part in parts] == weights == [len(list(part)) for part in parts]


def test_a_split_is_that_of_torchdata():
    """Data sets divided with torchdata 0.9.0 stay divided: what its documentation shows."""
    pipe = IterableWrapper(range(10))
    halves = {"train": 0.5, "valid": 0.5}

    train, valid = pipe.random_split(total_length=10, weights=halves, seed=0)

    assert (list(train), list(valid)) == ([2, 3, 5, 7, 8], [0, 1, 4, 6, 9])
    one = pipe.random_split(halves, seed=0, target="valid")
    assert list(one) == list(valid)


def test_a_split_stays_over_epochs_until_told_otherwise():
    """In a loader too; a new seed holds for all parts."""
    train, valid = IterableWrapper(range(40)).random_split({"t": 1, "v": 1}, seed=1)
    before = list(train)
    with vp.DataLoader2(train, seed=2) as loader:
        assert [list(loader), list(loader)] == [before, before]

    assert train.override_seed(2) is train

    assert list(train) != before
    assert sorted(list(train) + list(valid)) == [*range(40)]


def test_parts_are_read_one_at_a_time():
    """There is no buffer: torch's rule of one live iterator says so."""
    train, valid = IterableWrapper(range(10)).random_split({"t": 1, "v": 1}, seed=1)

    with pytest.raises(RuntimeError, match="iterator has been invalidated"):
        list(zip(train, valid, strict=False))


def test_splits_that_cannot_be_are_refused():
    """Most of them at construction."""
    pipe = IterableWrapper(range(10))
    with pytest.raises(TypeError, match="RandomSplitter needs `total_length`"):
        NoLength(range(10)).random_split({"a": 1}, seed=0)
    with pytest.raises(KeyError, match="does not match any key in `weights`"):
        pipe.random_split({"a": 1}, seed=0, target="b")
    for weights in ({}, {"a": -1, "b": 2}, {"a": 0}):
        with pytest.raises(ValueError, match="weights of at least 0"):
            pipe.random_split(weights, seed=0)
    (part,) = RandomSplitter(NoLength(range(10)), {"a": 1}, seed=0, total_length=4)
    with pytest.raises(ValueError, match="more items than total_length=4"):
        list(part)
    unequal, _ = pipe.random_split({"a": 0.33, "b": 0.5}, seed=0)
    with pytest.raises(TypeError, match="Lengths of the split cannot be known in advance"):
        len(unequal)
