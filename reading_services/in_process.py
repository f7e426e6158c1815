"""Run the graph in the calling process, with the batches of workers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any

from ..batching.job import BatchResult, Job, as_tensors, tickets_of
from ..core.context import holding
from ..core.validate import validate_int
from ..datapipes.background_iterator import BackgroundIterator, stop_limit
from ..datapipes.iter import Prefetcher
from ..graph import Pipe, clone, traits_of
from ..spatial.lazy.virtual_volume import forget_tiles, use_tiles
from ..storage.ranges import COALESCING
from ..volumes.scheme import Budget
from ..volumes.session import SESSION
from .memory_budget import budgets, count_or_none, default_slot_bytes
from .planner import DeliveredBatches, draws_globally, jobs
from .reading_service import begin, end, leave
from .replica import Hooks, InitFunction, Replica, ResetFunction
from .timeout_iterator import TimeoutIterator
from .transport.messages import END_OF_ITEMS
from .work import PlannedWork, ReplicatedWork, Work, work_of


def _runs_functions(work: Work) -> bool:
    """Whether functions run that need seeded global generators, which the consumer uses too."""
    if isinstance(work, ReplicatedWork) or draws_globally(work.cut.planner):
        return True
    return any(traits_of(pipe).runs_user_code for pipe in work.cut.realizing)


_START = DeliveredBatches()


class InProcessReadingService:
    """Plan and realize in the calling process.

    ``ThreadReadingService`` prefetches several batches at once, in the same process.

    With ``Timeout`` among the adapters the work runs in a thread, so that an error can name the
    pipe that hangs. A thread cannot be stopped, so only workers end a hang.

    Parameters
    ----------
    prefetch_cnt
        Batches that a thread prefetches. With functions of yours there is no prefetch: they may
        draw from the global generators, which are seeded around them, and so may your loop.
    init_fn
        Called once per epoch as ``init_fn(datapipe, WorkerInfo(1, 0))`` with a copy of the graph;
        returns the datapipe to run. Called only once if the graph keeps items in memory. With
        ``init_fn`` or ``reset_fn`` the graph is not split.
    reset_fn
        Called next as ``reset_fn(datapipe, WorkerInfo(1, 0), SeedGenerator)``.
    memory_bytes
        Memory for batches, buffers and decoded chunks together, in bytes; an epoch that needs
        more is refused before it begins. None for 256 MiB, and for a quarter of the memory or
        all of it if that is too little.
    prefetch_bytes
        Bytes of prefetched batches, each counted as the largest so far. None for an eighth of the
        memory.
    """

    def __init__(
        self,
        prefetch_cnt: int = 0,
        init_fn: InitFunction | None = None,
        reset_fn: ResetFunction | None = None,
        *,
        memory_bytes: int | None = None,
        prefetch_bytes: int | None = None,
    ) -> None:
        self.prefetch_cnt = validate_int("prefetch_cnt", prefetch_cnt, least=0)
        self.prefetch_bytes = count_or_none("prefetch_bytes", prefetch_bytes, least=0)
        self.hooks = Hooks(init_fn, reset_fn)
        self.memory_bytes = count_or_none("memory_bytes", memory_bytes, least=1)

    def budgets(self, work: Work | None = None, *, remote: bool = False) -> tuple[Budget, ...]:
        """Return the memory budgets for ``work``, the first choice first."""
        # One batch is made while the previous one is in use.
        ahead = 2 + self.prefetch_cnt
        threads = 1 if work is None else work.threads
        return budgets(self.memory_bytes, workers=0, batches_ahead=ahead, threads=threads)

    def distribute(self, graph: Pipe) -> Work:
        """Split the graph as for workers, so that the batches are the same."""
        return work_of(graph, self.hooks)

    def epoch(
        self, work: Work, seed: int, epoch: int, cursor: DeliveredBatches = _START
    ) -> InProcessEpoch:
        """Start one pass from ``cursor`` on."""
        use_tiles(self)
        ahead = 0 if _runs_functions(work) else self.prefetch_cnt
        most = default_slot_bytes() if self.prefetch_bytes is None else self.prefetch_bytes
        start = partial(start_batches, work, seed, epoch, cursor, ahead, most)
        return InProcessEpoch(work, start)

    def shares(self, work: Work) -> int:
        """Return 1 for a graph that cannot be split: one process runs it whole."""
        return 0 if isinstance(work, PlannedWork) else 1

    def explain(self, work: Work) -> str:
        """Return which pipes plan and which realize."""
        return work.explain(workers=0)

    def stop(self) -> None:
        """Forget the parts of volumes that chains keep in memory, unless another loader runs."""
        forget_tiles(self)

    def __repr__(self) -> str:
        return "InProcessReadingService()"


class InProcessEpoch(Iterator[Any]):
    """One pass in this process."""

    def __init__(self, work: Work, start: Callable[[], Any]) -> None:
        self.last = -1
        begin(self)
        self._is_freed = False
        self._seconds = work.limits.thread_stop
        self._loan = SESSION.chunks.lend(work.cache_bytes)
        self._batches = start()

    def __next__(self) -> Any:
        try:
            self.last, batch = next(self._batches)
        except BaseException:
            self.close()
            raise
        return batch

    def close(self) -> None:
        """End the thread, and close the volumes unless another epoch may read them."""
        batches = self._batches
        try:
            with stop_limit(self._seconds):
                batches.close()
        finally:
            if not self._is_freed:
                self._is_freed = True
                # A generator runs in the consumer's own thread.
                threads = [] if isinstance(batches, Generator) else batches.running_threads()
                if not threads:
                    self._free_after()
                else:  # these threads read the volumes until they end
                    free, name = self._free_after, "voxpipe-free"
                    threading.Thread(target=free, args=threads, name=name, daemon=True).start()

    def leave(self) -> None:
        """End the wait for a batch in another thread; :meth:`close` follows."""
        leave(self._batches)

    def _free_after(self, *threads: threading.Thread) -> None:
        for thread in threads:
            thread.join()
        end(self)
        self._loan.close()


def start_batches(
    work: Work,
    seed: int,
    epoch: int,
    cursor: DeliveredBatches,
    ahead: int = 0,
    ahead_bytes: int = 0,
) -> Any:
    """Return the iterator of an epoch's batches with their numbers, in a thread if needed."""
    pairs: Any
    pipes: tuple[Pipe, ...] = ()
    explicit = work.limits.explicit
    if isinstance(work, ReplicatedWork):
        pairs = _run_replica(work, seed, epoch, cursor)
    else:
        pipes = () if explicit else work.cut.realizing
        make = _batches if work.cut.realizing else _planned_batches
        pairs = make(work, seed, epoch, cursor)
    # The last prefetch() after the cut limits the batches that a thread makes ahead.
    prefetching = next((p for p in reversed(pipes) if type(p) is Prefetcher), None)
    if prefetching is not None and not _runs_functions(work):
        most, most_bytes = prefetching.buffer_size, prefetching.buffer_bytes
        return BackgroundIterator(pairs, most=most, most_bytes=most_bytes)
    if explicit or ahead:
        return TimeoutIterator(pairs, work.limits, ahead, work.seconds_at, ahead_bytes)
    return pairs


