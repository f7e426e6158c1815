"""Rows of the throughput benchmark: their medians, how they compare, and what was promised.

Nothing here measures; a row holds what the processes answered in each round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import promises
from processes import Finished

MB = 10**6
COLUMNS = (
    "what",
    "workers",
    "patches/s",
    "spread",
    "nii is faster by",
    "CPU ms/patch",
    "first batch s",
    "peak MB",
    "anonymous",
    "shared",
    "mapped",
)
RECIPE = "nnunet recipe"
"""How the rows of nnU-Net's recipe begin."""


@dataclass(frozen=True)
class Result:
    """What one row gave in all rounds."""

    what: str
    """Format of voxpipe's volumes, or a peer and how it was used."""
    workers: int
    """Processes that make patches."""
    rounds: Sequence[Finished]
    """One per round; empty if the row could not be measured."""
    problem: str = ""
    """Why it could not."""
    target: float | None = None
    """How many times faster than this row voxpipe is promised to be."""

    def median(self, name: str) -> float:
        """Return the median of one of the answers over the rounds."""
        return float(median(done.answer()[name] for done in self.rounds))

    @property
    def peak_mb(self) -> float:
        """The largest peak of any round."""
        return max(done.peak.total for done in self.rounds) / MB


def table(results: Sequence[Result]) -> str:
    """Return the rows as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cells(row, results)) + " |" for row in results]
    return "\n".join(lines)


def _cells(row: Result, results: Sequence[Result]) -> list[str]:
    if not row.rounds:
        return [row.what, str(row.workers), f"not measured: {row.problem}"]
    peak = max((done.peak for done in row.rounds), key=lambda memory: memory.total)
    low = min(done.answer()["low"] for done in row.rounds)
    high = max(done.answer()["high"] for done in row.rounds)
    return [
        row.what,
        str(row.workers),
        f"{row.median('rate'):.1f}",
        f"{low:.1f}–{high:.1f}",
        f"{faster(row, results):.2f}",
        f"{row.median('cpu_ms'):.0f}",
        f"{row.median('first'):.2f}",
        *(f"{part / MB:.0f}" for part in (peak.total, peak.anonymous, peak.shared, peak.mapped)),
    ]


def faster(row: Result, results: Iterable[Result]) -> float:
    """Return how many times the rate of a row the first row with as many workers has.

    In each round the two are divided, and the median of that is returned: what slows down the
    machine for a while slows down both.
    """
    first = next(r for r in results if r.workers == row.workers and r.rounds)
    return times(first, row)


def times(one: Result, other: Result) -> float:
    """Return how many times the rate of another row one has, as for :func:`faster`."""
    return float(
        median(
            a.answer()["rate"] / b.answer()["rate"]
            for a, b in zip(one.rounds, other.rounds, strict=True)
        )
    )


def verdicts(results: Sequence[Result], size: int) -> list[str]:
    """Return a line for each promise that these rows can judge, with PASS or FAIL."""
    if size != promises.PATCH:
        return []
    rows = [row for row in results if row.rounds and row.workers == promises.WORKERS]
    nii = next((row for row in rows if row.what == "nii"), None)
    lines = [*_of_chunks(rows), *_of_threads(rows), *_of_memory(rows)]
    if nii is None or rows[0] is not nii:
        return lines
    for row in rows:
        if row.target is not None:
            ratio = faster(row, rows)
            lines.append(at_least(ratio, row.target, f"{ratio:.1f} x {row.what}", " x"))
        if row.what == "nii.gz":
            part = 1 / faster(row, rows)
            text = f"nii.gz has {part:.2f} of the rate of nii"
            lines.append(at_least(part, promises.GZIP, text))
    first, smaller = nii.median("first"), [r.what for r in rows if r.target and _less(r, nii)]
    lines.append(at_most(first, promises.FIRST_BATCH_S, f"first batch after {first:.2f} s", " s"))
    if smaller:
        lines.append(f"- FAIL: {', '.join(smaller)} took less memory than nii (promised: none)")
    return lines


def _less(row: Result, other: Result) -> bool:
    return row.peak_mb < other.peak_mb


def _of_chunks(rows: Sequence[Result]) -> list[str]:
    """Judge what is promised from chunks, which is measured against nnU-Net's recipe alone."""
    recipe = next((row for row in rows if row.what.startswith(RECIPE)), None)
    lines = []
    for row in rows:
        promised = promises.FROM_CHUNKS.get(row.what)
        if recipe is not None and promised is not None:
            ratio = times(row, recipe)
            text = f"{row.what} is {ratio:.1f} x {recipe.what}"
            lines.append(at_least(ratio, promised, text, " x"))
    return lines


def _of_threads(rows: Sequence[Result]) -> list[str]:
    """Judge threads beside as many processes, from the same files."""
    found = {row.what: row for row in rows}
    lines = []
    for what, row in found.items():
        threads = found.get(f"{what}, threads")
        if threads is not None:
            part = times(threads, row)
            text = f"threads have {part:.2f} of the rate of processes from {what}"
            lines.append(at_least(part, promises.THREADS, text))
    return lines


def _of_memory(rows: Sequence[Result]) -> list[str]:
    lines = []
    for row in rows:
        is_threads = row.what.endswith(", threads")
        most = promises.THREADS_PEAK_MB if is_threads else promises.PEAK_MB.get(row.what)
        if most is not None:
            text = f"peak of all processes {row.peak_mb:.0f} MB from {row.what}"
            lines.append(at_most(row.peak_mb, most, text, " MB"))
    return lines


def at_least(found: float, promised: float, text: str, unit: str = "") -> str:
    """Return the verdict on what shall be large."""
    return f"- {'PASS' if found >= promised else 'FAIL'}: {text} (promised: {promised:g}{unit})"


def at_most(found: float, promised: float, text: str, unit: str = "") -> str:
    """Return the verdict on what shall be small."""
    return f"- {'PASS' if found <= promised else 'FAIL'}: {text} (promised: {promised:g}{unit})"
