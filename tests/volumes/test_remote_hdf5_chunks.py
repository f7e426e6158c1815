"""HDF5 behind a URL, chunk by chunk: what h5py wrote, and no more of it than is needed."""

import threading

import numpy as np
import pytest

from voxpipe.core import Region
from voxpipe.core.errors import BadHeader, CorruptVolume
from voxpipe.extensions.formats import hdf5_chunks
from voxpipe.extensions.formats.hdf5 import Hdf5Backend
from voxpipe.storage import remote as range_file
from voxpipe.storage.remote import RemoteFile
from voxpipe.volumes import Volume

h5py = pytest.importorskip("h5py")

SHAPE = (20, 21, 22)
FILTERS = [
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"shuffle": True},
]


def stored(server, array, **how):
    with h5py.File(server.bucket / "a.h5", "w") as file:
        file.create_dataset("a", data=array, chunks=(8, 8, 8), **how)
    return Volume("s3://bucket/a.h5", storage_options=server.storage_options)


@pytest.mark.parametrize("how", FILTERS)
@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i2", "<f4", ">f8"])
def test_chunks_are_what_was_written(server, how, dtype):
    """Every filter and byte order, also beyond the edge of the dataset."""
    array = np.random.default_rng(0).integers(0, 250, SHAPE).astype(dtype)
    volume = stored(server, array, **how)

    found = volume.read(Region((3, 5, 7), SHAPE)).array[0]

    assert isinstance(volume._backend(), Hdf5Backend)
    np.testing.assert_array_equal(found, array[3:, 5:, 7:])


def test_other_filters_are_undone_as_well(server):
    """A check sum is one; the voxels are the same."""
    array = np.arange(np.prod(SHAPE), dtype="i4").reshape(SHAPE)
    volume = stored(server, array, fletcher32=True)

    np.testing.assert_array_equal(volume.numpy()[0], array)
    assert isinstance(volume._backend(), Hdf5Backend)


def test_what_is_not_stored_is_fill_and_what_was_not_filtered_is_read(server):
    """A chunk that was written past the filters says so; one that was never written has none."""
    with h5py.File(server.bucket / "a.h5", "w") as file:
        made = file.create_dataset(
            "a", (16, 8, 8), "i2", chunks=(8, 8, 8), compression="gzip", fillvalue=7
        )
        made.id.write_direct_chunk((0, 0, 0), np.full(512, 3, "i2").tobytes(), filter_mask=1)
    volume = Volume("s3://bucket/a.h5", storage_options=server.storage_options)

    found = volume.numpy()[0]

    assert (found[:8] == 3).all()
    assert (found[8:] == 7).all()


def test_a_part_takes_its_chunks_once(server):
    """Prefetched, read, and read again within the ticket: each chunk is asked for once."""
    array = np.random.default_rng(0).integers(0, 99, SHAPE).astype("i2")
    volume = stored(server, array, compression="gzip")
    region = Region((0, 0, 0), (8, 8, 16))
    volume.shape  # noqa: B018

    ticket = volume.prefetch(region)
    first = volume.read(region).array[0]
    server.forget()
    second = volume.read(region).array[0]

    np.testing.assert_array_equal(first, array[region.slices])
    np.testing.assert_array_equal(second, first)
    assert server.requests == []
    ticket.close()


def test_a_damaged_chunk_is_told(server):
    """Bytes that gzip cannot undo name the file."""
    array = np.random.default_rng(0).integers(0, 99, SHAPE).astype("i2")
    volume = stored(server, array, compression="gzip")
    with h5py.File(server.bucket / "a.h5", "r+") as file:
        file["a"].id.write_direct_chunk((0, 0, 0), b"no gzip at all")

    with pytest.raises(CorruptVolume, match=r"s3://bucket/a\.h5"):
        volume.read(Region((0, 0, 0), (4, 4, 4)))


@pytest.mark.parametrize(
    ("how", "backend"),
    [({"compression": "gzip"}, Hdf5Backend), ({"fletcher32": True}, Hdf5Backend)],
)
def test_hdf5_is_free_while_bytes_are_fetched(server, monkeypatch, how, backend):
    """The thread that brings them may just then free an object of h5py, which takes its lock."""
    array = np.arange(np.prod(SHAPE), dtype="i4").reshape(SHAPE)
    volume = stored(server, array, **how)
    fetch, free = RemoteFile.ranges, []

    def fetched(file, spans):
        other = threading.Thread(target=lambda: h5py.h5s.create_simple((1,)), daemon=True)
        other.start()
        other.join(10)
        free.append(not other.is_alive())
        return fetch(file, spans)

    monkeypatch.setattr(RemoteFile, "ranges", fetched)
    monkeypatch.setattr(range_file, "_PAGE_BYTES", 512)
    np.testing.assert_array_equal(volume.numpy()[0], array)

    assert isinstance(volume._backend(), backend)
    assert len(free) > 3
    assert all(free)


def test_tables_beyond_memory_are_refused(server, monkeypatch):
    """Thousands of groups to look through, and no name given."""
    with h5py.File(server.bucket / "a.h5", "w") as file:
        for number in range(200):
            file.create_group(f"group {number}")
        file["a"] = np.zeros(SHAPE, "i2")
    monkeypatch.setattr(range_file, "_PAGE_BYTES", 512)
    monkeypatch.setattr(hdf5_chunks, "_MOST_BYTES", 16 * 1024)
    url, options = "s3://bucket/a.h5", server.storage_options

    with pytest.raises(
        BadHeader, match=r"tables of s3://bucket/a\.h5 (?s:.*)Give dataset="
    ) as raised:
        Volume(url, storage_options=options).shape  # noqa: B018
    assert raised.value.__cause__ is None

    assert Volume(url, dataset="a", storage_options=options).shape == (1, *SHAPE)
