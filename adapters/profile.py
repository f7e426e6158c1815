"""The adapter that measures each pipe: time, items, reads and bytes, over all processes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from ..batching.job import Watch
from ..core.context import ContextKey, holding
from ..core.counters import PIPE_STATS, PipeCounts, counts_here
from ..core.memory import MEMORY_SAMPLER, array_bytes
from ..datapipes.datapipe import SameLength
from ..datapipes.item_numbers import EachItem, NumberedItems
from ..graph import (
    Change,
    Pipe,
    RewriteResult,
    Traits,
    clone,
    describe,
    origin_of,
    parents_of,
    rebuild,
    traits_of,
    walk,
    with_parents,
)
from ..graph.explain import is_branch
from .adapter import Adapter

# Counts of timed pipes further up while this one waited for them.
_OUTER: ContextKey[PipeCounts | None] = ContextKey(None)


class Timer(SameLength):
    """Yield the parent's items, and count the work of the parent alone."""

    traits: ClassVar[Any] = Traits(per_item=True, watches=True)

    def __init__(self, parent: Pipe, profile: str, pipe: str) -> None:
        super().__init__(parent)
        self.profile, self.pipe = profile, pipe

    def describe(self) -> str:
        return f"timed {describe(self.parent)}"

    def instructions(self) -> tuple[Watch, ...]:
        return (Watch(self.profile, self.pipe),)

    def __iter__(self) -> Iterator[Any]:
        parent = iter(self.parent)
        while True:
            item = self._time(partial(next, parent, _END))
            if item is _END:
                return
            yield item

    def by_number(self, items: Any) -> Any:
        return None if items is None else _TimedItems(items, self._time)

    def _time(self, make: Callable[[], Any]) -> Any:
        outer, inside = _OUTER.get(), PipeCounts()
        start, before = time.perf_counter(), counts_here()
        item = _END
        try:
            with holding(_OUTER, inside):
                item = make()
            return item
        finally:
            seconds, tally = time.perf_counter() - start, counts_here() - before
            at_end = item is _END
            own = PipeCounts(
                int(not at_end),
                seconds - inside.seconds,
                tally - inside.tally,
                wait=inside.seconds,
                bytes_out=array_bytes(None if at_end else item),
                resident=MEMORY_SAMPLER.read(),
            )
            PIPE_STATS.add((self.profile, self.pipe), own)
            if outer is not None:
                outer.seconds += seconds
                outer.tally = outer.tally + tally


_END = object()


class _TimedItems(EachItem):
    """Items of which each is timed with those that it is made of."""

    def __init__(self, items: NumberedItems, time_item: Callable[[Callable[[], Any]], Any]) -> None:
        super().__init__(items, time_item, None)

    def __getitem__(self, number: int) -> Any:
        return self._make(partial(self._items.__getitem__, number))


def without_timers(sink: Pipe) -> Pipe:
    """Return a copy of the graph without timed pipes: a profile counts the user's pipes."""

    def without(old: Pipe, here: Pipe) -> Pipe:
        return parents_of(here)[0] if isinstance(old, Timer) else here

    return rebuild(clone(sink), without)


