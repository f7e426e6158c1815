"""Run the graph in the process that asks: no workers, the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..datapipes.epoch import set_epoch
from ..graph import Pipe
from ..volumes import close_volumes
from .realizer import Realizer
from .watched import Watched
from .work import Planned, Work, jobs, work_of


class InProcessReadingService:
    """Plan and realize in the calling process.

    With ``Timeout`` among the adapters the work runs in a thread, so that the caller can
    be told what it is stuck in; a thread cannot be stopped, so only workers end a hang.
    """

    def distribute(self, graph: Pipe) -> Work:
        """Split the graph as for workers, so that the batches are the same."""
        return work_of(graph)

    def epoch(self, work: Work, seed: int, epoch: int, first: int = 0) -> InProcessEpoch:
        """Start one pass from batch ``first`` on."""
        return InProcessEpoch(work, seed, epoch, first)

    def explain(self, work: Work) -> str:
        """Return which pipes plan and which realize."""
        return work.explain(workers=0)

    def stop(self) -> None:
        """Do nothing: an epoch leaves nothing behind."""

    def __repr__(self) -> str:
        return "InProcessReadingService()"


class InProcessEpoch:
    """One pass in this process."""

    def __init__(self, work: Work, seed: int, epoch: int, first: int) -> None:
        self._batches: Iterator[Any] = _batches(work, seed, epoch, first)
        if work.limits.enforced:
            self._batches = Watched(self._batches, work.limits)

    def __iter__(self) -> InProcessEpoch:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the handles of the volumes that were read."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        close_volumes()


def _batches(work: Work, seed: int, epoch: int, first: int) -> Iterator[Any]:
    if not isinstance(work, Planned):
        set_epoch(work.graph, seed, epoch)
        for index, batch in enumerate(work.graph):
            if index >= first:
                yield batch
        return
    set_epoch(work.cut.planner, seed, epoch)
    realizer = Realizer(work.cut)
    for job in jobs(work.cut, first):
        yield realizer.run(job, seed, epoch) if work.cut.realizing else job.items[0]
