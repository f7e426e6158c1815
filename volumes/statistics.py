"""Mean, spread and range of a whole volume, computed once and remembered.

The volume is read slab by slab, along its chunks, so the memory needed does not
grow with it. Results are kept per process, and for files also on disk, under a
key that changes when the file does.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Region
from ..core.errors import VolumeError
from .cache_directory import cache_directory, write_whole
from .volume import Volume

# One slab in float64 takes 32 MiB: well in memory, large enough to hide the Python loop.
SLAB_VOXELS = 4 * 1024**2
# An entry takes about a hundred bytes.
MOST_REMEMBERED = 4096


@dataclass(frozen=True)
class Statistics:
    """Numbers over all voxels and channels of one volume, as values."""

    mean: float
    """Arithmetic mean."""
    std: float
    """Population standard deviation."""
    minimum: float
    """Smallest value."""
    maximum: float
    """Largest value."""
    count: int
    """Number of voxels."""


_REMEMBERED: OrderedDict[tuple[Any, ...], Statistics] = OrderedDict()


def volume_statistics(volume: Volume) -> Statistics:
    """Return mean, population standard deviation, minimum, maximum and count of a volume.

    The first call reads every voxel once, in bounded memory; none at all if
    the volume comes from a manifest that has them. Later ones, in this
    process or for the same file in another, read nothing. A NaN among the voxels
    makes all of them NaN but the count.

    Parameters
    ----------
    volume
        Any volume of real numbers.

    Raises
    ------
    VolumeError
        The voxels are complex.

    Examples
    --------
    >>> volume_statistics(Volume(np.array([[[1.0, 2.0, 3.0, 6.0]]])))
    Statistics(mean=3.0, std=1.8708286933869707, minimum=1.0, maximum=6.0, count=4)
    """
    recorded: Statistics | None = volume.recorded_statistics
    if recorded is not None:
        return recorded
    key = (volume.token, volume.header.stamp)
    found = _REMEMBERED.get(key)
    if found is None:
        content = volume.content_key
        file = cache_directory() / "statistics" / f"{content}.json" if content else None
        found = (file and _load(file)) or _compute(volume)
        if file:
            _save(file, found)
    _REMEMBERED[key] = found
    while len(_REMEMBERED) > MOST_REMEMBERED:
        with suppress(KeyError):  # another thread may have been faster
            _REMEMBERED.popitem(last=False)
    return found


def slabs(shape: tuple[int, int, int], unit: tuple[int, int, int], most: int) -> Iterator[Region]:
    """Yield regions that cover ``shape``, whole units each, of at most ``most`` voxels.

    A unit larger than ``most`` is yielded alone. The first axis grows first: it is
    contiguous in a NIfTI file.

    Examples
    --------
    >>> list(slabs((4, 4, 2), (1, 2, 1), 8))
    [Region(0:4, 0:2, 0:1), Region(0:4, 2:4, 0:1), Region(0:4, 0:2, 1:2), Region(0:4, 2:4, 1:2)]
    """
    size = list(unit)
    for axis in range(3):
        room = most // (math.prod(size) // size[axis])
        size[axis] = min(shape[axis], max(size[axis], room // unit[axis] * unit[axis]))
    i, j, k = (range(0, n, s) for n, s in zip(shape, size, strict=True))
    whole = Region.of_shape(shape)
    for start in ((a, b, c) for c in k for b in j for a in i):
        yield Region(start, tuple(a + s for a, s in zip(start, size, strict=True))).intersect(whole)


def _compute(volume: Volume) -> Statistics:
    if volume.dtype.kind == "c":
        raise VolumeError(
            f"{volume.name} holds complex numbers, which have no minimum.",
            do="Normalize with a mean= and std= of your own, or store the magnitude.",
        )
    count, mean, squares, low, high = 0, 0.0, 0.0, math.inf, -math.inf
    most = max(1, SLAB_VOXELS // volume.shape[0])
    for region in slabs(volume.spatial_shape, volume.chunks or (1, 1, 1), most):
        n, m, s, a, b = _moments(volume.read(region).array)
        # Chan, Golub & LeVeque (1979): joins moments without losing digits.
        delta, total = m - mean, count + n
        mean += delta * n / total
        squares += s + delta * delta * count * n / total
        count, low, high = total, np.minimum(low, a), np.maximum(high, b)
    slope, intercept = volume.header.slope, volume.header.intercept
    ends = (slope * float(low) + intercept, slope * float(high) + intercept)
    return Statistics(
        mean=slope * mean + intercept,
        std=abs(slope) * math.sqrt(squares / count),
        minimum=float(np.minimum(*ends)),
        maximum=float(np.maximum(*ends)),
        count=count,
    )


def _moments(stored: NDArray[Any]) -> tuple[int, float, float, float, float]:
    """Return count, mean, sum of squared deviations, minimum and maximum."""
    wide = stored.astype(np.float64)
    low, high, mean = float(wide.min()), float(wide.max()), float(wide.mean())
    wide -= mean
    np.square(wide, out=wide)
    return wide.size, mean, float(wide.sum()), low, high


def _load(file: Path) -> Statistics | None:
    """Return what another process computed, None if there is nothing sound."""
    with suppress(OSError, ValueError, TypeError):
        return Statistics(**json.loads(file.read_text("utf-8")))
    return None


def _save(file: Path, statistics: Statistics) -> None:
    # Only saves time: a full or read-only disk must not stop anybody.
    with suppress(OSError):
        write_whole(file, json.dumps(asdict(statistics)).encode())
