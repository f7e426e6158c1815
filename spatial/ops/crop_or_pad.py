"""CropOrPad: a grid of a given size about the same centre."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ...core.amounts import LATER
from ..amounts import as_choice, as_flag
from ..plans.plan import SpatialPlan
from .crop import CROP_SIDES, CropSide, centred_start, told_side
from .op import Drawn
from .sizes import of_grid, size_of, told_size


@dataclass(frozen=True)
class CropOrPad:
    """Cut or add voxels on each axis until the grid has ``size``; ``side`` says where odd ones.

    Examples
    --------
    >>> CropOrPad((64, 64, 32)).describe()
    'crop or pad to 64x64x32'
    >>> CropOrPad(64, side="start").describe()
    'crop or pad to 64x64x64, odd voxels at the start'
    """

    size: Any
    """Number of voxels: one number, of 2-D data in their plane, or one per axis, of which None
    keeps an axis."""
    hard: bool = False
    """Whether what is cut off is gone; a soft crop lets later ops take from it."""
    side: CropSide = field(default="end", metadata=LATER)
    """Where an odd voxel is cut off or added: at the ``"end"``, or at the ``"start"`` as TorchIO
    does. With ``"center"``, as MONAI, it is added at the end, and cut off where voxel ``n // 2``
    becomes voxel ``size // 2``: of an even number at the start, of an odd one at the end."""

    name: ClassVar[str] = "crop_or_pad"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hard", as_flag("hard", self.hard))
        object.__setattr__(self, "size", size_of("size", self.size))
        object.__setattr__(self, "side", as_choice("side", self.side, CROP_SIDES))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the size."""
        return {"size": list(of_grid(self.size, plan))}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the grid with that size."""
        size = drawn["size"]
        return plan.crop(centred_start(plan.shape, size, self.side), size, hard=self.hard)

    def describe(self) -> str:
        """Return the size in words."""
        size = f"{told_size(self.size)}{told_side(self.side)}"
        return f"{'hard ' if self.hard else ''}crop or pad to {size}"
