"""Forecast of a loader's rate from times of its parts: pure, no clock, no process.

A worker fetches, decodes and resamples one batch after another; meanwhile the consumer's
process plans, takes batches over and uses them. So there are two lines, and the slower one
sets the pace, unless both together want more cores than there are. Threads next to the loop share
one lock, and leave functions of the user to the loop; a loop alone is one line. Functions that run
ahead after the service are a line of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..adapters.profile import align
from ..core import Viewable
from ..core.validate import count_text, validate_int

WORKERS_LINE = ("fetch", "decode", "resample", "functions")
"""Parts that workers do all at once, each a batch of its own; threads do, but for functions."""
CONSUMERS_LINE = ("planning", "transport", "consumer")
"""Parts that the consumer's process does or waits for, one after another."""
STAGES = ("planning", "fetch", "decode", "resample", "functions", "transport", "consumer")
"""Every part, in the order in which a batch comes by."""

# Waiting for the interpreter's lock costs about as much again as holding it: the waiting thread
# sleeps and is woken while the lock is free. With this factor the forecast for six chains is within
# 15 %, as with 1.5. They were patches of 32 to 96 from .nii and zarr, made by two threads on two
# idle cores (AMD EPYC, Python 3.11).
HAND_OVER = 1.0
ONLY_PLANS = (
    "no voxel is read and no worker or thread is started, as every pipe plans: these are figures "
    "of plans; end the chain with .batch_patches(n) to make batches of patches"
)
# Both forecasts may be wrong by 25 %, so a smaller gain is not sure.
SURELY_FASTER = 1.5
# The first of several services is advised, unless another is so many times faster.
MUCH_FASTER = 1.15
RIGHT_SERVICE = f"The present service is right: no other is forecast {SURELY_FASTER} times as fast."
# Seconds to hand a batch over, at most, for a service that did not run. Workers took 0.6 to 4 ms
# for small batches on busy cores, threads 0.1 to 0.2 ms.
WORKER_HAND_OVER = 4e-3
THREAD_HAND_OVER = 2e-4
# Chunks that hold this many times the voxels that are needed are worth storing anew.
MUCH_TOO_MUCH = 2.0


@dataclass(frozen=True)
class Forecast:
    """The expected rate of a loader, and its limit."""

    batches_per_second: float
    """inf if nothing takes any time."""
    limit: str
    """The part that sets the pace, one of ``STAGES``."""
    seconds: Mapping[str, float]
    """Seconds per batch that each part would need alone, with all workers; in that order."""
    set_by: str = ""
    """The formula of a batch's time, in the words of the table."""
    lines: tuple[tuple[str, ...], ...] = ()
    """Parts that run one after another, for each line of them."""


