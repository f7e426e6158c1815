"""Reading services in torchdata's form: what to subclass to prepare a graph in your own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ..graph import Pipe
from .seeds.seed_generator import SeedGenerator


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
        self,
        seed_generator: SeedGenerator,
        iter_reset_fn: Callable[[Any], Any] | None = None,
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