class Profile(Adapter):
    """Time every pipe, in every process, and merge their counts.

    ::

        lazy_patch                     lazy_patch
        batch_patches            →     timed
                                       batch_patches
                                       timed

    Keep the object and ask it after (or during) an epoch: :meth:`table` for a person,
    :meth:`to_json` for a program.

    ==================  ======================================================================
    column              value, over all processes
    ==================  ======================================================================
    ``items``           items that the pipe yielded
    ``seconds``         wall time in the pipe itself, summed over the processes
    ``wait``            wall time for which it waited for the pipes before it
    ``reads``, ``MiB``  regions read from volumes by it, and their bytes
    ``MiB out``         arrays that it yielded; a description has none
    ``MiB held``        most memory that one process held right after it, looked at every 10 ms
    ==================  ======================================================================

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> profile = Profile()
    >>> list(profile(IterableWrapper([1, 2]).map(str)))
    ['1', '2']
    >>> [row["items"] for row in profile.to_json()]
    [2, 2]
    """

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self._pipes: list[str] = []

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        if isinstance(pipe, Timer):
            return RewriteResult(pipe, pipe)
        self._pipes = [_name(p) for p in walk(pipe) if not traits_of(p).watches]
        changes = []

        def with_timed_parents(old: Pipe, new: Pipe) -> Pipe:
            # torch's fork or demux and its children share more than an iterator.
            if isinstance(old, Timer) or is_branch(old):
                return new
            copy = with_parents(new, list(map(self._with_timer, parents_of(new))))
            if not traits_of(new).watches:
                changes.append(Change("time pipes", describe(new), became=describe(copy)))
            return copy

        after = self._with_timer(rebuild(pipe, with_timed_parents))
        return RewriteResult(pipe, after, tuple(changes))

    def _with_timer(self, pipe: Pipe) -> Pipe:
        # Timers and limits only watch: their cost is not the user's.
        return pipe if traits_of(pipe).watches else Timer(pipe, self.id, _name(pipe))

    def entries(self) -> list[tuple[str, PipeCounts]]:
        """Return the counts of each pipe so far, in the order of the graph."""
        counts = PIPE_STATS.of(self.id)
        return [(name, counts.get(name, PipeCounts())) for name in dict.fromkeys(self._pipes)]

    def to_json(self) -> list[dict[str, Any]]:
        """Return one dict per pipe: the row of the table, its IOCounters, the processes.

        ``resident`` is by process id, in bytes; JSON has it as text.
        """
        return [
            {
                "pipe": name,
                "items": e.items,
                "seconds": e.seconds,
                "wait": e.wait,
                "bytes_out": e.bytes_out,
                "resident": {str(pid): size for pid, size in sorted(e.resident.items())},
                **e.tally.to_json(),
            }
            for name, e in self.entries()
        ]

    def table(self) -> str:
        """Return the profile as text, one line per pipe."""
        entries = self.entries()
        total = sum(e.seconds for _, e in entries) or 1.0
        rows = [[name, *(cell(e, total) for cell in _CELLS.values())] for name, e in entries]
        return align([["pipe", *_CELLS], *rows])

    def __str__(self) -> str:
        return self.table()

    def reset(self) -> None:
        """Reset all counts."""
        PIPE_STATS.forget(self.id)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


_CELLS: dict[str, Callable[[PipeCounts, float], str]] = {
    "items": lambda e, total: str(e.items),
    "seconds": lambda e, total: f"{e.seconds:.2f}",
    "share": lambda e, total: f"{e.seconds / total:.0%}",
    "wait": lambda e, total: f"{e.wait:.2f}",
    "reads": lambda e, total: str(e.tally.reads),
    "MiB": lambda e, total: _mib(e.tally.bytes_read),
    "interpolations": lambda e, total: str(e.tally.interpolations),
    "MiB out": lambda e, total: _mib(e.bytes_out),
    "MiB held": lambda e, total: _mib(max(e.resident.values(), default=0)),
}


def align(rows: Sequence[Sequence[str]], ljust: Container[int] = (0,)) -> str:
    """Return rows of cells as lines, the columns in ``ljust`` to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if n in ljust else cell.rjust(w)
            for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _name(pipe: Pipe) -> str:
    """Return the row of a pipe, numbered where another one upstream would have the same."""
    origin, text = origin_of(pipe), describe(pipe)
    place = f"   {origin.file.rsplit('/', 1)[-1]}:{origin.line}" if origin is not None else ""
    same = ((type(p), origin_of(p), describe(p)) == (type(pipe), origin, text) for p in walk(pipe))
    number = sum(same)
    return f"{text}{f' #{number}' if number > 1 else ''}{place}"