@dataclass(frozen=True)
class CostModel:
    """The measured times of the parts of a batch, from which a loader's rate is forecast.

    Seconds are those of one batch, made by one thread on a core of its own while ``at_once - 1``
    others run.
    """

    items: float
    """Patches in a batch."""
    planning: float = 0.0
    """In the consumer's process."""
    fetch: float | None = None
    """Bringing in stored bytes, less ``waiting``; None where it is a part of ``decode``."""
    waiting: float = 0.0
    """For a disk or a network, with no work for a core."""
    decode: float | None = None
    """None where nothing is read lazily."""
    kernels: Mapping[str, float] = field(default_factory=dict)
    """By key: sampling of voxels that are in memory, with the value ops of the patch."""
    rest: float | None = None
    """Plans, collation and other Python; None where batches only are planned."""
    functions: float | None = None
    """The user's functions after the cut and later pipes; None if there are none."""
    tail: float | None = None
    """Pipes of the loader's own process, after the service."""
    tail_ahead: bool = False
    """Whether these have threads or processes of their own, and run while the loop does."""
    lock: float = 0.0
    """Time with the interpreter's lock, without functions: an upper limit by processor time."""
    transport: float | None = None
    """From a worker to the consumer's process, or from a thread to the loop; None without both."""
    consumer: float | None = None
    """The consumer's own step, where it is known."""
    bytes_read: float = 0.0
    """Bytes of voxels per patch, in the chunks that it needs."""
    bytes_decoded: float = 0.0
    """Bytes of voxels per patch that were decoded: fewer where chunks were kept."""
    remote: bool = False
    """Whether volumes are at URLs."""
    at_once: int = 1
    """Makers of batches that had a core of their own, at once, when this was measured."""
    alone: float = 1.0
    """Share of the seconds that fetching, decoding and kernels take where nothing else runs: less
    than 1 where cores share memory, caches or clock."""

    def forecast(
        self,
        workers: int,
        *,
        threads: int = 1,
        cores: int = 1,
        ahead: int = 1,
        with_consumer: bool = True,
        beside_loop: bool = False,
    ) -> Forecast:
        """Return the forecast for workers, or for threads of one process.

        Parameters
        ----------
        workers
            Worker processes; 0 if everything runs in one.
        threads
            Patches that each worker realizes at once. Fetching, decoding and sampling share the
            time between them; Python does not. With *beside_loop*, threads that make batches.
        cores
            Processors that there are for all of it.
        ahead
            Batches for which a maker fetches at once: how much of ``waiting`` is hidden.
        with_consumer
            Whether the consumer's own step is part of it.
        beside_loop
            Without workers: whether ``threads`` make a batch each while the loop runs, as in
            ``ThreadReadingService``, and wait for each other's ``lock``.
        """
        is_shared = beside_loop and not workers
        separate = is_shared or workers > 0
        makers = workers or (threads if is_shared else 1)
        at_once = max(1, min(makers * (threads if workers else 1), cores))
        pace = self.alone
        if self.at_once > 1:
            pace += (1 - self.alone) * (min(at_once, self.at_once) - 1) / (self.at_once - 1)
        own = {
            "fetch": self.fetch,
            "decode": self.decode,
            "resample": None if self.rest is None else sum(self.kernels.values()),
        }
        work = {part: pace * seconds for part, seconds in own.items() if seconds is not None}
        rest, each = self.rest or 0.0, max(1, min(makers, cores))
        busy = sum(work.values()) + rest
        theirs = {part: seconds / at_once for part, seconds in work.items()}
        if "resample" in theirs:
            waits = self._lock_waits(max(busy, self.lock), at_once) if is_shared else 0.0
            theirs["resample"] += (rest + waits) / each
        if "fetch" in theirs:  # one that makes batches in the loop waits for each
            theirs["fetch"] += self.waiting / (makers * ahead if separate else 1)
        ours: dict[str, float | None] = {"planning": self.planning, "consumer": self.consumer}
        if separate:
            ours["transport"] = self.transport
        functions = (self.functions or 0.0) / (1 if is_shared else each) + (self.tail or 0.0)
        if self.functions is not None or self.tail is not None:
            theirs["functions"] = functions
        every = theirs | {part: seconds for part, seconds in ours.items() if seconds is not None}
        parts = {p: t for p, t in every.items() if with_consumer or p != "consumer"}
        busy += self.planning + (self.functions or 0.0) + (self.tail or 0.0)
        busy += ours.get("transport") or 0.0
        lines = self._lines(separate, is_shared)
        line, total = _slowest_line(parts, lines)
        divisor = "makers" if makers <= cores else "cores"
        name = _formula(line, len(lines), 0 if is_shared else threads if workers else 1, divisor)
        bounds = {name: total}
        if separate or self.tail_ahead:
            bounds["(sum + transport) / cores"] = busy / cores
        if is_shared:
            bounds["lock + planning + transport"] = self._with_lock + self.planning
        set_by = max(bounds, key=bounds.__getitem__)
        # The limit includes the consumer, also if the rate is measured without it.
        limit = max(_slowest_line(every, lines)[0], key=lambda part: every[part])
        alone = {stage: every[stage] for stage in STAGES if stage in every}
        present = (tuple(part for part in line if part in every) for line in lines)
        own_lines = tuple(filter(None, present))
        return Forecast(rate_of(bounds[set_by]), limit, alone, set_by, own_lines)

    def _lines(self, separate: bool, is_shared: bool) -> tuple[tuple[str, ...], ...]:
        """Return the stages of each line, those of the makers first."""
        lines = (WORKERS_LINE, CONSUMERS_LINE) if separate else (STAGES,)
        if self.tail_ahead:
            return *(tuple(s for s in line if s != "functions") for line in lines), ("functions",)
        if separate and (is_shared or self.tail is not None):
            return WORKERS_LINE[:-1], ("planning", "functions", "transport", "consumer")
        return lines

    def _lock_waits(self, whole: float, threads: int) -> float:
        """Return how much longer each of some threads takes than ``whole`` seconds, by the lock.

        Mean value analysis of a closed queue (Lazowska et al., Quantitative System Performance,
        1984, section 6.4): an arriving thread finds the queue of one thread fewer. A lock that is
        taken then has to be handed over, for which each thread holds it longer.
        """
        lock, queue, cycle = self._with_lock, 0.0, whole
        rest, stretch = max(0.0, whole - self.lock), self._with_lock
        for number in range(1, threads + 1):
            cycle = rest + stretch * (1 + queue)
            queue = number * stretch * (1 + queue) / cycle if cycle else 0.0
            use = min(1.0, number * lock / cycle) if cycle else 0.0
            stretch = lock * (1 + HAND_OVER * use)
        return cycle - whole

    @property
    def _with_lock(self) -> float:
        """Seconds with the lock of a batch that threads make, with the loop that takes it over."""
        return self.lock + (self.transport or 0.0)

    @property
    def lock_cores(self) -> float:
        """Cores that threads of one process can use: a batch's time over that with the lock."""
        if not self.lock:
            return math.inf
        whole = sum(self.one_by_one(self.alone)) - self.waiting - (self.functions or 0.0)
        lock = self._with_lock
        return max(1.0, (whole + lock - self.lock) / (lock + self.planning))

    def one_by_one(self, pace: float = 1.0) -> tuple[float, ...]:
        """Return the seconds of all that a batch takes in one process, at such a pace of a core."""
        work = (self.fetch or 0.0, self.decode or 0.0, *self.kernels.values())
        same = (self.planning, self.waiting, self.rest, self.functions, self.tail)
        return *(each or 0.0 for each in same), *(pace * each for each in work)


