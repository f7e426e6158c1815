"""A graph as a drawing: the text that Mermaid or Graphviz makes a picture of."""

from __future__ import annotations

from .node import Pipe, describe, parents_of, traits_of
from .walk import walk

_LONGEST_LABEL = 80  # wider boxes than a line of text make a drawing unreadable


def nodes_and_edges(
    sink: Pipe, *, children: bool = False
) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the label of every pipe, parents first, and pairs ``(parent, reader)`` of indices.

    Pipes that only watch others are left out, as in explain(); and, without ``children``, what
    torch puts between a fork or demux and the pipes that read its branches.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper([1, 2], deepcopy=False)
    >>> nodes_and_edges(source.batch(2).zip(source))
    (['IterableWrapper(list of 2, deepcopy=False)', 'batch(2)', 'zip()'], [(0, 1), (1, 2), (0, 2)])
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
