"""Boxes of voxels of the source, in a plan's output: which voxels of it lie inside."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region
from .boxes import around, to_output
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
    faces = np.array([[*(a - 0.5 for a in box.start), *(b - 0.5 for b in box.stop)]])
    if grid is not None:
        faces = around(_across(grid, plan.source), faces)
    found = to_output(plan, faces)[0].tolist()
    start, stop = [], []
    for a, b in zip(found[:3], found[3:], strict=True):
        first, last = math.ceil(a - _ROUNDING), math.floor(b + _ROUNDING)
        # A face that runs through centres belongs to neither side more than to the other.
        if first > last:
            first = last = math.floor((a + b) / 2 + 0.5)
        start.append(first)
        stop.append(last + 1)
    return Region(tuple(start), tuple(stop))


def _across(grid: Grid, source: Grid) -> NDArray[np.float64]:
    """Return the matrix from one grid to another; the identity where both are one grid."""
    if grid.shape == source.shape and source.distance_in_voxels(grid) <= SAME_GRID:
        return np.eye(4)
    return np.asarray(np.linalg.solve(source.affine, grid.affine), dtype=np.float64)


SAME_GRID = 1e-2
"""Volumes of one case that lie this close, in voxels at their corners, are on one grid."""
