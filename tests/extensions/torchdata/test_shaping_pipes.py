"""Pipes that number, cut off, pick columns, and make batches."""

import random
import warnings
from collections import defaultdict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack_sources import Counting, NoLength
from torch.utils.data import DataChunk

import voxpipe as vp
from voxpipe.datapipes.iter import BucketBatcher, IterableWrapper


def wrapped(*values):
    return IterableWrapper(values)


def samples():
    cases = [{"image": np.zeros((2, 2, 2)), "age": n, "case": f"c{n}"} for n in range(2)]
    return vp.from_cases(cases)


# --- header, set_length ------------------------------------------------------------------------


def test_header_asks_for_no_more_than_it_yields():
    """Where torchdata takes one item more, and drops it."""
    parent = Counting(20)

    assert list(parent.header(5)) == [*range(5)]
    assert parent.asked == 5
    assert list(wrapped(1, 2).header(9)) == [1, 2]
    assert list(wrapped(*range(30)).header()) == [*range(10)]
    assert list(wrapped(*range(30)).header(None)) == [*range(30)]
    assert list(wrapped(1).header(0)) == []
    with pytest.raises(ValueError, match="limit"):
        wrapped(1).header(-1)


def test_header_knows_its_length_or_says_what_it_supposes():
    """The shorter one; the limit, with a warning, if the parent has no length."""
    assert len(wrapped(*range(20)).header(5)) == 5
    assert len(wrapped(*range(20)).header(30)) == 20
    named = "length of this HeaderIterDataPipe"
    with pytest.warns(UserWarning, match=f"{named} is inferred to be equal to its limit"):
        assert len(NoLength([1]).header(30)) == 30
    with pytest.raises(TypeError, match=f"{named} cannot be determined.*has no len"):
        len(NoLength([1]).header(None))


def test_a_length_can_be_said():
    """It changes nothing of what is yielded."""
    pipe = NoLength([1, 2, 3]).set_length(7)

    assert (list(pipe.header(2)), len(pipe)) == ([1, 2], 7)
    with pytest.raises(ValueError, match="length"):
        wrapped(1).set_length(-1)


# --- enumerate, add_index ----------------------------------------------------------------------


def test_items_are_numbered():
    """From 0 or elsewhere."""
    assert list(wrapped("a", "b").enumerate()) == [(0, "a"), (1, "b")]
    assert list(wrapped("a", "b").enumerate(starting_index=10)) == [(10, "a"), (11, "b")]
    assert len(wrapped("a", "b").enumerate()) == 2
    with pytest.raises(TypeError, match="has no len"):
        len(NoLength([1]).enumerate())


def test_an_index_is_added_to_a_copy():
    """The item of the parent stays as it is, and a sample stays a sample."""
    rows = [{"a": 1}, {"a": 2}]

    numbered = list(IterableWrapper(rows, deepcopy=False).add_index("order"))

    assert numbered == [{"a": 1, "order": 0}, {"a": 2, "order": 1}]
    assert rows == [{"a": 1}, {"a": 2}]
    assert [(s.case, s["index"]) for s in samples().add_index()] == [("c0", 0), ("c1", 1)]
    assert len(samples().add_index()) == 2
    with pytest.raises(NotImplementedError, match="We only support adding index to row or batch"):
        list(wrapped(1).add_index())


# --- drop, slice, flatten, rows2columnar ---------------------------------------------------------


@given(
    st.lists(st.integers(), min_size=1, max_size=6),
    st.sets(st.integers(-6, 5)),
    st.sampled_from([tuple, list]),
)
def test_dropping_and_slicing_part_an_item(values, indices, kind):
    """What one keeps the other leaves out, from the end too."""
    item = kind(values)
    inside = [i for i in indices if -len(item) <= i < len(item)]

    (dropped,) = wrapped(item).drop(inside)
    (kept,) = wrapped(item).slice(inside)

    there = {i % len(item) for i in inside}
    assert dropped == kind(v for i, v in enumerate(values) if i not in there)
    assert kept == kind(v for i, v in enumerate(values) if i in there)


