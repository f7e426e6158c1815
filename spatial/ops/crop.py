"""Crops and pads: a box of the present grid, at a given or drawn place, or a larger grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from ...core.errors import PatchSizeError
from ...core.suggest import numbers_of
from ...core.validate import (
    LATER,
    FieldChecks,
    as_choice,
    as_flag,
    entries_of,
    is_integer,
    is_number,
    or_none,
)
from ..plans.mapping import without_noise
from ..plans.matrices import flat_axes
from ..plans.plan import SpatialPlan
from .op import (
    Amount,
    CropSide,
    Params,
    Size,
    as_amount,
    as_triple,
    centred_start,
    one_or_three,
    per_axis,
    random_start,
    size_of,
    size_on,
    size_text,
)


class _Cropping(FieldChecks):
    """Shared behaviour of ops that cut voxels off."""

    lattice: ClassVar[bool] = True
    places: ClassVar[bool] = True
    checks: ClassVar[Any] = {"hard": as_flag}


_as_crop_side = partial(as_choice, choices=("end", "start", "center"))


def side_text(side: str) -> str:
    """Return the text for the side of an odd voxel; empty for the end."""
    return "" if side == "end" else f", odd voxels at the {side}"


def _ends_of(name: str, value: Any) -> tuple[tuple[int | None, int | None], ...]:
    """Return slices as pairs, which compare, hash and travel in every version of Python."""
    each = entries_of(value)
    if len(each) != 3 or not all(isinstance(s, slice) and s.step in (None, 1) for s in each):
        raise ValueError(f"crop takes three slices of step 1, one per axis, got {value!r}")
    for end in (end for s in each for end in (s.start, s.stop)):
        if end is not None and not hasattr(end, "__index__"):
            raise ValueError(f"{name} have whole numbers, got {value!r}")
    return tuple(
        (None if s.start is None else int(s.start), None if s.stop is None else int(s.stop))
        for s in each
    )


@dataclass(frozen=True)
class Crop(_Cropping):
    """Keep the voxels ``start <= index < end`` of the present grid.

    Give one of: start and size, start and end, center and size, slices.

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
    """Voxels: one number (of 2-D data in their plane), or one per axis; None keeps an axis."""
    end: Sequence[int] | None = None
    """First voxel after the box, on each axis; instead of ``size``."""
    center: Sequence[int] | None = None
    """Voxel in the middle, the upper one of two; instead of ``start``."""
    slices: Any = None
    """Three slices of step 1, with NumPy's rules for negative and for large numbers."""
    hard: bool = False
    """Whether the voxels outside are gone; a soft crop lets later ops read them."""

    name: ClassVar[str] = "crop"
    checks: ClassVar[Any] = {
        **dict.fromkeys(("start", "end", "center"), or_none(partial(as_triple, low=0))),
        "size": or_none(size_of),
        "slices": or_none(_ends_of),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("start", "size", "end", "center", "slices")
        way = {name for name in names if getattr(self, name) is not None}
        if way not in _WAYS:
            msg = "crop takes start and size, start and end, center and size, or slices; "
            raise ValueError(f"{msg}got {', '.join(sorted(way)) or 'nothing'}")
        if self.start is not None and self.end is not None:
            size = tuple(b - a for a, b in zip(self.start, self.end, strict=True))
            if min(size) < 1:
                ends = f"{self.start} and {self.end}"
                raise PatchSizeError(f"crop needs start < end on each axis, got {ends}")
            self.__dict__.update(size=size, end=None)
        # With a 0 the voxels depend on whether the axis has more than this one.
        if self.center is not None and not (isinstance(self.size, int) and 0 in self.center):
            size = (self.size,) * 3 if isinstance(self.size, int) else self.size
            self.__dict__.update(start=_start_about(self.center, size), size=size, center=None)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        if self.slices is None:
            size = size_on(self.size, plan)
            start: Any = self.start if self.center is None else _start_about(self.center, size)
            return {"start": list(start), "size": list(size)}
        ends = [
            slice(*pair).indices(n)[:2] for pair, n in zip(self.slices, plan.shape, strict=True)
        ]
        if any(a >= b for a, b in ends):
            raise PatchSizeError(f"crop {self._words()} leaves nothing of {plan.shape} voxels")
        return {"start": [a for a, _ in ends], "size": [b - a for a, b in ends]}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        start, size = params["start"], params["size"]
        if any(a + s > n for a, s, n in zip(start, size, plan.shape, strict=True)):
            box = ", ".join(f"{a}:{a + s}" for a, s in zip(start, size, strict=True))
            msg = f"the crop {box} leaves the grid, which has {plan.shape} voxels"
            do = "Make it smaller, or use crop_or_pad, which fills what is missing."
            raise PatchSizeError(msg, do=do)
        return plan.crop(start, size, hard=self.hard)

    def describe(self) -> str:
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


def _start_about(middle: Sequence[int], size: Sequence[int | None]) -> tuple[int, ...]:
    """Return where a box about a voxel begins; an axis that is kept, at its first voxel."""
    start = tuple(0 if s is None else c - s // 2 for c, s in zip(middle, size, strict=True))
    if min(start) < 0:
        msg = f"a crop of {tuple(size)} about {tuple(middle)} begins before the grid, at {start}"
        raise PatchSizeError(msg, do="Make it smaller, or pad before.")
    return start


_WAYS = ({"start", "size"}, {"start", "end"}, {"center", "size"}, {"slices"})


def _scales(name: str, value: Any) -> tuple[float, ...]:
    each = entries_of(value) or (value,) * 3
    fits = len(each) == 3 and all(map(is_number, each))
    if not fits or not all(0 < float(v) <= 1 for v in each):
        raise ValueError(f"{name} is a part above 0 and up to 1, or three, got {value!r}")
    return tuple(float(v) for v in each)


@dataclass(frozen=True)
class CenterCrop(_Cropping):
    """Keep a box about the centre; ``side`` decides where an odd voxel is cut off.

    Examples
    --------
    >>> CenterCrop((4, 4, 4)).describe()
    'center crop 4x4x4'
    >>> CenterCrop(scale=0.5).describe()
    'center crop of 0.5'
    """

    size: Any = None
    """Voxels: one number (of 2-D data in their plane), or one per axis; None keeps an axis."""
    scale: Any = None
    """Part of each axis instead, in (0, 1], one number or three: ``ceil(scale * n)`` voxels."""
    hard: bool = False
    """Whether the voxels outside are gone."""
    side: CropSide = field(default="end", metadata=LATER)
    """Where an odd voxel is cut off: at the ``"end"``, at the ``"start"``, or, with ``"center"``,
    where voxel ``n // 2`` becomes voxel ``size // 2``."""

    name: ClassVar[str] = "center_crop"
    checks: ClassVar[Any] = {
        "side": _as_crop_side,
        "size": or_none(size_of),
        "scale": or_none(_scales),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.size is None) == (self.scale is None):
            msg = f"center_crop takes a size or a scale, got {self.size!r} and {self.scale!r}"
            raise ValueError(msg)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        if self.scale is None:
            return {"size": list(size_on(self.size, plan))}
        return {"size": [part_of(n, s) for n, s in zip(plan.shape, self.scale, strict=True)]}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        size = params["size"]
        _refuse_larger("center", size, plan, "use crop_or_pad, which fills what is missing.")
        return plan.crop(centred_start(plan.shape, size, self.side), size, hard=self.hard)

    def describe(self) -> str:
        hard, odd = "hard " if self.hard else "", side_text(self.side)
        if self.scale is None:
            return f"{hard}center crop {size_text(self.size)}{odd}"
        same = len(set(self.scale)) == 1
        part = f"{self.scale[0]:g}" if same else " x ".join(f"{s:g}" for s in self.scale)
        return f"{hard}center crop of {part}{odd}"


def _refuse_larger(kind: str, size: Sequence[int], plan: SpatialPlan, do: str) -> None:
    if any(s > n for s, n in zip(size, plan.shape, strict=True)):
        msg = f"a {kind} crop of {tuple(size)} needs a grid as large, which has {plan.shape}"
        raise PatchSizeError(msg, do=f"Make it smaller, or {do}")


def part_of(count: int, scale: float) -> int:
    """Return ``count * scale`` voxels, rounded up, at least one."""
    # 10 * 0.7 is 7.000000000000001 on some machines; that is 7, not 8.
    return min(count, max(1, math.ceil(without_noise(count * scale))))


def _sizes(name: str, value: Any) -> Any:
    each = entries_of(value)
    return tuple(_one(v, value) for v in each) if len(each) == 3 else _one(value, value)


def _one(value: Any, whole: Any) -> int | tuple[int, int]:
    ends = entries_of(value) or (value,) * 2
    if len(ends) != 2 or not all(is_integer(v) and v >= 1 for v in ends) or ends[0] > ends[1]:
        msg = "a size is a number of voxels >= 1, a range (low, high) of them with low <= high, or "
        raise PatchSizeError(f"{msg}three of these, one per axis; got {whole!r}")
    low, high = (int(v) for v in ends)
    return (low, high) if entries_of(value) else low


def _as_part(name: str, value: Any) -> Amount:
    part = as_amount(name, value, positive=True)
    if max(numbers_of(part)) > 1:
        raise ValueError(f"{name} is a part above 0 and up to 1, got {value!r}")
    return part


@dataclass(frozen=True)
class RandomCrop(_Cropping):
    """Keep a box whose size or place is drawn; every place where it fits is as likely.

    Each axis draws its own size from (low, high): whole voxels, ends included, equally likely.

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
    """Part of each axis instead, above 0 and up to 1: a number, a range, or three of them. An axis
    of n voxels keeps ``ceil(low * n)`` to ``ceil(high * n)``."""
    center: bool = False
    """Whether the box is centred, so that only its size is drawn."""
    hard: bool = False
    """Whether the voxels outside are gone; a soft crop lets later ops read them."""

    name: ClassVar[str] = "random_crop"
    checks: ClassVar[Any] = {"center": as_flag, "size": or_none(_sizes), "scale": or_none(_as_part)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.size is None) == (self.scale is None):
            msg = f"random_crop takes a size or a scale, got {self.size!r} and {self.scale!r}"
            raise ValueError(msg)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        random = generator.random(6).tolist()
        size = self._size(random[:3], plan)
        start = centred_start if self.center else partial(random_start, random[3:])
        return {"start": start(plan.shape, size), "size": size}

    def _size(self, random: Sequence[float], plan: SpatialPlan) -> list[int]:
        is_each = self.scale is not None or len(entries_of(self.size)) == 3
        each = self.size if is_each else (self.size,) * 3
        if self.scale is not None:
            parts = zip(plan.shape, per_axis(self.scale), strict=True)
            each = [tuple(part_of(n, end) for end in entries_of(v) or (v, v)) for n, v in parts]
        ranges = [v if isinstance(v, tuple) else (v, v) for v in each]
        pairs = zip(random, ranges, strict=True)
        size = [min(low + int(u * (high - low + 1)), high) for u, (low, high) in pairs]
        flat = () if is_each else flat_axes(plan)
        return [1 if axis in flat else s for axis, s in enumerate(size)]

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        _refuse_larger("random", params["size"], plan, "pad before: pad(size=...).")
        return plan.crop(params["start"], params["size"], hard=self.hard)

    def describe(self) -> str:
        what = f"{self.size}" if self.scale is None else f"of {self.scale}"
        hard = "hard " if self.hard else ""
        return f"{hard}random crop {what}{' in the middle' if self.center else ''}"


Pairs = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
Sides = Literal["both", "end"]
"""``"both"``: an even part before and after, an odd voxel to one side; ``"end"``: after."""
_as_sides = partial(as_choice, choices=("both", "end"))
Side = Literal["end", "start"]
"""Side that gets an odd voxel."""
_as_side = partial(as_choice, choices=("end", "start"))


class _Padding(FieldChecks):
    """Shared behaviour of ops that add voxels."""

    lattice: ClassVar[bool] = True
    places: ClassVar[bool] = True
    sides: Sides
    side: Side
    checks: ClassVar[Any] = {"sides": _as_sides, "side": _as_side}

    def lacking(self, shape: Sequence[int], size: Sequence[int]) -> Params:
        """Return the voxels missing from ``shape`` to ``size``, before and after on each axis."""
        missing = [max(s - n, 0) for n, s in zip(shape, size, strict=True)]
        if self.sides == "end":
            return {"amount": [[0, m] for m in missing]}
        before = [m // 2 if self.side == "end" else m - m // 2 for m in missing]
        return {"amount": [[a, m - a] for a, m in zip(before, missing, strict=True)]}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        return widen(plan, params["amount"])

    def sides_text(self) -> str:
        """Return the text for the side of added voxels; empty for both, odd ones at the end."""
        odd = "" if self.side == "end" else ", odd voxels at the start"
        return " at the end" if self.sides == "end" else odd


def _as_amount(name: str, value: Any) -> int | Pairs:
    if is_integer(value) and value >= 0:
        return int(value)
    several = (tuple, list, np.ndarray)
    axes = list(value) if isinstance(value, several) else [value] * 3
    pairs = [tuple(v) if isinstance(v, several) else (v, v) for v in axes]
    fits = len(pairs) == 3 and all(len(pair) == 2 for pair in pairs)
    if not fits or not all(is_integer(v) and v >= 0 for pair in pairs for v in pair):
        msg = f"pad takes an integer >= 0, three of them, or three pairs of them, got {value!r}"
        raise ValueError(msg)
    (a, b), (c, d), (e, f) = pairs
    return ((int(a), int(b)), (int(c), int(d)), (int(e), int(f)))


@dataclass(frozen=True)
class Pad(_Padding):
    """Add voxels before and after on each axis: a number of voxels, or up to a size.

    The policy's padding fills the new voxels, but a soft crop shows the voxels around it.

    Examples
    --------
    >>> Pad((2, 2, 0)).describe()
    'pad 2+2, 2+2, 0+0'
    >>> Pad(size=(64, 64, 32)).describe()
    'pad to 64x64x32'
    """

    amount: Any = None
    """Voxels on every side (of 2-D data in their plane), per axis, or (before, after) per axis."""
    size: Size | None = None
    """Least number of voxels, instead of amounts: one number, of 2-D data in their plane, or one
    per axis. An axis that has them stays as it is."""
    sides: Sides = "both"
    """Where ``size`` adds: on both sides, or at the ``"end"``."""
    side: Side = field(default="end", metadata=LATER)
    """Side that gets an odd voxel: ``"end"`` or ``"start"``."""

    name: ClassVar[str] = "pad"
    checks: ClassVar[Any] = {
        "amount": or_none(_as_amount),
        "size": or_none(partial(one_or_three, least=1)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.amount is None) == (self.size is None):
            msg = f"pad takes an amount or a size, got amount={self.amount!r}, size={self.size!r}"
            raise ValueError(msg)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        if self.size is not None:
            return self.lacking(plan.shape, size_on(self.size, plan))
        if isinstance(self.amount, int):
            flat, n = flat_axes(plan), self.amount
            return {"amount": [[0, 0] if axis in flat else [n, n] for axis in range(3)]}
        return {"amount": [list(pair) for pair in self.amount]}

    def describe(self) -> str:
        if self.size is not None:
            size = "x".join(map(str, entries_of(self.size) or (self.size,)))
            return f"pad to {size}{self.sides_text()}"
        pairs = ((self.amount,) * 2,) * 3 if isinstance(self.amount, int) else self.amount
        return f"pad {', '.join(f'{a}+{b}' for a, b in pairs)}"


def widen(plan: SpatialPlan, pairs: Sequence[Sequence[int]]) -> SpatialPlan:
    """Return the plan with more voxels before and after on each axis."""
    size = [n + a + b for n, (a, b) in zip(plan.shape, pairs, strict=True)]
    return plan.crop([-a for a, _ in pairs], size)


@dataclass(frozen=True)
class DivisiblePad(_Padding):
    """Add voxels until each axis has a multiple of ``k``.

    Examples
    --------
    >>> DivisiblePad(16).describe()
    'pad to multiples of 16'
    """

    k: Size
    """The divisor: one number, of 2-D data in their plane, or one per axis; 1 leaves an axis."""
    sides: Sides = "both"
    """On both sides, or at the ``"end"``."""
    side: Side = field(default="end", metadata=LATER)
    """Side that gets an odd voxel: ``"end"``, or ``"start"`` as in TorchIO."""

    name: ClassVar[str] = "divisible_pad"
    checks: ClassVar[Any] = {"k": partial(one_or_three, least=1)}

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        each = entries_of(self.k)
        flat = () if each else flat_axes(plan)
        divisors = [1 if axis in flat else k for axis, k in enumerate(each or (self.k,) * 3)]
        size = [-(-n // k) * k for n, k in zip(plan.shape, divisors, strict=True)]
        return self.lacking(plan.shape, size)

    def describe(self) -> str:
        k = "x".join(map(str, entries_of(self.k) or (self.k,)))
        return f"pad to multiples of {k}{self.sides_text()}"


@dataclass(frozen=True)
class CropOrPad(_Cropping):
    """Cut or add voxels on each axis to reach ``size``; ``side`` decides about odd ones.

    Examples
    --------
    >>> CropOrPad((64, 64, 32)).describe()
    'crop or pad to 64x64x32'
    >>> CropOrPad(64, side="start").describe()
    'crop or pad to 64x64x64, odd voxels at the start'
    """

    size: Any
    """Voxels: one number (of 2-D data in their plane), or one per axis; None keeps an axis."""
    hard: bool = False
    """Whether cut voxels are gone; a soft crop lets later ops read them."""
    side: CropSide = field(default="end", metadata=LATER)
    """Side where an odd voxel is cut off or added: ``"end"``, or ``"start"`` as in TorchIO.
    ``"center"``, as in MONAI, adds at the end, and cuts so that ``n // 2`` maps to ``size //
    2``."""

    name: ClassVar[str] = "crop_or_pad"
    checks: ClassVar[Any] = {"size": size_of, "side": _as_crop_side}

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        return {"size": list(size_on(self.size, plan))}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        size = params["size"]
        return plan.crop(centred_start(plan.shape, size, self.side), size, hard=self.hard)

    def describe(self) -> str:
        size = f"{size_text(self.size)}{side_text(self.side)}"
        return f"{'hard ' if self.hard else ''}crop or pad to {size}"


OPS = (CenterCrop, Crop, CropOrPad, DivisiblePad, Pad, RandomCrop)
