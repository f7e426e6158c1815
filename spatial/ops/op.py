"""What a spatial op is: it draws its parameters, and turns a plan into the next plan.

To add one, write a frozen dataclass with these members in a file of its own, and subclass
``voxpipe.testing.SpatialOpContract`` in its test.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ...core import CallSite, Grid
from ...core.call_site import is_looking_ahead, looking_ahead
from ...core.draws import RecordedDraw, check_record
from ...core.errors import PatchSizeError
from ...core.stream import is_random
from ...core.suggest import numbers_of
from ...core.validate import (
    ParameterRange,
    as_probability,
    entries_of,
    is_integer,
    parse_range,
    value_at,
)
from ..plans.matrices import flat_axes
from ..plans.plan import SpatialPlan

# Larger than what anybody crops: a place in it is drawn.
_ANY_PLAN = SpatialPlan.identity(Grid((2**20,) * 3, np.eye(4)))

Drawn = Mapping[str, Any]
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

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the parameters for one item, or None if the op does not act on it.

        The generator is lent for this call: later ones find it elsewhere. How many numbers are
        drawn, and in which order, never depends on a drawn value.
        """

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan followed by this op with the parameters ``drawn``."""

    def describe(self) -> str:
        """Return the op in the words of the user, on one line."""


def displaces(op: SpatialOp) -> bool:
    """Whether an op moves voxels by other than a matrix; it says so by a ``displaces`` of its own.

    Examples
    --------
    >>> from voxpipe.spatial import Elastic, Rotate
    >>> displaces(Rotate(15)), displaces(Elastic(1, spacing=8))
    (False, True)
    """
    return bool(getattr(op, "displaces", False))


def is_hard(op: SpatialOp) -> bool:
    """Whether an op may cut hard, so that what lies outside is gone.

    Examples
    --------
    >>> from voxpipe.spatial import CenterCrop, Rotate
    >>> is_hard(CenterCrop(8, hard=True)), is_hard(CenterCrop(8)), is_hard(Rotate(15))
    (True, False, False)
    """
    inner = getattr(op, "op", op)  # of a crop that is decided by a volume
    chains = getattr(op, "members", ())
    return bool(getattr(inner, "hard", False)) or any(
        is_hard(one) for chain in chains for _, one in chain
    )


@dataclass(frozen=True)
class Step:
    """One op where it stands in a chain."""

    op: SpatialOp
    """What is done."""
    stream_name: str
    """Name of its random numbers: the name of the pipe, unique in the chain."""
    origin: CallSite | None = None
    """Where the user wrote it."""
    depth: int | None = None
    """How many entries of the item's identity it draws from; None means all. An op that was
    applied before patches were cut draws from the case, and is the same for all its patches."""
    shared: bool = False
    """Whether chains of other sources draw alike under this name, because the user gave it."""
    recorded: RecordedDraw | None = None
    """What it does in the place of what it would draw."""

    @property
    def asks_stored(self) -> bool:
        """Whether the op looks at stored voxels to decide, and so wants the plan from these.

        Such an op says so by an ``asks_stored`` of its own.
        """
        return self.recorded is None and getattr(self.op, "asks_stored", False)

    def is_drawn(self, plan: SpatialPlan | None = None) -> bool:
        """Whether items get different parameters, or some get none, by what is drawn for them.

        Parameters
        ----------
        plan
            What it is done to. Without one nothing is known of ops that have to look at voxels
            or at the size of a volume; these count as if nothing was drawn.
        """
        if self.recorded is not None:
            return False
        if plan is not None:
            return is_random(lambda generator: self.op.draw(generator, plan))
        try:
            return is_random(lambda generator: self.op.draw(generator, _ANY_PLAN))
        except Exception:  # an op may be the user's: it is asked again with the plan of an item
            return False

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the parameters for one item, or None if the op does not act on it."""
        if self.recorded is None:
            return self.op.draw(generator, plan)
        drawn = self.recorded.drawn
        check_record(self.op, drawn, lambda op: op.draw(generator, plan))
        return drawn

    def describe(self) -> str:
        """Return the op in the words of the user."""
        return self.op.describe() + (", replayed" if self.recorded is not None else "")

    def apply(self, plan: SpatialPlan, drawn: Drawn | None) -> SpatialPlan:
        """Return the plan after this step; ``drawn`` None means that it does not act."""
        if drawn is not None:
            return self.op.then(plan, drawn)
        return plan if self.op.lattice else plan.interpolated()


@contextmanager
def without_reading() -> Iterator[None]:
    """Let plans be estimated: where no mask is at hand, :func:`sampling_mask` returns None."""
    with looking_ahead():
        yield


def may_read() -> bool:
    """Whether plans may ask for voxels now; not while they are only estimated."""
    return not is_looking_ahead()


Amount = ParameterRange | tuple[ParameterRange, ParameterRange, ParameterRange]
"""A scalar, a range (low, high), or three entries, each a scalar or a range."""

