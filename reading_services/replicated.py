"""One pass in which each worker runs the whole graph on its share, taken in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ..core.errors import WorkerDied
from .planned import PooledEpoch
from .pool import WorkerPool
from .process import Worker
from .restarts import Restarts
from .told import raise_from_worker
from .transport.messages import Done, Exhausted, Failed
from .work import Place, Replicated


class Share:
    """What one worker runs, and what of it has arrived."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.answers: deque[tuple[Any, Any]] = deque()
        """Answers that wait for their turn, and the batches in them."""
        self._arrived = 0
        self._again = 0

    def waits_for(self) -> int:
        """Return the items that are on their way or wait for their turn."""
        # What is made again is dropped as it arrives, and waits for nobody.
        return len(self.worker.jobs) + (0 if self._again else len(self.answers))

    def take(self, answer: Any) -> None:
        """Put down an answer, unless it arrived before the worker was replaced."""
        # Also of one that is dropped: so its slots are free again.
        batch = self.worker.open(answer.data) if isinstance(answer, Done) else None
        if self._again:
            self._again -= 1
            return
        self._arrived += 1
        self.answers.append((answer, batch))

    def begin_again(self, worker: Worker) -> None:
        """Go on with another worker, which makes all items again."""
        self.worker, self._again = worker, self._arrived


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
        restarts: Restarts,
    ) -> None:
        super().__init__(pool, end, work, restarts)
        self._run = (seed, epoch)
        self._place = place
        self._limit = limit
        self._turn = [Share(worker) for worker in pool.workers]

    def _take(self) -> Any:
        while True:
            batch = self._next_in_turn()
            self.last += 1
            if not self._place.holds(self.last):
                return batch

    def _next_in_turn(self) -> Any:
        self._begin_wait()
        while self._turn:
            share = self._turn[0]
            self._hand_out()
            while not share.answers:
                self._receive()
                self._hand_out()
            answer, batch = share.answers.popleft()
            if isinstance(answer, Failed):
                raise_from_worker(answer)
            if isinstance(answer, Exhausted):
                self._turn.remove(share)
                continue
            self._turn.append(self._turn.pop(0))
            self._hand_out()
            return batch
        raise StopIteration

    def _receive(self) -> None:
        """Wait, and put down what arrives in the shares that it belongs to."""
        for worker, answer in self._answers():
            share = next((s for s in self._turn if s.worker is worker), None)
            if isinstance(answer, WorkerDied):
                # One whose share is used up is not missed.
                if share is not None:
                    self._replace(share, answer)
                continue
            self._tell(answer)
            if share is not None:
                share.take(answer)

    def _replace(self, share: Share, death: WorkerDied) -> None:
        """Let another worker run the share from its beginning; what arrived before is dropped."""
        fresh = self._stand_in(share.worker, death)
        if fresh is not None:
            share.begin_again(fresh)
            return
        try:
            raise death
        finally:
            del (
                death
            )  # held by this frame, which its traceback holds, it would keep all frames alive

    def _hand_out(self) -> None:
        for share in self._turn:
            if share.worker.is_gone:
                self._replace(share, share.worker.death(self._limits.stop))
            while share.waits_for() < self._limit:
                self._pool.give(share.worker, share.worker.given, *self._run)

    def close(self) -> None:
        """End the pass; replicas keep their place in it, so their workers never stay."""
        self._pool.broken = True
        super().close()
