"""Checks that a graph must pass before it runs. Each answers a complaint or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..core.errors import GraphError
from .node import Pipe, describe, is_pipe, origin_of, parents_of
from .walk import walk

Check = Callable[[Pipe], Iterator[tuple[Pipe, str]]]


def verify(sink: Pipe) -> Pipe:
    """Return ``sink`` if its graph is legal.

    Raises
    ------
    GraphError
        With every complaint, each with the pipe as the user wrote it.
    """
    if not is_pipe(sink):
        msg = f"a graph is made of datapipes, got {type(sink).__name__}"
        raise GraphError(msg, do="Pass the last pipe of a chain to DataLoader2.")
    complaints = [complaint for check in CHECKS for complaint in check(sink)]
    if complaints:
        first = complaints[0][0]
        msg = "\n".join(f"{describe(pipe)}: {text}" for pipe, text in complaints)
        raise GraphError(msg).at(origin_of(first))
    return sink


def _every_stream_has_its_own_name(sink: Pipe) -> Iterator[tuple[Pipe, str]]:
    """Two pipes with one name would draw the same numbers for one item."""
    for pipe in walk(sink):
        seen: set[str] = set()
        for name in stream_names(pipe):
            if name in seen or any(name in stream_names(p) for p in _upstream(pipe)):
                yield (
                    pipe,
                    f"another pipe upstream already draws under the name {name!r}; give name=",
                )
            seen.add(name)


def stream_names(pipe: Pipe) -> tuple[str, ...]:
    """Return the names under which ``pipe`` draws random numbers."""
    names = getattr(pipe, "stream_names", ()) if hasattr(type(pipe), "stream_names") else ()
    return tuple(names)


def _upstream(pipe: Pipe) -> Iterator[Pipe]:
    for parent in parents_of(pipe):
        yield from walk(parent)


CHECKS: tuple[Check, ...] = (_every_stream_has_its_own_name,)