def test_keys_are_dropped_and_kept():
    """Of dictionaries and of samples, which keep their provenance."""
    row = {"a": 1, "b": 2, "c": 3}
    assert list(wrapped(row).drop("b")) == [{"a": 1, "c": 3}]
    assert list(wrapped(row).slice(["c", "a"])) == [{"a": 1, "c": 3}]
    assert list(wrapped(row).slice("b")) == [{"b": 2}]
    assert [(s.case, list(s)) for s in samples().drop("image")] == [
        ("c0", ["age"]),
        ("c1", ["age"]),
    ]
    assert [(s.case, list(s)) for s in samples().slice(["age"])] == [
        ("c0", ["age"]),
        ("c1", ["age"]),
    ]


def test_slices_are_those_of_python():
    """Start, stop and step."""
    rows = wrapped((0, 10, 100, 1000))

    assert list(rows.slice(1)) == [(10, 100, 1000)]
    assert list(rows.slice(0, 2)) == [(0, 10)]
    assert list(rows.slice(0, None, 2)) == [(0, 100)]


def test_flattening_by_one_level():
    """All, or what was named; index 0 too, which torchdata takes for all."""
    row = (0, (1, 2), [3, (4,)])
    assert list(wrapped(row).flatten()) == [(0, 1, 2, 3, (4,))]
    assert list(wrapped(row).flatten(1)) == [(0, 1, 2, [3, (4,)])]
    assert list(wrapped(row).flatten(-1)) == [(0, (1, 2), 3, (4,))]
    assert list(wrapped(((0, 1), (2, 3))).flatten([0])) == [(0, 1, (2, 3))]
    nested = {"a": {"x": 1}, "b": {"y": 2}, "c": 3}
    assert list(wrapped(nested).flatten()) == [{"x": 1, "y": 2, "c": 3}]
    assert list(wrapped(nested).flatten("b")) == [{"a": {"x": 1}, "y": 2, "c": 3}]


