"""The work of a service: a graph split into planning and realizing, or whole. Starts nothing."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..adapters import Limits, note_of
from ..batching.job import NOWHERE, ErrorPolicy, ErrorTolerant, Instruction, Job, Recipe
from ..core import CallSite
from ..core.errors import ItemTimeout
from ..core.lru_cache import cached_property
from ..datapipes import DataPipe
from ..datapipes.datapipe import length
from ..datapipes.foreign import RANKS, WORKERS
from ..graph import (
    Cut,
    NoCut,
    Pipe,
    clone,
    cut,
    describe,
    dispatch_point,
    explain_graph,
    origin_of,
    replace_pipe,
    traits_of,
    walk,
)
from ..storage.ranges import PoliciesByKey
from .pipe_runner import PipeRunner
from .planner import DROP, PAD, WHOLE, RankPart, run_planner
from .replica import (
    NO_HOOKS,
    DispatchedItems,
    Hooks,
    Replica,
    ShareOfItems,
    apply_shares,
    lengths_in_shares,
    levels,
    refuse_twice,
)

_RUNS = frozenset({"__iter__", "apply", "gather"})


def instructions_of(pipe: Pipe) -> Sequence[Instruction] | None:
    """Return what a pipe does as instructions; None where it, or a subclass, has its own way."""
    if not isinstance(pipe, DataPipe):
        return None
    for names in (vars(pipe), *map(vars, type(pipe).__mro__)):
        if "instructions" in names:
            return pipe.instructions()
        if not _RUNS.isdisjoint(names):
            return None
    return None


def indent(text: str) -> str:
    """Return ``text`` with each line two spaces to the right."""
    return "\n".join(f"  {line}" for line in text.splitlines())


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker is busy with, for messages."""

    what: str  # the batch, its cases and their files
    origin: CallSite | None = None  # the pipe that it runs, as the user wrote it
    seconds: float = math.inf  # for how long it may be at that
    whole_pass: str = ""  # the volumes that it reads as a whole

    def __str__(self) -> str:
        return self.what if self.origin is None else f"{self.what}, in {self.origin}"


def item_timeout(what: str, do: str, whole_pass: str, stacks: str = "") -> ItemTimeout:
    """Return the error of a late item, which names a pass over whole volumes that is running."""
    if whole_pass:
        what = f"{what}; a pass over all voxels of {whole_pass} is running"
        do = (
            "Statistics, boxes and mask tables take one pass over a volume, and are kept for later "
            f"runs. {do} Or write statistics before the training: voxpipe index, or vp.volumes."
            "volume_statistics(volume)."
        )
    return ItemTimeout(what + stacks, do=do)


@dataclass(frozen=True, kw_only=True)
class _WorkBase:
    """How a graph is run, split or not."""

    cache_bytes: int = 0  # decoded chunks that each process may keep during an epoch, in bytes
    ahead_bytes: int | None = None
    """What each process may fetch for later patches and keep, in bytes; None: as usual."""
    coalesce_policies: PoliciesByKey = field(default_factory=dict)  # by key
    remote: bool = False  # whether volumes lie behind URLs
    part: RankPart = WHOLE  # which rank runs it, and what it makes of every batch
    workers: int = 0  # worker processes of this rank; 0 for none
    threads: int = 1  # patches that each worker realizes at once
    beside_loop: bool = False  # whether threads make batches, without workers: a batch each


