"""The values of a volume at the voxels of a grid, slab by slab, and which of them are a mask."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region
from ...core.errors import PatchSizeError
from ...volumes.catalog.whole_pass import SLAB_VOXELS, slabs
from ...volumes.voxels import plain
from ..plans.plan import SpatialPlan
from ..plans.policy import LABEL
from ..resampling.interpolate import Source
from ..resampling.resample import resample
from .weight_table import Triple

_HALF = 0.5


def values_on(
    volume: Any, grid: Grid, cell: Triple = (1, 1, 1), inside: Region | None = None
) -> Iterator[tuple[Region, NDArray[Any]]]:
    """Yield regions that cover a grid, each of whole cells, and the values (C, i, j, k) there.

    The volume may lie on any grid: it is looked up by nearest neighbour, 0 outside. Cells at the
    ends of the grid are cut. Regions that do not touch ``inside`` are left out.
    """
    matrix = np.linalg.solve(volume.grid.affine, grid.affine)
    plan = SpatialPlan(volume.grid, matrix, grid.shape)
    # A flip of all has the same region, and is a copy too. Half a voxel is no other one.
    away = np.abs(matrix - np.eye(4))
    stays = away[:3, :3].max() < _HALF and away[:3, 3].max() < _HALF
    is_same = plan.is_copy and volume.grid.shape == grid.shape and stays
    # Whole cells in whole chunks, so that no chunk is decoded twice. Chunks of 60 and cells of 8
    # meet every 120 voxels; some meet never in a slab.
    chunks = volume.chunks or (1, 1, 1)
    i, j, k = (math.lcm(a, b) for a, b in zip(cell, chunks, strict=True))
    unit = (i, j, k) if is_same and i * j * k <= SLAB_VOXELS else cell
    for region in slabs(grid.shape, unit, max(1, SLAB_VOXELS // volume.shape[0])):
        if inside is not None and region.intersect(inside).is_empty:
            continue
        values = volume.read(region).values() if is_same else _resampled(volume, plan, region)
        yield region, plain(values)


def cells_of(region: Region, cell: Sequence[int]) -> tuple[slice, slice, slice]:
    """Return which cells a region is that begins with one."""
    i, j, k = (
        slice(a // c, -(-b // c)) for a, b, c in zip(region.start, region.stop, cell, strict=True)
    )
    return i, j, k


def _resampled(volume: Any, plan: SpatialPlan, region: Region) -> NDArray[Any]:
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


_MEANT = (
    " If they are labels all the same, or all of an image that is not 0 is meant: name them in "
    "open_volume(labels=), under a key of their own, or write vp.Volume(..., kind='label')."
)
MOST_VALUES = 64
"""How many values a mask may have that nobody called a label: a CT has hundreds in any slab, and
what people segment and forget to name as a label has some dozens of organs at most."""
# A label that was stored as bytes with a slope of 1/255 comes back as 1 to within rounding.
_WHOLE = 1e-4


def refuse_shares(volume: Any, values: NDArray[Any]) -> None:
    """Refuse what is no mask and no label: there is a way to draw by such values."""
    if values.dtype.kind != "f":
        return
    off = np.abs(values - np.rint(values)) > _WHOLE * np.maximum(1, np.abs(values))
    if off.any():
        first = float(values[tuple(np.argwhere(off)[0])])
        raise PatchSizeError(
            f"{volume.name} is given as mask=, of which every voxel that is not 0 counts alike, "
            f"and holds values that are no whole numbers, the first of them {first:g}",
            do="Give it as weights= if a voxel shall be drawn as often as its value says, or a "
            "mask of its values above a threshold.",
        )


def refuse_image(volume: Any, values: NDArray[Any], seen: set[int]) -> None:
    """Refuse an image, of which any voxel that is not 0 would count as inside.

    What nobody called a label is told by how many values it has, a label by how many below 0:
    there may be thousands of instances, and one or two numbers for what is to be ignored.
    ``seen`` has those of the slabs before, and gets those of this one.
    """
    is_label = volume.kind == "label"
    if is_label and values.dtype.kind == "u":
        return
    telling = _first_of_runs(values)
    telling = telling[telling < 0] if is_label else telling[telling != 0]
    if telling.dtype.kind == "f":
        telling = np.rint(telling[np.isfinite(telling)]).astype(np.int64)
    if seen:
        telling = telling[~np.isin(telling, list(seen))]
    seen.update(np.unique(telling).tolist())
    if len(seen) <= MOST_VALUES:
        return
    which = "below 0" if is_label else "other than 0"
    meant = "" if is_label else _MEANT
    raise PatchSizeError(
        f"{volume.name} is given as mask=, of which every voxel that is not 0 counts as inside, "
        f"and looks like an image: more than {MOST_VALUES} different values {which}, "
        f"{min(seen)} to {max(seen)} among them",
        do="Give a label, or a mask of its values above a threshold; or give it as weights= if "
        f"a voxel shall be drawn as often as its value says.{meant}",
    )


def _first_of_runs(values: NDArray[Any]) -> NDArray[Any]:
    """Return the first of each run of one value along the rows of memory, flat.

    They hold every value that there is, and masks have few of them.
    """
    axis = min((1, 2, 3), key=lambda axis: (values.shape[axis] == 1, abs(values.strides[axis])))
    rows = np.moveaxis(values, axis, -1)
    others = rows[..., 1:]
    return np.concatenate([rows[..., 0].ravel(), others[others != rows[..., :-1]]])


def mask_values(
    volume: Any,
    grid: Grid,
    cell: Triple = (1, 1, 1),
    inside: Region | None = None,
    classes: Sequence[Any] = (),
) -> Iterator[tuple[Region, NDArray[Any]]]:
    """Yield what ``values_on`` does; refuse what is no mask, of what has no classes images too."""
    seen: set[int] = set()
    for region, values in values_on(volume, grid, cell, inside):
        refuse_shares(volume, values)
        if not classes:
            refuse_image(volume, values, seen)
        yield region, values
