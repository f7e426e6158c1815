"""Tries an attack from many seeds, and tells by which command a failing one is tried again."""

from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# A property of a test's report: passed, tried, first and last seed, and what else is told.
ROW = "attack"
# A list of thousands of failures helps nobody.
MOST_TOLD = 5


@dataclass(frozen=True)
class Attacks:
    """Tries an attack from seed after seed."""

    test: str
    whole: bool
    seed: int | None
    properties: list[tuple[str, list[Any]]]
    """Of the test: they travel with its report, from whatever process runs it."""
    begin: Callable[[], object] = lambda: None
    """Called before each attempt: what may hang is one of them, not all together."""

    def each(self, attempt: Callable[[int], object], *, quick: int, whole: int) -> None:
        """Call ``attempt(seed)`` for seeds from 0; fail with those that raised.

        Parameters
        ----------
        attempt
            Everything that it draws comes from ``random.Random(seed)``; it raises where voxpipe
            did wrong.
        quick, whole
            How many seeds ``make test`` and ``make test-faults`` try.
        """
        count = whole if self.whole else quick
        seeds = range(count) if self.seed is None else range(self.seed, self.seed + 1)
        told, failed = [], []
        for seed in seeds:
            self.begin()
            try:
                attempt(seed)
            except Exception:
                failed.append(seed)
                if len(told) < MOST_TOLD:
                    told.append(f"{self.command(seed)}\n{traceback.format_exc()}")
        if seeds:
            row = [len(seeds) - len(failed), len(seeds), seeds.start, seeds.stop - 1]
            self.properties.append((ROW, row))
        if failed:
            pytest.fail(
                f"{len(failed)} of {len(seeds)} failed: seeds {failed[:50]}\n\n" + "\n".join(told),
                pytrace=False,
            )

    def command(self, seed: int) -> str:
        """Return what tries one seed again, typed at the root of the checkout."""
        python = Path(sys.executable)
        if python.is_relative_to(ROOT):
            python = python.relative_to(ROOT)
        words = [str(python), "-m", "pytest", self.test, "--fault-seed", str(seed)]
        # Some attacks do more at once where all of them are tried.
        return shlex.join([*words, *(["--whole-faults"] if self.whole else [])])

    def told(self, what: str) -> None:
        """Say something about the attack that was tried last, in the table at the end."""
        row = [*self.properties[-1][1], what]
        self.properties[-1] = (ROW, row)
