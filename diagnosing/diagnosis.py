"""What a loader gives and what limits it, from times of its parts: pure, no clock, no process.

A worker fetches, decodes and resamples one batch after another; meanwhile the consumer's
process plans, takes batches over and uses them. So there are two lines, and the slower one
sets the pace, unless both together want more cores than there are. The limit is the longest part
of the slower line. Threads beside the loop share one lock; a loop alone is one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..adapters.profile import align
from ..core.validate import count_text

WORKERS_LINE = ("fetch", "decode", "resample")
"""Parts that workers do, or threads beside the loop, all at once, each a batch of its own."""
CONSUMERS_LINE = ("planning", "transport", "consumer")
"""Parts that the consumer's process does or waits for, one after another."""
STAGES = ("planning", "fetch", "decode", "resample", "transport", "consumer")
"""Every part, in the order in which a batch comes by."""

# Chunks that hold this many times the voxels that are needed are worth storing anew.
MUCH_TOO_MUCH = 2.0
# A second fetch that takes less than half as long came from memory: the first one waited.
FROM_MEMORY = 0.5
# Below this share of the time that the parts predict, something that no part shows is in the way.
EXPLAINED_SHARE = 0.7


@dataclass(frozen=True)
class Prediction:
    """What a loader is expected to give."""

    batches_per_second: float
    """inf if nothing takes any time."""
    limit: str
    """The part that sets the pace, one of ``STAGES``."""
    seconds: Mapping[str, float]
    """Seconds per batch that each part would need alone, with all workers; in that order."""
    set_by: str = ""
    """The formula of a batch's time, in the words of the table."""


@dataclass(frozen=True)
class CostModel:
    """What the parts of a batch take, as measured; what a loader gives follows from it.

    Seconds are those of one batch, made by one thread on a core of its own beside ``lanes - 1``
    others.
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
    """Plans, functions, collation and other Python; None where batches only are planned."""
    lock: float = 0.0
    """Of all that: Python, with the interpreter's lock. At most so much, by processor time."""
    transport: float | None = None
    """From a worker to the consumer's process; None without workers."""
    consumer: float | None = None
    """The consumer's own step, where it is known."""
    bytes_read: float = 0.0
    """Bytes of voxels per patch, in the chunks that it needs."""
    bytes_decoded: float = 0.0
    """Bytes of voxels per patch that were decoded: fewer where chunks were kept."""
    remote: bool = False
    """Whether volumes lie behind URLs."""
    lanes: int = 1
    """Makers of batches that had a core of their own, at once, when this was measured."""
    alone: float = 1.0
    """Share of the seconds that fetching, decoding and kernels take where nothing else runs: less
    than 1 where cores share memory, caches or clock."""

    def predict(
        self,
        workers: int,
        *,
        threads: int = 1,
        cores: int = 1,
        ahead: int = 1,
        with_consumer: bool = True,
        beside_loop: bool = False,
    ) -> Prediction:
        """Return what so many workers give, or so many threads of one process.

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
            Without workers: whether ``threads`` make a batch each beside the loop, as in
            ``ThreadReadingService``, and wait for each other's ``lock``.
        """
        is_shared = beside_loop and not workers
        makers = workers or (threads if is_shared else 1)
        lanes = max(1, min(makers * (threads if workers else 1), cores))
        pace = self.alone
        if self.lanes > 1:
            pace += (1 - self.alone) * (min(lanes, self.lanes) - 1) / (self.lanes - 1)
        own = {
            "fetch": self.fetch,
            "decode": self.decode,
            "resample": None if self.rest is None else sum(self.kernels.values()),
        }
        work = {part: pace * seconds for part, seconds in own.items() if seconds is not None}
        rest = self.rest or 0.0
        theirs = {part: seconds / lanes for part, seconds in work.items()}
        if "resample" in theirs:
            waits = _lock_waits(self.lock, sum(work.values()) + rest, lanes) if is_shared else 0.0
            theirs["resample"] += (rest + waits) / max(1, min(makers, cores))
        if "fetch" in theirs:
            theirs["fetch"] += self.waiting / (makers * ahead)
        ours: dict[str, float | None] = {"planning": self.planning, "consumer": self.consumer}
        if workers:
            ours["transport"] = self.transport
        every = theirs | {part: seconds for part, seconds in ours.items() if seconds is not None}
        parts = {p: t for p, t in every.items() if with_consumer or p != "consumer"}
        busy = sum(work.values()) + rest + self.planning + (ours.get("transport") or 0.0)
        separate = is_shared or workers > 0
        line, total = _slowest_line(parts, separate)
        name = " + ".join(line) if line[-1] in CONSUMERS_LINE else "sum / makers"
        bounds = {name if separate else "sum": total}
        if separate:
            bounds[f"{'(sum + transport)' if workers else 'sum'} / cores"] = busy / cores
        if is_shared:
            bounds["lock + planning"] = self.lock + self.planning
        set_by = max(bounds, key=bounds.__getitem__)
        # The limit is that of the consumer too, also where what happens is measured without it.
        limit = max(_slowest_line(every, separate)[0], key=lambda part: every[part])
        return Prediction(
            _rate(bounds[set_by]),
            limit,
            {stage: every[stage] for stage in STAGES if stage in every},
            set_by,
        )

    @property
    def lock_cores(self) -> float:
        """Cores that threads of one process can use: what a batch takes, by that with the lock."""
        if not self.lock:
            return math.inf
        # Measured one after another: on a busy machine the lock's part may come out larger.
        return max(1.0, (sum(self.one_by_one()) - self.waiting) / (self.lock + self.planning))

    def one_by_one(self, pace: float = 1.0) -> tuple[float, ...]:
        """Return the seconds of all that a batch takes in one process, at such a pace of a core."""
        work = (self.fetch or 0.0, self.decode or 0.0, *self.kernels.values())
        return self.planning, self.waiting, self.rest or 0.0, *(pace * each for each in work)


