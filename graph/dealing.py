"""Where a graph is dealt out: what comes before runs once, what comes after in every worker."""

from __future__ import annotations

from .node import Pipe, parents_of, traits_of
from .walk import walk


def dealing_point(sink: Pipe) -> Pipe | None:
    """Return the pipe whose items are dealt out to workers; None if nobody asks for that.

    It is the pipe that deals, or where several of them meet. What comes before it is read by
    nobody else: of a fork that feeds also something beside it, the point is where these meet.
    """
    every = list(walk(sink))
    marked = {id(pipe) for pipe in every if traits_of(pipe).deals}
    point = _meeting(every, marked)
    while point is not None:
        before = {id(pipe) for pipe in walk(point)}
        leaking = {
            id(parent)
            for pipe in every
            if id(pipe) not in before
            for parent in parents_of(pipe)
            if id(parent) in before and parent is not point
        }
        if leaking <= marked:
            return point
        marked |= leaking
        point = _meeting(every, marked)
    return None


def before_dealing(sink: Pipe) -> set[int]:
    """Return the pipes that run once, by ``id``: those up to the point."""
    point = dealing_point(sink)
    return set() if point is None else {id(pipe) for pipe in walk(point)}


def _meeting(every: list[Pipe], marked: set[int]) -> Pipe | None:
    """Return the first pipe that everything which the marked ones yield goes through."""
    through: dict[int, Pipe | None] = {}
    for pipe in every:
        above = [through[id(parent)] for parent in parents_of(pipe)]
        found = {id(one): one for one in above if one is not None}
        several = len(found) > 1 or id(pipe) in marked
        through[id(pipe)] = pipe if several else next(iter(found.values()), None)
    return through[id(every[-1])]
