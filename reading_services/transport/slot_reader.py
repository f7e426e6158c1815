"""The consumer's side of the slots: batches are read in place, or copied out.

Slots are page-locked if CUDA is in use, so that copies to the device need no staging buffer.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...batching.collate import ArraySpec
from ...core.locks import ForkSafeLock, at_fork
from ...core.memory import private_pages
from ..memory_budget import SlotBudget
from .shared_memory import SharedMemory
from .slot_writer import arrays_in, size_of

# A slot is registered when its first batch is opened after the user initialised CUDA (e.g. moved a
# model to a device). This module never initialises CUDA: that takes some hundred megabytes and
# breaks programs that fork later.
#
# A copy with ``non_blocking=True`` out of page-locked memory may still run when its tensor is
# gone, and torch guards only memory of its own allocator. So a pinned slot is not released before
# all devices have finished their current work, on every stream.
#
# While the calling thread captures a CUDA graph, no call registers, records or queries: each
# would end the capture. Slots that were freed meanwhile wait until the capture is over.

Check: TypeAlias = "Callable[[], bool]"


class Cuda:
    """Page-locks with torch's own CUDA runtime."""

    def is_ready(self) -> bool:
        """Whether the user has initialised CUDA in this process, and no capture is going on."""
        return _is_initialized() and not _is_capturing()

    def pin(self, address: int, size: int) -> bool:
        """Register for all devices; the limit on locked memory may refuse it."""
        portable = 1  # cudaHostRegisterPortable
        error = int(_torch().cuda.cudart().cudaHostRegister(address, size, portable))
        if error:
            _forget_error()
        return not error

    def unpin(self, address: int) -> None:
        """Unregister memory after all copies have ended, as it is unmapped next."""
        if _is_initialized():
            for device in _devices():
                _torch().cuda.synchronize(device)
            _torch().cuda.cudart().cudaHostUnregister(address)

    def mark(self) -> Check:
        """Record an event over all streams of each device that is in use."""
        if not _is_initialized():
            return lambda: True
        events: list[Any] | None = None

        def is_done() -> bool:
            nonlocal events
            if _is_capturing():
                return False
            if events is None:
                events = [_event_on(device) for device in _devices()]
            return all(event.query() for event in events if event is not None)

        if not _is_capturing():
            events = [_event_on(device) for device in _devices()]
        return is_done


def _is_initialized() -> bool:
    return "torch" in sys.modules and bool(_torch().cuda.is_initialized())


def _is_capturing() -> bool:
    """Whether this thread's current stream is recorded into a CUDA graph."""
    return bool(_torch().cuda.is_current_stream_capturing())


def _forget_error() -> None:
    """Clear the runtime's last error, or the user's next kernel would be blamed for it.

    torch's binding lacks this function, so it is called in the library that torch has loaded.
    """
    maps = Path("/proc/self/maps")
    with contextlib.suppress(OSError, AttributeError, StopIteration):
        lines = (
            line for line in maps.read_text(encoding="utf-8").splitlines() if "/libcudart" in line
        )
        # A second load returns the same library, and so the same last error.
        ctypes.CDLL(next(lines).split(maxsplit=5)[5]).cudaGetLastError()


def _torch() -> Any:
    return sys.modules["torch"]


def _devices() -> list[int]:
    torch = _torch()
    in_use = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return [n for n in range(torch.cuda.device_count()) if in_use is None or in_use(n)]


def _event_on(device: int) -> Any:
    """Return an event after all work of a device; None after a wait for the device."""
    torch = _torch()
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record()  # creates it; the next call replaces its coverage
        if not _covers_context(event.cuda_event):
            torch.cuda.synchronize(device)
            return None
        return event


def _covers_context(event: int) -> bool:
    """Record an event over all streams of the current context, with a driver of CUDA 12.5 or later.

    With an older driver only a wait for the device is safe: the user may copy on any stream.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        record = driver.cuCtxRecordEvent
    except (OSError, AttributeError):
        return False
    context = ctypes.c_void_p()
    if driver.cuCtxGetCurrent(ctypes.byref(context)):
        return False
    return not record(context, ctypes.c_void_p(event))


# By number, as a set of weak references cannot be iterated while other threads add to it.
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
        self._sizes: dict[int, int] = {}  # slots in use by batches, and their sizes
        self._looks: Counter[int] = Counter()  # batches that use each slot
        self._cooling: list[tuple[list[int], Check]] = []
        self._pins: dict[int, bool] = {}  # whether an attempt to page-lock a slot succeeded
        self._largest = 0
        self._before = before
        self._child_slots: set[int] = set()  # slots that a forked child uses as well
        self._given_up: list[int] = []
        _READERS[next(_NUMBERS)] = self

    def add(self, number: int, memory: SharedMemory) -> None:
        """Note a slot that the worker announced."""
        self._memory[number] = memory

    def retire(self, number: int) -> None:
        """Forget a slot; it is unmapped after its last array."""
        self._memory.pop(number, None)
        self._pins.pop(number, None)
        self._child_slots.discard(number)

    def close(self) -> None:
        """Forget all slots; slots in use stay mapped until their batches are gone."""
        for number in list(self._memory):
            self.retire(number)

    def take_freed(self) -> list[int]:
        """Return the freed slots, each once for each batch that used it."""
        # Finalizers append in any thread at any time: take only the current entries.
        count = len(self._free_slots)
        numbers, self._free_slots[:count] = self._free_slots[:count], []
        # Slots without a size were copied by this process, so no device copy is running.
        cooling = [n for n in numbers if self._pins.get(n) and n in self._sizes]
        if cooling:
            self._cooling.append((cooling, self._registrar.mark()))
        free = [number for number in numbers if number not in cooling]
        # In turn: devices finish later work later.
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
        """Return, once, the slots never to be used again: a forked child still uses them."""
        numbers, self._given_up = self._given_up, []
        return numbers

    def open(self, number: int, others: int = 0) -> tuple[NDArray[np.uint8], bool]:
        """Return the bytes of a slot for one batch, and whether the batch may stay in it.

        The slot is free when the array and all its views are collected. ``others`` are the bytes of
        slots that were opened for the same batch before.
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
            # Page-lock it once CUDA is in use, with a single attempt.
            registrar = self._registrar
            if number not in self._pins and registrar.is_ready():
                self._pins[number] = registrar.pin(memory.address, memory.size)
                if self._pins[number]:
                    memory.before_unmap.append(partial(registrar.unpin, memory.address))
        return whole, stays

    def note_copy(self, private: NDArray[np.uint8], size: int, *, is_first: bool) -> None:
        """Count ``size`` bytes that were copied to ``private``, and warn."""
        self.budget.copies.add(private, size, 1 if is_first else 0)
        self.budget.say_copied(self._share, self._largest, self._ahead)

    def _kept_bytes(self) -> int:
        """Return the bytes in use of slots of the worker, and of its dead predecessors."""
        counts = Counter(number for number in self._free_slots if not self._pins.get(number))
        total = sum(size for n, size in self._sizes.items() if self._looks[n] > counts[n])
        earlier = 0 if self._before is None else self._before._kept_bytes()
        if not earlier:
            self._before = None
        return total + earlier


