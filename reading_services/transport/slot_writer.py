"""Shared memory for a worker's batches; ``slot_reader.py`` is the consumer's side.

A slot is an anonymous memory file, so no name remains after a kill. A batch occupies it until the
last tensor in it is gone; then the consumer sends its number to the worker.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...batching.collate import ArraySpec
from ...core.call_site import warn
from ...core.errors import SlotsUsedUp
from .shared_memory import SharedMemory

# Arrays in a slot start on a cache line, which also suits every vector load.
ALIGNMENT = 64
# The size of a slot is a multiple of a huge page, so that batches of similar size share slots.
_STEP = 2 * 1024 * 1024

HAS_SLOTS = sys.platform == "linux" and hasattr(os, "memfd_create")
"""On other systems batches travel through the pipe, which takes two copies."""


@dataclass
class Slot:
    """A mapped memory file in the worker."""

    number: int
    fd: int
    memory: SharedMemory
    arrays: int = 0  # arrays of this process in it, each counted with its views
    batches: int = 0  # batches in it that the consumer has not released

    @property
    def busy(self) -> bool:
        """Whether this process or the consumer may still read it."""
        return bool(self.arrays or self.batches)

    @property
    def size(self) -> int:
        """Capacity in bytes."""
        return self.memory.size


@dataclass(eq=False)
class SlotWriter:
    """The worker's side: allocates memory for batches in slots."""

    _announce: Callable[[Slot], None]
    _retire: Callable[[int], None]
    _limit: int = sys.maxsize
    _ahead: int = 0
    _workers: int = 1

    def __post_init__(self) -> None:
        self._largest = 0  # bytes of the largest batch
        self._full_said = False
        self._slots: dict[int, Slot] = {}
        self._count = 0
        # Finalizers run in any thread at any time, so they only append.
        self._drops: list[int] = []
        self._copies: list[Any] = []

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
        """Return one C-ordered array per spec, all in one free slot if there is room."""
        total = size_of(specs)
        self._largest = max(self._largest, total)
        if (slot := self._free_slot(total)) is None:
            return [np.empty(*spec) for spec in specs]
        return arrays_in(self._look_into(slot), specs)

    def place(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Return (slot, offset) of an array that is in a slot already, else None."""
        if not array.flags.c_contiguous or array.size == 0:
            return None
        where = array.ctypes.data
        self._settle()
        for slot in self._slots.values():
            start = slot.memory.address
            if slot.busy and start <= where and where + array.nbytes <= start + slot.size:
                return slot.number, where - start
        return None

    def copy_in(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Copy an array into a slot of its own and return (slot, offset); None without room."""
        slot = self._free_slot(array.nbytes)
        if slot is None:
            self._largest = max(self._largest, array.nbytes)
            # Only once: sizes of batches differ, and the consumer shows each different text.
            if not self._full_said:
                self._full_said = True
                text = needed_text(_round_up(self._largest), self._ahead, self._workers)
                warn(
                    f"a batch found no room in the {self._limit} bytes of shared memory that each "
                    f"worker has, so it travels through a pipe, which takes two copies: {text}.",
                    SlotsUsedUp,
                )
            return None
        memory = self._look_into(slot)
        self._copies.append(memory)  # keeps the slot in use until note_sent()
        inside = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        inside[...] = array
        return slot.number, 0

    def note_sent(self, numbers: Collection[int]) -> None:
        """Count the batch that is sent now in its slots, which the consumer then uses."""
        for number in numbers:
            self._slots[number].batches += 1
        self._copies.clear()

    def release(self, numbers: Sequence[int], given_up: Sequence[int] = ()) -> None:
        """Free slots that the consumer no longer uses, once for each batch that was sent in them.

        Slots that were ``given_up`` stay as they are for other processes, and are not used again.
        """
        for number in numbers:
            if number in self._slots:
                self._slots[number].batches -= 1
        for number in given_up:
            if self._slots.pop(number, None) is not None:
                self._retire(number)

    def busy(self) -> set[int]:
        """Return the numbers of the slots in use, here or by the consumer."""
        self._settle()
        return {slot.number for slot in self._slots.values() if slot.busy}

    def _look_into(self, slot: Slot) -> NDArray[np.uint8]:
        """Return the bytes of a slot, which stays in use while this array or a view is alive."""
        memory = slot.memory.bytes()
        slot.arrays += 1
        weakref.finalize(memory, self._drops.append, slot.number).atexit = False
        return memory

    def _settle(self) -> None:
        while self._drops:
            slot = self._slots.get(self._drops.pop())
            if slot is not None:
                slot.arrays -= 1

    def _free_slot(self, size: int) -> Slot | None:
        self._settle()
        free = [slot for slot in self._slots.values() if not slot.busy]
        if fitting := [slot for slot in free if slot.size >= size]:
            return min(fitting, key=lambda s: s.size)
        size = _round_up(size)
        if sum(slot.size for slot in self._slots.values() if slot.busy) + size > self._limit:
            return None
        # Free slots that are too small would accumulate while batches grow.
        for slot in free:
            del self._slots[slot.number]
            # The consumer unmaps it later; its memory is released now.
            slot.memory.discard()
            self._retire(slot.number)
        fd = os.memfd_create("voxpipe", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            slot = Slot(self._count, fd, SharedMemory(fd, size))
            self._announce(slot)
        except OSError as error:
            why = f"{error.strerror}: a batch needs {size} bytes of shared memory (ulimit -f, -v)"
            raise OSError(error.errno, why) from error
        finally:
            os.close(fd)
        self._count += 1
        self._slots[slot.number] = slot
        return slot


def needed_bytes(batch: int, ahead: int, workers: int) -> int:
    """Return the least ``slot_bytes`` for the batches in flight and one in use per worker."""
    return (ahead + 1) * batch * workers


def needed_text(batch: int, ahead: int, workers: int) -> str:
    """Return the text of the fix: the ``slot_bytes`` with which no batch is copied."""
    size = needed_bytes(batch, ahead, workers)
    return (
        f"a batch takes {batch} bytes of shared memory, and {ahead + 1} of them for each of "
        f"{workers} worker(s) (worker_prefetch_cnt + 1) take {size}. Give "
        f"MultiProcessingReadingService(slot_bytes={size}) or more"
    )


def _round_up(size: int) -> int:
    return max(1, -(-size // _STEP)) * _STEP


def _sizes(specs: Sequence[ArraySpec]) -> list[int]:
    return [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in specs]


def size_of(specs: Sequence[ArraySpec]) -> int:
    """Return the size in bytes of one buffer for several arrays."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in _sizes(specs))


def arrays_in(buffer: NDArray[np.uint8], specs: Sequence[ArraySpec]) -> list[NDArray[Any]]:
    """Return one array per spec in a buffer, each at the start of a cache line."""
    arrays, start = [], 0
    for (shape, dtype), size in zip(specs, _sizes(specs), strict=True):
        arrays.append(buffer[start : start + size].view(dtype).reshape(shape))
        start += -(-size // ALIGNMENT) * ALIGNMENT
    return arrays
