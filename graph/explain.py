"""Graphs as text, and as drawings for Mermaid and Graphviz."""

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


_LONGEST_LABEL = 80  # wider boxes than a line of text make a drawing unreadable


def nodes_and_edges(
    sink: Pipe, *, children: bool = False
) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the label of every pipe, parents first, and pairs ``(parent, reader)`` of indices.

    Pipes that only watch others are left out, as in explain(); and, without ``children``, what
    torch puts between a fork or demux and the pipes that read its branches.
    """
    labels: list[str] = []
    edges: list[tuple[int, int]] = []
    number: dict[int, int] = {}
    for pipe in walk(sink):
        parents = [number[id(p)] for p in parents_of(pipe)]
        if traits_of(pipe).watches or (not children and is_branch(pipe)):
            number[id(pipe)] = parents[0]
            continue
        number[id(pipe)] = len(labels)
        # Two branches of one fork may end in one reader.
        edges += [(parent, len(labels)) for parent in dict.fromkeys(parents)]
        labels.append(_shortened(describe(pipe).lstrip("_")))
    return labels, edges


def is_branch(pipe: Pipe) -> bool:
    """Whether ``pipe`` is one of the pipes that fork, demux and the like return."""
    return hasattr(type(pipe), "_is_child_datapipe")


def to_mermaid(sink: Pipe) -> str:
    """Return the graph as a Mermaid flowchart: Markdown viewers draw it.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> print(to_mermaid(IterableWrapper(range(4)).batch(2)))
    flowchart TD
        n0["IterableWrapper(range(0, 4))"]
        n1["batch(2)"]
        n0 --> n1
    """
    labels, edges = nodes_and_edges(sink)
    # Mermaid reads entities inside quotes: a quote of the user's must not end the label.
    boxes = [f'    n{i}["{_entities(label)}"]' for i, label in enumerate(labels)]
    return "\n".join(["flowchart TD", *boxes, *(f"    n{a} --> n{b}" for a, b in edges)])


def to_dot(sink: Pipe) -> str:
    """Return the graph in the DOT language of Graphviz.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> print(to_dot(IterableWrapper(range(4)).batch(2)))
    digraph {
        node [shape=box]
        n0 [label="IterableWrapper(range(0, 4))"]
        n1 [label="batch(2)"]
        n0 -> n1
    }
    """
    labels, edges = nodes_and_edges(sink)
    boxes = [f'    n{i} [label="{_escaped(label)}"]' for i, label in enumerate(labels)]
    arrows = [f"    n{a} -> n{b}" for a, b in edges]
    return "\n".join(["digraph {", "    node [shape=box]", *boxes, *arrows, "}"])


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"


def _entities(label: str) -> str:
    for sign, entity in (("&", "#amp;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        label = label.replace(sign, entity)
    return label


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"')
