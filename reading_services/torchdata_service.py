"""Run a reading service that was written in torchdata's form."""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..adapters import Limits, note_of
from ..core import Stream
from ..core.errors import add_location
from ..datapipes.epoch import set_epoch
from ..graph import Pipe, clone, error_location, is_pipe
from .delivered_batches import DeliveredBatches
from .pipe_runner import as_raised
from .reading_service import Epoch, begin, end
from .replica import SeedGenerator
from .timeout_iterator import TimeoutIterator
from .work import ReplicatedWork, Work


class ReadingServiceInterface(ABC):
    """Prepares a graph before it is iterated, in the consumer's process.

    ``initialize`` runs once in the life of a loader, ``initialize_iteration`` before and
    ``finalize_iteration`` after each epoch, however it ended, ``finalize`` at the end. What
    ``initialize`` returns is what is iterated.

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
        """Return what is iterated: a pipe, or anything else that can be."""

    def finalize(self) -> None:  # noqa: B027  a service need not hold anything
        """Free what outlives an epoch; called at least once."""

    def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: Callable[[Any], Any] | None = None
    ) -> Callable[[Any], Any] | None:
        """Prepare an epoch; what is returned, if anything, is applied to what is iterated."""
        return None

    def finalize_iteration(self) -> None:  # noqa: B027  as above
        """Clean up after an epoch that finished, failed or was left."""

    def __del__(self) -> None:
        self.finalize()


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A service that has a state of its own, which travels in that of the loader."""

    @abstractmethod
    def checkpoint(self) -> bytes:
        """Return what :meth:`restore` needs."""

    @abstractmethod
    def restore(self, datapipe: Pipe, serialized_state: bytes) -> Any:
        """Return what is iterated, as it was; called in the place of :meth:`initialize`."""


class TorchdataService:
    """Does with a graph what a service of the user's says."""

    def __init__(self, service: ReadingServiceInterface) -> None:
        self._service = service
        # What the caller gave, where this is a copy of it: a service finalizes itself when it is
        # collected, and would free what the copy shares with it, e.g. a pool made in __init__.
        self._original = service
        self._source: Any = None
        self._state: bytes | None = None

    def distribute(self, graph: Pipe) -> Work:
        """Leave the graph whole: what becomes of it is the service's affair."""
        reason = f"{type(self._service).__name__} prepares the graph in its own way"
        return ReplicatedWork(graph, reason, shards=False, limits=note_of(graph, Limits))

    def epoch(self, work: Work, seed: int, epoch: int, cursor: DeliveredBatches) -> Epoch:
        """Start one pass over what the service made of the graph."""
        assert isinstance(work, ReplicatedWork)
        if self._source is None:
            graph, service, state = clone(work.graph), self._service, self._state
            if state is None:
                self._source = service.initialize(graph)
            else:
                assert isinstance(service, CheckpointableReadingServiceInterface)
                self._source = service.restore(graph, state)
        return TorchdataEpoch(self._service, self._source, work, (seed, epoch), cursor)

    def checkpoint(self) -> bytes | None:
        """Return the state of the service; None if it has none."""
        service = self._service
        if isinstance(service, CheckpointableReadingServiceInterface):
            return service.checkpoint()
        return None

    def restore(self, state: bytes) -> None:
        """Let the next epoch begin from a state of the service."""
        self.refuse_state()
        self.stop()  # what it has made so far is its own to free; the next epoch begins anew
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
        """Return 1: one process runs it."""
        return 1

    def explain(self, work: Work) -> str:
        """Return what runs here."""
        return work.explain(workers=0)

    def stop(self) -> None:
        """Free what the service holds."""
        if self._source is not None:
            self._source = None
            self._service.finalize()

    def __getstate__(self) -> dict[str, Any]:
        own, original = copy.copy(self._service), self._original
        return {"_service": own, "_original": original, "_source": None, "_state": self._state}

    def __repr__(self) -> str:
        return repr(self._service)


@dataclass(eq=False)
class TorchdataEpoch:
    """One pass over what a service made of a graph."""

    _service: ReadingServiceInterface
    _source: Any
    _work: Work
    _run: tuple[int, int]
    _cursor: DeliveredBatches

    def __post_init__(self) -> None:
        self.last, self._is_closed = -1, False
        begin(self)
        seeds = SeedGenerator(Stream(*self._run, (), "reading service").integer())
        if is_pipe(self._source):
            set_epoch(self._source, *self._run)
        prepare = self._service.initialize_iteration(seeds)
        iterable = self._source if prepare is None else prepare(self._source)
        self._items: Iterator[Any] = iter(iterable)
        if self._work.limits.explicit:
            self._items = TimeoutIterator(self._items, self._work.limits)

    def __iter__(self) -> TorchdataEpoch:
        return self

    def __next__(self) -> Any:
        try:
            while not self._is_closed:
                item = next(self._items)
                self.last += 1
                if not self._cursor.holds(self.last):
                    return item
            raise StopIteration
        except BaseException as error:
            self.close()
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                add_location(as_raised(error), error_location(error))
            raise

    def close(self) -> None:
        """End the pass, and tell the service."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with contextlib.suppress(AttributeError):
                self._items.close()  # type: ignore[attr-defined]
        finally:
            end(self)
            self._service.finalize_iteration()
