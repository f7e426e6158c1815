"""Run the realizing part in worker processes; the batches are those of one process."""

from __future__ import annotations

import multiprocessing as mp
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Self

from ..batching.collate import usable_cores
from ..core.call_site import WarnOnce, warn
from ..core.errors import IdleWorkers
from ..core.validate import validate_int
from ..graph import Pipe, origin_of, walk
from ..volumes.scheme import Budget
from .in_process import InProcessEpoch, start_batches
from .memory_budget import SlotBudget, budgets, count_or_none, default_slot_bytes
from .planned_epoch import USUAL_RESTARTS, Flow, PlannedEpoch
from .planner import DeliveredBatches
from .reading_service import Epoch, refuse_unknown, text_of
from .replica import Hooks, InitFunction, ResetFunction
from .replicated_epoch import ReplicatedEpoch
from .work import PlannedWork, ReplicatedWork, Work, work_of
from .workers.payload import payload_of
from .workers.pool import PoolSettings, WorkerPool
from .workers.script import script_of_this_process

_BATCH = ".batch_patches({value}) or .batch({value}) at the end of the chain"
_DROPS = ".batch_patches(..., drop_last={value}) or .batch(..., drop_last={value}) in the chain"
# Arguments of other loaders and services, first those that the service has by another name.
_STANDS = {
    "prefetch_factor": "worker_prefetch_cnt={value}",
    "in_order": 'order="plan" or order="as_ready"',
    "mp_context": "multiprocessing_context={value}",
    "pin_memory": "nothing, as batches of workers are in page-locked memory once CUDA is in use",
    "pin_memory_device": ".to_device({value}) at the end of the chain",
    "batch_size": _BATCH,
    "drop_last": _DROPS,
    "collate_fn": ".batch(...).collate({value}) at the end of the chain",
    "shuffle": ".shuffle() in the chain",
    "sampler": ".shuffle() in the chain, whose order the loader's seed decides",
    "batch_sampler": ".shuffle() and .batch_patches(...) or .batch(...) in the chain",
    "generator": "DataLoader2(..., seed=...)",
    "seed": "DataLoader2(..., seed={value})",
    "timeout": "DataLoader2(..., [Timeout(item={value})])",
}


