"""The values of a volume at the voxels of a grid, slab by slab: whole cells in whole chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region
from ...volumes.catalog.statistics import SLAB_VOXELS, slabs
from ...volumes.voxels import plain
from ..plans.plan import SpatialPlan
from ..plans.policy import LABEL
from ..resampling.resample import resample
from ..resampling.source import Source
from .weight_table import Triple

_HALF = 0.5


def values_on(
    volume: Any, grid: Grid, cell: Triple = (1, 1, 1), inside: Region | None = None
) -> Iterator[tuple[Region, NDArray[Any]]]:
    """Yield regions that cover a grid, each of whole cells, and the values (C, i, j, k) there.

    Parameters
    ----------
    volume
        A ``Volume`` on any grid: it is looked up by nearest neighbour, 0 outside.
    grid
        Where values are wanted.
    cell
        Extent of the cells; those at the ends of the grid are cut.
    inside
        Regions that do not touch this one are left out.
    """
    matrix = np.linalg.solve(volume.grid.affine, grid.affine)
    plan = SpatialPlan(volume.grid, matrix, grid.shape)
    # A flip of all has the same region, and is a copy too.
    is_same = plan.is_copy and volume.grid.shape == grid.shape and _is_identity(matrix)
    unit = _unit(cell, volume.chunks) if is_same else cell
    for region in slabs(grid.shape, unit, max(1, SLAB_VOXELS // volume.shape[0])):
        if inside is not None and region.intersect(inside).is_empty:
            continue
        values = volume.read(region).values() if is_same else _moved(volume, plan, region)
        yield region, plain(values)


def cells_of(region: Region, cell: Sequence[int]) -> tuple[slice, slice, slice]:
    """Return which cells a region is that begins with one.

    Examples
    --------
    >>> cells_of(Region((8, 0, 0), (20, 8, 1)), (8, 8, 8))
    (slice(1, 3, None), slice(0, 1, None), slice(0, 1, None))
    """
    i, j, k = (
        slice(a // c, -(-b // c)) for a, b, c in zip(region.start, region.stop, cell, strict=True)
    )
    return i, j, k


def _is_identity(matrix: NDArray[np.float64]) -> bool:
    """Whether a copy leaves every voxel where it is: half a voxel is no other one."""
    away = np.abs(matrix - np.eye(4))
    return bool(away[:3, :3].max() < _HALF and away[:3, 3].max() < _HALF)


def _moved(volume: Any, plan: SpatialPlan, region: Region) -> NDArray[Any]:
    """Return the values of a volume on a region of another grid."""
    part = plan.crop(region.start, region.shape)
    needed = part.source_region(LABEL)
    out: NDArray[Any] = plain(np.zeros((volume.shape[0], *region.shape), volume.dtype))
    if needed.is_empty:
        return out
    voxels = volume.read(needed)
    i, j, k = needed.start
    source = Source(voxels.array, (i, j, k), part.bounds, voxels.slope, voxels.intercept)
    resample(source, part.matrix, LABEL, out)
    return out


def _unit(cell: Triple, chunks: Triple | None) -> Triple:
    """Return whole cells in whole chunks, so that no chunk is decoded twice."""
    i, j, k = (math.lcm(a, b) for a, b in zip(cell, chunks or (1, 1, 1), strict=True))
    # Chunks of 60 and cells of 8 meet every 120 voxels; some meet never in a slab.
    return (i, j, k) if i * j * k <= SLAB_VOXELS else cell
