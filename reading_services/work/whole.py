"""A graph that stays whole: each worker runs all of it on its share; torchdata's scheme."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ...adapters import Hints, Limits
from ...graph import (
    Pipe,
    explain_graph,
    replace_pipe,
    walk,
)
from ...storage.ranges import Table
from ..shares.dealt import Dealt
from ..shares.part import WHOLE, Part
from .doing import Doing
from .hooks import NO_HOOKS, Hooks
from .indented import indented
from .pipe_runner import Replica, Share

_NO_HINTS = Hints()
# What it costs that a graph is not split.
_DEPENDS = (
    "batches depend on the number of workers, and a state is for as many; to resume makes the "
    "batches of the epoch again"
)


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
    remote: bool = False
    """Whether volumes lie behind URLs."""
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
    as_ready: bool = False
    """Whether items come as they are ready, and not from each share in turn."""
    replicas: dict[Share, Replica] = field(default_factory=dict, repr=False, compare=False)
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
        return f"not split: {self.reason}\n{how}\n{indented(explain_graph(self.graph))}"

    def _explain_dealt(self, workers: int) -> str:
        assert self.point is not None
        where = f"to {workers} workers" if workers else "in this process"
        after = "what gathers or mixes items sees a worker's share" if workers > 1 else ""
        lines = [
            f"not planned: {self.reason}",
            "run once, in this process",
            indented(explain_graph(self.point)),
            f"dealt out item by item {where}{after and '; '}{after}",
            indented(explain_graph(self.of_worker())),
        ]
        return "\n".join(lines)
