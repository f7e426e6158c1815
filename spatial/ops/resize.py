"""Resize: another number of voxels over the same extent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...core.errors import PatchSizeError
from ..amounts import as_flag, entries_of, is_integer
from ..plans.plan import SpatialPlan
from ..plans.planar import flat_axes
from ..plans.voxel_box import without_noise
from .extent import Extent, as_extent, stepping
from .op import Drawn


@dataclass(frozen=True)
class Resize:
    """Give the grid ``size`` voxels that take the place of the present ones.

    With ``extent="edges"`` the outer faces of the grid stay where they are: n voxels become m at
    n/m times the distance. With ``"centers"`` the first and the last voxel centre do: the
    distance is (n-1)/(m-1) times what it was; a single voxel lies in the middle.

    Examples
    --------
    >>> Resize((64, 64, 32)).describe()
    'resize to 64x64x32'
    >>> Resize((64, 64, None), extent="centers").describe()
    'resize to 64x64xsame between centers'
    """

    size: Any
    """Number of voxels: one number, of 2-D data in their plane; or three, of which None keeps an
    axis."""
    longest: bool = False
    """Whether ``size`` is one number and that of the longest axis; the others keep their ratio to
    it, to the nearest voxel."""
    extent: Extent = "edges"
    """What stays in its place: ``"edges"`` or ``"centers"``."""

    name: ClassVar[str] = "resize"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "extent", as_extent(self.extent))
        object.__setattr__(self, "longest", as_flag("longest", self.longest))
        each = entries_of(self.size) or (self.size,)
        fits = all(v is None or (is_integer(v) and v >= 1) for v in each) and len(each) in (1, 3)
        if not fits or (len(each) == 1 and self.size is None):
            raise PatchSizeError(
                f"resize takes a number of voxels >= 1, or three, one per axis, got {self.size!r}",
                do="None in a place keeps that axis; 2-D data have K = 1.",
            )
        if self.longest and not is_integer(self.size):
            raise PatchSizeError(f"the longest axis gets one number of voxels, got {self.size!r}")
        whole = tuple(v if v is None else int(v) for v in each)
        object.__setattr__(self, "size", whole if entries_of(self.size) else whole[0])

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the size."""
        each = entries_of(self.size)
        if each:
            return {"size": [n if v is None else v for v, n in zip(each, plan.shape, strict=True)]}
        flat = flat_axes(plan)
        most = max(plan.shape)
        wanted = [
            max(1, round(without_noise(n * self.size / most))) if self.longest else self.size
            for n in plan.shape
        ]
        return {"size": [1 if axis in flat else n for axis, n in enumerate(wanted)]}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan on the new grid."""
        size = drawn["size"]
        rows = stepping(self._steps(plan.shape, size), plan.shape, size)
        return plan.then(rows, size, lattice=False)

    def _steps(self, before: Any, after: Any) -> list[float]:
        pairs = list(zip(before, after, strict=True))
        if self.extent == "edges":
            return [n / m for n, m in pairs]
        return [(n - 1) / (m - 1) if n > 1 and m > 1 else 1.0 for n, m in pairs]

    def describe(self) -> str:
        """Return the size in words."""
        each = entries_of(self.size) or (self.size,)
        size = "x".join("same" if v is None else str(v) for v in each)
        what = "longest axis to " if self.longest else "to "
        return f"resize {what}{size}" + (" between centers" if self.extent == "centers" else "")
