"""Crop: a box of the present grid, at a place that is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from ...core.errors import PatchSizeError
from ...core.validate import LATER, as_choice, as_flag, entries_of, is_integer, is_number
from ..plans.mapping import without_noise
from ..plans.matrices import flat_axes
from ..plans.plan import SpatialPlan
from .op import Amount, Drawn, amount_at, as_amount, as_triple, size_of, size_on, size_text

CropSide = Literal["end", "start", "center"]
"""Where an odd voxel is cut off or added; see :func:`centred_start`."""
CROP_SIDES = ("end", "start", "center")


def side_text(side: str) -> str:
    """Return where an odd voxel goes, in words; nothing for the end."""
    return "" if side == "end" else f", odd voxels at the {side}"


@dataclass(frozen=True)
class Crop:
    """Keep the voxels ``start <= index < end`` of the present grid.

    Say where by one of: start and size, start and end, center and size, slices.

    Examples
    --------
    >>> Crop((2, 0, 1), (4, 4, 4)).describe()
    'crop 2:6, 0:4, 1:5'
    >>> Crop((2, 0, 1), end=(6, 4, 5)) == Crop((2, 0, 1), (4, 4, 4))
    True
    >>> Crop(center=(4, 2, 3), size=4) == Crop((2, 0, 1), (4, 4, 4))
    True
    >>> Crop(slices=(slice(2, 6), slice(None), slice(-3, None))).describe()
    'crop 2:6, :, -3:'
    """

    start: Sequence[int] | None = None
    """First voxel on each axis."""
    size: Any = None
    """Number of voxels: one number, of 2-D data in their plane, or one per axis, of which None
    keeps an axis."""
    end: Sequence[int] | None = None
    """First voxel behind the box, on each axis; instead of ``size``."""
    center: Sequence[int] | None = None
    """Voxel in the middle, the upper one of two; instead of ``start``."""
    slices: Any = None
    """Three slices of step 1, which mean what they do for NumPy: negative numbers count from the
    end, and what goes further stops there."""
    hard: bool = False
    """Whether what lies outside is gone; a soft crop lets later ops take from it."""

    name: ClassVar[str] = "crop"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hard", as_flag("hard", self.hard))
        names = ("start", "size", "end", "center", "slices")
        given = {name for name in names if getattr(self, name) is not None}
        if given not in _WAYS:
            msg = (
                "crop takes start and size, start and end, center and size, or slices; "
                f"got {', '.join(sorted(given)) or 'nothing'}"
            )
            raise ValueError(msg)
        if "slices" in given:
            object.__setattr__(self, "slices", _ends_of(self.slices))
            return
        start: Any
        size: Any
        if "end" in given:
            start, end = as_triple("start", self.start, low=0), as_triple("end", self.end, low=0)
            size = tuple(b - a for a, b in zip(start, end, strict=True))
            if min(size) < 1:
                msg = f"crop needs start < end on each axis, got {start} and {end}"
                raise PatchSizeError(msg)
        else:
            size = size_of("size", self.size)
            start = self.start
        if "center" in given:
            middle = as_triple("center", self.center, low=0)
            if isinstance(size, int) and 0 in middle:
                # Which voxels that are depends on whether the axis has more than this one.
                object.__setattr__(self, "center", middle)
                object.__setattr__(self, "size", size)
                return
            size = (size,) * 3 if isinstance(size, int) else size
            start = _begun(middle, size)
        # One form for all ways, so that what is the same compares equal.
        object.__setattr__(self, "start", as_triple("start", start, low=0))
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "end", None)
        object.__setattr__(self, "center", None)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the box.

        Raises
        ------
        PatchSizeError
            The slices leave nothing of the grid, or a box about a voxel begins before it.
        """
        if self.slices is None:
            size = size_on(self.size, plan)
            start: Any = self.start if self.center is None else _begun(self.center, size)
            return {"start": list(start), "size": list(size)}
        ends = [
            slice(*pair).indices(n)[:2] for pair, n in zip(self.slices, plan.shape, strict=True)
        ]
        if any(a >= b for a, b in ends):
            raise PatchSizeError(f"crop {self._words()} leaves nothing of {plan.shape} voxels")
        return {"start": [a for a, _ in ends], "size": [b - a for a, b in ends]}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the box.

        Raises
        ------
        PatchSizeError
            The box does not lie in the grid.
        """
        start, size = drawn["start"], drawn["size"]
        if any(a + s > n for a, s, n in zip(start, size, plan.shape, strict=True)):
            box = ", ".join(f"{a}:{a + s}" for a, s in zip(start, size, strict=True))
            raise PatchSizeError(
                f"the crop {box} leaves the grid, which has {plan.shape} voxels",
                do="Make it smaller, or use crop_or_pad, which fills what is missing.",
            )
        return plan.crop(start, size, hard=self.hard)

    def describe(self) -> str:
        """Return the box in words."""
        return f"{'hard ' if self.hard else ''}crop {self._words()}"

    def _words(self) -> str:
        pairs: Any = self.slices
        if self.center is not None:
            return f"{size_text(self.size)} about {', '.join(map(str, self.center))}"
        if isinstance(self.size, int):
            return f"{size_text(self.size)} from {', '.join(map(str, self.start or ()))}"
        if pairs is None:
            sizes = zip(self.start or (), self.size, strict=True)
            pairs = [(a, None if s is None else a + s) for a, s in sizes]
        return ", ".join(f"{'' if a is None else a}:{'' if b is None else b}" for a, b in pairs)


def _begun(middle: Sequence[int], size: Sequence[int | None]) -> tuple[int, ...]:
    """Return where a box about a voxel begins; an axis that is kept, at its first voxel."""
    start = tuple(0 if s is None else c - s // 2 for c, s in zip(middle, size, strict=True))
    if min(start) < 0:
        raise PatchSizeError(
            f"a crop of {tuple(size)} about {tuple(middle)} begins before the grid, at {start}",
            do="Make it smaller, or pad before.",
        )
    return start


_WAYS = ({"start", "size"}, {"start", "end"}, {"center", "size"}, {"slices"})


def _ends_of(value: Any) -> tuple[tuple[int | None, int | None], ...]:
    """Return slices as pairs, which compare, hash and travel in every version of Python."""
    each = entries_of(value)
    if len(each) != 3 or not all(isinstance(s, slice) and s.step in (None, 1) for s in each):
        msg = f"crop takes three slices of step 1, one per axis, got {value!r}"
        raise ValueError(msg)
    for end in (end for s in each for end in (s.start, s.stop)):
        if end is not None and not hasattr(end, "__index__"):
            msg = f"slices have whole numbers, got {value!r}"
            raise ValueError(msg)
    return tuple(
        (None if s.start is None else int(s.start), None if s.stop is None else int(s.stop))
        for s in each
    )


@dataclass(frozen=True)
class CenterCrop:
    """Keep a box about the centre; where a voxel is left over, ``side`` says where it is cut off.

    Examples
    --------
    >>> CenterCrop((4, 4, 4)).describe()
    'center crop 4x4x4'
    >>> CenterCrop(scale=0.5).describe()
    'center crop of 0.5'
    """

    size: Any = None
    """Number of voxels: one number, of 2-D data in their plane, or one per axis, of which None
    keeps an axis."""
    scale: Any = None
    """Part of each axis instead, above 0 and up to 1, one number or three: ``ceil(scale * n)``
    voxels of n."""
    hard: bool = False
    """Whether what lies outside is gone."""
    side: CropSide = field(default="end", metadata=LATER)
    """Where an odd voxel is cut off: at the ``"end"``, at the ``"start"``, or, with ``"center"``,
    where voxel ``n // 2`` becomes voxel ``size // 2``."""

    name: ClassVar[str] = "center_crop"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hard", as_flag("hard", self.hard))
        object.__setattr__(self, "side", as_choice("side", self.side, CROP_SIDES))
        if (self.size is None) == (self.scale is None):
            msg = f"center_crop takes a size or a scale, got {self.size!r} and {self.scale!r}"
            raise ValueError(msg)
        if self.scale is None:
            object.__setattr__(self, "size", size_of("size", self.size))
        else:
            object.__setattr__(self, "scale", _scales(self.scale))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the size."""
        if self.scale is None:
            return {"size": list(size_on(self.size, plan))}
        return {"size": [part_of(n, s) for n, s in zip(plan.shape, self.scale, strict=True)]}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the box.

        Raises
        ------
        PatchSizeError
            The grid is smaller than the box.
        """
        size = drawn["size"]
        if any(s > n for s, n in zip(size, plan.shape, strict=True)):
            raise PatchSizeError(
                f"a center crop of {tuple(size)} needs a grid as large, which has {plan.shape}",
                do="Make it smaller, or use crop_or_pad, which fills what is missing.",
            )
        return plan.crop(centred_start(plan.shape, size, self.side), size, hard=self.hard)

    def describe(self) -> str:
        """Return the size in words."""
        hard, odd = "hard " if self.hard else "", side_text(self.side)
        if self.scale is None:
            return f"{hard}center crop {size_text(self.size)}{odd}"
        same = len(set(self.scale)) == 1
        part = f"{self.scale[0]:g}" if same else " x ".join(f"{s:g}" for s in self.scale)
        return f"{hard}center crop of {part}{odd}"


