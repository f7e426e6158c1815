"""Decoded chunks that a process keeps, in bytes, until something that is needed sooner comes.

Plans are made ahead, so it is known which chunks come next: what is announced stays, and
of the rest the oldest goes first. A chunk that would not be used again is not worth more.
What somebody counts on, because its bytes are far away, stays until it was used.

The cache of a process keeps nothing unless an epoch lends it memory: a plain read never sees a
chunk that was stored anew since.
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

_FEW = 64  # rows for more than three times the chunks that are here or announced

ENTRY_BYTES = 512
"""What the entry of a chunk without voxels takes: key, array, its row."""
FILL_CHUNK = np.zeros(0, np.uint8)
"""Kept of a chunk that is not stored: nobody has to look for it in the store again."""
_NEVER = 2**62  # where there is no moment; all others are smaller
_MOST_CHUNKS = 2**64  # of an array; a header that claims more is damaged


def first_key(token: str) -> int:
    """Return the key of the first chunk of an array; the others follow."""
    # The collector of garbage looks through tuples, not through numbers.
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest()) * _MOST_CHUNKS


class ChunkKeys(list[Hashable]):
    """Keys of chunks, which remember where a cache has them: who announces and who reads share."""

    table: Any = None  # of which table of a cache the rows are
    rows: NDArray[np.int64]


class FoundChunks(NamedTuple):
    """What a cache has of N chunks."""

    is_here: NDArray[np.bool_]  # (N,)
    addresses: NDArray[np.int64]  # (N,): where voxels begin; 0 of one that is not stored, or here
    arrays: NDArray[Any]  # (N,) of arrays in C order, to be read, and None; holds the memory


class ChunkTable:
    """A row of numbers for each chunk that is here or announced: what decides which of them stay.

    A read takes a few operations on arrays, whatever the number of its chunks.
    """

    def __init__(self, capacity: int, depth: int = 1, uses: int = 0) -> None:
        # Size is 0 of a chunk that is not here; the last used has the largest use.
        self.columns = np.zeros((3, capacity), np.int64)
        self.size, self.address, self.use = self.columns
        # A column for each row: the moments at which it is needed, soonest first, then `_NEVER`.
        # Each is doubled, and odd if somebody counts on the chunk until then.
        self.moments: NDArray[np.int64] = np.full((depth, capacity), _NEVER)
        self.uses = uses

    def take(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Note that chunks are used; return which are here, and where.

        What was announced for each has come: the next time that it is needed is a later one.
        """
        self.moments[:-1, rows] = self.moments[1:].take(rows, axis=1)
        self.moments[-1, rows] = _NEVER
        self.use[rows] = np.arange(self.uses, self.uses + len(rows))
        self.uses += len(rows)
        return self.size.take(rows) > 0, self.address.take(rows)

    def announce(
        self, rows: NDArray[np.int64], moment: int, *, keep: bool
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Note when chunks are needed; return which are here, and which were announced before."""
        is_here = self.size.take(rows) > 0
        count = np.add.reduce(self.moments.take(rows, axis=1) < _NEVER, axis=0)
        if np.maximum.reduce(count, initial=0) == len(self.moments):
            # Room for twice as many moments of each.
            self.moments = np.concatenate([self.moments, np.full_like(self.moments, _NEVER)])
        self.moments[count, rows] = 2 * moment + (is_here & keep)
        return is_here, count > 0

    def put(
        self,
        rows: NDArray[np.int64],
        sizes: NDArray[np.int64],
        addresses: NDArray[np.int64],
        most: int,
    ) -> NDArray[np.int64]:
        """Enter chunks of at most so many bytes that are not here; return which of them these are.

        Rows, sizes and addresses are (N,).
        """
        new: NDArray[np.int64] = ((self.size.take(rows) == 0) & (sizes <= most)).nonzero()[0]
        rows = rows[new]
        self.size[rows], self.address[rows] = sizes[new], addresses[new]
        self.use[rows] = np.arange(self.uses, self.uses + len(rows))
        self.uses += len(rows)
        return new

    def make_room(self, over: int, most: int) -> NDArray[np.int64]:
        """Return the rows to drop, so that ``over`` bytes go and at most ``most`` stay.

        What nobody has announced goes first, the oldest before others; then what is needed last
        (Belady, 1966), and of what is needed at one moment the newcomer; at the very end what
        somebody counts on, which a newcomer never drives out.
        """
        idle: NDArray[np.int64] = ((self.size > 0) & (self.moments[0] == _NEVER)).nonzero()[0]
        idle = idle[self.use.take(idle).argsort()]
        count = 1 + int(self.size.take(idle).cumsum().searchsorted(over))
        if count <= len(idle):
            return idle[:count]
        here: NDArray[np.int64] = self.size.nonzero()[0]
        moments = self.moments.take(here, axis=1)
        counts = np.logical_or.reduce(moments & 1)
        use, soonest = self.use.take(here), np.where(counts, -1, moments[0])
        here = here[np.lexsort((np.where(soonest == _NEVER, -use, use), soonest))]
        return here[self.size[here].cumsum() > most]

    def drop(self, rows: NDArray[np.int64]) -> int:
        """Enter that nobody has or counts on chunks any more; return their bytes."""
        size = int(np.add.reduce(self.size.take(rows)))
        self.size[rows] = self.address[rows] = 0
        self.moments[:, rows] &= ~1
        return size

    def withdraw(self, rows: NDArray[np.int64], moment: int) -> None:
        """Take back what was announced for a moment and has not come."""
        at, these = (self.moments.take(rows, axis=1) >> 1 == moment).nonzero()
        if not len(at):
            return
        order = these.argsort()
        rows, at = rows[these[order]], at[order]
        later = self.moments[1:].take(rows, axis=1)
        is_after = np.arange(len(later))[:, None] >= at
        self.moments[:-1, rows] = np.where(is_after, later, self.moments[:-1].take(rows, axis=1))
        self.moments[-1, rows] = _NEVER
        self.use[rows] = np.arange(self.uses, self.uses + len(rows))
        self.uses += len(rows)

    def renew(self, rows: NDArray[np.int64], capacity: int) -> ChunkTable:
        """Return a table of so many rows that begins with some of these."""
        depth = int((self.moments[:, rows] < _NEVER).sum(axis=0).max(initial=0)) + 1
        table = ChunkTable(capacity, depth, self.uses)
        table.columns[:, : len(rows)] = self.columns[:, rows]
        moments = self.moments[:depth, rows]
        table.moments[: len(moments), : len(rows)] = moments
        return table


class ChunkCache:
    """Decoded chunks by key, in their stored type, within a number of bytes.

    A key is any hashable value; those of an array are numbers from :func:`first_key` on.
    """

    # Rows of chunks that are neither here nor announced stay until the table is full.

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.hits = self.misses = 0
        self._moment = 0
        self._lock = ForkSafeLock()
        self._acts = DeferredActs(self._lock)
        self._clear()
        renew_after_fork(self)

    def _clear(self) -> None:
        self.held_bytes = 0
        self._rows: dict[Hashable, int] = {}
        self._arrays: NDArray[Any] = np.zeros(0, object)
        self._table = ChunkTable(0)

    def get_all(self, keys: Sequence[Hashable]) -> FoundChunks:
        """Return what is here of keys, which differ.

        What was announced for each has come: the next time that it is needed is a later one.
        """
        with self._acts, self._lock:
            rows = self._rows_of(keys)
            is_here, addresses = self._table.take(rows)
            count = int(np.add.reduce(is_here))
            self.misses += len(rows) - count
            self.hits += count
            return FoundChunks(is_here, addresses, self._arrays.take(rows))

    def put_all(
        self,
        keys: Sequence[Hashable],
        chunks: Sequence[NDArray[Any]],
        sizes: NDArray[np.int64],
        addresses: NDArray[np.int64],
        which: NDArray[np.int64] | None = None,
    ) -> None:
        """Keep chunks for which there is room, or something less needed to make room.

        Their keys differ; ``which`` says which of the keys are theirs. A size is what keeping a
        chunk takes, in bytes. What is kept is the cache's.
        """
        with self._acts, self._lock:
            rows = self._rows_of(keys)
            rows = rows if which is None else rows[which]
            new = self._table.put(rows, sizes, addresses, self.most_bytes)
            self._arrays[rows[new]] = np.fromiter(chunks, object, len(chunks))[new]
            self.held_bytes += int(np.add.reduce(sizes[new]))
            if self.held_bytes > self.most_bytes:
                self._make_room()

    def announce(self, keys: Sequence[Hashable], *, keep: bool = False) -> Announcement:
        """Say that chunks are going to be asked for, all at once and after all said before.

        With ``keep`` somebody counts on those that are here: they stay until then.
        """
        with self._acts, self._lock:
            self._moment += 1
            rows = self._rows_of(keys)
            state = self._table.announce(rows, self._moment, keep=keep)
            return Announcement(self, self._moment, keys, *state)

    def lend(self, count: int) -> ExitStack:
        """Let chunks take ``count`` bytes more until what is returned is closed."""
        with self._acts, self._lock:
            self.most_bytes += count
        loan = ExitStack()
        loan.callback(self._acts.defer, partial(self._take_back, count, os.getpid()))
        return loan

    def after_fork(self) -> None:
        """Start empty in a forked child, to which nobody has lent anything."""
        self.most_bytes = self.hits = self.misses = 0
        self._clear()

    def forget(self, token: str) -> None:
        """Forget the chunks of one array: they are others now."""
        with self._acts, self._lock:
            first = first_key(token)
            its = range(first, first + _MOST_CHUNKS)
            those = [n for key, n in self._rows.items() if isinstance(key, int) and key in its]
            self._drop(np.array(those, np.int64))

    def clear(self) -> None:
        """Forget every chunk, and what was announced."""
        self._acts.defer(self._clear)

    def _rows_of(self, keys: Sequence[Hashable]) -> NDArray[np.int64]:
        """Return the rows of keys; those that have none get one."""
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
        these = np.array(numbers, np.int64)
        if isinstance(keys, ChunkKeys):
            keys.table, keys.rows = self._table, these
        return these

    def _renew_rows(self, count: int) -> None:
        """Leave out rows that are not used, and make room for more."""
        (live,) = ((self._table.size > 0) | (self._table.moments[0] < _NEVER)).nonzero()
        keys, arrays = [*self._rows], self._arrays
        capacity = 3 * (len(live) + count) + _FEW
        self._table = self._table.renew(live, capacity)
        self._rows = {keys[row]: n for n, row in enumerate(live.tolist())}
        self._arrays = np.full(capacity, None, object)
        self._arrays[: len(live)] = arrays[live]

    def _take_away(self, moment: int, keys: Sequence[Hashable]) -> None:
        """Take back what was announced for a moment and has not come."""
        rows = self._rows_of(keys)  # which may make another table
        self._table.withdraw(rows, moment)

    def _take_back(self, count: int, process: int) -> None:
        self.most_bytes -= count if process == os.getpid() else 0  # to a child nobody lent anything
        self._make_room()

    def _make_room(self) -> None:
        over = self.held_bytes - self.most_bytes
        self._drop(self._table.make_room(over, self.most_bytes))

    def _drop(self, rows: NDArray[np.int64]) -> None:
        self.held_bytes -= self._table.drop(rows)
        self._arrays[rows] = None


class Announcement(NamedTuple):
    """Chunks that are going to be asked for; close it when they were, or never will be."""

    cache: ChunkCache
    moment: int
    keys: Sequence[Hashable]
    is_here: NDArray[np.bool_]  # which of them were in the cache
    is_expected: NDArray[np.bool_]  # which of them were announced already

    def close(self) -> None:
        """Take it back; any number of times."""
        self.cache._acts.defer(partial(self.cache._take_away, self.moment, self.keys))


DEFAULT_BYTES = 64 * 1024**2
"""What each process keeps where nothing could be negotiated: what patches of one batch share."""
CHUNKS = ChunkCache(0)
"""The decoded chunks of this process; epochs lend it memory."""
