"""Which stored sections a range of virtual ones needs, in as few runs as touch nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .axis_map import Table


@dataclass(frozen=True, eq=False)
class Run:
    """Stored sections that are read at once, and where they are shown."""

    start: int
    """First stored section."""
    stop: int
    """One past the last."""
    shown: Any
    """Where in the virtual range, as a slice or an array of indices."""
    taken: Any
    """Which section of the run stands there, likewise."""
    shift: int | None
    """What to add to a virtual index to get the stored one; None where that differs."""


def whole(start: int, stop: int) -> Run:
    """Return the one run of an axis that has no table."""
    every = slice(0, stop - start)
    return Run(start, stop, every, every, 0)


def runs_of(table: Table, start: int, stop: int, chunk: int = 1) -> list[Run]:
    """Return the runs that show the virtual sections ``start`` to ``stop``; missing ones have none.

    Each stored section is in one run at most. Between two runs lies a chunk that neither needs:
    what shares a chunk is decoded together anyway, so it is read at once.

    Parameters
    ----------
    table
        Stored section by virtual section, negative where there is none.
    start, stop
        The virtual sections.
    chunk
        Stored sections that are decoded together.

    Examples
    --------
    >>> [(r.start, r.stop, r.shown, r.taken) for r in runs_of(np.array([0, 1, -1, 9, 8]), 0, 5)]
    [(0, 2, slice(0, 2, 1), slice(0, 2, 1)), (8, 10, slice(3, 5, 1), slice(1, None, -1))]
    """
    part = table[start:stop]
    needed = np.unique(part[part >= 0])
    if not len(needed):
        return []
    # A step to the next chunk, over whatever is left of both, touches no third one.
    ends = np.flatnonzero(np.diff(needed // chunk) > 1)
    firsts = needed[np.concatenate([[0], ends + 1])]
    lasts = needed[np.concatenate([ends, [len(needed) - 1]])]
    runs = []
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        shown = np.flatnonzero((part >= first) & (part <= last))
        taken = part[shown] - first
        shift = part[shown] - (shown + start)
        same = int(shift[0]) if (shift == shift[0]).all() else None
        runs.append(Run(first, last + 1, _as_slice(shown), _as_slice(taken), same))
    return runs


def _as_slice(places: NDArray[np.int64]) -> Any:
    """Return places as a slice where they are one of step 1 or -1; that costs no gathering."""
    first, count = int(places[0]), len(places)
    step = int(places[1]) - first if count > 1 else 1
    if abs(step) != 1 or not (np.diff(places) == step).all():
        return places
    stop = first + step * count
    return slice(first, stop if stop >= 0 else None, step)