@dataclass(frozen=True)
class PlannedWork(_WorkBase):
    """The planner hands whole batches to whoever is free; any worker can do any batch."""

    cut: Cut
    limits: Limits
    errors: ErrorPolicy = field(
        default_factory=ErrorPolicy
    )  # what is done about items that cannot be made

    def maker(self) -> Recipe | PipeRunner | ErrorTolerant:
        """Return what makes batches of jobs, here or in a worker; ``as_tensors()`` is for after."""
        plain = self.recipe or PipeRunner(self.cut)
        if not self.errors.tolerates:
            return plain
        return ErrorTolerant(plain, self.errors, together=self.part.ranks > 1)

    @property
    def outlives_epochs(self) -> bool:
        """Whether what workers make for one epoch is kept in their memory for the next."""
        every: Any = walk(self.cut.planner)
        return any(getattr(pipe, "stays_in_workers", False) for pipe in every)

    @cached_property
    def recipe(self) -> Recipe | None:
        """Return the realizing part as instructions, without torch; None if a pipe has none."""
        instructions: list[Instruction] = []
        for pipe in self.cut.realizing:
            own = instructions_of(pipe)
            if own is None:
                return None
            instructions += own
        return Recipe(tuple(instructions))

    def at(self, step: int, item: int, job: Job) -> WorkerStatus:
        """Return what a worker does, of the numbers that it notes."""
        files = job.files(item)
        what = f"batch {job.index} of {files}" if files else job.place(item)
        if step == NOWHERE:
            return WorkerStatus(what)
        seconds = self.seconds_at(step)
        if self.recipe is not None:
            return WorkerStatus(
                what, getattr(self.recipe.instructions[step], "origin", None), seconds
            )
        pipe = self.cut.realizing[step]
        origin = origin_of(pipe)
        what = what if origin is not None else f"{what}, in {describe(pipe)}"
        return WorkerStatus(what, origin, seconds)

    def seconds_at(self, step: int) -> float:
        """Return for how long a process may stay at a step that it notes."""
        # Another epoch of this process may note steps that this one has not.
        return self.limits.at(self._steps[step]) if 0 <= step < len(self._steps) else math.inf

    @cached_property
    def _steps(self) -> tuple[Pipe, ...]:
        if self.recipe is None:
            return self.cut.realizing
        return tuple(p for p in self.cut.realizing for _ in instructions_of(p) or ())

    def explain(self, workers: int) -> str:
        """Return which pipes run where."""
        planner = explain_graph(self.cut.planner)
        here = (
            f"in {self.threads} threads of this process" if self.threads > 1 else "in this process"
        )
        where = f"in each of {workers} workers" if workers else here
        lines = ["planned in this process (no voxels)", indent(planner)]
        if self.cut.realizing:
            # Numbering restarts: the realizing part reads what the planner hands over.
            pipes = [pipe for pipe in self.cut.realizing if not traits_of(pipe).watches]
            realizing = "\n".join(f"· {describe(pipe)}" for pipe in pipes)
            per = f", {self.cut.group} items a batch" if self.cut.group > 1 else ""
            torch = ", without torch" if workers and self.recipe is not None else ""
            lines += [f"realized {where}{per}{torch}", indent(realizing)]
        elif workers or self.beside_loop:
            kind = "worker" if workers else "thread"
            them = f"none of the {workers} workers" if workers > 1 else f"no {kind}"
            lines.append(
                f"{them} is started: every pipe here plans, so nothing is left for {kind}s; "
                ".batch_patches(n) makes batches of patches"
            )
        return "\n".join(lines)


# What it costs that a graph is not split.
_DEPENDS = (
    "batches depend on the number of workers, and a state is for as many; to resume makes the "
    "batches of the epoch again"
)


