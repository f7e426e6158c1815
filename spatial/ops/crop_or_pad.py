"""CropOrPad: a grid of a given size about the same centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..amounts import as_flag
from ..plans.plan import SpatialPlan
from .crop import centred_start
from .op import Drawn
from .sizes import three


@dataclass(frozen=True)
class CropOrPad:
    """Cut or add voxels on each axis until the grid has ``size``; odd ones at the end.

    Examples
    --------
    >>> CropOrPad((64, 64, 32)).describe()
    'crop or pad to 64x64x32'
    """

    size: Any
    """Number of voxels: one number, or one per axis."""
    hard: bool = False
    """Whether what is cut off is gone; a soft crop lets later ops take from it."""

    name: ClassVar[str] = "crop_or_pad"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hard", as_flag("hard", self.hard))
        object.__setattr__(self, "size", three("size", self.size, least=1))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the size."""
        return {"size": list(self.size)}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the grid with that size."""
        size = drawn["size"]
        return plan.crop(centred_start(plan.shape, size), size, hard=self.hard)

    def describe(self) -> str:
        """Return the size in words."""
        return f"{'hard ' if self.hard else ''}crop or pad to {'x'.join(map(str, self.size))}"
