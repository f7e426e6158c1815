"""Small stored chunks stay after their tickets: what is asked for once is not asked for again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import Region
from voxpipe.core.errors import CorruptVolume
from voxpipe.storage.read_ahead import AHEAD, ENTRY_BYTES, SMALL_BYTES, ReadAhead, SmallObjectCache
from voxpipe.storage.retry import MOST_MISSING
from voxpipe.volumes import Volume, close_volumes

zarr = pytest.importorskip("zarr")
EDGE = 32
FIRST = Region((0, 0, 0), (EDGE, EDGE, EDGE))
BOTH = Region((0, 0, 0), (2 * EDGE, EDGE, EDGE))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3 * ENTRY_BYTES)), max_size=40))
def test_the_bound_holds_and_what_is_found_is_what_was_kept(given_answers):
    """Whatever is kept, in whatever order."""
    most = 5 * ENTRY_BYTES
    kept, last = SmallObjectCache(most), {}
    for number, size in given_answers:
        last[number] = bytes([number]) * size
        kept.keep("a", {(number,): memoryview(last[number])})
        assert kept.held_bytes <= most
    found = kept.find("a", [(number,) for number in range(10)])

    assert all(found[number,] == last[number] for (number,) in found)
    assert sum(ENTRY_BYTES + len(piece) for piece in found.values()) == kept.held_bytes


def test_the_one_that_nobody_asked_for_goes_first():
    """Not the one that came first."""
    kept = SmallObjectCache(2 * ENTRY_BYTES)
    kept.keep("a", {(0,): None, (1,): None})
    kept.find("a", [(0,)])
    kept.keep("a", {(2,): None})

    assert list(kept.find("a", [(0,), (1,), (2,)])) == [(0,), (2,)]


def test_a_piece_of_a_large_answer_does_not_keep_it():
    """What is counted is what is held."""
    answer = memoryview(bytes(10 * SMALL_BYTES))
    kept = SmallObjectCache(SMALL_BYTES)
    kept.keep("a", {(0,): answer[:100], (1,): answer})

    (piece,) = kept.find("a", [(0,), (1,)]).values()
    assert memoryview(piece.obj).nbytes == 100


def test_they_are_a_small_part_of_what_may_be_fetched():
    """Both together keep within the bound."""
    ahead = ReadAhead()
    ahead.limit(3200)

    assert ahead.most_bytes == 3200
    assert ahead.small.most_bytes == 100


def volume_of(server, values):
    """Return a volume of two chunks; one that holds zeros only is not stored."""
    array = zarr.create_array(
        server.bucket / "a.zarr",
        shape=BOTH.shape,
        chunks=FIRST.shape,
        dtype="u1",
        compressors=zarr.codecs.ZstdCodec(),
        fill_value=0,
    )
    array[...] = values
    return Volume("s3://bucket/a.zarr", storage_options=server.storage_options)


def read_ahead(volume):
    """Return the voxels, by way of a ticket."""
    ticket = volume.prefetch(BOTH)
    try:
        return volume.read(BOTH).array[0]
    finally:
        ticket.close()


def test_a_small_chunk_and_one_that_is_not_stored_are_asked_for_once(server, client):
    """A plain read asks again: it sees what was stored meanwhile, and so does a new epoch."""
    values = np.zeros(BOTH.shape, np.uint8)
    values[:EDGE] = 7
    volume = volume_of(server, values)
    first = read_ahead(volume)
    server.forget()

    again = read_ahead(volume)

    assert len(server.requests) == 0
    np.testing.assert_array_equal(first, values)
    np.testing.assert_array_equal(again, values)
    assert (len(AHEAD), AHEAD.held_bytes) == (0, 0)
    volume.read(BOTH)
    assert len(server.requests) == 1 + MOST_MISSING
    close_volumes()
    server.forget()
    read_ahead(volume)
    assert len([line for line in server.requests if "/c/" in line.key]) == 1 + MOST_MISSING


def test_a_large_chunk_is_asked_for_again(server, client):
    """Of noise: it takes more than the bound of one."""
    values = np.random.default_rng(0).integers(0, 256, BOTH.shape, np.uint8)
    volume = volume_of(server, values)
    read_ahead(volume)
    server.forget()

    np.testing.assert_array_equal(read_ahead(volume), values)

    assert len(server.requests) == 2


def test_a_damaged_chunk_is_asked_for_again(server, client):
    """Whoever copies it again need not begin a new process."""
    values = np.full(BOTH.shape, 7, np.uint8)
    volume = volume_of(server, values)
    chunk = server.bucket / "a.zarr" / "c" / "0" / "0" / "0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptVolume):
        read_ahead(volume)
    chunk.write_bytes(whole)

    np.testing.assert_array_equal(read_ahead(volume), values)
