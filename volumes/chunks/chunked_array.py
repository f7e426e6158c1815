"""An array stored in chunks: which ones a region needs, and how they are put together.

One reader for every chunked format. The format brings chunks and decodes one at a time into
memory that is there (:class:`ChunkSource`); culling, the cache, the counts and putting the
pieces together are here.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, ChunkGrid, Region
from ...core.errors import CorruptVolume, VolumeTooLarge, VoxpipeError
from ...core.locks import ForkSafeLock, renew_after_fork
from ...core.memory import usable_memory
from ...core.settings import POISON, read_setting
from ...storage.ranges import ObjectRanges, ReadRange, Span
from ...storage.read_ahead import Closes, closed_together
from .native import StoredChunks, address_of, is_available, place_chunks

# Decoded chunks of this process, in bytes, until something that is needed sooner comes.
#
# Plans are made ahead, so it is known which chunks come next: what is announced stays, and
# of the rest the oldest goes first. A chunk that would not be used again is not worth more.
# What somebody counts on, because its bytes are far away, stays until it was used.
#
# The cache of a process keeps nothing unless an epoch lends it memory: a plain read never sees a
# chunk that was stored anew since.

_FEW = 64  # entries more than twice the chunks before the table of moments is made anew

_STEP_BYTES = 4 * 1024**2  # decoded in one call: a patch of 96 cubed, and what is touched beside it

ENTRY_BYTES = 512
"""What the entry of a chunk without voxels takes: key, array, places in the tables."""


class KeptChunk(NamedTuple):
    """A decoded chunk."""

    array: NDArray[Any]  # in C order
    address: int  # where its voxels begin in memory


FILL_CHUNK = KeptChunk(np.zeros(0, np.uint8), 0)
"""Kept of a chunk that is not stored: nobody has to look for it in the store again."""


class ChunkCache:
    """Decoded chunks by key, in their stored type, within a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.hits = self.misses = 0
        self._moment = self._number = 0
        self._lock = ForkSafeLock()
        self._clear()
        renew_after_fork(self)

    def _clear(self) -> None:
        self.held_bytes = 0
        self._chunks: dict[Hashable, KeptChunk] = {}
        # Of these, what nobody has announced, the oldest first.
        self._idle: OrderedDict[Hashable, None] = OrderedDict()
        self._coming: dict[Hashable, deque[int]] = {}
        # Of what is here: for which moments somebody counts on it.
        self._claims: dict[Hashable, set[int]] = {}
        # (-moment, number, key) of chunks that are here and announced; some are outdated.
        self._by_moment: list[tuple[int, int, Hashable]] = []

    def get(self, key: Hashable) -> NDArray[Any] | None:
        """Return a chunk, read-only; None if it is not here.

        What was announced for it has come: the next time that it is needed is a later one.
        """
        (chunk,) = self.get_all((key,))
        return None if chunk is None else chunk.array

    def get_all(self, keys: Sequence[Hashable]) -> list[KeptChunk | None]:
        """Return what :meth:`get` does of each key, one after another."""
        with self._lock:
            # Those of a read were announced at one moment, mostly.
            due: dict[int, list[Hashable]] = {}
            for key in keys if self._coming else ():
                if key in self._coming:
                    due.setdefault(self._coming[key][0], []).append(key)
            for moment, its in due.items():
                self._pass(moment, its)
            entries = [self._chunks.get(key) for key in keys]
            misses = entries.count(None)
            self.misses += misses
            self.hits += len(entries) - misses
            for key in keys if self._idle else ():
                if key in self._idle:
                    self._idle.move_to_end(key)
            return entries

    def holds(self, key: Hashable) -> bool:
        """Whether a chunk is here; asking does not count as using it."""
        with self._lock:
            return key in self._chunks

    def put(self, key: Hashable, chunk: NDArray[Any]) -> bool:
        """Keep a chunk if there is room for it, or something less needed to make room.

        Returns whether it is kept: then it is the cache's, and read-only.
        """
        self.put_all((key,), (KeptChunk(chunk, chunk.ctypes.data),))
        with self._lock:
            entries = self._chunks.get(key)
        return entries is not None and entries.array is chunk

    def put_all(self, keys: Iterable[Hashable], chunks: Iterable[KeptChunk]) -> None:
        """Do what :meth:`put` does with each chunk, one after another."""
        with self._lock:
            table = self._chunks
            for key, chunk in zip(keys, chunks, strict=True):
                size = ENTRY_BYTES if chunk is FILL_CHUNK else chunk.array.nbytes
                if size > self.most_bytes or key in table:
                    continue
                while self.held_bytes + size > self.most_bytes:
                    # The oldest that is not announced; if all are, see there.
                    victim = next(iter(self._idle)) if self._idle else self._last_needed(key)
                    if victim is None:
                        break
                    self._drop((victim,))
                else:
                    chunk.array.setflags(write=False)
                    table[key] = chunk
                    self.held_bytes += size
                    if key in self._coming:
                        self._enter((key,))
                    else:
                        self._idle[key] = None

    def announce(self, keys: Iterable[Hashable], *, keep: bool = False) -> Announcement:
        """Say that chunks are going to be asked for, all at once and after all said before.

        With ``keep`` somebody counts on those that are here: they stay until then.
        """
        all_keys = tuple(keys)
        with self._lock:
            self._moment += 1
            here = {key for key in all_keys if key in self._chunks}
            first = []
            for key in all_keys:
                moments = self._coming.setdefault(key, deque())
                moments.append(self._moment)
                if key in here:
                    if keep:
                        self._claims.setdefault(key, set()).add(self._moment)
                    if len(moments) == 1:
                        first.append(key)
            self._enter(first)
            return Announcement(self, self._moment, all_keys, here)

    def lend(self, count: int) -> ExitStack:
        """Let chunks take ``count`` bytes more until what is returned is closed."""
        with self._lock:
            self.most_bytes += count
        loan = ExitStack()
        loan.callback(self._lock.defer, partial(self._take_back, count, os.getpid()))
        return loan

    def after_fork(self) -> None:
        """Start empty in a forked child, to which nobody has lent anything."""
        self.most_bytes = self.hits = self.misses = 0
        self._clear()

    def forget(self, token: str) -> None:
        """Forget the chunks of one array, whose keys begin with its token: they are others now."""
        with self._lock:
            keys = [key for key in self._chunks if isinstance(key, tuple) and key[0] == token]
            self._drop(keys)

    def clear(self) -> None:
        """Forget every chunk, and what was announced."""
        self._lock.defer(self._clear)

    def _pass(self, moment: int, keys: Iterable[Hashable]) -> None:
        """Take back what was announced for a moment: it was asked for, or never will be."""
        entering = []
        for key in keys:
            moments = self._coming.get(key)
            if moments is None or moment not in moments:
                continue
            changes = moment == moments[0]
            moments.remove(moment)
            if not moments:
                del self._coming[key]
            claims = self._claims.get(key)
            if claims is not None:
                claims.discard(moment)
                if not claims:  # nobody counts on it any more
                    del self._claims[key]
                    changes = True
            if changes and key in self._chunks:
                entering.append(key)
        self._enter(entering)

    def _take_back(self, count: int, process: int) -> None:
        self.most_bytes -= count if process == os.getpid() else 0  # to a child nobody lent anything
        while self.held_bytes > self.most_bytes:
            self._drop((next(iter(self._idle or self._chunks)),))

    def _last_needed(self, instead: Hashable) -> Hashable | None:
        """Return what may go for ``instead`` where all is announced; None if that is needed least.

        The one that is needed last (Belady, 1966) and that nobody counts on, unless the newcomer is
        not needed before it.
        """
        if instead not in self._coming:
            return None
        while self._by_moment:
            moment, _, key = self._by_moment[0]
            if self._can_go(key) and self._coming[key][0] == -moment:
                return key if -moment > self._coming[instead][0] else None
            heapq.heappop(self._by_moment)
        return None

    def _enter(self, keys: Iterable[Hashable]) -> None:
        """Note when chunks that are here are needed next."""
        for key in keys:
            moments = self._coming.get(key)
            if moments is None:
                self._idle[key] = None
                continue
            self._idle.pop(key, None)
            if key in self._claims:
                continue  # until nobody counts on it any more
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

    def _can_go(self, key: Hashable) -> bool:
        """Whether a chunk is here, announced, and nobody counts on it."""
        return key in self._chunks and key in self._coming and key not in self._claims

    def _drop(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            self._claims.pop(key, None)
            self._idle.pop(key, None)
            chunk = self._chunks.pop(key)
            self.held_bytes -= ENTRY_BYTES if chunk is FILL_CHUNK else chunk.array.nbytes


class Announcement(NamedTuple):
    """Chunks that are going to be asked for; close it when they were, or never will be."""

    cache: ChunkCache
    moment: int
    keys: tuple[Hashable, ...]
    here: set[Hashable]  # those of them that were in the cache

    def close(self) -> None:
        """Take it back; any number of times."""
        self.cache._lock.defer(partial(self.cache._pass, self.moment, self.keys))


DEFAULT_BYTES = 64 * 1024**2
"""What each process keeps where nothing could be negotiated: what patches of one batch share."""
CHUNKS = ChunkCache(0)
"""The decoded chunks of this process; epochs lend it memory."""


class NeededChunks(NamedTuple):
    """The chunks that a read needs: what is fetched and decoded, no more and no less."""

    chunks: NDArray[np.int64]  # their indices (N, axes), each once, in the grid of chunks as stored
    voxels: int
    """How many numbers they hold, of all channels; what hangs over the array's edge left out."""
    chunk_bytes: int  # bytes of one that is decoded, whole

    @property
    def bytes(self) -> int:
        """Bytes of all of them, decoded."""
        return len(self.chunks) * self.chunk_bytes


Index = tuple[int, ...]
"""Place of a chunk in the grid of chunks, per stored axis."""
ChunkIndices = Sequence[Index] | NDArray[np.int64]
"""Places of chunks, (N, axes)."""


class FetchedChunks(Protocol):
    """Chunks of which all that has to be fetched is here."""

    @property
    def strided(self) -> bool:
        """Whether ``decode`` writes into memory of any strides."""

    def decode(self, index: Index, out: NDArray[Any]) -> bool:
        """Decode a chunk into ``out``: whole chunk, stored type, C order unless ``strided``.

        False, and nothing written, for a chunk that is not stored. May raise anything where its
        bytes are damaged.
        """

    def place(self, index: Index) -> str:
        """Return which file holds the bytes of a chunk; empty where nobody knows."""

    def stored_chunks(self) -> StoredChunks | None:
        """Return where the bytes are, for what decodes as ``decode`` does, many in one call.

        None where there is no such thing.
        """


class ChunkSource(Protocol):
    """Where the chunks of one array come from."""

    @property
    def name(self) -> str:
        """What errors call the store."""

    @property
    def is_far(self) -> bool:
        """Whether stored bytes are fetched before they are needed, and waited for."""

    def fetch_chunks(self, chunks: ChunkIndices) -> FetchedChunks:
        """Fetch the stored bytes of chunks, as few requests as possible."""

    def prefetch(self, chunks: Sequence[Index], size: int) -> Closes | None:
        """Begin to fetch the stored bytes of chunks of ``size`` bytes each; None if not far."""

    def fetch(self, chunks: Sequence[Index]) -> int | None:
        """Fetch the stored bytes of chunks and drop them; None for one that only decodes."""


class ChunkedArray:
    """Reads regions of an array that is stored in chunks.

    Chunks begin at multiples of ``chunks``, or where ``cuts`` says; of one that is cut short the
    first voxels count. ``token`` is the name of the array in the cache.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        chunks: tuple[int, ...],
        dtype: np.dtype[Any],
        fill_value: Any,
        *,
        source: ChunkSource,
        cache: ChunkCache,
        token: str,
        cuts: ChunkGrid | None = None,
    ) -> None:
        self.shape, self.chunks, self.dtype = shape, chunks, dtype
        self.ndim = len(shape)
        self.chunk_bytes = math.prod(chunks) * dtype.itemsize
        self._fill = np.asarray(fill_value).astype(dtype)[()]
        self._cuts = ChunkGrid(shape, chunks) if cuts is None else cuts
        self.voxels = self._cuts.voxels
        self.needed_chunks = self._cuts.touched_parts
        """Returns the chunks (N, axes) of a region of stored axes."""
        self._source, self._cache, self._token = source, cache, token
        # One row of a chunk that is not stored.
        self._fill_row = np.full(chunks[-1:], self._fill, dtype)

    def read(self, region: Region) -> NDArray[Any]:
        """Return a region, C order; in chunks beside its box it holds anything."""
        out = np.empty(region.shape, self.dtype)
        if POISON in os.environ and read_setting(POISON, "0") == "1":
            out.fill(np.nan if self.dtype.kind in "fc" else np.iinfo(self.dtype).max)
        chunks = self.needed_chunks(region)
        if out.size == 0 or len(chunks) == 0:
            return out
        parts = self._cuts.parts_in(chunks, region)
        entries = self._cache.get_all(self._keys(chunks))
        is_missing = np.array([chunk is None for chunk in entries])
        if not is_missing.all():
            here = [chunk for chunk in entries if chunk is not None]
            self._copy(out, parts[~is_missing], here)
        if is_missing.any():
            self._read_missing(out, chunks[is_missing], parts[is_missing])
        return out

    def _keys(self, chunks: NDArray[np.int64]) -> list[Hashable]:
        """Return the names of chunks in the cache."""
        return [(self._token, index) for index in map(tuple, chunks.tolist())]

    def _copy(
        self, out: NDArray[Any], parts: NDArray[np.int64], chunks: Sequence[KeptChunk]
    ) -> None:
        """Copy parts of chunks that are decoded to where they belong."""
        if is_available(self.ndim):
            rooms = [chunk.address for chunk in chunks]
            place_chunks(out, self.chunks, parts, rooms, self._fill_row)
            return
        for (there, here), chunk in zip(_slices(parts), chunks, strict=True):
            out[there] = self._fill if chunk is FILL_CHUNK else chunk.array[here]

    def _read_missing(
        self, out: NDArray[Any], chunks: NDArray[np.int64], parts: NDArray[np.int64]
    ) -> None:
        # The chunk, and what it was made of.
        if 0 < usable_memory() < 2 * self.chunk_bytes:
            raise VolumeTooLarge(
                f"a chunk of {self._source.name}, {self.chunks} {self.dtype}, takes "
                f"{2 * self.chunk_bytes} bytes, and this process may use {usable_memory()}.",
                do="Store it in smaller chunks, or check the header.",
            )
        payload = self._source.fetch_chunks(chunks)
        stored_chunks = payload.stored_chunks() if is_available(self.ndim) else None
        is_left, count = np.ones(len(chunks), bool), 0
        # What is decoded to be kept is in memory before it is known whether there is room for it.
        step = max(1, _STEP_BYTES // self.chunk_bytes)
        for first in range(0, len(chunks), step):
            if stored_chunks is None:
                break
            some = slice(first, first + step)
            those = stored_chunks.of(some)
            is_done = self._decode_all(out, chunks[some], parts[some], those)
            is_left[some] = ~is_done
            count += int((is_done & (those.addresses != 0)).sum())
        if is_left.any():
            count += self._decode_each(out, chunks[is_left], parts[is_left], payload)
        IO_COUNTERS.count(bytes_decoded=count * self.chunk_bytes)

    def _decode_all(
        self,
        out: NDArray[Any],
        chunks: NDArray[np.int64],
        parts: NDArray[np.int64],
        stored_chunks: StoredChunks,
    ) -> NDArray[np.bool_]:
        """Decode chunks in one call, and return which of them could be."""
        is_empty = stored_chunks.addresses == 0
        entries: list[KeptChunk] = []
        if self._cache.most_bytes >= self.chunk_bytes:
            shape, dtype = self.chunks, self.dtype
            rooms = [None if n else np.empty(shape, dtype) for n in is_empty.tolist()]
            entries = [
                FILL_CHUNK if room is None else KeptChunk(room, address_of(room)) for room in rooms
            ]
        rooms_of_kept = [chunk.address for chunk in entries] or [0] * len(parts)
        is_done = place_chunks(
            out, self.chunks, parts, rooms_of_kept, self._fill_row, stored_chunks
        )
        if entries:
            pairs = zip(self._keys(chunks), entries, is_done.tolist(), strict=True)
            good = [(key, chunk) for key, chunk, is_done in pairs if is_done]
            self._cache.put_all(*zip(*good, strict=True)) if good else None
        return is_done

    def _decode_each(
        self,
        out: NDArray[Any],
        chunks: NDArray[np.int64],
        parts: NDArray[np.int64],
        payload: FetchedChunks,
    ) -> int:
        """Decode chunks one after another, and return how many were stored."""
        keeps, strided = self._cache.most_bytes >= self.chunk_bytes, payload.strided
        scratch: NDArray[Any] | None = None
        count = 0
        for index, (there, here) in zip(map(tuple, chunks.tolist()), _slices(parts), strict=True):
            slot = out[there]
            whole = slot.shape == self.chunks and (strided or slot.flags.c_contiguous)
            if whole and not keeps:
                # Straight to where it is wanted: no copy of the chunk is made.
                if self._decode(payload, index, slot):
                    count += 1
                else:
                    slot[...] = self._fill
                continue
            if scratch is None:
                scratch = np.empty(self.chunks, self.dtype)
            if self._decode(payload, index, scratch):
                count += 1
                slot[...] = scratch[here]
                if self._cache.put((self._token, index), scratch):
                    scratch = None
            else:
                slot[...] = self._fill
                self._cache.put_all([(self._token, index)], [FILL_CHUNK])
        return count

    def _decode(self, chunks: FetchedChunks, index: Index, out: NDArray[Any]) -> bool:
        try:
            return chunks.decode(index, out)
        except (MemoryError, VoxpipeError):
            raise
        except Exception as error:  # each codec has its own
            start, stop = self._cuts.bounds(np.array([index]))
            spans = zip(start[0].tolist(), stop[0].tolist(), strict=True)
            where = ", ".join(f"{a}:{b}" for a, b in spans)
            raise CorruptVolume(
                f"[{where}] of {self._source.name} cannot be decoded, its bytes in "
                f"{chunks.place(index) or 'the file'}: {type(error).__name__}: {error}.",
                do="Copy or write this file again.",
            ) from error

    def prefetch(self, region: Region) -> Closes | None:
        """Begin to bring in the stored bytes of a region that is going to be read.

        They wait until the ticket is closed, and so do decoded chunks of it that are kept. None
        where there is nothing to wait for. What goes wrong is raised by the read.
        """
        chunks = [tuple(row) for row in self.needed_chunks(region).tolist()]
        if not self._cache.most_bytes:
            return self._source.prefetch(chunks, self.chunk_bytes)
        # What is here is not fetched, and stays until it was read, as a read that missed it would
        # wait for a request; where nothing is far away, what is needed sooner may take its place.
        keys = [(self._token, index) for index in chunks]
        announcement = self._cache.announce(keys, keep=self._source.is_far)
        try:
            absent = [key[1] for key in keys if key not in announcement.here]
            ticket = self._source.prefetch(absent, self.chunk_bytes)
        except BaseException:
            announcement.close()
            raise
        return announcement if ticket is None else closed_together([announcement, ticket])

    def fetch(self, region: Region) -> int | None:
        """Bring in the stored bytes of a region and drop them; return how many.

        None where the format cannot tell fetching from decoding.
        """
        return self._source.fetch([tuple(row) for row in self.needed_chunks(region).tolist()])


def _slices(
    parts: NDArray[np.int64],
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield of each part which part of the region it is, and which of the chunk."""
    for rows in parts.tolist():
        yield (
            tuple([slice(a, a + n) for a, _, n in rows]),
            tuple([slice(b, b + n) for _, b, n in rows]),
        )


class Lookup(NamedTuple):
    """How to find out where chunks lie."""

    requests: Sequence[ReadRange]  # what must be read first; empty if everything is known
    places: Callable[[Sequence[bytes | None]], ObjectRanges]
    """Returns where each chunk lies, of the answers."""
    extents: Callable[[], Mapping[str, Span]] = dict
    """Returns from where to where objects that hold many chunks hold any, by object; after
    ``places``."""


class ChunkMap(Protocol):
    """Where the chunks of one array lie; by itself, one for which nothing must be read."""

    def lookup(self, chunks: ChunkIndices) -> Lookup:
        """Return how to find out where each chunk lies; reads nothing."""
        return Lookup([], lambda answers: self.locate(chunks))

    def locate(self, chunks: ChunkIndices) -> ObjectRanges:
        """Return where each chunk lies; nowhere if it is known not to be stored."""
