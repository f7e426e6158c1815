"""What limits a loader, decided from how long each part takes: pure, no clock, no process.

A worker fetches, decodes and resamples one batch after another; meanwhile the consumer's
process plans, takes batches over and uses them. So there are two lines, and the slower one
sets the pace: the limit is the longest part of the slower line. Without workers everything is
one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..adapters.profile import aligned

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
EXPLAINED = 0.7


@dataclass(frozen=True)
class Facts:
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
    expected: float
    """Batches per second that the ceilings predict for that."""
    facts: Facts
    """Workers, cores, and what else the advice depends on."""
    notes: tuple[str, ...] = ()
    """What was left out, and how the rest was measured."""
    stepped: bool = True
    """Whether ``end_to_end`` and ``expected`` contain what the consumer does."""

    @property
    def advice(self) -> str:
        """What to change, in one or two sentences."""
        seconds = {stage: 1 / rate for stage, rate in self.ceilings.items()}
        return advice_for(self.limit, seconds, self.facts)

    @property
    def explained(self) -> float:
        """Share of the end-to-end time that the parts account for, 1 at most."""
        return min(1.0, self.end_to_end / self.expected)

    def __str__(self) -> str:
        facts = self.facts
        head = ("part", "batches/s", "items/s", "ms/batch", "where")
        rows = [head, *(self._row(stage) for stage in STAGES if stage in self.ceilings)]
        whole = "with the consumer" if self.stepped else "without the consumer: no step= given"
        rows.append(_figures("end to end", self.end_to_end, facts.items, whole))
        rows.append(_figures("predicted", self.expected, facts.items, ""))
        lines = [aligned(rows, left=(0, len(head) - 1)), "", f"{self.limit} limits. {self.advice}"]
        if self.explained < EXPLAINED:
            lines.append(
                f"The parts account for {self.explained:.0%} of the time: when all run at once "
                "they are in each other's way (cores, memory, the disk)."
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


def judged(
    seconds: Mapping[str, float],
    end_to_end: float,
    facts: Facts,
    notes: tuple[str, ...] = (),
    *,
    stepped: bool = True,
) -> Diagnosis:
    """Return the diagnosis that follows from the seconds per batch of each part."""
    contained = {s: t for s, t in seconds.items() if stepped or s != "consumer"}
    expected = expected_seconds(contained, facts.workers)
    return Diagnosis(
        limit_of(seconds, facts.workers),
        {stage: _rate(seconds[stage]) for stage in STAGES if stage in seconds},
        end_to_end,
        _rate(expected),
        facts,
        notes,
        stepped,
    )


def limit_of(seconds: Mapping[str, float], workers: int) -> str:
    """Return the part that sets the pace."""
    line = tuple(seconds)
    if workers:
        ours = _sum(seconds, CONSUMERS_LINE)
        line = CONSUMERS_LINE if ours > _sum(seconds, WORKERS_LINE) else WORKERS_LINE
    measured = [stage for stage in STAGES if stage in seconds and stage in line]
    return max(measured or seconds, key=lambda stage: seconds[stage])


def expected_seconds(seconds: Mapping[str, float], workers: int) -> float:
    """Return the seconds per batch that the parts predict for the whole."""
    theirs, ours = _sum(seconds, WORKERS_LINE), _sum(seconds, CONSUMERS_LINE)
    return max(theirs, ours) if workers else theirs + ours


def advice_for(limit: str, seconds: Mapping[str, float], facts: Facts) -> str:
    """Return what to change about the part that limits, the cheapest thing first."""
    return _ADVICE[limit](seconds, facts)


def _planning(seconds: Mapping[str, float], facts: Facts) -> str:
    if facts.planned_functions:
        return (
            "Functions of yours run in the planner, which is one process: make them cheaper, or "
            "move them behind batch_patches, where workers run them."
        )
    return (
        "The planner is one process and opens every header: raise samples_per_volume so that each "
        "header serves more patches, or keep the headers on a faster disk."
    )


def _fetch(seconds: Mapping[str, float], facts: Facts) -> str:
    if facts.amplification >= MUCH_TOO_MUCH:
        return (
            f"{_chunks(facts)}: store the volumes anew in smaller chunks, or put them on a faster "
            "disk."
        )
    if facts.waits:
        return (
            "Reading waits for the disk or the network, which came faster from memory: copy the "
            f"volumes to a faster or nearer disk, or hide the waiting with more workers than "
            f"{max(1, facts.workers)}."
        )
    if facts.idle_cores:
        return _more_workers(facts)
    return (
        "The bytes come from memory already, so fewer of them is what helps: smaller patches, a "
        "smaller stored type, or compressed chunks."
    )


def _decode(seconds: Mapping[str, float], facts: Facts) -> str:
    if facts.amplification >= MUCH_TOO_MUCH:
        return (
            f"{_chunks(facts)}: store the volumes anew in smaller chunks, or uncompressed as .nii "
            "or .npy, which are mapped and not decoded."
        )
    if facts.idle_cores:
        return _more_workers(facts)
    return (
        "Every core decodes: store the volumes with a faster codec (lz4), or uncompressed as .nii "
        "or .npy, which are mapped and not decoded."
    )


def _resample(seconds: Mapping[str, float], facts: Facts) -> str:
    if not facts.straight:
        return "Add the adapter FuseSpatial(): patches are then resampled straight into the batch."
    if facts.idle_cores:
        return _more_workers(facts)
    if facts.functions:
        return (
            "Every core works on voxels that are in memory, functions of yours included: give "
            "Profile() among the adapters to see which pipe takes the time, and make it cheaper."
        )
    return (
        "Every core resamples: pass fewer augmentations that interpolate (flips, crops and whole "
        "turns are copies), smaller patches, or more cores."
    )


def _transport(seconds: Mapping[str, float], facts: Facts) -> str:
    if facts.functions:
        return (
            "Functions after batch_patches make new arrays, which are copied on their way: let "
            "them write into the batch's own tensors."
        )
    return (
        "Batches are so cheap to make that handing them over takes longest: raise the batch size, "
        "or use fewer workers."
    )


def _consumer(seconds: Mapping[str, float], facts: Facts) -> str:
    keep_up = "The loader keeps up, and your own step is what takes the time: make it lighter"
    if not facts.workers:
        return f"{keep_up}, or load beside it with MultiProcessingReadingService(num_workers=1)."
    step = seconds["consumer"]  # 0 where nothing takes any time; then nothing is spare
    needed = (
        math.ceil(facts.workers * _sum(seconds, WORKERS_LINE) / step) if step else facts.workers
    )
    fewer = max(1, needed)
    spare = f"; {fewer} of {facts.workers} workers would do" if fewer < facts.workers else ""
    return f"{keep_up}, or leave the loader as it is{spare}."


def _more_workers(facts: Facts) -> str:
    each = f" for each of {facts.ranks} ranks" if facts.ranks > 1 else ""
    return (
        f"{facts.cores} cores are there{each} and {facts.cores - facts.idle_cores} of them work: "
        f"use MultiProcessingReadingService(num_workers={facts.cores})."
    )


def _chunks(facts: Facts) -> str:
    return f"Chunks hold {facts.amplification:.2g} times the voxels that the patches need"


_ADVICE = {
    "planning": _planning,
    "fetch": _fetch,
    "decode": _decode,
    "resample": _resample,
    "transport": _transport,
    "consumer": _consumer,
}


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
