"""Run a reading service with torchdata's interface; torchdata's functions for its workers."""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from ..adapters import Limits, note_of
from ..core import Stream
from ..core.errors import NotOffered, add_location
from ..datapipes.epoch import set_epoch
from ..graph import Pipe, clone, error_location, is_pipe, traits_of, walk
from .in_process import InProcessEpoch
from .pipe_runner import as_raised
from .planner import DeliveredBatches
from .reading_service import Epoch
from .replica import SeedGenerator, WorkerInfo, apply_shares
from .timeout_iterator import TimeoutIterator
from .work import ReplicatedWork, Work


class ReadingServiceInterface(ABC):
    """A service that prepares a graph before an epoch, in the consumer's process.

    ``initialize`` runs once per loader, and returns the pipe or iterable of the epochs.
    ``initialize_iteration`` runs before and ``finalize_iteration`` after each epoch, also after an
    error. ``finalize`` runs at the end.

    Examples
    --------
    >>> import voxpipe as vp
    >>> class Twice(ReadingServiceInterface):
    ...     def initialize(self, datapipe):
    ...         return datapipe.map((2).__mul__)
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(vp.DataLoader2(IterableWrapper([1, 2]), None, Twice()))
    [2, 4]
    """

    @abstractmethod
    def initialize(self, datapipe: Pipe) -> Any:
        """Return the pipe or other iterable of the epochs."""

    def finalize(self) -> None:  # noqa: B027  a service may hold nothing
        """Free everything that outlives an epoch; called at least once."""

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: Callable[[Any], Any] | None = None
    ) -> Callable[[Any], Any] | None:
        """Prepare an epoch; return a function to apply to the iterable, or None."""
        return None

    def finalize_iteration(self) -> None:  # noqa: B027  as above
        """Clean up after an epoch that finished, failed or was abandoned."""

    def __del__(self) -> None:
        self.finalize()


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A service with a state of its own, which is part of the loader's state."""

    @abstractmethod
    def checkpoint(self) -> bytes:
        """Return the state for :meth:`restore`."""

    @abstractmethod
    def restore(self, datapipe: Pipe, serialized_state: bytes) -> Any:
        """Return the iterable in its saved state; called instead of :meth:`initialize`."""


class TorchdataService:
    """Runs a graph with a user's service."""

    def __init__(self, service: ReadingServiceInterface) -> None:
        self._service = service
        # A copy keeps the caller's original alive: a service finalizes itself when it is collected,
        # and would free objects that the copy shares, e.g. a pool made in __init__.
        self._original = service
        self._source: Any = None
        self._state: bytes | None = None

    def distribute(self, graph: Pipe) -> Work:
        """Leave the graph whole, for the service to prepare."""
        reason = f"{type(self._service).__name__} prepares the graph in its own way"
        return ReplicatedWork(graph, reason, shards=False, limits=note_of(graph, Limits))

    def epoch(self, work: Work, seed: int, epoch: int, cursor: DeliveredBatches) -> Epoch:
        """Start one pass over the prepared graph."""
        assert isinstance(work, ReplicatedWork)
        if self._source is None:
            graph, service, state = clone(work.graph), self._service, self._state
            if state is None:
                self._source = service.initialize(graph)
            else:
                assert isinstance(service, CheckpointableReadingServiceInterface)
                self._source = service.restore(graph, state)
        run = seed, epoch
        start = partial(_prepared_batches, self._service, self._source, work, run, cursor)
        return InProcessEpoch(work, start)

    def checkpoint(self) -> bytes | None:
        """Return the state of the service; None if it has none."""
        service = self._service
        if isinstance(service, CheckpointableReadingServiceInterface):
            return service.checkpoint()
        return None

    def restore(self, state: bytes) -> None:
        """Begin the next epoch from a state of the service."""
        self.refuse_state()
        self.stop()  # the next epoch prepares the graph again
        self._state = state

    def refuse_state(self) -> None:
        """Raise ``TypeError`` if the service has no state of its own."""
        if not isinstance(self._service, CheckpointableReadingServiceInterface):
            name = type(self._service).__name__
            raise TypeError(
                f"the state holds one of a reading service, and {name} has none: give the service "
                "that it was saved with"
            )

    def shares(self, work: Work) -> int:
        """Return 1: one process runs the graph."""
        return 1

    def explain(self, work: Work) -> str:
        """Return the text of where each pipe runs."""
        return work.explain(workers=0)

    def stop(self) -> None:
        """Finalize the service."""
        if self._source is not None:
            self._source = None
            self._service.finalize()

    def __getstate__(self) -> dict[str, Any]:
        own, original = copy.copy(self._service), self._original
        return {"_service": own, "_original": original, "_source": None, "_state": self._state}

    def __repr__(self) -> str:
        return repr(self._service)


def _prepared_batches(
    service: ReadingServiceInterface,
    source: Any,
    work: Work,
    run: tuple[int, int],
    cursor: DeliveredBatches,
) -> Iterator[tuple[int, Any]]:
    """Yield the items of one pass over a graph that a service prepared, with their numbers."""
    seeds = SeedGenerator(Stream(*run, (), "reading service").integer())
    if is_pipe(source):
        set_epoch(source, *run)
    prepare = service.initialize_iteration(seeds)
    items: Any = None
    try:
        items = iter(source if prepare is None else prepare(source))
        if work.limits.explicit:
            items = TimeoutIterator(items, work.limits)
        for index, item in enumerate(items):
            if not cursor.holds(index):
                yield index, item
    except Exception as error:
        raise add_location(as_raised(error), error_location(error))  # noqa: B904  the very same
    finally:
        try:
            if hasattr(items, "close"):
                items.close()
        finally:
            service.finalize_iteration()


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
