"""What is to be realized: the descriptions of one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..volumes import Volume

# A message is read by a person; the batch is in the plan.
_MOST_CASES = 4


@dataclass(frozen=True)
class Job:
    """The descriptions of one batch."""

    index: int
    """Position of the batch in its epoch."""
    items: tuple[Any, ...]
    """What the planner yielded for it."""
    part: int = 0
    """Which part of the batch of all ranks this is."""

    def cases(self) -> str:
        """Return the names of the cases, for messages."""
        names = [str(getattr(item, "case", "")) for item in self.items]
        return ", ".join(dict.fromkeys(name for name in names if name)) or "unnamed items"

    def files(self, item: int = -1) -> str:
        """Return the cases with the volumes of each, of all items or of one, for messages."""
        chosen = self.items if item < 0 else self.items[item : item + 1]
        told = dict.fromkeys(filter(None, map(_with_files, chosen)))
        shown = [*told][:_MOST_CASES]
        more = [f"and {len(told) - len(shown)} more"] if len(told) > len(shown) else []
        return ", ".join([*shown, *more]) or "unnamed items"


def _with_files(item: Any) -> str:
    case = str(getattr(item, "case", ""))
    things = item.values() if isinstance(item, Mapping) else ()
    volumes = [getattr(thing, "volume", thing) for thing in things]
    names = dict.fromkeys(str(v.name) for v in volumes if isinstance(v, Volume))
    return f"{case} ({', '.join(names)})" if case and names else case
