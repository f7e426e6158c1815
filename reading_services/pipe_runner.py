"""Run pipes where there are no instructions for what they do: on one job, or on a share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.graph_settings import apply_sharding

from ..core import Stream
from ..core.errors import placed
from ..datapipes.epoch import set_epoch
from ..graph import Cut, Pipe, traits_of, walk
from ..realizing import Job
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

    def __iter__(self) -> Iterator[Any]:
        """Yield the items."""
        yield from self.items


class PipeRunner:
    """Turns jobs into batches by running the realizing pipes, which needs torch."""

    def __init__(self, split: Cut) -> None:
        self.handoff = Handoff()
        self.sink: Pipe = split.onto(self.handoff)
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
        self.handoff.items = job.items
        stream = Stream(seed, epoch, (job.index,), "user functions")
        guard = seeded_globals(stream.integer()) if self._opaque else contextlib.nullcontext()
        try:
            with guard:
                made = list(self.sink)
        except Exception as error:
            raise placed(as_raised(error), case=job.cases())  # noqa: B904  the very same error
        finally:
            self.handoff.items = ()
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
        with seeded_globals(stream.integer()):
            return next(self._items)

    def _start(self, seed: int, epoch: int) -> None:
        set_epoch(self.graph, seed, epoch)
        if self.shards:
            apply_sharding(self.graph, self.workers, self.worker)
        self._items = iter(self.graph)
