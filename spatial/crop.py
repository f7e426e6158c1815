"""Crop: a box of the present grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..core.errors import PatchSizeError
from .amounts import as_triple
from .op import Drawn
from .plan import SpatialPlan
from .sizes import three


@dataclass(frozen=True)
class Crop:
    """Keep the voxels ``start <= index < start + size`` of the present grid.

    Examples
    --------
    >>> Crop((2, 0, 1), (4, 4, 4)).describe()
    'crop 2:6, 0:4, 1:5'
    """

    start: Sequence[int]
    """First voxel on each axis."""
    size: Any
    """Number of voxels: one number, or one per axis."""
    hard: bool = False
    """Whether what lies outside is gone; a soft crop lets later ops take from it."""

    name: ClassVar[str] = "crop"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", as_triple("start", self.start, low=0))
        object.__setattr__(self, "size", three("size", self.size, least=1))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the box."""
        return {"start": list(self.start), "size": list(self.size)}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the box.

        Raises
        ------
        PatchSizeError
            The box does not lie in the grid.
        """
        start, size = drawn["start"], drawn["size"]
        if any(a + s > n for a, s, n in zip(start, size, plan.shape, strict=True)):
            box = ", ".join(f"{a}:{a + s}" for a, s in zip(start, size, strict=True))
            raise PatchSizeError(
                f"the crop {box} leaves the grid, which has {plan.shape} voxels",
                do="Make it smaller, or use crop_or_pad, which fills what is missing.",
            )
        return plan.crop(start, size, hard=self.hard)

    def describe(self) -> str:
        """Return the box in words."""
        box = ", ".join(f"{a}:{a + s}" for a, s in zip(self.start, self.size, strict=True))
        return f"{'hard ' if self.hard else ''}crop {box}"


@dataclass(frozen=True)
class CenterCrop:
    """Keep a box about the centre; where a voxel is left over, it is cut off at the end.

    Examples
    --------
    >>> CenterCrop((4, 4, 4)).describe()
    'center crop 4x4x4'
    """

    size: Any
    """Number of voxels: one number, or one per axis."""
    hard: bool = False
    """Whether what lies outside is gone."""

    name: ClassVar[str] = "center_crop"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", three("size", self.size, least=1))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the size."""
        return {"size": list(self.size)}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the box.

        Raises
        ------
        PatchSizeError
            The grid is smaller than the box.
        """
        size = drawn["size"]
        if any(s > n for s, n in zip(size, plan.shape, strict=True)):
            raise PatchSizeError(
                f"a center crop of {tuple(size)} needs a grid as large, which has {plan.shape}",
                do="Make it smaller, or use crop_or_pad, which fills what is missing.",
            )
        return plan.crop(centred_start(plan.shape, size), size, hard=self.hard)

    def describe(self) -> str:
        """Return the size in words."""
        return f"{'hard ' if self.hard else ''}center crop {'x'.join(map(str, self.size))}"


def centred_start(shape: Sequence[int], size: Sequence[int]) -> list[int]:
    """Return where a box of ``size`` starts about the centre of ``shape``; negative if larger.

    An odd voxel goes to the end both when cutting and when adding, so that cropping what was
    padded gives back the original.

    Examples
    --------
    >>> centred_start((5, 4, 3), (2, 4, 6))
    [1, 0, -1]
    """
    return [(n - s) // 2 if n >= s else -((s - n) // 2) for n, s in zip(shape, size, strict=True)]
