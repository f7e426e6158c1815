"""One pass in which each worker runs the whole graph on its share, taken in turn."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from typing import Any

from ..core.call_site import shorten
from ..core.errors import NotPicklable, WorkerDied
from .memory_budget import PrefetchBudget
from .planned_epoch import PooledEpoch, add_to_death, error_of
from .timeout_iterator import TimeoutIterator
from .transport.messages import BatchMessage, Deal, ErrorMessage, SourceFailed, Took
from .work import ReplicatedWork
from .workers.worker_process import Worker

# The pipes up to a dealing point run once, in the consumer's process. Their items are dealt out to
# the workers in turn.
#
# Item *i* goes to worker ``i % workers``. Each worker has limited items and bytes ahead. It reports
# when it takes an item, and gets the next one. If one worker is faster than another, the items of
# the slower one wait here, up to a number and a size.

# A worker has one item in work and one waiting. If it runs out of items, because it gathers some,
# its limit doubles. The consumer waits while items are made, so only needed items are made.
_FIRST_AHEAD, MOST_AHEAD = 2, 16
# The limit of torchdata's round_robin_demux.
MOST_WAITING = 1000
_END, _FAILURE = Deal(ends=True), Deal(fails=True)


class Dispatcher:
    """Deals items to workers in turn."""

    def __init__(self, items: Iterator[Any], workers: int, most_bytes: int) -> None:
        self.error: Exception | None = None  # error of the pipes that make the items
        self.counts = [0] * workers  # items that each worker has begun with
        self._items = items
        self._most = most_bytes
        self._last: Deal | None = None
        self._next = 0
        self._waiting: list[deque[Deal]] = [deque() for _ in range(workers)]
        self._lying: list[deque[int]] = [deque() for _ in range(workers)]
        self._ahead = [_FIRST_AHEAD] * workers
        self._at_end = [False] * workers

    def for_worker(self, worker: int, *, is_needed: bool = True) -> Iterator[Deal]:
        """Yield the items that may be sent to a worker now."""
        lying, waiting = self._lying[worker], self._waiting[worker]
        while not self._at_end[worker] and len(lying) < self._ahead[worker]:
            while not waiting and self._last is None:
                if not is_needed and max(map(len, self._waiting)) >= MOST_AHEAD:
                    return
                self._advance(worker)
            deal = waiting[0] if waiting else self._last
            assert deal is not None
            if lying and sum(lying) + len(deal.item) > self._most // len(self._lying):
                return
            if waiting:
                waiting.popleft()
            else:
                self._at_end[worker] = True
            lying.append(len(deal.item))
            yield deal

    def took(self, worker: int) -> None:
        """Note that a worker has begun with its first waiting item."""
        self._lying[worker].popleft()
        self.counts[worker] += 1
        if not self._lying[worker]:
            # The worker needs several items for one output, and would wait for each.
            self._ahead[worker] = min(2 * self._ahead[worker], MOST_AHEAD)

    def place(self, worker: int) -> int:
        """Return the number of a worker's current item, which orders its output."""
        return (self.counts[worker] - 1) * len(self.counts) + worker

    def _advance(self, worker: int) -> None:
        try:
            item = next(self._items)
            try:
                data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
            except Exception as error:  # the __reduce__ of a user's object may raise any error
                msg = f"{shorten(item)} cannot travel to a worker: {error}"
                do = "Yield plain data before sharding_round_robin_dispatch(), or ⟦num_workers=0⟧."
                raise NotPicklable(msg, do=do) from error
        except StopIteration:
            self._last = _END
            return
        except Exception as error:  # an error of the pipes, raised in its turn
            self.error, self._last = error, _FAILURE
            return
        self._waiting[self._next].append(Deal(data))
        self._next = (self._next + 1) % len(self._waiting)
        longest = max(self._waiting, key=len)
        size = sum(len(deal.item) for deal in longest)
        if len(longest) > MOST_WAITING or (len(longest) > MOST_AHEAD and size > self._most):
            raise BufferError(
                f"{len(longest)} dealt items ({size} bytes) wait for worker "
                f"{self._waiting.index(longest)}, and worker {worker} needs more: the pipes after "
                "sharding_round_robin_dispatch() take more items in one worker than in another. "
                "Put pipes that skip items before it, or raise "
                "MultiProcessingReadingService(prefetch_bytes=...)."
            )

    def close(self) -> bool:
        """Close the source of the items; return whether no worker has items left."""
        if hasattr(self._items, "close"):
            self._items.close()
        for waiting in self._waiting:
            waiting.clear()
        return all(self._at_end) and not any(self._lying)


class WorkerShare:
    """The share of one worker, with the answers that have arrived."""

    def __init__(self, worker: Worker) -> None:
        self.number = worker.number
        self.worker = worker
        self.count = 0  # items that were delivered
        self.answers: deque[tuple[Any, Any]] = deque()
        """Answers that wait for their turn, and their batches."""
        self.places: deque[int] = deque()
        """Number of the dealt item of each answer, if it decides the order."""
        self._arrivals = 0
        self._again = 0
        self.requests = 0  # items that were requested

    def waits_for(self) -> int:
        """Return the number of items that are in flight or wait for their turn."""
        # Items that are made again are dropped on arrival.
        return len(self.worker.jobs) + (0 if self._again else len(self.answers))

    def take(self, answer: Any, room: PrefetchBudget) -> None:
        """Store an answer, unless it had arrived before the worker was replaced."""
        # Open dropped batches too, which frees their slots.
        data = answer.data if isinstance(answer, BatchMessage) else None
        batch, size = (None, 0) if data is None else self.worker.open(data)
        if self._again:
            self._again -= 1
            return
        room.add((self.number, self._arrivals), size)
        self._arrivals += 1
        self.answers.append((answer, batch))

    def begin_again(self, worker: Worker) -> None:
        """Continue with another worker, which makes all items again."""
        self.worker, self._again, self.requests = worker, self._arrivals, 0


