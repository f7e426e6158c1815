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
from .node import Pipe, describe
from .rebuild import rebuilt
from .walk import readers

# A rule set that still changes a graph after this many sweeps never settles: each
# useful sweep removes or adds at least one pipe of a chain, and chains are short.
MAX_SWEEPS = 200


@dataclass(frozen=True)
class Refused:
    """The rule is about this pipe, but applying it would be wrong here."""

    reason: str
    """One sentence: why."""


@dataclass(frozen=True)
class Site:
    """Where a rule is being tried."""

    pipe: Pipe
    """The pipe, already on its rewritten parents."""
    reader_counts: Mapping[int, int]
    """Number of readers by ``id``, as in the original graph."""

    def is_shared(self, pipe: Pipe) -> bool:
        """Whether more than one pipe reads from ``pipe``."""
        return self.reader_counts.get(id(pipe), 0) > 1


@dataclass(frozen=True)
class Rule:
    """Replace what ``match`` finds by what ``build`` makes of it. Both are pure."""

    name: str
    """What explain() calls it."""
    match: Callable[[Site], Any]
    """Answer what was found, :class:`Refused`, or None (not about this pipe)."""
    build: Callable[[Any], Pipe]
    """Return the pipe that takes the place of the site's."""


@dataclass(frozen=True)
class Change:
    """What one rule did, or why it did not."""

    rule: str
    """Name of the rule."""
    at: str
    """The pipe, as the user wrote it."""
    became: str | None = None
    """What stands there now, if it was applied."""
    refused: str | None = None
    """Why not, if it was refused."""

    def __str__(self) -> str:
        if self.refused is not None:
            return f"refused  {self.at}: {self.refused}   ({self.rule})"
        return f"changed  {self.at} → {self.became}   ({self.rule})"


@dataclass(frozen=True)
class Rewritten:
    """A graph before and after."""

    before: Pipe
    """The sink that was given."""
    after: Pipe
    """The sink that came out; the same object if nothing changed."""
    changes: tuple[Change, ...] = ()
    """What was done and refused, in order."""

    @property
    def changed(self) -> bool:
        """Whether any rule was applied."""
        return self.after is not self.before


def sweep(sink: Pipe, rules: Sequence[Rule]) -> Rewritten:
    """Try each rule on each pipe once, parents first."""
    # Readers are counted before copying: a copy has no readers yet, and a shared
    # pipe would otherwise be merged into one of its readers and lost to the others.
    counts = dict(readers(sink))
    changes: list[Change] = []

    def ruled(old: Pipe, here: Pipe) -> Pipe:
        for rule in rules:
            found = rule.match(Site(here, counts))
            if isinstance(found, Refused):
                changes.append(Change(rule.name, describe(here), refused=found.reason))
            elif found is not None:
                new = rule.build(found)
                changes.append(Change(rule.name, describe(here), became=describe(new)))
                here = new
        if id(old) in counts:
            counts[id(here)] = counts[id(old)]
        return here

    after = rebuilt(sink, ruled)
    return Rewritten(sink, after, tuple(changes))


def settle(sink: Pipe, rules: Sequence[Rule]) -> Rewritten:
    """Sweep until nothing changes.

    Raises
    ------
    GraphError
        If the rules undo each other; it names them.
    """
    result = Rewritten(sink, sink)
    for _ in range(MAX_SWEEPS):
        swept = sweep(result.after, rules)
        if not swept.changed:
            refusals = tuple(c for c in swept.changes if c.refused)
            return replace(result, changes=result.changes + refusals)
        applied = tuple(c for c in swept.changes if c.became)
        result = Rewritten(sink, swept.after, result.changes + applied)
    names = sorted({c.rule for c in result.changes[-2 * len(rules) :]})
    msg = f"the graph still changes after {MAX_SWEEPS} sweeps; these rules undo each other: {names}"
    raise GraphError(msg, do="Give the adapters one after another, or leave one out.")
