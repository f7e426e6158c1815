"""What a reading service runs: a graph split into planning and realizing, or a whole graph.

Everything here is a pure function of the graph; nothing is started.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias

from ..adapters import Hints, Limits, hints_of, limits_of, policy_of
from ..core import Origin, Stream
from ..core.errors import placed
from ..datapipes import DataPipe
from ..datapipes.epoch import set_epoch
from ..datapipes.excuse import Excuses, excusing
from ..datapipes.length import length
from ..datapipes.skipping import items_from
from ..graph import (
    Cut,
    NoCut,
    Pipe,
    cut,
    dealing_point,
    describe,
    explain_graph,
    origin_of,
    raised_at,
    replace_pipe,
    traits_of,
    walk,
)
from ..realizing import NOWHERE, ErrorPolicy, Instruction, Job, Recipe, Tolerant
from ..volumes.stores.joining import Table
from .dealt import Dealt
from .part import DROP, PAD, WHOLE, WRAP, Part
from .pipe_runner import PipeRunner, Share, as_raised
from .place import Place
from .seeding import seeded_globals
from .sharing import RANKS, WORKERS, lengths_in_shares, levels
from .worker_hooks import NO_HOOKS, Hooks

# Where a pipe says in Python what its instructions say as values.
_RAISES = ErrorPolicy()
_NO_HINTS = Hints()
_END = object()
# What it costs that a graph is not split.
_DEPENDS = (
    "batches depend on the number of workers, and a state is for as many; to resume makes the "
    "batches of the epoch again"
)
_RUNS = frozenset({"__iter__", "apply", "gather"})


@dataclass(frozen=True)
class Doing:
    """What a worker is busy with, for messages."""

    what: str
    """The batch, its cases and their files."""
    origin: Origin | None = None
    """The pipe that it runs, as the user wrote it."""
    seconds: float = math.inf
    """For how long it may be at that."""

    def __str__(self) -> str:
        return self.what if self.origin is None else f"{self.what}, in {self.origin}"


@dataclass(frozen=True)
class Planned:
    """The planner hands whole batches to whoever is free; any worker can do any batch."""

    cut: Cut
    limits: Limits
    cache_bytes: int = 0
    """Decoded chunks that each process may keep during an epoch, in bytes."""
    ahead_bytes: int | None = None
    """What each process may fetch for later patches and keep, in bytes; None: as usual."""
    joinings: Table = field(default_factory=dict)
    """Which ranges become one request, by key."""
    part: Part = WHOLE
    """Which part of every batch this rank makes."""
    errors: ErrorPolicy = _RAISES
    """What is done about items that cannot be made."""

    hints: Hints = _NO_HINTS
    """What the graph asks for itself."""
    workers: int = 0
    """Worker processes of this rank; 0 for none."""
    threads: int = 1
    """Patches that each worker realizes at once."""

    def maker(self) -> Recipe | PipeRunner | Tolerant:
        """Return what makes batches of jobs, here or in a worker."""
        plain = self.recipe or PipeRunner(self.cut)
        if not self.errors.tolerates:
            return plain
        return Tolerant(plain, self.errors, together=self.part.ranks > 1)

    @cached_property
    def recipe(self) -> Recipe | None:
        """The realizing part as instructions that need no torch; None if a pipe of it has none."""
        instructions: list[Instruction] = []
        for pipe in self.cut.realizing:
            own = instructions_of(pipe)
            if own is None:
                return None
            instructions += own
        return Recipe(tuple(instructions))

    def at(self, step: int, item: int, job: Job) -> Doing:
        """Return what a worker does, of the numbers that it notes."""
        files = job.files(item)
        what = f"batch {job.index} of {files}" if files else job.place(item)
        if step == NOWHERE:
            return Doing(what)
        seconds = self.seconds_at(step)
        if self.recipe is not None:
            return Doing(what, getattr(self.recipe.instructions[step], "origin", None), seconds)
        pipe = self.cut.realizing[step]
        origin = origin_of(pipe)
        what = what if origin is not None else f"{what}, in {describe(pipe)}"
        return Doing(what, origin, seconds)

    def seconds_at(self, step: int) -> float:
        """Return for how long a process may stay at a step that it notes."""
        # Another epoch of this process may note steps that this one has not.
        return self.limits.at(self._steps[step]) if 0 <= step < len(self._steps) else math.inf

    @cached_property
    def _steps(self) -> tuple[Pipe, ...]:
        """The pipe of each step."""
        if self.recipe is None:
            return self.cut.realizing
        return tuple(p for p in self.cut.realizing for _ in instructions_of(p) or ())

    def explain(self, workers: int) -> str:
        """Return which pipes run where."""
        planner = explain_graph(self.cut.planner)
        where = f"in each of {workers} workers" if workers else "in this process"
        lines = ["planned in this process (no voxels)", _indent(planner)]
        if self.cut.realizing:
            # Numbering restarts: the realizing part reads what the planner hands over.
            realizing = "\n".join(f"· {text}" for text in _described(self.cut.realizing))
            per = f", {self.cut.group} items a batch" if self.cut.group > 1 else ""
            torch = ", without torch" if workers and self.recipe is not None else ""
            lines += [f"realized {where}{per}{torch}", _indent(realizing)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Replicated:
    """Each worker runs the whole graph on its share; torchdata's scheme."""

    graph: Pipe
    reason: str
    """Why the graph could not be split."""
    shards: bool
    """Whether shares of workers differ: the graph has a sharding filter, or is prepared by them."""
    limits: Limits
    shards_ranks: bool = False
    """Whether those of ranks differ."""
    cache_bytes: int = 0
    """Decoded chunks that each process may keep during an epoch, in bytes."""
    ahead_bytes: int | None = None
    """What each process may fetch for later patches and keep, in bytes; None: as usual."""
    joinings: Table = field(default_factory=dict)
    """Which ranges become one request, by key."""
    part: Part = WHOLE
    """Which rank runs it; the workers of all ranks have shares."""

    hooks: Hooks = NO_HOOKS
    """Functions of the user's that prepare the graph of each worker."""
    hints: Hints = _NO_HINTS
    """What the graph asks for itself."""
    point: Pipe | None = None
    """Where its items are dealt out to workers; None where each worker makes its own."""
    workers: int = 0
    """Worker processes of this rank; 0 for none."""
    threads: int = 1
    """Patches that each worker realizes at once."""

    def of_worker(self) -> Pipe:
        """Return what a worker runs: the graph, or of it what comes after the point."""
        if self.point is None:
            return self.graph
        return replace_pipe(self.graph, self.point, Dealt(self.point))

    def share(self, worker: int, workers: int) -> Share:
        """Return the share of one worker of this rank."""
        return Share(worker, workers, self.part.rank, self.part.ranks)

    def seconds_at(self, step: int) -> float:
        """Return no limit: of a whole graph nothing is noted."""
        return math.inf

    def at(self, step: int, item: int, job: int) -> Doing:
        """Return what a worker does; of a whole graph it notes nothing."""
        return Doing(f"item {job} of its share of the graph")

    def explain(self, workers: int) -> str:
        """Return why, and what it means."""
        if self.point is not None:
            return self._explain_dealt(workers)
        if self.shards and workers:
            how = f"each of {workers} workers runs the whole graph on its share; {_DEPENDS}"
        elif workers:
            how = "one worker runs the whole graph; add .sharding_filter() to use more"
        else:
            how = f"this process runs the whole graph; {_DEPENDS}"
        return f"not split: {self.reason}\n{how}\n{_indent(explain_graph(self.graph))}"

    def _explain_dealt(self, workers: int) -> str:
        assert self.point is not None
        where = f"to {workers} workers" if workers else "in this process"
        after = "what gathers or mixes items sees a worker's share" if workers > 1 else ""
        lines = [
            f"not planned: {self.reason}",
            "run once, in this process",
            _indent(explain_graph(self.point)),
            f"dealt out item by item {where}{after and '; '}{after}",
            _indent(explain_graph(self.of_worker())),
        ]
        return "\n".join(lines)


