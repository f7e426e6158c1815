"""The limiting part of a loader, and advice, from the times of its parts.

The limit is the longest part of the slower line (:mod:`.cost_model`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..adapters.profile import align
from .cost_model import STAGES, WORKERS_LINE, LoaderFacts, Measurement, rate_of, short_number

# Below this share of the time that the parts predict, something that no part shows is in the way.
EXPLAINED_SHARE = 0.7


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Measurement):
    """The limiting part of a loader, the ceiling of each part, and advice."""

    limit: str
    """One of ``STAGES``."""
    ceilings: Mapping[str, float]
    """Batches per second that each part could do alone, with all workers; inf if it takes no
    time. A part that was not measured is not in it."""
    end_to_end: float
    """Batches per second that the whole loader gave, with ``step`` if one was given."""
    forecast_rate: float
    """Batches per second that the costs let expect for that."""
    has_step: bool = True
    """Whether ``end_to_end`` and ``forecast_rate`` contain the consumer's step."""

    @property
    def advice(self) -> str:
        """Recommended change, in one or two sentences."""
        seconds = {stage: 1 / rate for stage, rate in self.ceilings.items()}
        better = self.better if self.limit in WORKERS_LINE[:-1] else ""
        return better or advice_for(self.limit, seconds, self.facts)

    @property
    def explained_share(self) -> float:
        """Share of the end-to-end time that the parts account for, 1 at most."""
        return min(1.0, self.end_to_end / self.forecast_rate)

    def __str__(self) -> str:
        head = ("part", "batches/s", "items/s", "ms/batch", "where")
        rows = [head, *(self._row(stage) for stage in STAGES if stage in self.ceilings)]
        whole = "with the consumer" if self.has_step else "without the consumer: no step= given"
        items, times = self.costs.items, f"{self.forecast_rate / self.end_to_end:.2f} times that"
        rows.append(_figures("end to end", self.end_to_end, items, whole))
        rows.append(_figures("forecast", self.forecast_rate, items, times))
        verb = "limit" if self.limit.endswith("s") else "limits"
        lines = [align(rows, ljust=(0, len(head) - 1)), "", f"{self.limit} {verb}. {self.advice}"]
        if self.explained_share < EXPLAINED_SHARE:
            lines.append(
                f"The parts account for {self.explained_share:.0%} of the time: when all run at "
                "once they are in each other's way (cores, memory, the disk)."
            )
        return "\n".join(lines + [f"- {note}" for note in self.notes])

    def _row(self, stage: str) -> tuple[str, ...]:
        here, many = "this process", self.facts.who
        where = {"transport": f"{many} to here"}.get(stage, many if self.facts.makers else here)
        in_loop = ("planning", "consumer", *["functions"] * self.facts.beside_loop)
        where = here if stage in in_loop else where
        mark = "  <- limit" if stage == self.limit else ""
        return _figures(stage, self.ceilings[stage], self.costs.items, where + mark)


def _figures(name: str, rate: float, items: float, where: str) -> tuple[str, ...]:
    if math.isinf(rate):
        return name, "-", "-", "0", where
    return name, short_number(rate), short_number(rate * items), short_number(1000 / rate), where


def judge(measurement: Measurement, end_to_end: float, *, has_step: bool = True) -> Diagnosis:
    """Return the diagnosis that follows from the time of each part."""
    outlook = measurement.forecast(with_consumer=has_step)
    return Diagnosis(
        **vars(measurement),
        limit=outlook.limit,
        ceilings={stage: rate_of(seconds) for stage, seconds in outlook.seconds.items()},
        end_to_end=end_to_end,
        forecast_rate=outlook.batches_per_second,
        has_step=has_step,
    )


_MORE_WORKERS = (
    "{f.cores} cores are there{each} and {busy} of them work: use "
    "MultiProcessingReadingService(num_workers={f.cores})."
)
_THREADS = "{f.cores} cores are there{each} and {busy} of them work: raise num_threads to {more}."
_LOCK = (
    "The interpreter's lock is the limit: one thread at a time runs Python, and from "
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
_TOO_FEW = "more makers"  # in place of a fact: the text then depends on the makers
_ADVICE = {
    ("planning", "planned_functions"): (
        "The planner, which is one process, runs {f.planned_functions}: make it cheaper, or move "
        "it behind batch_patches, where workers run it."
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
    ("fetch", _TOO_FEW): "",
    ("fetch", ""): (
        "The bytes come from memory already, so fewer of them is what helps: smaller patches, a "
        "smaller stored type, or compressed chunks."
    ),
    ("decode", "reads_too_much"): _CHUNKS + _MAPPED_FORMATS,
    ("decode", _TOO_FEW): "",
    ("decode", ""): (
        "Every core decodes: store the volumes anew by `voxpipe convert`, whose codec (lz4hc) "
        f"decodes several times as fast as zstd, or {_MAPPED_FORMATS}"
    ),
    ("resample", _TOO_FEW): "",
    ("resample", ""): (
        "Every core resamples: pass fewer augmentations that interpolate (flips, crops and whole "
        "turns are copies), smaller patches, or more cores."
    ),
    ("functions", "beside_loop"): (
        "Of threads one at a time runs {f.function_names}, while your loop waits: "
        "MultiProcessingReadingService(num_workers={f.cores}) runs them side by side, ahead of the "
        "loop. Or make them cheaper."
    ),
    ("functions", _TOO_FEW): "",
    ("functions", ""): (
        "Every core runs {f.function_names}: give Profile() among the adapters to see which pipe "
        "takes the time, and make it cheaper."
    ),
    ("transport", "functions"): (
        "Functions after batch_patches make new arrays, which are copied on their way: let them "
        "write into the batch's own tensors."
    ),
    ("transport", ""): (
        "Batches are so cheap to make that handing them over takes longest: raise the batch size, "
        "or use fewer {kind}."
    ),
    ("consumer", "makers"): _KEEPS_UP + "leave the loader as it is{spare}.",
    ("consumer", ""): (
        _KEEPS_UP + "load beside it with ThreadReadingService(num_threads=1) or "
        "MultiProcessingReadingService(num_workers=1)."
    ),
}


# Resolution of clocks in seconds: shorter times are no divisor.
_TICK = 1e-9


def advice_for(limit: str, seconds: Mapping[str, float], facts: LoaderFacts) -> str:
    """Return the advice for the limiting part."""
    more_makers = _more_makers(facts)
    rows = ((fact, text) for (part, fact), text in _ADVICE.items() if part == limit)
    text = next(
        text or more_makers
        for fact, text in rows
        if not fact or (more_makers if fact == _TOO_FEW else getattr(facts, fact))
    )
    spare, step = "", seconds.get("consumer", 0.0)  # 0 where nothing takes any time
    if step > _TICK:
        work = sum(seconds.get(part, 0.0) for part in WORKERS_LINE)
        fewer = max(1, math.ceil(facts.makers * work / step))
        spare = f"; {fewer} of {facts.who} would do" if fewer < facts.makers else ""
    each = f" for each of {facts.ranks} ranks" if facts.ranks > 1 else ""
    more = math.ceil(min(facts.lock_cores, facts.cores))
    kind, busy = "threads" if facts.beside_loop else "workers", facts.cores - facts.idle_cores
    return text.format(f=facts, each=each, busy=busy, spare=spare, kind=kind, more=more)


def _more_makers(facts: LoaderFacts) -> str:
    """Return the advice to have more makers of batches; empty if there are enough."""
    if facts.beside_loop and facts.threads >= facts.lock_cores:
        return _LOCK
    return "" if not facts.idle_cores else _THREADS if facts.beside_loop else _MORE_WORKERS
