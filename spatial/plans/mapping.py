"""Points, boxes and voxels through a plan, and the way back.

A matrix has an inverse of its own kind. A displacement has one too where it does not fold, but
not as control points: these are fitted, finely enough that a place comes back within a tolerance.
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
"""How far from where it came a place may come back, in voxels of the patch; a twentieth of a
voxel is a tenth of what nearest sampling decides by."""
_STEPS = 100
"""Steps of the iteration; each halves the error even of a field at four fifths of folding."""
_CLOSE = 1e-7
"""Where the iteration ends, in voxels: a tenth of what a coordinate is resolved to."""
_NEAR = 0.05
"""What is near enough for the middle of a patch, in voxels: it is rounded to one."""
_MOST_POINTS = 96
"""Control points per axis at most: 96^3 of them take 20 MB."""


def to_source(matrix: Floats, stages: Sequence[Stage], points: Floats) -> Floats:
    """Return where points (N, 3) of the output come from, (N, 3) in source voxels."""
    places = matrix[:3, :3] @ points.T + matrix[:3, 3:]
    sources, _ = pull_back_points(list(places), stages)
    return np.stack(sources, axis=-1)


def to_output(
    back: Floats, stages: Sequence[Stage], points: Floats
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return where points (N, 3) of the source go, and for which a displacement leads there."""
    # ``back`` is the 4x4 matrix to the output, displacements left out. A field that folds somewhere
    # is no hindrance to the points elsewhere.
    places, errors = _search(points.T, stages)
    return np.asarray((back[:3, :3] @ places + back[:3, 3:]).T), errors < _NEAR


def undo_displacements(goals: Floats, stages: Sequence[Stage]) -> Floats:
    """Return the places (3, N) that displacements lead to ``goals``; ValueError where they fold."""
    places, errors = _search(goals, stages)
    error = float(errors.max(initial=0.0))
    if error < _CLOSE:
        return places
    raise ValueError(
        f"a displacement folds: after {_STEPS} steps some place is still {error:.2g} voxels from "
        "where it should come back to"
    )


def _search(goals: Floats, stages: Sequence[Stage]) -> tuple[Floats, Floats]:
    """Return places (3, N) and how far from the goals (N) they lead, by fixed-point iteration."""
    places = goals.copy()
    for step in range(_STEPS + 1):
        ends, _ = pull_back_points(list(places), stages)
        gaps = goals - np.stack(ends)
        errors = np.abs(gaps).max(axis=0)
        if step == _STEPS or float(errors.max(initial=0.0)) < _CLOSE:
            break
        # Half a step after a while: a strong field can make whole ones go to and fro.
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
    # ValueError where a displacement folds, or too few control points are allowed for the
    # tolerance.
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
        # Half a voxel around the centres of the output is inside.
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
    """Return ``count`` different places from the first voxel of an axis to the last one."""
    # The centres of one voxel are one place, and a lattice without thickness seems folded.
    half = 0.5 if length == 1 else 0.0
    return np.linspace(-half, length - 1 + half, count)


def _refuse_folding(matrix: Floats, stages: Sequence[Stage], axes: Sequence[Floats]) -> None:
    """Raise ValueError where neighbours on a lattice change sides on their way to the source."""
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
    """Return how far points on a lattice of the output are from where their voxels come from."""
    grid = np.stack(np.meshgrid(*axes, indexing="ij"))
    points = grid.reshape(3, -1)
    goals = matrix[:3, :3] @ points + matrix[:3, 3:]
    offsets = back[:3, :3] @ (undo_displacements(goals, stages) - goals)
    return np.asarray(offsets.reshape(grid.shape))


def _coefficients(samples: Floats) -> Floats:
    """Return the control points of the cubic B-spline through samples (3, a, b, c)."""
    # Each axis is a tridiagonal system: a sample is (1, 4, 1) / 6 of the points around it, and
    # beyond the ends the last point repeats.
    result = samples
    for axis, size in enumerate(samples.shape[1:], start=1):
        system = (4 * np.eye(size) + np.eye(size, k=1) + np.eye(size, k=-1)) / 6
        system[0, 0] += 1 / 6
        system[-1, -1] += 1 / 6
        along = np.moveaxis(result, axis, 0)
        solution: Floats = np.asarray(np.linalg.solve(system, along.reshape(size, -1)))
        result = np.moveaxis(solution.reshape(along.shape), 0, axis)
    return np.ascontiguousarray(result)


