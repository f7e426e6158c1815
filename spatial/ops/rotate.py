"""Rotate: turn the content about the centre of the present grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from ...core.amounts import LATER
from ...core.likely_mistakes import radians
from ..amounts import Amount, as_amount, as_choice, as_flag, as_probability, draw_amount
from ..plans.matrices import Space, as_space, growing, pull_back, turning
from ..plans.plan import SpatialPlan
from ..plans.voxel_box import without_noise
from .op import Drawn

METHODS = ("forward", "backward")


@dataclass(frozen=True)
class Rotate:
    """Turn by ``Rz @ Ry @ Rx``: about x first, then y, then z.

    Right-handed: +90 degrees about z moves what lies at +x to +y. 2-D data turn in their plane,
    by the angle about the axis next to its normal.

    Examples
    --------
    >>> Rotate((-15, 15)).describe()
    'rotate (-15.0, 15.0) degrees'
    """

    degrees: Amount
    """A scalar or range holds for each of the three axes on its own; or three entries."""
    space: Space = "world"
    """``"world"``: about x, y, z in millimetres; ``"voxel"``: about the array's axes."""
    keep_size: bool = True
    """Whether the grid keeps its shape; else it grows until the turned one fits in, to the
    nearest whole voxel on each axis."""
    p: float = 1.0
    """Probability that the op acts."""
    method: Literal["forward", "backward"] = field(default="forward", metadata=LATER)
    """The box that sets the size of a grid that grows: ``"forward"``, into which the turned grid
    fits, or ``"backward"``, that of the turn back, as in MONAI: the same about one axis."""

    name: ClassVar[str] = "rotate"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "degrees", as_amount("degrees", self.degrees))
        object.__setattr__(self, "space", as_space(self.space))
        object.__setattr__(self, "keep_size", as_flag("keep_size", self.keep_size))
        object.__setattr__(self, "p", as_probability("p", self.p))
        object.__setattr__(self, "method", as_choice("method", self.method, METHODS))

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        """What is allowed, but hardly meant."""
        return radians("degrees", self.degrees)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the angles, or None."""
        acts = generator.random() < self.p
        degrees = draw_amount(generator, self.degrees)
        return {"degrees": degrees} if acts else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the turned plan."""
        turn = turning(plan, drawn["degrees"], self.space)
        if self.keep_size:
            matrix = pull_back(plan, turn, space=self.space)
            return plan.then(matrix, plan.shape, lattice=False)
        backward = self.method == "backward"
        grown = growing(plan, turn, space=self.space, whole=_nearest, backward=backward)
        return plan.then(*grown, lattice=False)

    def describe(self) -> str:
        """Return the angles in words."""
        back = " as the turn back does" if self.method == "backward" else ""
        grows = "" if self.keep_size else f", growing{back}"
        return f"rotate {self.degrees} degrees{grows}{in_words(self.space, self.p)}"


def _nearest(extent: float) -> int:
    # Halves go down.
    return math.ceil(without_noise(extent) - 0.5)


def in_words(space: str, p: float) -> str:
    """Return what is not the default of an op's space and probability."""
    return ("" if space == "world" else f" in {space} space") + (f" (p={p:g})" if p != 1 else "")
