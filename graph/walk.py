"""Read a graph: every pipe once, parents first, and whether it is legal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..core.errors import GraphError
from .node import Pipe, describe, is_pipe, origin_of, parents_of, pipes_in

P = TypeVar("P")


def walk(sink: Pipe) -> Iterator[Pipe]:
    """Yield every pipe of the graph once, parents first, the sink last; GraphError for a loop."""
    complete: set[int] = set()
    open_: set[int] = set()
    stack: list[tuple[Pipe, bool]] = [(sink, False)]
    while stack:
        pipe, parents_done = stack.pop()
        if parents_done:
            open_.discard(id(pipe))
            complete.add(id(pipe))
            yield pipe
        elif id(pipe) in open_:
            msg = f"{describe(pipe)} is upstream of itself"
            do = "A pipe cannot read its own output; cut the loop."
            raise GraphError(msg, do=do).at(origin_of(pipe))
        elif id(pipe) not in complete:
            open_.add(id(pipe))
            stack.append((pipe, True))
            stack += [(p, False) for p in reversed(parents_of(pipe)) if id(p) not in complete]


def readers(sink: Pipe) -> Counter[int]:
    """Count the readers of each pipe, by ``id``."""
    return Counter(id(parent) for pipe in walk(sink) for parent in parents_of(pipe))


def is_read_twice(sink: Pipe) -> bool:
    """Whether a pass iterates over a pipe more than once, without a fork."""
    counts: Counter[int] = Counter()
    for pipe in walk(sink):
        if "main_datapipe" in vars(pipe):  # a branch: its fork is iterated over once
            continue
        reads = Counter(id(parent) for parent in parents_of(pipe))
        for value in vars(pipe).values():
            if isinstance(value, (list, tuple)):
                again = Counter(id(entry) for entry in pipes_in(value) if id(entry) in reads)
                reads.update({number: times - 1 for number, times in again.items()})
        counts.update(reads)
    return any(times > 1 for times in counts.values())


def find(sink: Pipe, kind: type[P]) -> list[P]:
    """Return the pipes that are instances of ``kind``, parents first."""
    return [pipe for pipe in walk(sink) if isinstance(pipe, kind)]


def verify(sink: Pipe) -> Pipe:
    """Return ``sink`` if its graph is legal; else GraphError with every complaint."""
    if not is_pipe(sink):
        msg = f"a graph is made of datapipes, got {type(sink).__name__}"
        raise GraphError(msg, do="Pass the last pipe of a chain to DataLoader2.")
    complaints = []
    names: dict[int, set[str]] = {}  # by a pipe or upstream of it
    for pipe in walk(sink):
        names[id(pipe)] = set().union(*(names[id(parent)] for parent in parents_of(pipe)))
        for name in stream_names(pipe):
            if name in names[id(pipe)]:  # both would draw the same numbers for an item
                what = f"another pipe upstream already draws under the name {name!r}; give name="
                complaints.append((pipe, f"{describe(pipe)}: {what}"))
            names[id(pipe)].add(name)
    if complaints:
        raise GraphError("\n".join(text for _, text in complaints)).at(origin_of(complaints[0][0]))
    return sink


def stream_names(pipe: Pipe) -> tuple[str, ...]:
    """Return the names under which ``pipe`` draws random numbers."""
    names = getattr(pipe, "stream_names", ()) if hasattr(type(pipe), "stream_names") else ()
    return tuple(names)


def branch_mark(pipe: Pipe) -> str:
    """Return the branch of ``pipe`` in forks and similar pipes, e.g. ``"1.2"`` in nested forks.

    Empty outside of branches, in a first branch, and after all branches have met again. Adapters,
    copies and cuts keep the mark.
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


# The first branches of a fork and of the forks in it have no mark.
_FIRST = re.compile(r"(^|[.])0([.]0)*$")


def _places(inside: Mapping[int, frozenset[int]], labels: Mapping[int, str]) -> str:
    """Return the branches as a path, ``.`` between nested forks and ``+`` between parallel ones."""
    every = {
        f"{labels[trunk]}.{min(numbers)}".removeprefix(".") for trunk, numbers in inside.items()
    }
    inner = {path for path in every if not any(other.startswith(f"{path}.") for other in every)}
    return "+".join(sorted(inner))


def _branch_of(pipe: Pipe) -> tuple[Pipe, int, int] | None:
    """Return the fork of a branch, the branch's number, and their count, for torch's and ours."""
    own = vars(pipe)
    trunk: Any = own.get("main_datapipe")
    if not is_pipe(trunk):
        return None
    number = own.get("instance_id", own.get("number"))
    count = vars(trunk).get("num_instances", vars(trunk).get("count"))
    return (trunk, number, count) if isinstance(number, int) and isinstance(count, int) else None
