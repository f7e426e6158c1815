"""The jobs of an epoch, of which each rank has its part, and the position of a loader in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count, cycle, filterfalse, islice, repeat, takewhile
from typing import Any, ClassVar, NamedTuple

from ..batching.job import ErrorPolicy, Failure, Job
from ..core import Stream
from ..core.context import holding
from ..core.errors import GraphError, add_location
from ..datapipes.alike_items import alike_items
from ..datapipes.batch_patches import BatchPatches
from ..datapipes.datapipe import ERROR_LOG, ErrorLog
from ..datapipes.epoch import OwnGenerators, set_epoch, starts_again
from ..datapipes.item_numbers import NumberedItems, number_items
from ..graph import Cut, Pipe, error_location, failed_item, is_read_twice, traits_of, walk
from ..spatial.lazy.patch_report import log_fusion, logs_fusion
from ..spatial.lazy.patch_steps import in_batch
from .memory_budget import PrefetchBudget
from .pipe_runner import as_raised, seeded_globals

# With order="as_ready" thousands of batches may overtake a slow one, and a share of a graph that
# ends early never delivers its remaining numbers. So batches that came early are kept as runs of
# numbers, whose count depends on the gaps and not on the batches.


class BatchRun(NamedTuple):
    """Numbers at equal distances.

    Examples
    --------
    >>> [number for number in range(12) if BatchRun(3, 4, step=2).holds(number)]
    [3, 5, 7, 9]
    """

    first: int
    length: int = 1  # count of the numbers
    step: int = 1  # their distance

    @property
    def end(self) -> int:
        """The number that would follow."""
        return self.first + self.length * self.step

    def holds(self, number: int) -> bool:
        """Whether a number is one of them."""
        return self.first <= number < self.end and (number - self.first) % self.step == 0


@dataclass(frozen=True)
class DeliveredBatches:
    """The delivered batches of an epoch.

    Examples
    --------
    >>> DeliveredBatches().after(0).after(2).after(3)
    DeliveredBatches(next=1, ahead=(BatchRun(first=2, length=2, step=1),))
    >>> DeliveredBatches().after(0).after(2).after(1)
    DeliveredBatches(next=3, ahead=())
    """

    next: int = 0  # the first batch that was not delivered
    ahead: tuple[BatchRun, ...] = ()  # later batches that were delivered, sorted

    def after(self, index: int, step: int = 1) -> DeliveredBatches:
        """Return the cursor after one more batch."""
        if index == self.next:
            after = DeliveredBatches(index + 1, self.ahead)
            return after._settle() if self.ahead else after
        return DeliveredBatches(self.next, _with(self.ahead, BatchRun(index, 1, step)))

    def _settle(self) -> DeliveredBatches:
        first, ahead = self.next, {run.first: run for run in self.ahead}
        while (run := ahead.get(first)) is not None:
            if run.step == 1:
                first = ahead.pop(first).end
                continue
            # Shares take turns: settle as many rounds at once as all of them have.
            turn: list[BatchRun] = []
            while len(turn) < run.step and (share := ahead.get(first + len(turn))) is not None:
                if share.step != run.step:
                    break
                turn.append(ahead.pop(share.first))
            rounds = min(share.length for share in turn) if len(turn) == run.step else 1
            for begin, length, step in turn:
                if length > rounds:
                    rest = BatchRun(begin + rounds * step, length - rounds, step)
                    ahead[rest.first] = rest
            first += len(turn) + (rounds - 1) * run.step
        return DeliveredBatches(first, tuple(sorted(ahead.values())))

    def holds(self, index: int) -> bool:
        """Whether a batch was delivered."""
        return index < self.next or any(run.holds(index) for run in self.ahead)

    is_requested: ClassVar[bool] = False  # whether the caller has named the batches

    def coming(self, *, from_first: bool = False) -> Iterator[tuple[int, bool]]:
        """Yield the batches that are planned, and whether each is wanted."""
        if from_first:
            return ((index, not self.holds(index)) for index in count())
        numbers: Iterator[int] = count(self.next)
        if self.ahead or type(self) is not DeliveredBatches:  # subclasses may hold others
            numbers = filterfalse(self.holds, numbers)
        return zip(numbers, repeat(True), strict=False)

    def leave_out(self, failures: Sequence[Failure]) -> None:
        """Accept an empty batch; a subclass may raise if it needs an item for it."""


@dataclass(frozen=True)
class RequestedBatches(DeliveredBatches):
    """The batches that a caller has named, in that order."""

    is_requested: ClassVar[bool] = True
    indices: tuple[int, ...] = ()

    def coming(self, *, from_first: bool = False) -> Iterator[tuple[int, bool]]:
        """Yield the named batches."""
        return ((index, True) for index in self.indices)


def _with(runs: tuple[BatchRun, ...], new: BatchRun) -> tuple[BatchRun, ...]:
    rest = []
    for run in runs:
        if run.step == new.step and run.end == new.first:
            new = BatchRun(run.first, run.length + new.length, run.step)
        elif run.step == new.step and new.end == run.first:
            new = new._replace(length=new.length + run.length)
        else:
            rest.append(run)
    return tuple(sorted([*rest, new]))


@dataclass(frozen=True)
class Position:
    """The position of a loader in its run."""

    epoch: int = 0
    cursor: DeliveredBatches = field(default_factory=DeliveredBatches)
    failures: int = 0
    """Failed items of the epoch, also before a resume; ``OnError`` has a budget for them."""


# Every rank plans the whole epoch and makes its own part of each batch, without communication. All
# ranks have the same plan, so all end after the same batch. A graph that is not split runs on every
# rank, on the rank's share of the items. The batch size is that of all ranks together, so the pipe
# that gathers its batches gets the size of one rank's part.

KEEP, DROP, PAD, WRAP = "keep", "drop", "pad", "wrap"
UNEVEN = (DROP, PAD, WRAP)
"""Options for a last batch that is too small to be divided like the others."""


@dataclass
class Fill:
    """The fill of an epoch's last batch, noted at the end of the plan."""

    items: int = 0  # items before it; 0 without fill, -1 if unknown


