"""What is to be realized: the descriptions of one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """The descriptions of one batch."""

    index: int
    """Position of the batch in its epoch."""
    items: tuple[Any, ...]
    """What the planner yielded for it."""

    def cases(self) -> str:
        """Return the names of the cases, for messages."""
        names = [str(getattr(item, "case", "")) for item in self.items]
        return ", ".join(dict.fromkeys(name for name in names if name)) or "unnamed items"