def instructions_of(pipe: Pipe) -> Sequence[Instruction] | None:
    """Return what a pipe does as instructions; None if it has none that hold for it.

    A subclass that overrides what its parent's instructions stand for is run as it is written.
    """
    if not isinstance(pipe, DataPipe):
        return None
    for names in (vars(pipe), *map(vars, type(pipe).__mro__)):
        if "instructions" in names:
            return pipe.instructions()
        if not _RUNS.isdisjoint(names):
            return None
    return None


Work: TypeAlias = Planned | Replicated
"""How a verified graph is run."""


def work_of(graph: Pipe) -> Work:
    """Decide how a verified graph is run."""
    limits = limits_of(graph)
    split = cut(graph)
    errors = policy_of(graph)
    if isinstance(split, NoCut):
        return replicated(graph, split.reason)
    return Planned(split, limits, errors=errors, hints=hints_of(graph))


def replicated(graph: Pipe, reason: str, hooks: Hooks | None = None) -> Replicated:
    """Leave a verified graph whole, for ``reason``."""
    divided = levels(graph)
    point = dealing_point(graph)
    shards = WORKERS in divided or bool(hooks) or point is not None
    return Replicated(
        graph,
        reason,
        shards,
        limits_of(graph),
        shards_ranks=RANKS in divided or bool(hooks),
        hooks=hooks or NO_HOOKS,
        hints=hints_of(graph),
        point=point,
    )


