"""Split a graph where voxels begin: planning on one side, realizing on the other.

The planning part lists cases, opens headers, cuts patches and shuffles: it handles descriptions
and no voxels. The realizing part makes one batch from its descriptions. It must be a chain of
pipes that yield one item per item, with at most one pipe that gathers items. Then any worker can
make any batch, and the batches do not depend on the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from .node import Pipe, declares_traits, describe, is_own, parents_of, traits_of, with_parents
from .walk import readers, walk


def dispatch_point(sink: Pipe) -> Pipe | None:
    """Return the pipe whose items are dispatched to workers; None without such a pipe."""
    # The point is the dispatching pipe, or where several of them meet. No pipe outside reads from
    # before the point: if a fork also feeds another pipe, the point is where both meet.
    every = list(walk(sink))
    marks = {id(pipe) for pipe in every if traits_of(pipe).dispatches}
    while (point := _meeting(every, marks)) is not None:
        before = {id(pipe) for pipe in walk(point)} - {id(point)}
        outside = (pipe for pipe in every if id(pipe) not in before and pipe is not point)
        leaking = {id(parent) for pipe in outside for parent in parents_of(pipe)} & before
        if leaking <= marks:
            break
        marks |= leaking
    return point


def before_dispatch(sink: Pipe) -> set[int]:
    """Return the pipes up to the dispatch point, which run once, by ``id``."""
    point = dispatch_point(sink)
    return set() if point is None else {id(pipe) for pipe in walk(point)}


def _meeting(every: list[Pipe], marks: set[int]) -> Pipe | None:
    """Return the first pipe through which all items of the marked pipes pass."""
    through: dict[int, Pipe | None] = {}
    for pipe in every:
        above = (through[id(parent)] for parent in parents_of(pipe))
        points = {id(point): point for point in above if point is not None}
        several = len(points) > 1 or id(pipe) in marks
        through[id(pipe)] = pipe if several else next(iter(points.values()), None)
    return through[id(every[-1])]


@dataclass(frozen=True)
class Cut:
    """A split of a graph."""

    planner: Pipe  # sink of the planning part; yields descriptions of items
    realizing: tuple[Pipe, ...]
    """The pipes after the cut, upstream first; empty if the whole graph plans."""
    group: int  # items per output of the realizing part
    drop_last: bool  # whether an incomplete last group is left out
    filters: bool = False  # whether the realizing part may drop items

    def onto(self, source: Pipe) -> Pipe:
        """Return the realizing part as a graph that reads from ``source``."""
        sink = source
        for pipe in self.realizing:
            sink = with_parents(pipe, [sink])
        return sink


@dataclass(frozen=True)
class NoCut:
    """The graph cannot be split this way."""

    reason: str  # one sentence that names the pipe


def cut(sink: Pipe) -> Cut | NoCut:
    """Split at the first pipe that needs voxels or runs a user's function.

    All later pipes must fit the realizing part; else return :class:`NoCut` with the reason. A
    user's function before planning pipes stays in the planner if no pipe there holds voxels. If
    the user has sharded its items, each worker runs it on its share instead. With a dispatch
    point, the pipes after it work in the workers.
    """
    once = before_dispatch(sink)
    tail = _realizable_tail(sink, once)
    inside = {id(pipe) for pipe in tail}
    is_open = False
    plain = _before_plain(sink)
    for pipe in walk(sink):
        traits = traits_of(pipe)
        # Voxels do not leave these pipes.
        if id(pipe) in plain and not (is_open or traits.opens):
            continue
        if id(pipe) not in inside and traits.voxels:
            last = describe([p for p in walk(sink) if id(p) not in inside][-1])
            volumes = any(traits_of(p).opens for p in walk(sink))
            return NoCut(
                f"{describe(pipe)} {'needs voxels' if volumes else 'reads or opens files'}, and "
                f"{last} after it does not take its items one by one (write it before that pipe to "
                "split the graph)"
            )
        is_open = is_open or traits.opens
        if is_open and not traits.is_known:
            return NoCut(
                f"{describe(pipe)} comes after the volumes are opened, and its use of them is "
                "unknown (declare it in its ``traits``)"
            )
    sharder_of = _shared_by(sink)
    refusal = _work_on_shares(sink, inside, sharder_of)
    if refusal is not None:
        return refusal
    of_tail = [traits_of(pipe) for pipe in tail]
    # Gathering turns lazy samples into a batch of voxels: workers gather the planner's samples.
    starts = (
        t.voxels or t.runs_user_code or t.group or (id(pipe) in sharder_of and is_own(pipe))
        for pipe, t in zip(tail, of_tail, strict=True)
    )
    first = next((n for n, starts_here in enumerate(starts) if starts_here), len(tail))
    realizing = tail[first:]
    planner = parents_of(realizing[0])[0] if realizing else sink
    stays = _working_after(planner, once)
    if stays is not None:
        return NoCut(
            f"{describe(stays)} must run in the workers after the items are dispatched, but it, or "
            "a pipe after it, does not take them one by one"
        )
    gatherer = next((traits for traits in of_tail[first:] if traits.group), None)
    if gatherer is not None:
        return Cut(planner, realizing, gatherer.group, gatherer.drop_last)
    filters = any(traits.filters for traits in of_tail[first:])
    return Cut(planner, realizing, group=1, drop_last=False, filters=filters)


def _work_on_shares(sink: Pipe, inside: set[int], sharder_of: dict[int, Pipe]) -> NoCut | None:
    """Return the reason not to split a graph whose planner would do the workers' sharded work."""
    # A user's function or pipe after a sharding filter most likely decodes. If volumes are opened,
    # functions there handle descriptions.
    volumes = any(traits_of(pipe).opens for pipe in walk(sink))
    for pipe in walk(sink):
        if id(pipe) in inside or id(pipe) not in sharder_of:
            continue
        why = ""
        if not (declares_traits(pipe) or traits_of(pipe).main_process):
            why = "its use of items is unknown (declare it in its ``traits``)"
        elif traits_of(pipe).runs_user_code and not volumes:
            why = "the later pipes do not all take items one by one, or gather them twice"
        if why:
            return NoCut(
                f"{describe(pipe)} works on the shares of {describe(sharder_of[id(pipe)])}, and "
                f"{why}; each worker runs the whole graph on its share"
            )
    return None


