"""Pull-back matrices: copies, source regions and boxes, downsampling and padding.

A matrix here is a pull-back, ``index_in = matrix @ index_out``, 3x4 or 4x4 float64. A coordinate is
``m0*i + m1*j + m2*k + t``, each of the four rounded to a multiple of 2^-24 voxel. Such sums are
exact in any order: float64 and integers find the same voxel and weight. Each summand is monotonic,
so the output box's corners give the exact extremes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import OrientedBox, Region
from ...core.affine3x4 import Affine3x4
from ...intensity.filters import reach

# Smoothing of a plan before downsampling, from its matrix alone.
#
# For output neighbours s source voxels apart, a Gaussian of ``(s - 1) / 2`` voxels is applied. This
# is the rule of scikit-image's ``resize`` (``anti_aliasing_sigma``) and MONAI's ``Resize``. The
# distances and directions are the singular values of the fused matrix and its left singular
# vectors. So a chain is smoothed once for its total effect, and a rotation alone is not smoothed.
#
# The Gaussian acts along the axes of the source. Directions are oblique to these if the output is
# turned and has unequal voxels. Then the smallest axis-aligned Gaussian is used that covers the
# rule's by its diagonal: nothing aliases, some detail across is lost.

# The same few questions come from the report of a sample, its read and its resampling, for each
# of its volumes. A batch of 100 samples of 4 volumes fits; an entry takes half a kilobyte.
_MEMORY_ENTRIES = 1024

Sigmas = tuple[float, float, float]
"""Standard deviation along each axis of the source, in its voxels."""


@lru_cache(_MEMORY_ENTRIES)
def sigmas(rows: Affine3x4) -> Sigmas:
    """Return how much to smooth along each axis of the source; a step of 4 voxels gives 1.5."""
    linear = np.reshape(rows, (3, 4))[:, :3]
    directions, steps, _ = np.linalg.svd(linear)
    widths = np.maximum(0.0, (steps - 1) / 2)
    covariance = (directions * widths**2) @ directions.T
    # A diagonal matrix minus this one is positive semidefinite if each entry is at least the sum of
    # the row's magnitudes (Gershgorin). Then smoothing suffices in every direction.
    i, j, k = np.sqrt(np.abs(covariance).sum(axis=1)).tolist()
    return (i, j, k)


# Reflection of coordinates outside the volume; other padding is clipping or a mask.
#
# It is half-sample symmetric: the mirror is the outer face of the last voxel, half a voxel beyond
# its centre. So the last voxel is repeated once.


def fold(values: Any, start: int, stop: int) -> NDArray[np.float64]:
    """Return coordinates reflected into ``start - 0.5 .. stop - 0.5``, float64."""
    face, length = start - 0.5, float(stop - start)
    away = np.abs(np.asarray(values, dtype=np.float64) - face)
    np.fmod(away, 2 * length, out=away)
    coordinates: NDArray[np.float64] = np.minimum(away, 2 * length - away) + face
    return coordinates


def _fold_interval(low: float, high: float, start: int, stop: int) -> tuple[float, float]:
    """Return the smallest interval that holds every reflected coordinate of ``low .. high``."""
    face, length = start - 0.5, stop - start
    ends = fold([low, high], start, stop)
    lowest, highest = float(ends.min()), float(ends.max())
    # The fold is monotonic between its turning points at the faces of the copies.
    first = int(np.ceil((low - face) / length))
    last = int(np.floor((high - face) / length))
    turns = {m % 2 for m in range(first, min(last, first + 1) + 1)}
    if 0 in turns:
        lowest = face
    if 1 in turns:
        highest = stop - 0.5
    return lowest, highest


Matrix = NDArray[np.float64]
"""A pull-back: output index to input index, 3x4 or 4x4 float64, homogeneous."""
Moves = tuple[tuple[float, float], ...]
"""Smallest and largest displacement per source axis, in voxels."""

# A plan that stays this close to whole voxels over its whole extent is a copy. In voxels and
# at the far corner, because an element-wise tolerance drifts with the length of the volume.
COPY_TOLERANCE = 1e-4
# A coordinate this close to a voxel centre needs no neighbour. Moving it by as much changes a
# value by 1e-6 of the range at most, a tenth of the accuracy that linear interpolation promises.
CENTRE_TOLERANCE = 1e-6
# How far beyond the last voxel centre a coordinate still clamps to it before it is fill.
REACH = 0.5 + CENTRE_TOLERANCE
# Steps of a coordinate in one voxel: its fraction has the 24 bits of a float32. Four roundings move
# a voxel by 1.2e-7 at most, a value by as much of the range along each axis.
GRAINS = 2.0**24
# Adding it rounds to whole numbers, half to even as np.rint, for values below 2^27 voxels.
_WHOLE = 1.5 * 2.0**52
# A flatter parallelepiped than this part of its edges' box has no safe inverse.
_FLAT = 1e-9


@lru_cache(_MEMORY_ENTRIES)
def whole_rows(rows: Affine3x4, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the plan as a signed permutation plus whole shift; None if it is not one."""
    i, j, k = shape
    lasts = max(i - 1, 0), max(j - 1, 0), max(k - 1, 0), 1
    whole: list[int] = []
    for number, last in zip(rows, lasts * 3, strict=True):
        # NaN and numbers beyond int64 are no whole voxels either.
        if not -(2.0**62) < number < 2.0**62:
            return None
        near = round(number)
        # Early exit for most rotations: such entries move a far corner by twice the tolerance.
        if abs(number - near) * last >= 4 * COPY_TOLERANCE:
            return None
        whole.append(near)
    linear = [[abs(number) for number in whole[start : start + 3]] for start in (0, 4, 8)]
    if any(sum(row) != 1 for row in linear) or any(
        sum(axis) != 1 for axis in zip(*linear, strict=True)
    ):
        return None
    off = [exact - near for exact, near in zip(rows, whole, strict=True)]
    low, high = extremes(off, shape)
    if max(map(abs, low + high)) >= COPY_TOLERANCE:
        return None
    return tuple(whole)


