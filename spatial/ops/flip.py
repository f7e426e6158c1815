"""Flip: mirror the present grid along its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...core.affine3x4 import Affine3x4, affine
from ...core.validate import as_flag, as_probability, entries_of, is_integer
from ..plans.matrices import flat_axes
from ..plans.plan import SpatialPlan
from .op import Drawn
from .parameters import as_probabilities


@dataclass(frozen=True)
class Flip:
    """Reverse the order of the voxels along ``axes``, each on its own with its probability.

    Examples
    --------
    >>> Flip((0, 2), p=0.5).describe()
    'flip axis 0 (p=0.5), axis 2 (p=0.5)'
    >>> Flip((0, 2), p=(1, 0.1)).describe()
    'flip axis 0, axis 2 (p=0.1)'
    >>> Flip(p=0.5, one=True).describe()
    'flip one of the axes 0, 1, 2 (p=0.5)'
    """

    axes: int | Sequence[int] = (0, 1, 2)
    """Spatial axes 0, 1, 2 of (I, J, K). All three leave the flat one of
    2-D data as it is."""
    p: float | Sequence[float] = 1.0
    """Probability that an axis flips: one number for each, or one per axis of ``axes``."""
    one: bool = False
    """Whether one axis is drawn, each as likely, and flips alone; ``p`` is one number then."""

    name: ClassVar[str] = "flip"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        axes = (self.axes,) if is_integer(self.axes) else entries_of(self.axes)
        fits = all(is_integer(a) and 0 <= a <= 2 for a in axes) and len(set(axes)) == len(axes)
        if not axes or not fits:
            msg = f"flip takes different spatial axes out of 0, 1, 2, got {self.axes!r}"
            raise ValueError(msg)
        object.__setattr__(self, "axes", tuple(int(a) for a in axes))
        object.__setattr__(self, "one", as_flag("one", self.one))
        if self.one:
            object.__setattr__(self, "p", as_probability("p", self.p))
        object.__setattr__(self, "p", as_probabilities("p", self.p, len(axes)))

    def _chances(self) -> list[tuple[int, float]]:
        axes: Any = self.axes
        p = self.p if isinstance(self.p, tuple) else (self.p,) * len(axes)
        return list(zip(axes, p, strict=True))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the axes to flip, or None."""
        random = generator.random(3).tolist()
        flat = flat_axes(plan) if self.axes == (0, 1, 2) else ()
        if self.one:
            axes: Any = [axis for axis, _ in self._chances() if axis not in flat]
            if not axes:
                return None
            return (
                {"axes": [axes[int(random[1] * len(axes))]]}
                if random[0] < self._chances()[0][1]
                else None
            )
        # A number belongs to an axis, whatever other axes are listed.
        found = [a for a, chance in self._chances() if random[a] < chance and a not in flat]
        return {"axes": found} if found else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the mirrored plan."""
        return plan.then(mirror(plan, drawn["axes"]), plan.shape, lattice=True)

    def describe(self) -> str:
        """Return the axes in words."""
        if self.one:
            axes: Any = self.axes
            chance = f" (p={self.p:g})" if self.p != 1 else ""
            return f"flip one of the axes {', '.join(map(str, axes))}{chance}"
        each = [f"axis {a}" + (f" (p={p:g})" if p != 1 else "") for a, p in self._chances()]
        return f"flip {', '.join(each)}"


def mirror(plan: SpatialPlan, axes: Sequence[int]) -> Affine3x4:
    """Return the pull-back that reverses ``axes`` of the plan's output."""
    signs, shift = [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]
    for axis in axes:
        signs[axis], shift[axis] = -1.0, plan.shape[axis] - 1.0
    i, j, k = signs
    return affine((i, 0.0, 0.0, 0.0, j, 0.0, 0.0, 0.0, k), shift)
