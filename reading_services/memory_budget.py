"""Memory budgets of a service: for reading, for prefetched batches, and for their slots."""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

from ..core.call_site import warn
from ..core.errors import SlotsUsedUp
from ..core.memory import usable_memory
from ..core.validate import validate_int
from ..storage.disk_cache import cache_budget
from ..volumes.scheme import Budget
from .transport.slot_writer import needed_bytes, needed_text

# Assumption where the system does not report its memory.
UNKNOWN_MEMORY = 8 * 2**30
# The rest is for the model, its optimizer and the page cache. Shared memory for batches, by default
# an eighth of the memory, is included in this quarter.
MEMORY_FRACTION = 4
# Enough for batches of four patches of 96^3 and the chunks that they share. Whole data sets in
# memory multiply the size of a loader, so only the user's limit permits them.
USUAL_BYTES = 256 * 1024**2
# Batches in flight share the memory with the model, the workers and the page cache. An eighth
# is 3 GB of 24, or 170 batches of 4 patches of 96^3.
SLOT_FRACTION = 8
_MB = 10**6


def memory_bytes() -> int:
    """Return the bytes of main memory, or the container's limit if it is lower."""
    return usable_memory() or UNKNOWN_MEMORY


def count_or_none(name: str, value: int | None, *, least: int) -> int | None:
    """Return a validated setting, or None if the service decides it."""
    if value is None:
        return None
    unit = "bytes" if name.endswith("_bytes") else ""
    return validate_int(name, value, least=least, unit=unit, do="or None for the default")


def budgets(
    limit: int | None, *, workers: int, batches_ahead: int, threads: int
) -> tuple[Budget, ...]:
    """Return the budgets to try in turn: the user's limit, else 256 MiB, a quarter, all memory.

    A default must not refuse a workable epoch. It keeps only the chunks that patches of one visit
    share.
    """
    quarter = memory_bytes() // MEMORY_FRACTION
    usual = (min(USUAL_BYTES, quarter), quarter, memory_bytes())
    sizes = (limit,) if limit is not None else usual
    return tuple(
        Budget(
            size,
            workers=workers,
            batches_ahead=batches_ahead,
            threads=threads,
            spool_bytes=cache_budget(),
            thrifty=limit is None,
        )
        for size in sizes
    )


class PrefetchBudget:
    """Limit in bytes of batches that wait, by size, and of batches in flight, by estimate.

    Before the first batch has arrived, up to ``unknown`` batches of any size may be in flight.
    """

    def __init__(self, limit: int, unknown: int) -> None:
        self._limit = limit
        self._unknown = unknown
        self._waiting: dict[object, int] = {}
        self._largest = 0

    def add(self, batch: object, size: int) -> None:
        """Count a batch that waits for its turn."""
        self._waiting[batch] = size
        self._largest = max(self._largest, size)

    def remove(self, batch: object) -> None:
        """Remove a batch that was delivered."""
        self._waiting.pop(batch, None)

    def has_room(self, in_flight: int) -> bool:
        """Whether one more batch may be requested; each counts as the largest so far."""
        if not self._largest:
            return in_flight < self._unknown
        demand = (in_flight + 1) * self._largest
        return sum(self._waiting.values()) + demand <= self._limit


# The shared memory of the batches of one loader, and the fallback beyond its limit.
#
# Each worker has an equal share of the budget, which it never exceeds, so that processes need not
# agree or wait. In every share the consumer reserves room for the batches in flight::
#
#     share of one worker  |  batches in use  |  room for batches in flight  |
#
# A batch that arrives when the left part is full is copied into the consumer's own memory, and its
# slot is free at once. So an epoch continues even if the user keeps batches, which are never
# overwritten.


def default_slot_bytes() -> int:
    """Return an eighth of the memory that this process may use, in bytes."""
    return memory_bytes() // SLOT_FRACTION


class Alive:
    """Count of the bytes and batches that are alive; finalizers subtract them."""

    def __init__(self) -> None:
        self._alive: dict[int, tuple[int, int]] = {}
        self._numbers = count()

    def add(self, thing: Any, size: int, batches: int = 1) -> None:
        """Count ``thing`` until it is collected."""
        number = next(self._numbers)
        self._alive[number] = size, batches
        # Finalizers run in any thread at any time: pop() is atomic, as are the copies below.
        weakref.finalize(thing, self._alive.pop, number, None).atexit = False

    @property
    def bytes(self) -> int:
        """Bytes that are alive."""
        return sum(size for size, _ in [*self._alive.values()])

    @property
    def batches(self) -> int:
        """Batches that are alive."""
        return sum(batches for _, batches in [*self._alive.values()])


class SlotBudget:
    """The budget of one loader, over all its workers and epochs."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = default_slot_bytes() if limit is None else limit
        self.workers = 1  # number of workers that share it
        self.slots = Alive()
        """Slots in use, also those of workers that have ended."""
        self.copies = Alive()  # batches that were copied out of their slots
        self._warnings: set[str] = set()

    def share(self, workers: int) -> int:
        """Return the bytes for each new worker; batches of earlier epochs are subtracted first."""
        self.workers = workers
        return max(0, self.limit - self.slots.bytes) // workers

    def say_copied(self, share: int, largest: int = 0, ahead: int = 0) -> None:
        """Warn once that batches are copied, and once more when the copies exceed the limit.

        The ``share`` of a worker is full; ``ahead`` of its batches may be in flight, of ``largest``
        bytes at most.
        """
        slots, copies = self.slots, self.copies
        usage = (
            f"batches still in use: {slots.batches + copies.batches} "
            f"({slots.bytes / _MB:.1f} MB in shared memory, {copies.bytes / _MB:.1f} MB copied)"
        )
        which = "slots"
        if needed_bytes(largest, ahead, self.workers) > self.limit:
            text = (
                f"slot_bytes={self.limit} is too little for these batches, so each is copied on "
                f"its way: {needed_text(largest, ahead, self.workers)}, or lower "
                "worker_prefetch_cnt."
            )
        elif copies.bytes > self.limit:
            which = "copies"
            text = (
                f"{usage}: the copies alone take more than slot_bytes={self.limit}, and each "
                "further one takes more. Clone the part of a batch that you need and drop the rest."
            )
        else:
            # While the loop holds one batch, all batches in flight of a worker may have arrived.
            enough = (2 * ahead + 1) * largest * self.workers
            text = (
                f"{usage}; the shared memory of this loader is used up (slot_bytes={self.limit}, "
                f"{share} for each worker): further batches are copied as they arrive. Drop "
                "batches, or clone the part that you need; if you keep none, lower "
                f"worker_prefetch_cnt or give MultiProcessingReadingService(slot_bytes={enough})."
            )
        if which not in self._warnings:
            self._warnings.add(which)
            warn(text, SlotsUsedUp)
