"""ResampleTo: the voxels of another grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...core import Grid
from ...core.affine3x4 import affine3x4
from ...core.errors import BadHeader
from ..plans.plan import SpatialPlan
from ..plans.stages import Clip, Displacement, Stage
from .op import Drawn


@dataclass(frozen=True)
class ResampleTo:
    """Take the content on ``grid``: every voxel holds what lies at its place in the world.

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
        given: Any = self.grid
        if not isinstance(given, Grid):
            msg = f"resample_to takes a Grid(shape, affine), or the key of a volume, got {given!r}"
            raise TypeError(msg)
        if self.grid.is_singular or 0 in self.grid.shape:
            msg = (
                f"a grid to resample to has voxels and an affine with an inverse, got {self.grid!r}"
            )
            raise ValueError(msg)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the grid."""
        return {"grid": self.grid.to_json()}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan on the grid.

        Raises
        ------
        BadHeader
            The present affine has no inverse.
        """
        return onto(plan, Grid.from_json(drawn["grid"]))

    def describe(self) -> str:
        """Return the grid in words."""
        return f"resample to {repr(self.grid)[len('Grid(') : -1]}"


def of_source(plan: SpatialPlan, grid: Grid) -> SpatialPlan:
    """Return the plan that gives the output of ``plan`` from a volume on another grid.

    Every place in the world stays where it is, hard crops and displacements included.

    Parameters
    ----------
    plan
        Any plan.
    grid
        Of the other volume; its affine has an inverse.
    """
    across = np.linalg.solve(grid.affine, plan.source.affine)
    back = np.linalg.inv(across)
    stages: list[Stage] = []
    if plan.bounds != plan.source.region:
        stages.append(Clip(_moved_back(plan.bounds.start) @ back, _triple(plan.bounds.shape)))
    for stage in plan.stages:
        if isinstance(stage, Clip):
            stages.append(stage.after(back))
        else:
            points = np.tensordot(across[:3, :3], stage.control, axes=1)
            stages.append(Displacement(points, stage.matrix @ back))
    return SpatialPlan(grid, across @ plan.matrix, plan.shape, None, stages, keeps_dtype=False)


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    i, j, k = values
    return (i, j, k)


def _moved_back(start: Sequence[int]) -> NDArray[np.float64]:
    matrix = np.eye(4)
    matrix[:3, 3] = [-a for a in start]
    return matrix


def onto(plan: SpatialPlan, grid: Grid) -> SpatialPlan:
    """Return ``plan`` on ``grid``.

    Raises
    ------
    BadHeader
        The present affine has no inverse.
    """
    if plan.grid.is_singular:
        raise BadHeader(
            f"the affine has no inverse: {plan.affine.tolist()}",
            do="Pass affine= when opening the volume.",
        )
    if plan.affine_rows == grid.rows:
        return plan.then(np.eye(4), grid.shape, lattice=False)
    step = np.linalg.solve(plan.affine, grid.affine)
    return plan.then(affine3x4(step), grid.shape, lattice=False)
