"""Figures of a loader: waits, failures, how long the consumer keeps a batch."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from ..batching import BatchResult, ErrorPolicy, Failure
from ..core.errors import TooManyFailures

# What is kept to be looked at; the counts go on.
_MOST_KEPT = 1000
# A message is read by a person.
_SHOWN = 3
# The first batches include compiling and warming up; the median of so many is not moved by them.
KEPT = 64


class Counts:
    """What a loader counts over all its epochs: failures, waits, how long batches are kept."""

    def __init__(self) -> None:
        self.failures: deque[Failure] = deque(maxlen=_MOST_KEPT)
        self.errors: Counter[str] = Counter()
        self.delivered, self.waited, self.longest = 0, 0.0, 0.0
        self._kept: deque[float] = deque(maxlen=KEPT)
        self._since: float | None = None

    def admit(self, outcome: BatchResult, policy: ErrorPolicy, before: int) -> int:
        """Count what failed in one batch; return how many did in this epoch, if so many may."""
        self.failures += outcome.failures
        self.errors.update(failure.error for failure in outcome.failures)
        total = before + len(outcome.failures) + outcome.elsewhere
        if policy.budget is not None and total > policy.budget:
            last = "\n".join(map(str, outcome.failures[:_SHOWN])) or "on another rank"
            raise TooManyFailures(
                f"{total} items failed in this epoch, and {policy.budget} may; the last:\n{last}",
                do="Mend the files, or give OnError(budget=...) more; loader.failures has them.",
            )
        return total

    def request(self, now: float) -> None:
        """Note that a batch is asked for: the one before it was kept until now."""
        if self._since is not None:
            self._kept.append(now - self._since)
        self._since = None

    def deliver(self, now: float, waited: float) -> None:
        """Note that a batch was handed out, after so many seconds."""
        self._since = now
        self.delivered += 1
        self.waited += waited
        self.longest = max(self.longest, waited)

    def interrupt(self) -> None:
        """Leave out the time until the next batch: an epoch ended, or something else ran."""
        self._since = None

    def kept_seconds(self) -> float | None:
        """Return the median time that a batch was kept; None if none has come back."""
        return median(self._kept) if self._kept else None


@dataclass(frozen=True)
class Stats:
    """Figures of one loader, all epochs together."""

    epoch: int
    """Epoch of the next batch."""
    next_batch: int
    """Which batch of it comes next."""
    delivered: int
    """Batches handed out."""
    waited: float
    """Seconds from asking for a batch to having it."""
    longest: float
    """The longest of these waits."""
    kept: float | None
    """Seconds for which a batch is kept before the next is asked for, the median of the last."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """How many errors of each class ``OnError`` let pass."""
    pipes: tuple[Mapping[str, Any], ...] = ()
    """What each pipe did, if ``Profile`` is among the adapters."""

    @property
    def rate(self) -> float | None:
        """Batches per second of waiting; None before the first."""
        return self.delivered / self.waited if self.waited else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {**asdict(self), "pipes": [dict(row) for row in self.pipes]}

    def __str__(self) -> str:
        kept = "-" if self.kept is None else f"{self.kept * 1e3:.1f} ms each (median)"
        mean = self.waited / self.delivered * 1e3 if self.delivered else 0.0
        lines = [
            f"at batch {self.next_batch} of epoch {self.epoch}; {self.delivered} delivered",
            f"waited {self.waited:.2f} s for them, {mean:.1f} ms each, "
            f"{self.longest * 1e3:.1f} ms at most; kept {kept}",
        ]
        if self.failures:
            each = ", ".join(f"{count} {name}" for name, count in self.failures.items())
            lines.append(f"let pass by OnError: {each}")
        rows = (f"{r['items']:>9} items {r['seconds']:8.2f} s  {r['pipe']}" for r in self.pipes)
        return "\n".join([*lines, *rows])
