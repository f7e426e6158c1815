"""How much: a fixed number, a range to draw from, or one of these per axis.

A scalar is fixed, ``(low, high)`` is drawn uniformly, three entries are per axis, each of them a
scalar or a range. Only ``Generator.random`` is used, whose doubles NumPy does not change between
versions, and always the same number of times, whatever the amounts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.likely_mistakes import numbers_of
from ..core.validate import (
    ParameterRange,
    as_choice,
    as_count,
    as_flag,
    as_keys,
    as_probability,
    bounds_of,
    entries_of,
    is_integer,
    parse_range,
    value_at,
)

__all__ = [
    "MOST_VOXELS",
    "Amount",
    "amount_at",
    "as_amount",
    "as_choice",
    "as_count",
    "as_factor",
    "as_flag",
    "as_keys",
    "as_probabilities",
    "as_probability",
    "as_triple",
    "bounds_of",
    "draw_amount",
    "entries_of",
    "is_integer",
    "per_axis",
]

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
