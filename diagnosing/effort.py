"""How long each part of a loader is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..core.validate import is_number, validate_int

BATCHES = 8
"""Batches whose plans are measured: enough for a mean."""
DIAGNOSE_SECONDS = 1.0
"""Time for which each part is measured: long against a batch, short for the user."""
MEASURE_SECONDS = 0.3
"""The same for a forecast alone."""

Clock: TypeAlias = "Callable[[], float]"


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    batches: int = BATCHES
    seconds: float = DIAGNOSE_SECONDS
    clock: Clock = time.perf_counter

    def __post_init__(self) -> None:
        validate_int("batches", self.batches, least=1)
        seconds: Any = self.seconds
        if not is_number(seconds) or not seconds > 0:
            msg = f"each part is measured for some time in seconds, got seconds={seconds!r}"
            raise (ValueError if is_number(seconds) else TypeError)(msg)

    def stop_rule(self, least: int, most: int | None = None) -> Callable[[int], bool]:
        """Return a function of ``number`` batches that returns whether these are enough.

        They are when the time is over and ``least`` were made, or when ``most`` were.
        """
        starts: list[float] = []

        def is_enough(number: int) -> bool:
            if not starts:
                starts.append(self.clock())
            is_over = number >= least and self.clock() - starts[0] >= self.seconds
            return is_over or (most is not None and number >= most)

        return is_enough

    def repeat(
        self, call: Callable[[], object], least: int, most: int | None = None
    ) -> tuple[int, float]:
        """Call until it is enough; return how often, and the seconds of each."""
        is_enough, number, start = self.stop_rule(least, most), 0, self.clock()
        while not is_enough(number):
            call()
            number += 1
        return number, (self.clock() - start) / number
