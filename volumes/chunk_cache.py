"""Decoded chunks of this process, in bytes, until something that is needed sooner comes.

Plans are made ahead, so it is known which chunks come next: what is announced stays, and
of the rest the oldest goes first. A chunk that would not be used again is not worth more.

The cache of a process keeps nothing unless an epoch lends it memory: a plain read never sees a
chunk that was stored anew since.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray


class ChunkCache:
    """Decoded chunks by key, in their stored type, within a number of bytes.

    Parameters
    ----------
    most_bytes
        What all chunks may take together; 0 keeps none.

    Examples
    --------
    >>> import numpy as np
    >>> cache = ChunkCache(100)
    >>> cache.announce(1, ["a"])
    >>> for key in "abc":
    ...     cache.put(key, np.zeros(40, np.uint8))
    >>> [cache.get(key) is not None for key in "abc"]
    [True, False, True]
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self.hits = 0
        self.misses = 0
        self._chunks: OrderedDict[Hashable, NDArray[Any]] = OrderedDict()
        self._coming: dict[Hashable, deque[int]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> NDArray[Any] | None:
        """Return a chunk, read-only; None if it is not here."""
        with self._lock:
            found = self._chunks.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                self._chunks.move_to_end(key)
            return found

    def holds(self, key: Hashable) -> bool:
        """Whether a chunk is here; asking does not count as using it."""
        with self._lock:
            return key in self._chunks

    def put(self, key: Hashable, chunk: NDArray[Any]) -> None:
        """Keep a chunk if there is room for it, or something less needed to make room."""
        if chunk.nbytes > self.most_bytes:
            return
        with self._lock:
            if key in self._chunks:
                return
            while self.held_bytes + chunk.nbytes > self.most_bytes:
                victim = self._least_needed(key)
                if victim is None:
                    return
                self.held_bytes -= self._chunks.pop(victim).nbytes
            chunk.setflags(write=False)
            self._chunks[key] = chunk
            self.held_bytes += chunk.nbytes

    def announce(self, moment: int, keys: Iterable[Hashable]) -> None:
        """Say that chunks are going to be asked for at a moment to come; moments only grow."""
        with self._lock:
            for key in keys:
                self._coming.setdefault(key, deque()).append(moment)

    def reserve(self, moment: int, keys: Iterable[Hashable]) -> list[Hashable]:
        """Announce those of the chunks that are here, and return them: they stay until passed."""
        with self._lock:
            here = [key for key in keys if key in self._chunks]
            for key in here:
                self._coming.setdefault(key, deque()).append(moment)
            return here

    def passed(self, moment: int, keys: Iterable[Hashable]) -> None:
        """Take back what was announced for a moment: it was asked for, or never will be."""
        with self._lock:
            for key in keys:
                moments = self._coming.get(key)
                if moments is not None:
                    with suppress(ValueError):
                        moments.remove(moment)
                    if not moments:
                        del self._coming[key]

    def lend(self, count: int) -> Loan:
        """Let chunks take ``count`` bytes more until the loan is closed."""
        with self._lock:
            self.most_bytes += count
        return Loan(self, count)

    def take_back(self, count: int) -> None:
        """Let chunks take ``count`` bytes less; what has no room then goes, the oldest first."""
        with self._lock:
            self.most_bytes -= count
            while self.held_bytes > self.most_bytes:
                _, chunk = self._chunks.popitem(last=False)
                self.held_bytes -= chunk.nbytes

    def forget_parent(self) -> None:
        """Start empty in a forked child, to which nobody has lent anything."""
        self.__init__(0)  # type: ignore[misc]  # a new lock too: a thread may hold the old one

    def clear(self) -> None:
        """Forget every chunk, and what was announced."""
        with self._lock:
            self._chunks.clear()
            self._coming.clear()
            self.held_bytes = 0

    def _least_needed(self, instead: Hashable) -> Hashable | None:
        """Return what may go for ``instead``; None if that is needed least itself.

        The oldest that is not announced; if all are, the one that is needed last
        (Belady, 1966), unless the newcomer is not needed before it.
        """
        for key in self._chunks:
            if key not in self._coming:
                return key
        if not self._chunks or instead not in self._coming:
            return None
        last = max(self._chunks, key=lambda key: self._coming[key][0])
        return last if self._coming[last][0] > self._coming[instead][0] else None


class Loan:
    """Memory lent to a cache of chunks."""

    def __init__(self, cache: ChunkCache, count: int) -> None:
        self._cache, self._count = cache, count

    def close(self) -> None:
        """End the loan; any number of times."""
        count, self._count = self._count, 0
        if count:
            self._cache.take_back(count)


DEFAULT_BYTES = 64 * 1024**2
"""What each process keeps where nothing could be negotiated: what patches of one batch share."""
CHUNKS = ChunkCache(0)
"""The decoded chunks of this process; epochs lend it memory."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CHUNKS.forget_parent)