def _shared_by(sink: Pipe) -> dict[int, Pipe]:
    """Return the last sharding pipe before each pipe, by the ``id`` of the latter."""
    sharder_of: dict[int, Pipe] = {}
    last: dict[int, Pipe] = {}
    for pipe in walk(sink):
        above = next((last[id(parent)] for parent in parents_of(pipe) if id(parent) in last), None)
        if traits_of(pipe).shards or hasattr(type(pipe), "apply_sharding"):  # of any package
            last[id(pipe)] = pipe
        elif above is not None:
            last[id(pipe)] = sharder_of[id(pipe)] = above
    return sharder_of


def _before_plain(sink: Pipe) -> set[int]:
    """Return the pipes before pipes of plain values only, by ``id``."""
    ids: set[int] = set()
    stack = [sink]
    while stack:
        pipe = stack.pop()
        if id(pipe) not in ids:
            ids.add(id(pipe))
            stack += () if traits_of(pipe).plain else parents_of(pipe)
    return {id(pipe) for pipe in walk(sink)} - ids


def _working_after(planner: Pipe, once: set[int]) -> Pipe | None:
    """Return the first planning pipe after the dispatch point that works on items."""
    if not once:
        return None
    for pipe in walk(planner):
        traits = traits_of(pipe)
        if id(pipe) not in once and (traits.voxels or traits.runs_user_code or not traits.is_known):
            return pipe
    return None


def _realizable_tail(sink: Pipe, once: set[int]) -> tuple[Pipe, ...]:
    """Return the longest end of the graph that is a chain of per-item pipes, upstream first."""
    # After a dispatch point the chain may drop items, unless it gathers them.
    counts = readers(sink)
    tail: list[Pipe] = []
    has_group = has_filter = False
    pipe = sink
    while True:
        traits = traits_of(pipe)
        parents = parents_of(pipe)
        fits = traits.per_item or (traits.group > 0 and not has_group and not has_filter)
        sifting = bool(once) and traits.filters and not has_group
        fits = fits or sifting
        if len(parents) != 1 or not fits or counts[id(pipe)] > 1:
            return tuple(reversed(tail))
        has_group, has_filter = has_group or traits.group > 0, has_filter or sifting
        tail.append(pipe)
        pipe = parents[0]


def split_of(sink: Pipe) -> Cut | NoCut:
    """Split a graph without the end that runs in the loader's process."""
    # Such an end begins e.g. with ``to_device()`` and takes items one by one.
    split, pipe = cut(sink), sink
    while isinstance(split, NoCut):
        traits, parents = traits_of(pipe), parents_of(pipe)
        if len(parents) != 1 or not (traits.main_process or traits.per_item):
            break
        pipe = parents[0]
        candidate = cut(pipe)
        if traits.main_process and isinstance(candidate, Cut):
            return candidate
    return split
