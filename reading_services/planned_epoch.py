"""One pass in which workers make whole batches, from jobs that this process plans."""

from __future__ import annotations

import math
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ..batching.channel_orders import ChannelOrders
from ..batching.job import Job
from ..core.call_site import CallSite, warn
from ..core.context import holding
from ..core.counters import PIPE_STATS
from ..core.errors import NotPicklable, VolumeChanged, WorkerDied, WorkerReplaced
from ..datapipes.datapipe import MAY_OPEN
from .memory_budget import PrefetchBudget
from .planner import DeliveredBatches, JobsInFlight, jobs
from .reading_service import begin, end, leaving_error
from .timeout_iterator import TimeoutIterator
from .transport.messages import BatchMessage, ErrorMessage, RepeatedAnswer
from .work import PlannedWork, batch_count
from .workers.pool import Pool, has_room
from .workers.worker_process import Worker


class WorkerTraceback(Exception):
    """The traceback of a worker, shown as the cause of the error that it raised."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def error_of(answer: ErrorMessage) -> Exception:
    """Return a worker's error itself, with the worker's traceback as its cause."""
    error = pickle.loads(answer.error) if answer.error else None
    if not isinstance(error, Exception):
        # It cannot be pickled; or it is SystemExit or KeyboardInterrupt, which would silently end
        # the consumer's process.
        error = WorkerDied(
            f"a worker raised {answer.what}",
            do="The worker's traceback is the cause of this error (__cause__).",
        )
    # That of tblib, which dask installs, holds the frames of this process.
    error.__traceback__, error.__context__ = None, None
    error.__cause__ = WorkerTraceback(answer.text)
    return error


# Seconds within which workers of one node are lost together.
_ONE_LOSS = 10.0
# Lack of memory or a faulty library may kill several workers. The limit ends a loop in which one
# batch kills every worker that makes it.
USUAL_RESTARTS = 3


@dataclass(frozen=True)
class Flow:
    """Limits of the batches in flight and of the restarts of an epoch."""

    per_worker: int  # jobs that each worker may have
    waiting: int  # batches that may wait here in addition
    in_order: bool  # whether batches come in the order of the plan
    most_bytes: int  # bytes of prefetched batches
    unknown: int
    """Batches of any size that may be in flight before the first has arrived."""
    restarts: int = USUAL_RESTARTS  # workers that may be replaced


def add_to_death(death: WorkerDied, text: str) -> None:
    """Append ``text`` to the message of ``death``."""
    death.message += f"; {text}"
    death.args = (death.message,)


@dataclass(eq=False)
class PooledEpoch(Iterator[Any]):
    """Base of passes over a pool of workers: receive, report, replace workers, and end."""

    _pool: Pool
    _end: Callable[[], None]
    _work: Any
    _run: tuple[int, int]
    _flow: Flow
    _cursor: DeliveredBatches

    def __post_init__(self) -> None:
        self.last = -1
        self._pool.begin_pass()
        self._deaths: Counter[str] = Counter()
        self._losses: dict[str, float] = {}  # times of the last death on each node
        self._room = PrefetchBudget(self._flow.most_bytes, self._flow.unknown)
        self._limits = self._work.limits
        self._warnings: set[str] = set()
        self._versions: dict[int, Hashable] = {}
        self._orders: dict[CallSite | None, ChannelOrders] = {}
        self._is_closed = self._has_left = False
        begin(self)

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            return self._take()
        except BaseException:
            if not self._has_left:  # or else the thread that left closes it
                self.close()
            raise

    def _begin_wait(self) -> None:
        """Start the timeout of one batch, which includes the start of workers."""
        self._was_up = self._pool.is_up()
        self._wait = self._limits.item + (0.0 if self._was_up else self._limits.start)
        self._deadline = time.monotonic() + self._wait

    def _answers(self) -> Iterator[tuple[Worker, Any]]:
        if not self._was_up and self._pool.is_up():
            self._begin_wait()
        yield from self._pool.answers(self._deadline, self._wait)
        if self._has_left:
            raise leaving_error()

    def _stand_in(self, worker: Worker, death: WorkerDied) -> Worker | None:
        """Replace a dead worker and return the new one; None if the limit is reached."""
        # A worker that ended by itself before it was up is not replaced: the next would end too.
        doing = str(worker.busy_with().work)
        # The workers of a node that is lost count as one.
        now, last = time.monotonic(), self._losses.get(worker.node, -math.inf)
        if worker.node:
            self._losses[worker.node] = now
        self._deaths[doing] += not worker.node or now - last > _ONE_LOSS
        count, most = self._deaths.total(), self._flow.restarts
        if not worker.failed_to_start() and count <= most:
            again = "another one makes it again" if worker.jobs else "another one starts"
            again = f"{again} ({count} of max_restarts={most})"
            warn(f"{death.message}: {again}", WorkerReplaced, death.origin)
            try:
                fresh = self._pool.replace(worker)
            except (OSError, EOFError) as error:  # from the system, or the fork server is gone
                why = f"{type(error).__name__}: {error}"
                add_to_death(death, f"no other could be started in its place: {why}")
                death.do = (
                    "Is there memory for another process, and may there be one more (ulimit -u)?"
                )
                # The frames of the error refer to this death: avoid the cycle.
                death.__cause__ = error.with_traceback(None)
            else:
                # The new worker has to start, and makes unfinished items again.
                self._begin_wait()
                return fresh
        elif count > 1:
            same = self._deaths[doing] - 1
            had = f"{same} of them had the same" if same else "none of them had the same"
            before = f"{count - 1} workers were replaced in this epoch before, {had}"
            add_to_death(death, f"{before} (max_restarts={most})")
        self._pool.is_broken = True
        return None

    def _take(self) -> Any:
        raise NotImplementedError

    def _tell(self, worker: Worker, answer: BatchMessage | ErrorMessage | RepeatedAnswer) -> None:
        PIPE_STATS.merge(answer.report.ledger)
        for volume in answer.report.versions:
            # Copies of a local file on two nodes differ in their times of writing.
            node = "" if "://" in volume.name else worker.node
            key = hash((node, volume.key))
            if self._versions.setdefault(key, volume.version) != volume.version:
                self._pool.is_broken = True
                raise VolumeChanged(
                    f"{volume.name} was written again since it was opened for this epoch: two "
                    "workers have read two versions of it.",
                    do="Leave volumes as they are while an epoch reads them, and begin the epoch "
                    "again.",
                ).at(case=volume.case)
        for new in answer.report.channels:
            self._orders.setdefault(new.origin, ChannelOrders(new.origin)).compare(new)
        for text, category in answer.report.warnings:
            if text not in self._warnings:
                self._warnings.add(text)
                warn(text, category)

    def leave(self) -> None:
        """End the wait for a batch in another thread; :meth:`close` follows."""
        if not (self._is_closed or self._has_left):
            self._has_left = True
            self._pool.wake()

    def close(self) -> None:
        """End the pass."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pool.abandon()
        self._end()
        end(self)


