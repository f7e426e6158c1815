"""Make batches in threads of this process, without pickling or sending."""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from ..batching.collate import batches_in, usable_cores, using_threads
from ..batching.job import (
    STEP_OF_THREAD,
    CurrentStep,
    ErrorTolerant,
    Job,
    Maker,
    QueuedJob,
    as_tensors,
)
from ..core.context import RUNNING_PASS, holding
from ..core.counters import count_apart
from ..core.locks import timeout_or_none
from ..core.memory import array_bytes
from ..core.validate import validate_int
from ..datapipes.background_iterator import join_threads, note_progress, start_thread
from ..graph import Pipe, describe, traits_of
from ..spatial.lazy.virtual_volume import use_tiles
from ..storage.ranges import COALESCING, PoliciesByKey
from ..volumes.scheme import Budget
from .in_process import InProcessEpoch, InProcessReadingService
from .memory_budget import PrefetchBudget, budgets, default_slot_bytes
from .multiprocessing import JOBS_PER_REMOTE_WORKER, JOBS_PER_WORKER, ORDERS
from .pipe_runner import PipeRunner
from .planner import DeliveredBatches, JobsInFlight, jobs
from .reading_service import leaving_error, refuse_unknown, text_of
from .timeout_iterator import LATE_SECONDS, TimeoutIterator
from .transport.slot_reader import BatchBuffers
from .work import PlannedWork, Work, WorkerStatus, instructions_of, item_timeout

_START = DeliveredBatches()


