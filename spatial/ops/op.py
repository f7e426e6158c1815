"""The base class of spatial ops: they draw parameters, and turn a plan into the next plan.

To add one, write a frozen dataclass with these members in a file of its own, and subclass
``voxpipe.testing.SpatialOpContract`` in its test.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ...core import Grid
from ...core.draws import ChosenOps, OpStep, check_record
from ...core.errors import PatchSizeError, SampleError
from ...core.suggest import numbers_of
from ...core.validate import ParameterRange, as_probability, entries_of, is_integer, parse_range
from ..plans.matrices import flat_axes
from ..plans.plan import SpatialPlan

# Larger than any crop, so that a place in it is drawn.
_ANY_PLAN = SpatialPlan.identity(Grid((2**20,) * 3, np.eye(4)))

Params = Mapping[str, Any]
"""The parameters of one application, as plain data (JSON): enough to repeat it."""


@runtime_checkable
class SpatialOp(Protocol):
    """A spatial op: a frozen dataclass, picklable, equal by value."""

    @property
    def name(self) -> str:
        """The chained form, e.g. ``"rotate"``."""

    @property
    def lattice(self) -> bool:
        """Whether it moves whole voxels only, so that the stored type is kept."""

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        """Return the parameters for one item, or None if the op does not act on it.

        Use the generator only during this call; draws must not depend on drawn values.
        """

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        """Return the plan followed by this op with the parameters ``params``."""

    def describe(self) -> str:
        """Return the op in the words of the user, on one line."""


def displaces(op: SpatialOp) -> bool:
    """Whether an op moves voxels by more than a matrix, by its ``displaces``."""
    return bool(getattr(op, "displaces", False))


def places(op: SpatialOp) -> bool:
    """Whether an op chooses the place of a patch, as a crop or a pad, by its ``places``."""
    return bool(getattr(getattr(op, "op", op), "places", False))


def is_hard(op: SpatialOp) -> bool:
    """Whether an op may cut hard, so that the voxels outside are gone."""
    inner = getattr(op, "op", op)  # an answered op wraps its crop
    chains = getattr(op, "members", ())
    return bool(getattr(inner, "hard", False)) or any(
        is_hard(one) for chain in chains for _, one in chain
    )


@dataclass(frozen=True)
class Step(OpStep):
    """One spatial op of a chain."""

    op: SpatialOp
    """The op."""

    @property
    def looks_at_stored(self) -> bool:
        """Whether the op decides by stored voxels, and needs a plan from these."""
        return self.record is None and getattr(self.op, "looks_at_stored", False)

    def is_drawn(self, plan: SpatialPlan | None = None) -> bool:
        """Whether draws differ between items; an op that needs a plan counts as not drawn."""
        try:
            return super().is_drawn(plan or _ANY_PLAN)
        except Exception:  # a user's op may fail here: it is tried again with an item's plan
            if plan is not None:
                raise
            return False

    def draw(
        self, generator: np.random.Generator, plan: SpatialPlan, place: Any = None
    ) -> Params | None:
        """Return the parameters for one item, or None if the op does not act on it."""
        if len(plan.axes) == 2:  # of 2-D data
            refuse_third_axis(self.op)
        if self.record is None:
            at_place = None if place is None else getattr(self.op, "at_place", None)
            return self.op.draw(generator, plan) if at_place is None else at_place(place)
        params = self.record.params
        check_record(self.op, params, lambda op: op.draw(generator, plan))
        return params

    def apply(self, plan: SpatialPlan, params: Params | None) -> SpatialPlan:
        """Return the plan after this step; ``params`` None means that it does not act."""
        if params is not None:
            return self.op.then(plan, params)
        return plan if self.op.lattice else plan.interpolate()


# Values for the hidden axis of 2-D data, by op and argument.
_BOX = {"start": 0, "size": 1, "end": 1, "center": 0, "slices": slice(None)}

NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "center_crop": {"size": 1, "scale": 1},
    "crop": _BOX,
    "crop_or_pad": {"size": 1},
    "divisible_pad": {"k": 1},
    "elastic": {"spacing": lambda two: math.nextafter(max(two), math.inf)},  # no user gives it
    "foreground_crop": {"margin": 0, "divisible": 1},
    "grid_distortion": {"factors": (1.0,), "cells": 1},
    "label_crop": {"size": 1},
    "pad": {"amount": 0, "size": 1},
    "resize": {"size": 1},
    "transpose": {"axes": 2},
    "augment": {"flip": 0.0},
}
# The same where two numbers are a range: only ranges, and None, are one per axis.
NEUTRAL_OF_RANGES: Mapping[str, Mapping[str, Any]] = {
    "augment": {"zoom": 1, "translate": 0},
    "elastic": {"amount": 0},
    "random_crop": {"size": 1, "scale": 1},
    "spacing": {"spacing": None},
    "translate": {"amount": 0},
    "zoom": {"factor": 1},
}


def refuse_third_axis(op: Any) -> None:
    """Raise ``SampleError`` for an op with a value for the hidden third axis of 2-D data."""
    for one in op.ops() if isinstance(op, ChosenOps) else (op,):
        angles = getattr(one, "degrees", getattr(one, "rotate", None))
        axes = getattr(one, "axes", ())
        if isinstance(angles, tuple) and len(angles) == 3:
            msg = f"{one.name} has three angles, and 2-D data turn by one"
            raise SampleError(msg, do="Give one angle, 15, or one range, (-15, 15).")
        shears = getattr(one, "factor" if one.name == "shear" else "shear", None)
        if isinstance(shears, tuple) and len(shears) == 3:
            msg = f"{one.name} has three shears, and 2-D data have one"
            raise SampleError(msg, do="Give one shear, 0.1, or one range, (-0.1, 0.1).")
        if isinstance(axes, tuple) and len(axes) < 3 and 2 in axes:
            msg = f"{one.name} has axis 2, and 2-D data have the axes 0 and 1"
            raise SampleError(msg, do="Give axes out of 0 and 1.")
        own = {**NEUTRAL.get(one.name, {}), **NEUTRAL_OF_RANGES.get(one.name, {})}
        for argument, last in own.items():
            *two, third = entries_of(getattr(one, argument, None)) or (None,)
            last = last(two) if callable(last) and two else last
            last = third if argument in ("cells", "scale") and {*two} == {third} else last
            if len(two) == 2 and third not in (None, (None, None), last, (last, last)):
                msg = f"{one.name} has three values of {argument}=, and 2-D data have two axes"
                raise SampleError(msg, do="Give one value, or one for each of the two axes.")


Amount = ParameterRange | tuple[ParameterRange, ParameterRange, ParameterRange]
"""A scalar, a range (low, high), or three entries, each a scalar or a range."""
Size: TypeAlias = "int | Sequence[int]"
"""One whole number for all axes, or one per axis (I, J, K)."""

MOST_VOXELS = 2**24
"""Limit of voxels along an axis: a mouse brain of 10 mm at 4 nm has 2.5 million."""

_FORMS = "a number, (low, high), or one entry per axis, each a number or (low, high)"


def as_amount(name: str, value: Any, *, positive: bool = False) -> Amount:
    """Return an amount as plain floats and tuples, in the user's form.

    Examples
    --------
    >>> as_amount("degrees", [-15, 15]), as_amount("degrees", (0, 0, (-15, 15)))
    ((-15.0, 15.0), (0.0, 0.0, (-15.0, 15.0)))
    """
    entry = partial(parse_range, name, positive=positive, forms=_FORMS)
    entries = entries_of(value)
    return (*map(entry, entries),) if len(entries) == 3 else entry(value)  # type: ignore[return-value]


def as_factor(name: str, value: Any) -> Amount:
    """Return an amount of factors, above 0 and of a size that leaves something of a volume."""
    amount = as_amount(name, value, positive=True)
    numbers = numbers_of(amount)
    if min(numbers) < 1 / MOST_VOXELS or max(numbers) > MOST_VOXELS:
        raise ValueError(
            f"{name} takes factors from {1 / MOST_VOXELS:.2g} to {MOST_VOXELS:.2g}: beyond these a "
            f"volume of {MOST_VOXELS} voxels along an axis becomes less than one of them, or one "
            f"fills it; got {value!r}"
        )
    return amount


def draw_amount(
    generator: np.random.Generator, amount: Amount, *, isotropic: bool = False
) -> list[float]:
    """Return three numbers, one per axis; three doubles are always drawn."""
    return amount_at(generator.random(3).tolist(), amount, isotropic=isotropic)


def amount_at(random: Sequence[float], amount: Amount, *, isotropic: bool = False) -> list[float]:
    """Return the amounts for three uniform numbers; one for all if ``isotropic``."""
    if not isinstance(amount, tuple):
        return [amount] * 3
    if len(amount) == 2:
        low, high = amount
        u, v, w = (random[0],) * 3 if isotropic else random
        return [low + (high - low) * u, low + (high - low) * v, low + (high - low) * w]
    return [
        each[0] + (each[1] - each[0]) * u if isinstance(each, tuple) else each
        for each, u in zip(amount, random, strict=True)
    ]


def per_axis(amount: Amount) -> tuple[ParameterRange, ParameterRange, ParameterRange]:
    """Return an amount's entry for each axis."""
    return amount if isinstance(amount, tuple) and len(amount) == 3 else (amount,) * 3