START_METHODS = ("forkserver", "fork", "spawn")
ORDERS = ("plan", "as_ready")
# One batch is made while the next job waits at the worker: a worker is always busy if the consumer
# returns within the time of one batch.
JOBS_PER_WORKER = 2
# A worker requests a job's bytes from a bucket when the job arrives. This takes two round trips for
# a new volume, and processor time for each answer: 80 to 200 ms together. Small batches take 75 ms.
# With 3 in flight, processors were idle for 9 % of the time; with 5 for 3 %, as from a local disk
# (docs/measured-before.md).
JOBS_PER_REMOTE_WORKER = 5


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
        Batches in flight per worker, including the one in work; 0 means 1, the least for a
        worker. They take memory in addition to the batches in use. None for 2, and for 5 if
        volumes have URLs.
    main_prefetch_cnt
        Further batches, over all workers, that may be ready and wait here.
    worker_init_fn
        Called in each worker as ``worker_init_fn(datapipe, WorkerInfo)`` with its copy of the
        graph, after its share was chosen; returns the datapipe that the worker runs. With
        ``worker_init_fn`` or ``worker_reset_fn`` the graph is not split: every worker runs the
        whole of it.
    worker_reset_fn
        Called in each worker before every epoch, as
        ``worker_reset_fn(datapipe, WorkerInfo, SeedGenerator)``.
    order
        ``"plan"``: the order of the plan. ``"as_ready"``: the first batch that is ready; the same
        batches in an order that depends on timing.
    threads_per_worker
        Patches that each worker realizes at once: decoding and resampling release the
        interpreter's lock. By default the machine's cores divided by the workers.
    persistent_workers
        Keep the workers from epoch to epoch, until ``stop()``; False ends them with the epoch and
        closes their files. None, the default, keeps them in two cases: volumes have URLs, whose
        headers took a round trip each, or the graph keeps items in their memory for the next epoch
        (``cache()``, ``in_memory_cache()``).
    slot_bytes
        Shared memory for all batches, including those that you keep, in bytes; None for an eighth
        of the memory. When it is used up, batches are copied on arrival, with a
        :class:`~voxpipe.errors.SlotsUsedUp` warning. 0 sends them through pipes.
    memory_bytes
        Memory for batches, buffers and decoded chunks together, in all processes, in bytes; an
        epoch that needs more is refused before it begins. None for 256 MiB, and for a quarter of
        the memory or all of it if that is too little.
    prefetch_bytes
        Bytes of prefetched batches: those that wait, and those in flight, each counted as the
        largest so far. One batch is always allowed. None for ``slot_bytes``.
    max_restarts
        Workers per epoch that are replaced after a death (a signal, ``os._exit``, the system for
        lack of memory). Another process makes their batches again, with a
        :class:`~voxpipe.errors.WorkerReplaced` warning. The batches and their order stay the same.
        One more death is a ``WorkerDied``.
    """

    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: str | None = None,
        worker_prefetch_cnt: int | None = None,
        main_prefetch_cnt: int = 0,
        worker_init_fn: InitFunction | None = None,
        worker_reset_fn: ResetFunction | None = None,
        *,
        order: str = "plan",
        threads_per_worker: int | None = None,
        persistent_workers: bool | None = None,
        slot_bytes: int | None = None,
        memory_bytes: int | None = None,
        max_restarts: int = USUAL_RESTARTS,
        prefetch_bytes: int | None = None,
        **others: NoReturn,
    ) -> None:
        refuse_unknown(MultiProcessingReadingService, others, _STANDS)
        self.num_workers = validate_int("num_workers", num_workers, least=0)
        self.start_method = multiprocessing_context or "forkserver"
        self.worker_prefetch_cnt = count_or_none(
            "worker_prefetch_cnt", worker_prefetch_cnt, least=0
        )
        self.order = order
        self.threads_per_worker = count_or_none("threads_per_worker", threads_per_worker, least=1)
        self.persistent_workers = persistent_workers
        self.slot_bytes = count_or_none("slot_bytes", slot_bytes, least=0)
        self.memory_bytes = count_or_none("memory_bytes", memory_bytes, least=1)
        self.prefetch_bytes = count_or_none("prefetch_bytes", prefetch_bytes, least=0)
        self.max_restarts = validate_int("max_restarts", max_restarts, least=0)
        self.main_prefetch_cnt = validate_int("main_prefetch_cnt", main_prefetch_cnt, least=0)
        self.hooks = Hooks(worker_init_fn, worker_reset_fn)
        # A loader has a copy, and scale() of one holds for all of them.
        self._copies: weakref.WeakSet[MultiProcessingReadingService] = weakref.WeakSet([self])
        self._pool: WorkerPool | None = None
        self._staying = False
        self._once = WarnOnce()
        self._budget = SlotBudget(self.slot_bytes)
        if self.start_method not in START_METHODS:
            msg = f"multiprocessing_context is one of {START_METHODS}, got {self.start_method!r}"
            raise ValueError(msg)
        if self.order not in ORDERS:
            raise ValueError(f"order is one of {ORDERS}, got {self.order!r}")

    def budgets(self, work: Work | None = None, *, remote: bool = False) -> tuple[Budget, ...]:
        """Return the memory budgets for ``work``, the first choice first."""
        count = self.num_workers if work is None else work.workers
        # The batches in flight, and the one in use.
        ahead = max(1, count * self.jobs_per_worker(remote) + self.main_prefetch_cnt) + 1
        threads = self._threads(count) if work is None else work.threads
        node = self._workers_per_node(count)
        return budgets(self.memory_bytes, workers=node, batches_ahead=ahead, threads=threads)

    def _workers_per_node(self, count: int) -> int:
        """Return how many of ``count`` workers share the memory of one machine."""
        return count

    def jobs_per_worker(self, remote: bool) -> int:
        """Return the batches in flight of each worker, with volumes that have URLs or not."""
        if self.worker_prefetch_cnt is None:
            return JOBS_PER_REMOTE_WORKER if remote else JOBS_PER_WORKER
        # With 0 each worker still makes one batch.
        return max(1, self.worker_prefetch_cnt)

    def _threads(self, count: int) -> int:
        return (self.threads_per_worker or max(1, usable_cores() // count)) if count else 1

    def distribute(self, graph: Pipe) -> Work:
        """Split the graph; refuse objects that cannot travel to a worker.

        Raises
        ------
        NotPicklable
            An object cannot be pickled; names its pipe as the user wrote it.
        """
        work = work_of(graph, self.hooks)
        if isinstance(work, ReplicatedWork):
            work = replace(work, as_ready=self.order != "plan")
        count = self.num_workers
        if count:
            payload_of(work, count, self._script())
        return replace(work, workers=count, threads=self._threads(count))

    def _script(self) -> dict[str, str] | None:
        """Return the script that workers import; None for forked ones, which are copies."""
        return None if self.start_method == "fork" else script_of_this_process()

    def epoch(self, work: Work, seed: int, epoch: int, cursor: DeliveredBatches) -> Epoch:
        """Start one pass over the batches that ``cursor`` does not hold."""
        if isinstance(work, PlannedWork) and work.workers:
            work = replace(work, workers=self.num_workers)
        if not work.workers or (isinstance(work, PlannedWork) and not work.cut.realizing):
            return InProcessEpoch(work, partial(start_batches, work, seed, epoch, cursor))
        if isinstance(work, ReplicatedWork) and (working := self.shares(work)) < work.workers:
            text = (
                f"{work.workers} workers were asked for and {working} works, as the graph is not "
                f"split: {work.reason}\n"
                "  Put .sharding_filter() after the first .shuffle(), so that each worker has a "
                "share, or give ⟦num_workers=1⟧; explain() shows where each pipe runs."
            )
            self._once.warn(text, text, IdleWorkers, origin_of(work.graph))
        pool = self._pool_for(work)
        if (stay := self.persistent_workers) is None:
            # Workers of a graph that is not split keep only their place in the epoch.
            stay = work.outlives_epochs or (isinstance(work, PlannedWork) and work.remote)
        self._staying = stay
        if (most := self.prefetch_bytes) is None:
            most = self._budget.limit or default_slot_bytes()
        jobs, in_order = self.jobs_per_worker(bool(work.ahead_bytes)), self.order == "plan"
        unknown = JOBS_PER_WORKER * work.workers
        flow = Flow(jobs, self.main_prefetch_cnt, in_order, most, unknown, self.max_restarts)
        kind: Callable[..., Epoch] = (
            PlannedEpoch if isinstance(work, PlannedWork) else ReplicatedEpoch
        )
        return kind(pool, self._end_epoch, work, (seed, epoch), flow, cursor)

    def scale(self, num_workers: int) -> None:
        """Have so many workers from now on, also within an epoch; batches stay the same.

        It holds for all loaders that have this service. A graph that is not split keeps its number
        of workers, on which its batches depend.
        """
        count = validate_int("num_workers", num_workers, least=1)
        for service in self._copies:
            if service.num_workers:  # without workers it runs in this process
                service.num_workers = count
                service._scale_pool(count)

    def _scale_pool(self, count: int) -> None:
        if self._pool is not None and not self._pool.has_shares:
            self._pool.scale(count)

    def shares(self, work: Work) -> int:
        """Return the number of workers that share a graph that cannot be split; else 0."""
        if isinstance(work, PlannedWork):
            return 0
        return max(1, work.workers) if work.shards else 1

    def _pool_for(self, work: Work) -> WorkerPool:
        count = self.shares(work) or work.workers
        payload = payload_of(work, count, self._script())
        # worker_init_fn runs once in a process: a changed graph needs new processes.
        prepares = isinstance(work, ReplicatedWork) and work.hooks.init is not None
        if self._pool is not None and not self._pool.is_well(payload.data if prepares else None):
            self._stop_pool()
        if self._pool is not None:
            self._pool.update(payload.data)
        else:
            graph = work.cut.planner if isinstance(work, PlannedWork) else work.graph
            imports = sorted({m for p in walk(graph) for m in getattr(p, "imports", ())})
            ahead = self.jobs_per_worker(bool(work.ahead_bytes))
            context = mp.get_context(self.start_method)
            settings = PoolSettings(work, payload, count, context, self._budget, ahead, imports)
            self._pool = self._make_pool(settings)
        return self._pool

    def _make_pool(self, settings: PoolSettings) -> WorkerPool:
        """Start the workers."""
        return WorkerPool(settings)

    def _end_epoch(self) -> None:
        if not self._staying or (self._pool is not None and not self._pool.is_well()):
            self._stop_pool()

    def explain(self, work: Work) -> str:
        """Return the text of where each pipe runs."""
        return work.explain(work.workers)

    def stop(self) -> None:
        """Stop the workers."""
        self._stop_pool()

    def _stop_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()

    def __copy__(self) -> Self:
        service = type(self).__new__(type(self))
        vars(service).update(self.__getstate__(), _copies=self._copies)
        self._copies.add(service)
        return service

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to another loader, which has a budget of its own.
        budget, copies = SlotBudget(self.slot_bytes), weakref.WeakSet[Any]()
        return {**self.__dict__, "_pool": None, "_budget": budget, "_copies": copies}

    def __repr__(self) -> str:
        return text_of(self, "num_workers")


class PrototypeMultiProcessingReadingService(MultiProcessingReadingService):
    """torchdata's former name of :class:`MultiProcessingReadingService`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        warn(
            "PrototypeMultiProcessingReadingService is the former name of "
            "MultiProcessingReadingService; use that name",
            FutureWarning,
        )
        super().__init__(*arguments, **options)