def _lock_waits(lock: float, whole: float, threads: int) -> float:
    """Return for how long each of some threads waits for a lock, of a batch of ``whole`` seconds.

    Mean value analysis (Reiser, Lavenberg 1980): who comes finds the average queue of the others.
    """
    waits = 0.0
    for number in range(1, threads):
        waits = lock * number * (lock + waits) / (whole + waits) if lock else 0.0
    return waits


@dataclass(frozen=True)
class Setup:
    """What advice depends on, besides the times."""

    workers: int
    """Worker processes; 0 if everything runs in one process."""
    cores: int
    """Processors that this rank may use: its share, where several run on the machine."""
    ranks: int = 1
    threads: int = 1
    """Patches that each worker realizes at once; with ``beside_loop`` threads that make batches."""
    beside_loop: bool = False
    """Whether threads of the consumer's process make batches, beside the loop."""
    lock_cores: float = math.inf
    """Cores from which on these threads wait for the interpreter's lock."""
    ahead: int = 1
    """Batches for which each maker fetches at once."""
    amplification: float = 1.0
    """Voxels in the chunks that are read, by voxels that are needed."""
    waits: bool = False
    """Whether fetching waited for a disk or a network: it was faster from memory."""
    together: tuple[str, ...] = ()
    """Volumes whose fetching and decoding cannot be told apart; ``decode`` then holds both."""
    detours: bool = False
    """Whether patches are copied into the batch, not realized straight into its memory."""
    functions: bool = False
    """Whether functions of the user's run where voxels are realized."""
    planned_functions: bool = False
    """Whether functions of the user's run in the planner."""

    @property
    def reads_too_much(self) -> bool:
        """Whether chunks are so large that the volumes are worth storing anew."""
        return self.amplification >= MUCH_TOO_MUCH

    @property
    def makers(self) -> int:
        """Workers or threads that make batches beside the loop; 0 if it makes them itself."""
        return self.workers or (self.threads if self.beside_loop else 0)

    @property
    def who(self) -> str:
        """Who makes batches, in words."""
        return count_text(self.makers, "thread" if self.beside_loop else "worker")

    @property
    def idle_cores(self) -> int:
        """Cores on which nothing of the loader runs."""
        return max(0, self.cores - max(1, self.workers) * self.threads)

    @property
    def wants(self) -> str:
        """Which makers of batches there are too few of, as advice; empty if there are enough."""
        if self.beside_loop and self.threads >= self.lock_cores:
            return _LOCK
        return "" if not self.idle_cores else _THREADS if self.beside_loop else _MORE_WORKERS


