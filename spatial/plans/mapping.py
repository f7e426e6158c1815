"""Points, boxes and voxels through a plan, and back.

The inverse of a matrix is a matrix. The inverse of a displacement without folds is fitted by
control points, until places come back within a tolerance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from .pull_back import Moves
from .stages import Clip, Displacement, Stage, pull_back_points

Floats = NDArray[np.float64]

TOLERANCE = 0.05
"""Largest error of a place that comes back, in voxels: a tenth of nearest sampling's half."""
_STEPS = 100
"""Steps of the iteration; each halves the error even of a field at four fifths of folding."""
_CLOSE = 1e-7
"""End of the iteration, in voxels: a tenth of the resolution of coordinates."""
_NEAR = 0.05
"""Accuracy for the middle of a patch, in voxels, before it is rounded."""
_MOST_POINTS = 96
"""Control points per axis at most: 96^3 of them take 20 MB."""


def to_source(matrix: Floats, stages: Sequence[Stage], points: Floats) -> Floats:
    """Return the source places (N, 3), in voxels, of points (N, 3) of the output."""
    places = matrix[:3, :3] @ points.T + matrix[:3, 3:]
    sources, _ = pull_back_points(list(places), stages)
    return np.stack(sources, axis=-1)


def to_output(
    back: Floats, stages: Sequence[Stage], points: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the output places of source points (N, 3), and whether each was found."""
    # ``back`` is the 4x4 matrix to the output, without displacements.
    places, errors = _search(points.T, stages)
    return np.asarray((back[:3, :3] @ places + back[:3, 3:]).T), errors < _NEAR


def undo_displacements(goals: Floats, stages: Sequence[Stage]) -> Floats:
    """Return the places (3, N) that are displaced to ``goals``; ValueError at folds."""
    places, errors = _search(goals, stages)
    error = float(errors.max(initial=0.0))
    if error < _CLOSE:
        return places
    msg = f"a displacement folds: after {_STEPS} steps some place is still {error:.2g} voxels from "
    raise ValueError(f"{msg}where it should come back to")


def _search(goals: Floats, stages: Sequence[Stage]) -> tuple[Floats, Floats]:
    """Return places (3, N) and their errors (N), by fixed-point iteration."""
    places = goals.copy()
    for step in range(_STEPS + 1):
        ends, _ = pull_back_points(list(places), stages)
        gaps = goals - np.stack(ends)
        errors = np.abs(gaps).max(axis=0)
        if step == _STEPS or float(errors.max(initial=0.0)) < _CLOSE:
            break
        # Half steps after a while: strong fields may oscillate with whole ones.
        places += gaps if step < _STEPS // 2 else gaps / 2
    return places, errors


def field_back(
    matrix: Floats,
    back: Floats,
    shape: Sequence[int],
    stages: Sequence[Stage],
    moves: Moves,
    tolerance: float,
) -> Displacement:
    """Return the displacement that undoes those of a plan, in voxels of its output."""
    # Raises ValueError for folds, and if the tolerance needs too many control points.
    reach = np.abs(back[:3, :3]) @ [max(abs(low), abs(high)) for low, high in moves]
    lows = -1.0 - np.ceil(reach)
    highs = np.array(shape) + np.ceil(reach)
    counts = _first_counts(matrix, stages, highs - lows)
    _refuse_folding(matrix, stages, [_across(n, c) for n, c in zip(shape, counts, strict=True)])
    while True:
        axes = [np.linspace(a, b, n) for a, b, n in zip(lows, highs, counts, strict=True)]
        control = _coefficients(_missing(matrix, back, stages, axes))
        spacing = [(b - a) / (n - 1) for a, b, n in zip(lows, highs, counts, strict=True)]
        to_control = np.diag([*(1 / h for h in spacing), 1.0])
        to_control[:3, 3] = [-a / h for a, h in zip(lows, spacing, strict=True)]
        field = Displacement(control, to_control)
        # Between the points the fit is worst.
        middles = [(axis[:-1] + axis[1:]) / 2 for axis in axes]
        grid = np.meshgrid(*middles, indexing="ij")
        target = _missing(matrix, back, stages, middles)
        last = np.array(shape).reshape(3, 1, 1, 1) - 0.5
        inside = np.all((grid + target > -0.5) & (grid + target < last), axis=0)
        error = float(np.abs(field.at_places(grid) - target)[:, inside].max())
        if error <= tolerance:
            return field
        if max(counts) == _MOST_POINTS:
            raise ValueError(
                f"the way back of this displacement is {error:.2g} voxels off with "
                f"{_MOST_POINTS} control points an axis; allow it by tolerance={error:.2g}, "
                "or take the inverse of smaller patches"
            )
        counts = [min(2 * n - 1, _MOST_POINTS) for n in counts]


def _first_counts(matrix: Floats, stages: Sequence[Stage], extent: Floats) -> list[int]:
    """Return two points for each of the displacements' own, per axis, but at least four."""
    rates = np.zeros(3)
    for stage in stages:
        if not isinstance(stage, Clip):
            cells = stage.matrix[:3, :3] @ matrix[:3, :3]
            rates = np.maximum(rates, np.linalg.norm(cells, axis=0))
    return [
        min(max(math.ceil(2 * rate * length) + 1, 4), _MOST_POINTS)
        for rate, length in zip(rates.tolist(), extent.tolist(), strict=True)
    ]


def _across(length: int, count: int) -> Floats:
    """Return ``count`` distinct places from the first voxel of an axis to the last."""
    # One voxel has one centre, and a lattice without thickness would seem folded.
    half = 0.5 if length == 1 else 0.0
    return np.linspace(-half, length - 1 + half, count)


def _refuse_folding(matrix: Floats, stages: Sequence[Stage], axes: Sequence[Floats]) -> None:
    """Raise ValueError if neighbours on a lattice change sides in the source."""
    grid = np.stack(np.meshgrid(*axes, indexing="ij"))
    points = to_source(matrix, stages, grid.reshape(3, -1).T).T.reshape(grid.shape)
    corner = points[:, :-1, :-1, :-1]
    sides = [points[:, 1:, :-1, :-1], points[:, :-1, 1:, :-1], points[:, :-1, :-1, 1:]]
    edges = np.stack([side - corner for side in sides], axis=-1)
    volumes = np.linalg.det(np.moveaxis(edges, 0, -2)) * np.linalg.det(matrix[:3, :3])
    if volumes.size and volumes.min() <= 0:
        raise ValueError(
            f"a displacement folds: it turns {np.mean(volumes <= 0):.1%} of the output inside out, "
            "and what folds has no way back"
        )


def _missing(
    matrix: Floats, back: Floats, stages: Sequence[Stage], axes: Sequence[Floats]
) -> Floats:
    """Return the offset of points on an output lattice to their undisplaced voxels."""
    grid = np.stack(np.meshgrid(*axes, indexing="ij"))
    points = grid.reshape(3, -1)
    goals = matrix[:3, :3] @ points + matrix[:3, 3:]
    offsets = back[:3, :3] @ (undo_displacements(goals, stages) - goals)
    return np.asarray(offsets.reshape(grid.shape))


def _coefficients(samples: Floats) -> Floats:
    """Return the control points of the cubic B-spline through samples (3, a, b, c)."""
    # A sample is (1, 4, 1) / 6 of the points around it; beyond the ends the last point repeats.
    result = samples
    for axis, size in enumerate(samples.shape[1:], start=1):
        system = (4 * np.eye(size) + np.eye(size, k=1) + np.eye(size, k=-1)) / 6
        system[0, 0] += 1 / 6
        system[-1, -1] += 1 / 6
        along = np.moveaxis(result, axis, 0)
        solution: Floats = np.asarray(np.linalg.solve(system, along.reshape(size, -1)))
        result = np.moveaxis(solution.reshape(along.shape), 0, axis)
    return np.ascontiguousarray(result)


# Boxes through a plan: each result is a box that contains the image of the input.
#
# A box is two corners in voxel coordinates, whose integers are voxel centres. The voxels ``a:b`` of
# a region fill the box from ``a - 0.5`` to ``b - 0.5``.


# Number of refinements of a displacement's bound over the box from the last one.
_ROUNDS = 3
_CORNERS = np.array(list(itertools.product((0, 1), repeat=3)), dtype=np.float64)


def as_points(points: Any) -> Floats:
    """Return points as float64 (N, 3); ValueError for other values."""
    return _as_rows("points are finite numbers of shape (N, 3)", points, 3)


def as_boxes(boxes: Any) -> Floats:
    """Return boxes as float64 (N, 6); ValueError for other values."""
    what = "boxes are finite numbers of shape (N, 6), the lowest corner and the highest one"
    array = _as_rows(what, boxes, 6, "shape ")
    if (wrong := (array[:, :3] > array[:, 3:]).any(axis=1)).any():
        raise ValueError(f"a box begins at its lowest corner, got {array[wrong][0].tolist()}")
    return array


def _as_rows(what: str, rows: Any, length: int, got: str = "") -> Floats:
    array = np.asarray(rows, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != length or not np.isfinite(array).all():
        is_shape = array.shape[1:] == (length,)
        actual = "NaN or infinity among them" if is_shape else f"{got}{array.shape}"
        raise ValueError(f"{what}, got {actual}")
    return array


def boxes_to_source(matrix: Floats, stages: Sequence[Stage], boxes: Floats) -> Floats:
    """Return boxes (N, 6) of the source that contain the sources of output boxes."""
    bounds = around(matrix, boxes)
    for stage in reversed(stages):
        if isinstance(stage, Displacement):
            moves = [stage.bounds_between(box[:3].tolist(), box[3:].tolist()) for box in bounds]
            bounds = bounds + np.array(moves).reshape(-1, 3, 2).swapaxes(1, 2).reshape(-1, 6)
    return bounds


def boxes_to_output(back: Floats, stages: Sequence[Stage], boxes: Floats) -> Floats:
    """Return boxes (N, 6) of the output that contain the images of source boxes."""
    # ``back`` is the 4x4 matrix from the source to the output, without displacements.
    bounds = boxes
    for stage in stages:
        if isinstance(stage, Displacement):
            bounds = np.array([_before(stage, box) for box in bounds]).reshape(-1, 6)
    return around(back, bounds)


def around(matrix: Floats, boxes: Floats) -> Floats:
    """Return the bounding boxes of the boxes' corners, mapped by a 4x4 matrix."""
    low, high = boxes[:, None, :3], boxes[:, None, 3:]
    corners = low + _CORNERS * (high - low)
    places = corners @ matrix[:3, :3].T + matrix[:3, 3]
    return np.concatenate([places.min(axis=1), places.max(axis=1)], axis=1)


def _before(stage: Displacement, box: Floats) -> Floats:
    """Return a box of all places that a displacement moves into ``box``."""
    moves: Any = stage.bounds
    bounds = box
    for _ in range(_ROUNDS):
        low, high = np.array(moves).T
        bounds = np.concatenate([box[:3] - high, box[3:] - low])
        # All such places are in this box, so only control points that reach it count.
        moves = stage.bounds_between(bounds[:3].tolist(), bounds[3:].tolist())
    return bounds


# Relative rounding noise: a float32 header gives 3e-8, a turned one three such errors.
_NOISE = 1e-6


def without_noise(voxels: float, size: float = 1.0) -> float:
    """Return a number of voxels without rounding noise."""
    # Numbers within a millionth of a whole or half number become that number. So rounding gives
    # equal results for volumes whose headers differ in the last digit. All ops that compute a size
    # use it. ``size`` is the magnitude of the inputs in voxels, if larger than the result.
    half = round(2 * voxels) / 2
    return half if abs(voxels - half) <= _NOISE * max(1.0, size, abs(voxels)) else voxels


def whole_voxels(faces: Floats, shape: Sequence[int]) -> Region:
    """Return the voxels whose centres are in a box (6,), or the nearest of a thin one."""
    # The ``shape`` of the grid bounds the rounding.
    limits = faces.tolist()
    start, stop, size = [], [], float(max(shape))
    for a, b in zip(limits[:3], limits[3:], strict=True):
        first, last = math.ceil(without_noise(a, size)), math.floor(without_noise(b, size))
        # A face through centres belongs to neither side.
        if first > last:
            first = last = math.floor(without_noise((a + b) / 2, size) + 0.5)
        start.append(first)
        stop.append(last + 1)
    return Region(tuple(start), tuple(stop))
