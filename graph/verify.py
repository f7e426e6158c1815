"""Checks that a graph must pass before it runs. Each answers a complaint or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core.errors import GraphError
from .node import Pipe, describe, is_pipe, origin_of, parents_of
from .walk import walk

Check = Callable[[Pipe], Iterator[tuple[Pipe, str]]]


def verify(sink: Pipe) -> Pipe:
    """Return ``sink`` if its graph is legal; GraphError has every complaint, with its pipe."""
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


def branch_mark(pipe: Pipe) -> str:
    """Return which branch ``pipe`` is in, of a fork or of what else gives items to several pipes.

    Nothing outside of branches, in the first one, and where all of them have met again. It tells
    the branch, not the place where that is read: no adapter, copy or cut changes it.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> first, second = IterableWrapper([1]).fork(2)
    >>> inner = second.fork(3)
    >>> [branch_mark(each.map(str)) for each in (first, *inner)]
    ['', '1', '1.1', '1.2']
    >>> branch_mark(first.zip(*inner))
    ''
    """
    labels: dict[int, str] = {}
    counts: dict[int, int] = {}
    inside: dict[int, dict[int, frozenset[int]]] = {}
    for one in walk(pipe):
        here: dict[int, frozenset[int]] = {}
        for parent in parents_of(one):
            for trunk, numbers in inside[id(parent)].items():
                here[trunk] = here.get(trunk, frozenset()) | numbers
        inside[id(one)] = {t: ns for t, ns in here.items() if len(ns) < counts[t]}
        branch = _branch_of(one)
        if branch is not None:
            trunk_pipe, number, counts[id(trunk_pipe)] = branch
            labels[id(trunk_pipe)] = _places(inside[id(one)], labels)
            inside[id(one)][id(trunk_pipe)] = frozenset([number])
    return _FIRST.sub("", _places(inside[id(pipe)], labels))


# The first branch of a fork, and of forks in it, goes by no name.
_FIRST = re.compile(r"(^|[.])0([.]0)*$")


def _places(inside: Mapping[int, frozenset[int]], labels: Mapping[int, str]) -> str:
    """Return the branches as a path: of forks in forks, and of several beside each other."""
    every = {
        f"{labels[trunk]}.{min(numbers)}".removeprefix(".") for trunk, numbers in inside.items()
    }
    inner = {one for one in every if not any(other.startswith(f"{one}.") for other in every)}
    return "+".join(sorted(inner))


def _branch_of(pipe: Pipe) -> tuple[Pipe, int, int] | None:
    """Return what a branch is one of, its number, and how many there are: torch's or ours."""
    own = vars(pipe)
    trunk: Any = own.get("main_datapipe")
    if not is_pipe(trunk):
        return None
    number = own.get("instance_id", own.get("number"))
    count = vars(trunk).get("num_instances", vars(trunk).get("count"))
    return (trunk, number, count) if isinstance(number, int) and isinstance(count, int) else None


def _upstream(pipe: Pipe) -> Iterator[Pipe]:
    for parent in parents_of(pipe):
        yield from walk(parent)


CHECKS: tuple[Check, ...] = (_every_stream_has_its_own_name,)
