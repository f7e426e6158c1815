"""DivisiblePad: as many voxels more as make the sizes multiples, which some networks need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...core.amounts import LATER
from ..amounts import as_choice, entries_of
from ..plans.plan import SpatialPlan
from ..plans.planar import flat_axes
from .op import Drawn
from .pad import SIDES, WHERES, Side, Where, lacking, told_where, widened
from .sizes import Size, one_or_three


@dataclass(frozen=True)
class DivisiblePad:
    """Add voxels until each axis has a multiple of ``k``.

    Examples
    --------
    >>> DivisiblePad(16).describe()
    'pad to multiples of 16'
    """

    k: Size
    """The divisor: one number, of 2-D data in their plane, or one per axis; 1 leaves an axis."""
    where: Where = "both"
    """On both sides, or at the ``"end"``."""
    side: Side = field(default="end", metadata=LATER)
    """Of both sides, the one that gets an odd voxel: ``"end"``, or ``"start"`` as in TorchIO."""

    name: ClassVar[str] = "divisible_pad"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", one_or_three("k", self.k, least=1))
        object.__setattr__(self, "where", as_choice("where", self.where, WHERES))
        object.__setattr__(self, "side", as_choice("side", self.side, SIDES))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the amounts."""
        each = entries_of(self.k)
        flat = () if each else flat_axes(plan)
        divisors = [1 if axis in flat else k for axis, k in enumerate(each or (self.k,) * 3)]
        size = [-(-n // k) * k for n, k in zip(plan.shape, divisors, strict=True)]
        return {"amount": lacking(plan.shape, size, self.where, self.side)}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the larger grid."""
        return widened(plan, drawn["amount"])

    def describe(self) -> str:
        """Return the divisors in words."""
        k = "x".join(map(str, entries_of(self.k) or (self.k,)))
        return f"pad to multiples of {k}{told_where(self.where, self.side)}"
