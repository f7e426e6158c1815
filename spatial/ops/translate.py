"""Translate: move the content, the grid stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core.rows import NO_TURN
from ..amounts import Amount, as_amount, as_probability, draw_amount
from ..plans.matrices import Space, as_space, pull_back
from ..plans.plan import SpatialPlan
from .op import Drawn
from .rotate import in_words


@dataclass(frozen=True)
class Translate:
    """Move the content by ``amount``: millimetres in world space, voxels in voxel space.

    Examples
    --------
    >>> Translate((0, 0, (-5, 5))).describe()
    'translate (0.0, 0.0, (-5.0, 5.0)) mm'
    """

    amount: Amount
    """A scalar or range holds for each of the three axes on its own; or three entries."""
    space: Space = "world"
    """``"world"``: millimetres along x, y, z; ``"voxel"``: voxels along the array's axes."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "translate"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", as_amount("amount", self.amount))
        object.__setattr__(self, "space", as_space(self.space))
        object.__setattr__(self, "p", as_probability("p", self.p))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the distances, or None."""
        acts = generator.random() < self.p
        amount = draw_amount(generator, self.amount)
        return {"amount": amount} if acts else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the moved plan."""
        matrix = pull_back(plan, NO_TURN, drawn["amount"], space=self.space)
        return plan.then(matrix, plan.shape, lattice=False)

    def describe(self) -> str:
        """Return the distances in words."""
        unit = "mm" if self.space == "world" else "voxels"
        return f"translate {self.amount} {unit}{in_words('world', self.p)}"
