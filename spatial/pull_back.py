"""Which source voxels an output grid needs: pure arithmetic on a matrix and a shape.

A matrix here is a pull-back, ``index_in = matrix @ index_out``, 3x4 or 4x4 float64.
The resampler computes a coordinate as ``((m0*i + m1*j) + t) + m2*k``. Each of these
operations is monotonic in floating point too, so the same expression at the corners
of the output box gives the exact extremes of what the resampler will see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core import OrientedBox, Region
from .padding import fold_interval
from .policy import Policy

Matrix = NDArray[np.float64]
"""A pull-back: output index to input index, 3x4 or 4x4 float64, homogeneous."""

# A plan that stays this close to whole voxels over its whole extent is a copy. In voxels and
# at the far corner, because an element-wise tolerance drifts with the length of the volume.
COPY_TOLERANCE = 1e-4
# A coordinate this close to a voxel centre needs no neighbour. Moving it by as much changes a
# value by 1e-6 of the range at most, a tenth of the accuracy that linear interpolation promises.
CENTRE_TOLERANCE = 1e-6
# How far beyond the last voxel centre a coordinate still clamps to it before it is fill.
REACH = 0.5 + CENTRE_TOLERANCE


def whole_voxel_matrix(matrix: Matrix, shape: Sequence[int]) -> NDArray[np.int64] | None:
    """Return the plan as a signed permutation plus whole shift, or None if it is not one.

    Parameters
    ----------
    matrix
        Pull-back, 3x4 or 4x4 float64.
    shape
        Shape (I, J, K) of the output.

    Returns
    -------
    3x4 int64, or None where some output voxel lies ``COPY_TOLERANCE`` voxels or more off.

    Examples
    --------
    >>> nearly = np.eye(4) * [1.0009, 1, 1, 1]
    >>> whole_voxel_matrix(nearly, (1990, 4, 4)) is None
    True
    >>> whole_voxel_matrix(np.eye(4), (1990, 4, 4)).tolist()
    [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    """
    # Plain floats: the same IEEE operations as on arrays, at a tenth of the time for so few.
    exact = np.asarray(matrix, dtype=np.float64)[:3].tolist()
    # NaN and numbers beyond int64 are no whole voxels either.
    if not all(-(2.0**62) < number < 2.0**62 for row in exact for number in row):
        return None
    whole = [[round(number) for number in row] for row in exact]
    turned = [[abs(number) for number in row[:3]] for row in whole]
    if any(sum(row) != 1 for row in turned) or any(
        sum(axis) != 1 for axis in zip(*turned, strict=True)
    ):
        return None
    pairs = zip(exact, whole, strict=True)
    off = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
    low, high = _extremes(off, shape)
    if max(map(abs, low + high)) >= COPY_TOLERANCE:
        return None
    return np.array(whole, dtype=np.int64)


def extremes(matrix: Matrix, shape: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the smallest and largest source coordinate on each axis.

    Examples
    --------
    >>> extremes(np.diag([-1.0, 2.0, 1.0, 1.0]), (3, 3, 1))
    ([-2.0, 0.0, 0.0], [0.0, 4.0, 0.0])
    """
    return _extremes(np.asarray(matrix, dtype=np.float64)[:3].tolist(), shape)


def _extremes(
    rows: Sequence[Sequence[float]], shape: Sequence[int]
) -> tuple[list[float], list[float]]:
    lows, highs = [], []
    last_i, last_j, last_k = (max(n - 1, 0) for n in shape)
    for m0, m1, m2, shift in rows:
        i, j, k = m0 * last_i, m1 * last_j, m2 * last_k
        lows.append(((min(i, 0.0) + min(j, 0.0)) + shift) + min(k, 0.0))
        highs.append(((max(i, 0.0) + max(j, 0.0)) + shift) + max(k, 0.0))
    return lows, highs


def coordinate(
    row: NDArray[np.float64], i: NDArray[np.int64], j: NDArray[np.int64], k: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return one source coordinate of output voxels, in the one order of operations."""
    result: NDArray[np.float64] = ((row[0] * i + row[1] * j) + row[3]) + row[2] * k
    return result


def source_region(
    matrix: Matrix,
    shape: Sequence[int],
    bounds: Region,
    policy: Policy,
    moves: Sequence[tuple[float, float]] = (),
) -> Region:
    """Return exactly the source voxels that resampling may touch.

    Parameters
    ----------
    matrix
        Pull-back from output index to source index.
    shape
        Shape (I, J, K) of the output.
    bounds
        The voxels that count as volume, in source indices; padding begins at its faces.
    policy
        Interpolation and padding.
    moves
        Smallest and largest displacement per source axis, where there is one.

    Returns
    -------
    A region inside ``bounds``; empty where every output voxel is fill.

    Examples
    --------
    >>> shift = np.eye(4)
    >>> shift[0, 3] = 2.5
    >>> source_region(shift, (4, 4, 4), Region.of_shape((9, 9, 9)), Policy("linear"))
    Region(2:7, 0:4, 0:4)
    """
    nothing = Region(bounds.start, bounds.start)
    if bounds.is_empty or 0 in shape:
        return nothing
    whole = None if moves else whole_voxel_matrix(matrix, shape)
    lows, highs = extremes(matrix if whole is None else whole.astype(np.float64), shape)
    if moves:
        lows = [low + move for low, (move, _) in zip(lows, moves, strict=True)]
        highs = [high + move for high, (_, move) in zip(highs, moves, strict=True)]
    mode = policy.mode if whole is None else "nearest"
    ranges = [
        _range(low, high, a, b, mode, policy.padding)
        for low, high, (a, b) in zip(lows, highs, bounds, strict=True)
    ]
    if None in ranges:
        return nothing
    found = [r for r in ranges if r is not None]
    return Region(tuple(a for a, _ in found), tuple(b for _, b in found))


# How far from a coordinate the furthest tap lies, in voxels, by mode; rounding included.
_TAP_REACH = {"nearest": 0.5, "linear": 1.0, "cubic": 2.0}


def source_box(
    matrix: Matrix,
    shape: Sequence[int],
    bounds: Region,
    policy: Policy,
    moves: Sequence[tuple[float, float]] = (),
) -> OrientedBox | None:
    """Return the oriented box that holds every tap of :func:`source_region`.

    None where there is no use in it: the plan turns nothing, so that region and box are
    one; the matrix cannot be inverted; or reflection takes taps from elsewhere.

    Parameters
    ----------
    matrix, shape, bounds, policy, moves
        As for :func:`source_region`.

    Examples
    --------
    >>> source_box(np.eye(4), (4, 4, 4), Region.of_shape((9, 9, 9)), Policy("linear")) is None
    True
    """
    rows = np.asarray(matrix, dtype=np.float64)[:3]
    turn = rows[:, :3]
    if not (np.count_nonzero(turn, axis=0) > 1).any() or np.linalg.matrix_rank(turn) < 3:
        return None
    if policy.padding == "reflection" and _leaves(rows, shape, bounds, moves):
        return None
    reach = [_TAP_REACH[policy.mode]] * 3
    for axis, (low, high) in enumerate(moves):
        reach[axis] += max(abs(low), abs(high))
    clamp = bounds if policy.padding == "border" else None
    halo = (reach[0], reach[1], reach[2])
    return OrientedBox(rows, (shape[0], shape[1], shape[2]), halo, clamp)


def _leaves(
    matrix: Matrix, shape: Sequence[int], bounds: Region, moves: Sequence[tuple[float, float]]
) -> bool:
    """Whether some coordinate lies outside ``bounds``."""
    lows, highs = extremes(matrix, shape)
    for axis, (low, high) in enumerate(moves):
        lows[axis], highs[axis] = lows[axis] + low, highs[axis] + high
    return any(
        low < a or high > b - 1 for low, high, (a, b) in zip(lows, highs, bounds, strict=True)
    )


def _range(
    low: float, high: float, start: int, stop: int, mode: str, padding: str
) -> tuple[int, int] | None:
    """Return the voxels of one axis that coordinates ``low`` to ``high`` touch, half open."""
    first, last = start, stop - 1
    if padding == "zeros" and _is_all_zero(low, high, first, last, mode):
        return None
    if padding == "constant" and (high < first - REACH or low > last + REACH):
        return None
    if mode == "cubic":
        return _cubic_range(low, high, start, stop, padding)
    if padding == "reflection":
        low, high = fold_interval(low, high, start, stop)
    low, high = (min(max(v, first), last) for v in (low, high))
    if mode == "nearest":
        return round(low), round(high) + 1
    return math.floor(low + CENTRE_TOLERANCE), math.ceil(high - CENTRE_TOLERANCE) + 1


def _cubic_range(low: float, high: float, start: int, stop: int, padding: str) -> tuple[int, int]:
    """Return the voxels of one axis that four taps touch: padding is a rule for taps here."""
    first, last = start, stop - 1
    if padding in ("border", "constant"):
        low, high = (min(max(v, first), last) for v in (low, high))
    low, high = math.floor(low + CENTRE_TOLERANCE) - 1, math.ceil(high - CENTRE_TOLERANCE) + 1
    if padding == "reflection":
        low, high = fold_interval(low, high, start, stop)
        low, high = math.floor(low), math.ceil(high)
    return min(max(int(low), first), last), min(max(int(high), first), last) + 1


def _is_all_zero(low: float, high: float, first: int, last: int, mode: str) -> bool:
    if mode == "nearest":
        return round(high) < first or round(low) > last
    if mode == "cubic":
        return high <= first - 2 or low >= last + 2
    return high <= first - 1 or low >= last + 1