@dataclass(frozen=True)
class Measurement:
    """What the parts of a loader take, and what that lets expect; the whole was not run."""

    costs: CostModel
    facts: Setup
    """Workers and cores with which it was measured."""
    notes: tuple[str, ...] = ()
    """What was left out, and how the rest was measured."""

    def predict(
        self, workers: int | None = None, *, threads: int | None = None, with_consumer: bool = False
    ) -> Prediction:
        """Return what workers give, or ``ThreadReadingService(threads)``; by default its own."""
        facts = self.facts
        beside_loop = threads is not None and workers is None
        if workers is None and threads is None:
            workers, threads, beside_loop = facts.workers, facts.threads, facts.beside_loop
        return self.costs.predict(
            workers or 0,
            threads=self._threads(workers or 0) if threads is None else threads,
            cores=facts.cores,
            ahead=facts.ahead,
            with_consumer=with_consumer,
            beside_loop=beside_loop,
        )

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
        parts: list[tuple[str, float | None, str]] = [
            ("planning", costs.planning, "this process"),
            ("fetch", costs.fetch, f"{needs:.3g} MB of voxels {place}, in the chunks needed"),
            ("waiting", costs.waiting or None, "for a disk or a network"),
            ("decode", costs.decode, f"{decodes:.3g} MB of voxels"),
            *((f"kernel {key}", seconds, "") for key, seconds in costs.kernels.items()),
            ("rest", costs.rest, "plans, functions, Python, new memory"),
        ]
        beside = f" beside {count_text(costs.lanes - 1, 'other')} at work" * (costs.lanes > 1)
        alone = _short(1000 * sum(costs.one_by_one(costs.alone)) / costs.items)
        parts += [
            (
                "sum",
                sum(costs.one_by_one()),
                f"of one core{beside}; {alone} where nothing else runs",
            ),
            ("lock", costs.lock or None, "of this sum, with the interpreter's lock"),
            ("transport", costs.transport, "a worker to this process; no part of the sum"),
        ]
        rows = [("part", "ms/patch", "what")]
        rows += [(n, _short(1000 * s / costs.items), w) for n, s, w in parts if s is not None]
        gives = [("workers", "threads", "patches/s", "ms/patch", "limit", "set by")]
        own = [(str(n), str(self._threads(n)), self.predict(n)) for n in workers]
        own += [("here", str(n), self.predict(threads=n)) for n in threads]
        for place, count, outlook in own:
            rate = outlook.batches_per_second * costs.items
            times = (_short(rate), _short(1000 / rate))
            gives.append((place, count, *times, outlook.limit, outlook.set_by))
        lines = [align(rows, ljust=(0, 2)), "", align(gives, ljust=(4, 5))]
        if threads and not math.isinf(costs.lock_cores):
            note = "the interpreter's lock limits threads at about {} cores, and not processes."
            lines += ["", f"here: ThreadReadingService; {note.format(_short(costs.lock_cores))}"]
        return "\n".join(lines)

    def __str__(self) -> str:
        facts = self.facts
        threads = sorted({1, 2, 4, facts.threads}) if facts.beside_loop else ()
        counts = (0, facts.threads) if facts.beside_loop else sorted({0, 1, 2, 4, facts.workers})
        where = f"measured with {facts.who}" if facts.makers else "measured here"
        cores = count_text(facts.cores, "core")
        lines = [f"{where}, {cores}; predicted without your own step", self.table(counts, threads)]
        return "\n".join(lines + [f"- {note}" for note in self.notes])


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Measurement):
    """Which part of a loader limits it, the ceiling of each, and what to change."""

    limit: str
    """One of ``STAGES``."""
    ceilings: Mapping[str, float]
    """Batches per second that each part could do alone, with all workers; inf if it takes no
    time. A part that was not measured is not in it."""
    end_to_end: float
    """Batches per second that the whole loader gave, with ``step`` if one was given."""
    prediction: float
    """Batches per second that the costs predict for that."""
    has_step: bool = True
    """Whether ``end_to_end`` and ``prediction`` contain what the consumer does."""

    @property
    def advice(self) -> str:
        """What to change, in one or two sentences."""
        seconds = {stage: 1 / rate for stage, rate in self.ceilings.items()}
        return advice_for(self.limit, seconds, self.facts)

    @property
    def explained_share(self) -> float:
        """Share of the end-to-end time that the parts account for, 1 at most."""
        return min(1.0, self.end_to_end / self.prediction)

    def __str__(self) -> str:
        head = ("part", "batches/s", "items/s", "ms/batch", "where")
        rows = [head, *(self._row(stage) for stage in STAGES if stage in self.ceilings)]
        whole = "with the consumer" if self.has_step else "without the consumer: no step= given"
        items, times = self.costs.items, f"{self.prediction / self.end_to_end:.2f} times that"
        rows.append(_figures("end to end", self.end_to_end, items, whole))
        rows.append(_figures("predicted", self.prediction, items, times))
        lines = [align(rows, ljust=(0, len(head) - 1)), "", f"{self.limit} limits. {self.advice}"]
        if self.explained_share < EXPLAINED_SHARE:
            lines.append(
                f"The parts account for {self.explained_share:.0%} of the time: when all run at "
                "once they are in each other's way (cores, memory, the disk)."
            )
        return "\n".join(lines + [f"- {note}" for note in self.notes])

    def _row(self, stage: str) -> tuple[str, ...]:
        here, many = "this process", self.facts.who
        where = {"transport": f"{many} to here"}.get(stage, many if self.facts.makers else here)
        where = here if stage in ("planning", "consumer") else where
        mark = "  <- limit" if stage == self.limit else ""
        return _figures(stage, self.ceilings[stage], self.costs.items, where + mark)


