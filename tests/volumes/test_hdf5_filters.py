"""Deflated chunks of HDF5 decode as HDF5 decodes them, and into no more bytes than they have."""

import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core.errors import CorruptVolume, VolumeReadError
from voxpipe.extensions.formats import hdf5_chunks
from voxpipe.volumes import Volume, close_volumes

h5py = pytest.importorskip("h5py")
CHUNKS = (4, 4, 4)
SHAPE = (5, 9, 6)
HUGE = 64 * 1024**2


@pytest.fixture(autouse=True)
def nothing_stays_open():
    """A file that is open cannot be written again."""
    yield
    close_volumes()


def array_of(dtype):
    return np.random.default_rng(0).integers(0, 2, SHAPE).astype(dtype)


@pytest.mark.parametrize("dtype", ["<i2", ">i4", "<f8", "u1", "?"])
@pytest.mark.parametrize("filters", [{}, {"shuffle": True}, {"shuffle": True, "fletcher32": True}])
def test_values_are_those_of_h5py(tmp_path, dtype, filters):
    """Either byte order, check sums, and what HDF5 stores in its own types."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", data=array_of(dtype), chunks=CHUNKS, compression="gzip", **filters)

    found = Volume(tmp_path / "a.h5").numpy()[0]

    np.testing.assert_array_equal(found, array_of(dtype))


def test_chunks_that_are_missing_or_not_deflated(tmp_path):
    """What was never written is the fill value; a chunk may lack any of the filters."""
    raw = np.arange(64, dtype="<i2").reshape(CHUNKS)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset(
            "v", (8, 8, 4), "<i2", chunks=CHUNKS, compression="gzip", shuffle=True, fillvalue=7
        )
        made.id.write_direct_chunk((0, 0, 0), raw.tobytes(), filter_mask=0b11)
        made.id.write_direct_chunk((4, 0, 0), zlib.compress(raw.tobytes()), filter_mask=0b01)

    found = Volume(tmp_path / "a.h5").numpy()[0]

    np.testing.assert_array_equal(found[:4, :4], raw)
    np.testing.assert_array_equal(found[4:, :4], raw)
    assert (found[:, 4:] == 7).all()


@pytest.mark.parametrize("dtype", ["<i2", "?"])
def test_a_bomb_is_refused_by_name(tmp_path, dtype):
    """64 kB that stand for 64 MB; HDF5 would take twice as much before it notices."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("v", CHUNKS, dtype, chunks=CHUNKS, compression="gzip")
        made.id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(HUGE)))
    volume = Volume(tmp_path / "a.h5")
    assert volume.shape == (1, *CHUNKS)

    tracemalloc.start()
    try:
        with pytest.raises(CorruptVolume, match=r"a\.h5.*decodes to more than"):
            volume.numpy()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < HUGE / 16


@pytest.mark.parametrize("stored", [zlib.compress(bytes(6)), b"no deflated data"])
def test_too_few_bytes_are_refused(tmp_path, stored):
    """Neither what ends early nor what is no deflated stream becomes voxels."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("v", CHUNKS, "<i2", chunks=CHUNKS, compression="gzip")
        made.id.write_direct_chunk((0, 0, 0), stored)

    with pytest.raises(VolumeReadError, match=r"a\.h5"):
        Volume(tmp_path / "a.h5").numpy()


@given(st.binary(max_size=40), st.integers(1, 9))
def test_shuffled_bytes_come_back(data, width):
    """By the definition of the filter: byte k of all elements together, what is over at the end."""
    count = len(data) // width
    whole = data[: count * width]
    shuffled = b"".join(whole[k::width] for k in range(width)) + data[count * width :]

    assert hdf5_chunks._unshuffle(shuffled, (width,)) == data
