"""Split a graph where voxels begin: planning on one side, realizing on the other.

The planning part lists, opens headers, cuts patches and shuffles: it moves
descriptions and touches no voxel. The realizing part takes the descriptions of one
whole batch and makes the batch. It must be a chain of pipes that take one item and
yield one, with at most one that gathers items; then any worker can do any batch,
and the batches do not depend on how many workers there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from .node import Pipe, declares_traits, describe, is_own, parents_of, traits_of, with_parents
from .walk import readers, walk


def dispatch_point(sink: Pipe) -> Pipe | None:
    """Return the pipe whose items are dealt out to workers; None if nobody asks for that."""
    # It is the pipe that deals, or where several of them meet. What comes before it is read by
    # nobody else: of a fork that feeds also something beside it, the point is where these meet.
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
    """Return the pipes that run once, by ``id``: those up to the point."""
    point = dispatch_point(sink)
    return set() if point is None else {id(pipe) for pipe in walk(point)}


def _meeting(every: list[Pipe], marks: set[int]) -> Pipe | None:
    """Return the first pipe that everything which the marked ones yield goes through."""
    through: dict[int, Pipe | None] = {}
    for pipe in every:
        above = (through[id(parent)] for parent in parents_of(pipe))
        points = {id(one): one for one in above if one is not None}
        several = len(points) > 1 or id(pipe) in marks
        through[id(pipe)] = pipe if several else next(iter(points.values()), None)
    return through[id(every[-1])]


@dataclass(frozen=True)
class Cut:
    """Where a graph is split."""

    planner: Pipe  # sink of the planning part; yields descriptions of items
    realizing: tuple[Pipe, ...]
    """The pipes after the cut, upstream first; empty if all of the graph is planning."""
    group: int  # items that go into one output of the realizing part
    drop_last: bool  # whether an incomplete last group is left out
    filters: bool = False  # whether the realizing part may make nothing of an item

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
    """Split at the first pipe that needs voxels or runs a function of the user's."""
    # Everything downstream of that pipe has to fit the realizing part; if it does not, the answer
    # is :class:`NoCut` with the reason. A user's function upstream of planning pipes stays in the
    # planner as long as no pipe there holds voxels, unless the user has divided the items before
    # it: then its share is what each worker is to run.
    #
    # Where the graph is dealt out, what works after that point works in the workers.
    once = before_dispatch(sink)
    tail = _realizable_tail(sink, once)
    inside = {id(pipe) for pipe in tail}
    is_open = False
    plain = _before_plain(sink)
    for pipe in walk(sink):
        traits = traits_of(pipe)
        # Of a volume the planner wants to know no more than its header, whatever follows.
        if id(pipe) in plain and not (is_open or traits.opens):
            continue
        if id(pipe) not in inside and traits.voxels:
            last = describe([p for p in walk(sink) if id(p) not in inside][-1])
            volumes = any(traits_of(p).opens for p in walk(sink))
            return NoCut(
                f"{describe(pipe)} {'needs voxels' if volumes else 'reads or opens files'}, and "
                f"{last} after it does not take its items one by one (where that can stand before "
                "it, the graph is split)"
            )
        is_open = is_open or traits.opens
        if is_open and not traits.is_known:
            return NoCut(
                f"{describe(pipe)} comes after the volumes are opened, and nothing is known of "
                "what it does with them (a pipe says so in its ``traits``)"
            )
    behind = _shared_by(sink)
    refusal = _work_on_shares(sink, inside, behind)
    if refusal is not None:
        return refusal
    of_tail = [traits_of(pipe) for pipe in tail]
    # Gathering makes a batch of voxels out of lazy samples: the planner hands over the samples and
    # the worker gathers them.
    starts = (
        each.voxels or each.runs_user_code or each.group or (id(pipe) in behind and is_own(pipe))
        for pipe, each in zip(tail, of_tail, strict=True)
    )
    first = next((n for n, starts_here in enumerate(starts) if starts_here), len(tail))
    realizing = tail[first:]
    planner = parents_of(realizing[0])[0] if realizing else sink
    stays = _working_after(planner, once)
    if stays is not None:
        return NoCut(
            f"{describe(stays)} is to run in the workers, which items are dealt out to, and it, or "
            "a pipe after it, does not take them one by one"
        )
    gatherer = next((each for each in of_tail[first:] if each.group), None)
    if gatherer is not None:
        return Cut(planner, realizing, gatherer.group, gatherer.drop_last)
    filters = any(each.filters for each in of_tail[first:])
    return Cut(planner, realizing, group=1, drop_last=False, filters=filters)


def _work_on_shares(sink: Pipe, inside: set[int], behind: dict[int, Pipe]) -> NoCut | None:
    """Return why a graph is left whole whose planner would do the work that workers share."""
    # A function or pipe of the user's behind a sharding filter decodes, most likely; where volumes
    # are opened, functions there have descriptions to work on.
    volumes = any(traits_of(pipe).opens for pipe in walk(sink))
    for pipe in walk(sink):
        if id(pipe) in inside or id(pipe) not in behind:
            continue
        why = ""
        if not (declares_traits(pipe) or traits_of(pipe).main_process):
            why = "nothing is known of what it does with items (a pipe says so in its ``traits``)"
        elif traits_of(pipe).runs_user_code and not volumes:
            why = "is not followed to the end by pipes that take items one by one or gather them "
            why += "once"
        if why:
            return NoCut(
                f"{describe(pipe)} works on what {describe(behind[id(pipe)])} shares out, and "
                f"{why}; each worker runs the whole graph on its share"
            )
    return None


def _shared_by(sink: Pipe) -> dict[int, Pipe]:
    """Return which pipe shared out what another one works on, by the ``id`` of the latter."""
    behind: dict[int, Pipe] = {}
    last: dict[int, Pipe] = {}
    for pipe in walk(sink):
        above = next((last[id(parent)] for parent in parents_of(pipe) if id(parent) in last), None)
        if traits_of(pipe).shards or hasattr(type(pipe), "apply_sharding"):  # that of anybody
            last[id(pipe)] = pipe
        elif above is not None:
            last[id(pipe)] = behind[id(pipe)] = above
    return behind


def _before_plain(sink: Pipe) -> set[int]:
    """Return the pipes of which only plain values arrive anywhere, by ``id``."""
    ids: set[int] = set()
    stack = [sink]
    while stack:
        pipe = stack.pop()
        if id(pipe) not in ids:
            ids.add(id(pipe))
            stack += () if traits_of(pipe).plain else parents_of(pipe)
    return {id(pipe) for pipe in walk(sink)} - ids


def _working_after(planner: Pipe, once: set[int]) -> Pipe | None:
    """Return a pipe after the point from which items are dealt that does more than move them."""
    if not once:
        return None
    for pipe in walk(planner):
        traits = traits_of(pipe)
        if id(pipe) not in once and (traits.voxels or traits.runs_user_code or not traits.is_known):
            return pipe
    return None


def _realizable_tail(sink: Pipe, once: set[int]) -> tuple[Pipe, ...]:
    """Return the longest end of the graph that is a chain of per-item pipes, upstream first."""
    # Where items are dealt out it may leave some out, unless they are gathered.
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
    """Return how a graph is split, without the end that stays in the process of the loader."""
    # Such an end begins with ``to_device()``, for instance, and takes items one by one.
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
