"""Statistics of whole volumes, compared with NumPy's in double precision."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nifti_files import numbered, write_nifti
from zarr_files import write_v2

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import VolumeError
from voxpipe.core.lru_cache import LRUCache
from voxpipe.storage.disk_cache import read_entry
from voxpipe.volumes import Volume, close_volumes, volume_statistics
from voxpipe.volumes.catalog import whole_pass
from voxpipe.volumes.catalog.whole_pass import slabs

GENERATOR = np.random.default_rng(0)


def assert_like_numpy(found, values):
    """Compare with a direct computation in float64."""
    wide = values.astype(np.float64)
    np.testing.assert_allclose(found.mean, wide.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.std, wide.std(), rtol=1e-12)
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
    assert found.count == values.size


@pytest.mark.parametrize("most", [1, 100, 10**6])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_like_numpy(most, dtype, monkeypatch):
    """Slabs of any size give what one pass over everything gives."""
    monkeypatch.setattr(whole_pass, "SLAB_VOXELS", most)
    # Far from zero, where a sum of squares would lose its digits.
    array = (200 + 20 * GENERATOR.random((2, 7, 8, 9))).astype(dtype)

    assert_like_numpy(volume_statistics(Volume(array)), array)


@pytest.mark.parametrize("slope", [0.5, -2.0])
def test_scaled(tmp_path, slope):
    """Statistics are of values, also where a negative slope turns the range around."""
    array = GENERATOR.integers(-100, 100, (7, 8, 9)).astype(np.int16)
    path = write_nifti(tmp_path / "a.nii", array, scaling=(slope, 3.0))

    assert_like_numpy(volume_statistics(Volume(path)), array * slope + 3)


def test_no_chunk_is_read_twice_and_memory_is_bounded(tmp_path, monkeypatch):
    """Slabs follow the chunks: every voxel is read once, few at a time."""
    monkeypatch.setattr(whole_pass, "SLAB_VOXELS", 4 * 4 * 8)
    array = numbered((12, 12, 16))
    volume = Volume(write_v2(tmp_path / "a.zarr", array, (4, 4, 8)))
    before = IO_COUNTERS.snapshot()

    found = volume_statistics(volume)

    assert_like_numpy(found, array)
    assert (IO_COUNTERS - before).bytes_read == array.nbytes
    assert (IO_COUNTERS - before).reads == 3 * 3 * 2


def test_computed_once_per_process_and_once_per_file(tmp_path, monkeypatch):
    """A second look reads nothing, not even in another process that has the same cache."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    first = volume_statistics(Volume(path))
    before = IO_COUNTERS.snapshot()

    assert volume_statistics(Volume(path)) == first
    assert (IO_COUNTERS - before).reads == 0
    monkeypatch.setattr(whole_pass.STATISTICS, "memory", LRUCache())
    assert volume_statistics(Volume(path)) == first
    assert (IO_COUNTERS - before).reads == 0
    (saved,) = (tmp_path / "cache" / "statistics").iterdir()
    assert json.loads(read_entry(saved))["count"] == 210


def test_a_file_written_again_is_computed_again(tmp_path):
    """Another version of the file has other statistics."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    first = volume_statistics(Volume(path))
    path.unlink()
    write_nifti(path, numbered((5, 6, 8)))

    assert first.count == 210
    assert volume_statistics(Volume(path)).count == 240


def test_a_damaged_entry_is_computed_again(tmp_path, monkeypatch):
    """What is in the cache is looked at, not trusted."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    first = volume_statistics(Volume(path))
    (saved,) = (tmp_path / "cache" / "statistics").iterdir()

    for content in ("", "[]", '{"mean": 1}', '{"mean": "x"}'):
        saved.write_text(content)
        monkeypatch.setattr(whole_pass.STATISTICS, "memory", LRUCache())
        assert volume_statistics(Volume(path)) == first


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    """Saving only spares work; a folder that is none does not stop anybody."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "file"))
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))

    assert volume_statistics(Volume(path)).count == 210
    close_volumes()


def test_what_is_remembered_is_bounded(monkeypatch):
    """A run over many volumes does not remember all of them."""
    monkeypatch.setattr(whole_pass.STATISTICS, "memory", LRUCache(most=3))

    for n in range(10):
        volume_statistics(Volume(np.full((2, 2, 2), n)))

    assert len(whole_pass.STATISTICS.memory) == 3


def test_nan_is_not_hidden():
    """A NaN among the voxels shows in every number but the count."""
    array = np.ones((2, 2, 2))
    array[1, 1, 1] = np.nan

    found = volume_statistics(Volume(array))

    assert np.isnan([found.mean, found.std, found.minimum, found.maximum]).all()
    assert found.count == 8


def test_complex_numbers_are_refused():
    """They have no minimum, and no user expects one."""
    with pytest.raises(VolumeError, match="complex"):
        volume_statistics(Volume(np.ones((2, 2, 2), np.complex64)))


@given(
    st.tuples(*[st.integers(1, 12)] * 3),
    st.tuples(*[st.integers(1, 5)] * 3),
    st.integers(1, 500),
)
def test_slabs_tile_the_volume(shape, unit, most):
    """Every voxel is in one slab; slabs end at units, and are small unless a unit is not."""
    seen = np.zeros(shape, int)

    for region in slabs(shape, unit, most):
        seen[region.slices] += 1
        assert all(a % u == 0 for a, u in zip(region.start, unit, strict=True))
        assert region.size <= max(most, np.prod(unit))
        assert Region.of_shape(shape).contains(region)

    assert (seen == 1).all()
