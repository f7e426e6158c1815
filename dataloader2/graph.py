"""torchdata's functions on graphs: nested dicts of pipes, changed in place.

For code that was written for torchdata. They use :mod:`voxpipe.graph`, whose functions do not
change the given pipes.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe

from ..core.errors import GraphError, NotRemovable
from ..graph import Pipe, describe, is_pipe, origin_of, parents_of, traits_of, walk
from ..graph.node import swap_parents
from ..reading_services.replica import SeedGenerator

DataPipe: TypeAlias = "IterDataPipe[Any] | MapDataPipe[Any]"  # any datapipe

DataPipeGraph: TypeAlias = "dict[int, tuple[Pipe, DataPipeGraph]]"
"""``{id(pipe): (pipe, the graph of what it reads)}``."""

P = TypeVar("P")

# torchdata has two files of them: both paths lead here, as ``os.path`` leads to another module.
for _file in ("settings", "utils"):
    sys.modules[f"{__name__}.{_file}"] = sys.modules[__name__]


def traverse_dps(datapipe: Pipe) -> DataPipeGraph:
    """Return the graph that ends in ``datapipe``.

    Every pipe is looked at once: branches that meet share one dict. Nothing is pickled.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper([1])
    >>> chain = source.map(str)
    >>> traverse_dps(chain) == {id(chain): (chain, {id(source): (source, {})})}
    True
    """
    below: dict[int, DataPipeGraph] = {}
    pipe = datapipe
    for pipe in walk(datapipe):
        below[id(pipe)] = {id(p): (p, below[id(p)]) for p in parents_of(pipe)}
    return {id(pipe): (pipe, below[id(pipe)])}


def list_dps(
    graph: DataPipeGraph, exclude_dps: Pipe | Collection[Pipe] | None = None
) -> list[Pipe]:
    """Return every pipe once, breadth first from the end; of those to leave out, all upstream."""
    pipes: Any = [exclude_dps] if is_pipe(exclude_dps) else exclude_dps or ()
    out = {id(p) for pipe in pipes for p in walk(pipe)}
    return [pipe for pipe in _breadth_first(graph) if id(pipe) not in out]


def find_dps(graph: DataPipeGraph, dp_type: type[P]) -> list[P]:
    """Return the pipes whose class is exactly ``dp_type``, breadth first from the end."""
    return [pipe for pipe in _breadth_first(graph) if type(pipe) is dp_type]


def replace_dp(graph: DataPipeGraph, old_datapipe: Pipe, new_datapipe: Pipe) -> DataPipeGraph:
    """Replace ``old_datapipe`` by ``new_datapipe`` for its readers, in place; return the graph.

    ``new_datapipe`` may read ``old_datapipe``. Where the last pipe is replaced, nothing reads it:
    take the new one from the graph that is returned. GraphError if the old one is not there.
    """
    (last,) = (pipe for pipe, _ in graph.values())
    _refuse_strangers(graph, old_datapipe)
    if last is old_datapipe:
        return traverse_dps(new_datapipe)
    # Not in the new pipe itself, which may read the old one.
    for pipe in _breadth_first(graph):
        if pipe is not new_datapipe and any(p is old_datapipe for p in parents_of(pipe)):
            swap_parents(pipe, {id(old_datapipe): new_datapipe})
    return traverse_dps(last)


def remove_dp(graph: DataPipeGraph, datapipe: Pipe) -> DataPipeGraph:
    """Replace ``datapipe`` by its parent for its readers, in place; return the graph.

    NotRemovable, a ``RuntimeError``, if it is a source or reads from several pipes; GraphError if
    it is not there.
    """
    _refuse_strangers(graph, datapipe)
    parents = parents_of(datapipe)
    if len(parents) != 1:
        kind = "source" if not parents else "receiving"
        msg = f"Cannot remove the {kind} DataPipe {describe(datapipe)}"
        do = "Use replace_dp() to put another in its place."
        raise NotRemovable(msg, do=do).at(origin_of(datapipe))
    return replace_dp(graph, datapipe, parents[0])


def _breadth_first(graph: DataPipeGraph) -> Iterator[Any]:
    keys: set[int] = set()
    waiting = deque([graph])
    while waiting:
        for key, (pipe, below) in waiting.popleft().items():
            if key not in keys:
                keys.add(key)
                yield pipe
                waiting.append(below)


def _refuse_strangers(graph: DataPipeGraph, datapipe: Pipe) -> None:
    if not any(pipe is datapipe for pipe in _breadth_first(graph)):
        msg, do = f"{describe(datapipe)} is not in this graph", "Take it from list_dps()."
        raise GraphError(msg, do=do).at(origin_of(datapipe))


def set_datapipes_seed(
    datapipes: Collection[Pipe], seed_generator: SeedGenerator, distributed_shared: bool
) -> None:
    """Call ``set_seed`` on those that have it, with shared or with the worker's own seeds."""
    own = seed_generator.generate_seed
    draw = seed_generator.generate_shared_seed if distributed_shared else own
    for pipe in datapipes:
        if callable(getattr(type(pipe), "set_seed", None)):
            pipe.set_seed(draw())


def set_graph_random_seed(datapipe: Pipe, seed_generator: SeedGenerator) -> Pipe:
    """Seed the pipes that draw: alike on all workers before they share items out, apart after.

    A pipe before any ``sharding_filter`` gets a shared seed, so that all workers shuffle alike
    and their shares are disjoint.
    """
    shared_ids = {
        id(before)
        for pipe in walk(datapipe)
        if traits_of(pipe).shards or hasattr(type(pipe), "apply_sharding")
        for before in walk(pipe)
    }
    everything = list(walk(datapipe))
    set_datapipes_seed([p for p in everything if id(p) in shared_ids], seed_generator, True)
    set_datapipes_seed([p for p in everything if id(p) not in shared_ids], seed_generator, False)
    return datapipe