def _scales(value: Any) -> tuple[float, ...]:
    each = entries_of(value) or (value,) * 3
    fits = len(each) == 3 and all(map(is_number, each))
    if not fits or not all(0 < float(v) <= 1 for v in each):
        msg = f"scale is a part above 0 and up to 1, or three, got {value!r}"
        raise ValueError(msg)
    return tuple(float(v) for v in each)


def part_of(count: int, scale: float) -> int:
    """Return how many of ``count`` voxels a part of them is, rounded up, at least one.

    Examples
    --------
    >>> part_of(10, 0.55), part_of(10, 0.7)
    (6, 7)
    """
    # 10 * 0.7 is 7.000000000000001 on some machines; that is 7, not 8.
    return min(count, max(1, math.ceil(without_noise(count * scale))))


def centred_start(shape: Sequence[int], size: Sequence[int], side: CropSide = "end") -> list[int]:
    """Return where a box of ``size`` starts about the centre of ``shape``; negative if larger.

    With ``"end"`` an odd voxel is cut off and added at the end, with ``"start"`` at the start, so
    that cropping what was padded gives back the original. With ``"center"`` it is added at the end
    and cut off where voxel ``n // 2`` becomes voxel ``size // 2``.

    Examples
    --------
    >>> centred_start((5, 4, 3), (2, 4, 6))
    [1, 0, -1]
    >>> centred_start((5, 4, 3), (2, 4, 6), "start")
    [2, 0, -2]
    >>> centred_start((5, 4, 3), (2, 3, 6), "center")
    [1, 1, -1]
    """
    pairs = list(zip(shape, size, strict=True))
    if side == "start":
        return [(n - s + 1) // 2 if n >= s else (n - s) // 2 for n, s in pairs]
    if side == "center":
        return [n // 2 - s // 2 if n >= s else -((s - n) // 2) for n, s in pairs]
    return [(n - s) // 2 if n >= s else -((s - n) // 2) for n, s in pairs]


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
