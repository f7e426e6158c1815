"""Measure the time of each part of a loader, on the next batches.

Everything runs on copies: of the graph, of the service and so of the workers. Each part is
run by itself, for about as long as ``seconds``, by the loader's own number of processes, on
the loader's own plans. The rest is the additional time of one process for whole batches.
:func:`diagnose` then runs the whole once for comparison.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import fmean
from typing import Any, TypeAlias

from torch.utils.data import IterDataPipe

from ..adapters import Limits
from ..adapters.profile import without_timers
from ..batching.collate import usable_cores
from ..batching.job import BatchResult, ErrorPolicy, Instruction, Job, as_tensors
from ..batching.parts import PartResult, Parts, Task, reads_of
from ..core import IO_COUNTERS, Region
from ..core.call_site import shorten
from ..core.errors import LOCATABLE, GraphError
from ..core.native_library import free_seconds
from ..core.progress import progress_line
from ..core.validate import count_text
from ..datapipes import DataPipe
from ..datapipes.epoch import functions_in, may_look_ahead
from ..graph import Cut, Pipe, Traits, chained_name, describe, parents_of, traits_of, walk
from ..reading_services import InProcessReadingService, PlannedWork, ReadingService
from ..reading_services.main_process_tail import MainProcessTail
from ..reading_services.pipe_runner import PipeRunner, as_raised
from ..reading_services.planner import WHOLE, DeliveredBatches, jobs
from ..reading_services.reading_service import begin, end
from ..reading_services.threads import split_at_functions
from ..reading_services.work import Work
from ..spatial.lazy.read_plan import ReadPlan
from ..volumes.scheme import LOCAL_LATENCY
from .cost_model import ONLY_PLANS, CostModel, LoaderFacts, Measurement, ranks_beside
from .diagnosis import Diagnosis, judge
from .effort import Clock, Effort

DISK_SHARE = 0.1
"""Part of the bytes needed that a disk has to bring: fewer are those of folders and headers."""
FROM_MEMORY = 0.5
"""A second fetch that takes less than this part of the first came from memory: that one waited."""
KERNEL_BATCHES = 100
"""Batches of which a mean of the time in kernels, or of handing over, is taken, at most."""
TrainStep: TypeAlias = "Callable[[Any], object]"


def copy_service(service: ReadingService) -> ReadingService:
    """Return a service of its own, whose workers stay from one measurement to the next.

    It serves this rank alone: the others need not measure at the same time.
    """
    alone = getattr(service, "alone", None)
    twin: ReadingService = copy.copy(service) if alone is None else alone()
    runs: Any = getattr(twin, "inner", twin)
    if hasattr(runs, "persistent_workers"):
        runs.persistent_workers = True
    return twin


def check_source(planner: Pipe, *, running: bool) -> None:
    """Refuse a source that planning ahead would use up or disturb."""
    for pipe in walk(planner):
        if not parents_of(pipe) and any(isinstance(v, Iterator) for v in vars(pipe).values()):
            msg = f"{describe(pipe)} reads from an iterator, which planning ahead would use up"
            raise GraphError(msg, do="Give it a list, or something that can be iterated again.")
    if running and not may_look_ahead(planner):
        raise GraphError(
            "an epoch is running, and functions or pipes of yours in the planner cannot run twice "
            "at a time",
            do="Call it before or after the loop.",
        )


class Tasks(IterDataPipe[Task]):
    """Yields tasks, again and again, until ``is_enough(number)`` says that it is enough."""

    traits = Traits()

    def __init__(
        self, tasks: Sequence[Task], is_enough: Callable[[int], bool], imports: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.tasks = list(tasks)
        self.is_enough = is_enough
        self.imports = tuple(imports)

    def __iter__(self) -> Iterator[Task]:
        number = 0
        while self.tasks and not self.is_enough(number):
            yield self.tasks[number % len(self.tasks)]
            number += 1


class PartPipe(DataPipe):
    """A pipe that runs one part of each task, with torch or functions if the part needs them."""

    def __init__(
        self, work: PlannedWork, seed: int, epoch: int, clock: Clock = time.perf_counter
    ) -> None:
        super().__init__()
        self.parent = work.cut.planner
        # Functions run in one thread: several threads run only the pipes before them.
        recipe = split_at_functions(work)[0].recipe if work.beside_loop else work.recipe
        self.parts = Parts(recipe or PipeRunner(work.cut), seed, epoch, clock)
        self.torch = work.workers > 0 and work.recipe is None
        self.runs_user_code = any(traits_of(pipe).runs_user_code for pipe in work.cut.realizing)

    @property
    def traits(self) -> Traits:
        """Takes tasks one by one, and runs the user's functions if there are any."""
        return Traits(per_item=True, voxels=True, runs_user_code=self.runs_user_code)

    def instructions(self) -> tuple[Instruction, ...] | None:
        """Return the parts, so that they run in workers like those of the loader."""
        return None if self.torch else (self.parts,)

    def __iter__(self) -> Iterator[Any]:
        for task in self.parent:
            yield from self.parts([task])