def as_probabilities(
    name: str, value: Any, count: int, several: str = "one for each of the {} axes"
) -> float | tuple[float, ...]:
    """Return one probability, or one for each of ``count`` axes; ``several`` is for errors."""
    each = entries_of(value)
    if not each:
        return as_probability(name, value)
    if len(each) != count:
        raise ValueError(f"{name} is one probability, or {several.format(count)}, got {value!r}")
    return tuple(as_probability(name, entry) for entry in each)


def as_triple(name: str, value: Any, *, low: int | None = None) -> tuple[int, int, int]:
    """Return three integers, of at least ``low`` where that is given."""
    numbers = entries_of(value)
    fits = len(numbers) == 3 and all(map(is_integer, numbers))
    if not fits or (low is not None and min(numbers) < low):
        least = "" if low is None else f" >= {low}"
        raise ValueError(f"{name} takes three integers{least}, got {value!r}")
    return (int(numbers[0]), int(numbers[1]), int(numbers[2]))


def three(what: str, value: Size, *, least: int) -> tuple[int, int, int]:
    """Return three whole numbers, or one repeated; PatchSizeError for anything else.

    Examples
    --------
    >>> three("size", 96, least=1)
    (96, 96, 96)
    """
    entries = _several(value)
    numbers = ((value,) * 3 if is_integer(value) else (value,)) if entries is None else entries
    for number in numbers:
        if not is_integer(number):
            raise _not_whole(what, number, value)
    if len(numbers) != 3:
        msg = f"{what} is one whole number or three (I, J, K), got {len(numbers)} in {value!r}"
        raise PatchSizeError(msg, do=_COUNT_ADVICE.get(len(numbers), ""))
    for axis, number in enumerate(numbers):
        if number < least:
            where = f"{number} on axis {axis} of {value!r}" if value is not number else f"{number}"
            msg = f"{what} is at least {least} on each axis, got {where}"
            do = f"2-D data have K = 1: write {(*numbers[:2], 1)}."
            flat = least == 1 and axis == 2 and number == 0
            raise PatchSizeError(msg, do=do if flat else "")
    return (int(numbers[0]), int(numbers[1]), int(numbers[2]))


