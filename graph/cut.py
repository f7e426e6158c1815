"""Split a graph where voxels begin: planning on one side, realizing on the other.

The planning part lists, opens headers, cuts patches and shuffles: it moves
descriptions and touches no voxel. The realizing part takes the descriptions of one
whole batch and makes the batch. It must be a chain of pipes that take one item and
yield one, with at most one that gathers items; then any worker can do any batch,
and the batches do not depend on how many workers there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from .node import Pipe, describe, parents_of, traits_of, with_parents
from .walk import readers, walk


@dataclass(frozen=True)
class Cut:
    """Where a graph is split."""

    planner: Pipe
    """Sink of the planning part; yields descriptions of items."""
    realizing: tuple[Pipe, ...]
    """The pipes after the cut, upstream first; empty if all of the graph is planning."""
    group: int
    """Items that go into one output of the realizing part."""
    drop_last: bool
    """Whether an incomplete last group is left out."""

    def onto(self, source: Pipe) -> Pipe:
        """Return the realizing part as a graph that reads from ``source``."""
        sink = source
        for pipe in self.realizing:
            sink = with_parents(pipe, [sink])
        return sink


@dataclass(frozen=True)
class NoCut:
    """The graph cannot be split this way."""

    reason: str
    """One sentence that names the pipe."""


def cut(sink: Pipe) -> Cut | NoCut:
    """Split at the first pipe that needs voxels or runs a function of the user's.

    Everything downstream of that pipe has to fit the realizing part; if it does not,
    the answer is :class:`NoCut` with the reason. A user's function upstream of
    planning pipes stays in the planner as long as no pipe there holds voxels, unless the user has
    divided the items before it: then its share is what each worker is to run.
    """
    tail = _realizable_tail(sink)
    inside = {id(pipe) for pipe in tail}
    opened = False
    settled = _before_plain(sink)
    for pipe in walk(sink):
        traits = traits_of(pipe)
        # Of a volume the planner wants to know no more than its header, whatever follows.
        if id(pipe) in settled and not (opened or traits.opens):
            continue
        if id(pipe) not in inside and traits.voxels:
            return NoCut(_why_not(pipe, sink, inside))
        opened = opened or traits.opens
        if opened and not traits.known:
            return NoCut(
                f"{describe(pipe)} comes after the volumes are opened, and nothing is known of "
                "what it does with them (a pipe says so in its ``traits``)"
            )
    shared = _work_on_shares(sink, inside)
    if shared is not None:
        return shared
    first = next(
        (n for n, pipe in enumerate(tail) if traits_of(pipe).voxels or traits_of(pipe).opaque),
        None,
    )
    gathers = next((n for n, pipe in enumerate(tail) if traits_of(pipe).group), None)
    if gathers is not None and (first is None or gathers < first):
        # Gathering makes a batch of voxels out of lazy samples: the planner hands
        # over the samples and the worker gathers them.
        first = gathers
    if first is None:
        return Cut(planner=sink, realizing=(), group=1, drop_last=False)
    realizing = tail[first:]
    planner = parents_of(realizing[0])[0]
    gatherer = next((traits_of(p) for p in realizing if traits_of(p).group), None)
    if gatherer is None:
        return Cut(planner, realizing, group=1, drop_last=False)
    return Cut(planner, realizing, gatherer.group, gatherer.drop_last)


def _work_on_shares(sink: Pipe, inside: set[int]) -> NoCut | None:
    """Return why a graph is left whole whose planner would do the work that workers are to share.

    A function of the user's behind a sharding filter decodes, most likely. In the planner it would
    run in one process, and what it makes would travel to the workers. Where volumes are opened the
    planner is wanted in any case, and functions there have descriptions to work on.
    """
    if any(traits_of(pipe).opens for pipe in walk(sink)):
        return None
    divided: dict[int, Pipe] = {}
    for pipe in walk(sink):
        above = next((divided[id(p)] for p in parents_of(pipe) if id(p) in divided), None)
        traits = traits_of(pipe)
        if above is not None and traits.opaque and id(pipe) not in inside:
            return NoCut(
                f"{describe(pipe)} works on what {describe(above)} shares out, and is not followed "
                "to the end by pipes that take items one by one or gather them once; each worker "
                "runs the whole graph on its share"
            )
        if traits.shards:
            divided[id(pipe)] = pipe
        elif above is not None:
            divided[id(pipe)] = above
    return None


def _before_plain(sink: Pipe) -> set[int]:
    """Return the pipes of which only plain values arrive anywhere, by ``id``."""
    seen: set[int] = set()
    stack = [sink]
    while stack:
        pipe = stack.pop()
        if id(pipe) not in seen:
            seen.add(id(pipe))
            stack += () if traits_of(pipe).plain else parents_of(pipe)
    return {id(pipe) for pipe in walk(sink)} - seen


def _realizable_tail(sink: Pipe) -> tuple[Pipe, ...]:
    """Return the longest end of the graph that is a chain of per-item pipes, upstream first."""
    counts = readers(sink)
    tail: list[Pipe] = []
    gathered = False
    pipe = sink
    while True:
        traits = traits_of(pipe)
        parents = parents_of(pipe)
        fits = traits.per_item or (traits.group > 0 and not gathered)
        if len(parents) != 1 or not fits or counts[id(pipe)] > 1:
            return tuple(reversed(tail))
        gathered = gathered or traits.group > 0
        tail.append(pipe)
        pipe = parents[0]


def _why_not(pipe: Pipe, sink: Pipe, inside: set[int]) -> str:
    below = [p for p in walk(sink) if id(p) not in inside]
    last = describe(below[-1])
    does = "needs voxels" if any(traits_of(p).opens for p in walk(sink)) else "reads or opens files"
    return (
        f"{describe(pipe)} {does}, and {last} after it does not take its items one by one (where "
        "that can stand before it, the graph is split)"
    )
