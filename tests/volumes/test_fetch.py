"""Fetching alone: the stored bytes of a region, and no others, without decoding."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nifti_files import AFFINE

from voxpipe.core import IO_COUNTERS, ChunkGrid, Region
from voxpipe.core.errors import OutOfVolume
from voxpipe.volumes import Volume
from voxpipe.volumes.voxels import touch

SHAPE, CHUNK = (12, 10, 9), (4, 4, 4)
PART = Region((3, 0, 5), (6, 4, 9))
PAGE = 4096


class Noting(np.ndarray):
    """An array that keeps the views that are taken of it and copied."""

    seen: ClassVar[list] = []

    def copy(self, *args, **kwargs):
        Noting.seen.append(self)
        return super().copy(*args, **kwargs)


@given(
    shape=st.tuples(*[st.integers(1, 40)] * 4),
    order=st.permutations(range(4)),
    start=st.integers(0, 5000),
    size=st.sampled_from([1, 2, 8]),
)
def test_every_page_of_a_view_is_touched(shape, order, start, size):
    """Whatever the strides and the place of the first voxel in its page."""
    whole = np.zeros(start + np.prod(shape) * size, np.uint8)[start:].view(f"u{size}")
    view = whole.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
    part = view[..., : max(1, shape[3] // 2)].view(Noting)
    Noting.seen = []

    assert touch(part) == part.nbytes

    assert pages(part) == set().union(*map(pages, Noting.seen))


def pages(array):
    """Return the pages on which the elements of an array begin."""
    offsets = sum(
        np.arange(n).reshape([-1 if a == axis else 1 for a in range(array.ndim)]) * stride
        for axis, (n, stride) in enumerate(zip(array.shape, array.strides, strict=True))
    )
    return set(((array.ctypes.data + offsets) // PAGE).ravel().tolist())


def test_a_mapped_region_is_fetched_without_a_read(tmp_path):
    """Its pages are touched; nothing is counted as read."""
    path = tmp_path / "scan.npy"
    np.save(path, np.zeros(SHAPE, np.int16))
    volume, before = Volume(path), IO_COUNTERS.snapshot()

    assert volume.fetch(PART) == PART.size * 2
    assert (IO_COUNTERS.snapshot() - before).reads == 0


def test_a_gzipped_region_is_that_of_the_decoded_file(tmp_path):
    """What counts is the raw copy: the file is decoded once."""
    nibabel = pytest.importorskip("nibabel")
    path = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros(SHAPE, np.int16), AFFINE), path)

    assert Volume(path).fetch(PART) == PART.size * 2


def test_chunks_are_fetched_as_stored():
    """Each chunk that the region touches is asked for once, and comes compressed."""
    zarr = pytest.importorskip("zarr")
    asked = []

    class Counting(zarr.storage.WrapperStore):
        async def get(self, key, prototype, byte_range=None):
            asked.append(key)
            return await super().get(key, prototype, byte_range)

    memory = zarr.storage.MemoryStore()
    array = zarr.create_array(memory, shape=SHAPE, chunks=CHUNK, dtype="i2")
    array[...] = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    volume = Volume(Counting(memory))
    volume.header  # noqa: B018  the metadata are asked for here
    asked.clear()
    touched = [f"c/{i}/{j}/{k}" for i, j, k in ChunkGrid(SHAPE, CHUNK).touched_parts(PART)]

    assert volume.fetch(PART) == sum(len(memory._store_dict[key]) for key in touched)
    assert sorted(asked) == touched


def test_shards_are_fetched_in_part(tmp_path):
    """The bytes of the inner chunks that a read takes, not those of whole shards."""
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(
        str(tmp_path / "a.zarr"),
        shape=SHAPE,
        chunks=(2, 2, 2),
        shards=CHUNK,
        dtype="i2",
        compressors=None,
    )
    array[...] = 1
    volume = Volume(tmp_path / "a.zarr")

    assert volume.fetch(Region((0, 0, 0), (2, 2, 2))) == 2 * 2 * 2 * 2
    assert 0 < volume.fetch(PART) < array.nbytes


def test_an_empty_region_fetches_nothing():
    """And one that reaches outside is refused as a read refuses it."""
    volume = Volume(np.zeros(SHAPE, np.int16))

    assert volume.fetch(Region((1, 1, 1), (1, 4, 4))) == 0
    with pytest.raises(OutOfVolume, match="is not inside"):
        volume.fetch(Region((0, 0, 0), (99, 1, 1)))


def test_segments_and_members_are_fetched_as_they_are_stored(tmp_path):
    """Of a TIFF the tiles that a region touches, of an archive the chunks, compressed."""
    tifffile, zarr = pytest.importorskip("tifffile"), pytest.importorskip("zarr")
    array = np.arange(2 * 64 * 64, dtype=np.uint16).reshape(2, 64, 64)
    tifffile.imwrite(
        tmp_path / "a.tif", array, tile=(16, 16), compression="zlib", photometric="minisblack"
    )
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        counts = file.pages[1].databytecounts
    with zarr.storage.ZipStore(tmp_path / "a.zarr.zip", mode="w") as store:
        zarr.create_array(store, data=array, chunks=(1, 16, 16), compressors=None)
    in_tile = Region((17, 1, 1), (20, 2, 2))  # x, y, z: the second tile of the second page

    assert Volume(tmp_path / "a.tif").fetch(in_tile) == counts[1]
    assert Volume(tmp_path / "a.zarr.zip").fetch(Region((1, 1, 17), (2, 2, 20))) == 16 * 16 * 2


def test_rows_behind_a_url_are_fetched(tmp_path):
    """Their bytes are the voxels."""
    fsspec = pytest.importorskip("fsspec")
    np.save(tmp_path / "rows.npy", np.zeros(SHAPE, np.int16))
    fsspec.filesystem("memory").put(str(tmp_path / "rows.npy"), "/remote/rows.npy")

    assert Volume("memory://remote/rows.npy").fetch(PART) == PART.size * 2
