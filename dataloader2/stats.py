"""What a loader has done so far: figures for a person and for a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..diagnosing import Pace
from .failed import Failed


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
        told = [
            f"at batch {self.next_batch} of epoch {self.epoch}; {self.delivered} delivered",
            f"waited {self.waited:.2f} s for them, {mean:.1f} ms each, "
            f"{self.longest * 1e3:.1f} ms at most; kept {kept}",
        ]
        if self.failures:
            each = ", ".join(f"{count} {name}" for name, count in self.failures.items())
            told.append(f"let pass by OnError: {each}")
        rows = [
            f"{row['items']:>9} items {row['seconds']:8.2f} s  {row['pipe']}" for row in self.pipes
        ]
        return "\n".join([*told, *rows])


class Waits:
    """Adds up how long the consumer waited."""

    def __init__(self) -> None:
        self.delivered = 0
        self.seconds = self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Note one batch."""
        self.delivered += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


@dataclass(frozen=True)
class Counts:
    """What a loader counts over all its epochs, which enter it here."""

    pace: Pace
    """How long batches are kept."""
    waits: Waits
    """How long they are waited for."""
    failed: Failed
    """What failed in them."""