MOST_VOXELS = 2**24
"""Voxels along an axis that nobody's volume has: a mouse brain of 10 mm at 4 nm has 2.5 million."""

_FORMS = "a number, (low, high), or three entries, each a number or (low, high)"


def as_amount(name: str, value: Any, *, positive: bool = False) -> Amount:
    """Return what the user gave as plain floats and tuples, in the form that it has.

    Parameters
    ----------
    name
        Name of the argument, for the message.
    value
        What the user gave.
    positive
        Whether every number must be above zero.

    Raises
    ------
    ValueError
        The value has another form, is not finite, is not positive, or a range runs backwards.

    Examples
    --------
    >>> as_amount("degrees", [-15, 15])
    (-15.0, 15.0)
    >>> as_amount("degrees", (0, 0, (-15, 15)))
    (0.0, 0.0, (-15.0, 15.0))
    """
    entries = entries_of(value)
    if len(entries) == 3:
        i, j, k = (_entry(name, v, positive) for v in entries)
        return (i, j, k)
    return _entry(name, value, positive)


def as_factor(name: str, value: Any) -> Amount:
    """Return an amount of factors, above 0 and of a size that leaves something of a volume.

    Raises
    ------
    ValueError
        The value has another form, or a factor is none that a volume can be enlarged or shrunk by.

    Examples
    --------
    >>> as_factor("zoom", (0.5, 2))
    (0.5, 2.0)
    """
    amount = as_amount(name, value, positive=True)
    numbers = numbers_of(amount)
    if min(numbers) < 1 / MOST_VOXELS or max(numbers) > MOST_VOXELS:
        msg = (
            f"{name} takes factors from {1 / MOST_VOXELS:.2g} to {MOST_VOXELS:.2g}: beyond these a "
            f"volume of {MOST_VOXELS} voxels along an axis becomes less than one of them, or one "
            f"fills it; got {value!r}"
        )
        raise ValueError(msg)
    return amount


def _entry(name: str, value: Any, positive: bool) -> ParameterRange:
    return parse_range(name, value, positive=positive, forms=_FORMS)


def draw_amount(
    generator: np.random.Generator, amount: Amount, *, shared: bool = False
) -> list[float]:
    """Return three numbers, one per axis; three doubles are always drawn.

    Parameters
    ----------
    generator
        Random numbers of the item.
    amount
        What :func:`as_amount` returned.
    shared
        Whether a scalar or one range is drawn once for all axes.
    """
    return amount_at(generator.random(3).tolist(), amount, shared=shared)


def amount_at(random: Sequence[float], amount: Amount, *, shared: bool = False) -> list[float]:
    """Return the three numbers that three uniform ones stand for; see :func:`draw_amount`."""
    if not isinstance(amount, tuple):
        return [amount] * 3
    if shared and len(amount) == 2:
        random = (random[0],) * 3
    return [value_at(entry, u) for entry, u in zip(per_axis(amount), random, strict=True)]


def per_axis(amount: Amount) -> tuple[ParameterRange, ParameterRange, ParameterRange]:
    """Return what an amount says for each axis.

    Examples
    --------
    >>> per_axis((1.0, 2.0)), per_axis((1.0, 2.0, (0.0, 3.0)))
    (((1.0, 2.0), (1.0, 2.0), (1.0, 2.0)), (1.0, 2.0, (0.0, 3.0)))
    """
    if isinstance(amount, tuple) and len(amount) == 3:
        return amount
    return (amount, amount, amount)


def as_probabilities(
    name: str, value: Any, count: int, several: str = "one for each of the {} axes"
) -> float | tuple[float, ...]:
    """Return one probability, or one for each of ``count`` axes; ``several`` says so in words.

    Raises
    ------
    ValueError
        It is neither.

    Examples
    --------
    >>> as_probabilities("flip", [0.5, 0, 0], 3), as_probabilities("flip", 1, 3)
    ((0.5, 0.0, 0.0), 1.0)
    """
    each = entries_of(value)
    if not each:
        return as_probability(name, value)
    if len(each) != count:
        msg = f"{name} is one probability, or {several.format(count)}, got {value!r}"
        raise ValueError(msg)
    return tuple(as_probability(name, entry) for entry in each)


def as_triple(name: str, value: Any, *, low: int | None = None) -> tuple[int, int, int]:
    """Return three integers, of at least ``low`` where that is given.

    Raises
    ------
    ValueError
        There are not three, one is no integer, or one is smaller.
    """
    numbers = entries_of(value)
    fits = len(numbers) == 3 and all(map(is_integer, numbers))
    if not fits or (low is not None and min(numbers) < low):
        least = "" if low is None else f" >= {low}"
        msg = f"{name} takes three integers{least}, got {value!r}"
        raise ValueError(msg)
    return (int(numbers[0]), int(numbers[1]), int(numbers[2]))


Size: TypeAlias = "int | Sequence[int]"
"""One whole number for all axes, or one per axis (I, J, K)."""


