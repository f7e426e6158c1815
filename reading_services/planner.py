"""The jobs of an epoch: what its planner yields, in batches."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from ..batching import ErrorPolicy, Failure, Job
from ..core import Stream
from ..core.errors import add_location
from ..datapipes.batch_patches import BatchPatches
from ..datapipes.datapipe import ErrorLog, log_errors
from ..datapipes.epoch import items_from, set_epoch
from ..graph import Cut, Pipe, error_location, failed_item, is_read_twice, traits_of, walk
from ..spatial.lazy.patch_steps import in_batch
from .global_generators import proof_that_nothing_draws, seeded_globals
from .pipe_runner import as_raised
from .place import WHOLE, WRAP, Part, Place

_RAISES = ErrorPolicy()
_END = object()
_AS_IT_IS = contextlib.nullcontext()


def jobs(
    split: Cut,
    seed: int,
    epoch: int,
    place: Place,
    part: Part = WHOLE,
    errors: ErrorPolicy = _RAISES,
) -> Generator[Job, None, None]:
    """Yield the jobs of one epoch that were not delivered, each with this rank's part of a batch.

    A job also holds what could not be planned since the one before; one after the last only that.
    """
    held: list[Any] = []
    first: list[Any] = []
    size, index = part.size(split.group), 0
    excuses = ErrorLog(errors.errors if errors.tolerates else ())
    # What cannot be planned is found, and counted, in the items that are skipped as well.
    if part.uneven != WRAP and not errors.tolerates:  # wrap wants the first items, too
        index = place.next

    # A patch that knows its place in the batch knows it before anybody asks what it reads.
    has_shares = any(isinstance(p, BatchPatches) and p.has_shares for p in split.realizing)

    def job(items: Sequence[Any]) -> Job:
        items = in_batch(items) if has_shares else items
        noted: tuple[Failure, ...] = ()
        if excuses.failures:
            noted = tuple(replace(failure, batch=index) for failure in excuses.failures)
            excuses.failures.clear()
        numbers = part.of(range(index * size, index * size + len(items)))
        return Job(index, part.of(items), part.rank, noted, numbers)

    items = planned(split.planner, seed, epoch, index * size)
    for item in _excusing(items, excuses) if errors.tolerates else items:
        if part.uneven == WRAP and len(first) < size:
            first.append(item)
        held.append(item)
        if len(held) == size:
            made = job(held)
            if not place.holds(index):
                yield made
            index, held = index + 1, []
    rest = () if split.drop_last else part.last(held, first, size)
    if rest:
        made = job(rest)
        if not place.holds(index):
            yield made
        index += 1
    if excuses.failures and not place.holds(index):
        yield replace(job(()), items=())


def _excusing(items: Iterator[Any], excuses: ErrorLog) -> Iterator[Any]:
    """Yield items; cases that cannot be planned are noted and left out."""
    while True:
        # Not around the yield: what the consumer does meanwhile is no part of the plan.
        with log_errors(excuses):
            item = next(items, _END)
        if item is _END:
            return
        yield item


def planned(
    planner: Pipe, seed: int, epoch: int, start: int, of: Pipe | None = None
) -> Iterator[Any]:
    """Yield what a planner, part of the graph ``of``, yields from item ``start`` on."""
    set_epoch(planner if of is None else of, seed, epoch)
    if not draws_globally(planner):
        try:
            yield from items_from(planner, start)
        except Exception as error:
            raise _placed(error)  # noqa: B904  the very same error
        return
    items = iter(planner)
    proof = proof_that_nothing_draws(planner)
    for number in count():
        if proof is not None and proof.holds():
            guard: contextlib.AbstractContextManager[None] = _AS_IT_IS
        else:
            stream = Stream(seed, epoch, (number,), "user functions of the planner")
            guard = seeded_globals(stream.integer())
        with guard:
            try:
                item = next(items)
            except StopIteration:
                return
            except Exception as error:
                raise _placed(error)  # noqa: B904  the very same error
        if number >= start:
            yield item


def draws_globally(planner: Pipe) -> bool:
    """Whether global generators are drawn from: by functions, or for another pass of one pipe.

    The loader seeds the first pass of an epoch; that of ``chain.concat(chain)`` draws another seed.
    """
    return is_read_twice(planner) or any(traits_of(pipe).runs_user_code for pipe in walk(planner))


def _placed(error: Exception) -> Exception:
    """Return an error of a planner's pipe with its place: what comes of its item is not known."""
    return add_location(as_raised(error), error_location(error), *failed_item(error))
