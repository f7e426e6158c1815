"""Boxes through a plan: what surely holds all that was inside, in a box again.

A box is two corners in voxel coordinates, whose integers are voxel centres: the voxels ``a:b`` of
a region fill the box from ``a - 0.5`` to ``b - 0.5``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .displacement import Displacement

if TYPE_CHECKING:
    from .plan import SpatialPlan

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


def to_source(plan: SpatialPlan, boxes: Floats) -> Floats:
    """Return boxes (N, 6) of the source that hold what boxes of the output come from."""
    found = around(plan.matrix, boxes)
    for stage in reversed(plan.stages):
        if isinstance(stage, Displacement):
            found = found + np.array([_moves(stage, box) for box in found]).reshape(-1, 6)
    return found


def to_output(plan: SpatialPlan, boxes: Floats) -> Floats:
    """Return boxes (N, 6) of the output that hold what lay in boxes of the source.

    Raises
    ------
    ValueError
        The plan has no volume.
    """
    found = boxes
    for stage in plan.stages:
        if isinstance(stage, Displacement):
            found = np.array([_before(stage, box) for box in found]).reshape(-1, 6)
    return around(plan.to_output, found)


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
