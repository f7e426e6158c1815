"""Histograms: every statistic that NumPy computes from the voxels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from voxpipe.core.errors import VolumeError
from voxpipe.volumes import Volume, volume_histogram, volume_statistics

Q = st.floats(0, 100)


@given(voxels=arrays(np.int16, (3, 4, 5), elements=st.integers(-32768, 32767)), q=Q)
def test_integers_are_counted_one_by_one(voxels: Any, q: float) -> None:
    """So statistics and percentiles are exact."""
    histogram = volume_histogram(Volume(voxels))

    assert histogram.count == voxels.size
    assert np.isclose(histogram.mean, voxels.mean(), atol=1e-9)
    assert np.isclose(histogram.std, voxels.std(), atol=1e-7)
    assert (histogram.minimum, histogram.maximum) == (voxels.min(), voxels.max())
    assert np.isclose(
        histogram.percentile(q), np.percentile(voxels.astype(np.float64), q), atol=1e-9
    )


def test_floats_are_counted_in_bins() -> None:
    """A percentile is right to the width of a bin, the mean to rounding."""
    voxels = np.random.default_rng(0).normal(0, 1, (20, 20, 20))
    histogram = volume_histogram(Volume(voxels))
    width = np.ptp(voxels) / 65535

    assert np.isclose(histogram.mean, voxels.mean(), rtol=0, atol=1e-12)
    for q in (0, 0.5, 50, 99.5, 100):
        assert abs(histogram.percentile(q) - np.percentile(voxels, q)) <= 2 * width


def test_a_mask_counts_what_is_inside() -> None:
    """All channels of the image, wherever the label is above 0."""
    voxels = np.arange(48, dtype=np.int16).reshape(2, 2, 3, 4)
    mask = np.zeros((1, 2, 3, 4), np.uint8)
    mask[0, 1, :, 2:] = 3

    histogram = volume_histogram(Volume(voxels), Volume(mask))

    inside = voxels[:, 1, :, 2:]
    assert (histogram.count, histogram.mean) == (inside.size, inside.mean())


def test_a_mask_of_another_shape_or_none_inside_is_refused() -> None:
    """With the shapes, or the name of the mask."""
    volume = Volume(np.zeros((2, 3, 4), np.int16))

    with pytest.raises(VolumeError, match=r"has \(2, 3, 4\) voxels, but the mask"):
        volume_histogram(volume, Volume(np.ones((4, 3, 2), np.uint8)))
    with pytest.raises(VolumeError, match="no voxel inside"):
        volume_histogram(volume, Volume(np.zeros((2, 3, 4), np.uint8)))


def test_a_constant_volume_has_one_value() -> None:
    """Also as floats, where a bin has no width."""
    histogram = volume_histogram(Volume(np.full((2, 2, 2), 0.3)))

    assert (histogram.minimum, histogram.maximum, histogram.std) == (0.3, 0.3, 0)


def test_it_agrees_with_the_statistics() -> None:
    """Of one volume there is one mean."""
    volume = Volume(np.random.default_rng(1).integers(-9, 99, (7, 8, 9), np.int16))
    histogram, statistics = volume_histogram(volume), volume_statistics(volume)

    assert np.isclose(histogram.mean, statistics.mean)
    assert np.isclose(histogram.std, statistics.std)


def test_every_voxel_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats too: no range has to be known first."""
    volume = Volume(np.random.default_rng(0).normal(0, 1, (9, 8, 7)).astype(np.float32))
    read, regions = Volume.read, []
    monkeypatch.setattr(Volume, "read", lambda v, r: regions.append(r) or read(v, r))

    volume_histogram(volume)

    assert sum(region.size for region in regions) == 9 * 8 * 7 + 1  # one tells the stored type


def test_what_a_mask_leaves_out_may_be_nan() -> None:
    """It is not counted, so it needs no place."""
    voxels = np.array([[[1.0, np.nan, 2.0]]])

    histogram = volume_histogram(Volume(voxels), Volume(np.array([[[1, 0, 1]]], np.uint8)))

    assert (histogram.minimum, histogram.maximum, histogram.count) == (1.0, 2.0, 2)


def test_more_numbers_than_bins_are_known_to_a_part_of_themselves() -> None:
    """Half a million different floats: percentiles and mean by 10^-4."""
    voxels = np.random.default_rng(0).lognormal(0, 1, (80, 80, 80)).astype(np.float32)
    histogram = volume_histogram(Volume(voxels))

    assert len(histogram.values) <= 2**18
    assert np.isclose(histogram.mean, voxels.mean(dtype=np.float64), rtol=1e-4)
    for q in (0.5, 5, 50, 95, 99.5):
        assert np.isclose(histogram.percentile(q), np.percentile(voxels, q), rtol=2e-4)


def test_values_without_a_range_are_refused() -> None:
    """NaN has no place among bins."""
    with pytest.raises(VolumeError, match="holds NaN or infinite values"):
        volume_histogram(Volume(np.array([[[1.0, np.nan, 2.0]]])))
