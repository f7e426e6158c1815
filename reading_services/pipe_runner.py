"""Run pipes where there are no instructions for what they do: on one job, or on a share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.graph_settings import apply_sharding

from ..core import Stream
from ..core.errors import placed
from ..datapipes import DataPipe
from ..datapipes.epoch import set_epoch
from ..graph import Cut, Pipe, origin_of, raised_at, traits_of, walk, with_parents
from ..realizing import NOWHERE, STANDING, Job
from ..realizing.recipe import the_batch
from .seeding import seeded_globals

# torch writes this into the message of every error that passes through a pipe.
_TORCH_SAYS = "\nThis exception is thrown by __iter__ of"


def as_raised(error: Exception) -> Exception:
    """Return ``error`` with its message as it was raised."""
    if error.args and isinstance(error.args[0], str) and _TORCH_SAYS in error.args[0]:
        error.args = (error.args[0].split(_TORCH_SAYS, 1)[0], *error.args[1:])
    return error


class Handoff(IterDataPipe[Any]):
    """Yields the items of the job at hand: the source of a realizing part."""

    def __init__(self) -> None:
        super().__init__()
        self.items: tuple[Any, ...] = ()
        self.number = NOWHERE

    def __iter__(self) -> Iterator[Any]:
        """Yield the items."""
        for number, item in enumerate(self.items):
            self.number = number
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
            step, item = STANDING.step, STANDING.item
            STANDING.at(self.number, NOWHERE if self.whole else self.handoff.number + 1)
            try:
                made = next(items)
            except StopIteration:
                return
            except Exception as error:
                # A StopIteration of a user's function ends its pipe's generator, whose frame,
                # where the pipe is looked up otherwise, is not in the traceback of what follows.
                ended = isinstance(error.__cause__, StopIteration)
                origin = origin_of(self.parent) if ended else None
                raise placed(error, origin, self._case())  # noqa: B904  the very same error
            finally:
                STANDING.at(step, item)
            yield made

    def _case(self) -> str:
        """Return the case of the item at hand; nothing where it is one of several."""
        at = self.handoff.items[max(0, self.handoff.number) :][:1]
        return "" if self.whole or not at else str(getattr(at[0], "case", ""))


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
            self.sink = with_parents(pipe, [self.sink])
            if not traits_of(pipe).watches:
                self.sink = Step(self.sink, number, self.handoff, whole=whole)
        self._opaque = any(traits_of(pipe).opaque for pipe in split.realizing)
        self._run: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"handoff": Handoff(), "sink": self.sink, "_opaque": self._opaque, "_run": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.handoff = next(pipe for pipe in walk(self.sink) if isinstance(pipe, Handoff))

    def run(self, job: Job, seed: int, epoch: int) -> Any:
        """Return the batch of ``job``.

        A user's function may draw from the global generators of random, NumPy and torch:
        these are seeded from (seed, epoch, batch) around it and put back, so that its
        numbers do not depend on the worker either.
        """
        if self._run != (seed, epoch):
            set_epoch(self.sink, seed, epoch)
            self._run = (seed, epoch)
        self.handoff.items, self.handoff.number = job.items, NOWHERE
        stream = Stream(seed, epoch, (job.index,), "user functions")
        guard = seeded_globals(stream.integer()) if self._opaque else contextlib.nullcontext()
        try:
            with guard:
                made = list(self.sink)
        except Exception as error:
            raise placed(as_raised(error), raised_at(error), job.cases())  # noqa: B904
        finally:
            self.handoff.items = ()
            STANDING.at(NOWHERE)
        return the_batch(job, made)


class Replica:
    """A whole graph that cannot be cut, run on this worker's share of the items."""

    def __init__(self, graph: Any, worker: int, workers: int, *, shards: bool) -> None:
        self.graph = graph
        self.worker = worker
        self.workers = workers
        self.shards = shards
        self._items: Iterator[Any] | None = None

    def run(self, index: int, seed: int, epoch: int) -> Any:
        """Return this worker's next item; StopIteration after the last."""
        if self._items is None:
            self._start(seed, epoch)
        assert self._items is not None
        # Which worker draws enters here: a share has no numbers of its own but by its owner.
        key = (self.workers, self.worker, index)
        stream = Stream(seed, epoch, key, "user functions")
        try:
            with seeded_globals(stream.integer()):
                return next(self._items)
        except StopIteration:
            raise
        except Exception as error:
            raise placed(as_raised(error), raised_at(error))  # noqa: B904  the very same error

    def _start(self, seed: int, epoch: int) -> None:
        set_epoch(self.graph, seed, epoch)
        if self.shards:
            apply_sharding(self.graph, self.workers, self.worker)
        self._items = iter(self.graph)
