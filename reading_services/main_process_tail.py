"""The end of a chain that runs in the loader's own process: devices and ranks.

Such pipes, and later pipes that take items one by one, run after the batches of a service. They
yield one item for each, in order: items made ahead do not count as delivered.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch.utils.data import IterDataPipe

from ..adapters import Annotation, Limits, note_of
from ..batching.job import BatchResult
from ..core import Stream
from ..core.errors import GraphError, VoxpipeError
from ..datapipes.background_iterator import STOP_SECONDS, stop_limit
from ..datapipes.epoch import OwnGenerators, set_epoch
from ..graph import (
    Pipe,
    before_dispatch,
    chained_name,
    describe,
    origin_of,
    parents_of,
    traits_of,
    walk,
    with_parents,
)
from ..graph.walk import readers
from .in_process import InProcessReadingService
from .pipe_runner import seed_globals, seeded_globals
from .reading_service import Epoch, ReadingService, leave


def detach_tail(sink: Pipe, service: ReadingService) -> tuple[Pipe, MainProcessTail]:
    """Return the graph without the end that stays here, and that end; GraphError if that fails."""
    before = before_dispatch(sink)
    end = _end_of(sink, before)
    body = parents_of(end[0])[0] if end else sink
    for pipe in end:
        if isinstance(pipe, Annotation):  # for the service, which reads them off its graph
            body = with_parents(pipe, [body])
    stay = (pipe for pipe in walk(body) if id(pipe) not in before)
    local_pipe = next((pipe for pipe in stay if _stays(pipe, before)), None)
    if local_pipe is not None and not isinstance(service, InProcessReadingService):
        raise _refusal(local_pipe, body)
    pipes = tuple(pipe for pipe in end if not isinstance(pipe, Annotation))
    return body, MainProcessTail(pipes, note_of(sink, Limits).thread_stop)


def _refusal(local_pipe: Pipe, body: Pipe) -> VoxpipeError:
    """Return the error of a pipe that has to stay here, before a pipe that cannot follow it."""
    for bars in walk(body):
        follows = any(pipe is local_pipe for pipe in walk(bars)) and bars is not local_pipe
        if follows and not (traits_of(bars).per_item or traits_of(bars).main_process):
            break
    else:
        bars = local_pipe
    what = f"{describe(local_pipe)} stays in the process of the loader"
    if bars is not local_pipe:
        what += f", and {describe(bars)} after it does not take its items one by one"
    do = "Put it at the end of the chain, or give no workers."
    if traits_of(bars).group:
        do = f"Gather before it: .{describe(bars)}.{describe(local_pipe)}, or give no workers."
    why = "behind workers one item has to come of each, as a state counts what they made"
    return GraphError(f"{what}; {why}", do=do).at(origin_of(local_pipe))


def _stays(pipe: Pipe, before: set[int]) -> bool:
    # An unknown pipe that cannot be replicated is planned here, unless pipes before it run in the
    # workers.
    traits = traits_of(pipe)
    return traits.main_process and (traits.is_known or bool(before))


def _end_of(sink: Pipe, before: set[int]) -> tuple[Pipe, ...]:
    """Return the pipes from the first on that has to stay here, upstream first."""
    counts = readers(sink)
    chain: list[Pipe] = []
    long = 0
    pipe = sink
    while True:
        traits, parents = traits_of(pipe), parents_of(pipe)
        alone = len(parents) == 1 and counts[id(pipe)] <= 1
        stays = _stays(pipe, before) and id(pipe) not in before
        if not alone or not (stays or traits.per_item):
            return tuple(reversed(chain[:long]))
        chain.append(pipe)
        if stays:
            long = len(chain)
        pipe = parents[0]


class _Batches(IterDataPipe[Any]):
    """The source of the pipes: yields the batches of the current epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch: TailEpoch | None = None

    def __iter__(self) -> Iterator[Any]:
        assert self.epoch is not None
        yield from self.epoch.take()

    def __getstate__(self) -> dict[str, Any]:
        return {"epoch": None}


