"""The steady state of a loader: the one loop that times voxpipe and every peer alike.

Only the standard library is imported, so that it runs in the environment of every peer and adds
nothing to its memory. A loader is seen as an iterator of batches that never ends, and ``touch``
looks at one element of each tensor of a batch and returns how many patches it holds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import processes

WINDOWS = 5
"""The measured time is cut into so many windows; their spread says what the figure is worth."""


def measure(
    batches: Iterator[Any],
    touch: Callable[[Any], int],
    started: float,
    seconds: float,
    *,
    warm: int,
    period: int = 1,
) -> dict[str, float]:
    """Return rate, spread, processor time and the seconds until the first batch.

    Also ``others``: how many cores everything else on the machine has taken meanwhile.

    Parameters
    ----------
    batches
        Never ends.
    touch
        Looks at a batch and returns the number of its patches.
    started
        ``time.perf_counter()`` when the loader began to be made, libraries already imported.
    seconds
        Measured time, at least.
    warm
        Batches after the first that are not measured.
    period
        Batches after which the loader is in the same state again, for example those in one
        filling of a queue. Only whole periods are measured: emptying a full queue is no rate.
    """
    touch(next(batches))
    first = time.perf_counter() - started
    # The first batch belongs to the first period.
    for _ in range(-(-(1 + warm) // period) * period - 1):
        touch(next(batches))
    pids = processes.tree(os.getpid())
    cpu, busy = processes.cpu_seconds(pids), processes.busy_seconds()
    start = now = time.perf_counter()
    arrivals: list[tuple[float, int]] = []
    while now - start < seconds or len(arrivals) % period:
        patches = touch(next(batches))
        now = time.perf_counter()
        arrivals.append((now, patches))
    cpu, busy = processes.cpu_seconds(pids) - cpu, processes.busy_seconds() - busy
    total = sum(patches for _, patches in arrivals)
    rates = window_rates(arrivals, start, period)
    return {
        "first": first,
        "rate": total / (now - start),
        "low": min(rates),
        "high": max(rates),
        "cpu_ms": 1000 * cpu / total,
        "others": max(0.0, busy - cpu) / (now - start),
    }


def window_rates(arrivals: list[tuple[float, int]], start: float, period: int = 1) -> list[float]:
    """Return the rate in each of about ``WINDOWS`` runs of equally many whole periods."""
    length = max(1, len(arrivals) // period // WINDOWS) * period
    rates = []
    for begin in range(0, len(arrivals) - length + 1, length):
        window = arrivals[begin : begin + length]
        rates.append(sum(patches for _, patches in window) / (window[-1][0] - start))
        start = window[-1][0]
    return rates
