"""Jobs, the recipes that make their batches, and the handling of failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..core import Sample, errors
from ..core.context import ContextKey, values_here
from ..core.counters import PIPE_STATS, PipeCounts, counts_here
from ..core.errors import add_location
from ..core.memory import MEMORY_SAMPLER, array_bytes
from ..core.redact import public_name
from ..core.sample import case_of
from ..spatial import LazyPatch
from ..storage.location import Secrets
from ..volumes import Volume
from .collate import RealizedArray, batches_in, reading

# Limit for readable messages; the plan has the whole batch.
_MOST_CASES = 4


@dataclass(frozen=True)
class Failure:
    """Description of one item that could not be made."""

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
    message: str
    """Message of the error, without credentials."""
    instead: str = ""
    """The case that replaced it."""

    def __str__(self) -> str:
        lines = [f"batch {self.batch}: {self.error}: {self.message}"]
        lines += [f"  in {self.files or self.case}"] if self.files or self.case else []
        lines += [f"  at {self.pipe}"] if self.pipe else []
        lines += [f"  {self.instead} took its place"] if self.instead else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Job:
    """The descriptions of one batch."""

    index: int  # position of the batch in its epoch
    items: tuple[Any, ...]
    part: int = 0  # index of this rank's part of the batch
    failures: tuple[Failure, ...] = ()  # cases before it that could not be planned
    numbers: tuple[int, ...] = ()
    """Positions of the items in the epoch, on all ranks together; empty if not needed."""

    def number(self, item: int) -> int:
        """Return the position in the epoch of an item of this batch."""
        return self.numbers[item] if self.numbers else item

    def cases(self) -> str:
        """Return the names of the cases, for messages; empty where items have none."""
        return ", ".join(dict.fromkeys(filter(None, map(case_of, self.items))))

    def place(self, item: int = -1) -> str:
        """Return the place of the batch or item for messages: "item 1 of batch 3"."""
        alone = item < 0 or len(self.items) <= 1
        return f"batch {self.index}" if alone else f"item {item} of batch {self.index}"

    def cases_with(self, name: str) -> str:
        """Return the cases that read a volume of this name, for messages; else all cases."""
        cases = [case_of(item) for item in self.items if name in _files_of(item)]
        return ", ".join(dict.fromkeys(filter(None, cases))) or self.cases()

    def files(self, item: int = -1) -> str:
        """Return the cases and their volumes, of all items or of one; empty without names."""
        cases: dict[str, None] = {}
        for one in self.items if item < 0 else self.items[item : item + 1]:
            case, names = case_of(one), _files_of(one)
            cases[f"{case} ({', '.join(names)})" if case and names else case] = None
        cases.pop("", None)
        more = len(cases) - _MOST_CASES
        return ", ".join([*cases][:_MOST_CASES] + ([f"and {more} more"] if more > 0 else []))


def _files_of(item: Any) -> list[str]:
    things = item.values() if isinstance(item, Mapping) else ()
    volumes = [getattr(thing, "volume", thing) for thing in things]
    return list(dict.fromkeys(str(v.name) for v in volumes if isinstance(v, Volume)))


def tickets_of(job: Any) -> list[Any]:
    """Begin to prefetch the reads of a job's lazy patches; return their tickets."""
    tickets: list[Any] = []
    all_items = job.items if isinstance(job, Job) else ()
    items = [item for item in all_items if type(item) is Sample or isinstance(item, Mapping)]
    # All images before the first label, the order in which a batch is filled.
    try:
        for key in dict.fromkeys(chain.from_iterable(items)):
            with reading(key):
                for item in items:
                    if key in item and isinstance(item[key], LazyPatch):
                        tickets.append(item[key].prefetch())
    except Exception:
        pass  # reading the patch raises the error; a dead store gets no further requests
    return [ticket for ticket in tickets if ticket is not None]


