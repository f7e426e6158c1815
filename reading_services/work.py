"""The work of a service: a graph, split into planning and realizing, or whole."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any, TypeAlias

from ..adapters import Limits, note_of
from ..batching.job import NOWHERE, ErrorPolicy, ErrorTolerant, Instruction, Job, Recipe
from ..core import CallSite
from ..core.errors import ItemTimeout
from ..core.lru_cache import cached_property
from ..datapipes import DataPipe
from ..datapipes.datapipe import length
from ..datapipes.foreign import RANKS, WORKERS
from ..datapipes.item_numbers import NumberedItems, number_items
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
from .planner import DROP, PAD, WHOLE, RankPart, run_planner, with_place
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
    """Return a pipe as instructions; None if it, or a subclass, overrides how it runs."""
    if not isinstance(pipe, DataPipe):
        return None
    for names in (vars(pipe), *map(vars, type(pipe).__mro__)):
        if "instructions" in names:
            return pipe.instructions()
        if not _RUNS.isdisjoint(names):
            return None
    return None


@dataclass(frozen=True)
class WorkerStatus:
    """Current batch and pipe of a worker, for messages."""

    work: str  # the batch, its cases and their files
    origin: CallSite | None = None  # the current pipe, as the user wrote it
    seconds: float = math.inf  # time limit of the current step
    whole_pass: str = ""  # volumes that it reads as a whole

    def __str__(self) -> str:
        return self.work if self.origin is None else f"{self.work}, in {self.origin}"


def item_timeout(event: str, do: str, whole_pass: str, stacks: str = "") -> ItemTimeout:
    """Return the error of a late item; it names a running pass over whole volumes."""
    if whole_pass:
        event = f"{event}; a pass over all voxels of {whole_pass} is running"
        do = (
            "Statistics, boxes and mask tables take one pass over a volume, and are kept for later "
            f"runs. {do} Or write statistics before the training: voxpipe index, or vp.volumes."
            "volume_statistics(volume)."
        )
    return ItemTimeout(event + stacks, do=do)


@dataclass(frozen=True, kw_only=True)
class _WorkBase:
    """Settings for running a graph, split or not."""

    cache_bytes: int = 0  # decoded chunks that each process may keep during an epoch, in bytes
    ahead_bytes: int | None = None
    """Bytes that each process may prefetch for later patches and keep; None for the default."""
    coalesce_policies: PoliciesByKey = field(default_factory=dict)  # by key
    remote: bool = False  # whether volumes have URLs
    part: RankPart = WHOLE  # the rank, and its part of every batch
    workers: int = 0  # worker processes of this rank; 0 for none
    threads: int = 1  # patches that each worker realizes at once
    beside_loop: bool = False  # whether threads make batches, one each, without workers


@dataclass(frozen=True)
class PlannedWork(_WorkBase):
    """A split graph: the planner plans whole batches, and any worker can make any of them."""

    cut: Cut
    limits: Limits
    errors: ErrorPolicy = field(default_factory=ErrorPolicy)

    def maker(self) -> Recipe | PipeRunner | ErrorTolerant:
        """Return the maker of batches; the consumer applies ``as_tensors()`` to its batches."""
        plain = self.recipe or PipeRunner(self.cut)
        if not self.errors.tolerates:
            return plain
        return ErrorTolerant(plain, self.errors, together=self.part.ranks > 1)

    @property
    def outlives_epochs(self) -> bool:
        """Whether workers keep items in their memory for the next epoch."""
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
        """Return the status of a worker from the step and item that it noted."""
        files = job.files(item)
        batch = f"batch {job.index} of {files}" if files else job.place(item)
        if step == NOWHERE:
            return WorkerStatus(batch)
        seconds = self.seconds_at(step)
        if self.recipe is not None:
            origin = getattr(self.recipe.instructions[step], "origin", None)
            return WorkerStatus(batch, origin, seconds)
        pipe = self.cut.realizing[step]
        origin = origin_of(pipe)
        batch = batch if origin is not None else f"{batch}, in {describe(pipe)}"
        return WorkerStatus(batch, origin, seconds)

    def seconds_at(self, step: int) -> float:
        """Return the time limit of a noted step."""
        # Another epoch of this process may note steps that this one does not have.
        return self.limits.at(self._steps[step]) if 0 <= step < len(self._steps) else math.inf

    @cached_property
    def _steps(self) -> tuple[Pipe, ...]:
        if self.recipe is None:
            return self.cut.realizing
        return tuple(p for p in self.cut.realizing for _ in instructions_of(p) or ())

    def explain(self, workers: int) -> str:
        """Return the text of where each pipe runs."""
        planner = explain_graph(self.cut.planner)
        here = (
            f"in {self.threads} threads of this process" if self.threads > 1 else "in this process"
        )
        where = f"in each of {workers} workers" if workers else here
        lines = ["planned in this process (no voxels)", indent(planner, "  ")]
        items = number_items(self.cut.planner)
        if self.errors.tolerates and isinstance(items, NumberedItems):
            lines.append("in order, from the first item: failed items move the numbers of others")
        if not isinstance(items, NumberedItems):
            lines.append(
                f"in order, from the first item: {describe(items)} gives its items no numbers, so "
                "to resume plans all items before"
            )
        if self.cut.realizing:
            # Numbering restarts: the realizing part reads the jobs of the planner.
            pipes = [pipe for pipe in self.cut.realizing if not traits_of(pipe).watches]
            realizing = "\n".join(f"· {describe(pipe)}" for pipe in pipes)
            per = f", {self.cut.group} items a batch" if self.cut.group > 1 else ""
            torch = ", torch not needed" if workers and self.recipe is not None else ""
            lines += [f"realized {where}{per}{torch}", indent(realizing, "  ")]
        elif workers or self.beside_loop:
            kind = "worker" if workers else "thread"
            them = f"none of the {workers} workers" if workers > 1 else f"no {kind}"
            lines.append(
                f"{them} is started: every pipe here plans, so nothing is left for {kind}s; "
                ".batch_patches(n) makes batches of patches"
            )
        return "\n".join(lines)


# The cost of a graph that is not split.
_DEPENDS = (
    "batches depend on the number of workers, and a state is for as many; to resume makes the "
    "batches of the epoch again"
)


@dataclass(frozen=True)
class ReplicatedWork(_WorkBase):
    """A whole graph: each worker runs it on its share, as in torchdata."""

    graph: Pipe
    reason: str  # why the graph could not be split
    shards: bool
    """Whether shares of workers differ: by a sharding filter or a user's function."""
    limits: Limits
    shards_ranks: bool = False  # whether shares of ranks differ
    hooks: Hooks = NO_HOOKS  # the user's functions that prepare the graph of each worker
    point: Pipe | None = None
    """The pipe whose items are dealt out to workers; None if each worker makes its own."""
    as_ready: bool = False  # whether items come as they are ready, and not from each share in turn
    replicas: dict[ShareOfItems, Replica] = field(default_factory=dict, repr=False, compare=False)
    """Replicas of this process that keep items in memory for the next epoch."""

    @property
    def outlives_epochs(self) -> bool:
        """Whether pipes keep items for the next epoch in the process that runs them."""
        names = ("outlives_epochs", "stays_in_workers")
        every: Any = walk(self.graph)
        return any(getattr(pipe, name, False) for pipe in every for name in names)

    def of_worker(self) -> Pipe:
        """Return the graph of a worker: the whole, or the pipes after the point."""
        if self.point is None:
            return self.graph
        return replace_pipe(self.graph, self.point, DispatchedItems(self.point))

    def items_to_deal(self, seed: int, epoch: int) -> Generator[Any, None, None]:
        """Yield this rank's items of the pipes up to the point; nothing without a point."""
        if self.point is None:
            return
        refuse_twice(self.graph)
        # A copy, because the loader's graph must not change, even in its running state.
        whole = clone(self.graph)
        once = dispatch_point(whole)
        assert once is not None
        apply_shares(once, ranks=self.part.ranks, rank=self.part.rank)
        try:
            yield from run_planner(once, seed, epoch, of=whole)
        except Exception as error:
            raise with_place(error)  # noqa: B904  the very same error

    @property
    def keeps_order(self) -> bool:
        """Whether workers' items can be put into the order of the dealt items."""
        # The items that a worker has taken give the order, unless a thread takes them early.
        if self.point is None or self.hooks:
            return False
        traits = map(traits_of, walk(self.of_worker()))
        return all(trait.is_known and not trait.ahead for trait in traits)

    def share(self, worker: int, workers: int) -> ShareOfItems:
        """Return the share of one worker of this rank."""
        return ShareOfItems(worker, workers, self.part.rank, self.part.ranks)

    def seconds_at(self, step: int) -> float:
        """Return no limit: a whole graph notes no steps."""
        return math.inf

    def at(self, step: int, item: int, job: int) -> WorkerStatus:
        """Return the status of a worker; a whole graph notes no steps."""
        return WorkerStatus(f"item {job} of its share of the graph")

    def explain(self, workers: int | None) -> str:
        """Return the text of why the graph is whole, and its effect; None workers for threads."""
        if self.point is not None:
            where = f"to {workers} workers" if workers else "in this process"
            after = "; pipes that gather or mix items see a worker's share"
            after = after if workers and workers > 1 else ""
            once, per_worker = explain_graph(self.point), explain_graph(self.of_worker())
            return (
                f"not planned: {self.reason}\nrun once, in this process\n{indent(once, '  ')}\n"
                f"dealt out item by item {where}{after}\n{indent(per_worker, '  ')}"
            )
        if self.shards and workers:
            how = f"each of {workers} workers runs the whole graph on its share; {_DEPENDS}"
        elif workers:
            how = "one worker runs the whole graph; add .sharding_filter() to use more"
        else:
            depends = "" if workers is None else f"; {_DEPENDS}"
            how = f"this process runs the whole graph{depends}"
        return f"not split: {self.reason}\n{how}\n{indent(explain_graph(self.graph), '  ')}"


