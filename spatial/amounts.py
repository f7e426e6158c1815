"""How much: a fixed number, a range to draw from, or one of these per axis.

A scalar is fixed, ``(low, high)`` is drawn uniformly, three entries are per axis, each of them a
scalar or a range. Only ``Generator.random`` is used, whose doubles NumPy does not change between
versions, and always the same number of times, whatever the amounts are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

Range = tuple[float, float]
Entry = float | Range
Amount = Entry | tuple[Entry, Entry, Entry]
"""A scalar, a range (low, high), or three entries, each a scalar or a range."""

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


def _entry(name: str, value: Any, positive: bool) -> Entry:
    pair = entries_of(value)
    is_range = len(pair) == 2
    numbers = pair if is_range else (value,)
    if not all(isinstance(v, Real) and not isinstance(v, (bool, np.bool_)) for v in numbers):
        msg = f"{name} is {_FORMS}, got {value!r}"
        raise ValueError(msg)
    floats = [float(v) for v in numbers]
    if not all(map(math.isfinite, floats)) or (positive and min(floats) <= 0):
        msg = f"{name} takes {'numbers above 0' if positive else 'finite numbers'}, got {value!r}"
        raise ValueError(msg)
    if not is_range:
        return floats[0]
    if floats[0] > floats[1]:
        msg = f"{name} takes a range (low, high) with low <= high, got {value!r}"
        raise ValueError(msg)
    return (floats[0], floats[1])


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
    if len(amount) == 3:
        entries: Sequence[Entry] = amount
    else:
        entries = (amount,) * 3
        random = (random[0],) * 3 if shared else random
    return [_at(entry, u) for entry, u in zip(entries, random, strict=True)]


def _at(entry: Entry, u: float) -> float:
    low, high = entry if isinstance(entry, tuple) else (entry, entry)
    return low + (high - low) * u


def as_probability(name: str, value: Any) -> float:
    """Return a probability as a float.

    Raises
    ------
    ValueError
        It is not a number from 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        msg = f"{name} is a probability from 0 to 1, got {value!r}"
        raise ValueError(msg)
    return float(value)


def as_flag(name: str, value: Any) -> bool:
    """Return True or False.

    Raises
    ------
    ValueError
        It is neither; what counts as true elsewhere in Python is not taken.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    msg = f"{name} is True or False, got {value!r}"
    raise ValueError(msg)


def as_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    Raises
    ------
    ValueError
        It is not.
    """
    if isinstance(value, str) and value in choices:
        return value
    msg = f"{name} is one of {', '.join(map(repr, choices))}, got {value!r}"
    raise ValueError(msg)


def as_count(name: str, value: Any) -> int:
    """Return a whole number of at least 0.

    Raises
    ------
    ValueError
        It is none.
    """
    if not is_integer(value) or value < 0:
        msg = f"{name} is a whole number of at least 0, got {value!r}"
        raise ValueError(msg)
    return int(value)


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


def is_integer(value: Any) -> bool:
    """Whether ``value`` is an integer of Python or NumPy, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def entries_of(value: Any) -> tuple[Any, ...]:
    """Return the entries of a tuple, a list or a one-dimensional array; of anything else none.

    Examples
    --------
    >>> entries_of([1, 2]), entries_of(1)
    ((1, 2), ())
    """
    if isinstance(value, np.ndarray):
        return tuple(value) if value.ndim == 1 else ()
    return tuple(value) if isinstance(value, (tuple, list)) else ()
