"""Augment: the usual random bundle, composed to one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...core.affine3x4 import NO_TURN
from ...core.suggest import factor_hint, radians_hint
from ...core.validate import as_probability
from ..plans.matrices import Space, as_space, flat_axes, pull_back, scaling, shearing, turning
from ..plans.plan import SpatialPlan
from .affine_op import in_words
from .flip import mirror
from .op import Drawn
from .parameters import Amount, amount_at, as_amount, as_factor, as_probabilities

_STAY = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Augment:
    """Rotate, zoom, translate, shear and flip, as the ops of these names do in this order.

    What all of them do together is one matrix.

    Examples
    --------
    >>> Augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5).describe()
    'augment rotate (-15.0, 15.0), zoom (0.9, 1.1), flip 0.5'
    """

    rotate: Amount = 0.0
    """Degrees, as in ``Rotate``."""
    zoom: Amount = 1.0
    """Factor, as in ``Zoom``."""
    translate: Amount = 0.0
    """Millimetres, or voxels in voxel space, as in ``Translate``."""
    shear: Amount = 0.0
    """Factors, as in ``Shear``."""
    flip: float | Sequence[float] = 0.0
    """Probability that an axis flips, each on its own, of 2-D data in their plane; or three, per
    axis."""
    p: float = 1.0
    """Probability that the bundle acts at all."""
    space: Space = "world"
    """Where rotate, zoom, translate and shear act."""

    name: ClassVar[str] = "augment"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("rotate", "translate", "shear"):
            object.__setattr__(self, name, as_amount(name, getattr(self, name)))
        object.__setattr__(self, "zoom", as_factor("zoom", self.zoom))
        object.__setattr__(self, "flip", as_probabilities("flip", self.flip, 3, "three, per axis"))
        object.__setattr__(self, "p", as_probability("p", self.p))
        object.__setattr__(self, "space", as_space(self.space))

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        """What is allowed, but hardly meant."""
        return (*radians_hint("rotate", self.rotate), *factor_hint("zoom", self.zoom))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return what each part does, or None."""
        # All at once: the same numbers as one part after another, as its ops draw them.
        u = generator.random(16).tolist()
        chances: Any = self.flip
        if not isinstance(chances, tuple):
            flat = flat_axes(plan) if chances else ()
            chances = [0.0 if axis in flat else chances for axis in range(3)]
        drawn = {
            "rotate": amount_at(u[1:4], self.rotate),
            "zoom": amount_at(u[4:7], self.zoom, shared=True),
            "translate": amount_at(u[7:10], self.translate),
            "shear": amount_at(u[10:13], self.shear),
            "flip": [axis for axis in range(3) if u[13 + axis] < chances[axis]],
        }
        return drawn if u[0] < self.p else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan followed by the bundle."""
        plan = plan.interpolated()
        for forward, move in (
            (turning(plan, drawn["rotate"], self.space), _STAY),
            (scaling(drawn["zoom"]), _STAY),
            (NO_TURN, drawn["translate"]),
            (shearing(drawn["shear"]), _STAY),
        ):
            # What does nothing has the identity as its matrix, exactly.
            if forward != NO_TURN or any(move):
                matrix = pull_back(plan, forward, move, space=self.space)
                plan = plan.then(matrix, plan.shape, lattice=False)
        if drawn["flip"]:
            plan = plan.then(mirror(plan, drawn["flip"]), plan.shape, lattice=True)
        return plan

    def describe(self) -> str:
        """Return the parts that are not left out, in their order."""
        parts = [
            f"{name} {value}"
            for name, value, nothing in (
                ("rotate", self.rotate, 0.0),
                ("zoom", self.zoom, 1.0),
                ("translate", self.translate, 0.0),
                ("shear", self.shear, 0.0),
                ("flip", self.flip, 0.0),
            )
            if value != nothing
        ]
        return f"augment {', '.join(parts) or 'nothing'}{in_words(self.space, self.p)}"
