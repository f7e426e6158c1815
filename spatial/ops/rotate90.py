"""Rotate90: quarter turns in the plane of two axes, without interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...core.validate import as_probability, entries_of, is_integer
from ..plans.plan import SpatialPlan
from .op import Drawn


@dataclass(frozen=True)
class Rotate90:
    """Turn by ``k`` quarter turns from the first axis towards the second, as ``numpy.rot90``.

    The turn is one of the array, whatever the spacing: an odd ``k`` swaps the lengths of the
    two axes, and the affine says so.

    Examples
    --------
    >>> Rotate90(1, (0, 2)).describe()
    'rotate 90 degrees from axis 0 to axis 2'
    """

    k: int | Sequence[int] = 1
    """Number of quarter turns; negative ones turn the other way. ``(low, high)`` is drawn, each
    number from ``low`` to ``high`` as likely."""
    axes: Sequence[int] = (0, 1)
    """Two different spatial axes out of 0, 1, 2."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "rotate90"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        axes = entries_of(self.axes)
        if len(axes) != 2 or not all(is_integer(a) and 0 <= a <= 2 for a in axes):
            msg = f"axes are two of the spatial axes 0, 1, 2, got {self.axes!r}"
            raise ValueError(msg)
        if axes[0] == axes[1]:
            msg = f"axes are two different axes, got {self.axes!r}"
            raise ValueError(msg)
        ends = (self.k, self.k) if is_integer(self.k) else entries_of(self.k)
        if len(ends) != 2 or not all(map(is_integer, ends)) or ends[0] > ends[1]:
            msg = (
                "k is a whole number of quarter turns, or a range (low, high) with low <= high, "
                f"got {self.k!r}"
            )
            raise ValueError(msg)
        low, high = (int(end) for end in ends)
        object.__setattr__(self, "k", low if is_integer(self.k) else (low, high))
        object.__setattr__(self, "axes", (int(axes[0]), int(axes[1])))
        object.__setattr__(self, "p", as_probability("p", self.p))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the turn, or None."""
        acts = generator.random() < self.p
        k: Any = self.k
        if isinstance(k, tuple):
            low, high = k
            k = low + int(generator.random() * (high - low + 1))
        return {"k": k, "axes": list(self.axes)} if acts else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the turned plan."""
        first, second = drawn["axes"]
        for _ in range(drawn["k"] % 4):
            matrix, shape = np.eye(4), list(plan.shape)
            matrix[[first, second]] = matrix[[second, first]]
            # What was the end of the second axis is the beginning of the first.
            matrix[second, first], matrix[second, 3] = -1, plan.shape[second] - 1
            shape[first], shape[second] = shape[second], shape[first]
            plan = plan.then(matrix, shape, lattice=True)
        return plan

    def describe(self) -> str:
        """Return the turn in words."""
        k: Any = self.k
        much = f"{90 * k[0]} to {90 * k[1]}" if isinstance(k, tuple) else f"{90 * k}"
        turn = f"rotate {much} degrees from axis {self.axes[0]} to axis {self.axes[1]}"
        return turn + (f" (p={self.p:g})" if self.p != 1 else "")