@dataclass(frozen=True)
class ReplicatedWork(_WorkBase):
    """Each worker runs the whole graph on its share; torchdata's scheme."""

    graph: Pipe
    reason: str  # why the graph could not be split
    shards: bool
    """Whether shares of workers differ: the graph has a sharding filter, or is prepared by them."""
    limits: Limits
    shards_ranks: bool = False  # whether those of ranks differ

    hooks: Hooks = NO_HOOKS  # functions of the user's that prepare the graph of each worker
    point: Pipe | None = None
    """Where its items are dealt out to workers; None where each worker makes its own."""
    as_ready: bool = False  # whether items come as they are ready, and not from each share in turn
    replicas: dict[ShareOfItems, Replica] = field(default_factory=dict, repr=False, compare=False)
    """What of this process is kept from epoch to epoch, where the graph keeps items in memory."""

    @property
    def outlives_epochs(self) -> bool:
        """Whether pipes keep something for the next epoch in the process that runs them."""
        names = ("outlives_epochs", "stays_in_workers")
        every: Any = walk(self.graph)
        return any(getattr(pipe, name, False) for pipe in every for name in names)

    def of_worker(self) -> Pipe:
        """Return what a worker runs: the graph, or of it what comes after the point."""
        if self.point is None:
            return self.graph
        return replace_pipe(self.graph, self.point, DispatchedItems(self.point))

    def items_to_deal(self, seed: int, epoch: int) -> Generator[Any, None, None]:
        """Yield what the pipes up to the point make for this rank; nothing without a point."""
        if self.point is None:
            return
        refuse_twice(self.graph)
        # A copy: the graph of the loader stays as it is, also where it holds running state.
        whole = clone(self.graph)
        once = dispatch_point(whole)
        assert once is not None
        apply_shares(once, ranks=self.part.ranks, rank=self.part.rank)
        yield from run_planner(once, seed, epoch, 0, of=whole)

    @property
    def keeps_order(self) -> bool:
        """Whether what workers make can be put into the order of the items it was made of."""
        # What a worker has taken tells, unless a thread takes items ahead.
        if self.point is None or self.hooks:
            return False
        return all(
            traits_of(one).is_known and not traits_of(one).ahead for one in walk(self.of_worker())
        )

    def share(self, worker: int, workers: int) -> ShareOfItems:
        """Return the share of one worker of this rank."""
        return ShareOfItems(worker, workers, self.part.rank, self.part.ranks)

    def seconds_at(self, step: int) -> float:
        """Return no limit: of a whole graph nothing is noted."""
        return math.inf

    def at(self, step: int, item: int, job: int) -> WorkerStatus:
        """Return what a worker does; of a whole graph it notes nothing."""
        return WorkerStatus(f"item {job} of its share of the graph")

    def explain(self, workers: int | None) -> str:
        """Return why, and what it means; None for threads, of which one runs it."""
        if self.point is not None:
            where = f"to {workers} workers" if workers else "in this process"
            after = "; what gathers or mixes items sees a worker's share"
            after = after if workers and workers > 1 else ""
            once, each = explain_graph(self.point), explain_graph(self.of_worker())
            return (
                f"not planned: {self.reason}\nrun once, in this process\n{indent(once)}\n"
                f"dealt out item by item {where}{after}\n{indent(each)}"
            )
        if self.shards and workers:
            how = f"each of {workers} workers runs the whole graph on its share; {_DEPENDS}"
        elif workers:
            how = "one worker runs the whole graph; add .sharding_filter() to use more"
        else:
            depends = "" if workers is None else f"; {_DEPENDS}"
            how = f"this process runs the whole graph{depends}"
        return f"not split: {self.reason}\n{how}\n{indent(explain_graph(self.graph))}"


Work: TypeAlias = PlannedWork | ReplicatedWork
"""How a verified graph is run."""


def work_of(graph: Pipe, hooks: Hooks = NO_HOOKS) -> Work:
    """Decide how a verified graph is run."""
    if hooks:
        return replicate(graph, f"{hooks.names()} is handed the whole graph", hooks)
    split = cut(graph)
    if isinstance(split, NoCut):
        return replicate(graph, split.reason)
    errors = note_of(graph, ErrorPolicy)
    return PlannedWork(split, note_of(graph, Limits), errors=errors)


def replicate(graph: Pipe, reason: str, hooks: Hooks = NO_HOOKS) -> ReplicatedWork:
    """Leave a verified graph whole, for ``reason``."""
    level_set, point = levels(graph), dispatch_point(graph)
    shards = WORKERS in level_set or bool(hooks) or point is not None
    shards_ranks = RANKS in level_set or bool(hooks)
    limits = note_of(graph, Limits)
    return ReplicatedWork(graph, reason, shards, limits, shards_ranks, hooks, point)


def batch_count(work: Work) -> int:
    """Return the number of batches of an epoch; TypeError where it is not known."""
    if isinstance(work, ReplicatedWork):
        # What is dealt out is counted before; what the user's functions make of a share, they know.
        has_shares = work.shards and work.point is None and not work.hooks
        workers = max(1, work.workers) if has_shares else 1
        counts = lengths_in_shares(work.graph, ranks=work.part.ranks, workers=workers)
        return max(counts) if work.part.uneven == PAD else min(counts)
    if work.cut.filters:
        raise TypeError("how many batches there are is not known: items may be left out")
    items = length(work.cut.planner)
    whole, rest = divmod(items, work.part.size(work.cut.group))
    return whole + bool(rest and not work.cut.drop_last and work.part.uneven != DROP)