def extremes(
    rows: Sequence[float], shape: Sequence[int], moves: Moves = ()
) -> tuple[list[float], list[float]]:
    """Return the smallest and largest source coordinate on each axis, displacements included."""
    i, j, k = shape
    i, j, k = max(i - 1, 0), max(j - 1, 0), max(k - 1, 0)
    lows, highs = [], []
    for m0, m1, m2, t in (rows[:4], rows[4:8], rows[8:]):
        # Written out, because min, max and round() would take most of the time.
        a = ((m0 * i * GRAINS + _WHOLE) - _WHOLE) / GRAINS
        b = ((m1 * j * GRAINS + _WHOLE) - _WHOLE) / GRAINS
        c = ((m2 * k * GRAINS + _WHOLE) - _WHOLE) / GRAINS
        shift = ((t * GRAINS + _WHOLE) - _WHOLE) / GRAINS
        low_a, high_a = (a, 0.0) if a < 0.0 else (0.0, a)
        low_b, high_b = (b, 0.0) if b < 0.0 else (0.0, b)
        low_c, high_c = (c, 0.0) if c < 0.0 else (0.0, c)
        lows.append(((low_a + low_b) + shift) + low_c)
        highs.append(((high_a + high_b) + shift) + high_c)
    for axis, (low, high) in enumerate(moves):
        lows[axis] += low
        highs[axis] += high
    return lows, highs


