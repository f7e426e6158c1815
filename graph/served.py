"""The split of what a reading service is going to run, of a graph that still has its end."""

from __future__ import annotations

from .cut import Cut, NoCut, cut
from .node import Pipe, parents_of, traits_of


def split_of(sink: Pipe) -> Cut | NoCut:
    """Return how a graph is split, without the end that stays in the process of the loader.

    Such an end begins with ``to_device()``, for instance, and takes items one by one.
    """
    split, pipe = cut(sink), sink
    while isinstance(split, NoCut):
        traits, parents = traits_of(pipe), parents_of(pipe)
        if len(parents) != 1 or not (traits.here or traits.per_item):
            break
        pipe = parents[0]
        found = cut(pipe)
        if traits.here and isinstance(found, Cut):
            return found
    return split
