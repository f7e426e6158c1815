"""The histogram of a volume, of all voxels or those inside a mask, computed once and kept."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core import Region
from ...core.errors import VolumeError
from ...core.histogram import Distribution, Histogram
from ...core.lru_cache import LRUCache
from ...storage.content import content_key_now, version_key
from ...storage.disk_cache import cache_directory, get_or_make, load_entry
from ..volume import Volume
from .statistics import SLAB_VOXELS, slabs

# An entry takes up to 4 MiB.
MOST_REMEMBERED = 16

_REMEMBERED: LRUCache[Histogram] = LRUCache(MOST_REMEMBERED)


def volume_histogram(
    volume: Volume, mask: Volume | None = None, channels: Sequence[int] | None = None
) -> Histogram:
    """Return how often each value occurs.

    Counted as :class:`~voxpipe.core.histogram.Distribution` does: exactly for
    integers of up to 16 bits and wherever at most 2^18 different numbers occur, else in bins whose
    middle is below 10^-4 of each number as a rule. The first call reads every voxel once, in
    bounded memory; later ones, in this process or for the same content in another, read nothing.

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
    kept = None if channels is None else tuple(channels)
    key = (kept, *(version_key(v) for v in both))
    return _REMEMBERED.get_or(key, lambda: _loaded_or_computed(volume, mask, kept))


def has_histogram(volume: Volume, mask: Volume | None = None) -> bool:
    """Whether :func:`volume_histogram` of all channels would read no voxel."""
    both = [v for v in (volume, mask) if v is not None]
    if _REMEMBERED.get((None, *(version_key(v) for v in both))) is not None:
        return True
    file = _file([v.content_key for v in both], None)
    return file is not None and load_entry(file, _decoded) is not None


def _file(contents: Sequence[str], channels: tuple[int, ...] | None) -> Path | None:
    which = "" if channels is None else f"-channels{'.'.join(map(str, channels))}"
    name = f"{'-'.join(contents)}{which}.npy"
    return cache_directory() / "histograms" / name if all(contents) else None


def _loaded_or_computed(
    volume: Volume, mask: Volume | None, channels: tuple[int, ...] | None
) -> Histogram:
    both = [v for v in (volume, mask) if v is not None]
    contents = [v.content_key for v in both]
    return get_or_make(
        _file(contents, channels),
        _decoded,
        lambda: _compute(volume, mask, channels),
        _encoded,
        unchanged=lambda: [content_key_now(v) for v in both] == contents,
    )


def _compute(volume: Volume, mask: Volume | None, channels: tuple[int, ...] | None) -> Histogram:
    if volume.dtype.kind == "c":
        raise VolumeError(
            f"{volume.name} holds complex numbers, of which there is no histogram.",
            do="Store magnitude and phase, or the two parts, as channels of real numbers.",
        )
    counted = Distribution(_stored_type(volume))
    most = max(1, SLAB_VOXELS // volume.shape[0])
    for region in slabs(volume.spatial_shape, volume.chunks or (1, 1, 1), most):
        stored = volume.read(region).array
        if channels is not None:
            stored = stored[list(channels)]
        if mask is not None:
            stored = stored[:, (mask.read(region).array > 0).any(axis=0)]
        if not stored.size:
            continue
        if stored.dtype.kind == "f" and not np.isfinite(stored).all():
            raise VolumeError(
                f"{volume.name} holds NaN or infinite values, of which there is no histogram.",
                do="Give the numbers that the op needs.",
            )
        counted.add(stored)
    values, counts = counted.table()
    if not len(values):
        where = f" inside {mask.name}" if mask is not None else ""
        raise VolumeError(
            f"{volume.name} has no voxel{where} to take statistics of.",
            do="Give the numbers, or filter such cases out.",
        )
    slope, intercept = volume.header.slope, volume.header.intercept
    return Histogram(values, counts).mapped(lambda stored: stored * slope + intercept)


def _stored_type(volume: Volume) -> np.dtype[Any]:
    """Return the type of the voxels as they are stored, before slope and intercept."""
    return np.dtype(volume.read(Region((0, 0, 0), (1, 1, 1))).array.dtype)


def _decoded(content: bytes) -> Histogram | None:
    """Return what another process computed, None if it is something else."""
    read = np.load(io.BytesIO(content), allow_pickle=False)
    if read.ndim == 2 and len(read) == 2 and read.size and read.dtype == np.float64:
        return Histogram(read[0], read[1].astype(np.int64))
    return None


def _encoded(histogram: Histogram) -> bytes:
    packed = io.BytesIO()
    # Counts are exact in float64.
    np.save(packed, np.stack([histogram.values, histogram.counts.astype(np.float64)]))
    return packed.getvalue()