def three(what: str, value: Size, *, least: int) -> tuple[int, int, int]:
    """Return three whole numbers.

    Raises
    ------
    PatchSizeError
        If there are not three, one is not whole, or one is below ``least``.

    Examples
    --------
    >>> three("size", 96, least=1)
    (96, 96, 96)
    """
    given: Any = value
    numbers: tuple[Any, ...] = (given,) * 3
    if not _is_whole(given):
        is_sequence = isinstance(given, Iterable) and not isinstance(given, (str, bytes))
        numbers = tuple(given) if is_sequence else (given,)
    for number in numbers:
        if not _is_whole(number):
            raise _not_whole(what, number, value)
    if len(numbers) != 3:
        msg = f"{what} is one whole number or three (I, J, K), got {len(numbers)} in {value!r}"
        raise PatchSizeError(msg, do=_COUNT_ADVICE.get(len(numbers), ""))
    for axis, number in enumerate(numbers):
        if int(number) < least:
            where = f"{number} on axis {axis} of {value!r}" if value is not number else f"{number}"
            msg = f"{what} is at least {least} on each axis, got {where}"
            do = f"2-D data have K = 1: write {(*numbers[:2], 1)}."
            flat = least == 1 and axis == 2 and number == 0
            raise PatchSizeError(msg, do=do if flat else "")
    return (int(numbers[0]), int(numbers[1]), int(numbers[2]))


def one_or_three(what: str, value: Any, *, least: int) -> int | tuple[int, int, int]:
    """Return one whole number as it is, where :func:`three` would repeat it.

    Raises
    ------
    PatchSizeError
        As :func:`three`.
    """
    sizes = three(what, value, least=least)
    return sizes[0] if _is_whole(value) else sizes


def size_of(what: str, value: Any) -> Any:
    """Return one whole number as it is, or three, of which None keeps an axis.

    Raises
    ------
    PatchSizeError
        As :func:`three`.

    Examples
    --------
    >>> size_of("size", (32, 32, None)), size_of("size", 32)
    ((32, 32, None), 32)
    """
    is_sequence = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    given = tuple(value) if is_sequence else value
    if is_sequence and any(v is None for v in given):
        sizes = three(what, [1 if v is None else v for v in given], least=1)
        return tuple(None if v is None else n for v, n in zip(given, sizes, strict=True))
    return one_or_three(what, given, least=1)


def size_text(size: Any) -> str:
    """Return what :func:`size_of` gave in words.

    Examples
    --------
    >>> size_text(32), size_text((32, 32, None))
    ('32x32x32', '32x32xall')
    """
    sizes = size if isinstance(size, tuple) else (size,) * 3
    return "x".join("all" if n is None else str(n) for n in sizes)


def size_on(size: Any, plan: SpatialPlan) -> tuple[int, int, int]:
    """Return a size for the grid of ``plan``: one number leaves axes of 2-D data that are flat.

    Parameters
    ----------
    size
        What :func:`one_or_three` or :func:`size_of` returned.
    plan
        The present plan.
    """
    if isinstance(size, tuple):
        i, j, k = (n if s is None else s for s, n in zip(size, plan.shape, strict=True))
        return (i, j, k)
    flat = flat_axes(plan)
    i, j, k = (1 if axis in flat else size for axis in range(3))
    return (i, j, k)


def whole_number(what: str, value: int, *, least: int) -> int:
    """Return a whole number.

    Raises
    ------
    PatchSizeError
        It is not whole, or below ``least``.

    Examples
    --------
    >>> whole_number("batch_size", 4, least=1)
    4
    """
    if not _is_whole(value) or int(value) < least:
        msg = f"{what} is a whole number of at least {least}, got {value!r}"
        raise PatchSizeError(msg, do=_unquoted(what, value))
    return int(value)


_COUNT_ADVICE = {
    2: "2-D data have K = 1: write (64, 64, 1).",
    4: "Leave out the channels: each patch has all channels of its volume.",
}


def _is_whole(number: Any) -> bool:
    if isinstance(number, bool):
        return False
    try:
        operator.index(number)
    except TypeError:  # arrays have the method, too
        return False
    return True


def _not_whole(what: str, number: Any, value: Any) -> PatchSizeError:
    inside = "" if number is value else f" in {value!r}"
    msg = f"{what} is counted in whole voxels, got {number!r}{inside}"
    if not isinstance(number, float):
        return PatchSizeError(msg, do=_unquoted(what, number) or "Write 96, or (96, 96, 48).")
    if 0 < number < 1:
        do = "It is no part of the patch: for half of 96 voxels write 48."
        return PatchSizeError(msg, do=do)
    return PatchSizeError(msg, do="Write it without a decimal point, or round it with int().")


def _unquoted(what: str, value: Any) -> str:
    """Return what to write for a number in quotes."""
    is_quoted = isinstance(value, str) and value.strip().isdecimal()
    return f"Write {what}={value.strip()}, without the quotes." if is_quoted else ""
