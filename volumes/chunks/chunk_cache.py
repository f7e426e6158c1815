"""Cache of decoded chunks, bounded in bytes, that evicts by the next announced use.

Plans announce reads ahead: announced chunks stay, and the oldest of the others are evicted first.
A reserved chunk, whose bytes are on a network, stays until its read.

The cache of a process is empty unless an epoch lends it memory, so a plain read never returns a
chunk that the store has replaced.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.locks import DeferredActs, ForkSafeLock, renew_after_fork

_FEW = 64  # rows above three times the number of cached or announced chunks

ENTRY_BYTES = 512
"""Memory of an entry without voxels: its key, array and row."""
FILL_CHUNK = np.zeros(0, np.uint8)
"""Entry of a chunk that is not stored, so that no read looks for it in the store again."""
_NEVER = 2**62  # above every moment
_MOST_CHUNKS = 2**64  # of an array; a header that claims more is damaged


def first_key(token: str) -> int:
    """Return the key of the first chunk of an array; its other keys are the next numbers."""
    # The garbage collector traverses tuples, but not numbers.
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest()) * _MOST_CHUNKS


class ChunkKeys(list[Hashable]):
    """Keys of chunks with their rows in a cache, looked up once for announcement and read."""

    table: Any = None  # identifies the rows of the cache
    rows: NDArray[np.int64]


class FoundChunks(NamedTuple):
    """The cached ones of N chunks."""

    is_here: NDArray[np.bool_]  # (N,)
    addresses: NDArray[np.int64]  # (N,): of the first voxel; 0 if not stored or not cached
    arrays: NDArray[Any]  # (N,): read-only arrays in C order, or None; they own the memory


class ChunkCache:
    """Decoded chunks by key, in their stored type, up to a number of bytes.

    Any hashable value is a key; arrays use numbers from :func:`first_key` on. Each cached or
    announced chunk has a row of numbers, from which eviction is decided. The number of array
    operations of a read does not depend on its number of chunks.
    """

    # Unused rows stay until the table is full.

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.hits = self.misses = 0
        self._moment = 0
        self._lock = ForkSafeLock()
        self._acts = DeferredActs(self._lock)
        self._due = self._acts.due  # closed announcements and loans
        self._clear()
        renew_after_fork(self)

    def _clear(self) -> None:
        self.held_bytes = self._uses = 0
        self._rows: dict[Hashable, int] = {}
        # A column for each row: the moments of its reads, soonest first, then `_NEVER`.
        # Each moment is doubled; an odd one reserves the chunk until then.
        self._moments: NDArray[np.int64] = np.full((1, 0), _NEVER)
        self._set_rows(0)

    def _set_rows(self, capacity: int) -> None:
        """Make rows, without chunks."""
        # A chunk that is not cached has size 0; the most recent use has the largest number.
        self._columns: NDArray[np.int64] = np.zeros((3, capacity), np.int64)
        self._size, self._address, self._use = self._columns
        self._arrays: NDArray[Any] = np.full(capacity, None, object)
        self._table = object()  # of which keys know their rows

    def get_all(self, keys: Sequence[Hashable]) -> FoundChunks:
        """Return the cached chunks of unique keys, and end the soonest announcement of each."""
        with self._lock:
            while self._due:
                self._due.popleft()()
            rows = self._rows_of(keys)
            self._moments[:-1, rows] = self._moments[1:].take(rows, axis=1)
            self._moments[-1, rows] = _NEVER
            self._note_use(rows)
            is_here = self._size.take(rows) > 0
            count = int(np.add.reduce(is_here))
            self.misses += len(rows) - count
            self.hits += count
            chunks = FoundChunks(is_here, self._address.take(rows), self._arrays.take(rows))
        if self._due:  # closed meanwhile, perhaps by a finalizer
            self._acts.defer()
        return chunks

    def put_all(
        self,
        keys: Sequence[Hashable],
        chunks: Sequence[NDArray[Any]],
        sizes: NDArray[np.int64],
        addresses: NDArray[np.int64],
        which: NDArray[np.int64] | None = None,
    ) -> None:
        """Keep chunks that fit, or that are read sooner than others, which are evicted.

        The keys are unique; ``which`` selects those of the chunks. Sizes are bytes of memory. The
        cache owns the chunks that it keeps.
        """
        with self._lock:
            while self._due:
                self._due.popleft()()
            rows = self._rows_of(keys)
            rows = rows if which is None else rows[which]
            (new,) = ((self._size.take(rows) == 0) & (sizes <= self.most_bytes)).nonzero()
            rows = rows[new]
            self._size[rows], self._address[rows] = sizes[new], addresses[new]
            self._note_use(rows)
            self._arrays[rows] = np.fromiter(chunks, object, len(chunks))[new]
            self.held_bytes += int(np.add.reduce(sizes[new]))
            if self.held_bytes > self.most_bytes:
                self._make_room()

    def announce(self, keys: Sequence[Hashable], *, keep: bool = False) -> Announcement:
        """Announce one read of chunks, later than all announced before.

        ``keep`` reserves the cached ones until that read.
        """
        with self._lock:
            while self._due:
                self._due.popleft()()
            self._moment += 1
            rows = self._rows_of(keys)
            is_here = self._size.take(rows) > 0
            count = np.add.reduce(self._moments.take(rows, axis=1) < _NEVER, axis=0)
            if np.maximum.reduce(count, initial=0) == len(self._moments):
                # Double the number of moments per chunk.
                more = np.full_like(self._moments, _NEVER)
                self._moments = np.concatenate([self._moments, more])
            self._moments[count, rows] = 2 * self._moment + (is_here & keep)
            announcement = Announcement(self, self._moment, keys, is_here, count > 0)
        if self._due:
            self._acts.defer()
        return announcement

    def lend(self, count: int) -> ExitStack:
        """Raise the bound by ``count`` bytes until the returned loan is closed."""
        with self._acts, self._lock:
            self.most_bytes += count
        loan = ExitStack()
        loan.callback(self._acts.defer, partial(self._take_back, count, os.getpid()))
        return loan

    def after_fork(self) -> None:
        """Start empty and without loans in a forked child."""
        self.most_bytes = self.hits = self.misses = 0
        self._clear()

    def forget(self, token: str) -> None:
        """Forget the chunks of one array that was written anew."""
        with self._acts, self._lock:
            first = first_key(token)
            keys = range(first, first + _MOST_CHUNKS)
            rows = [n for key, n in self._rows.items() if isinstance(key, int) and key in keys]
            self._drop(np.array(rows, np.int64))

    def clear(self) -> None:
        """Forget every chunk and announcement."""
        self._acts.defer(self._clear)

    def _note_use(self, rows: NDArray[np.int64]) -> None:
        self._use[rows] = np.arange(self._uses, self._uses + len(rows))
        self._uses += len(rows)

    def _rows_of(self, keys: Sequence[Hashable]) -> NDArray[np.int64]:
        """Return the rows of keys; assign rows to new keys."""
        if isinstance(keys, ChunkKeys) and keys.table is self._table:
            return keys.rows
        numbers = [*map(self._rows.get, keys)]
        if fresh := numbers.count(None):
            if len(self._rows) + fresh > len(self._arrays):
                self._renew_rows(len(keys))
            rows = self._rows
            for key in keys:
                rows.setdefault(key, len(rows))
            numbers = [*map(rows.get, keys)]
        key_rows = np.array(numbers, np.int64)
        if isinstance(keys, ChunkKeys):
            keys.table, keys.rows = self._table, key_rows
        return key_rows

    def _renew_rows(self, count: int) -> None:
        """Drop unused rows and make room for more."""
        (live,) = ((self._size > 0) | (self._moments[0] < _NEVER)).nonzero()
        keys, columns, arrays = [*self._rows], self._columns[:, live], self._arrays[live]
        moments = self._moments[:, live]
        depth = int((moments < _NEVER).sum(axis=0).max(initial=0)) + 1
        self._set_rows(3 * (len(live) + count) + _FEW)
        self._columns[:, : len(live)], self._arrays[: len(live)] = columns, arrays
        self._moments = np.full((depth, len(self._arrays)), _NEVER)
        self._moments[: len(moments), : len(live)] = moments[:depth]
        self._rows = {keys[row]: n for n, row in enumerate(live.tolist())}

    def _withdraw(self, moment: int, keys: Sequence[Hashable]) -> None:
        """Withdraw the announcement of a moment."""
        rows = self._rows_of(keys)
        at, members = (self._moments.take(rows, axis=1) >> 1 == moment).nonzero()
        if not len(at):
            return
        order = members.argsort()
        rows, at = rows[members[order]], at[order]
        later = self._moments[1:].take(rows, axis=1)
        is_after = np.arange(len(later))[:, None] >= at
        self._moments[:-1, rows] = np.where(is_after, later, self._moments[:-1].take(rows, axis=1))
        self._moments[-1, rows] = _NEVER
        self._note_use(rows)

    def _take_back(self, count: int, process: int) -> None:
        self.most_bytes -= count if process == os.getpid() else 0  # a forked child has no loans
        self._make_room()

    def _make_room(self) -> None:
        """Drop chunks, so that at most the bound stays.

        Evicts first the chunks without an announcement, oldest first. Then the chunks of the latest
        read (Belady, 1966), the newest first. Reserved chunks are last; a new chunk never evicts
        them.
        """
        over = self.held_bytes - self.most_bytes
        if over <= 0:
            return
        idle: NDArray[np.int64] = ((self._size > 0) & (self._moments[0] == _NEVER)).nonzero()[0]
        idle = idle[self._use.take(idle).argsort()]
        count = 1 + int(self._size.take(idle).cumsum().searchsorted(over))
        if count <= len(idle):
            self._drop(idle[:count])
            return
        here: NDArray[np.int64] = self._size.nonzero()[0]
        moments = self._moments.take(here, axis=1)
        counts = np.logical_or.reduce(moments & 1)
        use, soonest = self._use.take(here), np.where(counts, -1, moments[0])
        here = here[np.lexsort((np.where(soonest == _NEVER, -use, use), soonest))]
        self._drop(here[self._size[here].cumsum() > self.most_bytes])

    def _drop(self, rows: NDArray[np.int64]) -> None:
        """Remove chunks and their reservations."""
        self.held_bytes -= int(np.add.reduce(self._size.take(rows)))
        self._size[rows] = self._address[rows] = 0
        self._moments[:, rows] &= ~1
        self._arrays[rows] = None


class Announcement(NamedTuple):
    """An announced read of chunks; close it after the read, or if there will be none."""

    cache: ChunkCache
    moment: int
    keys: Sequence[Hashable]
    is_here: NDArray[np.bool_]  # cached chunks
    is_expected: NDArray[np.bool_]  # chunks announced before

    def close(self) -> None:
        """Withdraw it at the next use of the cache; any number of times."""
        # Nothing waits: a finalizer may call this inside the lock.
        self.cache._due.append(partial(self.cache._withdraw, self.moment, self.keys))


DEFAULT_BYTES = 64 * 1024**2
"""Bytes that each process keeps without negotiation: chunks shared by patches of one batch."""
CHUNKS = ChunkCache(0)
"""The cache of this process; epochs lend it memory."""
