"""Read a graph: every pipe once, parents first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from ..core.errors import GraphError
from .node import Pipe, describe, origin_of, parents_of

P = TypeVar("P")


def walk(sink: Pipe) -> Iterator[Pipe]:
    """Yield every pipe of the graph once, parents first, the sink last; GraphError for a loop."""
    done: set[int] = set()
    open_: set[int] = set()
    stack: list[tuple[Pipe, bool]] = [(sink, False)]
    while stack:
        pipe, parents_done = stack.pop()
        if parents_done:
            open_.discard(id(pipe))
            done.add(id(pipe))
            yield pipe
        elif id(pipe) in open_:
            msg = f"{describe(pipe)} is upstream of itself"
            raise GraphError(msg, do="A pipe cannot read its own output; cut the loop.").at(
                origin_of(pipe)
            )
        elif id(pipe) not in done:
            open_.add(id(pipe))
            stack.append((pipe, True))
            stack += [(p, False) for p in reversed(parents_of(pipe)) if id(p) not in done]


def readers(sink: Pipe) -> Counter[int]:
    """Count the readers of each pipe, by ``id``."""
    return Counter(id(parent) for pipe in walk(sink) for parent in parents_of(pipe))


def is_read_twice(sink: Pipe) -> bool:
    """Whether a pipe is gone through more than once in a pass, with no fork between."""
    counts: Counter[int] = Counter()
    for pipe in walk(sink):
        if "main_datapipe" in vars(pipe):  # a branch: what it is one of is gone through once
            continue
        named = Counter(id(parent) for parent in parents_of(pipe))
        for value in vars(pipe).values():
            if isinstance(value, (list, tuple)):
                again = Counter(id(one) for one in value if id(one) in named)
                named.update({number: times - 1 for number, times in again.items()})
        counts.update(named)
    return any(times > 1 for times in counts.values())


def find(sink: Pipe, kind: type[P]) -> list[P]:
    """Return the pipes that are instances of ``kind``, parents first."""
    return [pipe for pipe in walk(sink) if isinstance(pipe, kind)]
