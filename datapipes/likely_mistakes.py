"""Warnings of numbers that are allowed, but hardly meant, where the user wrote them."""

from __future__ import annotations

from typing import Any

from ..core import Origin
from ..core.errors import LikelyMistake
from ..core.origin import warn


def tell_mistakes(op: Any, origin: Origin | None) -> None:
    """Warn of what an op says of its own numbers; an op without ``likely_mistakes`` says nothing.

    Pipes call this and ops do not, as ops are made again where nobody wrote anything.
    """
    for told in getattr(op, "likely_mistakes", ()):
        warn(told, LikelyMistake, origin)