class QueuedJob:
    """One job that has arrived, possibly as a ``message``."""

    def __init__(self, load: Callable[[], Any], message: Any = None) -> None:
        self.message = message
        self._load = load
        self._lock = threading.Lock()
        self._looked_at = False
        self._job: Any = None
        self._error: BaseException | None = None
        self._tickets: list[Any] = []

    def job(self) -> Any:
        """Return the job with its reads in prefetch; raise an error of unpickling."""
        self.look()
        if self._error is not None:
            raise self._error
        return self._job

    def look(self) -> None:
        """Unpickle the job and begin to prefetch its reads, once."""
        with self._lock:
            if self._looked_at:
                return
            self._looked_at = True
            try:
                self._job = self._load()
            except BaseException as error:  # raised by job()
                self._error = error
                return
            self._tickets = tickets_of(self._job)

    def close(self) -> None:
        """Release the prefetched bytes, used or not."""
        with self._lock:
            self._looked_at = True
            tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            ticket.close()


# A worker that hangs cannot report: it notes each step in memory that the consumer reads.

NOWHERE = -1  # no step, or no single item
NOTE_BYTES = 8


class CurrentStep:
    """The current step and item."""

    def __init__(self) -> None:
        self._numbers: NDArray[np.int32] = np.full(2, NOWHERE, np.int32)

    def share(self, memory: NDArray[np.uint8]) -> None:
        """Keep the numbers in ``memory`` of at least 8 bytes from now on."""
        self._numbers = memory[:NOTE_BYTES].view(np.int32)
        self.at(NOWHERE)

    def read(self) -> tuple[int, int]:
        """Return the positions of the step in the realizing part, and of the item in its batch."""
        return step_noted_in(self._numbers)

    def at(self, step: int, item: int = NOWHERE) -> None:
        """Note that ``step`` begins."""
        self._numbers[1] = item
        self._numbers[0] = step


def step_noted_in(memory: Any) -> tuple[int, int]:
    """Return the step and the item that a process notes in ``memory``; each may be ``NOWHERE``."""
    step, item = memory[:NOTE_BYTES].view(np.int32)
    return int(step), int(item)


CURRENT_STEP = CurrentStep()  # of a process, which makes one batch at a time
STEP_OF_THREAD = ContextKey(CURRENT_STEP)
"""Notes of one thread, because several threads may make batches at once."""


class Transform(Protocol):
    """A frozen, picklable, stateless function from items to items."""

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        """Return the transformed items."""


@dataclass(frozen=True)
class Watch:
    """Add the cost of the instructions since the last watch to the statistics."""

    profile: str  # name of the statistics
    pipe: str  # the pipe as the user wrote it


Instruction: TypeAlias = "Transform | Watch"  # one step of a recipe


@dataclass(frozen=True)
class Recipe:
    """Turns jobs into batches."""

    instructions: tuple[Instruction, ...]  # in the order of the chain

    def run(self, job: Job, seed: int, epoch: int) -> Any:
        """Return the batch of ``job``; seed and epoch are in its items already."""
        items = self.items(job)
        return items[0] if len(items) == 1 else the_batch(job, items)

    def items(self, job: Job) -> Sequence[Any]:
        """Return the transformed items of ``job``: the batch, or the input of later pipes."""
        items: Sequence[Any] = job.items
        here = values_here().get(STEP_OF_THREAD, CURRENT_STEP)
        is_watched = any(isinstance(one, Watch) for one in self.instructions)
        clock = _Clock() if is_watched else None
        try:
            for number, instruction in enumerate(self.instructions):
                here.at(number)
                if not isinstance(instruction, Watch):
                    items = instruction(items)
                elif clock is not None:
                    clock.enter(instruction, items)
        except errors.LOCATABLE as error:
            raise add_location(error, case=job.cases(), item=job.place())  # noqa: B904  the very same error
        finally:
            here.at(NOWHERE)
        return items


