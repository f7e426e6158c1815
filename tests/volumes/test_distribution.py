"""Percentiles and class counts, compared with NumPy over all voxels at once."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from nifti_files import write_nifti
from zarr_files import write_v2

from voxpipe.core import IO_COUNTERS
from voxpipe.core.histogram import Distribution
from voxpipe.core.lru_cache import LRUCache
from voxpipe.volumes import Volume, volume_statistics
from voxpipe.volumes.catalog import whole_pass
from voxpipe.volumes.catalog.whole_pass import PERCENTILES, Statistics

GENERATOR = np.random.default_rng(0)
BOUNDS = ("min", "max")
TYPES = ["u1", "i1", ">i2", "u2", ">u4", "i4", "i8", "u8", "f2", ">f4", "f4", "f8"]


@pytest.mark.parametrize("dtype", TYPES)
@given(data=st.data())
def test_exact_whatever_the_type(dtype, data):
    """Few different numbers are counted one by one, in any number of pieces."""
    kind = np.dtype(dtype)
    elements = (
        # Bounds, too: of any floats, most would be too large for two bytes.
        {"allow_nan": False, **{f"{m}_value": float(getattr(np.finfo(kind), m)) for m in BOUNDS}}
        if kind.kind == "f"
        else {"min_value": np.iinfo(kind).min, "max_value": np.iinfo(kind).max}
    )
    pieces = data.draw(
        st.lists(arrays(kind, st.integers(1, 12), elements=elements), min_size=1, max_size=3)
    )
    counted = Distribution(kind)

    for piece in pieces:
        counted.add(piece)

    numbers = np.concatenate(pieces).astype(np.float64)
    histogram = counted.histogram()
    found, counts = histogram.values, histogram.counts
    values, times = np.unique(np.concatenate(pieces), return_counts=True)
    assert counted.is_exact
    # -0.0 and 0.0 have a counter each.
    merged = np.unique(found)
    assert np.array_equal(merged, np.unique(values.astype(np.float64)))
    assert counts.sum() == times.sum()
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.percentile(numbers, PERCENTILES)
    sound = np.isfinite(wanted)  # differences of the largest floats overflow in NumPy
    size = np.abs(numbers).max()
    got = np.array(list(map(counted.histogram().percentile, PERCENTILES)))
    np.testing.assert_allclose(got[sound], wanted[sound], rtol=1e-12, atol=1e-12 * size)


@pytest.mark.parametrize(
    ("dtype", "scale", "offset"), [("f4", 1, 0), ("f4", 3, 1000), ("f8", 1, 0), ("i4", 1e8, 0)]
)
def test_bounded_and_near_otherwise(dtype, scale, offset):
    """Half a bin at most, and never more counters than were granted."""
    pieces = [(offset + scale * GENERATOR.normal(size=3000)).astype(dtype) for _ in range(5)]
    pieces[2][0] = np.iinfo(dtype).max if dtype == "i4" else 1e30  # an outlier
    counted = Distribution(np.dtype(dtype), most=1000)

    for piece in pieces:
        counted.add(piece)
        assert len(counted.histogram().values) <= 1000

    numbers = np.concatenate(pieces).astype(np.float64)
    wanted = np.percentile(numbers, PERCENTILES)
    got = np.array(list(map(counted.histogram().percentile, PERCENTILES)))
    assert not counted.is_exact
    if dtype == "i4":
        assert np.abs(got - wanted).max() <= (numbers.max() - numbers.min()) / 500
    else:
        # At most 1000 counters, at least 500, over some 12 powers of two on either side.
        np.testing.assert_allclose(got, wanted, rtol=0.05, atol=0.05 * scale * (offset == 0))
    if offset:
        np.testing.assert_allclose(got, wanted, rtol=1e-4)


def test_infinity_is_a_number_like_others():
    """It sorts last, and spoils nothing else."""
    counted = Distribution(np.dtype("f4"))
    counted.add(np.array([-np.inf, 1, 2, 3, np.inf], np.float32))

    assert [*map(counted.histogram().percentile, [0, 50, 100])] == [-np.inf, 2, np.inf]


@pytest.mark.parametrize("most", [50, 10**6])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32])
def test_of_a_volume_slab_by_slab(dtype, most, monkeypatch):
    """What one look at everything gives."""
    monkeypatch.setattr(whole_pass, "SLAB_VOXELS", most)
    array = (100 * GENERATOR.random((2, 7, 8, 9)) - 10).clip(0).astype(dtype)

    found = volume_statistics(Volume(array))

    wanted = np.percentile(array.astype(np.float64), PERCENTILES)
    np.testing.assert_allclose(found.percentiles, wanted, rtol=1e-12)
    assert found.percentile(50) == found.percentiles[3]
    assert found.classes == ()


@pytest.mark.parametrize("slope", [0.5, -2.0])
def test_scaled_percentiles(tmp_path, slope):
    """Of values; a negative slope turns their order around."""
    array = GENERATOR.integers(-100, 100, (7, 8, 9)).astype(np.int16)
    path = write_nifti(tmp_path / "a.nii", array, scaling=(slope, 3.0))

    found = volume_statistics(Volume(path))

    wanted = np.percentile(array * slope + 3, PERCENTILES)
    np.testing.assert_allclose(found.percentiles, wanted, rtol=1e-12)


def test_classes_of_labels_alone(tmp_path, monkeypatch):
    """The same file as a label and as an intensity, in either order, from the cache as well."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    array = GENERATOR.choice([0, 1, 1, 7], (5, 6, 7)).astype(np.uint8)
    path = write_nifti(tmp_path / "a.nii", array)
    values, counts = np.unique(array, return_counts=True)
    wanted = tuple(zip(values.tolist(), counts.tolist(), strict=True))

    for _ in range(2):
        assert volume_statistics(Volume(path)).classes == ()
        assert volume_statistics(Volume(path, kind="label")).classes == wanted
        monkeypatch.setattr(whole_pass.STATISTICS, "memory", LRUCache())


def test_classes_of_other_types():
    """Labels in floats, negative ones; thousands of instances are no classes."""
    floats = np.array([[[0.0, 2.0, 2.0, -1.0]]], np.float32)
    many = np.arange(5000, dtype=np.uint16).reshape(50, 10, 10)

    assert volume_statistics(Volume(floats, kind="label")).classes == ((-1, 1), (0, 1), (2, 2))
    assert volume_statistics(Volume(many, kind="label")).classes == ()


def test_nan_makes_percentiles_nan(tmp_path):
    """As it does all others, and JSON has no word for it but this."""
    found = volume_statistics(Volume(np.array([[[1.0, np.nan, 3.0]]])))

    assert np.isnan(found.percentiles).all()
    text = json.dumps(found.to_json(), allow_nan=False)
    assert np.isnan(Statistics.from_json(json.loads(text)).percentiles).all()
    assert found.classes == ()


def test_still_one_pass(tmp_path, monkeypatch):
    """Percentiles cost no second look at a voxel."""
    monkeypatch.setattr(whole_pass, "SLAB_VOXELS", 4 * 4 * 8)
    array = GENERATOR.random((8, 8, 16)).astype(np.float32)
    volume = Volume(write_v2(tmp_path / "a.zarr", array, (4, 4, 8)))
    before = IO_COUNTERS.snapshot()

    volume_statistics(volume)

    assert (IO_COUNTERS - before).bytes_read == array.nbytes


def test_a_percentile_that_is_not_there():
    """Another rank is not stored."""
    old = Statistics(0.0, 1.0, 0.0, 1.0, 3, (0.0,) * 7)

    with pytest.raises(ValueError, match="got 42"):
        old.percentile(42)