def _formula(line: Sequence[str], lines: int, threads: int, divisor: str) -> str:
    """Return the table's formula of a line; ``threads`` of a worker, 0 for threads with a loop."""
    if lines == 1:
        return "sum alone"
    if not {"fetch", "decode", "resample"} & {*line}:
        return " + ".join(line)
    rest = "(rest + functions)" if "functions" in line else "rest"
    if threads > 1:
        return f"(sum - {rest}) / all threads + {rest} / workers"
    return f"{'sum' if threads else '(sum + transport + waits)'} / {divisor}"


def _slowest_line(
    seconds: Mapping[str, float], lines: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], float]:
    """Return the parts that set the pace together, in order, and the seconds of all of them."""
    parts = [tuple(part for part in line if part in seconds) for line in lines]
    # If two take equally long, the first that has a part.
    best = max(filter(None, parts), key=lambda line: sum(seconds[part] for part in line))
    return best, sum(seconds[part] for part in best)


@dataclass(frozen=True)
class LoaderFacts:
    """Facts for advice, besides the times."""

    workers: int
    """Worker processes; 0 if everything runs in one process."""
    cores: int
    """Processors that this rank may use: its share, where several run on the machine."""
    ranks: int = 1
    threads: int = 1
    """Patches that each worker realizes at once; with ``beside_loop`` threads that make batches."""
    beside_loop: bool = False
    """Whether threads of the consumer's process make batches while the loop runs."""
    ahead: int = 1
    """Batches for which each maker fetches at once."""
    amplification: float = 1.0
    """Voxels in the chunks that are read, by voxels that are needed."""
    waits: bool = False
    """Whether fetching waited for a disk or a network: it was faster from memory."""
    functions: bool = False
    """Whether functions of the user's run where voxels are realized."""
    function_names: str = ""
    """The pipes that ``functions`` and ``tail`` of the costs time, as in ``explain()``."""
    runs_tail: bool = False
    """Whether more of them run in the loader's own process, after the service."""
    interpolates: bool = False
    """Whether batches were sampled with interpolation."""
    planned_functions: str = ""
    """The pipes that run functions of the user's in the planner, as in ``explain()``."""

    @property
    def reads_too_much(self) -> bool:
        """Whether chunks are so large that the volumes are worth storing anew."""
        return self.amplification >= MUCH_TOO_MUCH

    @property
    def makers(self) -> int:
        """Workers or threads that make batches for the loop; 0 if it makes them itself."""
        return self.workers or (self.threads if self.beside_loop else 0)

    @property
    def who(self) -> str:
        """Number and kind of the makers of batches, as text."""
        return count_text(self.makers, "thread" if self.beside_loop else "worker")


