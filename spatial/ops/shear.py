"""Shear: slide the content along one axis in proportion to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..amounts import Amount, as_amount, as_probability, draw_amount
from ..plans.matrices import Space, as_space, pull_back, shearing
from ..plans.plan import SpatialPlan
from .op import Drawn
from .rotate import in_words


@dataclass(frozen=True)
class Shear:
    """Slide by the factors (xy, xz, yz); volumes keep their size, the grid its shape.

    What lies at (x, y, z) from the centre goes to ``(x + xy*y + xz*z, y + yz*z, z)``.

    Examples
    --------
    >>> Shear((-0.1, 0.1)).describe()
    'shear (-0.1, 0.1)'
    """

    factor: Amount
    """Tangent of the angle of shear; a scalar or range holds for each of (xy, xz, yz) on its own;
    or three entries in this order."""
    space: Space = "world"
    """``"world"``: x, y, z in millimetres; ``"voxel"``: along the array's axes."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "shear"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", as_amount("factor", self.factor))
        object.__setattr__(self, "space", as_space(self.space))
        object.__setattr__(self, "p", as_probability("p", self.p))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the factors, or None."""
        acts = generator.random() < self.p
        factor = draw_amount(generator, self.factor)
        return {"factor": factor} if acts else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the sheared plan."""
        matrix = pull_back(plan, shearing(drawn["factor"]), space=self.space)
        return plan.then(matrix, plan.shape, lattice=False)

    def describe(self) -> str:
        """Return the factors in words."""
        return f"shear {self.factor}{in_words(self.space, self.p)}"
