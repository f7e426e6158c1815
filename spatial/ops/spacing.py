"""Spacing: another distance between voxels over the same extent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..amounts import amount_at, as_amount, entries_of
from ..plans.plan import SpatialPlan
from ..plans.planar import flat_axes
from ..plans.voxel_box import without_noise
from .extent import Extent, as_extent, stepping, stepping_from_first
from .op import Drawn


@dataclass(frozen=True)
class Spacing:
    """Bring neighbouring voxels to a distance in millimetres along the axes of the array.

    The distance is exact; how many voxels there are follows from the extent, which can only be
    met to the nearest voxel. With ``extent="edges"`` n voxels at a become ``round(n * a / b)`` at
    b, about the same centre. With ``"centers"`` the first voxel stays where it is, and the last
    one comes as near as it can: ``round((n - 1) * a / b + 1)``. Halves go to the even number, and
    what the last digits of a header make of them (50.4999997) is a half.

    Examples
    --------
    >>> Spacing((1, 1, None)).describe()
    'spacing 1.0, 1.0, same mm'
    >>> Spacing((0.8, 1.2), extent="centers").describe()
    'spacing (0.8, 1.2) mm between centers'
    """

    spacing: Any
    """Millimetres: a number, of 2-D data in their plane; a range (low, high), drawn once for all
    axes; or three entries, of which None keeps an axis. Of 2-D data a pair is a range, too: for
    each axis its own write ``(0.5, 0.8, None)``."""
    extent: Extent = "edges"
    """What stays in its place: ``"edges"`` or ``"centers"``."""

    name: ClassVar[str] = "spacing"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "extent", as_extent(self.extent))
        each = entries_of(self.spacing)
        if len(each) == 3:
            kept = tuple(v if v is None else as_amount("spacing", v, positive=True) for v in each)
            if any(len(entries_of(v)) == 3 for v in kept):
                msg = f"spacing has one number or range per axis, got {self.spacing!r}"
                raise ValueError(msg)
            object.__setattr__(self, "spacing", kept)
        else:
            object.__setattr__(self, "spacing", as_amount("spacing", self.spacing, positive=True))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the distances."""
        random, present = generator.random(3).tolist(), plan.grid.spacing
        if len(entries_of(self.spacing)) == 3:
            given = zip(self.spacing, random, present, strict=True)
            return {"spacing": [s if v is None else amount_at([u] * 3, v)[0] for v, u, s in given]}
        drawn = amount_at(random, self.spacing, shared=True)
        flat = flat_axes(plan)
        kept = zip(drawn, present, strict=True)
        return {"spacing": [s if axis in flat else d for axis, (d, s) in enumerate(kept)]}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan on the new grid."""
        steps = [new / old for new, old in zip(drawn["spacing"], plan.grid.spacing, strict=True)]
        each = list(zip(plan.shape, steps, strict=True))
        if self.extent == "centers":
            shape = [round(without_noise((n - 1) / step + 1)) for n, step in each]
            return plan.then(stepping_from_first(steps), shape, lattice=False)
        shape = [max(1, round(without_noise(n / step))) for n, step in each]
        return plan.then(stepping(steps, plan.shape, shape), shape, lattice=False)

    def describe(self) -> str:
        """Return the distances in words."""
        each = entries_of(self.spacing)
        words = f"{self.spacing}"
        if len(each) == 3:
            words = ", ".join("same" if v is None else str(v) for v in each)
        return f"spacing {words} mm" + (" between centers" if self.extent == "centers" else "")
