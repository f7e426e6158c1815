"""Make a graph anew, pipe by pipe: what every change of a graph has in common."""

from __future__ import annotations

from collections.abc import Callable

from .node import Pipe, later_pipes, parents_of, swap_parents, twin_of, with_parents
from .walk import walk


def rebuilt(sink: Pipe, change: Callable[[Pipe, Pipe], Pipe]) -> Pipe:
    """Return the graph in which each pipe is what ``change(old, here)`` returns, parents first.

    ``old`` is the pipe as it was, and ``here`` that pipe on its changed parents: the very same
    object where none of them changed, else a copy.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> chain = IterableWrapper(range(2)).map(str)
    >>> other = IterableWrapper([5])
    >>> list(rebuilt(chain, lambda old, here: here if parents_of(old) else other))
    ['5']
    >>> rebuilt(chain, lambda old, here: here) is chain
    True
    """
    made: dict[int, Pipe] = {}
    ahead: list[Pipe] = []
    for old in walk(sink):
        here = with_parents(old, [made[id(parent)] for parent in parents_of(old)])
        made[id(old)] = change(old, here)
        if made[id(old)] is not old and type(made[id(old)]) is type(old):
            ahead.append(old)
    for old in ahead:  # a copy that names later pipes in private means those of its own graph
        later = {id(one): made[id(one)] for one in later_pipes(old) if id(one) in made}
        swap_parents(made[id(old)], later)
    return made[id(sink)]


def clone(sink: Pipe) -> Pipe:
    """Return a graph of new pipe objects with the same settings; data in them are shared.

    The loader works on a clone, so that the user's own objects never change.
    """
    return rebuilt(sink, lambda old, here: twin_of(old) if here is old else here)
