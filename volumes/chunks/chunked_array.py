"""An array stored in chunks: which ones a region needs, and how they are put together.

One reader for every chunked format. The format brings chunks and decodes one at a time into
memory that is there (:class:`ChunkSource`); culling, the cache, the counts and putting the
pieces together are here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, ChunkGrid, Region
from ...core.errors import CorruptVolume, VolumeTooLarge, VoxpipeError
from ...core.memory import usable_memory
from ...core.settings import POISON, read_setting
from ...storage.ranges import ObjectRanges, ReadRange, Span
from ...storage.read_ahead import Closes, closed_together
from .chunk_cache import ENTRY_BYTES, FILL_CHUNK, ChunkCache, ChunkKeys, first_key
from .native import (
    DATA,
    DECODE,
    FILE,
    LEAVE,
    LOCATE,
    PARTS,
    PLACE,
    ROOM,
    STATUS,
    SUCCESS,
    TASK,
    ChunkPlaces,
    LocatedChunks,
    NativeGrid,
    StoredChunks,
    addresses_of,
    is_available,
    place_chunks,
)

_STEP_BYTES = 4 * 1024**2  # decoded in one call: a patch of 96 cubed, and what is touched beside it


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

    def close(self) -> None:
        """Let go of what was opened for them; any number of times."""

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

    def native_source(self, chunks: ChunkIndices) -> StoredChunks | LocatedChunks | None:
        """Return what decodes chunks natively, without fetching them; None if nothing does."""

    def learn(self, chunks: ChunkIndices) -> bool:
        """Read what tells where chunks lie, if that is not known; return whether it was not."""

    def fetch_chunks(self, chunks: ChunkIndices) -> FetchedChunks:
        """Fetch the stored bytes of chunks, as few requests as possible."""

    def prefetch(self, chunks: ChunkIndices, size: int) -> Closes | None:
        """Begin to fetch the stored bytes of chunks of ``size`` bytes each; None if not far."""

    def fetch(self, chunks: Sequence[Index]) -> int | None:
        """Fetch the stored bytes of chunks and drop them; None for one that only decodes."""


class _Plan:
    """The chunks that a region needs. Worked out once for it: who looks ahead and who reads ask."""

    __slots__ = ("chunks", "cuts", "keys", "order", "rows", "voxels")

    def __init__(
        self,
        cuts: ChunkGrid,
        chunks: NDArray[np.int64],
        rows: NDArray[np.int64],
        order: NDArray[Any],
        voxels: int,
    ) -> None:
        self.cuts = cuts  # of which array
        self.chunks = chunks  # their places (N, axes)
        self.rows = rows  # what native code is asked with, their parts in it
        self.order = order  # their numbers in C order
        self.voxels = voxels  # how many of the array they hold
        self.keys: ChunkKeys | None = None  # in the cache
        chunks.setflags(write=False)  # whoever asks again gets the same

    @property
    def parts(self) -> NDArray[np.int64]:
        """(N, axes, 3), see ``ChunkGrid.parts_in``."""
        return self.rows[:, PARTS:].reshape(*self.chunks.shape, 3)


class _Read(NamedTuple):
    """A region that is read."""

    out: NDArray[Any]
    plan: _Plan
    rows: NDArray[np.int64]  # those of the plan, and what was found


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
        self._source, self._cache, self._token = source, cache, token
        self._first_key = first_key(token)
        # In C order; Python's numbers where the chunks that a header claims are too many.
        steps = np.cumprod([1, *self._cuts.counts[:0:-1]], dtype=object)[::-1]
        is_short = math.prod(self._cuts.counts) < 2**63
        self._steps = steps.astype(np.int64) if is_short else steps
        # Asked of the environment when a volume is opened, and not at each read.
        self._is_native = is_available(self.ndim)
        self._grid = NativeGrid(self._cuts) if is_short and self._is_native else None
        # One row of a chunk that is not stored.
        self._fill_row = np.full(chunks[-1:], self._fill, dtype)

    def read(self, region: Region) -> NDArray[Any]:
        """Return a region, C order; in chunks beside its box it holds anything."""
        out = np.empty(region.shape, self.dtype)
        if POISON in os.environ and read_setting(POISON, "0") == "1":
            out.fill(np.nan if self.dtype.kind in "fc" else np.iinfo(self.dtype).max)
        plan = self._plan(region)
        if out.size == 0 or len(plan.chunks) == 0:
            return out
        entries = self._cache.get_all(self._keys(plan))
        read = _Read(out, plan, plan.rows.copy())
        read.rows[:, ROOM], read.rows[:, TASK] = entries.addresses, entries.is_here * PLACE
        (absent,) = (~entries.is_here).nonzero()
        if len(absent):
            self._read_absent(read, absent)
        elif self._is_native:
            place_chunks(out, self.chunks, read.rows, self._fill_row)
        if not self._is_native:
            for (there, inside), chunk in zip(_slices(plan.parts), entries.arrays, strict=True):
                if chunk is not None:
                    out[there] = self._fill if chunk is FILL_CHUNK else chunk[inside]
        return out

    def needed_chunks(self, region: Region) -> NDArray[np.int64]:
        """Return the chunks (N, axes) of a region of stored axes."""
        return self._plan(region).chunks

    def needed_voxels(self, region: Region) -> int:
        """Return how many voxels of the array they hold."""
        return self._plan(region).voxels

    def _plan(self, region: Region) -> _Plan:
        """Return what a region needs."""
        plan: _Plan | None = vars(region).get("_plan")
        if plan is not None and plan.cuts is self._cuts:
            return plan
        need = None
        if self._grid is not None and not region.is_empty and min(region.start) >= 0:
            need = self._grid.cover(region)
        if need is None:
            chunks = self._cuts.touched_parts(region)
            rows = np.zeros((len(chunks), PARTS + 3 * self.ndim), np.int64)
            rows[:, PARTS:] = self._cuts.parts_in(chunks, region).reshape(-1, 3 * self.ndim)
            need = chunks, rows, chunks @ self._steps, self._cuts.voxels(chunks, region)
        plan = vars(region)["_plan"] = _Plan(self._cuts, *need)
        return plan

    def _keys(self, plan: _Plan) -> ChunkKeys:
        """Return the keys in the cache of chunks."""
        if plan.keys is None:
            plan.keys = ChunkKeys(map(self._first_key.__add__, plan.order.tolist()))
        return plan.keys

    def _read_absent(self, read: _Read, absent: NDArray[np.int64]) -> None:
        """Fetch and decode the chunks that are not here, and place all, or in Python only these."""
        if 0 < usable_memory() < 2 * self.chunk_bytes:  # the chunk, and what it was made of
            raise VolumeTooLarge(
                f"a chunk of {self._source.name}, {self.chunks} {self.dtype}, takes "
                f"{2 * self.chunk_bytes} bytes, and this process may use {usable_memory()}.",
                do="Store it in smaller chunks, or check the header.",
            )
        count, source = 0, None
        if self._is_native:
            source = self._source.native_source(read.plan.chunks[absent])
        if source is not None:
            count, absent = self._decode_all(read, absent, source)
            if len(absent) and self._source.learn(read.plan.chunks[absent]):
                more, absent = self._decode_all(read, absent, source)
                count += more
        if len(absent):
            count += self._fetch_absent(read, absent)
        if count:
            IO_COUNTERS.count(bytes_decoded=count * self.chunk_bytes)

    def _fetch_absent(self, read: _Read, absent: NDArray[np.int64]) -> int:
        """Fetch chunks before they are decoded; return how many were stored."""
        count, payload = 0, self._source.fetch_chunks(read.plan.chunks[absent])
        try:
            bodies = payload.stored_chunks() if self._is_native else None
            if bodies is not None:
                count, absent = self._decode_all(read, absent, bodies)
            elif self._is_native and read.rows[:, TASK].any():
                place_chunks(read.out, self.chunks, read.rows, self._fill_row)
            if len(absent):
                count += self._decode_each(read, absent, payload)
        finally:
            payload.close()
        return count

    def _decode_all(
        self, read: _Read, members: NDArray[np.int64], those: StoredChunks | LocatedChunks
    ) -> tuple[int, NDArray[np.int64]]:
        """Place chunks, those that are here too; return how many were stored, and which remain."""
        rows, chunks, remaining, number = read.rows, read.plan.chunks, [], 0
        keeps, decoder = self._cache.most_bytes >= self.chunk_bytes, those.decoder
        # What is decoded to be kept is in memory before it is known whether it has room.
        step = max(1, _STEP_BYTES // self.chunk_bytes)
        for first in range(0, len(members), step):
            its = members[first : first + step]
            arrays: list[NDArray[Any]] = []
            if keeps:
                arrays = [np.empty(self.chunks, self.dtype) for _ in range(len(its))]
                rows[its, ROOM] = addresses_of(arrays)
            place = read.out, self.chunks, rows, self._fill_row, decoder
            if isinstance(those, StoredChunks):
                columns = those.columns[:, first : first + step]
                rows[its, :ROOM], rows[its, TASK] = 0, DECODE
                rows[its, : len(columns)] = columns.T
                place_chunks(*place)
            else:
                rows[its, TASK] = LOCATE
                newest = place_chunks(*place, places=those.places, indices=chunks)
                if newest and newest > those.store.newest:
                    those.store.newest = newest
            rows[:, TASK] = LEAVE
            result = rows[its]
            is_stored = (result[:, DATA] | result[:, FILE]) != 0
            is_done = result[:, STATUS] == SUCCESS
            if np.add.reduce(is_done) < len(its):
                remaining.append(its[~is_done])
                its, is_stored, result = its[is_done], is_stored[is_done], result[is_done]
                arrays = [*compress(arrays, is_done.tolist())]
            number += int(np.add.reduce(is_stored))
            if keeps:
                self._keep(read, its, arrays, result[:, ROOM], is_stored)
        return number, np.concatenate(remaining) if remaining else members[:0]

    def _keep(
        self,
        read: _Read,
        members: NDArray[np.int64],
        arrays: list[NDArray[Any]],
        rooms: NDArray[np.int64],
        is_stored: NDArray[np.bool_],
    ) -> None:
        """Give the cache chunks that were decoded, or are not stored."""
        sizes = np.where(is_stored, self.chunk_bytes, ENTRY_BYTES)
        if not is_stored.all():
            pairs = zip(arrays, is_stored.tolist(), strict=True)
            arrays = [array if one else FILL_CHUNK for array, one in pairs]
        self._cache.put_all(self._keys(read.plan), arrays, sizes, rooms * is_stored, members)

    def _decode_each(self, read: _Read, members: NDArray[np.int64], payload: FetchedChunks) -> int:
        """Decode chunks one after another, and return how many were stored."""
        keeps, strided = self._cache.most_bytes >= self.chunk_bytes, payload.strided
        out, chunks, parts = read.out, read.plan.chunks[members], read.plan.parts[members]
        scratch = np.empty(self.chunks, self.dtype)
        count, rooms = 0, list[NDArray[Any]]()
        for index, (there, here) in zip(map(tuple, chunks.tolist()), _slices(parts), strict=True):
            slot = out[there]
            if not keeps and slot.shape == self.chunks and (strided or slot.flags.c_contiguous):
                # Straight to where it is wanted: no copy of the chunk is made.
                if stores := self._decode(payload, index, slot):
                    count += 1
                    continue
            else:
                stores = self._decode(payload, index, scratch)
            count += stores
            slot[...] = scratch[here] if stores else self._fill
            if keeps:
                rooms.append(scratch if stores else FILL_CHUNK)
                scratch = np.empty(self.chunks, self.dtype) if stores else scratch
        if keeps:
            addresses = np.array([room.ctypes.data for room in rooms], np.int64)
            is_stored = np.array([room is not FILL_CHUNK for room in rooms])
            self._keep(read, members, rooms, addresses, is_stored)
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
        plan = self._plan(region)
        chunks = plan.chunks
        if not self._cache.most_bytes:
            return self._source.prefetch(chunks, self.chunk_bytes)
        # What is here is not fetched, and stays until it was read, as a read that missed it would
        # wait for a request; where nothing is far away, what is needed sooner may take its place.
        announcement = self._cache.announce(self._keys(plan), keep=self._source.is_far)
        try:
            skips = announcement.is_here
            if not self._source.is_far:  # the system was told when they were announced
                skips = skips | announcement.is_expected
            ticket = self._source.prefetch(chunks[~skips], self.chunk_bytes)
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

    def native_places(self, most: int) -> ChunkPlaces | None:
        """Return where those lie that are known, of at most so many bytes, for native code."""
        return None
