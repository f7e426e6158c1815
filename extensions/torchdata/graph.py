"""torchdata's functions on graphs, as nested dicts of pipes, in place; and on seeds of workers.

For code that was written for torchdata. They use :mod:`voxpipe.graph`, whose functions do not
change the given pipes. The entry points ``voxpipe.names`` list them under torchdata's paths.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterDataPipe, MapDataPipe

from ...adapters.lint import NAMES, SHARDS, Lint
from ...core.errors import GraphError, NotOffered, NotRemovable
from ...core.validate import validate_int
from ...graph import Pipe, describe, is_pipe, origin_of, parents_of, traits_of, walk
from ...graph.node import swap_parents
from ...reading_services.replica import MAX_SEED, SeedGenerator, WorkerInfo, apply_shares

DataPipe: TypeAlias = "IterDataPipe[Any] | MapDataPipe[Any]"  # any datapipe

DataPipeGraph: TypeAlias = "dict[int, tuple[Pipe, DataPipeGraph]]"
"""``{id(pipe): (pipe, the graph of what it reads)}``."""

P = TypeVar("P")


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


def dist_share_seed(seed: int, process_group: Any = None) -> int:
    """Return the seed of rank 0 of a ``torch.distributed`` group, on every rank of it."""
    seed = validate_int("seed", seed, least=0, below=MAX_SEED)
    # Tensors have signed integers: shift the seeds, half of which would be too large.
    tensor = torch.tensor(seed - MAX_SEED // 2, dtype=torch.int64, device="cpu")
    source = 0 if process_group is None else dist.get_global_rank(process_group, 0)
    dist.broadcast(tensor, src=source, group=process_group)
    return int(tensor.item()) + MAX_SEED // 2


def _check_shuffle_before_sharding(datapipe: Pipe) -> bool:
    """Whether on every path to every ``sharding_filter`` there is a ``shuffle`` before it."""
    return not Lint(ignore=set(NAMES) - {SHARDS}).mistakes(datapipe)


def process_init_fn(
    datapipe: Any,
    worker_info: WorkerInfo,
    custom_init_fn: Callable[[Any, WorkerInfo], Any] | None = None,
    worker_prefetch_cnt: int = 0,
    dispatching_req_queue: None = None,
    dispatching_res_queue: None = None,
) -> Any:
    """Return the graph of one worker: its share, changed by a function, with items made ahead.

    ``datapipe`` is changed in place; ``custom_init_fn(pipe, worker_info)`` returns the pipe that
    goes on. Queues of a dispatching process are not offered.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(process_init_fn(IterableWrapper(range(5)).sharding_filter(), WorkerInfo(2, 1)))
    [1, 3]
    """
    if dispatching_req_queue is not None or dispatching_res_queue is not None:
        raise NotOffered(
            "a worker does not ask a dispatching process through queues that it is given",
            do="Use .sharding_round_robin_dispatch() with MultiProcessingReadingService.",
        )
    pipe: Any = datapipe
    apply_shares(pipe, workers=worker_info.num_workers, worker=worker_info.worker_id)
    if custom_init_fn is not None:
        pipe = custom_init_fn(pipe, worker_info)
    return pipe.prefetch(worker_prefetch_cnt) if worker_prefetch_cnt else pipe


def process_reset_fn(
    datapipe: Pipe | Any,
    worker_info: WorkerInfo,
    seed_generator: SeedGenerator,
    distributed_shared_seed: bool = False,
    iter_reset_fn: Callable[[Any], Any] | None = None,
    custom_reset_fn: Callable[[Any, WorkerInfo, SeedGenerator], Any] | None = None,
) -> Any:
    """Return the graph of one worker for an epoch, its random pipes seeded in place.

    So are the global generators of ``random``, torch and NumPy: with ``distributed_shared_seed``
    alike in all workers. ``iter_reset_fn(pipe)`` and ``custom_reset_fn(pipe, worker_info,
    seed_generator)`` return the pipe that goes on.
    """
    own = seed_generator.generate_seed
    draw = seed_generator.generate_shared_seed if distributed_shared_seed else own
    random.seed(draw())
    torch.manual_seed(draw())
    np.random.seed(draw() % 2**32)  # NumPy's global generator takes 32 bits
    pipe = set_graph_random_seed(datapipe, seed_generator)
    if iter_reset_fn is not None:
        pipe = iter_reset_fn(pipe)
    if custom_reset_fn is not None:
        pipe = custom_reset_fn(pipe, worker_info, seed_generator)
    return pipe
