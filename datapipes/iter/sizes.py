"""Sizes and starts as the user gives them: one whole number for all axes, or three."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from ...core.errors import PatchSizeError

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
    if not hasattr(given, "__index__"):
        numbers = tuple(given) if isinstance(given, Iterable) else (given,)
    whole = all(hasattr(v, "__index__") and not isinstance(v, bool) for v in numbers)
    if len(numbers) != 3 or not whole or any(int(v) < least for v in numbers):
        msg = f"{what} is one or three whole numbers of at least {least}, got {value!r}"
        raise PatchSizeError(msg, do="2-D data have K = 1: write (64, 64, 1).")
    return (int(numbers[0]), int(numbers[1]), int(numbers[2]))