def jobs(
    split: Cut,
    seed: int,
    epoch: int,
    place: Place,
    part: Part = WHOLE,
    errors: ErrorPolicy = _RAISES,
) -> Iterator[Job]:
    """Yield the jobs of one epoch that were not delivered; the others read nothing.

    Every rank plans the batches of all ranks, and its jobs hold its own part of each. A job also
    holds what could not be planned since the one before; one after the last may hold only that.
    """
    held: list[Any] = []
    first: list[Any] = []
    size, index = part.size(split.group), 0
    excuses = Excuses(errors.errors if errors.tolerates else ())
    # What cannot be planned is found, and counted, in the items that are skipped as well.
    if part.uneven != WRAP and not errors.tolerates:  # wrap wants the first items, too
        index = place.next

    def job(items: Sequence[Any]) -> Job:
        noted = tuple(replace(failure, batch=index) for failure in excuses.noted)
        excuses.noted.clear()
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
    if excuses.noted and not place.holds(index):
        yield replace(job(()), items=())


def _excusing(items: Iterator[Any], excuses: Excuses) -> Iterator[Any]:
    """Yield items; cases that cannot be planned are noted and left out."""
    while True:
        # Not around the yield: what the consumer does meanwhile is no part of the plan.
        with excusing(excuses):
            item = next(items, _END)
        if item is _END:
            return
        yield item


def planned(
    planner: Pipe, seed: int, epoch: int, start: int, of: Pipe | None = None
) -> Iterator[Any]:
    """Yield what a planner, or such a part of the graph ``of``, yields from item ``start`` on.

    A user's function in it draws the same in every run.
    """
    set_epoch(planner if of is None else of, seed, epoch)
    if not any(traits_of(pipe).opaque for pipe in walk(planner)):
        try:
            yield from items_from(planner, start)
        except Exception as error:
            raise placed(as_raised(error), raised_at(error))  # noqa: B904  the very same error
        return
    items = iter(planner)
    for number in count():
        stream = Stream(seed, epoch, (number,), "user functions of the planner")
        with seeded_globals(stream.integer()):
            try:
                item = next(items)
            except StopIteration:
                return
            except Exception as error:
                raise placed(as_raised(error), raised_at(error))  # noqa: B904  the very same error
        if number >= start:
            yield item


def batch_count(work: Work) -> int:
    """Return the number of batches of an epoch; TypeError where it is not known."""
    if isinstance(work, Replicated):
        # What is dealt out is counted before; what the user's functions make of a share, they know.
        divided = work.shards and work.point is None and not work.hooks
        workers = max(1, work.workers) if divided else 1
        counts = lengths_in_shares(work.graph, ranks=work.part.ranks, workers=workers)
        return max(counts) if work.part.uneven == PAD else min(counts)
    if work.cut.sifts:
        raise TypeError("how many batches there are is not known: items may be left out")
    items = length(work.cut.planner)
    whole, rest = divmod(items, work.part.size(work.cut.group))
    return whole + bool(rest and not work.cut.drop_last and work.part.uneven != DROP)


def _described(pipes: tuple[Pipe, ...]) -> list[str]:
    return [describe(pipe) for pipe in pipes if not traits_of(pipe).watches]


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
