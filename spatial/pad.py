"""Pad: more voxels around the present grid, made by the padding rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .amounts import is_integer
from .op import Drawn
from .plan import SpatialPlan

Pairs = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Pad:
    """Add voxels before and after on each axis.

    What they hold follows the padding of the volume's policy; where the present grid is a soft
    crop, they are the voxels that really lie there.

    Examples
    --------
    >>> Pad((2, 2, 0)).describe()
    'pad 2+2, 2+2, 0+0'
    """

    amount: Any
    """Voxels on every side; or three numbers, per axis; or three pairs (before, after)."""

    name: ClassVar[str] = "pad"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", _pairs(self.amount))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the amounts."""
        return {"amount": [list(pair) for pair in self.amount]}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the larger grid."""
        pairs = drawn["amount"]
        size = [n + a + b for n, (a, b) in zip(plan.shape, pairs, strict=True)]
        return plan.crop([-a for a, _ in pairs], size)

    def describe(self) -> str:
        """Return the amounts in words."""
        return f"pad {', '.join(f'{a}+{b}' for a, b in self.amount)}"


def _pairs(value: Any) -> Pairs:
    per_axis = list(value) if isinstance(value, (tuple, list, np.ndarray)) else [value] * 3
    pairs = [tuple(v) if isinstance(v, (tuple, list, np.ndarray)) else (v, v) for v in per_axis]
    fits = len(pairs) == 3 and all(len(pair) == 2 for pair in pairs)
    if not fits or not all(is_integer(v) and v >= 0 for pair in pairs for v in pair):
        msg = f"pad takes an integer >= 0, three of them, or three pairs of them, got {value!r}"
        raise ValueError(msg)
    (a, b), (c, d), (e, f) = pairs
    return ((int(a), int(b)), (int(c), int(d)), (int(e), int(f)))
