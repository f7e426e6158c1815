"""Boxes through a plan: what surely holds all that was inside, in a box again.

A box is two corners in voxel coordinates, whose integers are voxel centres: the voxels ``a:b`` of
a region fill the box from ``a - 0.5`` to ``b - 0.5``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from .stages import Displacement, Stage

Floats = NDArray[np.float64]

# How often the bound of a displacement is taken again, over the smaller box that it has led to.
_ROUNDS = 3
_CORNERS = np.array(list(itertools.product((0, 1), repeat=3)), dtype=np.float64)


def as_boxes(boxes: Any) -> Floats:
    """Return boxes as float64 (N, 6).

    Raises
    ------
    ValueError
        They have another shape, are not finite, or a corner comes before the first one.
    """
    array = np.asarray(boxes, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 6 or not np.isfinite(array).all():
        msg = (
            "boxes are finite numbers of shape (N, 6), the lowest corner (i, j, k) and the highest "
            f"one, got shape {array.shape}"
        )
        raise ValueError(msg)
    if (array[:, :3] > array[:, 3:]).any():
        first = array[(array[:, :3] > array[:, 3:]).any(axis=1)][0]
        msg = f"a box begins at its lowest corner, got {first.tolist()}"
        raise ValueError(msg)
    return array


def boxes_to_source(matrix: Floats, stages: Sequence[Stage], boxes: Floats) -> Floats:
    """Return boxes (N, 6) of the source that hold what boxes of the output come from."""
    found = around(matrix, boxes)
    for stage in reversed(stages):
        if isinstance(stage, Displacement):
            found = found + np.array([_moves(stage, box) for box in found]).reshape(-1, 6)
    return found


def boxes_to_output(back: Floats, stages: Sequence[Stage], boxes: Floats) -> Floats:
    """Return boxes (N, 6) of the output that hold what lay in boxes of the source.

    ``back`` is the 4x4 matrix from the source to the output, displacements left out.
    """
    found = boxes
    for stage in stages:
        if isinstance(stage, Displacement):
            found = np.array([_before(stage, box) for box in found]).reshape(-1, 6)
    return around(back, found)


def around(matrix: Floats, boxes: Floats) -> Floats:
    """Return the boxes around what a 4x4 matrix makes of the corners of boxes."""
    low, high = boxes[:, None, :3], boxes[:, None, 3:]
    corners = low + _CORNERS * (high - low)
    moved = corners @ matrix[:3, :3].T + matrix[:3, 3]
    return np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)


def _moves(stage: Displacement, box: Floats) -> list[float]:
    """Return how far the two corners of the box around a displaced box may be from its own."""
    moves = stage.bounds_between(box[:3].tolist(), box[3:].tolist())
    return [low for low, _ in moves] + [high for _, high in moves]


def _before(stage: Displacement, box: Floats) -> Floats:
    """Return a box that holds all places that a displacement leads into ``box``."""
    moves: Any = stage.bounds
    found = box
    for _ in range(_ROUNDS):
        low, high = np.array(moves).T
        found = np.concatenate([box[:3] - high, box[3:] - low])
        # Every such place lies in here, so only the control points that reach here count.
        moves = stage.bounds_between(found[:3].tolist(), found[3:].tolist())
    return found


# Of a number. A header of float32 gives 0.49999998 mm for 0.5 (3e-8), a turned one three such
# errors; matrices of float64 add 1e-15.
_NOISE = 1e-6


def without_noise(voxels: float, size: float = 1.0) -> float:
    """Return a number of voxels with which rounding noise decides nothing.

    What lies a millionth of itself from a whole or a half number is that number: whoever rounds
    it up, down or to the nearest gives the same for volumes whose headers differ in the last
    digit. Every op that finds a size asks here.

    Parameters
    ----------
    voxels
        An extent, or a place.
    size
        What a place was computed from, in voxels, if that may be more than the place itself.

    Examples
    --------
    >>> round(without_noise(50.5000012)), round(50.5000012)
    (50, 51)
    """
    half = round(2 * voxels) / 2
    return half if abs(voxels - half) <= _NOISE * max(1.0, size, abs(voxels)) else voxels


def whole_voxels(faces: Floats, shape: Sequence[int]) -> Region:
    """Return the voxels whose centres lie in a box (6,), or those nearest to a thin one.

    Parameters
    ----------
    faces
        Its lowest and its highest corner.
    shape
        Of the grid in which it was found, which says how far rounding may have led.
    """
    found = faces.tolist()
    start, stop, size = [], [], float(max(shape))
    for a, b in zip(found[:3], found[3:], strict=True):
        # Faces lie half way between voxels where whole ones are moved.
        first, last = math.ceil(without_noise(a, size)), math.floor(without_noise(b, size))
        # A face that runs through centres belongs to neither side more than to the other.
        if first > last:
            first = last = math.floor(without_noise((a + b) / 2, size) + 0.5)
        start.append(first)
        stop.append(last + 1)
    return Region(tuple(start), tuple(stop))
