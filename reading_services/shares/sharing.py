"""Give the sharding filters of a graph their share: that of a rank, and within it of a worker.

torch's own ``apply_sharding`` knows one level, pickles every pipe on its way, and takes time that
doubles with each diamond. Here each pipe is seen once.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.utils.data.datapipes.iter import ShardingFilter

from ...core.errors import GraphError
from ...datapipes.datapipe import length
from ...datapipes.foreign import LEVELS, RANKS, WORKERS, levels_of
from ...graph import Pipe, clone, describe, parents_of, walk
from .dealt import Dealt


def apply_shares(
    graph: Pipe, *, ranks: int = 1, rank: int = 0, workers: int = 1, worker: int = 0
) -> None:
    """Let ``graph`` yield the items of one worker of one rank.

    A plain ``.sharding_filter()`` divides among all workers of all ranks: item *i* goes to worker
    ``i % workers`` of rank ``i // workers % ranks``. One that is given a group
    (``SHARDING_PRIORITIES.DISTRIBUTED`` or ``MULTIPROCESSING``) divides at that level only, so a
    branch may have one of each. One after the point where items are dealt out to workers divides
    among ranks at most.

    Raises
    ------
    GraphError
        Two filters of a branch divide at the same level.
    """
    refuse_twice(graph)
    after: set[int] = set()
    for pipe in walk(graph):
        if isinstance(pipe, Dealt) or not after.isdisjoint(map(id, parents_of(pipe))):
            after.add(id(pipe))
        # Items that were dealt out to this worker are its share.
        among, own_place = (1, 0) if id(pipe) in after else (workers, worker)
        shares = {RANKS: (ranks, rank), WORKERS: (among, own_place)}
        own: Any = getattr(pipe, "apply_sharding", None)
        if own is None:
            continue
        if isinstance(pipe, ShardingFilter):
            # torch enters what it is given in a table, which a copy of the pipe shares with it.
            pipe.groups = dict(pipe.groups)
        if not _takes_groups(own):
            own(ranks * among, rank * among + own_place)
            continue
        for level in LEVELS:
            if level in levels_of(pipe):
                own(*shares[level], level)


def lengths_in_shares(graph: Pipe, *, ranks: int, workers: int) -> list[int]:
    """Return how many items each rank has, of all its workers; TypeError where it is not known."""
    lengths = []
    for rank in range(ranks):
        shares = [clone(graph) for _ in range(workers)]
        for worker, share in enumerate(shares):
            apply_shares(share, ranks=ranks, rank=rank, workers=workers, worker=worker)
        lengths.append(sum(map(length, shares)))
    return lengths


def levels(graph: Pipe) -> set[Any]:
    """Return the levels at which the pipes of a graph divide."""
    return {level for pipe in walk(graph) for level in levels_of(pipe)}


def refuse_twice(graph: Pipe) -> None:
    """Raise if a branch is divided twice at one level: it would yield a share of a share."""
    above: dict[int, dict[Any, Pipe]] = {}
    for pipe in walk(graph):
        found: dict[Any, Pipe] = {}
        for parent in parents_of(pipe):
            found |= above[id(parent)]
        for level in levels_of(pipe):
            if level in found:
                raise GraphError(
                    f"{describe(pipe)} divides again what {describe(found[level])} has divided",
                    do="Leave one of them out, or give one SHARDING_PRIORITIES.DISTRIBUTED and the "
                    "other SHARDING_PRIORITIES.MULTIPROCESSING.",
                )
            found = {**found, level: pipe}
        above[id(pipe)] = found


def _takes_groups(function: Any) -> bool:
    """Whether an ``apply_sharding`` of anybody's takes the level as its third argument."""
    return len(inspect.signature(function).parameters) >= 3