@dataclass(frozen=True)
class Measurement(Viewable):
    """The times of a loader's parts, with forecasts; the whole loader was not run."""

    costs: CostModel
    facts: LoaderFacts
    """Workers and cores with which it was measured."""
    notes: tuple[str, ...] = ()
    """Parts that were left out, and how the rest was measured."""

    def forecast(
        self, workers: int | None = None, *, threads: int | None = None, with_consumer: bool = False
    ) -> Forecast:
        """Return the forecast for so many workers, 0 for none, or for the loader itself.

        Without *workers*, *threads* are those of ``ThreadReadingService``. TypeError or ValueError
        where a number is none, or too small.
        """
        facts = self.facts
        if workers is not None:
            validate_int("workers", workers, least=0)
        if threads is not None:
            validate_int("threads", threads, least=1)
        beside_loop = threads is not None and workers is None
        if workers is None and threads is None:
            workers, threads, beside_loop = facts.workers, facts.threads, facts.beside_loop
        costs = replace(self.costs, transport=self._transport(workers or 0, beside_loop))
        return costs.forecast(
            workers or 0,
            threads=self._threads(workers or 0) if threads is None else threads,
            cores=facts.cores,
            ahead=facts.ahead,
            with_consumer=with_consumer,
            beside_loop=beside_loop,
        )

    def _transport(self, workers: int, beside_loop: bool) -> float | None:
        """Return the seconds to hand a batch over, or those assumed for another service."""
        own, facts = self.costs.transport, self.facts
        if self.costs.rest is None or (facts.workers if workers else facts.beside_loop):
            return own
        if workers:
            return max(own or 0.0, WORKER_HAND_OVER)
        return min(own or math.inf, THREAD_HAND_OVER) if beside_loop else None

    @property
    def better(self) -> str:
        """Advice for a service that is surely faster; empty if the present one is right."""
        return self.faster_service()

    def faster_service(self, least: float = 0.0) -> str:
        """Return advice for a service that is surely faster than this one; else an empty text.

        It is faster than its forecast and than ``least`` batches per second.
        """
        facts, cores, items = self.facts, self.facts.cores, self.costs.items

        def rate(workers: int | None = None, threads: int | None = None) -> float:
            outlook = self.forecast(workers, threads=threads, with_consumer=True)
            return outlook.batches_per_second

        choices = {
            f"MultiProcessingReadingService(num_workers={cores})": rate(cores),
            f"ThreadReadingService(num_threads={cores})": rate(threads=cores),
            "InProcessReadingService()": rate(0),
        }
        own, most = rate(), max(choices.values())
        # More makers of the present kind are the smaller change.
        names = sorted(choices, key=lambda name: facts.beside_loop and "Thread" not in name)
        best = next(name for name in names if choices[name] * MUCH_FASTER >= most)
        if math.isinf(own) or choices[best] <= SURELY_FASTER * max(own, least):
            return ""
        each = f" for each of {facts.ranks} ranks" if facts.ranks > 1 else ""
        place = f"on {count_text(cores, 'core')}{each}"
        who = facts.who if facts.makers else "this process alone"
        whole = f", measured {short_number(least * items)}" if least else ""
        rates = [short_number(each * items) for each in (choices[best], own)]
        return f"Use {best}: {place} it is forecast {rates[0]} patches/s, {who} {rates[1]}{whole}."

    def _threads(self, workers: int) -> int:
        """Return the threads of each of so many workers, as services choose them."""
        if workers and workers == self.facts.workers:
            return self.facts.threads
        return max(1, self.facts.cores // workers) if workers else 1

    def table(self, workers: Sequence[int], threads: Sequence[int] = ()) -> str:
        """Return the parts of a patch and their sum, and the rates of so many workers, threads."""
        costs = self.costs
        needs, decodes = (size / 1e6 for size in (costs.bytes_read, costs.bytes_decoded))
        place = "behind URLs" if costs.remote else "on this machine"
        # Mapped voxels have no chunks, and are not decoded.
        chunks = ", in the chunks needed" if costs.decode or decodes else ""
        voxels = f"{decodes:.3g} MB of voxels"
        if not costs.decode and decodes:
            voxels += ": too little time to be told from that of fetch"
        parts: list[tuple[str, float | None, str]] = [
            ("planning", costs.planning, "this process"),
            ("fetch", costs.fetch, f"{needs:.3g} MB of voxels {place}{chunks}"),
            ("waiting", costs.waiting or None, "for a disk or a network"),
            ("decode", costs.decode, voxels),
            *((f"kernel {key}", seconds, "") for key, seconds in costs.kernels.items()),
            ("rest", costs.rest, "plans, Python, new memory; with kernels: resample"),
            ("functions", costs.functions, "yours; of threads one at a time runs them"),
            ("tail", costs.tail, "pipes in this process, after the service"),
        ]
        but = "" if costs.functions is None else "; functions are not counted"
        beside = f" beside {count_text(costs.at_once - 1, 'other')} at work" * (costs.at_once > 1)
        alone = short_number(1000 * sum(costs.one_by_one(costs.alone)) / costs.items)
        waits = ", of which it waits for a part" if costs.waiting else ""
        parts += [
            (
                "sum",
                sum(costs.one_by_one()),
                f"of one core{beside}{waits}; sum alone, with nothing beside it: {alone}",
            ),
            ("lock", costs.lock or None, f"of this sum, with the interpreter's lock{but}"),
            ("transport", costs.transport, "to this process, or its loop; no part of the sum"),
        ]
        rows = [("part", "ms/patch", "what")]
        rows += [(n, short_number(1000 * s / costs.items), w) for n, s, w in parts if s is not None]
        gives = [("workers", "threads", "patches/s", "ms/patch", "limit", "set by")]
        own = [(str(n), str(self._threads(n)), self.forecast(n)) for n in workers]
        own += [("here", str(n), self.forecast(threads=n)) for n in threads]
        for place, count, outlook in own:
            rate = outlook.batches_per_second * costs.items
            times = (short_number(rate), short_number(1000 / rate))
            gives.append((place, count, *times, outlook.limit, outlook.set_by))
        lines = [align(rows, ljust=(0, 2)), "", align(gives, ljust=(4, 5))]
        if threads and not math.isinf(costs.lock_cores):
            note = "here: ThreadReadingService; its threads share the interpreter's lock, and use "
            note += f"{short_number(costs.lock_cores)} cores at most; processes share none."
            lines += ["", note]
        return "\n".join(lines)

    def __str__(self) -> str:
        facts = self.facts
        threads = sorted({1, 2, 4, facts.threads}) if facts.beside_loop else ()
        counts = (0, facts.threads) if facts.beside_loop else sorted({0, 1, 2, 4, facts.workers})
        where = f"measured with {facts.who}" if facts.makers else "measured here"
        cores = count_text(facts.cores, "core")
        lines = [f"{where}, {cores}; forecasts without your own step", self.table(counts, threads)]
        lines.append(self.better or RIGHT_SERVICE)
        return "\n".join(lines + [f"- {note}" for note in self.notes])


def rate_of(seconds: float) -> float:
    """Return how often something is done in a second; inf if it takes no time."""
    return 1 / seconds if seconds > 0 else math.inf


def short_number(number: float) -> str:
    """Return a number with three digits, or all of its whole ones."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


# Number of ranks of one machine, as set by torchrun and accelerate, Open MPI, Slurm.
LAUNCHERS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")


def ranks_beside(ranks: int, environment: Mapping[str, str]) -> int:
    """Return how many ranks of a job share this machine, this one included.

    If no launcher has set it, all of them: that advises too few workers rather than too many.
    """
    for name in LAUNCHERS:
        count = environment.get(name, "")
        if count.isdecimal() and 0 < int(count) <= ranks:
            return int(count)
    return ranks
