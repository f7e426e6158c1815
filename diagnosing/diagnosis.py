"""The bottleneck of a loader, decided from times of its parts: pure, no clock, no process.

A worker fetches, decodes and resamples one batch after another; meanwhile the consumer's
process plans, takes batches over and uses them. So there are two lines, and the slower one
sets the pace: the limit is the longest part of the slower line. Without workers everything is
one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..adapters.profile import align

WORKERS_LINE = ("fetch", "decode", "resample")
"""Parts that workers do, all of them at once, each a batch of its own."""
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
class Setup:
    """What advice depends on, besides the times."""

    workers: int
    """Worker processes; 0 if everything runs in one process."""
    cores: int
    """Processors that this rank may use: its share, where several run on the machine."""
    ranks: int = 1
    threads: int = 1
    """Patches that each worker realizes at once."""
    items: float = 1.0
    amplification: float = 1.0
    """Voxels in the chunks that are read, by voxels that are needed."""
    waits: bool = False
    """Whether fetching waited for a disk or a network: it was faster from memory."""
    together: tuple[str, ...] = ()
    """Volumes whose fetching and decoding cannot be told apart; ``decode`` then holds both."""
    straight: bool = True
    """Whether patches are realized straight into the batch's memory."""
    functions: bool = False
    """Whether functions of the user's run where voxels are realized."""
    planned_functions: bool = False
    """Whether functions of the user's run in the planner."""

    @property
    def reads_too_much(self) -> bool:
        """Whether chunks are so large that the volumes are worth storing anew."""
        return self.amplification >= MUCH_TOO_MUCH

    @property
    def detours(self) -> bool:
        """Whether patches are copied into the batch."""
        return not self.straight

    @property
    def idle_cores(self) -> int:
        """Cores on which nothing of the loader runs."""
        return max(0, self.cores - max(1, self.workers) * self.threads)


@dataclass(frozen=True)
class Diagnosis:
    """Which part of a loader limits it, the ceiling of each, and what to change."""

    limit: str
    """One of ``STAGES``."""
    ceilings: Mapping[str, float]
    """Batches per second that each part could do alone, with all workers; inf if it takes no
    time. A part that was not measured is not in it."""
    end_to_end: float
    """Batches per second that the whole loader gave, with ``step`` if one was given."""
    prediction: float
    """Batches per second that the ceilings predict for that."""
    facts: Setup
    """Workers, cores, and what else the advice depends on."""
    notes: tuple[str, ...] = ()
    """What was left out, and how the rest was measured."""
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
        facts = self.facts
        head = ("part", "batches/s", "items/s", "ms/batch", "where")
        rows = [head, *(self._row(stage) for stage in STAGES if stage in self.ceilings)]
        whole = "with the consumer" if self.has_step else "without the consumer: no step= given"
        rows.append(_figures("end to end", self.end_to_end, facts.items, whole))
        rows.append(_figures("predicted", self.prediction, facts.items, ""))
        lines = [align(rows, ljust=(0, len(head) - 1)), "", f"{self.limit} limits. {self.advice}"]
        if self.explained_share < EXPLAINED_SHARE:
            lines.append(
                f"The parts account for {self.explained_share:.0%} of the time: when all run at "
                "once they are in each other's way (cores, memory, the disk)."
            )
        return "\n".join(lines + [f"- {note}" for note in self.notes])

    def _row(self, stage: str) -> tuple[str, ...]:
        workers = self.facts.workers
        here = "this process"
        many = f"{workers} workers" if workers > 1 else "1 worker"
        where = {"transport": f"{many} to here"}.get(stage, many if workers else here)
        where = here if stage in ("planning", "consumer") else where
        mark = "  <- limit" if stage == self.limit else ""
        return _figures(stage, self.ceilings[stage], self.facts.items, where + mark)