def the_batch(job: Job, items: Sequence[Any], *, filters: bool = False) -> Any:
    """Return the single item of a job, or raise; ``filters`` allows none."""
    if len(items) == 1:
        return items[0]
    if not items and filters:
        return BatchResult(None, (), is_empty=True)
    of = f" ({job.cases()})" if job.cases() else ""
    msg = f"batch {job.index}{of} became {len(items)} items instead of one"
    raise errors.GraphError(msg, do="A pipe after the cut must yield one item for each it takes.")


class _Clock:
    """Time and counts since the last watch."""

    def __init__(self) -> None:
        self._first = time.perf_counter()
        self._begin()

    def _begin(self) -> None:
        self._start, self._before = time.perf_counter(), counts_here()

    def enter(self, watch: Watch, items: Sequence[Any]) -> None:
        """Record the cost since the last watch."""
        seconds, counts = time.perf_counter() - self._start, counts_here() - self._before
        entry = PipeCounts(
            len(items),
            seconds,
            counts,
            wait=self._start - self._first,
            bytes_out=array_bytes(items),
            resident=MEMORY_SAMPLER.read(),
        )
        PIPE_STATS.add((watch.profile, watch.pipe), entry)
        self._begin()


# Handling of a batch whose items fail: a pure function of the batch.
#
# A failed batch is made again item by item, to find the bad items, and then without them or with
# others in their places. Failures travel with the batch to the process that counts them.

RAISE, SKIP, REPLACE = "raise", "skip", "replace"
ACTIONS = (RAISE, SKIP, REPLACE)
DATA_ERRORS: tuple[type[Exception], ...] = (errors.VolumeError, errors.GridMismatch)
"""Errors of files rather than of programs."""


@dataclass(frozen=True)
class ErrorPolicy:
    """Policy for items that cannot be made."""

    action: str = RAISE  # "raise", "skip" or "replace"
    errors: tuple[type[Exception], ...] = DATA_ERRORS  # the tolerated errors
    budget: int | None = None  # failures that one epoch may have; None for any number

    @property
    def tolerates(self) -> bool:
        """Whether the policy is not to raise."""
        return self.action != RAISE


@dataclass(frozen=True)
class BatchResult:
    """A batch with failed items."""

    batch: Any  # the remaining batch, or None
    failures: tuple[Failure, ...]
    is_empty: bool = False  # whether there is no batch
    elsewhere: int = 0  # failed items in other ranks' parts of the batch


_PLAIN = frozenset({int, float, str, bytes, bool, list, tuple, type(None)})


def as_tensors(thing: Any) -> Any:
    """Return a batch or sample with a tensor, of the same memory, for each realized array.

    A ``BatchResult`` gets its batch changed.
    """
    if type(thing) in _PLAIN:  # faster than the check for a mapping
        return thing
    if isinstance(thing, BatchResult):
        return replace(thing, batch=as_tensors(thing.batch))
    import torch  # here, because workers that only realize plans have no torch

    if isinstance(thing, RealizedArray):
        return torch.from_numpy(thing.array)
    pairs = thing.items() if isinstance(thing, Mapping) else ()
    tensors: dict[str, Any] = {}
    for key, value in pairs:
        if isinstance(value, RealizedArray):
            tensors[key] = torch.from_numpy(value.array)
        elif type(value) is list and value and isinstance(value[0], RealizedArray):
            tensors[key] = [torch.from_numpy(one.array) for one in value]
    if isinstance(thing, Sample):
        return thing.with_data(**tensors) if tensors else thing
    return {**thing, **tensors} if tensors else thing


def as_arrays(thing: Any) -> Any:
    """Return a batch or sample with a realized array, of the same memory, for each tensor."""
    import torch

    pairs = thing.items() if isinstance(thing, Mapping) else ()
    arrays = {k: RealizedArray(v.numpy()) for k, v in pairs if isinstance(v, torch.Tensor)}
    if isinstance(thing, Sample):
        return thing.with_data(**arrays) if arrays else thing
    return {**thing, **arrays} if arrays else thing


