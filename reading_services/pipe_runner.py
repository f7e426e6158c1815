"""Makes batches by running pipes, where there are no instructions for what they do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import IterDataPipe

from ..batching import CURRENT_STEP, NOWHERE, Job
from ..batching.job import the_batch
from ..core import CallSite, Stream
from ..core.errors import LOCATABLE, add_location
from ..datapipes import DataPipe
from ..datapipes.epoch import set_epoch
from ..graph import Cut, Pipe, describe, error_location, origin_of, traits_of, walk, with_parents
from .global_generators import seed_globals, seeded_globals
from .raised_error import as_raised

_NO_JOB = Job(NOWHERE, ())


class Handoff(IterDataPipe[Any]):
    """Yields the items of the job at hand: the source of a realizing part."""

    def __init__(self) -> None:
        super().__init__()
        self.job = _NO_JOB
        self.number = NOWHERE
        self.seeds: Callable[[int], int] | None = None
        """The seed of the functions that see an item of the job; None where there are none."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the items."""
        for number, item in enumerate(self.job.items):
            self.number = number
            if self.seeds is not None and number:  # the first is seeded by who runs the job
                seed_globals(self.seeds(number))
            yield item


class Step(IterDataPipe[Any]):
    """Yields the items of one pipe of a realizing part, and notes when that pipe is at work."""

    def __init__(self, parent: Pipe, number: int, handoff: Handoff, *, whole: bool) -> None:
        super().__init__()
        self.parent = parent
        self.number = number
        self.handoff = handoff
        self.whole = whole

    def __iter__(self) -> Iterator[Any]:
        """Yield the items."""
        items = iter(self.parent)
        while True:
            step, item = CURRENT_STEP.step, CURRENT_STEP.item
            CURRENT_STEP.at(self.number, NOWHERE if self.whole else self.handoff.number + 1)
            try:
                made = next(items)
            except StopIteration:
                return
            except LOCATABLE as error:
                # A StopIteration of a user's function ends its pipe's generator, whose frame,
                # where the pipe is looked up otherwise, is not in the traceback of what follows.
                ended = isinstance(error.__cause__, StopIteration)
                origin = origin_of(self.parent) if ended else None
                raise add_location(error, origin, *self._at())  # noqa: B904  the very same error
            finally:
                CURRENT_STEP.at(step, item)
            yield made

    def _at(self) -> tuple[str, str]:
        """Return the case of the item at hand, and which it is; nothing where it is several."""
        number = max(0, self.handoff.number)
        at = self.handoff.job.items[number:][:1]
        if self.whole or not at:
            return "", ""
        return str(getattr(at[0], "case", "")), self.handoff.job.place(number)


class PipeRunner:
    """Turns jobs into batches by running the realizing pipes, which needs torch."""

    def __init__(self, split: Cut) -> None:
        self.handoff = Handoff()
        self.sink: Pipe = self.handoff
        whole = False
        for number, pipe in enumerate(split.realizing):
            if isinstance(pipe, DataPipe) and pipe.instructions() == ():
                continue  # there is nothing to do for one batch: prefetch(), for instance
            whole = whole or bool(traits_of(pipe).group)
            self.sink = _of_any_size(with_parents(pipe, [self.sink]))
            if not traits_of(pipe).watches:
                self.sink = Step(self.sink, number, self.handoff, whole=whole)
        self.last = written_last([*split.realizing])
        self._runs_user_code = any(traits_of(pipe).runs_user_code for pipe in split.realizing)
        self._filters = split.filters
        self._run: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "handoff": Handoff(), "_run": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.handoff = next(pipe for pipe in walk(self.sink) if isinstance(pipe, Handoff))

    def run(self, job: Job, seed: int, epoch: int) -> Any:
        """Return the batch of ``job``.

        A user's function may draw from the global generators of random, NumPy and torch:
        these are seeded from (seed, epoch, item) before it sees an item and put back after the
        batch, so that its numbers depend neither on the worker nor on how many ranks divide the
        batch. One that sees a whole batch sees its rank's part, and draws for that.
        """
        if self._run != (seed, epoch):
            set_epoch(self.sink, seed, epoch)
            self._run = (seed, epoch)
        self.handoff.job, self.handoff.number = job, NOWHERE
        guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._runs_user_code:
            self.handoff.seeds = seeds = partial(_seed_of_item, job, seed, epoch)
            guard = seeded_globals(seeds(0))
        try:
            with guard:
                made = list(self.sink)
        except LOCATABLE as error:
            at = error_location(error)
            raise add_location(as_raised(error), at, job.cases(), job.place())  # noqa: B904
        finally:
            self.handoff.job, self.handoff.seeds = _NO_JOB, None
            CURRENT_STEP.at(NOWHERE)
        return the_batch(job, made, filters=self._filters)


def written_last(pipes: list[Pipe]) -> CallSite | None:
    """Return the last of some pipes, as the user wrote it, for what it yields."""
    shown = [pipe for pipe in pipes if not traits_of(pipe).watches]
    return (origin_of(shown[-1]) or CallSite(describe(shown[-1]), "", 0)) if shown else None


def _seed_of_item(job: Job, seed: int, epoch: int, item: int) -> int:
    return Stream(seed, epoch, (job.number(item),), "user functions").integer()


def _of_any_size(pipe: Pipe) -> Pipe:
    """Return a pipe that gathers what it is given: the plan has left out what is to be dropped."""
    if traits_of(pipe).group and traits_of(pipe).drop_last:
        pipe.drop_last = False  # type: ignore[attr-defined]
    return pipe
