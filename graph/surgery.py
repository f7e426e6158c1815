"""Change a graph at one place: put a pipe in the place of another, behind one, or take one out.

Each returns the sink of a new graph and leaves the given pipes alone: those that read, directly
or not, from the changed place are copied, all others are shared.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.errors import GraphError, NotRemovable
from .node import Pipe, describe, origin_of, parents_of
from .rebuild import rebuilt
from .walk import walk


def replace_pipe(sink: Pipe, old: Pipe, new: Pipe) -> Pipe:
    """Return the graph in which whatever read ``old`` reads ``new``.

    ``new`` may read ``old``: that is how something is put in between.

    Raises
    ------
    GraphError
        If ``old`` is not in the graph.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> numbers = IterableWrapper(range(3))
    >>> chain = numbers.map(str)
    >>> list(replace_pipe(chain, numbers, IterableWrapper("ab")))
    ['a', 'b']
    >>> list(chain)
    ['0', '1', '2']
    """
    if not any(pipe is old for pipe in walk(sink)):
        msg = f"{describe(old)} is not in this graph"
        raise GraphError(msg, do="Take the pipe from walk(graph) or find(graph, kind).").at(
            origin_of(old)
        )
    return rebuilt(sink, lambda pipe, here: new if pipe is old else here)


def remove_pipe(sink: Pipe, pipe: Pipe) -> Pipe:
    """Return the graph in which whatever read ``pipe`` reads what ``pipe`` read.

    Raises
    ------
    NotRemovable
        If ``pipe`` is a source or reads from several pipes; this is a ``RuntimeError``.
    GraphError
        If it is not in the graph.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> chain = IterableWrapper(range(3)).map(str)
    >>> list(remove_pipe(chain.batch(3), chain))
    [[0, 1, 2]]
    """
    parents = parents_of(pipe)
    if len(parents) != 1:
        msg = f"{describe(pipe)} reads from {len(parents)} pipes: what should take its place?"
        raise NotRemovable(msg, do="Name it: replace_pipe(graph, pipe, other).").at(origin_of(pipe))
    return replace_pipe(sink, pipe, parents[0])


def insert_after(sink: Pipe, pipe: Pipe, make: Callable[[Pipe], Pipe]) -> Pipe:
    """Return the graph in which ``make(pipe)`` stands between ``pipe`` and what read it.

    Raises
    ------
    GraphError
        If ``pipe`` is not in the graph.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> numbers = IterableWrapper(range(2))
    >>> chain = numbers.map(str)
    >>> list(insert_after(chain, numbers, lambda pipe: pipe.map(float)))
    ['0.0', '1.0']
    """
    return replace_pipe(sink, pipe, make(pipe))
