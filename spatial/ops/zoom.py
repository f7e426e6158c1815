"""Zoom: enlarge or shrink the content about the centre of the present grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core.likely_mistakes import offsets
from ..amounts import Amount, as_factor, as_flag, as_probability, draw_amount
from ..plans.matrices import Space, as_space, growing, pull_back, scaling
from ..plans.plan import SpatialPlan
from ..plans.voxel_box import without_noise
from .op import Drawn
from .rotate import in_words


@dataclass(frozen=True)
class Zoom:
    """Enlarge the content by ``factor``, above 1, or shrink it, below.

    Examples
    --------
    >>> Zoom((0.9, 1.1)).describe()
    'zoom (0.9, 1.1)'
    """

    factor: Amount
    """A scalar or range is one factor for all axes; three entries are per axis."""
    space: Space = "world"
    """``"world"``: along x, y, z; ``"voxel"``: along the array's axes."""
    keep_size: bool = True
    """Whether the grid keeps its shape; else it has the whole voxels that fit into the enlarged
    one, about the same centre and at the same distance from each other."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "zoom"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", as_factor("factor", self.factor))
        object.__setattr__(self, "space", as_space(self.space))
        object.__setattr__(self, "keep_size", as_flag("keep_size", self.keep_size))
        object.__setattr__(self, "p", as_probability("p", self.p))

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        """What is allowed, but hardly meant."""
        return offsets("factor", self.factor) if self.keep_size else ()

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the factors, or None."""
        acts = generator.random() < self.p
        factor = draw_amount(generator, self.factor, shared=True)
        return {"factor": factor} if acts else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the zoomed plan."""
        forward = scaling(drawn["factor"])
        if self.keep_size:
            matrix = pull_back(plan, forward, space=self.space)
            return plan.then(matrix, plan.shape, lattice=False)
        return plan.then(*growing(plan, forward, space=self.space, whole=_whole), lattice=False)

    def describe(self) -> str:
        """Return the factors in words."""
        grows = "" if self.keep_size else ", grid too"
        return f"zoom {self.factor}{grows}{in_words(self.space, self.p)}"


def _whole(extent: float) -> int:
    # 10 voxels enlarged by 1.1 are 11, and not 10.999999999999998.
    return math.floor(without_noise(extent))
