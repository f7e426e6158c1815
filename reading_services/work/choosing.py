"""Whether a graph is split or stays whole, and how many batches it makes either way."""

from __future__ import annotations

from typing import TypeAlias

from ...adapters import hints_of, limits_of, policy_of
from ...datapipes.datapipe import length
from ...datapipes.foreign import RANKS, WORKERS
from ...graph import (
    NoCut,
    Pipe,
    cut,
    dispatch_point,
)
from ..shares.part import DROP, PAD
from ..shares.sharing import lengths_in_shares, levels
from .hooks import NO_HOOKS, Hooks
from .split import Planned
from .whole import Replicated

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
    point = dispatch_point(graph)
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


def batch_count(work: Work) -> int:
    """Return the number of batches of an epoch; TypeError where it is not known."""
    if isinstance(work, Replicated):
        # What is dealt out is counted before; what the user's functions make of a share, they know.
        divided = work.shards and work.point is None and not work.hooks
        workers = max(1, work.workers) if divided else 1
        counts = lengths_in_shares(work.graph, ranks=work.part.ranks, workers=workers)
        return max(counts) if work.part.uneven == PAD else min(counts)
    if work.cut.filters:
        raise TypeError("how many batches there are is not known: items may be left out")
    items = length(work.cut.planner)
    whole, rest = divmod(items, work.part.size(work.cut.group))
    return whole + bool(rest and not work.cut.drop_last and work.part.uneven != DROP)