# A difference of two times that is smaller than this share of them is noise.
NOISE = 0.05
# A faster read comes from memory, or from a disk that causes no waits.
MEMORY_BYTES_PER_SECOND = 2e9


@dataclass(frozen=True)
class Subject:
    """A loader, as far as it is measured. Nothing in it is changed."""

    graph: Pipe
    service: ReadingService
    seed: int
    epoch: int
    cursor: DeliveredBatches
    """Which batches of it were delivered."""
    running: bool = False
    kept_seconds: float | None = None
    """Seconds for which the caller's own loop kept a batch, if it ran."""
    apply_schemes: Callable[[Work], Work] = lambda work: work
    """Gives work the cache and the read-ahead that chain and stores have agreed on."""
    notes: tuple[str, ...] = ()
    """Other notes for the user."""
    tail: tuple[Pipe, ...] = ()
    """Pipes that run in this process, after the service."""


def diagnose(
    subject: Subject, effort: Effort, step: TrainStep | None = None, cores: int | None = None
) -> Diagnosis:
    """Return the diagnosis of a loader; GraphError if its parts cannot be measured apart."""
    function: Any = step
    if function is not None and not callable(function):
        msg = "step is a function of a batch, e.g. one training step, or None"
        raise TypeError(f"{msg}, got {shorten(step)}")
    with _measuring(subject, effort, cores) as measuring:
        costs = measuring.costs()
        rate, costs = measuring.whole(costs, step)
        return judge(measuring.measurement(costs), rate, has_step=step is not None)


def measure(subject: Subject, effort: Effort, cores: int | None = None) -> Measurement:
    """Return the times of a loader's parts; it is not run as a whole."""
    with _measuring(subject, effort, cores) as measuring:
        return measuring.measurement(measuring.costs())


@contextmanager
def _measuring(subject: Subject, effort: Effort, cores: int | None) -> Iterator[_Measuring]:
    service = copy_service(subject.service)
    work = service.distribute(without_timers(subject.graph))
    if not isinstance(work, PlannedWork):
        msg = f"the parts of this graph cannot be measured apart: {work.reason}"
        do = "Give Profile() among the adapters; it times each pipe where it runs."
        raise GraphError(msg, do=do)
    check_source(work.cut.planner, running=subject.running)
    own: Any = subject.apply_schemes(work)
    measuring = _Measuring(subject, effort, service, own, cores or usable_cores())
    # The volumes that threads of this process have opened stay open from one part to the next.
    begin(measuring)
    try:
        with progress_line("measuring", text=lambda: measuring.part):
            yield measuring
    finally:
        measuring.tail.shutdown()
        service.stop()
        end(measuring)


