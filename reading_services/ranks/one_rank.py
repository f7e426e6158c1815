"""One rank's part of an epoch without the others: for measuring, which nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...graph import Pipe
from ..place import Place
from ..reading_service import Epoch, ReadingService
from ..work import Work

if TYPE_CHECKING:
    from ..distributed import DistributedReadingService


class OneRank:
    """Makes what this rank makes of every batch, and agrees with nobody about it.

    Parameters
    ----------
    ranks
        Says which part that is.
    inner
        Runs it.
    """

    def __init__(self, ranks: DistributedReadingService, inner: ReadingService) -> None:
        self._ranks = ranks
        self._inner: Any = inner

    @property
    def persistent_workers(self) -> bool | None:
        """Whether workers stay from epoch to epoch; None where that is left to what they read."""
        stay: bool | None = getattr(self._inner, "persistent_workers", False)
        return stay

    @persistent_workers.setter
    def persistent_workers(self, stay: bool | None) -> None:
        if hasattr(self._inner, "persistent_workers"):
            self._inner.persistent_workers = stay

    @property
    def num_workers(self) -> int:
        """Workers of this rank."""
        return int(getattr(self._inner, "num_workers", 0))

    @property
    def threads_per_worker(self) -> int | None:
        """Patches that each of them realizes at once."""
        own: int | None = getattr(self._inner, "threads_per_worker", 1)
        return own

    def distribute(self, graph: Pipe) -> Work:
        """Split the graph, and take this rank's part."""
        return self._ranks.divided(self._inner.distribute(graph))

    def epoch(self, work: Work, seed: int, epoch: int, place: Place) -> Epoch:
        """Start one pass over this rank's part."""
        running: Epoch = self._inner.epoch(work, seed, epoch, place)
        return running

    def shares(self, work: Work) -> int:
        """Return among how many processes of this rank a graph is divided."""
        return int(self._inner.shares(work))

    def explain(self, work: Work) -> str:
        """Return where what runs."""
        return str(self._inner.explain(work))

    def stop(self) -> None:
        """Stop the workers."""
        self._inner.stop()
