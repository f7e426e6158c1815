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
from .room import Room
from .told import raise_from_worker
from .transport.messages import Done, Exhausted, Failed
from .work import Place, Replicated


class Share:
    """What one worker runs, and what of it has arrived."""

    def __init__(self, worker: Worker) -> None:
        self.number = worker.number
        self.worker = worker
        self.delivered = 0
        """Items of it that were handed over."""
        self.answers: deque[tuple[Any, Any]] = deque()
        """Answers that wait for their turn, and the batches in them."""
        self._arrived = 0
        self._again = 0
        self._given = 0

    def waits_for(self) -> int:
        """Return the items that are on their way or wait for their turn."""
        # What is made again is dropped as it arrives, and waits for nobody.
        return len(self.worker.jobs) + (0 if self._again else len(self.answers))

    def next(self) -> int:
        """Return the number of the item to ask for."""
        self._given += 1
        return self._given - 1

    def take(self, answer: Any, room: Room) -> None:
        """Put down an answer, unless it arrived before the worker was replaced."""
        # Also of one that is dropped: so its slots are free again.
        batch, size = self.worker.open(answer.data) if isinstance(answer, Done) else (None, 0)
        if self._again:
            self._again -= 1
            return
        room.arrived((self.number, self._arrived), size)
        self._arrived += 1
        self.answers.append((answer, batch))

    def begin_again(self, worker: Worker) -> None:
        """Go on with another worker, which makes all items again."""
        self.worker, self._again, self._given = worker, self._arrived, 0


class ReplicatedEpoch(PooledEpoch):
    """Takes one item of each worker in turn, or whichever is ready, until all are exhausted.

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
        waiting: int = 0,
        in_order: bool = True,
        restarts: Restarts,
        room: Room,
    ) -> None:
        super().__init__(pool, end, work, restarts, room)
        self._run = (seed, epoch)
        self._place = place
        # What may wait here is divided among the shares, and made ahead by their workers.
        self._limit = limit + -(-waiting // len(pool.workers))
        self._in_order = in_order
        self._turn = [Share(worker) for worker in pool.workers]
        self._shares = len(self._turn)

    def _take(self) -> Any:
        while True:
            index, batch = self._next()
            self.last = index
            if not self._place.holds(index):
                return batch

    def _next(self) -> tuple[int, Any]:
        """Return the next item and its number: the how many-th it is, or its place in all shares.

        In order the items are counted. As they are ready, the *k*-th of share *s* of *n* has
        number ``k * n + s``: that is known whatever the others have made so far.
        """
        self._begin_wait()
        while self._turn:
            self._hand_out()
            share = self._ready()
            if share is None:
                self._receive()
                continue
            answer, batch = share.answers.popleft()
            self._room.taken((share.number, share.delivered))
            if isinstance(answer, Failed):
                raise_from_worker(answer)
            self._turn.remove(share)
            if isinstance(answer, Exhausted):
                continue
            self._turn.append(share)
            number = share.delivered * self._shares + share.number
            share.delivered += 1
            self._hand_out()
            return (self.last + 1 if self._in_order else number), batch
        while self._pool.in_flight():
            # Those that were asked ahead, and have nothing more either.
            self._receive()
        raise StopIteration

    def _ready(self) -> Share | None:
        """Return the share whose item is handed over; None as long as that is not there."""
        candidates = self._turn[:1] if self._in_order else self._turn
        return next((share for share in candidates if share.answers), None)

    def _receive(self) -> None:
        """Wait, and put down what arrives in the shares that it belongs to."""
        for worker, answer in self._answers():
            share = next((s for s in self._turn if s.worker is worker), None)
            if isinstance(answer, WorkerDied):
                # One whose share is used up is not missed.
                worker.jobs.clear() if share is None else self._replace(share, answer)
                continue
            self._tell(answer)
            if share is not None:
                share.take(answer, self._room)

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
            while share.waits_for() < self._limit and self._may_ask(share):
                self._pool.give(share.worker, share.next(), *self._run)

    def _may_ask(self, share: Share) -> bool:
        """Whether there is room for an item; the one whose turn it is finds it in any case."""
        if not share.waits_for() and (not self._in_order or share is self._turn[0]):
            return True
        return self._room.has_room(self._pool.in_flight())

    def close(self) -> None:
        """End the pass; replicas keep their place in it, so they stay only if they are done."""
        if self._turn:
            self._pool.broken = True
        self._turn.clear()
        super().close()
