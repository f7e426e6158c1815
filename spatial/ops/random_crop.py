"""RandomCrop: a box of random size, at a random place or in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...core.errors import PatchSizeError
from ...core.validate import as_flag, entries_of, is_integer
from ..plans.matrices import flat_axes
from ..plans.plan import SpatialPlan
from .crop import centred_start, part_of
from .op import Drawn
from .parameters import Amount, amount_at, as_amount


@dataclass(frozen=True)
class RandomCrop:
    """Keep a box whose size or place is drawn; every place where it fits is as likely.

    A range (low, high) is drawn for each axis on its own: of sizes each whole number, ends
    included, of scales uniformly.

    Examples
    --------
    >>> RandomCrop((48, 96)).describe()
    'random crop (48, 96)'
    >>> RandomCrop(scale=(0.5, 1), center=True).describe()
    'random crop of (0.5, 1.0) in the middle'
    """

    size: Any = None
    """Number of voxels: one number or range, of 2-D data in their plane; or three of them."""
    scale: Amount | None = None
    """Part of each axis instead, above 0 and up to 1: a number, a range, or three of them;
    ``ceil(scale * n)`` voxels of n."""
    center: bool = False
    """Whether the box lies in the middle, so that only its size is drawn."""
    hard: bool = False
    """Whether what lies outside is gone; a soft crop lets later ops take from it."""

    name: ClassVar[str] = "random_crop"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.size is None) == (self.scale is None):
            msg = f"random_crop takes a size or a scale, got {self.size!r} and {self.scale!r}"
            raise ValueError(msg)
        object.__setattr__(self, "hard", as_flag("hard", self.hard))
        object.__setattr__(self, "center", as_flag("center", self.center))
        if self.size is not None:
            object.__setattr__(self, "size", _sizes(self.size))
            return
        scale = as_amount("scale", self.scale, positive=True)
        if max(_numbers(scale)) > 1:
            msg = f"scale is a part above 0 and up to 1, got {self.scale!r}"
            raise ValueError(msg)
        object.__setattr__(self, "scale", scale)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the box."""
        random = generator.random(6).tolist()
        size = self._size(random[:3], plan)
        start = centred_start(plan.shape, size)
        if not self.center:
            places = zip(random[3:], plan.shape, size, start, strict=True)
            start = [min(int(u * (n - s + 1)), n - s) if n >= s else c for u, n, s, c in places]
        return {"start": start, "size": size}

    def _size(self, random: Sequence[float], plan: SpatialPlan) -> list[int]:
        if self.scale is not None:
            parts = amount_at(random, self.scale)
            return [part_of(n, part) for n, part in zip(plan.shape, parts, strict=True)]
        is_each = len(entries_of(self.size)) == 3
        each = self.size if is_each else (self.size,) * 3
        ranges = [v if isinstance(v, tuple) else (v, v) for v in each]
        drawn = zip(random, ranges, strict=True)
        size = [min(low + int(u * (high - low + 1)), high) for u, (low, high) in drawn]
        flat = () if is_each else flat_axes(plan)
        return [1 if axis in flat else s for axis, s in enumerate(size)]

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the box.

        Raises
        ------
        PatchSizeError
            The grid is smaller than the box.
        """
        start, size = drawn["start"], drawn["size"]
        if any(s > n for s, n in zip(size, plan.shape, strict=True)):
            raise PatchSizeError(
                f"a random crop of {tuple(size)} needs a grid as large, which has {plan.shape}",
                do="Make it smaller, or pad before: pad(size=...).",
            )
        return plan.crop(start, size, hard=self.hard)

    def describe(self) -> str:
        """Return the sizes in words."""
        what = f"{self.size}" if self.scale is None else f"of {self.scale}"
        hard = "hard " if self.hard else ""
        return f"{hard}random crop {what}{' in the middle' if self.center else ''}"


def _numbers(value: Any) -> list[Any]:
    entries = entries_of(value)
    return [number for v in entries for number in _numbers(v)] if entries else [value]


def _sizes(value: Any) -> Any:
    each = entries_of(value)
    if len(each) == 3:
        return tuple(_one(v, value) for v in each)
    return _one(value, value)


def _one(value: Any, given: Any) -> int | tuple[int, int]:
    ends = entries_of(value) or (value,) * 2
    if len(ends) != 2 or not all(is_integer(v) and v >= 1 for v in ends) or ends[0] > ends[1]:
        raise PatchSizeError(
            "a size is a number of voxels >= 1, a range (low, high) of them with low <= high, or "
            f"three of these, one per axis; got {given!r}",
        )
    low, high = (int(v) for v in ends)
    return (low, high) if entries_of(value) else low