def _figures(name: str, rate: float, items: float, where: str) -> tuple[str, ...]:
    if math.isinf(rate):
        return name, "-", "-", "0", where
    return name, _short(rate), _short(rate * items), _short(1000 / rate), where


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def judge(
    seconds: Mapping[str, float],
    end_to_end: float,
    facts: Setup,
    notes: tuple[str, ...] = (),
    *,
    has_step: bool = True,
) -> Diagnosis:
    """Return the diagnosis that follows from the seconds per batch of each part."""
    parts = {s: t for s, t in seconds.items() if has_step or s != "consumer"}
    whole = expected_seconds(parts, facts.workers)
    limit = slowest_part(seconds, facts.workers)
    ceilings = {stage: _rate(seconds[stage]) for stage in STAGES if stage in seconds}
    return Diagnosis(limit, ceilings, end_to_end, _rate(whole), facts, notes, has_step)


def slowest_part(seconds: Mapping[str, float], workers: int) -> str:
    """Return the part that sets the pace."""
    line = tuple(seconds)
    if workers:
        ours = _sum(seconds, CONSUMERS_LINE)
        line = CONSUMERS_LINE if ours > _sum(seconds, WORKERS_LINE) else WORKERS_LINE
    stages = [stage for stage in STAGES if stage in seconds and stage in line]
    return max(stages or seconds, key=lambda stage: seconds[stage])


def expected_seconds(seconds: Mapping[str, float], workers: int) -> float:
    """Return the seconds per batch that the parts predict for the whole."""
    theirs, ours = _sum(seconds, WORKERS_LINE), _sum(seconds, CONSUMERS_LINE)
    return max(theirs, ours) if workers else theirs + ours


_MORE_WORKERS = (
    "{f.cores} cores are there{each} and {busy} of them work: use "
    "MultiProcessingReadingService(num_workers={f.cores})."
)
_CHUNKS = (
    "Chunks hold {f.amplification:.2g} times the voxels that the patches need: store the volumes "
    "anew in smaller chunks, or "
)
_MAPPED_FORMATS = "uncompressed as .nii or .npy, which are mapped and not decoded."
_KEEPS_UP = "The loader keeps up, and your own step is what takes the time: make it lighter, or "
# By part and by the fact that it is for; of each part the cheapest change first.
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
        "volumes to a faster or nearer disk, or hide the waiting with more workers than {some}."
    ),
    ("fetch", "idle_cores"): _MORE_WORKERS,
    ("fetch", ""): (
        "The bytes come from memory already, so fewer of them is what helps: smaller patches, a "
        "smaller stored type, or compressed chunks."
    ),
    ("decode", "reads_too_much"): _CHUNKS + _MAPPED_FORMATS,
    ("decode", "idle_cores"): _MORE_WORKERS,
    ("decode", ""): (
        f"Every core decodes: store the volumes with a faster codec (lz4), or {_MAPPED_FORMATS}"
    ),
    ("resample", "detours"): (
        "Add the adapter FuseSpatial(): patches are then resampled straight into the batch."
    ),
    ("resample", "idle_cores"): _MORE_WORKERS,
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
    ("consumer", "workers"): _KEEPS_UP + "leave the loader as it is{spare}.",
    ("consumer", ""): (
        _KEEPS_UP + "load beside it with MultiProcessingReadingService(num_workers=1)."
    ),
}


def advice_for(limit: str, seconds: Mapping[str, float], facts: Setup) -> str:
    """Return what to change about the part that limits."""
    rows = ((fact, text) for (part, fact), text in _ADVICE.items() if part == limit)
    text = next(text for fact, text in rows if not fact or getattr(facts, fact))
    spare, step = "", seconds.get("consumer", 0.0)  # 0 where nothing takes any time
    if step:
        fewer = max(1, math.ceil(facts.workers * _sum(seconds, WORKERS_LINE) / step))
        spare = f"; {fewer} of {facts.workers} workers would do" if fewer < facts.workers else ""
    each = f" for each of {facts.ranks} ranks" if facts.ranks > 1 else ""
    busy, some = facts.cores - facts.idle_cores, max(1, facts.workers)
    return text.format(f=facts, each=each, busy=busy, some=some, spare=spare)


def _sum(seconds: Mapping[str, float], stages: tuple[str, ...]) -> float:
    return sum(seconds.get(stage, 0.0) for stage in stages)


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
