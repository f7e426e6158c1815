"""How much is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

from ..core.validate import validate_int

BATCHES = 8
"""Batches whose plans are looked at: enough that their mean says something."""
SECONDS = 1.0
"""Time for which each part is measured: long against a batch, short for whoever waits."""

Clock: TypeAlias = "Callable[[], float]"


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    batches: int = BATCHES
    """Different batches."""
    seconds: float = SECONDS
    """Time for each part."""
    clock: Clock = time.perf_counter
    """Tells the time in seconds."""

    def __post_init__(self) -> None:
        validate_int("batches", self.batches, least=1)
        given: Any = self.seconds
        is_number = isinstance(given, Real) and not isinstance(given, bool)
        if not is_number or not given > 0:
            msg = f"each part is measured for some time in seconds, got seconds={given!r}"
            raise ValueError(msg) if is_number else TypeError(msg)

    def done(self, least: int, most: int | None = None) -> Callable[[int], bool]:
        """Return what says after ``number`` batches whether these are enough.

        They are when the time is over and ``least`` were made, or when ``most`` were.
        """
        started: list[float] = []

        def is_enough(number: int) -> bool:
            if not started:
                started.append(self.clock())
            if most is not None and number >= most:
                return True
            return number >= least and self.clock() - started[0] >= self.seconds

        return is_enough
