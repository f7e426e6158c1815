"""The jobs of an epoch: what its planner yields, in batches, and the part of each of one rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from typing import Any

from ..batching.job import ErrorPolicy, Job
from ..core import Stream
from ..core.errors import GraphError, add_location
from ..datapipes.batch_patches import BatchPatches
from ..datapipes.datapipe import ErrorLog, log_errors
from ..datapipes.epoch import OwnGenerators, items_from, set_epoch, starts_again
from ..graph import Cut, Pipe, error_location, failed_item, is_read_twice, traits_of, walk
from ..spatial.lazy.patch_steps import in_batch
from .delivered_batches import DeliveredBatches
from .global_generators import seeded_globals
from .memory_budget import PrefetchBudget
from .pipe_runner import as_raised

# A plan is the same on every rank, so nothing has to be sent: each rank plans the whole epoch and
# makes its own part of each batch. All end after the same batch, because it is the same plan. A
# graph that is not split runs on every rank, on its share of the items: there the pipe that gathers
# at its end is given the part of one rank, as a batch size is that of all ranks together.

KEEP, DROP, PAD, WRAP = "keep", "drop", "pad", "wrap"
UNEVEN = (DROP, PAD, WRAP)
"""What ranks may do with a last batch that is too small to be divided like the others."""


@dataclass(frozen=True)
class RankPart:
    """One rank's part of each batch."""

    rank: int = 0  # which rank
    ranks: int = 1  # how many there are
    uneven: str = KEEP
    """The last batch of an epoch that does not fill it: ``"keep"`` it smaller (one process),
    ``"drop"`` it, ``"pad"`` it with its last item, ``"wrap"`` around to the epoch's first items."""

    @property
    def name(self) -> str:
        """Which rank of how many, in words."""
        return f"rank {self.rank} of {self.ranks}"

    def size(self, group: int) -> int:
        """Return the items of a batch of all ranks together; ``group`` of them are gathered."""
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
        """Return the last batch of all ranks, from what is left and the epoch's first items."""
        if not items or self.uneven == DROP:
            return ()
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

    A job also holds what could not be planned since the one before; one after the last only that.
    """
    first: Sequence[Any] = ()
    size = part.size(split.group)
    excuses = ErrorLog(errors.errors if errors.tolerates else ())
    # What cannot be planned is found, and counted, in the items that are skipped as well; and
    # "wrap" wants the first items, too.
    skips = part.uneven != WRAP and not errors.tolerates
    # A patch that knows its place in the batch knows it before anybody asks what it reads.
    has_shares = any(isinstance(p, BatchPatches) and p.has_shares for p in split.realizing)
    items = run_planner(split.planner, seed, epoch, cursor.next * size if skips else 0)
    if errors.tolerates:
        items = _excusing(items, excuses)
    for index in count(cursor.next if skips else 0):
        batch: Sequence[Any] = tuple(islice(items, size))
        if part.uneven == WRAP:
            first = first or batch
        is_last = len(batch) < size
        if is_last:
            batch = () if split.drop_last else part.last(batch, first, size)
        failures = tuple(replace(failure, batch=index) for failure in excuses.failures)
        excuses.failures.clear()
        if (batch or failures) and not cursor.holds(index):
            own = len(batch) // part.ranks
            mine = slice(part.rank * own, (part.rank + 1) * own)
            numbers = range(index * size, index * size + len(batch))[mine]
            items_of_rank = tuple(in_batch(batch) if has_shares else batch)[mine]
            yield Job(index, items_of_rank, part.rank, failures, tuple(numbers))
        if is_last:
            return


def _excusing(items: Iterator[Any], excuses: ErrorLog) -> Iterator[Any]:
    """Yield items; cases that cannot be planned are noted and left out."""
    while True:
        # Not around the yield: what the consumer does meanwhile is no part of the plan.
        with log_errors(excuses):
            item = next(items, _END)
        if item is _END:
            return
        yield item


def run_planner(
    planner: Pipe, seed: int, epoch: int, start: int, of: Pipe | None = None
) -> Iterator[Any]:
    """Yield what a planner, part of the graph ``of``, yields from item ``start`` on."""
    set_epoch(planner if of is None else of, seed, epoch)
    if not draws_globally(planner):
        try:
            yield from items_from(planner, start)
        except Exception as error:
            raise _with_place(error)  # noqa: B904  the very same error
        return
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
            except Exception as error:
                raise _with_place(error)  # noqa: B904  the very same error
        if own.repeats(may_repeat=not number and starts_again(planner)):
            set_epoch(planner if of is None else of, seed, epoch)
            items = iter(planner)
            continue
        if number >= start:
            yield item
        number += 1


def draws_globally(planner: Pipe) -> bool:
    """Whether global generators are drawn from: by functions, or for another pass of one pipe.

    The loader seeds the first pass of an epoch; that of ``chain.concat(chain)`` draws another seed.
    """
    return is_read_twice(planner) or any(traits_of(pipe).runs_user_code for pipe in walk(planner))


def _with_place(error: Exception) -> Exception:
    """Return an error of a planner's pipe with its place: what comes of its item is not known."""
    return add_location(as_raised(error), error_location(error), *failed_item(error))


class JobsInFlight:
    """Hands out the jobs of an epoch, and takes what is made of them, in the order of the plan."""

    def __init__(self, plan: Iterator[Job], room: PrefetchBudget, *, in_order: bool) -> None:
        self._plan: Iterator[Job] | None = plan
        self._room, self._in_order = room, in_order
        self.order: deque[int] = deque()  # numbers of batches that were begun and not delivered
        self.ready: dict[int, Any] = {}  # what was made of those that are finished
        self._error: Exception | None = None

    def next_job(self, most: int, in_flight: int) -> Job | None:
        """Return the next job, if one more may be on its way beside the ``in_flight``."""
        if self._plan is None or len(self.order) >= most:
            return None
        if self.order and not self._room.has_room(in_flight):
            return None
        try:
            job = next(self._plan, None)
        except Exception as error:  # what the planner's pipes raise: after what is in flight
            job, self._error = None, error
        if job is None:
            self._plan = None
        return job

    def fail(self, error: Exception) -> None:
        """End the plan with an error, which comes after what is in flight."""
        self._plan, self._error = None, error

    def first(self) -> int | None:
        """Return the number of the batch that comes next; None while it is not ready."""
        if not self._in_order:
            return min(self.ready, default=None)
        return self.order[0] if self.order and self.order[0] in self.ready else None

    def take(self, index: int) -> Any:
        """Return what was made of a job, which is delivered now."""
        self.order.remove(index)
        self._room.remove(index)
        return self.ready.pop(index)

    def raise_end(self, death: Exception | None = None) -> None:
        """Raise ``death``, what the planner raised or StopIteration, once nothing is in flight."""
        if death is None and (self._plan is not None or self.order):
            return
        end = death or self._error or StopIteration()
        self._error = None
        try:
            raise end
        finally:
            del end  # held by this frame, which its traceback holds, it would keep all

    def close(self) -> None:
        """Plan no more, and drop what is ready."""
        self._plan = None
        self.ready.clear()
