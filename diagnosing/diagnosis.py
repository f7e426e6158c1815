"""The limiting part of a loader, and advice, from the times of its parts.

The limit is the longest part of the slower line (:mod:`.cost_model`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..adapters.profile import align
from .cost_model import RIGHT_SERVICE, SURELY_FASTER, Measurement, rate_of, short_number

# Below this share of the time that the parts predict, something that no part shows is in the way.
EXPLAINED_SHARE = 0.7
# A loader keeps up if the loop reaches this share of the rate of its step alone.
KEEPS_UP = 0.9
# Parts that take this share of the longest one may be the longest in the next measurement.
NEARLY = 0.75


class Row(NamedTuple):
    """One row of the table: a part, or the sum of parts that run one after another."""

    name: str
    rate: float  # batches per second; inf if it takes no time
    where: str
    is_limit: bool


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Measurement):
    """The limiting part of a loader, the ceiling of each part, and advice."""

    limit: str
    """The longest part of the slowest sum, one of ``STAGES``."""
    ceilings: Mapping[str, float]
    """Batches per second that each part could do alone, with all workers; inf if it takes no
    time. A part that was not measured is not in it."""
    lines: tuple[tuple[str, ...], ...] = ()
    """Parts that run one after another; the lines run at once."""
    end_to_end: float
    """Batches per second that the whole loader gave, with ``step`` if one was given."""
    forecast_rate: float
    """Batches per second that the costs let expect for that."""
    has_step: bool = True
    """Whether ``end_to_end`` and ``forecast_rate`` contain the consumer's step."""

    @property
    def advice(self) -> str:
        """Recommended change, in a few sentences."""
        rows = ((fact, text) for (part, fact), text in _ADVICE.items() if part == self.limit)
        fact, text = next((fact, text) for fact, text in rows if not fact or self._has(fact))
        if fact not in _BEFORE_SERVICES:
            has_all = self.has_step or "consumer" not in self.ceilings
            faster = self.faster_service(self.end_to_end if has_all else 0.0)
            right = "" if self.limit in ("planning", "consumer") else f"{RIGHT_SERVICE} "
            text = faster or right + text
        kind = "threads" if self.facts.beside_loop else "workers"
        more = f"more {kind} than {self.facts.makers}" if self.facts.makers else kind
        return text.format(f=self.facts, more=more, spare=self._spare)

    def _has(self, fact: str) -> bool:
        return bool(getattr(self if fact == "keeps_up" else self.facts, fact))

    @property
    def keeps_up(self) -> bool:
        """Whether the loop gets batches about as fast as its step uses them."""
        step = self.ceilings.get("consumer", math.inf)
        return self.end_to_end >= (KEEPS_UP if self.has_step else 1.0) * step

    @property
    def _spare(self) -> str:
        """Text of the fewer makers that surely suffice for the step; else empty."""
        facts, least = self.facts, SURELY_FASTER * self.ceilings.get("consumer", math.inf)
        for n in range(1, facts.makers):
            less = self.forecast(threads=n) if facts.beside_loop else self.forecast(n)
            if less.batches_per_second >= least:
                return f"; {n} of {facts.who} would do"
        return ""

    @property
    def explained_share(self) -> float:
        """Share of the end-to-end time that the parts account for, 1 at most."""
        return min(1.0, self.end_to_end / self.forecast_rate)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows of the parts, then of the sums of parts that run one after another."""
        own, sums = self.ceilings, []
        for line in self.lines[1:] and self.lines:
            parts = [part for part in line if not math.isinf(own[part])]
            if len(parts) > 1:
                where = f"{self._place(line)}: {' + '.join(parts)}"
                rate = rate_of(sum(1 / own[part] for part in parts))
                sums.append(Row("sum", rate, where, self.limit in parts))
        alone = not any(row.is_limit for row in sums)
        rows = (Row(p, own[p], self._where(p), alone and p == self.limit) for p in own)
        return *rows, *sums

    @property
    def headline(self) -> str:
        """The part that limits, and where it is the longest of several."""
        verb = "limit" if self.limit.endswith("s") else "limits"
        place = next((row.where for row in self.rows if row.name == "sum" and row.is_limit), "")
        longest = f", the longest part of {place.partition(':')[0]}" if place else ""
        return f"{self.limit} {verb}{longest}."

    @property
    def _rivals(self) -> str:
        """Text of other parts that are about as slow; else empty."""
        least = self.ceilings[self.limit] / NEARLY
        names = [p for p, rate in self.ceilings.items() if p != self.limit and rate <= least]
        return f"About as slow: {', '.join(names)}." if names and not math.isinf(least) else ""

    def __str__(self) -> str:
        head = ("part", "batches/s", "items/s", "ms/batch", "where")
        whole = "with the consumer" if self.has_step else "without the consumer: no step= given"
        times = f"{self.forecast_rate / self.end_to_end:.2f} times that"
        figures = [
            *((r.name, r.rate, r.where + "  <- limit" * r.is_limit) for r in self.rows),
            ("end to end", self.end_to_end, whole),
            ("forecast", self.forecast_rate, times),
        ]
        rows = [head, *(_figures(name, rate, self.costs.items, w) for name, rate, w in figures)]
        lines = [align(rows, ljust=(0, len(head) - 1)), "", f"{self.headline} {self.advice}"]
        lines += filter(None, [self._rivals])
        if self.explained_share < EXPLAINED_SHARE:
            at_once = "parts that run at once share cores, memory and the disk"
            why = at_once if self.lines[1:] else "other programs use the cores"
            lines.append(f"The parts account for {self.explained_share:.0%} of the time; {why}.")
        return "\n".join(lines + [f"- {note}" for note in self.notes])

    def _where(self, stage: str) -> str:
        line = next(line for line in self.lines if stage in line)
        return f"{self.facts.who} to here" if stage == "transport" else self._place(line)

    def _place(self, line: tuple[str, ...]) -> str:
        """Return where the parts of a line run."""
        if line == ("functions",):
            return "this process, ahead of the loop"
        return self.facts.who if "planning" not in line and self.facts.makers else "this process"


def _figures(name: str, rate: float, items: float, where: str) -> tuple[str, str, str, str, str]:
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
        lines=outlook.lines,
        end_to_end=end_to_end,
        forecast_rate=outlook.batches_per_second,
        has_step=has_step,
    )


CURES = {
    "planning": (
        "Raise samples_per_volume so that each header serves more patches, or write a manifest."
    ),
    "fetch": "Read fewer bytes: smaller patches, a smaller stored type, or compressed chunks.",
    "decode": (
        "Store the volumes anew by `voxpipe convert`: its codec (lz4hc) decodes several times as "
        "fast as zstd. Or store .nii or .npy uncompressed: these are mapped and not decoded."
    ),
    "resample": "Check the kernel by `voxpipe doctor`. Pass smaller patches, or use more cores.",
    "functions": "Make your functions cheaper. Profile() among the adapters times each of them.",
    "transport": "Raise the batch size: each batch is handed over at once.",
    "consumer": "Make your step lighter: it takes longest in its process.",
}
"""Cure of each part without a cheaper one; the guide of the documentation has the same."""

_CHUNKS = (
    "Chunks hold {f.amplification:.2g} times the voxels that the patches need: store the volumes "
    "anew in smaller chunks, or "
)
# These facts have cheaper cures than another service.
_BEFORE_SERVICES = ("planned_functions", "reads_too_much", "waits", "keeps_up")
# By part and by the fact that it is for; of each part the cheapest change first.
_ADVICE = {
    ("planning", "planned_functions"): (
        "The planner, which is one process, runs {f.planned_functions}: make it cheaper, or move "
        "it behind batch_patches, where workers run it."
    ),
    ("fetch", "reads_too_much"): f"{_CHUNKS}put them on a faster disk.",
    ("fetch", "waits"): (
        "Reading waits for the disk or the network, which came faster from memory: copy the "
        "volumes to a faster or nearer disk, or hide the waiting with {more}."
    ),
    ("decode", "reads_too_much"): (
        f"{_CHUNKS}uncompressed as .nii or .npy, which are mapped and not decoded."
    ),
    ("resample", "interpolates"): (
        "Pass fewer augmentations that interpolate (flips, crops and whole turns are copies), "
        "smaller patches, or use more cores."
    ),
    ("functions", "runs_tail"): (
        "This process runs {f.function_names} after the service: make these pipes cheaper, or "
        "give those that an adapter runs apart more threads or processes."
    ),
    ("functions", "beside_loop"): (
        "Of threads one at a time runs {f.function_names}, while your loop waits. "
        f"{CURES['functions']}"
    ),
    ("transport", "functions"): (
        f"{CURES['transport']} If functions after batch_patches return new arrays, these are "
        "copied on their way: write into the batch's own tensors."
    ),
    ("consumer", "keeps_up"): (
        "The loader keeps up, and your own step is what takes the time: make it lighter, or leave "
        "the loader as it is{spare}."
    ),
    **{(part, ""): cure for part, cure in CURES.items()},
}
