"""A graph as text: one line per pipe, and what the rules did and refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from .node import Pipe, describe, parents_of, traits_of
from .rewrite import Change
from .walk import walk

_GAP = 3


def explain_graph(sink: Pipe) -> str:
    """Return one line per pipe, parents first; a branch names the lines that it reads.

    A plain chain needs no arrows: each line reads the one above it.
    """
    return "\n".join(_lines(sink))


def explain_rewritten(before: Pipe, after: Pipe, changes: Sequence[Change]) -> str:
    """Return the graph as written beside the graph that runs, then the changes."""
    left, right = ["as written", *_lines(before)], ["as it runs", *_lines(after)]
    width = max(map(len, left)) + _GAP
    table = [f"{a:<{width}}{b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]
    told = list(dict.fromkeys(str(change) for change in changes if not _watches(change)))
    watched = Counter(change.rule for change in changes if _watches(change))
    told += [f"watched  {count} pipes   ({rule})" for rule, count in watched.items()]
    return "\n".join(table + (["", *told] if told else []))


def _watches(change: Change) -> bool:
    """Whether a change leaves the pipe what it says it is, as one that only measures does."""
    return change.refused is None and change.at == change.became


def _lines(sink: Pipe) -> list[str]:
    lines: list[str] = []
    number: dict[int, int] = {}
    for pipe in walk(sink):
        parents = [number[id(p)] for p in parents_of(pipe)]
        if traits_of(pipe).watches:
            number[id(pipe)] = parents[0]
            continue
        position = number[id(pipe)] = len(lines)
        plain = parents == ([position - 1] if position else [])
        arrow = "" if plain or not parents else f"   ← {', '.join(map(str, parents))}"
        lines.append(f"{position} {describe(pipe)}{arrow}")
    return lines
