"""Decoded chunks of this process, in bytes, until something that is needed sooner comes.

Plans are made ahead, so it is known which chunks come next: what is announced stays, and
of the rest the oldest goes first. A chunk that would not be used again is not worth more.
What somebody counts on, because its bytes are far away, stays until it was used.

The cache of a process keeps nothing unless an epoch lends it memory: a plain read never sees a
chunk that was stored anew since.
"""

from __future__ import annotations

import heapq
import os
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ...core.locks import DeferredLock

_FEW = 64  # entries more than twice the chunks before the table of moments is made anew

ENTRY_BYTES = 512
"""What the entry of a chunk without voxels takes: key, array, places in the tables."""


class ChunkCache:
    """Decoded chunks by key, in their stored type, within a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self.hits = 0
        self.misses = 0
        self._chunks: dict[Hashable, NDArray[Any]] = {}
        # Of these, what nobody has announced, the oldest first.
        self._idle: OrderedDict[Hashable, None] = OrderedDict()
        self._coming: dict[Hashable, deque[int]] = {}
        # Of what is here: for which moments somebody counts on it.
        self._kept: dict[Hashable, set[int]] = {}
        # (-moment, number, key) of chunks that are here and announced; some are outdated.
        self._by_moment: list[tuple[int, int, Hashable]] = []
        self._moment = self._number = 0
        self._lock = DeferredLock()

    def get(self, key: Hashable) -> NDArray[Any] | None:
        """Return a chunk, read-only; None if it is not here.

        What was announced for it has come: the next time that it is needed is a later one.
        """
        with self._lock:
            moments = self._coming.get(key)
            if moments is not None:
                self._took_back(key, moments, moments[0])
            found = self._chunks.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                if key in self._idle:
                    self._idle.move_to_end(key)
            return found

    def holds(self, key: Hashable) -> bool:
        """Whether a chunk is here; asking does not count as using it."""
        with self._lock:
            return key in self._chunks

    def put(self, key: Hashable, chunk: NDArray[Any]) -> bool:
        """Keep a chunk if there is room for it, or something less needed to make room.

        Returns whether it is kept: then it is the cache's, and read-only.
        """
        size = _bytes_of(chunk)
        if size > self.most_bytes:
            return False
        with self._lock:
            if key in self._chunks:
                return False
            while self.held_bytes + size > self.most_bytes:
                victim = self._least_needed(key)
                if victim is None:
                    return False
                self._drop(victim)
            chunk.setflags(write=False)
            self._chunks[key] = chunk
            self._enter(key)
            self.held_bytes += size
            return True

    def announce(self, keys: Iterable[Hashable], *, keep: bool = False) -> Announcement:
        """Say that chunks are going to be asked for, all at once and after all said before.

        With ``keep`` somebody counts on those that are here: they stay until then.
        """
        named = tuple(keys)
        with self._lock:
            self._moment += 1
            here = {key for key in named if key in self._chunks}
            for key in named:
                moments = self._coming.setdefault(key, deque())
                moments.append(self._moment)
                if keep and key in here:
                    self._kept.setdefault(key, set()).add(self._moment)
                if len(moments) == 1 and key in here:
                    self._enter(key)
            return Announcement(self, self._moment, named, here)

    def lend(self, count: int) -> Loan:
        """Let chunks take ``count`` bytes more until the loan is closed."""
        with self._lock:
            self.most_bytes += count
        return Loan(self, count)

    def forget_parent(self) -> None:
        """Start empty in a forked child, to which nobody has lent anything."""
        self.__init__(0)  # type: ignore[misc]  # a new lock too: a thread may hold the old one

    def forget(self, token: str) -> None:
        """Forget the chunks of one array, whose keys begin with its token: they are others now."""
        with self._lock:
            named = [key for key in self._chunks if isinstance(key, tuple) and key[0] == token]
            for key in named:
                self._drop(key)

    def clear(self) -> None:
        """Forget every chunk, and what was announced."""
        self._lock.defer(self._clear)

    def _pass(self, moment: int, keys: Iterable[Hashable]) -> None:
        """Take back what was announced for a moment: it was asked for, or never will be."""
        for key in keys:
            moments = self._coming.get(key)
            if moments is not None and moment in moments:
                self._took_back(key, moments, moment)

    def _shrink(self, count: int) -> None:
        self.most_bytes -= count
        while self.held_bytes > self.most_bytes:
            self._drop(next(iter(self._idle or self._chunks)))

    def _clear(self) -> None:
        self._chunks.clear()
        self._idle.clear()
        self._kept.clear()
        self._coming.clear()
        self._by_moment.clear()
        self.held_bytes = 0

    def _least_needed(self, instead: Hashable) -> Hashable | None:
        """Return what may go for ``instead``; None if that is needed least itself.

        The oldest that is not announced; if all are, the one that is needed last (Belady, 1966)
        and that nobody counts on, unless the newcomer is not needed before it.
        """
        for key in self._idle:
            return key
        if instead not in self._coming:
            return None
        while self._by_moment:
            moment, _, key = self._by_moment[0]
            if self._can_go(key) and self._coming[key][0] == -moment:
                return key if -moment > self._coming[instead][0] else None
            heapq.heappop(self._by_moment)
        return None

    def _enter(self, key: Hashable) -> None:
        """Note when a chunk that is here is needed next."""
        moments = self._coming.get(key)
        if moments is None:
            self._idle[key] = None
            return
        self._idle.pop(key, None)
        if key in self._kept:
            return  # until nobody counts on it any more
        self._number += 1
        heapq.heappush(self._by_moment, (-moments[0], self._number, key))
        if len(self._by_moment) > 2 * len(self._chunks) + _FEW:
            # Outdated ones sink below what is needed later and would never come up.
            self._by_moment = [
                (-self._coming[key][0], number, key)
                for number, key in enumerate(self._chunks)
                if self._can_go(key)
            ]
            self._number = len(self._chunks)
            heapq.heapify(self._by_moment)

    def _took_back(self, key: Hashable, moments: deque[int], moment: int) -> None:
        changes = moment == moments[0]
        moments.remove(moment)
        if not moments:
            del self._coming[key]
        kept = self._kept.get(key)
        if kept is not None:
            kept.discard(moment)
            if not kept:  # nobody counts on it any more
                del self._kept[key]
                changes = True
        if changes and key in self._chunks:
            self._enter(key)

    def _can_go(self, key: Hashable) -> bool:
        """Whether a chunk is here, announced, and nobody counts on it."""
        return key in self._chunks and key in self._coming and key not in self._kept

    def _drop(self, key: Hashable) -> None:
        self._kept.pop(key, None)
        self._idle.pop(key, None)
        self.held_bytes -= _bytes_of(self._chunks.pop(key))


def _bytes_of(chunk: NDArray[Any]) -> int:
    """Return the memory that a chunk takes; one number, seen as many, takes what an entry does."""
    return chunk.nbytes if any(chunk.strides) else ENTRY_BYTES


class Announcement:
    """Chunks that are going to be asked for; close it when they were, or never will be."""

    def __init__(
        self, cache: ChunkCache, moment: int, keys: tuple[Hashable, ...], here: set[Hashable]
    ) -> None:
        self._cache, self._moment, self._keys = cache, moment, keys
        self.here = here
        """Those of them that were in the cache."""

    def close(self) -> None:
        """Take it back; any number of times."""
        keys, self._keys = self._keys, ()
        self._cache._lock.defer(partial(self._cache._pass, self._moment, keys))


class Loan:
    """Memory lent to a cache of chunks."""

    def __init__(self, cache: ChunkCache, count: int) -> None:
        self._cache, self._count = cache, count
        self._process = os.getpid()

    def close(self) -> None:
        """End the loan; any number of times. In a forked child there is nothing to give back."""
        count, self._count = self._count, 0
        if count and self._process == os.getpid():
            self._cache._lock.defer(partial(self._cache._shrink, count))


DEFAULT_BYTES = 64 * 1024**2
"""What each process keeps where nothing could be negotiated: what patches of one batch share."""
CHUNKS = ChunkCache(0)
"""The decoded chunks of this process; epochs lend it memory."""