def coordinate(
    row: NDArray[np.float64], i: NDArray[np.int64], j: NDArray[np.int64], k: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return one source coordinate of output voxels, a sum of multiples of 2^-24 voxel."""
    a, b, c, shift = (
        np.rint(part * GRAINS) / GRAINS for part in (row[0] * i, row[1] * j, row[2] * k, row[3])
    )
    result: NDArray[np.float64] = a + b + (c + shift)
    return result


@lru_cache(_MEMORY_ENTRIES)
def source_region(
    rows: Affine3x4,
    shape: tuple[int, ...],
    bounds: Region,
    mode: str,
    padding: str,
    smooths: bool = False,
    moves: Moves = (),
) -> Region:
    """Return exactly the source voxels inside ``bounds`` that resampling may touch."""
    # Padding begins at the faces of ``bounds``; ``moves`` are the smallest and largest displacement
    # per source axis, where there is one. Empty where every output voxel is fill.
    if bounds.is_empty or 0 in shape:
        return Region(bounds.start, bounds.start)
    whole = None if moves else whole_rows(rows, shape)
    lows, highs = extremes(rows if whole is None else whole, shape, moves)
    if whole is not None:
        mode = "nearest"
    starts, stops = _ranges(lows, highs, bounds, mode, padding)
    if not starts:
        return Region(bounds.start, bounds.start)
    if smooths:
        halo = list(map(reach, sigmas(rows)))
        starts = [max(a - r, b) for a, b, r in zip(starts, bounds.start, halo, strict=True)]
        stops = [min(a + r, b) for a, b, r in zip(stops, bounds.stop, halo, strict=True)]
    return Region(tuple(starts), tuple(stops))


# Distance of the furthest tap from a coordinate, in voxels, by mode; rounding included.
_TAP_REACH = {"nearest": 0.5, "linear": 1.0, "cubic": 2.0}
# Number of voxels inside the outermost one that taps at a face use.
_FACE_TAPS = {"nearest": 0, "linear": 1, "cubic": 2}


def unchanging_beyond(
    rows: Affine3x4, shape: tuple[int, int, int], bounds: Region, mode: str, halo: Sequence[int]
) -> tuple[int, int, int]:
    """Return how far from the output, on each axis, its values change no more, up to ``halo``."""
    # The distance at which every source axis has left the volume, halos of other axes included.
    matrix = np.array(rows, dtype=np.float64).reshape(3, 4)
    far, margin = list(halo), _TAP_REACH[mode] + 1
    for axis in range(3):
        first, last = -np.array(far), np.array(shape) - 1 + far
        first[axis] = last[axis] = 0
        ends = matrix[:, :3, None] * np.stack([first, last], axis=-1)[None]
        low = ends.min(axis=2).sum(axis=1) + matrix[:, 3]
        high = ends.max(axis=2).sum(axis=1) + matrix[:, 3]
        most = 0
        for d in np.flatnonzero(matrix[:, axis]):
            start, stop = bounds.start[d] - margin, bounds.stop[d] - 1 + margin
            # Extent of the output until a whole slice has left the volume.
            ways = [high[d] - start, stop - low[d]][:: 1 if matrix[d, axis] > 0 else -1]
            before, behind = np.array(ways) / abs(matrix[d, axis])
            most = max(most, before, behind - (shape[axis] - 1))
        far[axis] = min(far[axis], math.ceil(most))
    return (far[0], far[1], far[2])


# Prefetch, read and count share the cached box, and the results that the box caches.
@lru_cache(_MEMORY_ENTRIES)
def source_box(
    rows: Affine3x4,
    shape: tuple[int, int, int],
    bounds: Region,
    mode: str,
    padding: str,
    smooths: bool = False,
    moves: Moves = (),
) -> OrientedBox | None:
    """Return the oriented box that holds every tap of :func:`source_region`."""
    # None without a use: nothing is turned, no inverse exists, or reflection reads elsewhere.
    if not _turns(rows):
        return None
    if padding == "reflection":
        lows, highs = extremes(rows, shape, moves)
        ends = zip(lows, highs, bounds, strict=True)
        if any(low < a or high > b - 1 for low, high, (a, b) in ends):
            return None
    each = [_TAP_REACH[mode] + CENTRE_TOLERANCE] * 3
    # A coordinate beyond a face is clamped, with this many taps inside; taps of weight 0 count.
    inside = (_FACE_TAPS[mode],) * 3
    if smooths:
        halo = list(map(reach, sigmas(rows)))
        each = [far + more for far, more in zip(each, halo, strict=True)]
        i, j, k = (far + more for far, more in zip(inside, halo, strict=True))
        inside = (i, j, k)
    for axis, (low, high) in enumerate(moves):
        each[axis] += max(abs(low), abs(high))
    # Beyond the reach of taps, such voxels are fill or zero.
    is_near = padding == "constant" or (padding == "zeros" and mode != "cubic")
    beyond = float(max(inside)) if is_near else math.inf
    clamp = _faces(bounds, inside) if beyond and padding != "reflection" else None
    matrix = np.array(rows, dtype=np.float64).reshape(3, 4)
    matrix.setflags(write=False)
    return OrientedBox(matrix, shape, (each[0], each[1], each[2]), clamp, beyond=beyond)


@lru_cache(_MEMORY_ENTRIES)
def _faces(bounds: Region, inside: tuple[int, int, int]) -> Region:
    """Return ``bounds`` shrunk by ``inside`` voxels on either side; may be empty."""
    starts = [a + n for a, n in zip(bounds.start, inside, strict=True)]
    return Region(starts, [b - n for b, n in zip(bounds.stop, inside, strict=True)])


def _turns(rows: Affine3x4) -> bool:
    """Whether an output axis maps to several source axes, and the matrix is invertible."""
    a, b, c, _, d, e, f, _, g, h, i, _ = rows
    several = (a and (d or g)) or (d and g) or (b and (e or h)) or (e and h)
    if not (several or (c and (f or i)) or (f and i)):
        return False
    volume = abs(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g))
    # Hadamard: at most the product of the lengths, reached at right angles.
    most = math.hypot(a, b, c) * math.hypot(d, e, f) * math.hypot(g, h, i)
    return volume > _FLAT * most


def _ranges(
    lows: Sequence[float], highs: Sequence[float], bounds: Region, mode: str, padding: str
) -> tuple[list[int], list[int]]:
    """Return the voxels that coordinates touch, per axis half open; nothing if all are fill."""
    starts, stops = [], []
    for low, high, start, stop in zip(lows, highs, bounds.start, bounds.stop, strict=True):
        first, last = start, stop - 1
        if padding == "zeros":
            far = _TAP_REACH[mode]
            beyond = high <= first - far or low >= last + far
            if beyond if mode != "nearest" else round(high) < first or round(low) > last:
                return [], []
        if padding == "constant" and (high < first - REACH or low > last + REACH):
            return [], []
        if mode == "cubic":
            first, last = _cubic_range(low, high, start, stop, padding)
        else:
            if padding == "reflection":
                low, high = _fold_interval(low, high, start, stop)
            low, high = min(max(low, first), last), min(max(high, first), last)
            if mode == "nearest":
                first, last = round(low), round(high) + 1
            else:
                first = math.floor(low + CENTRE_TOLERANCE)
                last = math.ceil(high - CENTRE_TOLERANCE) + 1
        starts.append(first)
        stops.append(last)
    return starts, stops


def _cubic_range(low: float, high: float, start: int, stop: int, padding: str) -> tuple[int, int]:
    """Return the voxels of one axis that four taps touch; padding applies to each tap."""
    first, last = start, stop - 1
    if padding in ("border", "constant"):
        low, high = (min(max(v, first), last) for v in (low, high))
    low, high = math.floor(low + CENTRE_TOLERANCE) - 1, math.ceil(high - CENTRE_TOLERANCE) + 1
    if padding == "reflection":
        low, high = _fold_interval(low, high, start, stop)
        low, high = math.floor(low), math.ceil(high)
    return min(max(int(low), first), last), min(max(int(high), first), last) + 1
