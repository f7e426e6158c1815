"""One pass in which each worker runs the whole graph on its share, taken in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .planned import PooledEpoch
from .pool import WorkerPool, raise_from_worker
from .transport.messages import Exhausted, Failed
from .work import Place, Replicated


class ReplicatedEpoch(PooledEpoch):
    """Takes one item of each worker in turn until all are exhausted.

    There is no plan to skip in: after a resume, batches that were delivered are made again
    and dropped.
    """

    def __init__(
        self,
        pool: WorkerPool,
        end: Callable[[], None],
        work: Replicated,
        seed: int,
        epoch: int,
        place: Place,
        *,
        limit: int,
    ) -> None:
        super().__init__(pool, end, work)
        self._run = (seed, epoch)
        self._place = place
        self._limit = limit
        self._turn = list(pool.workers)

    def _take(self) -> Any:
        while True:
            batch = self._next_in_turn()
            self.last += 1
            if not self._place.holds(self.last):
                return batch

    def _next_in_turn(self) -> Any:
        self._begin_wait()
        self._hand_out()
        while self._turn:
            worker = self._turn.pop(0)
            while not worker.answers:
                for source, answer in self._answers():
                    source.answers.append(answer)
            answer = worker.answers.popleft()
            self._tell(answer)
            if isinstance(answer, Failed):
                raise_from_worker(answer)
            if isinstance(answer, Exhausted):
                continue
            self._turn.append(worker)
            self._hand_out()
            return worker.open(answer.data)
        raise StopIteration

    def _hand_out(self) -> None:
        for worker in self._turn:
            while len(worker.jobs) + len(worker.answers) < self._limit:
                self._pool.give(worker, worker.given, *self._run)

    def close(self) -> None:
        """End the pass; replicas keep their place in it, so their workers never stay."""
        self._pool.broken = True
        super().close()
