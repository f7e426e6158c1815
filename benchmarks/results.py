"""Rows of the throughput benchmark: their medians, how they compare, and what was promised.

Nothing here measures; a row holds what the processes answered in each round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

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
PROMISED_SIZE = 96
PROMISED_WORKERS = 2
"""The promises are about this patch and so many workers; other settings are not judged."""
MOST_MEMORY_MB = 800
LONGEST_FIRST_BATCH = 3.0
"""Seconds, with forkserver."""
RECIPE = "nnunet recipe"
"""How the rows of nnU-Net's recipe begin."""
FROM_CHUNKS = {"shard128": 4.0, "b2nd": 5.0}
"""How many times its rate is promised from chunks; from b2nd both read the same files."""
SLOWEST_GZ = 0.8
""".nii.gz after its first touch, as a part of the rate of .nii."""


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
    rows = [row for row in results if row.rounds and row.workers == PROMISED_WORKERS]
    nii = next((row for row in rows if row.what == "nii"), None)
    lines = _of_chunks(rows) if size == PROMISED_SIZE else []
    if nii is None or size != PROMISED_SIZE or rows[0] is not nii:
        return lines
    for row in rows:
        if row.target is not None:
            ratio = faster(row, rows)
            lines.append(
                _line(ratio >= row.target, f"{ratio:.1f} x {row.what}", f"{row.target:g} x")
            )
        if row.what == "nii.gz":
            part = 1 / faster(row, rows)
            text = f"nii.gz has {part:.2f} of the rate of nii"
            lines.append(_line(part >= SLOWEST_GZ, text, f"{SLOWEST_GZ}"))
    first = nii.median("first")
    lines.append(
        _line(
            first <= LONGEST_FIRST_BATCH,
            f"first batch after {first:.2f} s",
            f"{LONGEST_FIRST_BATCH:g} s",
        )
    )
    smaller = [row.what for row in rows if row.target is not None and row.peak_mb < nii.peak_mb]
    text = f"peak of all processes {nii.peak_mb:.0f} MB"
    if smaller:
        text += f", while {', '.join(smaller)} took less"
    lines.append(
        _line(nii.peak_mb < MOST_MEMORY_MB and not smaller, text, f"{MOST_MEMORY_MB} MB, smallest")
    )
    return lines


def _of_chunks(rows: Sequence[Result]) -> list[str]:
    """Judge what is promised from chunks, which is measured against nnU-Net's recipe alone."""
    recipe = next((row for row in rows if row.what.startswith(RECIPE)), None)
    lines = []
    for row in rows:
        promised = FROM_CHUNKS.get(row.what)
        if recipe is not None and promised is not None:
            ratio = times(row, recipe)
            text = f"{row.what} is {ratio:.1f} x {recipe.what}"
            lines.append(_line(ratio >= promised, text, f"{promised:g} x"))
    return lines


def _line(passed: bool, text: str, promised: str) -> str:
    return f"- {'PASS' if passed else 'FAIL'}: {text} (promised: {promised})"