class ReplicatedEpoch(PooledEpoch):
    """Yields one item of each worker in turn, or as they are ready, or in the order of dealt items.

    Without a plan, items cannot be skipped: after a resume, delivered items are made and dropped.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        work: ReplicatedWork = self._work
        flow, workers = self._flow, self._pool.workers
        self._dealer: Dispatcher | None = None
        if work.point is not None:
            items: Iterator[Any] = work.items_to_deal(*self._run)
            if work.limits.explicit:
                items = TimeoutIterator(items, work.limits)
            self._dealer = Dispatcher(items, len(workers), flow.most_bytes)
        self._by_place = flow.in_order and work.keeps_order
        # The waiting batches are divided among the shares, whose workers prefetch them.
        self._limit = flow.per_worker + -(-flow.waiting // len(workers))
        self._turn = [WorkerShare(worker) for worker in workers]
        self._shares = len(self._turn)

    def _take(self) -> Any:
        while True:
            index, batch = self._next()
            self.last = index
            if not self._cursor.holds(index):
                return batch

    def _next(self) -> tuple[int, Any]:
        """Return the next item and its number.

        In order it is a count; else item *k* of share *s* of *n* has number ``k * n + s``.
        """
        self._begin_wait()
        while self._turn:
            self._hand_out()
            candidates = [self._first()] if self._flow.in_order else self._turn
            share = next((share for share in candidates if share.answers), None)
            if share is None:
                self._receive()
                continue
            answer, batch = share.answers.popleft()
            if share.places:
                share.places.popleft()
            self._room.remove((share.number, share.count))
            if isinstance(answer, ErrorMessage):
                error, dealer = error_of(answer), self._dealer
                if isinstance(error, SourceFailed) and dealer is not None and dealer.error:
                    error, dealer.error = dealer.error, None  # once: that of the pipes before
                raise error
            self._turn.remove(share)
            if answer.data is None:
                continue
            self._turn.append(share)
            number = share.count * self._shares + share.number
            share.count += 1
            self._hand_out()
            return (self.last + 1 if self._flow.in_order else number), batch
        while self._pool.in_flight():
            # Answers of finished shares to requests that were sent ahead.
            self._receive()
        raise StopIteration

    def _first(self) -> WorkerShare:
        """Return the share of the next item: the share with the earliest dealt item."""
        dealer = self._dealer
        if dealer is None or not self._by_place:
            return self._turn[0]
        return min(self._turn, key=lambda s: s.places[0] if s.places else dealer.place(s.number))

    def _receive(self) -> None:
        """Wait for answers, and store them in their shares."""
        for worker, answer in self._answers():
            share = next((s for s in self._turn if s.worker is worker), None)
            if isinstance(answer, Took):
                # The next item is sent with the jobs: a worker that skips all items would
                # otherwise get items forever, without a delivery.
                assert self._dealer is not None
                self._dealer.took(worker.number)
                continue
            if isinstance(answer, WorkerDied):
                # A worker with a finished share is not replaced.
                worker.jobs.clear() if share is None else self._replace(share, answer)
                continue
            self._tell(worker, answer)
            if share is not None:
                share.take(answer, self._room)
                if self._by_place and self._dealer is not None:
                    # The worker reported every item that it took before it sent this answer.
                    share.places.append(self._dealer.place(share.number))

    def _replace(self, share: WorkerShare, death: WorkerDied) -> None:
        """Replace the worker; the new one runs the share again, and repeated items are dropped."""
        fresh = None
        if self._dealer is None:
            fresh = self._stand_in(share.worker, death)
        else:
            self._pool.is_broken = True
            add_to_death(death, "the items that were dealt out to it are not made twice")
        if fresh is not None:
            share.begin_again(fresh)
            return
        raise death

    def _hand_out(self) -> None:
        for share in self._turn:
            if share.worker.is_gone:
                self._replace(share, share.worker.death(self._limits.stop))
            while (waits := share.waits_for()) < self._limit:
                # The share whose turn it is gets a request in any case.
                finds_room = not waits and self._is_needed(share)
                if not finds_room and not self._room.has_room(self._pool.in_flight()):
                    break
                self._pool.give(share.worker, share.requests, *self._run)
                share.requests += 1
            if self._dealer is not None:
                is_needed = self._is_needed(share)
                for deal in self._dealer.for_worker(share.number, is_needed=is_needed):
                    self._pool.send(share.worker, deal)

    def _is_needed(self, share: WorkerShare) -> bool:
        return not self._flow.in_order or share is self._first()

    def close(self) -> None:
        """End the pass; workers stay only if all shares are finished."""
        if self._turn:
            self._pool.is_broken = True
        self._turn.clear()
        if self._dealer is not None:
            # A worker would mix items that it still has with those of the next epoch.
            self._pool.is_broken |= not self._dealer.close()
        super().close()
