"""Whole voxels: what an extent has of them, and which of a plan's output lie inside a box."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region
from .plan import SpatialPlan, around, to_output

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
    start, stop, size = [], [], float(max(plan.shape))
    for a, b in zip(found[:3], found[3:], strict=True):
        # Faces lie half way between voxels where whole ones are moved.
        first, last = math.ceil(without_noise(a, size)), math.floor(without_noise(b, size))
        # A face that runs through centres belongs to neither side more than to the other.
        if first > last:
            first = last = math.floor(without_noise((a + b) / 2, size) + 0.5)
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
