"""Rewrite a graph by rules, which match a pipe, refuse it with a reason, or ignore it.

:func:`sweep` tries each rule on each pipe once; :func:`settle` sweeps until nothing changes. Both
keep the given graph unchanged, and return the same object if no rule applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe

from ..core.errors import GraphError, NotRemovable
from .node import (
    Pipe,
    copy_pipe,
    describe,
    is_pipe,
    later_pipes,
    origin_of,
    parents_of,
    swap_parents,
    with_parents,
)
from .walk import readers, walk


def rebuild(sink: Pipe, change: Callable[[Pipe, Pipe], Pipe]) -> Pipe:
    """Return the graph of the results of ``change(old, here)`` for each pipe, parents first.

    ``old`` is the original pipe. ``here`` is that pipe on its changed parents: the same object if
    none changed, else a copy.
    """
    pipes: dict[int, Pipe] = {}
    ahead: list[Pipe] = []
    for old in walk(sink):
        here = with_parents(old, [pipes[id(parent)] for parent in parents_of(old)])
        pipes[id(old)] = change(old, here)
        if pipes[id(old)] is not old and type(pipes[id(old)]) is type(old):
            ahead.append(old)
    for old in ahead:  # private attributes of a copy must name later pipes of the new graph
        later = {id(pipe): pipes[id(pipe)] for pipe in later_pipes(old) if id(pipe) in pipes}
        swap_parents(pipes[id(old)], later)
    return pipes[id(sink)]


def clone(sink: Pipe) -> Pipe:
    """Return a graph of new pipe objects that share settings and data.

    The loader runs a clone, so that the user's objects never change.
    """
    return rebuild(sink, lambda old, here: copy_pipe(old) if here is old else here)


# Each useful sweep removes or adds a pipe, and chains are short: after so many sweeps the rules
# undo each other.
MAX_SWEEPS = 200


@dataclass(frozen=True)
class Refused:
    """A rule matches a pipe, but applying it would be wrong here."""

    reason: str  # one sentence


@dataclass(frozen=True)
class Site:
    """The pipe on which a rule is tried."""

    pipe: Pipe  # on its rewritten parents
    reader_counts: Mapping[int, int]  # number of readers by ``id``, as in the original graph

    def is_shared(self, pipe: Pipe) -> bool:
        """Whether more than one pipe reads from ``pipe``."""
        return self.reader_counts.get(id(pipe), 0) > 1


@dataclass(frozen=True)
class Rule:
    """A replacement of pipes: ``match`` finds, ``build`` replaces. Both are pure."""

    name: str  # in explain()
    match: Callable[[Site], Any]
    """Return a finding, :class:`Refused` with a reason, or None if the rule ignores the pipe."""
    build: Callable[[Any], Pipe]  # return the pipe that replaces the site's, from the finding


LEFT_OUT = "left out"
"""``Change.became`` of a removed pipe, whose readers read its parent."""


@dataclass(frozen=True)
class Change:
    """One change of a rule, or its refusal."""

    rule: str
    at: str  # the pipe, as the user wrote it
    became: str | None = None  # the new pipe, or ``LEFT_OUT``, if the rule was applied
    reason: str | None = None  # if the rule refused

    def __str__(self) -> str:
        if self.reason is not None:
            return f"refused  {self.at}: {self.reason}   ({self.rule})"
        rule = "" if (self.became or "").endswith(f"← {self.rule}") else f"   ({self.rule})"
        return f"changed  {self.at} → {self.became}{rule}"


@dataclass(frozen=True)
class RewriteResult:
    """A graph before and after a rewrite."""

    before: Pipe
    after: Pipe  # the new sink; the same object if nothing changed
    changes: tuple[Change, ...] = ()  # changes and refusals, in order

    @property
    def has_changes(self) -> bool:
        """Whether any rule was applied."""
        return self.after is not self.before


def sweep(sink: Pipe, rules: Sequence[Rule]) -> RewriteResult:
    """Try each rule on each pipe once, parents first."""
    # Count readers in the original graph: a copy has none yet, and a rule would merge a shared
    # pipe into one of its readers.
    counts = dict(readers(sink))
    changes: list[Change] = []

    def apply_rules(old: Pipe, here: Pipe) -> Pipe:
        for rule in rules:
            match = rule.match(Site(here, counts))
            if isinstance(match, Refused):
                changes.append(Change(rule.name, describe(here), reason=match.reason))
            elif match is not None:
                new = rule.build(match)
                if not is_pipe(new):
                    msg = f"rule {rule.name!r} built {type(new).__name__} of {describe(here)}"
                    do = "Its build must return the pipe that replaces the old one."
                    raise GraphError(f"{msg}, which is no pipe", do=do).at(origin_of(here))
                is_left_out = any(new is parent for parent in parents_of(here))
                became = LEFT_OUT if is_left_out else describe(new)
                changes.append(Change(rule.name, describe(here), became=became))
                here = new
        if id(old) in counts:
            counts[id(here)] = counts[id(old)]
        return here

    after = rebuild(sink, apply_rules)
    return RewriteResult(sink, after, tuple(changes))


def settle(sink: Pipe, rules: Sequence[Rule]) -> RewriteResult:
    """Sweep until nothing changes; GraphError names rules that undo each other."""
    result = RewriteResult(sink, sink)
    for _ in range(MAX_SWEEPS):
        swept = sweep(result.after, rules)
        if not swept.has_changes:
            refusals = tuple(c for c in swept.changes if c.reason)
            return replace(result, changes=result.changes + refusals)
        changes = tuple(c for c in swept.changes if c.became)
        result = RewriteResult(sink, swept.after, result.changes + changes)
    names = sorted({c.rule for c in result.changes[-2 * len(rules) :]})
    msg = f"the graph still changes after {MAX_SWEEPS} sweeps"
    if len(names) == 1:
        msg += f": rule {names[0]!r} matches what it has built itself"
        raise GraphError(msg, do="Let its match return None there.")
    msg += f"; these rules undo each other: {names}"
    raise GraphError(msg, do="Give the adapters one after another, or leave one out.")


def replace_pipe(sink: Pipe, old: Pipe, new: Pipe) -> Pipe:
    """Return the graph in which readers of ``old`` read ``new``, which may read ``old``.

    Raises :class:`GraphError` if ``old`` is not in the graph.
    """
    _refuse_stranger(old, walk(sink), "walk(graph) or find(graph, kind)")
    return rebuild(sink, lambda pipe, here: new if pipe is old else here)


# torchdata's functions on graphs: nested dicts of pipes, which they change in place.

DataPipe: TypeAlias = "IterDataPipe[Any] | MapDataPipe[Any]"  # any datapipe

DataPipeGraph: TypeAlias = "dict[int, tuple[Pipe, DataPipeGraph]]"
"""``{id(pipe): (pipe, the graph of its parents)}``."""

P = TypeVar("P")


def traverse_dps(datapipe: Pipe) -> DataPipeGraph:
    """Return the graph that ends in ``datapipe``.

    Every pipe is looked at once: branches that meet share one dict. Nothing is pickled.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper([1])
    >>> chain = source.map(str)
    >>> traverse_dps(chain) == {id(chain): (chain, {id(source): (source, {})})}
    True
    """
    below: dict[int, DataPipeGraph] = {}
    pipe = datapipe
    for pipe in walk(datapipe):
        below[id(pipe)] = {id(p): (p, below[id(p)]) for p in parents_of(pipe)}
    return {id(pipe): (pipe, below[id(pipe)])}


def list_dps(
    graph: DataPipeGraph, exclude_dps: Pipe | Collection[Pipe] | None = None
) -> list[Pipe]:
    """Return every pipe once, breadth first from the end; of those to leave out, all upstream."""
    pipes: Any = [exclude_dps] if is_pipe(exclude_dps) else exclude_dps or ()
    out = {id(p) for pipe in pipes for p in walk(pipe)}
    return [pipe for pipe in _breadth_first(graph) if id(pipe) not in out]


def find_dps(graph: DataPipeGraph, dp_type: type[P]) -> list[P]:
    """Return the pipes whose class is exactly ``dp_type``, breadth first from the end."""
    return [pipe for pipe in _breadth_first(graph) if type(pipe) is dp_type]


def replace_dp(graph: DataPipeGraph, old_datapipe: Pipe, new_datapipe: Pipe) -> DataPipeGraph:
    """Replace ``old_datapipe`` by ``new_datapipe`` for its readers, in place; return the graph.

    ``new_datapipe`` may read ``old_datapipe``. Where the last pipe is replaced, nothing reads it:
    take the new one from the graph that is returned. GraphError if the old one is not there.
    """
    pipes = _breadth_first(graph)
    _refuse_stranger(old_datapipe, pipes, "list_dps()")
    for pipe in pipes:
        if pipe is not new_datapipe:  # which may read the old one
            swap_parents(pipe, {id(old_datapipe): new_datapipe})
    return traverse_dps(new_datapipe if pipes[0] is old_datapipe else pipes[0])


def remove_dp(graph: DataPipeGraph, datapipe: Pipe) -> DataPipeGraph:
    """Replace ``datapipe`` by its parent for its readers, in place; return the graph.

    NotRemovable, a ``RuntimeError``, if it is a source or reads from several pipes; GraphError if
    it is not there.
    """
    _refuse_stranger(datapipe, _breadth_first(graph), "list_dps()")
    parents = parents_of(datapipe)
    if len(parents) != 1:
        kind = "source" if not parents else "receiving"
        msg = f"Cannot remove the {kind} DataPipe {describe(datapipe)}"
        do = "Use replace_dp() to put another in its place."
        raise NotRemovable(msg, do=do).at(origin_of(datapipe))
    return replace_dp(graph, datapipe, parents[0])


def _breadth_first(graph: DataPipeGraph) -> list[Any]:
    pipes: dict[int, Any] = {}
    waiting = [graph]
    for level in waiting:  # grows meanwhile
        waiting += [below for key, (_, below) in level.items() if key not in pipes]
        pipes |= {key: pipe for key, (pipe, _) in level.items()}
    return list(pipes.values())


def _refuse_stranger(datapipe: Pipe, pipes: Iterable[Pipe], source: str) -> None:
    if not any(pipe is datapipe for pipe in pipes):
        msg, do = f"{describe(datapipe)} is not in this graph", f"Take the pipe from {source}."
        raise GraphError(msg, do=do).at(origin_of(datapipe))