class MainProcessTail:
    """Pipes that stay here, upstream first; one set for all epochs, as ranks keep their group."""

    def __init__(self, pipes: tuple[Pipe, ...], seconds: float = STOP_SECONDS) -> None:
        self.pipes = pipes
        # For threads of theirs, when an epoch is left.
        self.seconds = seconds
        self.source = _Batches()
        self.sink: Pipe = self.source
        for pipe in pipes:
            self.sink = with_parents(pipe, [self.sink])
        # A thread of a pipe would meet the training loop in the global generators.
        threads = any(chained_name(pipe) in ("prefetch", "fullsync") for pipe in pipes)
        self.seeds = not threads and any(traits_of(pipe).runs_user_code for pipe in pipes)

    def shutdown(self) -> None:
        """Free resources that the pipes keep from epoch to epoch: threads, a group of ranks."""
        for pipe in walk(self.sink):
            own: Any = getattr(type(pipe), "shutdown", None)
            if own is not None:
                own(pipe)

    def explain(self) -> str:
        """Return which pipes stay here; nothing if there are none."""
        names = [describe(pipe) for pipe in self.pipes if not traits_of(pipe).watches]
        lines = [f"  · {name}" for name in names]
        return "\n".join(["in this process, behind the batches", *lines]) if names else ""

    def epoch(self, batches: Epoch, seed: int, number: int) -> Epoch:
        """Return the batches of an epoch after these pipes."""
        return TailEpoch(self, batches, seed, number) if self.pipes else batches

    def run_on(self, batches: Sequence[Any]) -> None:
        """Run these pipes on batches that are made already, and drop the results."""
        source: Any = self.source
        source.epoch = SimpleNamespace(take=lambda: iter(batches))
        with seeded_globals(0):
            deque(self.sink, maxlen=0)

    def leaving(self, epoch: Epoch) -> contextlib.AbstractContextManager[Any]:
        """Limit how long threads are waited for inside; one that waits for a batch is woken."""
        return stop_limit(self.seconds, partial(leave, epoch))


class TailEpoch(Iterator[Any]):
    """One pass over the batches of a reading service, after the pipes that stay here."""

    def __init__(self, tail: MainProcessTail, epoch: Epoch, seed: int, number: int) -> None:
        self.last = -1
        self._tail = tail
        self._epoch = epoch
        self._run = (seed, number)
        self._own = OwnGenerators(tail.pipes if tail.seeds else ())
        # Numbers and failures of batches that the pipes have read and not yet yielded; batches
        # without any item bypass the pipes.
        self._under_way: deque[tuple[int, BatchResult | None]] = deque()
        self._ready: deque[tuple[int, Any]] = deque()
        set_epoch(tail.sink, seed, number)
        tail.source.epoch = self
        self._items: Any = iter(tail.sink)

    def take(self) -> Iterator[Any]:
        """Yield the batches of the service, and note their numbers."""
        while True:
            # Without leaving(): a thread that the service ends must not end the service's epoch.
            with stop_limit(self._tail.seconds):
                batch = next(self._epoch, self)
            if batch is self:
                return
            outcome = batch if isinstance(batch, BatchResult) else None
            self._under_way.append((self._epoch.last, outcome))
            if outcome is not None and outcome.is_empty:
                continue
            if self._tail.seeds:
                stream = Stream(*self._run, (self._epoch.last,), "user functions behind")
                seed_globals(stream.integer(), self._own.generators)
            yield batch if outcome is None else outcome.batch

    def __next__(self) -> Any:
        if not self._ready:
            self._advance()
        self.last, batch = self._ready.popleft()
        return batch

    def _advance(self) -> None:
        """Take one item of the pipes, and before it the batches that had none."""
        guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._tail.seeds:
            guard = seeded_globals(0, self._own.generators)
        try:
            # Ctrl-C ends the pipes from within, before anybody calls close().
            with guard, self._tail.leaving(self._epoch):
                item = next(self._items)
        except StopIteration:
            self._pass_by()
            if not self._ready:
                raise
            return
        self._own.repeats(may_repeat=False)  # a batch comes once: warns of new generators
        self._pass_by()
        if not self._under_way:
            last = self._tail.pipes[-1]
            msg = f"{describe(last)} stays in the process of the loader, and it, or what is "
            msg += "there before it, yields more items than it takes"
            raise GraphError(
                msg, do="Let it yield one for each, or put it before what deals items out."
            ).at(origin_of(last))
        number, outcome = self._under_way.popleft()
        self._ready.append((number, item if outcome is None else replace(outcome, batch=item)))

    def _pass_by(self) -> None:
        while self._under_way and (outcome := self._under_way[0][1]) and outcome.is_empty:
            self._ready.append((self._under_way.popleft()[0], outcome))

    def leave(self) -> None:
        """End the wait for a batch that another thread is in."""
        leave(self._epoch)

    def close(self) -> None:
        """End the pipes' threads, then the epoch; any number of times."""
        items, self._items = self._items, iter(())
        try:
            close = getattr(items, "close", None)
            if close is not None:
                with self._tail.leaving(self._epoch):
                    close()
        finally:
            if self._tail.source.epoch is self:
                self._tail.source.epoch = None
            self._epoch.close()