# Boxes through a plan: what surely holds all that was inside, in a box again.
#
# A box is two corners in voxel coordinates, whose integers are voxel centres: the voxels ``a:b`` of
# a region fill the box from ``a - 0.5`` to ``b - 0.5``.


# How often the bound of a displacement is taken again, over the smaller box that it has led to.
_ROUNDS = 3
_CORNERS = np.array(list(itertools.product((0, 1), repeat=3)), dtype=np.float64)


def as_points(points: Any) -> Floats:
    """Return points as float64 (N, 3); ValueError for what are none."""
    return _as_rows("points are finite numbers of shape (N, 3)", points, 3)


def as_boxes(boxes: Any) -> Floats:
    """Return boxes as float64 (N, 6); ValueError for what are none."""
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
    """Return boxes (N, 6) of the source that hold what boxes of the output come from."""
    bounds = around(matrix, boxes)
    for stage in reversed(stages):
        if isinstance(stage, Displacement):
            # How far the two corners of the box around a displaced box may be from its own.
            moves = [stage.bounds_between(box[:3].tolist(), box[3:].tolist()) for box in bounds]
            bounds = bounds + np.array(moves).reshape(-1, 3, 2).swapaxes(1, 2).reshape(-1, 6)
    return bounds


def boxes_to_output(back: Floats, stages: Sequence[Stage], boxes: Floats) -> Floats:
    """Return boxes (N, 6) of the output that hold what lay in boxes of the source."""
    # ``back`` is the 4x4 matrix from the source to the output, displacements left out.
    bounds = boxes
    for stage in stages:
        if isinstance(stage, Displacement):
            bounds = np.array([_before(stage, box) for box in bounds]).reshape(-1, 6)
    return around(back, bounds)


def around(matrix: Floats, boxes: Floats) -> Floats:
    """Return the boxes around what a 4x4 matrix makes of the corners of boxes."""
    low, high = boxes[:, None, :3], boxes[:, None, 3:]
    corners = low + _CORNERS * (high - low)
    places = corners @ matrix[:3, :3].T + matrix[:3, 3]
    return np.concatenate([places.min(axis=1), places.max(axis=1)], axis=1)


def _before(stage: Displacement, box: Floats) -> Floats:
    """Return a box that holds all places that a displacement leads into ``box``."""
    moves: Any = stage.bounds
    bounds = box
    for _ in range(_ROUNDS):
        low, high = np.array(moves).T
        bounds = np.concatenate([box[:3] - high, box[3:] - low])
        # Every such place lies in here, so only the control points that reach here count.
        moves = stage.bounds_between(bounds[:3].tolist(), bounds[3:].tolist())
    return bounds


# Of a number. A header of float32 gives 0.49999998 mm for 0.5 (3e-8), a turned one three such
# errors; matrices of float64 add 1e-15.
_NOISE = 1e-6


def without_noise(voxels: float, size: float = 1.0) -> float:
    """Return a number of voxels with which rounding noise decides nothing."""
    # What lies a millionth of itself from a whole or a half number is that number: whoever rounds
    # it up, down or to the nearest gives the same for volumes whose headers differ in the last
    # digit. Every op that finds a size asks here. ``size`` is what a place was computed from, in
    # voxels, if that may be more than the place itself.
    half = round(2 * voxels) / 2
    return half if abs(voxels - half) <= _NOISE * max(1.0, size, abs(voxels)) else voxels


def whole_voxels(faces: Floats, shape: Sequence[int]) -> Region:
    """Return the voxels whose centres lie in a box (6,), or those nearest to a thin one."""
    # The ``shape`` of the grid says how far rounding may have led.
    limits = faces.tolist()
    start, stop, size = [], [], float(max(shape))
    for a, b in zip(limits[:3], limits[3:], strict=True):
        # Faces lie half way between voxels where whole ones are moved.
        first, last = math.ceil(without_noise(a, size)), math.floor(without_noise(b, size))
        # A face that runs through centres belongs to neither side more than to the other.
        if first > last:
            first = last = math.floor(without_noise((a + b) / 2, size) + 0.5)
        start.append(first)
        stop.append(last + 1)
    return Region(tuple(start), tuple(stop))