def _batches(
    work: PlannedWork, seed: int, epoch: int, cursor: DeliveredBatches
) -> Generator[tuple[int, Any], None, None]:
    """Yield batches with their numbers, while the bytes of the next job are fetched."""
    source, coalesce_policies = work.maker(), work.coalesce_policies
    queue: deque[tuple[Job, list[Any]]] = deque()
    error: Exception | None = None
    plan = jobs(work.cut, seed, epoch, cursor, work.part, work.errors)
    try:
        while True:
            job = None
            try:
                job = next(plan, None) if error is None else None
            except Exception as failure:  # raised in its turn
                error = failure
            if job is not None:
                with holding(COALESCING, (coalesce_policies, "")):
                    queue.append((job, tickets_of(job)))
                if len(queue) == 1:
                    continue
            if not queue:
                break
            job, tickets = queue.popleft()
            # Not around the yield: reads of the consumer are not part of this epoch.
            try:
                with holding(COALESCING, (coalesce_policies, "")):
                    batch = source.run(job, seed, epoch)
            finally:
                for ticket in tickets:
                    ticket.close()
            yield job.index, as_tensors(batch)
        if error is not None:
            raise error
    finally:
        plan.close()
        for _, tickets in queue:
            for ticket in tickets:
                ticket.close()


def _planned_batches(
    work: PlannedWork, seed: int, epoch: int, cursor: DeliveredBatches
) -> Generator[tuple[int, Any], None, None]:
    """Yield the batches of a graph of which every pipe plans: there are no reads to prefetch."""
    with closing(jobs(work.cut, seed, epoch, cursor, work.part, work.errors)) as plan:
        for job in plan:
            batch = job.items[0] if job.items else None
            if job.failures:
                batch = BatchResult(batch, job.failures, is_empty=not job.items)
            yield job.index, as_tensors(batch)


def _run_replica(
    work: ReplicatedWork, seed: int, epoch: int, cursor: DeliveredBatches
) -> Generator[tuple[int, Any], None, None]:
    # The replica has a copy, because the loader's graph must not change, even in its running state.
    share = work.share(0, 1)
    replica = work.replicas.pop(share, None)
    if replica is None:
        replica = Replica(clone(work.of_worker()), share, work.hooks)
    # After an error a replica may hold parts of an item: the next epoch makes a new one.
    stays = work.outlives_epochs
    try:
        with closing(work.items_to_deal(seed, epoch)) as dealt:
            replica.feed(partial(next, dealt, END_OF_ITEMS))
            for index in count():
                try:
                    batch = replica.run(index, seed, epoch)
                except StopIteration:
                    break
                if not cursor.holds(index):
                    yield index, batch
    except BaseException as error:
        stays = stays and isinstance(error, GeneratorExit)
        raise
    finally:
        if stays:
            replica.leave()
            work.replicas[replica.share] = replica