@pytest.mark.parametrize(
    ("make", "item", "told"),
    [
        (lambda p: p.drop(7), (0, 1), "At least one index in the filter is not present"),
        (lambda p: p.slice([7]), [0, 1], "index in the filter is not present in the item"),
        (lambda p: p.slice(["z"]), {"a": 1}, "the filter is not present in the item being"),
        (lambda p: p.flatten(7), (0, 1), "one index in the filter is not present"),
        (lambda p: p.drop(0), 5, "The next item was not an iterable and cannot be filtered"),
        (lambda p: p.slice(0), 5, "was not an iterable and cannot be filtered"),
        (lambda p: p.slice("z"), {"a": 1}, "Dictionaries are not sliced by steps"),
        (lambda p: p.slice([0], 3), (5,), "A list of indices was passed as well as a stop"),
        (lambda p: p.flatten(), {"a": 1, "b": {"a": 2}}, "insert the same key twice"),
    ],
)
def test_what_an_item_lacks_is_warned_of_once(make, item, told):
    """With the user's line, however many items lack it; the item comes all the same."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        assert len(list(make(wrapped(item, item, item)))) == 3

    assert [str(w.message).find(told) >= 0 for w in heard] == [True]
    assert heard[0].filename == __file__


def test_a_key_that_is_there_keeps_its_value():
    """The nested one is dropped, wherever it stands."""
    with pytest.warns(UserWarning, match="same key twice"):
        assert list(wrapped({"b": {"a": 2}, "a": 1}).flatten()) == [{"a": 1}]


def test_rows_become_columns():
    """Of dictionaries, all or some keys; of lists, under the names that are given."""
    rows = wrapped([{"a": 1}, {"b": 2, "a": 3}])

    assert list(rows.rows2columnar()) == [defaultdict(list, {"a": [1, 3], "b": [2]})]
    assert list(rows.rows2columnar({"a"})) == [{"a": [1, 3]}]
    assert list(wrapped([[1, 2], [3, 4]]).rows2columnar(["x", "y"])) == [{"x": [1, 3], "y": [2, 4]}]
    assert len(rows.rows2columnar()) == 1
    with pytest.raises(KeyError):
        list(rows.rows2columnar(["b"]))
    with pytest.raises(ValueError, match="a row has 2 values and there are 1 names"):
        list(wrapped([[1, 2]]).rows2columnar(["x"]))


# --- in_batch_shuffle, bucketbatch, max_token_bucketize -------------------------------------------


def test_batches_are_shuffled_inside():
    """Their own items, still chunks; what came in stays as it is."""
    batches = [[*range(9)], [10, 11]]
    pipe = IterableWrapper(batches, deepcopy=False).in_batch_shuffle()

    seen = list(pipe)

    assert [sorted(batch) for batch in seen] == batches == [[*range(9)], [10, 11]]
    assert any(list(pipe) != batches for _ in range(5))
    assert all(isinstance(batch, DataChunk) for batch in seen)
    assert len(pipe) == 2


@given(
    st.integers(0, 40),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_buckets_hold_every_item_once(count, size, batch_num, bucket_num, drop, sort, in_batch):
    """Whatever the sizes; only ``drop_last`` leaves some out."""
    values = [*range(count)]
    random.Random(count).shuffle(values)

    pipe = BucketBatcher(
        IterableWrapper(values),
        size,
        drop,
        batch_num,
        bucket_num,
        sorted if sort else None,
        in_batch,
    )
    seen = list(pipe)

    kept = [value for batch in seen for value in batch]
    assert len(kept) == len(set(kept)) == (count // size * size if drop else count)
    assert sum(len(batch) < size for batch in seen) <= 1
    if sort:
        assert [sorted(batch) for batch in seen] == seen


def test_one_bucket_stays_in_order():
    """Sorted, and not shuffled, as there is nothing to shuffle among."""
    pipe = IterableWrapper([*range(9, -1, -1)])

    assert list(pipe.bucketbatch(3, drop_last=True, sort_key=sorted)) == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
    ]


def test_bad_buckets_are_refused():
    """At construction, naming the number."""
    for name in ("batch_size", "batch_num", "bucket_num"):
        numbers = {"batch_size": 2, "batch_num": 2, "bucket_num": 2, name: 0}
        with pytest.raises(ValueError, match=name):
            wrapped(1).bucketbatch(**numbers)


@given(
    st.lists(st.integers(0, 12), max_size=30),
    st.integers(1, 8),
    st.integers(0, 3),
    st.booleans(),
)
def test_batches_never_hold_too_much(lengths, buffer_size, min_len, padded):
    """Every item of an allowed length comes once, and no batch is over the limit or empty."""
    pipe = IterableWrapper([*enumerate(lengths)]).max_token_bucketize(
        10,
        len_fn=lambda item: item[1],
        min_len=min_len,
        buffer_size=buffer_size,
        include_padding=padded,
    )

    seen = [list(batch) for batch in pipe]

    allowed = [item for item in enumerate(lengths) if min_len <= item[1] <= 10]
    assert sorted(item for batch in seen for item in batch) == allowed
    for batch in seen:
        sizes = [length for _, length in batch]
        assert 0 < len(batch)
        assert (len(sizes) * max(sizes) if padded else sum(sizes)) <= 10


def test_the_shortest_come_first():
    """Within the buffer; the examples are those of torchdata's tests."""
    words = IterableWrapper(["1" * n for n in range(1, 6)] + ["2" * n for n in range(1, 6)])

    def sizes(pipe):
        return [[*batch] for batch in pipe]

    assert sizes(words.max_token_bucketize(5, min_len=2, buffer_size=10)) == [
        ["11", "22"],
        ["111"],
        ["222"],
        ["1111"],
        ["2222"],
        ["11111"],
        ["22222"],
    ]
    assert sizes(words.max_token_bucketize(10, buffer_size=4)) == [
        ["1", "11", "2", "22", "111"],
        ["222", "1111"],
        ["2222", "11111"],
        ["22222"],
    ]
    with pytest.raises(TypeError):
        len(words.max_token_bucketize(5))


def test_of_two_of_one_length_the_older_comes_first():
    """Whatever the heap would do."""
    pipe = IterableWrapper([(n, 1) for n in range(50)])

    (batch,) = pipe.max_token_bucketize(50, len_fn=lambda item: item[1], buffer_size=20)

    assert [n for n, _ in batch] == [*range(50)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_len": -1}, "``min_len`` should be larger than 0"),
        ({"min_len": 3, "max_len": 2}, "equal to or smaller than ``max_len``"),
        ({"max_len": 3}, "``max_token_count`` must be equal to or greater than ``max_len``"),
        ({"buffer_size": 0}, "buffer_size"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(arguments, message):
    """At construction."""
    with pytest.raises(ValueError, match=message):
        wrapped("a").max_token_bucketize(2, **arguments)


def test_named_tuples_stay_tuples():
    """Columns of a named tuple have no names any more once one is missing."""
    pair = namedtuple("pair", "a b")

    assert list(IterableWrapper([pair(1, 2)], deepcopy=False).drop(0)) == [(2,)]