def _several(value: Any) -> tuple[Any, ...] | None:
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    return tuple(value) if several else None


def one_or_three(what: str, value: Any, *, least: int) -> int | tuple[int, int, int]:
    """Return one whole number as it is, where :func:`three` would repeat it."""
    sizes = three(what, value, least=least)
    return sizes[0] if is_integer(value) else sizes


def size_of(what: str, value: Any) -> Any:
    """Return one whole number as it is, or three, of which None keeps an axis.

    Examples
    --------
    >>> size_of("size", (32, 32, None)), size_of("size", 32)
    ((32, 32, None), 32)
    """
    entries = _several(value)
    if entries is None or all(v is not None for v in entries):
        return one_or_three(what, value if entries is None else entries, least=1)
    sizes = three(what, [1 if v is None else v for v in entries], least=1)
    return tuple(None if v is None else n for v, n in zip(entries, sizes, strict=True))


def size_text(size: Any) -> str:
    """Return the text of a size from :func:`size_of`: ``"32x32xall"``."""
    sizes = size if isinstance(size, tuple) else (size,) * 3
    return "x".join("all" if n is None else str(n) for n in sizes)


def size_on(size: Any, plan: SpatialPlan, *, allow_smaller: bool = False) -> tuple[int, int, int]:
    """Return a checked size for the grid of a plan: one number leaves flat axes of 2-D data.

    With ``allow_smaller`` no axis gets longer than that of the grid.
    """
    if allow_smaller:
        i, j, k = map(min, size_on(size, plan), plan.shape)
        return (i, j, k)
    if isinstance(size, tuple):
        i, j, k = (n if s is None else s for s, n in zip(size, plan.shape, strict=True))
        return (i, j, k)
    sizes = [size] * 3
    for axis in flat_axes(plan):
        sizes[axis] = 1
    i, j, k = sizes
    return (i, j, k)


