"""Pad: more voxels around the present grid, made by the padding rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from ...core.validate import LATER, as_choice, as_flag, entries_of, is_integer
from ..plans.matrices import flat_axes
from ..plans.plan import SpatialPlan
from .crop import CROP_SIDES, CropSide, centred_start, side_text
from .op import Drawn, Size, one_or_three, size_of, size_on, size_text

Pairs = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
Where = Literal["both", "end"]
"""``"both"``: an even part before and after, an odd voxel to one side; ``"end"``: after."""
WHERES = ("both", "end")
Side = Literal["end", "start"]
"""Of both sides, the one that gets an odd voxel."""
SIDES = ("end", "start")


@dataclass(frozen=True)
class Pad:
    """Add voxels before and after on each axis: so many, or as many as a size lacks.

    What they hold follows the padding of the volume's policy; where the present grid is a soft
    crop, they are the voxels that really lie there.

    Examples
    --------
    >>> Pad((2, 2, 0)).describe()
    'pad 2+2, 2+2, 0+0'
    >>> Pad(size=(64, 64, 32)).describe()
    'pad to 64x64x32'
    """

    amount: Any = None
    """Voxels on every side, of 2-D data in their plane; or three numbers, per axis; or three
    pairs (before, after)."""
    size: Size | None = None
    """Least number of voxels, instead of amounts: one number, of 2-D data in their plane, or one
    per axis. An axis that has them stays as it is."""
    where: Where = "both"
    """Where ``size`` adds: on both sides, or at the ``"end"``."""
    side: Side = field(default="end", metadata=LATER)
    """Of both sides, the one that gets an odd voxel: ``"end"`` or ``"start"``."""

    name: ClassVar[str] = "pad"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.amount is None) == (self.size is None):
            msg = f"pad takes an amount or a size, got amount={self.amount!r}, size={self.size!r}"
            raise ValueError(msg)
        if self.amount is not None:
            object.__setattr__(self, "amount", _amount(self.amount))
        else:
            object.__setattr__(self, "size", one_or_three("size", self.size, least=1))
        object.__setattr__(self, "where", as_choice("where", self.where, WHERES))
        object.__setattr__(self, "side", as_choice("side", self.side, SIDES))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the amounts."""
        if self.size is not None:
            size = size_on(self.size, plan)
            return {"amount": lacking(plan.shape, size, self.where, self.side)}
        if isinstance(self.amount, int):
            flat, n = flat_axes(plan), self.amount
            return {"amount": [[0, 0] if axis in flat else [n, n] for axis in range(3)]}
        return {"amount": [list(pair) for pair in self.amount]}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the larger grid."""
        return widened(plan, drawn["amount"])

    def describe(self) -> str:
        """Return the amounts in words."""
        if self.size is not None:
            size = "x".join(map(str, entries_of(self.size) or (self.size,)))
            return f"pad to {size}{told_where(self.where, self.side)}"
        pairs = ((self.amount,) * 2,) * 3 if isinstance(self.amount, int) else self.amount
        return f"pad {', '.join(f'{a}+{b}' for a, b in pairs)}"


def told_where(where: Where, side: Side) -> str:
    """Return where voxels are added, in words; nothing for both sides, odd ones at the end."""
    if where == "end":
        return " at the end"
    return "" if side == "end" else ", odd voxels at the start"


def lacking(shape: Sequence[int], size: Sequence[int], where: Where, side: Side) -> list[list[int]]:
    """Return what ``shape`` lacks of ``size``, before and after on each axis.

    Examples
    --------
    >>> lacking((5, 4, 9), (8, 8, 8), "both", "end")
    [[1, 2], [2, 2], [0, 0]]
    """
    missing = [max(s - n, 0) for n, s in zip(shape, size, strict=True)]
    if where == "end":
        return [[0, m] for m in missing]
    before = [m // 2 if side == "end" else m - m // 2 for m in missing]
    return [[a, m - a] for a, m in zip(before, missing, strict=True)]


def widened(plan: SpatialPlan, pairs: Sequence[Sequence[int]]) -> SpatialPlan:
    """Return the plan with so many voxels more before and after on each axis."""
    size = [n + a + b for n, (a, b) in zip(plan.shape, pairs, strict=True)]
    return plan.crop([-a for a, _ in pairs], size)


def _amount(value: Any) -> int | Pairs:
    if is_integer(value) and value >= 0:
        return int(value)
    per_axis = list(value) if isinstance(value, (tuple, list, np.ndarray)) else [value] * 3
    pairs = [tuple(v) if isinstance(v, (tuple, list, np.ndarray)) else (v, v) for v in per_axis]
    fits = len(pairs) == 3 and all(len(pair) == 2 for pair in pairs)
    if not fits or not all(is_integer(v) and v >= 0 for pair in pairs for v in pair):
        msg = f"pad takes an integer >= 0, three of them, or three pairs of them, got {value!r}"
        raise ValueError(msg)
    (a, b), (c, d), (e, f) = pairs
    return ((int(a), int(b)), (int(c), int(d)), (int(e), int(f)))


@dataclass(frozen=True)
class DivisiblePad:
    """Add voxels until each axis has a multiple of ``k``.

    Examples
    --------
    >>> DivisiblePad(16).describe()
    'pad to multiples of 16'
    """

    k: Size
    """The divisor: one number, of 2-D data in their plane, or one per axis; 1 leaves an axis."""
    where: Where = "both"
    """On both sides, or at the ``"end"``."""
    side: Side = field(default="end", metadata=LATER)
    """Of both sides, the one that gets an odd voxel: ``"end"``, or ``"start"`` as in TorchIO."""

    name: ClassVar[str] = "divisible_pad"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", one_or_three("k", self.k, least=1))
        object.__setattr__(self, "where", as_choice("where", self.where, WHERES))
        object.__setattr__(self, "side", as_choice("side", self.side, SIDES))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the amounts."""
        each = entries_of(self.k)
        flat = () if each else flat_axes(plan)
        divisors = [1 if axis in flat else k for axis, k in enumerate(each or (self.k,) * 3)]
        size = [-(-n // k) * k for n, k in zip(plan.shape, divisors, strict=True)]
        return {"amount": lacking(plan.shape, size, self.where, self.side)}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the larger grid."""
        return widened(plan, drawn["amount"])

    def describe(self) -> str:
        """Return the divisors in words."""
        k = "x".join(map(str, entries_of(self.k) or (self.k,)))
        return f"pad to multiples of {k}{told_where(self.where, self.side)}"


@dataclass(frozen=True)
class CropOrPad:
    """Cut or add voxels on each axis until the grid has ``size``; ``side`` says where odd ones.

    Examples
    --------
    >>> CropOrPad((64, 64, 32)).describe()
    'crop or pad to 64x64x32'
    >>> CropOrPad(64, side="start").describe()
    'crop or pad to 64x64x64, odd voxels at the start'
    """

    size: Any
    """Number of voxels: one number, of 2-D data in their plane, or one per axis, of which None
    keeps an axis."""
    hard: bool = False
    """Whether what is cut off is gone; a soft crop lets later ops take from it."""
    side: CropSide = field(default="end", metadata=LATER)
    """Where an odd voxel is cut off or added: at the ``"end"``, or at the ``"start"`` as TorchIO
    does. With ``"center"``, as MONAI, it is added at the end, and cut off where voxel ``n // 2``
    becomes voxel ``size // 2``: of an even number at the start, of an odd one at the end."""

    name: ClassVar[str] = "crop_or_pad"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hard", as_flag("hard", self.hard))
        object.__setattr__(self, "size", size_of("size", self.size))
        object.__setattr__(self, "side", as_choice("side", self.side, CROP_SIDES))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the size."""
        return {"size": list(size_on(self.size, plan))}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the grid with that size."""
        size = drawn["size"]
        return plan.crop(centred_start(plan.shape, size, self.side), size, hard=self.hard)

    def describe(self) -> str:
        """Return the size in words."""
        size = f"{size_text(self.size)}{side_text(self.side)}"
        return f"{'hard ' if self.hard else ''}crop or pad to {size}"