Work: TypeAlias = PlannedWork | ReplicatedWork
"""A verified graph with the decision how it runs."""


def work_of(graph: Pipe, hooks: Hooks = NO_HOOKS) -> Work:
    """Return the work of a verified graph: split if possible, else whole."""
    if hooks:
        return replicate(graph, f"{hooks.names()} is handed the whole graph", hooks)
    split = cut(graph)
    if isinstance(split, NoCut):
        return replicate(graph, split.reason)
    errors = note_of(graph, ErrorPolicy)
    return PlannedWork(split, note_of(graph, Limits), errors=errors)


def replicate(graph: Pipe, reason: str, hooks: Hooks = NO_HOOKS) -> ReplicatedWork:
    """Return the work of a verified graph that stays whole for ``reason``."""
    level_set, point = levels(graph), dispatch_point(graph)
    shards = WORKERS in level_set or bool(hooks) or point is not None
    shards_ranks = RANKS in level_set or bool(hooks)
    limits = note_of(graph, Limits)
    return ReplicatedWork(graph, reason, shards, limits, shards_ranks, hooks, point)


def batch_count(work: Work) -> int:
    """Return the number of batches of an epoch; TypeError if it is unknown."""
    if isinstance(work, ReplicatedWork):
        # Dealt items are counted before the deal; the user's functions may change a share.
        has_shares = work.shards and work.point is None and not work.hooks
        workers = max(1, work.workers) if has_shares else 1
        counts = lengths_in_shares(work.graph, ranks=work.part.ranks, workers=workers)
        return max(counts) if work.part.uneven == PAD else min(counts)
    if work.cut.filters:
        raise TypeError("the number of batches is not known: a pipe may skip items")
    items = length(work.cut.planner)
    whole, rest = divmod(items, work.part.size(work.cut.group))
    return whole + bool(rest and not work.cut.drop_last and work.part.uneven != DROP)
