"""Graphs as text, and as drawings for Mermaid and Graphviz."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from .node import Pipe, describe, parents_of, traits_of
from .rewrite import Change
from .walk import walk

_GAP = 3


def explain_graph(sink: Pipe) -> str:
    """Return one line per pipe, parents first; a branch names the lines that it reads."""
    # A plain chain needs no arrows: each line reads the one above it.
    lines = []
    for number, (pipe, parents) in enumerate(_show(sink, children=True)):
        plain = parents == ([number - 1] if number else [])
        arrow = "" if plain or not parents else f"   ← {', '.join(map(str, parents))}"
        lines.append(f"{number} {describe(pipe)}{arrow}")
    return "\n".join(lines)


def _show(sink: Pipe, *, children: bool) -> Iterator[tuple[Pipe, list[int]]]:
    """Yield each pipe that is shown, and the numbers of those that it reads."""
    # Not those that only watch; and, without ``children``, not what torch puts between a fork or
    # demux and the pipes that read its branches.
    number: dict[int, int] = {}
    count = 0
    for pipe in walk(sink):
        parents = [number[id(p)] for p in parents_of(pipe)]
        if traits_of(pipe).watches or (not children and is_branch(pipe)):
            number[id(pipe)] = parents[0]
            continue
        number[id(pipe)], count = count, count + 1
        yield pipe, parents


def explain_rewritten(before: Pipe, after: Pipe, changes: Sequence[Change]) -> str:
    """Return the graph as written beside the graph that runs, then the changes."""
    old = ["as written", *explain_graph(before).splitlines()]
    new = ["as it runs", *explain_graph(after).splitlines()]
    width = max(map(len, old)) + _GAP
    table = [f"{a:<{width}}{b}".rstrip() for a, b in zip_longest(old, new, fillvalue="")]
    # One that only measures leaves a pipe what it says it is.
    counts = Counter(each.rule for each in changes if each.at == each.became)
    lines = list(dict.fromkeys(str(each) for each in changes if each.at != each.became))
    lines += [f"watched  {count} pipes   ({rule})" for rule, count in counts.items()]
    return "\n".join(table + (["", *lines] if lines else []))


_LONGEST_LABEL = 80  # wider boxes than a line of text make a drawing unreadable


def nodes_and_edges(
    sink: Pipe, *, children: bool = False
) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the label of every pipe, parents first, and pairs ``(parent, reader)`` of indices."""
    labels: list[str] = []
    edges: list[tuple[int, int]] = []
    for number, (pipe, parents) in enumerate(_show(sink, children=children)):
        # Two branches of one fork may end in one reader.
        edges += [(parent, number) for parent in dict.fromkeys(parents)]
        label = describe(pipe).lstrip("_")
        is_long = len(label) > _LONGEST_LABEL
        labels.append(f"{label[: _LONGEST_LABEL - 1]}…" if is_long else label)
    return labels, edges


def is_branch(pipe: Pipe) -> bool:
    """Whether ``pipe`` is one of the pipes that fork, demux and the like return."""
    return bool(getattr(type(pipe), "_is_child_datapipe", False))


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
    signs = str.maketrans({"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;"})
    boxes = [f'    n{i}["{label.translate(signs)}"]' for i, label in enumerate(labels)]
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
    signs = str.maketrans({"\\": "\\\\", '"': '\\"'})
    boxes = [f'    n{i} [label="{label.translate(signs)}"]' for i, label in enumerate(labels)]
    arrows = [f"    n{a} -> n{b}" for a, b in edges]
    return "\n".join(["digraph {", "    node [shape=box]", *boxes, *arrows, "}"])