CropSide = Literal["end", "start", "center"]
"""Where an odd voxel is cut off or added; see :func:`centred_start`."""


def centred_start(shape: Sequence[int], size: Sequence[int], side: CropSide = "end") -> list[int]:
    """Return where a box of ``size`` starts about the centre of ``shape``; negative if larger."""
    # Side of an odd voxel when cutting or adding:
    # - ``"end"`` and ``"start"`` cut and add at that side, so that a crop restores padded data.
    # - ``"center"`` adds at the end, and maps voxel ``n // 2`` to ``size // 2`` in a cut.
    pairs = list(zip(shape, size, strict=True))
    if side == "start":
        return [(n - s + 1) // 2 if n >= s else (n - s) // 2 for n, s in pairs]
    if side == "center":
        return [n // 2 - s // 2 if n >= s else -((s - n) // 2) for n, s in pairs]
    return [(n - s) // 2 if n >= s else -((s - n) // 2) for n, s in pairs]


def random_start(random: Sequence[float], shape: Sequence[int], size: Sequence[int]) -> list[int]:
    """Return the start of a box for numbers in [0, 1); a box that is too large is centred."""
    start = [min(int(u * (n - s + 1)), n - s) for u, n, s in zip(random, shape, size, strict=True)]
    if all(map(operator.ge, shape, size)):
        return start
    pairs = zip(start, centred_start(shape, size), shape, size, strict=True)
    return [a if n >= s else c for a, c, n, s in pairs]


def whole_number(what: str, value: int, *, least: int) -> int:
    """Return a whole number of at least ``least``; PatchSizeError for anything else."""
    if not is_integer(value) or value < least:
        msg = f"{what} is a whole number of at least {least}, got {value!r}"
        raise PatchSizeError(msg, do=_without_quotes(what, value))
    return int(value)


_COUNT_ADVICE = {
    2: "2-D data have K = 1: write (64, 64, 1).",
    4: "Leave out the channels: each patch has all channels of its volume.",
}


def _not_whole(what: str, number: Any, value: Any) -> PatchSizeError:
    inside = "" if number is value else f" in {value!r}"
    do = "Write it without a decimal point, or round it with int()."
    if not isinstance(number, float):
        do = _without_quotes(what, number) or "Write 96, or (96, 96, 48)."
    elif 0 < number < 1:
        do = "It is no part of the patch: for half of 96 voxels write 48."
    return PatchSizeError(f"{what} is counted in whole voxels, got {number!r}{inside}", do=do)


def _without_quotes(what: str, value: Any) -> str:
    """Return the advice for a number in quotes."""
    is_quoted = isinstance(value, str) and value.strip().isdecimal()
    return f"Write {what}={value.strip()}, without the quotes." if is_quoted else ""
