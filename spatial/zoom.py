"""Zoom: enlarge or shrink the content about the centre of the present grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .amounts import Amount, as_amount, as_probability, draw_amount
from .matrices import Space, as_space, pull_back, scaling
from .op import Drawn
from .plan import SpatialPlan
from .rotate import in_words


@dataclass(frozen=True)
class Zoom:
    """Enlarge the content by ``factor``, above 1, or shrink it, below; the grid keeps its shape.

    Examples
    --------
    >>> Zoom((0.9, 1.1)).describe()
    'zoom (0.9, 1.1)'
    """

    factor: Amount
    """A scalar or range is one factor for all axes; three entries are per axis."""
    space: Space = "world"
    """``"world"``: along x, y, z; ``"voxel"``: along the array's axes."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "zoom"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", as_amount("factor", self.factor, positive=True))
        object.__setattr__(self, "space", as_space(self.space))
        object.__setattr__(self, "p", as_probability("p", self.p))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the factors, or None."""
        acts = generator.random() < self.p
        factor = draw_amount(generator, self.factor, shared=True)
        return {"factor": factor} if acts else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the zoomed plan."""
        matrix = pull_back(plan, scaling(drawn["factor"]), space=self.space)
        return plan.then(matrix, plan.shape, lattice=False)

    def describe(self) -> str:
        """Return the factors in words."""
        return f"zoom {self.factor}{in_words(self.space, self.p)}"
