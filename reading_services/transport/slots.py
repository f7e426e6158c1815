"""Shared memory that a worker writes batches into; ``arrivals.py`` is the consumer's side.

A slot is an anonymous memory file (``memfd_create``): it has no name, so nothing can be
left behind in ``/dev/shm``, whoever is killed. The worker makes it and sends the
descriptor once; both sides keep it mapped. A batch occupies a slot until the last
tensor that looks into it is gone; then the consumer tells the worker, which uses it again.
How many bytes of slots there may be is decided in ``budget.py``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import SlotsUsedUp
from ...realizing import Layout, OwnMemory
from .mapping import Mapping

# Arrays in a slot start on a cache line, which also suits every vector load.
_ALIGNMENT = 64
# Slots are made in steps of a huge page, so that batches of nearly one size share them.
_STEP = 2 * 1024 * 1024

HAS_SLOTS = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Elsewhere batches travel through the pipe, at the price of two copies."""


@dataclass
class Slot:
    """One mapped memory file in the worker."""

    number: int
    fd: int
    memory: Mapping
    busy: bool = True

    @property
    def size(self) -> int:
        """Capacity in bytes."""
        return self.memory.size


class SlotWriter:
    """The worker's side: hands out memory for batches, in slots.

    Parameters
    ----------
    announce
        Called with each new slot, to send its descriptor to the consumer.
    retire
        Called with the number of a slot that is given up.
    limit
        Bytes that all slots together may take. Beyond it a batch gets the process's own
        memory and travels through the pipe: the writer never waits for a slot.
    """

    def __init__(
        self,
        announce: Callable[[Slot], None],
        retire: Callable[[int], None],
        limit: int = sys.maxsize,
    ) -> None:
        self._announce = announce
        self._retire = retire
        self._limit = limit
        self._slots: dict[int, Slot] = {}
        self._made = 0

    def take(self, layouts: Sequence[Layout]) -> list[NDArray[np.generic]]:
        """Return one C-ordered array per layout, all in one free slot if there is room."""
        offsets, total = _offsets(layouts)
        slot = self._free_slot(total)
        if slot is None:
            return OwnMemory().take(layouts)
        memory = slot.memory.bytes()
        arrays: list[NDArray[Any]] = []
        for (shape, dtype), offset in zip(layouts, offsets, strict=True):
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            arrays.append(memory[offset : offset + size].view(dtype).reshape(shape))
        return arrays

    def place(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Return (slot, offset) of an array that lies in a slot already, else None."""
        if not array.flags.c_contiguous or array.size == 0:
            return None
        where = array.ctypes.data
        for slot in self._slots.values():
            start = slot.memory.address
            if slot.busy and start <= where and where + array.nbytes <= start + slot.size:
                return slot.number, where - start
        return None

    def copy_in(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Copy an array into a slot of its own and return (slot, offset); None without room."""
        slot = self._free_slot(array.nbytes)
        if slot is None:
            self._say_full()
            return None
        inside = slot.memory.bytes()[: array.nbytes].view(array.dtype).reshape(array.shape)
        inside[...] = array
        return slot.number, 0

    def release(self, numbers: Sequence[int]) -> None:
        """Take back slots that the consumer no longer looks into."""
        for number in numbers:
            if number in self._slots:
                self._slots[number].busy = False

    def release_unsent(self, sent: set[int], before: set[int]) -> None:
        """Take back slots that were taken since ``before`` but are not part of what was sent."""
        for number in self.busy() - before - sent:
            self._slots[number].busy = False

    def busy(self) -> set[int]:
        """Return the numbers of the slots in use."""
        return {slot.number for slot in self._slots.values() if slot.busy}

    def _say_full(self) -> None:
        # The same words for every batch: the consumer repeats them once.
        warnings.warn(
            f"a batch found no room in the {self._limit} bytes of shared memory that each worker "
            "has, so it travels through a pipe, which takes two copies. Raise slot_bytes of "
            "MultiProcessingReadingService: it should hold the largest batch worker_prefetch_cnt "
            "+ 1 times for each worker.",
            SlotsUsedUp,
            stacklevel=2,
        )

    def _free_slot(self, size: int) -> Slot | None:
        free = [slot for slot in self._slots.values() if not slot.busy]
        fitting = [slot for slot in free if slot.size >= size]
        if fitting:
            slot = min(fitting, key=lambda s: s.size)
            slot.busy = True
            return slot
        size = max(1, -(-size // _STEP)) * _STEP
        if sum(slot.size for slot in self._slots.values() if slot.busy) + size > self._limit:
            return None
        # Free slots that are too small would pile up where batches grow.
        for slot in free:
            del self._slots[slot.number]
            # The consumer unmaps it when it gets to it; its memory counts no longer now.
            slot.memory.discard()
            self._retire(slot.number)
        return self._new_slot(size)

    def _new_slot(self, size: int) -> Slot:
        fd = os.memfd_create("voxpipe", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            slot = Slot(self._made, fd, Mapping(fd, size))
            self._announce(slot)
        finally:
            os.close(fd)
        self._made += 1
        self._slots[slot.number] = slot
        return slot


def _offsets(layouts: Sequence[Layout]) -> tuple[list[int], int]:
    offsets, total = [], 0
    for shape, dtype in layouts:
        offsets.append(total)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        total += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, total
