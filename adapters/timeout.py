"""The adapter that limits the waits of the loader, and names the late pipe."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..core.errors import GraphError
from ..datapipes.background_iterator import STOP_SECONDS as THREAD_SECONDS
from ..datapipes.iter import FusedSpatial
from ..graph import (
    NoCut,
    Pipe,
    RewriteResult,
    before_dispatch,
    chained_name,
    origin_of,
    traits_of,
    walk,
)
from ..graph.cut import split_of
from .adapter import Adapter, annotate, note_of

# Starting an interpreter and importing torch takes 2 to 6 s on two cores, and tens of
# seconds from a busy network disk.
START_SECONDS = 120.0
# A batch from a slow bucket takes seconds; ten minutes without one is a hang.
ITEM_SECONDS = 600.0
# A process that still runs a second after its stop is killed.
STOP_SECONDS = 1.0


# A limit is noticed a quarter late at most, and looking twenty times a second costs nothing.
_LOOKS = 4
_LEAST_POLL = 0.05


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds that each kind of wait may take."""

    start: float = START_SECONDS
    """From the start of an epoch to its first batch, on top of ``item``."""
    item: float = ITEM_SECONDS  # from asking for a batch to getting it
    stop: float = STOP_SECONDS  # from asking a worker to stop to killing it
    explicit: bool = False
    """Whether the user asked: in-process waits are only watched then, which takes a thread."""
    idle: float = math.inf  # for which a process may stay at one pipe
    pipes: tuple[tuple[str, float], ...] = ()  # the same for pipes by their chained names

    def at(self, pipe: Pipe) -> float:
        """Return for how long a process may stay at ``pipe``."""
        limits = dict(self.pipes)
        return min(self.idle, *(limits.get(name, math.inf) for name in _names(pipe)))

    @property
    def poll(self) -> float | None:
        """Seconds between checks of the processes' current pipes; None for never."""
        least = min([self.idle, *(seconds for _, seconds in self.pipes)])
        return None if math.isinf(least) else max(_LEAST_POLL, least / _LOOKS)

    @property
    def thread_stop(self) -> float:
        """For how long threads of this process are waited for when an epoch is left."""
        return self.stop if self.explicit else THREAD_SECONDS


def _names(pipe: Pipe) -> list[str]:
    """Return the chained name of ``pipe``, or those of the pipes that were fused into it."""
    calls = pipe.calls if isinstance(pipe, FusedSpatial) else (chained_name(pipe),)
    return [call.partition("(")[0] for call in calls]


class Timeout(Adapter):
    """Set how long a batch may take; then ``ItemTimeout`` names the work in progress.

    Parameters
    ----------
    item
        Seconds from asking for a batch to getting it. For this and the next ones, ``math.inf`` or
        more than a week means no limit.
    start
        Seconds for the start of each worker, with its imports. The first batch of an epoch may
        take them in addition.
    stop
        Seconds for workers and for threads of pipes here to end by themselves. Such pipes are
        ``prefetch``, ``threadpool_map`` and ``async_map_batches``.
    idle
        Seconds for which a process may stay at one pipe of the same item, or of the same batch if
        pipes take it as a whole. A batch that makes progress then has no limit:
        ``Timeout(item=math.inf, idle=60)``.
    at
        Chained name of a pipe: ``Timeout(5, at="map")``. The limit is for that pipe alone, as
        ``idle`` is for all pipes. ``start``, ``stop`` and ``idle`` still limit the whole chain,
        and keep their values unless given.

    Notes
    -----
    ``idle`` and ``at`` watch all pipes of a graph that is split (``explain()`` shows how), in
    workers and here. Pipes here that plan, or make items to deal out, then run in a thread. In a
    graph that is not split they watch only the pipes here.

    Without this adapter the limits are 600, 120 and 1 s with workers, and none in
    process, where nothing can be interrupted without a thread. Threads get 2 s then; Python cannot
    end one that is in a call of yours: it goes on, and a warning names it.
    """

    def __init__(
        self,
        item: float = ITEM_SECONDS,
        *,
        start: float | None = None,
        stop: float | None = None,
        idle: float | None = None,
        at: str | None = None,
    ) -> None:
        options: dict[str, Any] = {"start": start, "stop": stop, "idle": idle}
        self._options = {name: value for name, value in options.items() if value is not None}
        for name, value in {"item": item, **self._options}.items():
            msg = f"a timeout is a positive number of seconds, got {name}={value!r}"
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{msg}; math.inf is for no limit")
            if not value > 0:
                raise ValueError(msg)
        self._at = at
        self._seconds = item
        self.limits = dataclasses.replace(Limits(item=item, explicit=True), **self._options)

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        limits = self.limits if self._at is None else self._with_pipe(pipe, self._at)
        return annotate(pipe, limits)

    def _with_pipe(self, sink: Pipe, name: str) -> Limits:
        split = split_of(sink)
        here = before_dispatch(sink) if isinstance(split, NoCut) else set(map(id, walk(sink)))
        pipes = (pipe for pipe in walk(sink) if id(pipe) in here)
        names = [name for pipe in pipes if not traits_of(pipe).watches for name in _names(pipe)]
        if name not in names:
            others = ", ".join(dict.fromkeys(names)) or "none"
            msg = f"Timeout(at={name!r}) names no pipe that is watched; there is {others}"
            do = "Give the adapter after those that change pipes, or use Timeout(item=...)."
            raise GraphError(msg, do=do).at(origin_of(sink))
        limits = note_of(sink, Limits)
        seconds = tuple(sorted({**dict(limits.pipes), name: self._seconds}.items()))
        return dataclasses.replace(limits, explicit=True, pipes=seconds, **self._options)

    def __repr__(self) -> str:
        if self._at is not None:
            rest = "".join(f", {name}={value:g}" for name, value in self._options.items())
            return f"Timeout({self._seconds:g}, at={self._at!r}{rest})"
        return f"Timeout(item={self.limits.item:g})"