class ThreadReadingService(InProcessReadingService):
    """Realize batches in threads of this process; the batches are those of one thread.

    Reading, decoding and resampling release the interpreter's lock, so threads are as fast as
    workers while the other Python code takes less than one core. Nothing is pickled, so any object
    and any function of a notebook can be used.

    Functions of yours after the cut run in one thread at a time, and only while your loop waits
    for a batch. They need not be thread-safe, and may draw from the global generators of
    ``random``, NumPy and torch, which are seeded around them. Pipes before them are prefetched.

    Parameters
    ----------
    num_threads
        Threads, each with a batch of its own. None for one on each core that this process may use.
    prefetch_cnt
        Batches that may be ready or queued, in addition to one in each thread. None for half the
        number of threads, and for four times the number of threads if volumes have URLs.
    order
        ``"plan"``: the order of the plan. ``"as_ready"``: the first batch that is ready; the same
        batches in an order that depends on timing.
    memory_bytes
        Memory for batches, buffers and decoded chunks together, in bytes; an epoch that needs
        more is refused before it begins. None for 256 MiB, and for a quarter of the memory or
        all of it if that is too little.
    prefetch_bytes
        Bytes of prefetched batches: those that wait, and those in flight, each counted as the
        largest so far. One batch is always allowed. None for an eighth of the memory.

    Raises
    ------
    ValueError
        For a number below its minimum, or an unknown order.

    Examples
    --------
    >>> import numpy as np
    >>> import voxpipe as vp
    >>> cases = [{"image": np.full((4, 4, 4), n, np.int16)} for n in range(4)]
    >>> pipe = vp.from_cases(cases).open_volume().lazy_patch(2).batch_patches(2)
    >>> add_one = lambda batch: batch["image"][:, 0, 0, 0, 0] + 1
    >>> with vp.DataLoader2(pipe.map(add_one), None, vp.ThreadReadingService(2)) as loader:
    ...     [batch.tolist() for batch in loader]
    [[1, 2], [3, 4]]
    """

    def __init__(
        self,
        num_threads: int | None = None,
        prefetch_cnt: int | None = None,
        *,
        order: str = "plan",
        memory_bytes: int | None = None,
        prefetch_bytes: int | None = None,
        **others: NoReturn,
    ) -> None:
        refuse_unknown(ThreadReadingService, others, _STANDS)
        super().__init__(
            prefetch_cnt or 0, memory_bytes=memory_bytes, prefetch_bytes=prefetch_bytes
        )
        self._has_count = prefetch_cnt is not None
        count = usable_cores() if num_threads is None else num_threads
        self.num_threads = validate_int("num_threads", count, least=1)
        self.order = order
        if order not in ORDERS:
            raise ValueError(f"order is one of {ORDERS}, got {order!r}")

    def budgets(self, work: Work | None = None, *, remote: bool = False) -> tuple[Budget, ...]:
        """Return the memory budgets for ``work``, the first choice first."""
        threads = self.num_threads if work is None else work.threads
        # The batches in flight, and the one in use.
        ahead = self._most_in_flight(threads, remote) + 1
        return budgets(self.memory_bytes, workers=0, batches_ahead=ahead, threads=threads)

    def jobs_per_worker(self, remote: bool) -> int:
        """Return the batches in flight of each thread, with volumes that have URLs or not."""
        return self._most_in_flight(self.num_threads, remote) // self.num_threads

    def _most_in_flight(self, threads: int, remote: bool) -> int:
        if self._has_count:
            return threads + self.prefetch_cnt
        # All threads share one queue, so one waiting job for two threads is enough.
        return threads * JOBS_PER_REMOTE_WORKER if remote else threads + max(1, threads // 2)

    def distribute(self, graph: Pipe) -> Work:
        """Split the graph as for workers, so that the batches are the same."""
        work = super().distribute(graph)
        if not isinstance(work, PlannedWork):
            return work
        return replace(work, threads=self.num_threads, beside_loop=True)

    def epoch(
        self, work: Work, seed: int, epoch: int, cursor: DeliveredBatches = _START
    ) -> InProcessEpoch:
        """Start one pass from ``cursor`` on."""
        if not isinstance(work, PlannedWork) or not work.cut.realizing:
            return super().epoch(work, seed, epoch, cursor)
        use_tiles(self)
        most = default_slot_bytes() if self.prefetch_bytes is None else self.prefetch_bytes
        ahead = self._most_in_flight(work.threads, bool(work.ahead_bytes))
        run, in_order = (seed, epoch), self.order == "plan"
        start = partial(ThreadBatches, work, run, cursor, ahead, most, in_order=in_order)
        return InProcessEpoch(work, start)

    def explain(self, work: Work) -> str:
        """Return the text of where each pipe runs, and when processes are faster."""
        if not isinstance(work, PlannedWork):
            return f"{work.explain(workers=None)}\n{_ALONE}"
        threads_part, pipes = split_at_functions(work)
        lines = [threads_part.explain(workers=0)]
        if pipes:
            lines += ["in one thread, while your loop waits for the batch", *pipes, _FUNCTIONS]
        if work.threads > 1 and work.cut.realizing:
            lines.append(_LOCK)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return text_of(self, "num_threads", prefetch_cnt=0)


# Arguments of the service with workers, and the ones to use here.
_STANDS = {
    "num_workers": "num_threads={value}",
    "threads_per_worker": "num_threads, of which each makes a batch",
}

_ALONE = (
    "one thread runs it, as it is not split: MultiProcessingReadingService(num_workers) runs "
    "shares of it at once, where there is a .sharding_filter()"
)
_LOCK = (
    "threads share the interpreter's lock: loader.diagnose() measures whether processes do better"
)
_FUNCTIONS = (
    "where these functions take long, MultiProcessingReadingService(num_workers) runs them in "
    "workers, several at once and ahead of your loop"
)


def split_at_functions(work: PlannedWork) -> tuple[PlannedWork, list[str]]:
    """Return the part of ``work`` for several threads, and the pipes after it."""
    # Pipes with instructions are ours and have no state. Pipes and functions of users may not be
    # thread-safe, and draw from the generators of the process, so they run in one thread.
    pipes = work.cut.realizing
    first = next((n for n, pipe in enumerate(pipes) if instructions_of(pipe) is None), len(pipes))
    rest = [f"  · {describe(pipe)}" for pipe in pipes[first:] if not traits_of(pipe).watches]
    return replace(work, cut=replace(work.cut, realizing=pipes[:first])), rest


@dataclass(eq=False)
class _Seat:
    """A thread with its current job and step."""

    number: int
    step: CurrentStep = field(default_factory=CurrentStep)
    job: Job | None = None
    standing: tuple[Any, float] | None = None  # the step at the last check, and its first time


@dataclass(eq=False)
class _Exchange:
    """Queues of an epoch and its threads, without a reference to the droppable epoch."""

    make: Callable[[Job], Any]
    coalesce_policies: PoliciesByKey  # rules to merge ranges into one request, by key
    buffers: BatchBuffers
    waiting: queue.SimpleQueue[tuple[Job, QueuedJob] | None] = field(
        default_factory=queue.SimpleQueue
    )
    ahead: queue.SimpleQueue[QueuedJob | None] = field(default_factory=queue.SimpleQueue)
    answers: queue.SimpleQueue[_Answer | None] = field(default_factory=queue.SimpleQueue)
    is_over: bool = False
    is_looking: bool = False  # whether the prefetching thread has a job, for which others may wait

    def serve(self, seat: _Seat) -> None:
        scheme = {COALESCING: (self.coalesce_policies, "")}
        with holding(STEP_OF_THREAD, seat.step, scheme), count_apart(), batches_in(self.buffers):
            while (pair := self.waiting.get()) is not None:
                if not self.is_over:
                    self.answers.put(self._answer(seat, *pair))
                pair[1].close()
                del pair

    def _answer(self, seat: _Seat, job: Job, entry: QueuedJob) -> _Answer:
        seat.job = job
        try:
            entry.look()  # or wait for the prefetching thread
            return _Answer(job, self.make(job))
        except BaseException as error:  # the consumer raises it
            return _Answer(job, None, error)
        finally:
            seat.job = None

    def look_ahead(self) -> None:
        """Prefetch for jobs that wait."""
        with holding(COALESCING, (self.coalesce_policies, "")):
            while (entry := self.ahead.get()) is not None:
                if not self.is_over:
                    self.is_looking = True
                    entry.look()
                    self.is_looking = False
                del entry

    def end(self, threads: int) -> None:
        """End the threads after their current jobs."""
        self.is_over = True
        for _, entry in filter(None, _drain(self.waiting)):
            entry.close()  # releases prefetched bytes
        for rest in (self.answers, self.ahead):
            _drain(rest)
        self.ahead.put(None)
        for _ in range(threads):
            self.waiting.put(None)


@dataclass(frozen=True, eq=False)
class _Answer:
    """The result or error of a job."""

    job: Job
    result: Any = None
    error: BaseException | None = None


def _drain(waiting: queue.SimpleQueue[Any]) -> list[Any]:
    things = []
    try:
        while True:
            things.append(waiting.get_nowait())
    except queue.Empty:
        return things


class _Finisher:
    """Maker that finishes the threads' results with the user's pipes, in one thread."""

    def __init__(self, work: PlannedWork, threads_part: PlannedWork) -> None:
        self._first = len(threads_part.cut.realizing)
        recipe = threads_part.recipe
        assert recipe is not None
        self.begin = recipe.items
        self._runner = PipeRunner(work.cut, self._first)
        self._answer: _Answer | None = None
        self._maker: Maker = self
        if work.errors.tolerates:
            self._maker = ErrorTolerant(self, work.errors, together=work.part.ranks > 1)

    def finish(self, answer: _Answer, seed: int, epoch: int) -> Any:
        self._answer = answer
        try:
            return self._maker.run(answer.job, seed, epoch)
        finally:
            self._answer = None

    def run(self, job: Job, seed: int, epoch: int) -> Any:
        """Return the batch of a job; make its items here if there is no answer for it."""
        answer, self._answer = self._answer, None
        if answer is None or answer.job is not job:
            items = self.begin(job)
        elif answer.error is not None:
            try:
                raise answer.error
            finally:
                del answer  # its error's traceback holds this frame: avoid the cycle
        else:
            items = answer.result
        return self._runner.run(job, seed, epoch, [as_tensors(item) for item in items])


class ThreadBatches(Iterator[tuple[int, Any]]):
    """Batches of one epoch with their numbers, made by threads a bounded number ahead."""

    def __init__(
        self,
        work: PlannedWork,
        run: tuple[int, int],
        cursor: DeliveredBatches,
        ahead: int,
        ahead_bytes: int,
        *,
        in_order: bool = True,
    ) -> None:
        self._work, self._run = work, run
        self._limits, self._ahead = work.limits, ahead
        self._threads_part, rest = split_at_functions(work)
        self._room = PrefetchBudget(ahead_bytes, unknown=JOBS_PER_WORKER * work.threads)
        self._in_flight = 0
        self._is_closed = self._is_late = self._has_left = False
        # The first batch of an epoch opens and imports: it has more time, as with workers.
        self._seconds = self._limits.start + self._limits.item
        self._finish: Callable[[_Answer], Any] | None = None
        self._watchers: list[TimeoutIterator] = []
        plan = jobs(work.cut, *run, cursor, work.part, work.errors)
        self._jobs = JobsInFlight(self._with_limit(plan), self._room, in_order=in_order)
        self._buffers = BatchBuffers(ahead + 1, ahead_bytes)
        whole = partial(self._threads_part.maker().run, seed=run[0], epoch=run[1])
        make = self._finishing() if rest else whole
        self._exchange = exchange = _Exchange(make, dict(work.coalesce_policies), self._buffers)
        self._seats = [_Seat(number) for number in range(work.threads)]
        targets: dict[str, Callable[[], None]] = {
            f"voxpipe-batches-{seat.number}": partial(exchange.serve, seat) for seat in self._seats
        }
        targets["voxpipe-read-ahead"] = exchange.look_ahead
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in targets.items()
        ]
        try:
            for thread in self._threads:
                start_thread(thread)
        except BaseException:
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self.close()
            raise

    def _with_limit(self, source: Iterator[Any], seconds_at: Any = None) -> Iterator[Any]:
        """Return ``source``, in a thread if it has time limits."""
        if not self._limits.explicit:
            return source
        self._watchers.append(TimeoutIterator(source, self._limits, seconds_at=seconds_at))
        return self._watchers[-1]

    def _finishing(self) -> Callable[[Job], Any]:
        """Return the function for threads, and prepare the consumer's part of each batch."""
        finisher, inbox = _Finisher(self._work, self._threads_part), deque[_Answer]()
        source = _last_steps(finisher, inbox, self._run, self._work, self._buffers)
        batches = self._with_limit(source, self._work.seconds_at)

        def finish(answer: _Answer) -> Any:
            inbox.append(answer)
            return next(batches)

        self._finish = finish
        return finisher.begin

    def __next__(self) -> tuple[int, Any]:
        if self._is_closed:
            raise StopIteration
        note_progress()
        self._buffers.settle()
        with count_apart():  # functions and planning pipes run here, in parallel to the threads
            return self._take()

    def _take(self) -> tuple[int, Any]:
        self._deadline = time.monotonic() + self._seconds
        while True:
            self._hand_out()
            if (index := self._jobs.first()) is not None:
                return index, self._deliver(index)
            if self._jobs.is_over():
                raise self._jobs.end()
            self._wait()
            if self._has_left:
                raise leaving_error()

    def _hand_out(self) -> None:
        while (job := self._jobs.next_job(self._ahead, self._in_flight)) is not None:
            entry = QueuedJob(partial(lambda job: job, job))
            self._jobs.order.append(job.index)
            self._in_flight += 1
            self._exchange.ahead.put(entry)
            self._exchange.waiting.put((job, entry))

    def _deliver(self, index: int) -> Any:
        answer: _Answer = self._jobs.take(index)
        self._seconds = self._limits.item
        try:
            if self._finish is not None:
                return self._finish(answer)
            if isinstance(answer.error, StopIteration):  # must not end the epoch
                raise RuntimeError("a pipe raised StopIteration in a batch") from answer.error
            if answer.error is not None:
                raise answer.error
            return as_tensors(answer.result)
        finally:
            del answer

    def _wait(self) -> None:
        """Wait for an answer; ItemTimeout after the limit."""
        rest, poll = self._deadline - time.monotonic(), self._limits.poll
        try:
            wait = timeout_or_none(rest if poll is None else min(rest, poll))
            answer = self._exchange.answers.get(timeout=wait)
        except queue.Empty:
            self._refuse_late(time.monotonic())
            return
        if answer is not None:
            self._in_flight -= 1
            self._jobs.ready[answer.job.index] = answer
            self._room.add(
                answer.job.index, array_bytes(getattr(answer.result, "batch", answer.result))
            )
        if poll is not None:
            self._refuse_late(time.monotonic())

    def _refuse_late(self, now: float) -> None:
        """Raise ItemTimeout if a step of a thread, or the wait of the consumer, is too long."""
        busy = []
        for seat in self._seats:
            job, step = seat.job, seat.step.read()
            if seat.standing is None or seat.standing[0] != (id(job), *step):
                seat.standing = (id(job), *step), now
            if job is None:
                continue
            doing = self._threads_part.at(*step, job)
            if now - seat.standing[1] > doing.seconds:
                thread = f"thread {seat.number + 1} of {len(self._seats)}"
                event = f"{thread} has been at {doing.work} for more than {doing.seconds:g} s"
                self._refuse(event, "idle=... or at=...", [(seat, doing)])
            busy.append((seat, doing))
        if now >= self._deadline:
            at = "; ".join(doing.work for _, doing in busy) or "nothing"
            self._refuse(f"no batch for {self._seconds:g} s: threads are at {at}", "item=...", busy)

    def _refuse(self, event: str, limit: str, busy: list[tuple[_Seat, WorkerStatus]]) -> NoReturn:
        self._is_late = True
        stacks = [""]
        numbers = {seat.number: f"thread {seat.number + 1}" for seat, _ in busy}
        numbers |= {-1: "the thread that reads ahead"} if self._exchange.is_looking else {}
        for number, thread in numbers.items():
            frame = sys._current_frames().get(self._threads[number].ident or 0)
            if frame is not None:
                stacks += [f"stack of {thread}:", "".join(traceback.format_stack(frame)).rstrip()]
        do = f"Raise Timeout({limit}) if this may take longer."
        late = item_timeout(event, do, RUNNING_PASS.read(), "\n".join(stacks))
        for _, doing in busy:
            late.at(doing.origin)
        raise late

    def leave(self) -> None:
        """End the wait for a batch in another thread; :meth:`close` follows."""
        self._has_left = True
        self._exchange.answers.put(None)

    def close(self) -> None:
        """End the threads, and wait for them up to the loader's limit."""
        if self._is_closed:
            return
        self._is_closed = True
        self._jobs.close()
        self._exchange.end(len(self._seats))
        try:
            for watcher in self._watchers:
                watcher.close()
            join_threads(*self._threads, most=LATE_SECONDS if self._is_late else math.inf)
        finally:
            _drain(self._exchange.answers)
            self._buffers.close()

    def running_threads(self) -> list[threading.Thread]:
        """Return the threads that still run after :meth:`close`."""
        watching = [thread for watcher in self._watchers for thread in watcher.running_threads()]
        return [thread for thread in self._threads if thread.is_alive()] + watching


def _last_steps(
    finisher: _Finisher,
    inbox: deque[_Answer],
    run: tuple[int, int],
    work: PlannedWork,
    buffers: BatchBuffers,
) -> Generator[Any, None, None]:
    while True:
        threads, scheme = using_threads(work.threads), (work.coalesce_policies, "")
        # Not around the yield: reads of the consumer are not part of this epoch.
        with batches_in(buffers), holding(COALESCING, scheme), threads:
            batch = finisher.finish(inbox.popleft(), *run)
        yield as_tensors(batch)
        del batch
