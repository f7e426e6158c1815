"""Measure what each part of a loader could do alone, on the batches that come next.

Everything runs on copies: of the graph, of the service and so of the workers. Each part is
done by itself, for about as long as ``seconds``, by the loader's own number of processes, on
the loader's own plans; then the whole is run once for comparison.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from numbers import Real
from typing import Any, TypeAlias

from torch.utils.data import IterDataPipe

from ..adapters.profile import without_timers
from ..batching.collate import usable_cores
from ..batching.job import BatchResult, Instruction, Job
from ..batching.parts import Parts, Task, map_patches
from ..core import Region, Sample
from ..core.errors import GraphError
from ..core.validate import count_text, validate_int
from ..datapipes import DataPipe
from ..datapipes.epoch import may_look_ahead
from ..datapipes.iter import BatchPatches
from ..graph import Cut, Pipe, Traits, describe, parents_of, traits_of, walk
from ..reading_services import PlannedWork, ReadingService
from ..reading_services.delivered_batches import DeliveredBatches
from ..reading_services.pipe_runner import PipeRunner
from ..reading_services.planner import jobs
from ..reading_services.reading_service import close_if_idle
from ..spatial import LazyPatch
from ..spatial.lazy.read_plan import ReadPlan
from ..volumes import Volume
from .diagnosis import FROM_MEMORY, Diagnosis, Setup, judge, ranks_beside, share_of

BATCHES = 8
"""Batches whose plans are looked at: enough that their mean says something."""
SECONDS = 1.0
"""Time for which each part is measured: long against a batch, short for whoever waits."""

Clock: TypeAlias = "Callable[[], float]"


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    batches: int = BATCHES
    seconds: float = SECONDS
    clock: Clock = time.perf_counter

    def __post_init__(self) -> None:
        validate_int("batches", self.batches, least=1)
        seconds: Any = self.seconds
        is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
        if not is_number or not seconds > 0:
            msg = f"each part is measured for some time in seconds, got seconds={seconds!r}"
            raise ValueError(msg) if is_number else TypeError(msg)

    def stop_rule(self, least: int, most: int | None = None) -> Callable[[int], bool]:
        """Return what says after ``number`` batches whether these are enough.

        They are when the time is over and ``least`` were made, or when ``most`` were.
        """
        starts: list[float] = []

        def is_enough(number: int) -> bool:
            if not starts:
                starts.append(self.clock())
            is_over = number >= least and self.clock() - starts[0] >= self.seconds
            return is_over or (most is not None and number >= most)

        return is_enough

    def seconds_per_call(self, call: Callable[[], object], least: int) -> float:
        """Return how long a call takes, of ``least`` calls or as many as there is time for."""
        is_enough, number, start = self.stop_rule(least), 0, self.clock()
        while not is_enough(number):
            call()
            number += 1
        return (self.clock() - start) / number


def copy_service(service: ReadingService) -> ReadingService:
    """Return a service of its own, whose workers stay from one measurement to the next.

    Of ranks it is this one: the others need not measure at the same time.
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
            do="Call diagnose() before the loop or after it.",
        )


def reads_of(items: Sequence[Any]) -> tuple[ReadPlan, ...]:
    """Return the reads that the lazy patches among ``items`` need; reads headers only."""
    samples = (item for item in map_patches(items, lambda p: p) if isinstance(item, Sample))
    patches = (value for each in samples for value in each.values() if isinstance(value, LazyPatch))
    reads = (read for patch in patches for read in patch.reads())
    return tuple(r for r in reads if isinstance(r.volume, Volume) and not r.region.is_empty)


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


class Stage(DataPipe):
    """Does one part of each task of what realizes, with torch or functions if that needs it."""

    def __init__(self, work: PlannedWork, seed: int, epoch: int) -> None:
        super().__init__()
        self.parent = work.cut.planner
        self.parts = Parts(work.recipe or PipeRunner(work.cut), seed, epoch)
        self.torch = work.recipe is None
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
# What comes faster than this does not come from a disk that anybody waits for.
MEMORY_BYTES_PER_SECOND = 2e9

Step: TypeAlias = "Callable[[Any], object]"


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


