"""What is to be realized: the descriptions of one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.sample import case_of
from ..volumes import Volume

# A message is read by a person; the batch is in the plan.
_MOST_CASES = 4


@dataclass(frozen=True)
class Failure:
    """One item that could not be made, in words."""

    batch: int
    """Position of its batch in the epoch."""
    item: int
    """Position of the item in its batch; -1 for a case that could not be planned."""
    case: str
    """Name of the case."""
    files: str
    """The case with its volumes."""
    pipe: str
    """The pipe, as the user wrote it, with its line."""
    error: str
    """Class of the error."""
    what: str
    """What it said, without credentials."""
    instead: str = ""
    """The case that took its place."""

    def __str__(self) -> str:
        lines = [f"batch {self.batch}: {self.error}: {self.what}"]
        lines += [f"  in {self.files or self.case}"] if self.files or self.case else []
        lines += [f"  at {self.pipe}"] if self.pipe else []
        lines += [f"  {self.instead} took its place"] if self.instead else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Job:
    """The descriptions of one batch."""

    index: int
    """Position of the batch in its epoch."""
    items: tuple[Any, ...]
    """What the planner yielded for it."""
    part: int = 0
    """Which part of the batch of all ranks this is."""
    failures: tuple[Failure, ...] = ()
    """Cases before it that could not be planned."""
    numbers: tuple[int, ...] = ()
    """Which items of the epoch these are, on all ranks together; empty where nobody asks."""

    def number(self, item: int) -> int:
        """Return which item of the epoch an item of this batch is."""
        return self.numbers[item] if self.numbers else item

    def cases(self) -> str:
        """Return the names of the cases, for messages; empty where items have none."""
        names = [case_of(item) for item in self.items]
        return ", ".join(dict.fromkeys(name for name in names if name))

    def place(self, item: int = -1) -> str:
        """Return which batch, or which item of it, this is, for messages.

        Examples
        --------
        >>> Job(3, ("a", "b")).place(1), Job(3, ("a", "b")).place(), Job(3, ("a",)).place(0)
        ('item 1 of batch 3', 'batch 3', 'batch 3')
        """
        alone = item < 0 or len(self.items) <= 1
        return f"batch {self.index}" if alone else f"item {item} of batch {self.index}"

    def cases_with(self, name: str) -> str:
        """Return the cases that read a volume of this name, for messages; else all cases."""
        found = [case_of(item) for item in self.items if name in _files_of(item)]
        return ", ".join(dict.fromkeys(case for case in found if case)) or self.cases()

    def files(self, item: int = -1) -> str:
        """Return the cases with the volumes of each, of all items or of one, for messages.

        Empty where items have no names.
        """
        chosen = self.items if item < 0 else self.items[item : item + 1]
        told = dict.fromkeys(filter(None, map(_with_files, chosen)))
        shown = [*told][:_MOST_CASES]
        more = [f"and {len(told) - len(shown)} more"] if len(told) > len(shown) else []
        return ", ".join([*shown, *more])


def _with_files(item: Any) -> str:
    case, names = case_of(item), _files_of(item)
    return f"{case} ({', '.join(names)})" if case and names else case


def _files_of(item: Any) -> list[str]:
    """Return the names of an item's volumes, each once."""
    things = item.values() if isinstance(item, Mapping) else ()
    volumes = [getattr(thing, "volume", thing) for thing in things]
    return list(dict.fromkeys(str(v.name) for v in volumes if isinstance(v, Volume)))