@dataclass(eq=False)
class _Measuring:
    """The measurements of one diagnosis, in the order in which they are made."""

    _subject: Subject
    _effort: Effort
    _service: ReadingService
    _work: PlannedWork
    _cores: int

    def __post_init__(self) -> None:
        subject, work = self._subject, self._work
        self._workers = work.workers if work.cut.realizing else 0
        self._in_threads = work.beside_loop and bool(work.cut.realizing)
        # Threads of this process that make a batch each, and batches that are made at once.
        self._sharing = work.threads if self._in_threads else 1
        self._makers = self._workers or self._sharing
        self._beside = ranks_beside(work.part.ranks, os.environ)
        self._cores = max(1, self._cores // self._beside)
        # Makers, and threads of all of them, that have a core to themselves.
        self._at_once = min(self._makers, self._cores)
        self._threads_at_once = min(max(1, self._workers) * work.threads, self._cores)
        # Each maker makes two of everything before the time may end a measurement.
        self._least = 2 * self._makers
        self._part_pipe = PartPipe(work, subject.seed, subject.epoch, self._effort.clock)
        self.notes: list[str] = []
        self.part = "planning"  # that is measured now
        self._waits = False
        self._tasks: list[Task] = []
        self._names: list[str] = []
        self._in_planner = functions_in(work.cut.planner)
        self._interpolates = False
        # Timers are left out, and other ranks do not agree on batches meanwhile.
        after = (p for p in subject.tail if not traits_of(p).watches)
        self.tail = MainProcessTail(tuple(p for p in after if chained_name(p) != "fullsync"))

    def costs(self) -> CostModel:
        """Measure the parts; the rest is the time for whole batches without them."""
        planning, plans = self._planning()
        reads = {job.index: reads_of(job.items) for job in plans}
        tasks = self._tasks = [Task("", job, reads[job.index]) for job in plans]
        costs = CostModel(fmean(len(task.job.items) for task in tasks), planning)
        if not self._work.cut.realizing:
            self.notes.append(ONLY_PLANS)
            return costs
        decoded_bytes = 0.0
        if any(task.reads for task in tasks):
            self._decode_once(tasks)
            costs, decoded_bytes = self._storage(costs)
        else:
            self.notes.append("no lazy patches: rest is all that is done to the items")
        costs = self._kernels(costs)
        if self._workers or self._in_threads:
            costs = replace(costs, transport=self._transport())
        self._service.stop()  # the next measurement needs the cores
        return self._tail_costs(self._rest(costs, decoded_bytes))

    def measurement(self, costs: CostModel) -> Measurement:
        """Return the costs with the facts for advice."""
        work, split = self._work, self._work.cut
        ahead: Any = getattr(self._service, "jobs_per_worker", lambda remote: 1)
        facts = LoaderFacts(
            workers=self._workers,
            threads=work.threads if self._workers else self._sharing,
            beside_loop=self._in_threads,
            ahead=ahead(True) if work.ahead_bytes and (self._workers or self._in_threads) else 1,
            cores=self._cores,
            ranks=self._beside,
            amplification=amplification([read for task in self._tasks for read in task.reads]),
            waits=self._waits,
            functions=any(traits_of(pipe).runs_user_code for pipe in split.realizing),
            function_names=" and ".join(self._names),
            runs_tail=(costs.tail or 0.0) > (costs.functions or 0.0),
            interpolates=self._interpolates,
            planned_functions=" and ".join(self._in_planner),
        )
        return Measurement(costs, facts, (*self.notes, *self._subject.notes))

    def _planning(self) -> tuple[float, list[Job]]:
        """Plan batches without making them; return seconds per batch, and the first of them."""
        plans: list[Job] = []
        # The first batches of an epoch run functions for most of the cases: begin with these.
        first = int(bool(self._in_planner) and self._subject.cursor != DeliveredBatches())
        for epoch, cursor in islice(_runs(self._subject.epoch, self._subject.cursor), first, 3):
            is_enough = self._effort.stop_rule(self._least)
            moments = [self._effort.clock()]
            for job in jobs(self._work.cut, self._subject.seed, epoch, cursor, self._work.part):
                moments.append(self._effort.clock())
                if len(plans) < self._effort.batches:
                    plans.append(job)
                if is_enough(len(moments) - 1):
                    break
            if plans:
                # The first one waits for the list of cases and the shuffle of them.
                is_whole = bool(self._in_planner) and not is_enough(len(moments) - 1)
                steady = moments[1:] if len(moments) > 2 and not is_whole else moments
                return (steady[-1] - steady[0]) / (len(steady) - 1), plans
        raise _nothing()

    def _decode_once(self, tasks: Sequence[Task]) -> None:
        """Make the decoded copies of volumes that can only be read from their beginning."""
        volumes = (read.volume for task in tasks for read in task.reads)
        every = {volume.token: volume for volume in volumes if volume.access == "stream"}
        start = self._effort.clock()
        for volume in every.values():
            volume.read(Region((0, 0, 0), (1, 1, 1)))
        if every:
            took = self._effort.clock() - start
            count = count_text(len(every), "volume was", "volumes were")
            self.notes.append(f"{count} made readable first, once for each, in {took:.2g} s")

    def _storage(self, costs: CostModel) -> tuple[CostModel, float]:
        """Measure fetching and decoding without a cache; return the bytes decoded per batch."""
        volumes = {read.volume.token: read for task in self._tasks for read in task.reads}
        opening = Task("", self._tasks[0].job, tuple(volumes.values()))
        self._pass("open", [opening] * self._least, most=self._least)
        cold = self._pass("fetch", most=len(self._tasks))
        self._tasks = self._tasks[: len(cold)]
        reads = [read for task in self._tasks for read in task.reads]
        every = [part.located_source for r in volumes.values() for part in r.volume.parts]
        costs = replace(
            costs,
            bytes_read=sum(r.read_bytes(whole_chunks=True) for r in reads)
            / (len(self._tasks) * costs.items),
            remote=any(source is not None and not source.path for source in every),
        )
        joint = tuple(dict.fromkeys(name for each in cold for name in each.result))
        if joint:
            more = f" and {len(joint) - 1} more" if joint[1:] else ""
            what = "decode holds fetching too: they cannot be told apart for"
            self.notes.append(f"{what} {joint[0]}{more}")
            return replace(costs, decode=self._on_one_core(cold)), _mean(cold, "bytes_decoded")
        warm = self._pass("fetch")
        first, second = _mean(cold, "seconds"), _mean(warm, "seconds")
        size = costs.bytes_read * costs.items * self._makers
        slow = first > 0 and size / first < MEMORY_BYTES_PER_SECOND
        # A busy machine is slow, too; bytes of a network file system are not counted.
        far = any(read.volume.layout().latency > LOCAL_LATENCY for read in volumes.values())
        # A process counts all its threads together, which do the same.
        cold_bytes = _mean(cold, "disk_bytes") / costs.items / self._sharing
        slow = slow and (far or cold_bytes > DISK_SHARE * costs.bytes_read)
        self._waits = costs.remote or (second < FROM_MEMORY * first and slow)
        waiting = 0.0
        if costs.remote:  # every time
            waiting = max(0.0, second - _mean(warm, "busy") / self._sharing)
        elif self._waits:
            waiting = first - second
        if second < FROM_MEMORY * first and slow:
            self.notes.append(f"fetched a second time it took {second / first:.0%} as long")
        fetch = self._on_one_core(warm, waiting if costs.remote else 0.0)
        costs = replace(costs, fetch=fetch, waiting=waiting, decode=0.0)
        if all(read.volume.chunks is None for read in volumes.values()):
            return costs, 0.0
        both = self._pass("read")
        decode = _mean(both, "seconds") - second
        on_one_core = decode * self._threads_at_once / self._makers
        is_noise = decode <= NOISE * _mean(both, "seconds")
        return replace(costs, decode=0.0 if is_noise else on_one_core), _mean(both, "bytes_decoded")

    def _kernels(self, costs: CostModel) -> CostModel:
        """Sample voxels that are in memory, all makers at once and one thread alone."""
        kernels = _by_key(self._pass("kernel", most=KERNEL_BATCHES))
        if not (self._workers or self._in_threads):
            return replace(costs, kernels=kernels)
        share = self._at_once / self._makers
        kernels = {key: seconds * share for key, seconds in kernels.items()}
        cut = self._cut("kernel", self._tasks, KERNEL_BATCHES)
        alone = sum(_by_key(self._run(cut, here=True)).values())
        whole = sum(kernels.values())
        # More than alone where cores share something; less is noise.
        faster = min(1.0, alone / whole) if whole and self._at_once > 1 else 1.0
        return replace(costs, kernels=kernels, alone=faster, at_once=self._at_once)

    def _transport(self) -> float:
        """Hand over batches of the real layout; return the seconds of each."""
        self.part, clock = "transport", time.thread_time if self._in_threads else self._effort.clock
        # Each maker makes a real batch first for its layout, which may run slow functions.
        first, least = self._least, 3 * self._least
        cut = self._cut(self.part, self._tasks, max(KERNEL_BATCHES, least), least)
        moments = [clock() for _ in self._outcomes(cut, here=False)]
        return (moments[-1] - moments[first - 1]) / (len(moments) - first)

    def _functions(self) -> tuple[float | None, float]:
        """Run the user's functions and later pipes; seconds of a batch, of a processor."""
        before, pipes = split_at_functions(self._work)
        if not pipes or before.recipe is None:
            return None, 0.0
        self._names = [pipe.strip(" ·") for pipe in pipes]
        runner = PipeRunner(self._work.cut, len(before.cut.realizing))
        run, took = (self._subject.seed, self._subject.epoch), []
        is_enough = self._effort.stop_rule(2)
        for job in cycle(task.job for task in self._tasks):
            items = [as_tensors(item) for item in before.recipe.items(job)]
            start, busy = self._effort.clock(), time.thread_time()
            runner.run(job, *run, items)
            took.append((self._effort.clock() - start, time.thread_time() - busy))
            if is_enough(len(took)):
                break
        first, second = zip(*took[1:], strict=True)
        return fmean(first), fmean(second)

    def _rest(self, costs: CostModel, decoded_bytes: float) -> CostModel:
        """Make whole batches in one thread here; return the costs with the rest."""
        # Work for each volume is no part of a batch: its copy, its statistics. A first run does it
        # for all batches of the second run.
        self.part = "whole batches"
        number, *_ = self._whole_batches(len(self._tasks))
        _, seconds, busy, bytes_decoded, lock = self._whole_batches(number, number)
        functions, own_lock = self._functions()
        # Chunks that were kept are neither fetched nor decoded again.
        new = min(1.0, bytes_decoded / decoded_bytes) if decoded_bytes else 1.0
        whole = max(0.0, (busy if self._waits else seconds) - costs.planning)
        functions = functions and min(functions, whole)
        parts = whole - (functions or 0.0)
        fetch, decode = (each and each * new for each in (costs.fetch, costs.decode))
        total = (fetch or 0.0) + (decode or 0.0) + sum(costs.kernels.values())
        # Apart from each other they may take longer than together.
        total *= costs.alone
        scale = min(1.0, parts / total) if total else 1.0
        return replace(
            costs,
            fetch=fetch and fetch * scale,
            decode=decode and decode * scale,
            waiting=costs.waiting * new,
            kernels={key: each * scale for key, each in costs.kernels.items()},
            rest=max(0.0, parts - total),
            functions=functions,
            lock=min(parts, max(0.0, lock - costs.planning - own_lock)),
            bytes_decoded=bytes_decoded / costs.items,
        )

    def _tail_costs(self, costs: CostModel) -> CostModel:
        """Run the pipes that follow the service, on batches that are made before."""
        if not self.tail.pipes:
            return costs
        self.part = "pipes after the service"
        self._names += map(describe, self.tail.pipes)
        took: list[float] = []
        is_enough = self._effort.stop_rule(2)
        with closing(self._batches_here()) as batches:
            while not is_enough(len(took)):
                some = [*islice(batches, self._effort.batches)]
                start = self._effort.clock()
                self.tail.run_on(some)
                took.append((self._effort.clock() - start) / len(some))
        ahead = any(traits_of(pipe).ahead for pipe in self.tail.pipes)
        # Threads and processes of the pipes have started in the first round.
        return replace(costs, tail=fmean(took[1:]), tail_ahead=ahead)

    def _batches_here(self) -> Generator[Any, None, None]:
        work = replace(self._work, workers=0, threads=1, limits=Limits())
        return self._batches(InProcessReadingService(), self._subject.cursor, work)

    def _whole_batches(self, *numbers: int) -> tuple[int, float, float, float, float]:
        """Make batches here; return how many, and seconds, processor's, bytes, lock's of each."""
        with closing(self._batches_here()) as batches, free_seconds() as free:
            for _ in range(2):
                next(batches)
            counts, busy = IO_COUNTERS.snapshot(), time.process_time()
            free.clear()
            own = time.thread_time()
            number, seconds = self._effort.repeat(lambda: next(batches), *numbers)
            lock = time.thread_time() - own - sum(free)
            busy = time.process_time() - busy
            counts = IO_COUNTERS.snapshot() - counts
        self._interpolates = counts.interpolations > 0
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            lock = 0.0
        return number, seconds, busy / number, counts.bytes_decoded / number, lock / number

    def _on_one_core(self, every: Sequence[PartResult], waiting: float = 0.0) -> float:
        """Return the seconds of one thread on a core of its own, from those of all makers."""
        return (_mean(every, "seconds") - waiting) * self._threads_at_once / self._makers

    def _pass(
        self, part: str, tasks: Sequence[Task] | None = None, most: int | None = None
    ) -> list[Any]:
        """Run one part of the tasks, in turn, where batches are made; return the results."""
        self.part = part
        return self._run(self._cut(part, self._tasks if tasks is None else tasks, most))

    def _cut(
        self, part: str, tasks: Sequence[Task], most: int | None = None, least: int | None = None
    ) -> Cut:
        is_enough = self._effort.stop_rule(least or self._least, most)
        own = [Task(part, task.job, task.reads) for task in tasks]
        pipes = walk(self._work.cut.planner)
        imports = sorted({m for pipe in pipes for m in getattr(pipe, "imports", ())})
        return Cut(Tasks(own, is_enough, imports), (self._part_pipe,), group=1, drop_last=False)

    def _run(self, split: Cut, *, here: bool = False) -> list[Any]:
        outcomes = []
        for outcome in self._outcomes(split, here or not (self._workers or self._in_threads)):
            # A batch is dropped at once, as one that was used.
            outcomes.append(outcome if isinstance(outcome, PartResult) else None)
            del outcome
        return outcomes

    def _outcomes(self, split: Cut, here: bool) -> Iterator[Any]:
        if here:
            try:
                yield from split.onto(split.planner)
            except LOCATABLE as error:
                raise as_raised(error)  # noqa: B904  the very same error
            return
        subject = self._subject
        # Nothing is kept or fetched ahead: a part is measured by itself.
        work = replace(self._work, cut=split, errors=ErrorPolicy(), part=WHOLE)
        work = replace(work, cache_bytes=0, ahead_bytes=None)
        epoch = self._service.epoch(work, subject.seed, subject.epoch, DeliveredBatches())
        with closing(epoch) as running:
            yield from running

    def whole(self, costs: CostModel, step: TrainStep | None) -> tuple[float, CostModel]:
        """Run the loader for a while on the next batches.

        Returns batches per second, and the costs with those of the consumer.
        """
        self.part, batch = "the whole loader", None
        service = copy_service(self._subject.service)

        def use() -> None:
            nonlocal batch
            batch = next(batches)
            if step is not None:
                step(batch)

        cursor = DeliveredBatches(self._tasks[-1].job.index + 1)
        graph = without_timers(self._subject.graph)
        work: Any = self._subject.apply_schemes(service.distribute(graph))
        batches = self._batches(service, cursor, work, self.tail)
        with ExitStack() as ending, closing(batches):
            ending.callback(service.stop)
            # Workers start, import and open; the consumer's first step warms up.
            for _ in range(self._least):
                use()
            rate = 1 / self._effort.repeat(use, self._least)[1]
        return rate, self._consuming(costs, batch, step)

    def _batches(
        self, service: ReadingService, first: DeliveredBatches, work: Work, tail: Any = None
    ) -> Generator[Any, None, None]:
        seed = self._subject.seed
        for epoch, cursor in _runs(self._subject.epoch, first):
            batches = service.epoch(work, seed, epoch, cursor)
            with closing(tail.epoch(batches, seed, epoch) if tail else batches) as running:
                for outcome in running:
                    batch = outcome.batch if isinstance(outcome, BatchResult) else outcome
                    if batch is not None:
                        yield batch
            if running.last < 0 and epoch > self._subject.epoch:
                raise _nothing()

    def _consuming(self, costs: CostModel, batch: Any, step: TrainStep | None) -> CostModel:
        if step is not None:
            return replace(costs, consumer=self._effort.repeat(lambda: step(batch), 1)[1])
        if self._subject.kept_seconds is not None:
            self.notes.append("consumer: how long your loop kept a batch, the median")
            return replace(costs, consumer=self._subject.kept_seconds)
        how = "give step=train_step, or call this when your loop has run for some batches"
        self.notes.insert(0, f"your loop took no batches yet, so it was not measured: {how}")
        return costs


def _mean(every: Sequence[PartResult], name: str) -> float:
    return fmean(getattr(each, name) for each in every)


def _by_key(every: Sequence[PartResult]) -> dict[str, float]:
    keys = dict.fromkeys(key for each in every for key in each.result)
    return {key: fmean(each.result.get(key, 0.0) for each in every) for key in keys}


def amplification(reads: Sequence[ReadPlan]) -> float:
    """Return the voxels in the chunks that are read, by those that are needed."""
    size = sum(read.read_bytes(whole_chunks=False) for read in reads)
    return sum(read.read_bytes(whole_chunks=True) for read in reads) / size if size else 1.0


def _runs(epoch: int, cursor: DeliveredBatches) -> Iterator[tuple[int, DeliveredBatches]]:
    """Yield where to read on: the rest of this epoch, then the whole of the following ones."""
    yield epoch, cursor
    while True:
        epoch += 1
        yield epoch, DeliveredBatches()


def _nothing() -> GraphError:
    return GraphError("an epoch has no batch to measure", do="Look at the list of cases.")