@dataclass(frozen=True)
class RankPart:
    """One rank's part of each batch."""

    rank: int = 0
    ranks: int = 1  # number of ranks
    uneven: str = KEEP
    """An incomplete last batch: ``"keep"`` it smaller (one process), ``"drop"`` it, ``"pad"`` it
    with its last item, or ``"wrap"`` around to the epoch's first items."""
    fill: Fill = field(default_factory=Fill, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The rank and the number of ranks, as text."""
        return f"rank {self.rank} of {self.ranks}"

    def size(self, group: int) -> int:
        """Return the size of a batch of all ranks, in which the chain gathers ``group`` items."""
        if group == 1:
            return self.ranks
        if group % self.ranks:
            raise GraphError(
                f"a batch of {group} cannot be divided among {self.ranks} ranks: its size is that "
                "of all ranks together",
                do=f"Give a batch size that {self.ranks} divides, or start other ranks.",
            )
        return group

    def last(self, items: Sequence[Any], first: Sequence[Any], size: int) -> tuple[Any, ...]:
        """Return the last batch of all ranks, from the last and the epoch's first items."""
        if not items or self.uneven == DROP:
            return ()
        if self.uneven != KEEP:
            self.fill.items = len(items)
        if self.uneven == PAD:
            return (*items, *[items[-1]] * (size - len(items)))
        if self.uneven == WRAP:
            return (*items, *islice(cycle(first), size - len(items)))
        return tuple(items)

    def __str__(self) -> str:
        ends = {
            DROP: "left out",
            PAD: "filled up with its last item",
            WRAP: "filled up from the first",
        }
        return (
            f"{self.name}: its part of every batch of all ranks; a last one "
            f"that is too small is {ends.get(self.uneven, 'smaller')}"
        )


WHOLE = RankPart()  # all of every batch: one process

_RAISES = ErrorPolicy()
_END = object()


def jobs(
    split: Cut,
    seed: int,
    epoch: int,
    cursor: DeliveredBatches,
    part: RankPart = WHOLE,
    errors: ErrorPolicy = _RAISES,
) -> Generator[Job, None, None]:
    """Yield the jobs of one epoch that were not delivered, each with this rank's part of a batch.

    A job also holds the failures of planning since the previous job. Failures after the last batch
    come in a job of their own.
    """
    first: Sequence[Any] = ()
    size = part.size(split.group)
    excuses = ErrorLog(errors.errors) if errors.tolerates else None
    share = None if cursor.is_requested else (size // part.ranks, size)
    plan = EpochPlan(split.planner, seed, epoch, excuses, share)
    # A patch that depends on its place in the batch gets its place before its reads are planned.
    has_shares = any(isinstance(p, BatchPatches) and p.has_shares for p in split.realizing)
    is_logged = logs_fusion()
    # Failures of planning are counted in skipped items as well, and "wrap" needs the first items:
    # in both cases items that come in order are planned from the first.
    is_whole = part.uneven == WRAP and plan.by_number is None
    for index, is_wanted in cursor.coming(from_first=is_whole or excuses is not None):
        start, is_last = index * size, False
        try:
            # Each rank plans its own part.
            if plan.by_number is not None and plan.by_number.holds(start + size - 1):
                whole, own = size, size // part.ranks
                items = plan.items(start + part.rank * own, start + (part.rank + 1) * own)
            else:
                batch: Sequence[Any] = plan.items(start, start + size)
                is_last = len(batch) < size
                if part.uneven == WRAP:
                    first = first or batch if plan.by_number is None else plan.items(0, size)
                if is_last:
                    batch = () if split.drop_last else part.last(batch, first, size)
                whole, own = len(batch), len(batch) // part.ranks
                items = tuple(batch[part.rank * own : (part.rank + 1) * own])
        except Exception as error:
            raise with_place(error)  # noqa: B904  the very same error
        failures: tuple[Failure, ...] = ()
        if excuses is not None:
            failures = tuple(replace(failure, batch=index) for failure in excuses.failures)
            excuses.failures.clear()
        if is_wanted and (whole or failures):
            place = part.rank * own
            if has_shares:
                items = tuple(in_batch(items, place, whole))
            if is_logged:
                log_fusion(items)
            numbers = range(start + place, start + place + len(items))
            yield Job(index, items, part.rank, failures, tuple(numbers))
        if is_last and not cursor.is_requested:
            return


class EpochPlan:
    """The items that a planner makes in one epoch: by their numbers, or in their order."""

    def __init__(
        self,
        planner: Pipe,
        seed: int,
        epoch: int,
        excuses: ErrorLog | None = None,
        share: tuple[int, int] | None = (1, 1),
    ) -> None:
        # ``share``: the number of items of a batch that are planned, and that of all. None is for
        # a few batches, whose pipes take less time than the preparation of copies.
        self._planner, self._run, self._excuses = planner, (seed, epoch), excuses
        set_epoch(planner, seed, epoch)
        places = {id(pipe): place for place, pipe in enumerate(walk(planner))}
        every = number_items(
            planner, lambda pipe: FunctionSeeds(pipe, (seed, epoch), places[id(pipe)])
        )
        self._items = every if isinstance(every, NumberedItems) else None
        if self._items is not None and share is not None:
            self._items = alike_items(self._items, *share)
        self.by_number = None if excuses is not None else self._items
        """The items by their numbers; None where they have none, or where some may be left out."""
        # A loader inside a pipe leaves no item out for the ``OnError`` of the outer loader.
        self._is_inside = excuses is None and ERROR_LOG.get() is not None
        self._in_order: Iterator[Any] = iter(())
        self._next = -1  # number of the next item in order; -1 before there is one

    def items(self, start: int, stop: int) -> tuple[Any, ...]:
        """Return items from one number to below another; fewer at the end of the epoch."""
        every = self.by_number
        if every is not None:
            with holding(ERROR_LOG, None) if self._is_inside else nullcontext():
                return tuple([every[n] for n in takewhile(every.holds, range(start, stop))])
        if not 0 <= self._next <= start:
            if self._items is not None:
                self._in_order = self._items.items_from(0)
            else:
                self._in_order = run_planner(self._planner, *self._run)
            if self._excuses is not None:
                self._in_order = _excusing(self._in_order, self._excuses)
            self._next = 0
        skip, self._next = start - self._next, stop
        return tuple(islice(self._in_order, skip, skip + stop - start))


class FunctionSeeds:
    """Seeds the global generators, and those of functions, for each item of one pipe."""

    def __init__(self, pipe: Pipe, run: tuple[int, int], place: int) -> None:
        self._run, self._place, self._own = run, place, OwnGenerators((pipe,))

    def __call__(self, number: int, make: Callable[[], Any]) -> Any:
        """Return the item that ``make`` makes for a number."""
        stream = Stream(*self._run, (self._place, number), "user functions of the planner")
        while True:
            with seeded_globals(stream.integer(), self._own.generators):
                result = make()
            if not self._own.repeats(may_repeat=True):
                return result


def _excusing(items: Iterator[Any], excuses: ErrorLog) -> Iterator[Any]:
    """Yield items; log and skip cases that cannot be planned."""
    while True:
        # Not around the yield, where the consumer runs.
        with holding(ERROR_LOG, excuses):
            item = next(items, _END)
        if item is _END:
            return
        yield item


def run_planner(planner: Pipe, seed: int, epoch: int, of: Pipe | None = None) -> Iterator[Any]:
    """Return the items of a planner in their order; ``of`` is its whole graph."""
    # The caller adds the place of an error, so that each item passes one generator less.
    whole = planner if of is None else of
    set_epoch(whole, seed, epoch)
    return _seeded_items(planner, whole, seed, epoch) if draws_globally(planner) else iter(planner)


def _seeded_items(planner: Pipe, whole: Pipe, seed: int, epoch: int) -> Iterator[Any]:
    """Yield the items of a planner; each is made with global generators of its own seed."""
    items = iter(planner)
    own = OwnGenerators(walk(planner))
    number = 0
    while True:
        stream = Stream(seed, epoch, (number,), "user functions of the planner")
        with seeded_globals(stream.integer(), own.generators):
            try:
                item = next(items)
            except StopIteration:
                return
        if own.repeats(may_repeat=not number and starts_again(planner)):
            set_epoch(whole, seed, epoch)
            items = iter(planner)
            continue
        yield item
        number += 1


def draws_globally(planner: Pipe) -> bool:
    """Whether functions or a second pass of one pipe draw from the global generators.

    The loader seeds the first pass of an epoch; the second of ``chain.concat(chain)`` draws a seed.
    """
    return is_read_twice(planner) or any(traits_of(pipe).runs_user_code for pipe in walk(planner))


def with_place(error: Exception) -> Exception:
    """Return an error of a planner's pipe with its location; its batch is not known."""
    return add_location(as_raised(error), error_location(error), *failed_item(error))


class JobsInFlight:
    """Queue of the jobs of an epoch and of their results, in the order of the plan."""

    def __init__(self, plan: Iterator[Job], room: PrefetchBudget, *, in_order: bool) -> None:
        self._plan: Iterator[Job] | None = plan
        self._room, self._in_order = room, in_order
        self.order: deque[int] = deque()  # batches that were begun and not delivered
        self.ready: dict[int, Any] = {}  # results of finished jobs
        self._error: Exception | None = None

    def next_job(self, most: int, in_flight: int) -> Job | None:
        """Return the next job, if one more than ``in_flight`` may be in flight; else None."""
        if self._plan is None or len(self.order) >= most:
            return None
        if self.order and not self._room.has_room(in_flight):
            return None
        try:
            job = next(self._plan, None)
        except Exception as error:  # raised after the jobs in flight
            job, self._error = None, error
        if job is None:
            self._plan = None
        return job

    def fail(self, error: Exception) -> None:
        """End the plan with an error, which is raised after the jobs in flight."""
        self._plan, self._error = None, error

    def first(self) -> int | None:
        """Return the number of the next batch; None while it is not ready."""
        if not self._in_order:
            return min(self.ready, default=None)
        return self.order[0] if self.order and self.order[0] in self.ready else None

    def take(self, index: int) -> Any:
        """Remove a job that is delivered now, and return its result."""
        self.order.remove(index)
        self._room.remove(index)
        return self.ready.pop(index)

    def is_over(self) -> bool:
        """Whether the plan has ended and no job is in flight."""
        return self._plan is None and not self.order

    def end(self) -> Exception:
        """Return the planner's error, once, or StopIteration."""
        error, self._error = self._error, None
        return error or StopIteration()

    def close(self) -> None:
        """End the plan and drop the results."""
        self._plan = None
        self.ready.clear()