def _figures(name: str, rate: float, items: float, where: str) -> tuple[str, ...]:
    if math.isinf(rate):
        return name, "-", "-", "0", where
    return name, _short(rate), _short(rate * items), _short(1000 / rate), where


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def judge(measurement: Measurement, end_to_end: float, *, has_step: bool = True) -> Diagnosis:
    """Return the diagnosis that follows from what each part takes."""
    outlook = measurement.predict(with_consumer=has_step)
    return Diagnosis(
        measurement.costs,
        measurement.facts,
        measurement.notes,
        limit=outlook.limit,
        ceilings={stage: _rate(seconds) for stage, seconds in outlook.seconds.items()},
        end_to_end=end_to_end,
        prediction=outlook.batches_per_second,
        has_step=has_step,
    )


def _slowest_line(seconds: Mapping[str, float], separate: bool) -> tuple[tuple[str, ...], float]:
    """Return the parts that set the pace together, in order, and the seconds of all of them."""
    lines = (WORKERS_LINE, CONSUMERS_LINE) if separate else (STAGES,)
    parts = [tuple(part for part in line if part in seconds) for line in lines]
    # Of two that take equally long, the first that has a part.
    best = max(filter(None, parts), key=lambda line: sum(seconds[part] for part in line))
    return best, sum(seconds[part] for part in best)


