"""How much shared memory the batches of one loader may take, and what happens beyond that.

Each worker has an equal share of the budget, which it never exceeds: no two processes have to
agree on anything, so none waits for another. The consumer leaves in every share the room that
the batches in flight need::

    share of one worker  |  batches that somebody looks into  |  room for those in flight  |

A batch that arrives when the left part is full is copied into the consumer's own memory and
its slot is free at once. So an epoch goes on whatever the user keeps, and what was kept is
never written over.
"""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path
from typing import Any

from ...core.errors import SlotsUsedUp

# Batches on their way are one user of the memory among several: the model, the workers' own
# memory, the cached files. An eighth is 3 GB of 24, or 170 batches of 4 patches of 96^3.
MEMORY_FRACTION = 8
# Where the system does not say how much memory there is.
UNKNOWN_MEMORY = 8 * 2**30
_LIMITS_OF_CONTAINERS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
_MB = 10**6


def default_slot_bytes() -> int:
    """Return an eighth of the memory that this process may use, in bytes."""
    return memory_bytes() // MEMORY_FRACTION


def memory_bytes() -> int:
    """Return the main memory, or the limit of the container if that is less."""
    try:
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):
        sizes = [UNKNOWN_MEMORY]
    for name in _LIMITS_OF_CONTAINERS:
        try:
            sizes.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # no such file; or "max": no limit
            continue
    return min(sizes)


class Alive:
    """How many bytes and batches are alive; told by the garbage collector when they go."""

    def __init__(self) -> None:
        self._alive = [0, 0]
        self._gone: list[tuple[int, int]] = []

    def add(self, thing: Any, size: int, batches: int = 1) -> None:
        """Count ``thing`` until it is collected."""
        self._alive[0] += size
        self._alive[1] += batches
        weakref.finalize(thing, self._gone.append, (size, batches)).atexit = False

    def _settled(self) -> list[int]:
        # Finalizers run in any thread at any time, so they only append.
        for _ in range(len(self._gone)):
            size, batches = self._gone.pop(0)
            self._alive[0] -= size
            self._alive[1] -= batches
        return self._alive

    @property
    def bytes(self) -> int:
        """Bytes that are alive."""
        return self._settled()[0]

    @property
    def batches(self) -> int:
        """Batches that are alive."""
        return self._settled()[1]


class SlotBudget:
    """The budget of one loader, over all its workers and epochs.

    Parameters
    ----------
    limit
        Bytes of all slots together; None for an eighth of the memory.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = default_slot_bytes() if limit is None else limit
        self.shared = Alive()
        """Slots that somebody looks into, those of workers that have ended included."""
        self.copies = Alive()
        """Batches that were copied out of their slots."""
        self._said: set[str] = set()

    def share(self, workers: int) -> int:
        """Return the bytes for the slots of each of ``workers`` new workers.

        What an earlier epoch's batches occupy is not there for the next one.
        """
        return max(0, self.limit - self.shared.bytes) // workers

    def say_copied(self, share: int) -> None:
        """Say, once, that batches are copied; and once more when the copies exceed the limit.

        Parameters
        ----------
        share
            Bytes of the worker whose share was full.
        """
        if self.copies.bytes > self.limit:
            self._say(
                "copies",
                f"{self._held()}: the copies alone take more than slot_bytes={self.limit}, and "
                "each further one takes more. Clone the part of a batch that you need and drop the "
                "rest.",
            )
        else:
            self._say(
                "slots",
                f"{self._held()}; the shared memory of this loader is used up "
                f"(slot_bytes={self.limit}, {share} for each worker): further batches are copied "
                "as they arrive. Drop batches, or clone the part that you need; if you keep none, "
                "raise MultiProcessingReadingService(slot_bytes=...) or lower "
                "worker_prefetch_cnt.",
            )

    def _held(self) -> str:
        shared, copies = self.shared, self.copies
        return (
            f"batches still in use: {shared.batches + copies.batches} "
            f"({shared.bytes / _MB:.1f} MB in shared memory, {copies.bytes / _MB:.1f} MB copied)"
        )

    def _say(self, which: str, text: str) -> None:
        if which not in self._said:
            self._said.add(which)
            warnings.warn(text, SlotsUsedUp, stacklevel=2)
