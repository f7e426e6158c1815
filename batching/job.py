"""The descriptions of one batch, and what becomes of it where some of its items cannot be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..core.errors import GridMismatch, VolumeError, VoxpipeError
from ..core.redact import public_name
from ..core.sample import case_of
from ..storage.location import Secrets
from ..volumes import Volume
from .collate import OwnMemory, using

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


# What becomes of a batch of which some items cannot be made: a pure function of the batch.
#
# A batch that fails is made again item by item, to find those at fault. Then it is made of the
# others, or of others in their places. Which worker does that never enters, and failures travel
# with the batch to whoever counts them.

RAISE, SKIP, REPLACE = "raise", "skip", "replace"
ACTIONS = (RAISE, SKIP, REPLACE)
DATA_ERRORS: tuple[type[Exception], ...] = (VolumeError, GridMismatch)
"""Errors of files rather than of programs."""


@dataclass(frozen=True)
class ErrorPolicy:
    """What is done about items that cannot be made."""

    action: str = RAISE
    """``"raise"``, ``"skip"`` or ``"replace"``."""
    errors: tuple[type[Exception], ...] = DATA_ERRORS
    """Which errors it is about."""
    budget: int | None = None
    """Failures that one epoch may have; None for any number."""

    @property
    def tolerates(self) -> bool:
        """Whether anything but raising is asked for."""
        return self.action != RAISE


@dataclass(frozen=True)
class Outcome:
    """A batch in which something failed."""

    batch: Any
    """What could be made; None if nothing could."""
    failures: tuple[Failure, ...]
    """What could not."""
    is_empty: bool = False
    """Whether there is no batch."""
    elsewhere: int = 0
    """How many items of other ranks' parts of the batch could not be made."""


class Maker(Protocol):
    """Makes batches of jobs."""

    def run(self, job: Job, seed: int, epoch: int) -> Any:
        """Return the batch of ``job``."""


@dataclass(frozen=True)
class Tolerant:
    """Makes batches, without the items that cannot be made.

    Examples
    --------
    >>> from voxpipe.core.errors import BadHeader
    >>> class Maker:
    ...     def run(self, job, seed, epoch):
    ...         if "b" in job.items:
    ...             raise BadHeader("b is broken")
    ...         return "".join(job.items)
    >>> job = Job(0, ("a", "b", "c"))
    >>> outcome = Tolerant(Maker(), ErrorPolicy("skip")).run(job, 0, 0)
    >>> outcome.batch, [(f.item, f.what) for f in outcome.failures]
    ('ac', [(1, 'b is broken')])
    >>> Tolerant(Maker(), ErrorPolicy("replace")).run(job, 0, 0).batch
    'acc'
    """

    maker: Maker
    policy: ErrorPolicy
    together: bool = False
    """Whether other ranks make their parts of the batch, so that this one must have some."""

    def run(self, job: Job, seed: int, epoch: int) -> Any:
        """Return the batch of ``job``; an ``Outcome`` if something failed."""
        if not job.items:
            return Outcome(None, job.failures, is_empty=True)
        try:
            batch = self.maker.run(job, seed, epoch)
        except self.policy.errors:
            return self._without_bad(job, seed, epoch)
        return _with_failures(batch, job.failures)

    def _without_bad(self, job: Job, seed: int, epoch: int) -> Any:
        found = self._alone(job, seed, epoch)
        if not found:
            # It was the weather, or the items do not fit together: this tells which.
            return self.maker.run(job, seed, epoch)
        items = remaining(job.items, set(found), self.policy.action)
        if not items and self.together:
            raise next(iter(found.values()))
        replaced = self.policy.action == REPLACE and bool(items)
        failures = tuple(
            failure_of(error, job.index, n, job.items[n], case_of(items[n]) if replaced else "")
            for n, error in found.items()
        )
        failures = (*job.failures, *failures)
        if not items:
            return Outcome(None, failures, is_empty=True)
        numbers = remaining(job.numbers, set(found), self.policy.action) if job.numbers else ()
        again = replace(job, items=items, numbers=numbers)
        return _with_failures(self.maker.run(again, seed, epoch), failures)

    def _alone(self, job: Job, seed: int, epoch: int) -> dict[int, Exception]:
        """Return the errors of the items that cannot be made by themselves, by position."""
        found: dict[int, Exception] = {}
        with using(OwnMemory()):
            for number, item in enumerate(job.items):
                try:
                    alone = replace(job, items=(item,), numbers=(job.number(number),))
                    self.maker.run(alone, seed, epoch)
                except self.policy.errors as error:
                    found[number] = error.with_traceback(None)
        return found


def _with_failures(made: Any, failures: tuple[Failure, ...]) -> Any:
    """Return a batch with what failed in it; there may be none, of items that were sifted out."""
    if isinstance(made, Outcome):
        return replace(made, failures=failures)
    return Outcome(made, failures) if failures else made


def remaining(items: tuple[Any, ...], bad: set[int], action: str) -> tuple[Any, ...]:
    """Return the items of which a batch is made: without the bad, or with others in their places.

    Examples
    --------
    >>> remaining(("a", "b", "c"), {1}, "skip"), remaining(("a", "b", "c"), {1, 2}, "replace")
    (('a', 'c'), ('a', 'a', 'a'))
    """
    good = [number for number in range(len(items)) if number not in bad]
    if action == SKIP or not good:
        return tuple(items[number] for number in good)
    places = range(len(items))
    return tuple(
        items[next(n for n in (*places[at:], *places[:at]) if n not in bad)] for at in places
    )


def failure_of(
    error: Exception, batch: int, item: int, thing: Any, instead: str = "", pipe: str = ""
) -> Failure:
    """Return what is told of an error, without credentials."""
    secrets = Secrets({})
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    if isinstance(error, VoxpipeError):
        what = error.what
        pipe = str(error.origin) if error.origin is not None else pipe
    else:
        what = str(error)
        pipe = next((note[3:] for note in notes if note.startswith("at ")), pipe)
    return Failure(
        batch=batch,
        item=item,
        case=public_name(case_of(thing)),
        files=secrets.cut(Job(batch, (thing,)).files()) if isinstance(thing, Mapping) else "",
        pipe=pipe,
        error=type(error).__name__,
        what=secrets.cut(what),
        instead=instead,
    )
