"""Boxes of the source, in a plan's output: which voxels of it lie inside."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Region
from .plan import SpatialPlan

# Faces lie half way between voxels where whole ones are moved; elsewhere rounding decides nothing.
_ROUNDING = 1e-6


def box_to_output(plan: SpatialPlan, box: Region, grid: Grid | None = None) -> Region:
    """Return the smallest box of the output with every voxel that lies in a box of the source.

    The voxels of a copy are those of the box. Of what is turned or displaced it is the box
    around; a displacement counts with the furthest that it may move a voxel. A box so
    thin that no voxel centre lies in it gives the nearest voxels. The result may hang
    over the output's edges.

    Parameters
    ----------
    plan
        Any plan.
    box
        Voxels of ``grid``, not empty.
    grid
        Where the box is from, if not the source of the plan; the same places in the world.

    Examples
    --------
    >>> from voxpipe.core import Grid
    >>> plan = SpatialPlan.identity(Grid((9, 9, 9), np.eye(4))).crop((2, 2, 2), (5, 5, 5))
    >>> box_to_output(plan, Region((3, 0, 4), (6, 9, 5)))
    Region(1:4, -2:7, 2:3)
    """
    lows, highs = _faces(box, np.eye(4) if grid is None else _across(grid, plan.source))
    for axis, (least, most) in enumerate(plan.moves):
        lows[axis], highs[axis] = lows[axis] - most, highs[axis] - least
    low, high = _moved(plan.to_output, lows, highs)
    start, stop = [], []
    for a, b in zip(low, high, strict=True):
        first, last = math.ceil(a - _ROUNDING), math.floor(b + _ROUNDING)
        # A face that runs through centres belongs to neither side more than to the other.
        if first > last:
            first = last = math.floor((a + b) / 2 + 0.5)
        start.append(first)
        stop.append(last + 1)
    return Region(tuple(start), tuple(stop))


def _faces(box: Region, across: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    """Return the outer faces of a box on another grid, or the box around them."""
    lows = [a - 0.5 for a in box.start]
    return _moved(across, lows, [b - 0.5 for b in box.stop])


def _moved(
    matrix: NDArray[np.float64], lows: Sequence[float], highs: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return the extremes of where ``matrix`` leads from a box."""
    shifted = matrix[:3].copy()
    shifted[:, 3] += matrix[:3, :3] @ np.array(lows)
    sizes = [high - low for low, high in zip(lows, highs, strict=True)]
    parts = shifted[:, :3] * np.array(sizes)
    low = shifted[:, 3] + np.minimum(parts, 0).sum(axis=1)
    high = shifted[:, 3] + np.maximum(parts, 0).sum(axis=1)
    return low.tolist(), high.tolist()


def _across(grid: Grid, source: Grid) -> NDArray[np.float64]:
    """Return the matrix from one grid to another; the identity where both are one grid."""
    if grid.shape == source.shape and source.distance_in_voxels(grid) <= SAME_GRID:
        return np.eye(4)
    return np.asarray(np.linalg.solve(source.affine, grid.affine), dtype=np.float64)


SAME_GRID = 1e-2
"""Volumes of one case that lie this close, in voxels at their corners, are on one grid."""
