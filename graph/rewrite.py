"""Rewrite a graph by rules. A rule finds, refuses with a reason, or passes; it never acts.

Two drivers: :func:`sweep` tries each rule on each pipe once; :func:`settle` sweeps
until nothing changes. Both leave the graph that they are given alone, and hand the
very same object back when there was nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import GraphError
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
    """Return the graph in which each pipe is what ``change(old, here)`` returns, parents first.

    ``old`` is the pipe as it was, and ``here`` that pipe on its changed parents: the very same
    object where none of them changed, else a copy.
    """
    pipes: dict[int, Pipe] = {}
    ahead: list[Pipe] = []
    for old in walk(sink):
        here = with_parents(old, [pipes[id(parent)] for parent in parents_of(old)])
        pipes[id(old)] = change(old, here)
        if pipes[id(old)] is not old and type(pipes[id(old)]) is type(old):
            ahead.append(old)
    for old in ahead:  # a copy that names later pipes in private means those of its own graph
        later = {id(one): pipes[id(one)] for one in later_pipes(old) if id(one) in pipes}
        swap_parents(pipes[id(old)], later)
    return pipes[id(sink)]


def clone(sink: Pipe) -> Pipe:
    """Return a graph of new pipe objects with the same settings; data in them are shared.

    The loader works on a clone, so that the user's own objects never change.
    """
    return rebuild(sink, lambda old, here: copy_pipe(old) if here is old else here)


# A rule set that still changes a graph after this many sweeps never settles: each
# useful sweep removes or adds at least one pipe of a chain, and chains are short.
MAX_SWEEPS = 200


@dataclass(frozen=True)
class Refused:
    """The rule is about this pipe, but applying it would be wrong here."""

    reason: str  # one sentence: why


@dataclass(frozen=True)
class Site:
    """Where a rule is being tried."""

    pipe: Pipe  # the pipe, already on its rewritten parents
    reader_counts: Mapping[int, int]  # number of readers by ``id``, as in the original graph

    def is_shared(self, pipe: Pipe) -> bool:
        """Whether more than one pipe reads from ``pipe``."""
        return self.reader_counts.get(id(pipe), 0) > 1


@dataclass(frozen=True)
class Rule:
    """Replace what ``match`` finds by what ``build`` makes of it. Both are pure."""

    name: str  # what explain() calls it
    match: Callable[[Site], Any]
    """Answer what was found, :class:`SchemeRefusal`, or None (not about this pipe)."""
    build: Callable[[Any], Pipe]  # return the pipe that takes the place of the site's


LEFT_OUT = "left out"
"""What became of a pipe whose readers now read what it read."""


@dataclass(frozen=True)
class Change:
    """What one rule did, or why it did not."""

    rule: str
    at: str  # the pipe, as the user wrote it
    became: str | None = None  # what stands there now, if it was applied, or ``LEFT_OUT``
    reason: str | None = None  # why not, if it was refused

    def __str__(self) -> str:
        if self.reason is not None:
            return f"refused  {self.at}: {self.reason}   ({self.rule})"
        rule = "" if (self.became or "").endswith(f"← {self.rule}") else f"   ({self.rule})"
        return f"changed  {self.at} → {self.became}{rule}"


@dataclass(frozen=True)
class RewriteResult:
    """A graph before and after."""

    before: Pipe
    after: Pipe  # the sink that came out; the same object if nothing changed
    changes: tuple[Change, ...] = ()  # what was done and refused, in order

    @property
    def has_changes(self) -> bool:
        """Whether any rule was applied."""
        return self.after is not self.before


def sweep(sink: Pipe, rules: Sequence[Rule]) -> RewriteResult:
    """Try each rule on each pipe once, parents first."""
    # Readers are counted before copying: a copy has no readers yet, and a shared
    # pipe would otherwise be merged into one of its readers and lost to the others.
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
                    do = "Let its build return the pipe that stands there then."
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
    """Return the graph in which whatever read ``old`` reads ``new``, which may read ``old``.

    Raises :class:`GraphError` if ``old`` is not in the graph.
    """
    if not any(pipe is old for pipe in walk(sink)):
        msg = f"{describe(old)} is not in this graph"
        raise GraphError(msg, do="Take the pipe from walk(graph) or find(graph, kind).").at(
            origin_of(old)
        )
    return rebuild(sink, lambda pipe, here: new if pipe is old else here)
