"""Whole numbers as the user gives them to a loader or service: checked once, in one sentence."""

from __future__ import annotations

from operator import index
from typing import Any

from .origin import shorten


def validate_int(
    name: str, value: Any, *, least: int, below: int | None = None, unit: str = "", do: str = ""
) -> int:
    """Return ``value`` as an ``int``.

    Parameters
    ----------
    name
        The argument, for messages.
    value
        What was given.
    least, below
        ``least <= value < below``.
    unit
        What is counted, for messages.
    do
        What else may be given, for messages.

    Raises
    ------
    TypeError
        It is no whole number. True and False are none: they are answers, not counts.
    ValueError
        It is too small or too large.

    Examples
    --------
    >>> validate_int("num_workers", 2, least=0)
    2
    >>> validate_int("num_workers", 1.5, least=0)
    Traceback (most recent call last):
        ...
    TypeError: num_workers is a whole number of at least 0, got 1.5
    """
    kind = f"whole number of {unit}" if unit else "whole number"
    power = {2**62: "2**62", 2**64: "2**64"}.get(below or 0, below)
    range_ = f"of at least {least}" if below is None else f"from {least} to below {power}"
    allowed = f"{name} is a {kind}{',' if unit else ''} {range_}{do and f', {do}'}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        msg = f"{allowed}, got {shorten(value)}"
        raise TypeError(msg) from None
    if number < least or (below is not None and number >= below):
        msg = f"{allowed}, got {shorten(number)}"
        raise ValueError(msg)
    return number