_MORE_WORKERS = (
    "{f.cores} cores are there{each} and {busy} of them work: use "
    "MultiProcessingReadingService(num_workers={f.cores})."
)
_THREADS = "{f.cores} cores are there{each} and {busy} of them work: raise num_threads to {more}."
_LOCK = (
    "The interpreter's lock is the limit: one thread at a time runs Python{own}, and from "
    "{f.lock_cores:.2g} threads on they wait for it: use processes, "
    "MultiProcessingReadingService(num_workers={f.cores})."
)
_CHUNKS = (
    "Chunks hold {f.amplification:.2g} times the voxels that the patches need: store the volumes "
    "anew in smaller chunks, or "
)
_MAPPED_FORMATS = "uncompressed as .nii or .npy, which are mapped and not decoded."
_KEEPS_UP = "The loader keeps up, and your own step is what takes the time: make it lighter, or "
# By part and by the fact that it is for; of each part the cheapest change first. Empty: the fact.
_ADVICE = {
    ("planning", "planned_functions"): (
        "Functions of yours run in the planner, which is one process: make them cheaper, or move "
        "them behind batch_patches, where workers run them."
    ),
    ("planning", ""): (
        "The planner is one process and opens every header: raise samples_per_volume so that each "
        "header serves more patches, or keep the headers on a faster disk."
    ),
    ("fetch", "reads_too_much"): f"{_CHUNKS}put them on a faster disk.",
    ("fetch", "waits"): (
        "Reading waits for the disk or the network, which came faster from memory: copy the "
        "volumes to a faster or nearer disk, or hide the waiting with more {kind} than {f.makers}."
    ),
    ("fetch", "wants"): "",
    ("fetch", ""): (
        "The bytes come from memory already, so fewer of them is what helps: smaller patches, a "
        "smaller stored type, or compressed chunks."
    ),
    ("decode", "reads_too_much"): _CHUNKS + _MAPPED_FORMATS,
    ("decode", "wants"): "",
    ("decode", ""): (
        "Every core decodes: store the volumes anew by `voxpipe convert`, which takes the codec "
        f"that decodes fastest (lz4hc), or {_MAPPED_FORMATS}"
    ),
    ("resample", "detours"): (
        "Add the adapter FuseSpatial(): patches are then resampled straight into the batch."
    ),
    ("resample", "wants"): "",
    ("resample", "functions"): (
        "Every core works on voxels that are in memory, functions of yours included: give "
        "Profile() among the adapters to see which pipe takes the time, and make it cheaper."
    ),
    ("resample", ""): (
        "Every core resamples: pass fewer augmentations that interpolate (flips, crops and whole "
        "turns are copies), smaller patches, or more cores."
    ),
    ("transport", "functions"): (
        "Functions after batch_patches make new arrays, which are copied on their way: let them "
        "write into the batch's own tensors."
    ),
    ("transport", ""): (
        "Batches are so cheap to make that handing them over takes longest: raise the batch size, "
        "or use fewer workers."
    ),
    ("consumer", "makers"): _KEEPS_UP + "leave the loader as it is{spare}.",
    ("consumer", ""): (
        _KEEPS_UP + "load beside it with ThreadReadingService(num_threads=1) or "
        "MultiProcessingReadingService(num_workers=1)."
    ),
}


# Seconds that no clock tells from none: what takes less is nothing to divide by.
_TICK = 1e-9


def advice_for(limit: str, seconds: Mapping[str, float], facts: Setup) -> str:
    """Return what to change about the part that limits."""
    rows = ((fact, text) for (part, fact), text in _ADVICE.items() if part == limit)
    text = next(text or facts.wants for fact, text in rows if not fact or getattr(facts, fact))
    spare, step = "", seconds.get("consumer", 0.0)  # 0 where nothing takes any time
    if step > _TICK:
        work = sum(seconds.get(part, 0.0) for part in WORKERS_LINE)
        fewer = max(1, math.ceil(facts.makers * work / step))
        spare = f"; {fewer} of {facts.who} would do" if fewer < facts.makers else ""
    each = f" for each of {facts.ranks} ranks" if facts.ranks > 1 else ""
    own = " and your functions" if facts.functions else ""
    more = math.ceil(min(facts.lock_cores, facts.cores))
    words = {"own": own, "kind": "threads" if facts.beside_loop else "workers", "more": more}
    return text.format(
        f=facts, each=each, busy=facts.cores - facts.idle_cores, spare=spare, **words
    )


def _rate(seconds: float) -> float:
    return 1 / seconds if seconds > 0 else math.inf


# How launchers tell the ranks of one machine: torchrun and accelerate, Open MPI, Slurm.
LAUNCHERS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")


def ranks_beside(ranks: int, environment: Mapping[str, str]) -> int:
    """Return how many ranks of a job share this machine, the one that asks included.

    Where no launcher has told, all of them: that advises too few workers rather than too many.
    """
    for name in LAUNCHERS:
        count = environment.get(name, "")
        if count.isdecimal() and 0 < int(count) <= ranks:
            return int(count)
    return ranks


def share_of(cores: int, ranks: int) -> int:
    """Return the cores of one of so many ranks."""
    return max(1, cores // ranks)
