"""What waits in a pipe or a queue is bounded in bytes, and a limit that is met says what to do."""

import warnings

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.datapipes.tensors import BUFFER_BYTES, WAITING_BYTES

LIMIT = 30.0


def block(number=0, size=100):
    """An array of so many bytes."""
    return np.full(size, number, np.uint8)


def rows(count, columns=2):
    return IterableWrapper([tuple(block(n) for _ in range(columns)) for n in range(count)])


# --- branches --------------------------------------------------------------------------------


def test_unzip_counts_the_bytes_that_wait():
    """The fourth array of 100 bytes does not fit; the error names pipe, bytes, line and remedy."""
    one, _ = rows(10).unzip(2, buffer_bytes=300)
    reading = iter(one)
    for _ in range(3):
        next(reading)

    with pytest.raises(BufferError, match="4 items wait that take 400 bytes") as told:
        next(reading)

    text = str(told.value)
    assert text.startswith("unzip() buffer overflow")
    assert "buffer_bytes is 300" in text
    assert "give a larger buffer_bytes=" in text
    assert any("test_buffers_in_bytes.py" in note for note in getattr(told.value, "__notes__", "x"))


def test_round_robin_counts_only_what_waits():
    """What the asker takes at once is not counted; the others' items are."""
    even, _ = IterableWrapper([block(n) for n in range(12)]).round_robin_demux(2, buffer_bytes=250)

    with pytest.raises(BufferError, match=r"round_robin_demux\(\).* 3 items wait that take 300 by"):
        list(even)


def test_one_large_item_of_each_branch_may_wait():
    """Branches that are read in turn work with items of any size."""
    one, two, three = rows(5, columns=3).unzip(3, buffer_bytes=1)

    assert [int(a[0]) for a, _, _ in zip(one, two, three, strict=True)] == [*range(5)]


def test_what_was_taken_counts_no_more():
    """However much went through: only what lies there counts."""
    one, two = rows(50).unzip(2, buffer_bytes=300)
    a, b = iter(one), iter(two)

    got = [int(next(each)[0]) for _ in range(25) for each in (a, a, b, b)]

    assert got == [n for pair in range(0, 50, 2) for n in (pair, pair + 1, pair, pair + 1)]
    assert next(a, None) is None


def test_a_new_pass_begins_with_nothing_that_waits():
    """Left in the middle, any number of times."""
    one, two = rows(4).unzip(2, buffer_bytes=300)

    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of branches that are not at their end
            assert len(list(zip(one, two, strict=True))) == 4
            reading = iter(one)
            next(reading), next(reading)


def test_any_number_of_items_means_any_number_of_bytes_unless_told():
    """``buffer_size=-1`` warns of the memory; with ``buffer_bytes`` there is a limit again."""
    with pytest.warns(UserWarning, match="Unlimited buffer size"):
        one, _ = rows(3).unzip(2, buffer_size=-1)
    assert one.main_datapipe.buffer_bytes is None
    limited, _ = rows(5).unzip(2, buffer_size=-1, buffer_bytes=200)

    with pytest.raises(BufferError, match="buffer_bytes is 200"):
        list(limited)


def test_branches_in_a_loader_are_bounded_alike():
    """The error comes out of the loader as it is."""
    one, two = rows(10).unzip(2, buffer_bytes=300)
    with (
        vp.DataLoader2(one.concat(two)) as loader,
        pytest.raises(BufferError, match="give a larger buffer_bytes="),
    ):
        list(loader)


def test_usual_limits():
    """More where it is an error than where somebody can wait."""
    one, _ = rows(1).unzip(2)
    assert one.main_datapipe.buffer_bytes == WAITING_BYTES > BUFFER_BYTES
    with pytest.raises(ValueError, match="buffer_bytes is a whole number of bytes"):
        rows(1).unzip(2, buffer_bytes=0)


# --- zip_with_iter ---------------------------------------------------------------------------


def first(item):
    return int(item[0])


def test_a_join_drops_the_oldest_beyond_its_bytes():
    """One warning in a pass: torchdata's words, then the pipe, the bytes and the limit."""
    asked = IterableWrapper([block(4), block(3)])
    others = IterableWrapper([block(n) for n in range(6)])
    pipe = asked.zip_with_iter(others, first, buffer_bytes=200)

    with pytest.warns(UserWarning, match="Buffer reaches the upper limit") as told:
        assert [(first(a), first(b)) for a, b in pipe] == [(4, 4), (3, 3)]

    (only,) = told
    assert "zip_with_iter() keeps 2 items of 200 bytes, and one of 100 came" in str(only.message)
    assert "buffer_bytes is 200" in str(only.message)
    assert only.filename == __file__


def test_what_a_join_dropped_is_told_where_it_lacks():
    """With both limits named."""
    asked = IterableWrapper([block(4), block(0)])
    others = IterableWrapper([block(n) for n in range(6)])
    with (
        pytest.warns(UserWarning, match="upper limit"),
        pytest.raises(BufferError, match="larger buffer_size= or buffer_bytes="),
    ):
        list(asked.zip_with_iter(others, first, buffer_bytes=200))


def test_a_join_keeps_all_where_it_was_told_to():
    """``buffer_size=None``, as in torchdata; and one item may be of any size."""
    asked = [block(n) for n in reversed(range(6))]
    others = IterableWrapper([block(n) for n in range(6)])
    pipe = IterableWrapper(asked).zip_with_iter(others, first, buffer_size=None)
    assert pipe.buffer_bytes is None
    assert len(list(pipe)) == 6
    in_step = IterableWrapper(asked[::-1]).zip_with_iter(others, first, buffer_bytes=1)
    assert len(list(in_step)) == 6


# --- async_map_batches -----------------------------------------------------------------------


async def made(size):
    return block(size=size)


class Counting(vp.datapipes.iter.IterDataPipe):
    """Yields sizes, and knows how many were asked for."""

    def __init__(self, count, size=100):
        super().__init__()
        self.count, self.size, self.asked = count, size, 0

    def __iter__(self):
        for _ in range(self.count):
            self.asked += 1
            yield self.size


def test_groups_shrink_to_the_bytes_of_their_results():
    """After the first group there are as many as fit, and the results are the same."""
    parent = Counting(20)
    reading = iter(parent.async_map_batches(made, 8, buffer_bytes=300))
    for _ in range(8):
        next(reading)
    assert parent.asked == 8

    next(reading)

    assert parent.asked == 8 + 300 // 100
    assert len(list(reading)) == 20 - 9


def test_the_first_group_is_as_many_as_run_at_once():
    """Nothing is known of the size of results yet."""
    parent = Counting(100)
    next(iter(parent.async_map_batches(made, 64, max_concurrency=4)))

    assert parent.asked == 4


def test_lists_that_are_too_large_are_refused():
    """They are what was asked for, so nobody may shorten them; one item is a list of any size."""
    lists = Counting(4).async_map_batches(made, 4, flatten=False, buffer_bytes=300)
    with pytest.raises(BufferError, match="gathered 4 results of 400 bytes for one list"):
        list(lists)
    single = Counting(2).async_map_batches(made, 1, flatten=False, buffer_bytes=1)
    assert [len(each) for each in single] == [1, 1]
