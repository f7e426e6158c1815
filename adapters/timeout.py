"""How long the loader waits before it says what it was waiting for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..core.errors import GraphError
from ..graph import (
    NoCut,
    Pipe,
    Rewritten,
    Rule,
    before_dealing,
    chained_name,
    origin_of,
    traits_of,
    walk,
)
from ..graph.served import split_of
from .adapter import Adapter
from .noted import Noted

# Starting an interpreter and importing torch takes 2 to 6 s on two cores, and tens of
# seconds from a busy network disk.
START_SECONDS = 120.0
# A batch from a slow bucket takes seconds; ten minutes without one is a hang.
ITEM_SECONDS = 600.0
# What is still running a second after it was asked to stop is killed.
STOP_SECONDS = 1.0


# A limit is noticed a quarter late at most, and looking twenty times a second costs nothing.
_LOOKS = 4
_LEAST_POLL = 0.05


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds that each kind of wait may take."""

    start: float = START_SECONDS
    """From the start of an epoch to its first batch, on top of ``item``."""
    item: float = ITEM_SECONDS
    """From asking for a batch to getting it."""
    stop: float = STOP_SECONDS
    """From asking a worker to stop to killing it."""
    enforced: bool = False
    """Whether the user asked: in-process waits are only watched then, which takes a thread."""
    idle: float = math.inf
    """For which a process may stay at one pipe."""
    pipes: tuple[tuple[str, float], ...] = ()
    """The same for pipes by their chained names."""

    def at(self, pipe: Pipe) -> float:
        """Return for how long a process may stay at ``pipe``."""
        return min(self.idle, dict(self.pipes).get(chained_name(pipe), math.inf))

    @property
    def poll(self) -> float | None:
        """How often to look at what processes are at; None for never."""
        least = min([self.idle, *(seconds for _, seconds in self.pipes)])
        return None if math.isinf(least) else max(_LEAST_POLL, least / _LOOKS)


class Timeout(Adapter):
    """Set how long a batch may take; then ``ItemTimeout`` names what was being done.

    Parameters
    ----------
    item
        Seconds from asking for a batch to getting it. ``math.inf``, or more than a week, here and
        below: no limit.
    start
        Seconds that the first batch of an epoch may take in addition.
    stop
        Seconds that workers get to end by themselves.
    idle
        Seconds for which a process may stay at one pipe of the same item (of the same batch, where
        pipes take it as a whole). A batch may then take as long as it goes on:
        ``Timeout(item=math.inf, idle=60)``.
    at
        Chained name of a pipe: the limit is for that pipe alone, as ``idle`` is for all;
        ``Timeout(5, at="map")``. The other limits stay as they are.

    Notes
    -----
    ``idle`` and ``at`` see all pipes of a graph that is split (``explain()`` shows how), in
    workers and here, where pipes that plan, or make what is dealt out, run in a thread then; of a
    graph that is not split they see those that run here.

    Without this adapter the limits are 600, 120 and 1 s with workers, and none in
    process, where nothing can be interrupted without a thread.
    """

    def __init__(
        self,
        item: float = ITEM_SECONDS,
        *,
        start: float = START_SECONDS,
        stop: float = STOP_SECONDS,
        idle: float = math.inf,
        at: str | None = None,
    ) -> None:
        named = (("item", item), ("start", start), ("stop", stop), ("idle", idle))
        for name, value in named:
            if not value > 0:
                msg = f"a timeout is a positive number of seconds, got {name}={value!r}"
                raise ValueError(msg)
        self._at = at
        self._seconds = item
        self.limits = Limits(start=start, item=item, stop=stop, enforced=True, idle=idle)

    def rules(self) -> Sequence[Rule]:
        """Return nothing: the limits are set on the sink alone."""
        return ()

    def rewrite(self, pipe: Pipe) -> Rewritten:
        """Return the graph with the limits on its sink."""
        limits = self.limits if self._at is None else self._with_pipe(pipe, self._at)
        if limits_of(pipe) == limits:
            return Rewritten(pipe, pipe)
        return Rewritten(pipe, Limited(pipe, limits))

    def _with_pipe(self, sink: Pipe, name: str) -> Limits:
        split = split_of(sink)
        here = before_dealing(sink) if isinstance(split, NoCut) else set(map(id, walk(sink)))
        pipes = (pipe for pipe in walk(sink) if id(pipe) in here)
        seen = [chained_name(pipe) for pipe in pipes if not traits_of(pipe).watches]
        if name not in seen:
            told = ", ".join(dict.fromkeys(seen)) or "none"
            raise GraphError(
                f"Timeout(at={name!r}) names no pipe that is watched; there is {told}",
                do="Give the adapter after those that change pipes, or use Timeout(item=...).",
            ).at(origin_of(sink))
        limits = limits_of(sink)
        named = tuple(sorted({**dict(limits.pipes), name: self._seconds}.items()))
        return dataclasses.replace(limits, enforced=True, pipes=named)

    def __repr__(self) -> str:
        if self._at is not None:
            return f"Timeout({self._seconds:g}, at={self._at!r})"
        return f"Timeout(item={self.limits.item:g})"


class Limited(Noted[Limits]):
    """Says to the reading service how long items may take; who asks for a batch watches."""


def limits_of(sink: Pipe) -> Limits:
    """Return the limits that hold for a graph: those set nearest to its sink."""
    return Limited.on(sink, Limits())