class Arrival:
    """Reader of the bytes of one batch that has arrived, in place or copied."""

    def __init__(self, slots: SlotReader) -> None:
        self._slots = slots
        self._buffers: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8] | None]] = {}
        self.bytes = 0  # bytes of the slots of the batch
        self._copies = 0

    def part(self, number: int, offset: int, size: int) -> NDArray[np.uint8]:
        """Return ``size`` bytes of a slot, which keep it in use; a copy if the share is full."""
        if number not in self._buffers:
            whole, stays = self._slots.open(number, self.bytes)
            # Only the pages that the copy writes take memory.
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
# The system takes back large memory that is freed, and clears its pages before the next use: a
# quarter of a millisecond per megabyte. So a buffer is used again once its last tensor is gone.
# There are never more free buffers than batches that may be in flight.


@dataclass(eq=False)
class _Buffer:
    """Memory for one batch."""

    number: int
    size: int

    def __post_init__(self) -> None:
        # Allocated from the heap, buffers would leave holes in the heaps of earlier threads.
        # Arrays reference this object and not each other: a finalizer runs after an array's views.
        self.owner: Any = (ctypes.c_uint8 * self.size).from_buffer(private_pages(self.size))
        self.address = ctypes.addressof(self.owner)
        self.is_pinned: bool | None = None  # None before the attempt


class BatchBuffers:
    """Buffers for batches of several threads, which are reused after their last view."""

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
        with self._lock:
            self._take_back()
            buffer = self._buffer(max(1, size_of(specs)))
        if buffer is None:  # the user keeps too many batches
            return [np.empty(*spec) for spec in specs]
        whole: NDArray[np.uint8] = np.frombuffer(buffer.owner, np.uint8)
        weakref.finalize(whole, self._returns.append, buffer.number).atexit = False
        return arrays_in(whole, specs)

    def _buffer(self, size: int) -> _Buffer | None:
        fitting = [buffer for buffer in self._free if buffer.size >= size]
        if fitting and not self._is_closed:
            buffer = min(fitting, key=lambda buffer: buffer.size)
            self._free.remove(buffer)
        else:
            self._free.clear()  # too small: they would accumulate while batches grow
            total = sum(buffer.size for buffer in self._in_use.values())
            if self._is_closed or total + size > self._most_bytes:
                return None
            self._count += 1
            buffer = _Buffer(self._count, size)
        self._in_use[buffer.number] = buffer
        return buffer

    def _take_back(self) -> None:
        """Free the buffers without views; pinned ones wait for :meth:`settle`."""
        for _ in range(len(self._returns)):
            buffer = self._in_use.get(number := self._returns.popleft())
            if buffer is None:  # close() was called meanwhile
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
        """Page-lock buffers in use if CUDA is in use; only the consumer's thread calls it.

        Other threads must not call CUDA: the consumer may be capturing a graph.
        """
        with self._lock:
            if self._is_closed:
                return
            self._take_back()
            # One by one: finalizers may append meanwhile.
            returns = [self._returns.popleft() for _ in range(len(self._returns))]
            pinned_buffers = [self._in_use.pop(number) for number in returns]
            if pinned_buffers:
                is_done = self._registrar.mark()
                self._cooling.extend((buffer, is_done) for buffer in pinned_buffers)
            while self._cooling and self._cooling[0][1]():
                self._keep(self._cooling.popleft()[0])
            new = [buffer for buffer in self._in_use.values() if buffer.is_pinned is None]
            if not new or not self._registrar.is_ready():
                return
            for buffer in new:
                buffer.is_pinned = self._registrar.pin(buffer.address, buffer.size)
                if buffer.is_pinned:
                    unpin = self._registrar.unpin
                    weakref.finalize(buffer.owner, unpin, buffer.address).atexit = False

    def close(self) -> None:
        """Release all buffers; those of live tensors stay until the tensors are gone."""
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
            reader._child_slots.update(reader._looks)  # a forked child uses them too


at_fork(before=_before_fork)
