"""Rotate: turn the content about the centre of the present grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .amounts import Amount, as_amount, as_probability, draw_amount
from .matrices import Space, as_space, pull_back, rotation
from .op import Drawn
from .plan import SpatialPlan


@dataclass(frozen=True)
class Rotate:
    """Turn by ``Rz @ Ry @ Rx``: about x first, then y, then z; the grid keeps its shape.

    Right-handed: +90 degrees about z moves what lies at +x to +y.

    Examples
    --------
    >>> Rotate((-15, 15)).describe()
    'rotate (-15.0, 15.0) degrees'
    """

    degrees: Amount
    """A scalar or range holds for each of the three axes on its own; or three entries."""
    space: Space = "world"
    """``"world"``: about x, y, z in millimetres; ``"voxel"``: about the array's axes."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "rotate"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "degrees", as_amount("degrees", self.degrees))
        object.__setattr__(self, "space", as_space(self.space))
        object.__setattr__(self, "p", as_probability("p", self.p))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the angles, or None."""
        acts = generator.random() < self.p
        degrees = draw_amount(generator, self.degrees)
        return {"degrees": degrees} if acts else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the turned plan."""
        matrix = pull_back(plan, rotation(drawn["degrees"]), space=self.space)
        return plan.then(matrix, plan.shape, lattice=False)

    def describe(self) -> str:
        """Return the angles in words."""
        return f"rotate {self.degrees} degrees{in_words(self.space, self.p)}"


def in_words(space: str, p: float) -> str:
    """Return what is not the default of an op's space and probability."""
    return ("" if space == "world" else f" in {space} space") + (f" (p={p:g})" if p != 1 else "")
