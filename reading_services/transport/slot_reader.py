"""The consumer's side of the slots: batches are looked into where they lie, or copied out."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...batching.collate import ArraySpec
from ...core.locks import ForkSafeLock, at_fork
from ...core.memory import private_pages
from ..memory_budget import SlotBudget
from .pinning import Check, Cuda
from .shared_memory import SharedMemory
from .slot_writer import offsets_of

# By number, as a set of weak references cannot be looked through while other threads add to it.
_READERS: weakref.WeakValueDictionary[int, SlotReader] = weakref.WeakValueDictionary()
_NUMBERS = count()


class SlotReader:
    """The consumer's side of one worker's slots."""

    def __init__(
        self,
        budget: SlotBudget | None = None,
        share: int = sys.maxsize,
        ahead: int = 0,
        registrar: Any = None,
        before: SlotReader | None = None,
    ) -> None:
        self.budget = budget or SlotBudget()
        self._share = share
        self._ahead = ahead
        self._registrar = registrar or Cuda()
        self._memory: dict[int, SharedMemory] = {}
        self._free_slots: list[int] = []
        self._sizes: dict[int, int] = {}  # slots that batches look into, and their sizes
        self._looks: Counter[int] = Counter()  # how many batches look into each
        self._cooling: list[tuple[list[int], Check]] = []
        self._pins: dict[int, bool] = {}  # slots that were to be page-locked, and whether they are
        self._largest = 0
        self._before = before
        self._child_slots: set[int] = set()  # slots that a forked child looks into as well
        self._given_up: list[int] = []
        _READERS[next(_NUMBERS)] = self

    def add(self, number: int, memory: SharedMemory) -> None:
        """Note a slot that the worker announced."""
        self._memory[number] = memory

    def retire(self, number: int) -> None:
        """Forget a slot; it is unmapped when nothing looks into it any more."""
        self._memory.pop(number, None)
        self._pins.pop(number, None)
        self._child_slots.discard(number)

    def close(self) -> None:
        """Forget all slots; those that batches look into stay mapped until these are gone."""
        for number in list(self._memory):
            self.retire(number)

    def take_freed(self) -> list[int]:
        """Return the slots that were given back, each once for each batch that lay in it."""
        # Finalizers run in any thread at any time: take what is there, leave what comes.
        count = len(self._free_slots)
        numbers, self._free_slots[:count] = self._free_slots[:count], []
        # What was copied out of a pinned slot was copied by this process, and is done.
        cooling = [n for n in numbers if self._pins.get(n) and n in self._sizes]
        if cooling:
            self._cooling.append((cooling, self._registrar.mark()))
        free = [number for number in numbers if number not in cooling]
        # In turn: what the devices were given later is done later.
        while self._cooling and self._cooling[0][1]():
            free += self._cooling.pop(0)[0]
        for number in free:
            self._looks[number] -= 1
            if self._looks[number] <= 0:
                del self._looks[number]
                self._sizes.pop(number, None)
                if number in self._child_slots:
                    self._child_slots.remove(number)
                    self._given_up.append(number)
        return free

    def take_given_up(self) -> list[int]:
        """Return, once, slots never to be used again: a child forked then looks into them still."""
        numbers, self._given_up = self._given_up, []
        return numbers

    def open(self, number: int, others: int = 0) -> tuple[NDArray[np.uint8], bool]:
        """Return the bytes of a slot for one batch, and whether the batch may stay in it.

        When the array and all that is made from it are collected, the slot is free. Of the same
        batch slots of ``others`` bytes were opened before.
        """
        memory = self._memory[number]
        whole = memory.bytes()
        weakref.finalize(whole, self._free_slots.append, number).atexit = False
        self._looks[number] += 1
        self._largest = max(self._largest, others + memory.size)
        in_flight = self._ahead * self._largest
        stays = self._kept_bytes() + memory.size + in_flight <= self._share
        if stays:
            self._sizes[number] = memory.size
            self.budget.slots.add(whole, memory.size, 0 if others else 1)
            # Page-lock it as soon as there is a device to copy to; that is tried once.
            registrar = self._registrar
            if number not in self._pins and registrar.is_ready():
                self._pins[number] = registrar.pin(memory.address, memory.size)
                if self._pins[number]:
                    memory.before_unmap.append(partial(registrar.unpin, memory.address))
        return whole, stays

    def note_copy(self, private: NDArray[np.uint8], size: int, *, is_first: bool) -> None:
        """Count ``size`` bytes that were copied to ``private``, and say so."""
        self.budget.copies.add(private, size, 1 if is_first else 0)
        self.budget.say_copied(self._share, self._largest, self._ahead)

    def _kept_bytes(self) -> int:
        """Return the bytes of slots that the worker, and dead ones before it, cannot have back."""
        counts = Counter(number for number in self._free_slots if not self._pins.get(number))
        total = sum(size for n, size in self._sizes.items() if self._looks[n] > counts[n])
        earlier = 0 if self._before is None else self._before._kept_bytes()
        if not earlier:
            self._before = None
        return total + earlier


class Arrival:
    """One batch that has arrived: its bytes, where they lie or copied."""

    def __init__(self, slots: SlotReader) -> None:
        self._slots = slots
        self._buffers: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8] | None]] = {}
        self.bytes = 0  # bytes of the slots in which the batch lies
        self._copies = 0

    def part(self, number: int, offset: int, size: int) -> NDArray[np.uint8]:
        """Return ``size`` bytes of a slot, which keep it in use; a copy where the share is full."""
        if number not in self._buffers:
            whole, stays = self._slots.open(number, self.bytes)
            # Only what is copied into it is ever touched, and only that takes memory.
            private = None if stays else np.empty(whole.size, np.uint8)
            self._buffers[number] = whole, private
            self.bytes += whole.size
        whole, private = self._buffers[number]
        inside = slice(offset, offset + size)
        if private is None:
            return whole[inside]
        private[inside] = whole[inside]
        self._slots.note_copy(private, size, is_first=not self._copies)
        self._copies += 1
        return private[inside]


# Memory of batches that threads of this process make.
#
# Large memory that is freed goes back to the system, which clears each page of it when it is given
# out again: a quarter of a millisecond a megabyte. So buffers are used again, once the last tensor
# that looks into one is gone. Of free ones there are never more than batches may be in flight.


@dataclass(eq=False)
class _Buffer:
    """Memory for one batch."""

    number: int
    size: int

    def __post_init__(self) -> None:
        # Of the heap, each epoch would leave holes of this size in those of the threads before.
        # Arrays hold this object and not each other, so one of them tells when its views are gone.
        self.owner: Any = (ctypes.c_uint8 * self.size).from_buffer(private_pages(self.size))
        self.address = ctypes.addressof(self.owner)
        self.is_pinned: bool | None = None  # None where that was not tried


class BatchBuffers:
    """Hands out memory for batches to several threads, and takes it back when nobody uses it."""

    def __init__(self, most_free: int, most_bytes: int, registrar: Any = None) -> None:
        self._most_free, self._most_bytes = most_free, most_bytes
        self._registrar = registrar or Cuda()
        self._lock = ForkSafeLock()
        self._free: list[_Buffer] = []
        self._in_use: dict[int, _Buffer] = {}
        # Finalizers run in any thread at any time, so they only append.
        self._returns: deque[int] = deque()
        self._cooling: deque[tuple[_Buffer, Callable[[], bool]]] = deque()
        self._count = 0
        self._is_closed = False

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
        """Return one C-ordered, uninitialised array per spec, all in one buffer."""
        offsets, total = offsets_of(specs)
        with self._lock:
            self._take_back()
            buffer = self._buffer(max(1, total))
        if buffer is None:  # who keeps so many batches has memory of his own for them
            return [np.empty(*spec) for spec in specs]
        whole: NDArray[np.uint8] = np.frombuffer(buffer.owner, np.uint8)
        weakref.finalize(whole, self._returns.append, buffer.number).atexit = False
        arrays: list[NDArray[Any]] = []
        for (shape, dtype), offset in zip(specs, offsets, strict=True):
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            arrays.append(whole[offset : offset + size].view(dtype).reshape(shape))
        return arrays

    def _buffer(self, size: int) -> _Buffer | None:
        fitting = [one for one in self._free if one.size >= size]
        if fitting and not self._is_closed:
            buffer = min(fitting, key=lambda one: one.size)
            self._free.remove(buffer)
        else:
            self._free.clear()  # too small, and would pile up where batches grow
            total = sum(one.size for one in self._in_use.values())
            if self._is_closed or total + size > self._most_bytes:
                return None
            self._count += 1
            buffer = _Buffer(self._count, size)
        self._in_use[buffer.number] = buffer
        return buffer

    def _take_back(self) -> None:
        """Note what nobody looks into any more; what a device may still copy has to wait."""
        for _ in range(len(self._returns)):
            buffer = self._in_use.get(number := self._returns.popleft())
            if buffer is None:  # closed meanwhile
                continue
            if buffer.is_pinned:
                self._returns.append(number)
            else:
                del self._in_use[number]
                self._keep(buffer)

    def _keep(self, buffer: _Buffer) -> None:
        if len(self._free) < self._most_free and not self._is_closed:
            self._free.append(buffer)

    def settle(self) -> None:
        """Page-lock what is in use where CUDA is; for the thread that uses the batches.

        Others must not ask CUDA: this one may be recording a graph.
        """
        with self._lock:
            if self._is_closed:
                return
            self._take_back()
            # One by one: more may come back meanwhile.
            returns = [self._returns.popleft() for _ in range(len(self._returns))]
            pinned_buffers = [self._in_use.pop(number) for number in returns]
            if pinned_buffers:
                is_done = self._registrar.mark()
                self._cooling.extend((buffer, is_done) for buffer in pinned_buffers)
            while self._cooling and self._cooling[0][1]():
                self._keep(self._cooling.popleft()[0])
            new = [one for one in self._in_use.values() if one.is_pinned is None]
            if not new or not self._registrar.is_ready():
                return
            for buffer in new:
                buffer.is_pinned = self._registrar.pin(buffer.address, buffer.size)
                if buffer.is_pinned:
                    unpin = self._registrar.unpin
                    weakref.finalize(buffer.owner, unpin, buffer.address).atexit = False

    def close(self) -> None:
        """Let go of everything; what tensors look into stays as long as they do."""
        with self._lock:
            self._is_closed = True
            self._free.clear()
            self._in_use.clear()
            self._cooling.clear()
            self._returns.clear()


def _before_fork() -> None:
    for reference in _READERS.valuerefs():
        reader = reference()
        if reader is not None:
            reader._child_slots.update(reader._looks)  # a child that is forked looks into them, too


at_fork(before=_before_fork)
