"""torchdata's module of utilities for datapipes: streams, drawings, page-locked memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data.datapipes.utils.common import StreamWrapper as StreamWrapper

from ..first_use import at_first_use, names_at
from ..graph import Pipe
from ..graph.explain import nodes_and_edges

if TYPE_CHECKING:
    from .names_of_utils import *  # noqa: F403

_POINTS = names_at("datapipes.utils")
__all__ = [*_POINTS, "StreamWrapper", "to_graph"]
__getattr__, __dir__ = at_first_use(globals(), {}, points=_POINTS)
_SOURCE, _INNER, _LAST = "lightblue", "white", "darkolivegreen1"


def to_graph(dp: Pipe, *, debug: bool = False) -> Any:
    """Return the graph that ends in ``dp`` as a ``graphviz.Digraph``: ``.render()``, ``.view()``.

    Sources are blue, the last pipe is green. :func:`voxpipe.graph.to_mermaid` and
    :func:`voxpipe.graph.to_dot` give texts and need no package.

    Parameters
    ----------
    dp
        The last pipe.
    debug
        Whether to draw the pipes between ``fork``, ``demux`` and their branches, too.

    Raises
    ------
    ModuleNotFoundError
        The package graphviz is not installed.
    """
    try:
        import graphviz
    except ModuleNotFoundError:
        message = "to_graph() needs the package graphviz: pip install graphviz"
        raise ModuleNotFoundError(f"{message}; to_dot() and to_mermaid() need none") from None
    labels, edges = nodes_and_edges(dp, children=debug)
    reading, read = {b for _, b in edges}, {a for a, _ in edges}
    graph = graphviz.Digraph(node_attr={"shape": "box", "style": "filled"})
    for number, label in enumerate(labels):
        color = _SOURCE if number not in reading else _INNER if number in read else _LAST
        # Without this a backslash of the user's would be an escape of the DOT language.
        graph.node(str(number), graphviz.escape(label), fillcolor=color)
    for parent, reader in edges:
        graph.edge(str(parent), str(reader))
    return graph