def apply_transforms(instructions: Sequence[Transform], thing: Any) -> Any:
    """Return one sample, with tensors, after the instructions."""
    items = [as_arrays(thing)]
    for instruction in instructions:
        items = instruction(items)
    return as_tensors(items[0])


class Maker(Protocol):
    """Makes batches of jobs: a ``Recipe``, or a replacement where pipes are needed."""

    def run(self, job: Job, seed: int, epoch: int) -> Any:
        """Return the batch of ``job``."""


@dataclass(frozen=True)
class ErrorTolerant:
    """Makes batches, without the items that cannot be made."""

    maker: Maker
    policy: ErrorPolicy
    together: bool = False  # whether other ranks make parts of it: this part must not be empty

    def run(self, job: Job, seed: int, epoch: int) -> Any:
        """Return the batch of ``job``; a ``BatchResult`` if something failed."""
        failures = job.failures
        if not job.items:
            return BatchResult(None, failures, is_empty=True)
        try:
            batch = self.maker.run(job, seed, epoch)
        except self.policy.errors:
            bad = self._errors(job, seed, epoch)
            if not bad:
                # A transient error, or items that do not fit together: the retry shows which.
                return self.maker.run(job, seed, epoch)
            items = remaining(job.items, set(bad), self.policy.action)
            if not items and self.together:
                raise next(iter(bad.values()))  # noqa: B904  the very same error
            has_substitutes = self.policy.action == REPLACE and bool(items)
            for n, error in bad.items():
                instead = case_of(items[n]) if has_substitutes else ""
                failures = (*failures, describe_failure(error, job.index, n, job.items[n], instead))
            if not items:
                return BatchResult(None, failures, is_empty=True)
            numbers = remaining(job.numbers, set(bad), self.policy.action) if job.numbers else ()
            batch = self.maker.run(replace(job, items=items, numbers=numbers), seed, epoch)
        if isinstance(batch, BatchResult):  # the batch may be None after filters
            return replace(batch, failures=failures)
        return BatchResult(batch, failures) if failures else batch

    def _errors(self, job: Job, seed: int, epoch: int) -> dict[int, Exception]:
        """Return the errors of the items that cannot be made by themselves, by position."""
        failures: dict[int, Exception] = {}
        with batches_in(None):
            for number, item in enumerate(job.items):
                try:
                    alone = replace(job, items=(item,), numbers=(job.number(number),))
                    self.maker.run(alone, seed, epoch)
                except self.policy.errors as error:
                    failures[number] = error.with_traceback(None)
        return failures


def remaining(items: tuple[Any, ...], bad: set[int], action: str) -> tuple[Any, ...]:
    """Return the items of a batch: without the bad ones, or with others in their places.

    Examples
    --------
    >>> remaining(("a", "b", "c"), {1}, "skip"), remaining(("a", "b", "c"), {1, 2}, "replace")
    (('a', 'c'), ('a', 'a', 'a'))
    """
    good = [number for number in range(len(items)) if number not in bad]
    if action == SKIP or not good:
        return tuple(items[number] for number in good)
    places = range(len(items))
    following = ((*places[at:], *places[:at]) for at in places)
    return tuple(items[next(n for n in near if n not in bad)] for near in following)


def describe_failure(
    error: Exception, batch: int, item: int, thing: Any, instead: str = "", pipe: str = ""
) -> Failure:
    """Return the description of an error, without credentials."""
    secrets, msg = Secrets({}), str(error)
    if isinstance(error, errors.VoxpipeError):
        msg = error.message
        pipe = pipe if error.origin is None else str(error.origin)
    else:
        notes = map(str, getattr(error, "__notes__", ()))
        pipe = next((note[3:] for note in notes if note.startswith("at ")), pipe)
    case, kind = public_name(case_of(thing)), type(error).__name__
    files = secrets.cut(Job(batch, (thing,)).files()) if isinstance(thing, Mapping) else ""
    return Failure(batch, item, case, files, pipe, kind, secrets.cut(msg), instead)
