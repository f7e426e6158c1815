"""Spacing, Resize, ResampleTo: other voxels over the same world."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

import numpy as np

from ...core import Grid
from ...core.affine3x4 import affine3x4
from ...core.call_site import WarnOnce
from ...core.errors import BadHeader, LikelyMistake, PatchSizeError
from ...core.grid import warn_beyond
from ...core.validate import (
    LATER,
    MILLIMETRES,
    FieldChecks,
    as_choice,
    as_flag,
    as_unit,
    entries_of,
    is_integer,
)
from ..plans.mapping import without_noise
from ..plans.matrices import about_centre, flat_axes, scaling
from ..plans.plan import SpatialPlan
from ..plans.stages import Clip, Stage
from .op import Params, amount_at, as_amount

Extent = Literal["edges", "centers"]
"""``"edges"``: a voxel is a box, and the extent ends at the outer faces. ``"centers"``: a voxel is
a point, and the extent ends at the first and last point."""
_as_extent = partial(as_choice, choices=("edges", "centers"))


def _as_spacing(name: str, value: Any) -> Any:
    each = entries_of(value)
    if len(each) != 3:
        return as_amount(name, value, positive=True)
    sizes = tuple(v if v is None else as_amount(name, v, positive=True) for v in each)
    if any(len(entries_of(v)) == 3 for v in sizes):
        raise ValueError(f"{name} has one number or range per axis, got {value!r}")
    return sizes


@dataclass(frozen=True)
class Spacing(FieldChecks):
    """Bring neighbouring voxels to a distance in millimetres along the axes of the array.

    The distance is exact; the number of voxels is rounded to meet the extent. With
    ``extent="edges"`` n voxels at a become ``round(n * a / b)`` at b, about the same centre. With
    ``"centers"`` the first voxel stays, and the number is ``round((n - 1) * a / b + 1)``. Halves
    round to even, and rounding noise of headers (50.4999997) counts as a half.

    Examples
    --------
    >>> Spacing((1, 1, None)).describe()
    'spacing 1.0, 1.0, same mm'
    >>> Spacing((0.8, 1.2), extent="centers").describe()
    'spacing (0.8, 1.2) mm between centers'
    """

    spacing: Any
    """Distance in ``unit``: a number or range (low, high) for all axes, drawn once; or three
    entries, of which None keeps an axis. A number or range leaves 2-D data in their plane. A pair
    is always a range: write ``(0.5, 0.8, None)`` for one per axis."""
    extent: Extent = "edges"
    """Fixed part of the grid: ``"edges"`` or ``"centers"``."""
    unit: str = field(default="mm", kw_only=True, metadata=LATER)
    """Unit of the spacing: ``"mm"``, ``"um"`` or another length."""

    name: ClassVar[str] = "spacing"
    lattice: ClassVar[bool] = False
    checks: ClassVar[Any] = {
        "spacing": _as_spacing,
        "extent": _as_extent,
        "unit": partial(as_unit, voxel=False),
    }

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        random, size = generator.random(3).tolist(), MILLIMETRES[self.unit]
        present = [step / size for step in plan.grid.spacing]
        if len(entries_of(self.spacing)) == 3:
            axes = zip(self.spacing, random, present, strict=True)
            return {"spacing": [s if v is None else amount_at([u] * 3, v)[0] for v, u, s in axes]}
        amounts = amount_at(random, self.spacing, isotropic=True)
        flat = flat_axes(plan)
        pairs = zip(amounts, present, strict=True)
        return {"spacing": [s if axis in flat else d for axis, (d, s) in enumerate(pairs)]}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        size = MILLIMETRES[self.unit]
        steps = [
            new * size / old for new, old in zip(params["spacing"], plan.grid.spacing, strict=True)
        ]
        if any(1 < n < step for n, step in zip(plan.shape, steps, strict=True)):
            warn_beyond(self.name, self.unit, max(params["spacing"]) * size, plan.source)
        each = list(zip(plan.shape, steps, strict=True))
        if self.extent == "centers":
            shape = [round(without_noise((n - 1) / step + 1)) for n, step in each]
            (x, y, z) = steps  # the first voxel stays where it was
            rows = (x, 0.0, 0.0, 0.0, 0.0, y, 0.0, 0.0, 0.0, 0.0, z, 0.0)
            return plan.then(rows, shape, lattice=False)
        shape = [max(1, round(without_noise(n / step))) for n, step in each]
        return plan.then(about_centre(scaling(steps), plan.shape, shape), shape, lattice=False)

    def describe(self) -> str:
        each = entries_of(self.spacing)
        words = f"{self.spacing}"
        if len(each) == 3:
            words = ", ".join("same" if v is None else str(v) for v in each)
        where = " between centers" if self.extent == "centers" else ""
        return f"spacing {words} {self.unit}{where}"


def _as_voxels(name: str, value: Any) -> Any:
    each = entries_of(value) or (value,)
    fits = all(v is None or (is_integer(v) and v >= 1) for v in each) and len(each) in (1, 3)
    if not fits or (len(each) == 1 and value is None):
        msg = f"resize takes a number of voxels >= 1, or three, one per axis, got {value!r}"
        raise PatchSizeError(msg, do="None in a place keeps that axis; 2-D data have K = 1.")
    whole = tuple(v if v is None else int(v) for v in each)
    return whole if entries_of(value) else whole[0]


@dataclass(frozen=True)
class Resize(FieldChecks):
    """Give the grid ``size`` voxels over the present extent.

    With ``extent="edges"`` the outer faces of the grid stay: n voxels become m at n/m times the
    distance. With ``"centers"`` the first and last voxel centre stay: the distance is multiplied by
    (n-1)/(m-1). A single voxel is put in the middle.

    Examples
    --------
    >>> Resize((64, 64, 32)).describe()
    'resize to 64x64x32'
    >>> Resize((64, 64, None), extent="centers").describe()
    'resize to 64x64xsame between centers'
    """

    size: Any
    """Voxels: one number (of 2-D data in their plane), or three; None keeps an axis."""
    longest: bool = False
    """Whether ``size`` is that of the longest axis, and the others keep their ratio to it."""
    extent: Extent = "edges"
    """Fixed part of the grid: ``"edges"`` or ``"centers"``."""

    name: ClassVar[str] = "resize"
    lattice: ClassVar[bool] = False
    checks: ClassVar[Any] = {"extent": _as_extent, "longest": as_flag, "size": _as_voxels}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest and not is_integer(self.size):
            raise PatchSizeError(f"the longest axis gets one number of voxels, got {self.size!r}")

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        each = entries_of(self.size)
        if each:
            return {"size": [n if v is None else v for v, n in zip(each, plan.shape, strict=True)]}
        flat = flat_axes(plan)
        most = max(plan.shape)
        sizes = [
            max(1, round(without_noise(n * self.size / most))) if self.longest else self.size
            for n in plan.shape
        ]
        return {"size": [1 if axis in flat else n for axis, n in enumerate(sizes)]}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        size = params["size"]
        pairs = list(zip(plan.shape, size, strict=True))
        steps = [n / m for n, m in pairs]
        if self.extent == "centers":
            steps = [(n - 1) / (m - 1) if n > 1 and m > 1 else 1.0 for n, m in pairs]
        return plan.then(about_centre(scaling(steps), plan.shape, size), size, lattice=False)

    def describe(self) -> str:
        each = entries_of(self.size) or (self.size,)
        size = "x".join("same" if v is None else str(v) for v in each)
        what = "longest axis to " if self.longest else "to "
        return f"resize {what}{size}" + (" between centers" if self.extent == "centers" else "")


@dataclass(frozen=True)
class ResampleTo:
    """Resample the content to ``grid``: every voxel keeps its place in the world.

    Examples
    --------
    >>> ResampleTo(Grid((64, 64, 32), np.diag([2.0, 2.0, 3.0, 1.0]))).describe()
    'resample to 64x64x32 at 2 2 3 mm'
    """

    grid: Grid
    """Shape and affine of the output."""

    name: ClassVar[str] = "resample_to"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        grid: Any = self.grid
        if not isinstance(grid, Grid):
            msg = f"resample_to takes a Grid(shape, affine), or the key of a volume, got {grid!r}"
            raise TypeError(msg)
        if self.grid.is_singular or 0 in self.grid.shape:
            msg = (
                f"a grid to resample to has voxels and an affine with an inverse, got {self.grid!r}"
            )
            raise ValueError(msg)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        return {"grid": self.grid.to_json()}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        grid = Grid.from_json(params["grid"])
        if plan.grid.is_singular:
            msg = f"the affine has no inverse: {plan.affine.tolist()}"
            raise BadHeader(msg, do="Pass ⟦affine=⟧ when opening the volume.")
        is_same = plan.affine_rows == grid.rows
        step = np.eye(4) if is_same else np.linalg.solve(plan.affine, grid.affine)
        return plan.then(affine3x4(step), grid.shape, lattice=False)

    def describe(self) -> str:
        return f"resample to {repr(self.grid)[len('Grid(') : -1]}"


_OUTSIDE = WarnOnce()


@lru_cache(maxsize=1024)  # asked for every patch
def lies_outside(grid: Grid, other: Grid) -> bool:
    """Return whether all of ``other`` is beyond one side of ``grid``, in the world."""
    if grid.is_singular or other.is_singular:
        return False
    across = np.linalg.solve(grid.affine, other.affine)
    places = other.corners() @ across[:3, :3].T + across[:3, 3]
    ends = np.array(grid.shape) - 0.5
    return bool(((places.max(axis=0) < -0.5) | (places.min(axis=0) > ends)).any())


def warn_of_outside(volume: Any, grid: Grid) -> None:
    """Warn, once, of a volume that has no place in common with the grid that it is needed on."""
    if lies_outside(grid, volume.grid):
        text = (
            f"volume-outside: {volume.name} lies outside {grid!r} of the other volumes, so all of "
            "it is background there. Check its affine, or give the right one: ⟦affine=⟧."
        )
        _OUTSIDE.warn(volume.name, text, LikelyMistake)


def of_source(plan: SpatialPlan, grid: Grid) -> SpatialPlan:
    """Return the plan that gives the output of ``plan`` from a volume on another grid."""
    # Places in the world stay, hard crops and displacements included; ``grid`` must be invertible.
    across = np.asarray(np.linalg.solve(grid.affine, plan.source.affine), dtype=np.float64)
    back = np.asarray(np.linalg.inv(across), dtype=np.float64)
    stages: list[Stage] = []
    if plan.bounds != plan.source.region:
        stages.append(Clip.of_region(plan.bounds).after(back))
    stages += [stage.move(across, back) for stage in plan.stages]
    matrix = across @ plan.matrix
    return SpatialPlan(grid, matrix, plan.shape, None, stages, keeps_dtype=False, axes=plan.axes)


OPS = (ResampleTo, Resize, Spacing)
