"""The histogram of a volume, of all voxels or those inside a mask, computed once and kept."""

from __future__ import annotations

import io
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...core import Region
from ...core.errors import VolumeError
from ...core.histogram import Histogram
from ..cache.cache_directory import cache_directory, write_whole
from ..volume import Volume
from .statistics import SLAB_VOXELS, slabs, volume_statistics

# Of types with more values than these, each bin holds the mean of what lies in it. A percentile is
# then right to a 65536th of the range, and a mean to rounding.
BINS = 65536
# An entry takes up to a megabyte.
MOST_REMEMBERED = 64

_REMEMBERED: OrderedDict[tuple[Any, ...], Histogram] = OrderedDict()


def volume_histogram(volume: Volume, mask: Volume | None = None) -> Histogram:
    """Return how often each value occurs.

    Integers of 16 bits at most are counted one by one; other types in bins. The first call
    reads every voxel, in bounded memory; later ones, in this process or for the same files in
    another, read nothing.

    Parameters
    ----------
    volume
        Any volume of real numbers.
    mask
        A volume on the same grid: only voxels where it is above 0 count, in any of its channels
        if it has several.

    Raises
    ------
    VolumeError
        The shapes differ, no voxel is inside the mask, or there are NaN or infinite values.

    Examples
    --------
    >>> volume = Volume(np.array([[[1, 2, 3, 6]]], np.int16))
    >>> volume_histogram(volume).percentile(50)
    2.5
    >>> volume_histogram(volume, Volume(np.array([[[0, 0, 1, 1]]], np.uint8))).mean
    4.5
    """
    if mask is not None and mask.shape[1:] != volume.shape[1:]:
        raise VolumeError(
            f"{volume.name} has {volume.shape[1:]} voxels, but the mask {mask.name} has "
            f"{mask.shape[1:]}",
            do="Statistics inside a label need one on the grid of the image.",
        )
    both = [v for v in (volume, mask) if v is not None]
    key = tuple((v.token, v.header.stamp) for v in both)
    found = _REMEMBERED.get(key)
    if found is None:
        contents = [v.content_key for v in both]
        name = f"{'-'.join(map(str, contents))}.npy" if all(contents) else None
        file = cache_directory() / "histograms" / name if name else None
        found = (file and _load(file)) or _compute(volume, mask)
        if file:
            _save(file, found)
    _REMEMBERED[key] = found
    while len(_REMEMBERED) > MOST_REMEMBERED:
        with suppress(KeyError):  # another thread may have been faster
            _REMEMBERED.popitem(last=False)
    return found


def _compute(volume: Volume, mask: Volume | None) -> Histogram:
    if volume.dtype.kind == "c":
        raise VolumeError(
            f"{volume.name} holds complex numbers, of which there is no histogram.",
            do="Store magnitude and phase, or the two parts, as channels of real numbers.",
        )
    dtype = _stored_type(volume)
    is_small = dtype.kind in "iub" and dtype.itemsize <= 2
    if is_small:
        low, width, bins = float(_lowest(dtype)), 1.0, 1 << 8 * dtype.itemsize
    else:
        low, high = _stored_range(volume)
        width, bins = max((high - low) / (BINS - 1), np.finfo(np.float64).tiny), BINS
    counts, sums = np.zeros(bins, np.int64), np.zeros(bins)
    most = max(1, SLAB_VOXELS // volume.shape[0])
    for region in slabs(volume.spatial_shape, volume.chunks or (1, 1, 1), most):
        stored = volume.read(region).array
        if mask is not None:
            inside = (mask.read(region).array > 0).any(axis=0)
            stored = stored[:, inside]
        if is_small:
            counts += np.bincount(stored.ravel().astype(np.intp) - int(low), minlength=bins)
            continue
        wide = stored[np.isfinite(stored)].astype(np.float64)
        wide -= low
        place = np.minimum(wide / width, bins - 1).astype(np.intp)
        counts += np.bincount(place, minlength=bins)
        sums += np.bincount(place, wide, minlength=bins)
    there = counts > 0
    if not there.any():
        where = f" inside {mask.name}" if mask is not None else ""
        raise VolumeError(
            f"{volume.name} has no voxel{where} to take statistics of.",
            do="Give the numbers, or filter such cases out.",
        )
    above_low = np.flatnonzero(there) if is_small else sums[there] / counts[there]
    values = low + above_low.astype(np.float64)
    slope, intercept = volume.header.slope, volume.header.intercept
    return Histogram(values, counts[there]).mapped(lambda stored: stored * slope + intercept)


def _stored_type(volume: Volume) -> np.dtype[Any]:
    """Return the type of the voxels as they are stored, before slope and intercept."""
    return np.dtype(volume.read(Region((0, 0, 0), (1, 1, 1))).array.dtype)


def _lowest(dtype: np.dtype[Any]) -> int:
    return 0 if dtype.kind == "b" else int(np.iinfo(dtype).min)


def _stored_range(volume: Volume) -> tuple[float, float]:
    statistics = volume_statistics(volume)
    slope, intercept = volume.header.slope, volume.header.intercept
    ends = [(end - intercept) / (slope or 1) for end in (statistics.minimum, statistics.maximum)]
    low, high = min(ends), max(ends)
    if not np.isfinite([low, high]).all():
        raise VolumeError(
            f"{volume.name} holds NaN or infinite values, so its histogram has no bins.",
            do="Give the numbers that the op needs.",
        )
    return low, high


def _load(file: Path) -> Histogram | None:
    """Return what another process computed, None if there is nothing sound."""
    with suppress(OSError, ValueError, EOFError):
        read = np.load(file, allow_pickle=False)
        if read.ndim == 2 and len(read) == 2 and read.size and read.dtype == np.float64:
            return Histogram(read[0], read[1].astype(np.int64))
    return None


def _save(file: Path, histogram: Histogram) -> None:
    # Only saves time: a full or read-only disk must not stop anybody. Counts are exact in float64.
    packed = io.BytesIO()
    np.save(packed, np.stack([histogram.values, histogram.counts.astype(np.float64)]))
    with suppress(OSError):
        write_whole(file, packed.getvalue())
