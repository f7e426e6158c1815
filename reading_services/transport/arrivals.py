"""The consumer's side of the slots: batches are looked into where they lie, or copied out."""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from itertools import count

import numpy as np
from numpy.typing import NDArray

from .budget import SlotBudget
from .mapping import Mapping
from .pinning import Check, Cuda, Registrar

# By number, as a set of weak references cannot be looked through while other threads add to it.
_READERS: weakref.WeakValueDictionary[int, SlotReader] = weakref.WeakValueDictionary()
_NUMBERS = count()


class SlotReader:
    """The consumer's side of one worker's slots.

    Parameters
    ----------
    budget
        What all batches of the loader take together.
    share
        Bytes that the worker's slots may take.
    ahead
        Batches of this worker that may be in flight; room for them is left in the share.
    registrar
        Who page-locks slots.
    before
        The slots of a dead worker in whose place this one stands. What still lies there counts.
    """

    def __init__(
        self,
        budget: SlotBudget | None = None,
        share: int = sys.maxsize,
        ahead: int = 0,
        registrar: Registrar | None = None,
        before: SlotReader | None = None,
    ) -> None:
        self.budget = budget or SlotBudget()
        self._share = share
        self._ahead = ahead
        self._registrar = registrar or Cuda()
        self._memory: dict[int, Mapping] = {}
        self._freed: list[int] = []
        self._kept: dict[int, int] = {}  # slots that batches look into, and their sizes
        self._looks: Counter[int] = Counter()  # how many batches look into each
        self._cooling: list[tuple[list[int], Check]] = []
        self._pinned: set[int] = set()
        self._refused: set[int] = set()
        self._largest = 0
        self._before = before
        self._inherited: set[int] = set()  # slots that a forked child looks into as well
        self._given_up: list[int] = []
        _READERS[next(_NUMBERS)] = self

    def add(self, number: int, fd: int, size: int) -> None:
        """Map a slot that the worker announced; the descriptor is closed."""
        try:
            self._memory[number] = Mapping(fd, size)
        finally:
            os.close(fd)

    def retire(self, number: int) -> None:
        """Forget a slot; it is unmapped when nothing looks into it any more."""
        self._memory.pop(number, None)
        self._pinned.discard(number)
        self._refused.discard(number)
        self._inherited.discard(number)

    def close(self) -> None:
        """Forget all slots; those that batches look into stay mapped until these are gone."""
        for number in list(self._memory):
            self.retire(number)

    def arrival(self) -> Arrival:
        """Return the access to one batch that has arrived."""
        return Arrival(self)

    def take_freed(self) -> list[int]:
        """Return the slots that were given back, each once for each batch that lay in it."""
        # Finalizers run in any thread at any time: take what is there, leave what comes.
        count = len(self._freed)
        numbers, self._freed[:count] = self._freed[:count], []
        # What was copied out of a pinned slot was copied by this process, and is done.
        pinned = [n for n in numbers if n in self._pinned and n in self._kept]
        if pinned:
            self._cooling.append((pinned, self._registrar.mark()))
        free = [number for number in numbers if number not in pinned]
        # In turn: what the devices were given later is done later.
        while self._cooling and self._cooling[0][1]():
            free += self._cooling.pop(0)[0]
        for number in free:
            self._looks[number] -= 1
            if self._looks[number] <= 0:
                del self._looks[number]
                self._kept.pop(number, None)
                if number in self._inherited:
                    self._inherited.remove(number)
                    self._given_up.append(number)
        return free

    def take_given_up(self) -> list[int]:
        """Return the slots that the worker must not use again, each once.

        A child that was forked while a batch lay there looks into it still, for how long nobody
        here knows. The memory goes when its process, and that of the worker, have let go of it.
        """
        numbers, self._given_up = self._given_up, []
        return numbers

    def before_fork(self) -> None:
        """Note which slots a child that is about to be forked looks into."""
        self._inherited.update(self._looks)

    def open(self, number: int, others: int = 0) -> tuple[NDArray[np.uint8], bool]:
        """Return the bytes of a slot for one batch, and whether the batch may stay in it.

        When the array is collected, the slot is free. Arrays and tensors made from it keep it
        alive, and so do their views.

        Parameters
        ----------
        number
            The slot.
        others
            Bytes of the slots of the same batch that were opened before.
        """
        memory = self._memory[number]
        whole = memory.bytes()
        weakref.finalize(whole, self._freed.append, number).atexit = False
        self._looks[number] += 1
        self._largest = max(self._largest, others + memory.size)
        in_flight = self._ahead * self._largest
        stays = self._kept_bytes() + memory.size + in_flight <= self._share
        if stays:
            self._kept[number] = memory.size
            self.budget.shared.add(whole, memory.size, 0 if others else 1)
            self._pin(number)
        return whole, stays

    def copied(self, private: NDArray[np.uint8], size: int, *, is_first: bool) -> None:
        """Count ``size`` bytes that were copied to ``private``, and say so."""
        self.budget.copies.add(private, size, 1 if is_first else 0)
        self.budget.say_copied(self._share, self._largest, self._ahead)

    def _kept_bytes(self) -> int:
        """Return the bytes of the slots that the worker cannot have back yet."""
        freed = Counter(number for number in self._freed if number not in self._pinned)
        kept = sum(size for n, size in self._kept.items() if self._looks[n] > freed[n])
        return kept + self._inherited_bytes()

    def _inherited_bytes(self) -> int:
        """Return the bytes of batches of dead workers; these are let go of when all are gone."""
        before = self._before
        inherited = before._kept_bytes() if before is not None else 0
        if not inherited:
            self._before = None
        return inherited

    def _pin(self, number: int) -> None:
        """Page-lock a slot as soon as there is a device to copy to; it is tried once."""
        if number in self._pinned or number in self._refused or not self._registrar.is_ready():
            return
        memory = self._memory[number]
        registrar, address = self._registrar, memory.address
        if registrar.pin(address, memory.size):
            self._pinned.add(number)
            memory.before_unmap.append(lambda: registrar.unpin(address))
        else:
            self._refused.add(number)


class Arrival:
    """One batch that has arrived: its bytes, where they lie or copied."""

    def __init__(self, slots: SlotReader) -> None:
        self._slots = slots
        self._opened: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8] | None]] = {}
        self._bytes = 0
        self._copies = 0

    @property
    def bytes(self) -> int:
        """Bytes of the slots in which the batch lies."""
        return self._bytes

    def part(self, number: int, offset: int, size: int) -> NDArray[np.uint8]:
        """Return ``size`` bytes of a slot, which keep it from being used again.

        Where the share of the worker is full they are a copy, and the slot is free with the
        end of this arrival.
        """
        if number not in self._opened:
            whole, stays = self._slots.open(number, self._bytes)
            # Only what is copied into it is ever touched, and only that takes memory.
            private = None if stays else np.empty(whole.size, np.uint8)
            self._opened[number] = whole, private
            self._bytes += whole.size
        whole, private = self._opened[number]
        inside = slice(offset, offset + size)
        if private is None:
            return whole[inside]
        private[inside] = whole[inside]
        self._slots.copied(private, size, is_first=not self._copies)
        self._copies += 1
        return private[inside]


def _before_fork() -> None:
    for found in _READERS.valuerefs():
        reader = found()
        if reader is not None:
            reader.before_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