def diagnose(
    subject: Subject, extent: Extent, step: Step | None = None, cores: int | None = None
) -> Diagnosis:
    """Return what limits a loader; GraphError if its parts cannot be measured apart."""
    service = copy_service(subject.service)
    work = service.distribute(without_timers(subject.graph))
    if not isinstance(work, PlannedWork):
        msg = f"the parts of this graph cannot be measured apart: {work.reason}"
        do = "Give Profile() among the adapters; it times each pipe where it runs."
        raise GraphError(msg, do=do)
    check_source(work.cut.planner, running=subject.running)
    try:
        return _Measuring(subject, extent, service, work).diagnosis(step, cores or usable_cores())
    finally:
        service.stop()
        close_if_idle()


@dataclass(eq=False)
class _Measuring:
    """The measurements of one diagnosis, in the order in which they are made."""

    _subject: Subject
    _extent: Extent
    _service: ReadingService
    _work: PlannedWork

    def __post_init__(self) -> None:
        subject, work = self._subject, self._work
        self._workers = work.workers if work.cut.realizing else 0
        # Each process makes two of everything before the time may end a measurement.
        self._least = 2 * max(1, self._workers)
        self._stage = Stage(work, subject.seed, subject.epoch)
        self._seconds: dict[str, float] = {}
        self._notes: list[str] = []
        self._together: tuple[str, ...] = ()
        self._waits = False

    def diagnosis(self, step: Step | None, cores: int) -> Diagnosis:
        plans = self._planning()
        reads = {job.index: reads_of(job.items) for job in plans}
        tasks = [Task("", job, reads[job.index]) for job in plans]
        if self._work.cut.realizing:
            tasks = self._realizing(tasks)
        self._service.stop()  # the next service needs the cores
        rate = self._whole(tasks[-1].job.index, step)
        split = self._work.cut
        beside = ranks_beside(self._work.part.ranks, os.environ)
        facts = Setup(
            workers=self._workers,
            threads=self._work.threads,
            cores=share_of(cores, beside),
            ranks=beside,
            items=sum(len(task.job.items) for task in tasks) / len(tasks),
            amplification=amplification([read for task in tasks for read in task.reads]),
            waits=self._waits,
            together=self._together,
            straight=all(p.straight for p in split.realizing if isinstance(p, BatchPatches)),
            functions=any(traits_of(pipe).runs_user_code for pipe in split.realizing),
            planned_functions=any(traits_of(pipe).runs_user_code for pipe in walk(split.planner)),
        )
        notes = tuple(self._notes)
        return judge(self._seconds, rate, facts, notes, has_step=step is not None)

    def _planning(self) -> list[Job]:
        """Plan batches without making them; return the first of them."""
        plans: list[Job] = []
        for epoch, cursor in islice(_runs(self._subject.epoch, self._subject.cursor), 2):
            is_enough = self._extent.stop_rule(self._least)
            moments = [self._extent.clock()]
            for job in jobs(self._work.cut, self._subject.seed, epoch, cursor, self._work.part):
                moments.append(self._extent.clock())
                if len(plans) < self._extent.batches:
                    plans.append(job)
                if is_enough(len(moments) - 1):
                    break
            if plans:
                # The first one waits for the list of cases and the shuffle of them.
                steady = moments[1:] if len(moments) > 2 else moments
                self._seconds["planning"] = (steady[-1] - steady[0]) / (len(steady) - 1)
                return plans
        raise _nothing()

    def _realizing(self, tasks: list[Task]) -> list[Task]:
        """Measure the parts that are done where the batches are made; return what was used."""
        if any(task.reads for task in tasks):
            self._decode_once(tasks)
            tasks = self._storage(tasks)
        else:
            self._notes.append("no lazy patches: resample is all that is done to the items")
        self._pass("hold", tasks, most=len(tasks))
        self._seconds["resample"] = self._pass("resample", tasks)[0]
        if self._workers:
            self._pass("transport", tasks, most=self._least)  # the layout is looked at once
            self._seconds["transport"] = self._pass("transport", tasks)[0]
        return tasks

    def _decode_once(self, tasks: Sequence[Task]) -> None:
        """Make the decoded copies of volumes that can only be read from their beginning."""
        volumes = (read.volume for task in tasks for read in task.reads)
        every = {volume.token: volume for volume in volumes if volume.access == "stream"}
        start = self._extent.clock()
        for volume in every.values():
            volume.read(Region((0, 0, 0), (1, 1, 1)))
        if every:
            took = self._extent.clock() - start
            count = count_text(len(every), "volume was", "volumes were")
            self._notes.append(f"{count} made readable first, in {took:.2g} s")

    def _storage(self, tasks: list[Task]) -> list[Task]:
        volumes = {read.volume.token: read for task in tasks for read in task.reads}
        opening = Task("", tasks[0].job, tuple(volumes.values()))
        self._pass("open", [opening] * self._least, most=self._least)
        cold, outcomes = self._pass("fetch", tasks, most=len(tasks))
        tasks = tasks[: len(outcomes)]
        self._together = tuple(dict.fromkeys(name for names in outcomes for name in names))
        if self._together:
            self._seconds["decode"] = cold
            more = f" and {len(self._together) - 1} more" if self._together[1:] else ""
            what = "decode holds fetching too: they cannot be told apart for"
            self._notes.append(f"{what} {self._together[0]}{more}")
            return tasks
        warm, _ = self._pass("fetch", tasks)
        size = sum(read.read_bytes(whole_chunks=True) for task in tasks for read in task.reads)
        slow = cold > 0 and size / len(tasks) / cold < MEMORY_BYTES_PER_SECOND
        self._waits = warm < FROM_MEMORY * cold and slow
        self._seconds["fetch"] = cold if self._waits else warm
        if self._waits:
            self._notes.append(f"fetched a second time it took {warm / cold:.0%} as long")
        self._seconds["decode"] = 0.0
        if any(read.volume.chunks is not None for read in volumes.values()):
            both, _ = self._pass("read", tasks)
            self._seconds["decode"] = both - warm if both - warm > NOISE * both else 0.0
        return tasks

    def _pass(
        self, part: str, tasks: Sequence[Task], most: int | None = None
    ) -> tuple[float, list[Any]]:
        """Do one part of the tasks, in turn; return seconds per batch and what came of each."""
        is_enough = self._extent.stop_rule(self._least, most)
        own = [Task(part, task.job, task.reads) for task in tasks]
        pipes = walk(self._work.cut.planner)
        imports = sorted({m for pipe in pipes for m in getattr(pipe, "imports", ())})
        split = Cut(Tasks(own, is_enough, imports), (self._stage,), group=1, drop_last=False)
        outcomes = []
        start = self._extent.clock()
        for outcome in self._outcomes(split):
            # A batch is dropped at once, as one that was used.
            outcomes.append(None if part == "transport" else outcome)
            del outcome
        return (self._extent.clock() - start) / len(outcomes), outcomes

    def _outcomes(self, split: Cut) -> Iterator[Any]:
        if not self._workers:
            # Not by the service, whose epochs close the volumes at their end.
            yield from split.onto(split.planner)
            return
        subject = self._subject
        work = PlannedWork(split, self._work.limits)
        epoch = self._service.epoch(work, subject.seed, subject.epoch, DeliveredBatches())
        with closing(epoch) as running:
            yield from running

    def _whole(self, last: int, step: Step | None) -> float:
        """Run the loader for a while on what comes next; return batches per second."""
        service = copy_service(self._subject.service)
        batch = None

        def use() -> None:
            nonlocal batch
            batch = next(batches)
            if step is not None:
                step(batch)

        with ExitStack() as ending, closing(self._batches(service, last)) as batches:
            ending.callback(service.stop)
            # Workers start, import and open; the consumer's first step warms up.
            for _ in range(self._least):
                use()
            rate = 1 / self._extent.seconds_per_call(use, self._least)
        self._consuming(batch, step)
        return rate

    def _batches(self, service: ReadingService, last: int) -> Generator[Any, None, None]:
        work = service.distribute(without_timers(self._subject.graph))
        for epoch, cursor in _runs(self._subject.epoch, DeliveredBatches(last + 1)):
            with closing(service.epoch(work, self._subject.seed, epoch, cursor)) as running:
                for outcome in running:
                    batch = outcome.batch if isinstance(outcome, BatchResult) else outcome
                    if batch is not None:
                        yield batch
            if running.last < 0 and epoch > self._subject.epoch:
                raise _nothing()

    def _consuming(self, batch: Any, step: Step | None) -> None:
        if step is not None:
            seconds = self._extent.seconds_per_call(lambda: step(batch), 1)
            self._seconds["consumer"] = seconds
        elif self._subject.kept_seconds is not None:
            self._seconds["consumer"] = self._subject.kept_seconds
            self._notes.append("consumer: how long your loop kept a batch, the median")
        else:
            how = "give step=, or run your loop over the loader before"
            self._notes.append(f"the consumer was not measured: {how}")


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
