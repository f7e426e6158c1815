"""Run the realizing part in worker processes; the batches are those of one process.

One process plans and asks; workers make whole batches. The consumer waits for every
worker's channel and for every worker's death at once, so an idle loader costs nothing
and a dead worker is known immediately. Batches come back in plan order through a
buffer that is bounded by the number of jobs in flight.
"""

from __future__ import annotations

import multiprocessing as mp
import warnings
from collections.abc import Iterator
from typing import Any

from ..core.ledger import LEDGER
from ..datapipes.epoch import set_epoch
from ..graph import Pipe
from ..volumes import close_volumes
from .in_process import InProcessEpoch
from .payload import payload_of
from .pool import Worker, WorkerPool, raise_from_worker
from .transport.messages import Done, Exhausted, Failed
from .work import Job, Planned, Replicated, Work, jobs, work_of

START_METHODS = ("forkserver", "fork", "spawn")
ORDERS = ("plan", "as_ready")
# One batch is being made while the next waits at the worker: enough to keep a worker
# busy whenever the consumer comes back within the time of one batch.
JOBS_PER_WORKER = 2


class MultiProcessingReadingService:
    """Realize batches in ``num_workers`` processes.

    Parameters
    ----------
    num_workers
        Worker processes; 0 runs everything in this process. The batches are the same.
    multiprocessing_context
        ``"forkserver"`` (default: safe with threads and open stores, fast after the first
        start), ``"fork"`` or ``"spawn"``.
    worker_prefetch_cnt
        Batches in flight per worker, the one being made included. With the batches that
        the consumer holds they bound the memory.
    order
        ``"plan"``: the order of the plan, whatever the workers' speed. ``"as_ready"``: the
        first that is done; the same batches in an order that depends on timing.
    persistent_workers
        Keep the workers from epoch to epoch, until ``stop()``. By default they end with
        the epoch and take all that they opened with them.
    """

    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: str | None = None,
        worker_prefetch_cnt: int = JOBS_PER_WORKER,
        *,
        order: str = "plan",
        persistent_workers: bool = False,
    ) -> None:
        self.num_workers = num_workers
        self.start_method = multiprocessing_context or "forkserver"
        self.worker_prefetch_cnt = worker_prefetch_cnt
        self.order = order
        self.persistent_workers = persistent_workers
        self._pool: WorkerPool | None = None
        self._check()

    def _check(self) -> None:
        if self.num_workers < 0:
            msg = f"num_workers is 0 or more, got {self.num_workers}"
            raise ValueError(msg)
        if self.start_method not in START_METHODS:
            msg = f"multiprocessing_context is one of {START_METHODS}, got {self.start_method!r}"
            raise ValueError(msg)
        if self.worker_prefetch_cnt < 1:
            msg = f"worker_prefetch_cnt is at least 1, got {self.worker_prefetch_cnt}"
            raise ValueError(msg)
        if self.order not in ORDERS:
            msg = f"order is one of {ORDERS}, got {self.order!r}"
            raise ValueError(msg)

    def distribute(self, graph: Pipe) -> Work:
        """Split the graph; refuse what cannot travel to a worker.

        Raises
        ------
        NotPicklable
            With the pipe, as the user wrote it, that holds what cannot be pickled.
        """
        work = work_of(graph)
        if self.num_workers:
            payload_of(work, 0, self.num_workers)
        return work

    def epoch(self, work: Work, seed: int, epoch: int, first: int = 0) -> Any:
        """Start one pass from batch ``first`` on."""
        if not self.num_workers or (isinstance(work, Planned) and not work.cut.realizing):
            return InProcessEpoch(work, seed, epoch, first)
        pool = self._pool_for(work)
        if isinstance(work, Planned):
            return PlannedEpoch(self, pool, work, seed, epoch, first)
        return ReplicatedEpoch(self, pool, work, seed, epoch, first)

    def _pool_for(self, work: Work) -> WorkerPool:
        if self._pool is not None and (self._pool.broken or isinstance(work, Replicated)):
            self.stop()
        if self._pool is None:
            count = self.num_workers
            if isinstance(work, Replicated) and not work.shards:
                count = 1
            payloads = [payload_of(work, n, count) for n in range(count)]
            self._pool = WorkerPool(payloads, mp.get_context(self.start_method), work.limits)
        return self._pool

    def end_epoch(self) -> None:
        """Stop the workers unless they are to stay."""
        if not self.persistent_workers or (self._pool is not None and self._pool.broken):
            self.stop()

    def explain(self, work: Work) -> str:
        """Return which pipes plan here and which realize in the workers."""
        return work.explain(self.num_workers)

    def stop(self) -> None:
        """Stop the workers."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}

    def __repr__(self) -> str:
        return f"MultiProcessingReadingService(num_workers={self.num_workers})"


class PlannedEpoch:
    """One pass in which workers make whole batches."""

    def __init__(
        self,
        service: MultiProcessingReadingService,
        pool: WorkerPool,
        work: Planned,
        seed: int,
        epoch: int,
        first: int,
    ) -> None:
        set_epoch(work.cut.planner, seed, epoch)
        self._service, self._pool, self._work = service, pool, work
        self._run = (seed, epoch)
        self._jobs: Iterator[Job] | None = jobs(work.cut, first)
        self._next = first
        self._ready: dict[int, Any] = {}
        self._wait = work.limits.item + work.limits.start
        self._said: set[str] = set()
        self._closed = False

    def __iter__(self) -> PlannedEpoch:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        try:
            batch = self._take()
        except BaseException:
            self.close()
            raise
        self._wait = self._work.limits.item
        return batch

    def _take(self) -> Any:
        deadline = self._pool.deadline(self._wait)
        while True:
            self._hand_out()
            index = self._deliverable()
            if index is not None:
                self._next += 1
                answer = self._ready.pop(index)
                if isinstance(answer, Failed):
                    raise_from_worker(answer)
                return answer
            if self._jobs is None and not self._pool.in_flight():
                raise StopIteration
            for worker, answer in self._pool.answers(deadline, self._wait):
                self._store(worker, answer)

    def _deliverable(self) -> int | None:
        if self._service.order == "as_ready":
            return min(self._ready, default=None)
        return self._next if self._next in self._ready else None

    def _hand_out(self) -> None:
        """Give every worker jobs up to its share; undelivered batches count too."""
        limit = self._service.worker_prefetch_cnt
        bound = limit * len(self._pool.workers)
        while self._jobs is not None and self._pool.in_flight() + len(self._ready) < bound:
            worker = self._pool.idlest()
            if len(worker.jobs) >= limit:
                return
            job = next(self._jobs, None)
            if job is None:
                self._jobs = None
                return
            self._pool.give(worker, job, *self._run)

    def _store(self, worker: Worker, answer: Any) -> None:
        if isinstance(answer, Done):
            self._tell(answer)
            self._ready[answer.index] = worker.open(answer.data)
        else:
            self._ready[answer.index] = answer

    def _tell(self, answer: Done | Exhausted) -> None:
        """Enter what the worker counted, and repeat its warnings once."""
        LEDGER.merge(answer.report.ledger)
        for text, category in answer.report.warnings:
            if text not in self._said:
                self._said.add(text)
                warnings.warn(text, category, stacklevel=2)

    def close(self) -> None:
        """End the pass: stop the workers, or wait until those that stay are idle."""
        if self._closed:
            return
        self._closed = True
        self._jobs = None
        self._ready.clear()
        if self._pool.in_flight():
            # Persistent workers still busy with this epoch would answer into the next.
            self._pool.broken = True
        self._service.end_epoch()
        close_volumes()


class ReplicatedEpoch(PlannedEpoch):
    """One pass in which each worker runs the whole graph on its share, taken in turn."""

    def __init__(
        self,
        service: MultiProcessingReadingService,
        pool: WorkerPool,
        work: Replicated,
        seed: int,
        epoch: int,
        first: int,
    ) -> None:
        self._service, self._pool, self._work = service, pool, work  # type: ignore[assignment]
        self._run = (seed, epoch)
        self._wait = work.limits.item + work.limits.start
        self._said = set()
        self._closed = False
        self._ready = {}
        self._jobs = None
        self._turn = list(pool.workers)
        self._skip = first

    def __next__(self) -> Any:
        # Skipped batches are made and dropped: this scheme has no plan to skip in.
        while self._skip:
            self._skip -= 1
            super().__next__()
        return super().__next__()

    def _take(self) -> Any:
        deadline = self._pool.deadline(self._wait)
        self._hand_out()
        while self._turn:
            worker = self._turn[0]
            while not worker.answers:
                for source, answer in self._pool.answers(deadline, self._wait):
                    source.answers.append(answer)
            answer = worker.answers.popleft()
            self._turn.pop(0)
            if isinstance(answer, Failed):
                raise_from_worker(answer)
            self._tell(answer)
            if isinstance(answer, Exhausted):
                continue
            self._turn.append(worker)
            self._hand_out()
            return worker.open(answer.data)
        raise StopIteration

    def _hand_out(self) -> None:
        for worker in self._turn:
            while len(worker.jobs) + len(worker.answers) < self._service.worker_prefetch_cnt:
                self._pool.give(worker, worker.given, *self._run)

    def close(self) -> None:
        """End the pass; replicas keep their place in it, so their workers never stay."""
        self._pool.broken = True
        super().close()