class PlannedEpoch(PooledEpoch):
    """Sends jobs to workers, and yields batches in plan order or as they are ready."""

    def __post_init__(self) -> None:
        super().__post_init__()
        work: PlannedWork = self._work
        plan = jobs(work.cut, *self._run, self._cursor, work.part, work.errors)
        # The planner's pipes run in this process: a time limit for them needs a thread.
        self._watcher = TimeoutIterator(plan, work.limits) if work.limits.explicit else None
        in_order = self._flow.in_order
        self._jobs = JobsInFlight(self._watcher or plan, self._room, in_order=in_order)
        self._count: int | None = None
        # A list, as a variable in a frame of the traceback would form a cycle with the error.
        self._deaths_to_raise: list[WorkerDied] = []
        self._again: deque[Job] = deque()  # jobs of dead workers

    def _take(self) -> Any:
        self._begin_wait()
        self._hand_out()
        self._pool.tell_free_slots()
        while True:
            if (index := self._jobs.first()) is not None:
                return self._deliver(index)
            if self._deaths_to_raise:
                raise self._deaths_to_raise.pop()
            if self._jobs.is_over():
                raise self._jobs.end()
            for worker, answer in self._answers():
                if isinstance(answer, WorkerDied):
                    self._replace(worker, answer)
                elif isinstance(answer, RepeatedAnswer):
                    self._tell(worker, answer)
                else:
                    self._store(worker, answer)
            self._hand_out()

    def _replace(self, worker: Worker, death: WorkerDied) -> None:
        """Replace a dead worker; its jobs go to the workers with the fewest."""
        if self._stand_in(worker, death) is None:
            # Finished batches come first, in their order.
            self._deaths_to_raise.append(death)
        else:
            self._again += worker.jobs

    def _deliver(self, index: int) -> Any:
        answer = self._jobs.take(index)
        if isinstance(answer, ErrorMessage):
            raise error_of(answer)
        self.last = index
        return answer

    def _hand_out(self) -> None:
        pool, limit = self._pool, self._flow.per_worker
        # Workers of a cluster come and go, so that there may be none now.
        while not self._deaths_to_raise and any(has_room(w, limit) for w in pool.workers):
            most = limit * len(pool.workers) + self._flow.waiting + pool.more_in_flight
            if (job := self._next_job(most)) is None:
                return
            coming = self._coming(job, most - len(self._jobs.order))
            worker = pool.affinity.choose(job, pool.workers, limit, coming)
            if worker.is_gone:  # it died while it was idle
                self._again.appendleft(job)
                self._replace(worker, worker.death(self._limits.stop))
                continue
            try:
                pool.give(worker, job, *self._run)
            except NotPicklable as error:
                self._jobs.order.remove(job.index)
                self._jobs.fail(error)
                return

    def _next_job(self, most: int) -> Job | None:
        """Return a job of a dead worker, else the next of the plan, if it may be in flight."""
        if self._again:
            return self._again.popleft()
        job = self._jobs.next_job(most, self._pool.in_flight())
        if job is not None:
            self._jobs.order.append(job.index)
        return job

    def _coming(self, job: Job, room: int) -> int:
        """Return how many jobs can follow, now or when the consumer takes the ready batches."""
        if self._count is None:
            try:
                with holding(MAY_OPEN, False):
                    self._count = batch_count(self._work)
            except Exception:  # a user's __len__ may raise any error: assume no further jobs
                self._count = 0
        ready = len(self._jobs.ready)
        if self._flow.in_order:
            ready = sum(1 for _ in takewhile(self._jobs.ready.__contains__, self._jobs.order))
        return max(0, min(room + ready, self._count - job.index - 1))

    def _store(self, worker: Worker, answer: BatchMessage | ErrorMessage) -> None:
        self._tell(worker, answer)
        self._jobs.ready[answer.index] = answer
        if isinstance(answer, BatchMessage):
            data = b"" if answer.data is None else answer.data
            self._jobs.ready[answer.index], size = worker.open(data)
            self._room.add(answer.index, size)

    def close(self) -> None:
        """End the pass."""
        self._jobs.close()
        if self._watcher is not None:
            self._watcher.close()
        super().close()
