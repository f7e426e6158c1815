"""Reader of arrays stored in chunks, shared by every chunked format.

The format fetches chunks and decodes each into given memory (:class:`ChunkSource`). This module
culls chunks, uses the cache, counts and assembles regions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, ChunkGrid, Region
from ...core.errors import CorruptVolume, VolumeTooLarge, VoxpipeError
from ...core.memory import usable_memory
from ...core.settings import POISON, read_setting
from ...storage.file_reader import HINTS
from ...storage.ranges import ObjectRanges, ReadRange, Span
from ...storage.read_ahead import Closable, joint_ticket
from .chunk_cache import ENTRY_BYTES, FILL_CHUNK, ChunkCache, ChunkKeys, first_key
from .native_chunks import (
    DECODE,
    PARTS,
    PLACE,
    ROOM,
    TASK,
    ChunkPlaces,
    ChunkPlan,
    LocatedChunks,
    NativeGrid,
    Numbers,
    StoredChunks,
    is_available,
    place_chunks,
)

Voxels = NDArray[Any]
_LARGE = 1e30  # a sum of a few does not overflow


class NeededChunks(NamedTuple):
    """The chunks that a read fetches and decodes."""

    chunks: NDArray[np.int64]  # unique indices (N, axes) in the stored grid of chunks
    voxels: int
    """Voxels of the array in these chunks, of all channels."""
    chunk_bytes: int  # of one whole decoded chunk


Index = tuple[int, ...]
"""Index of a chunk in the grid of chunks, per stored axis."""
ChunkIndices = Sequence[Index] | NDArray[np.int64]
"""Indices of chunks, (N, axes)."""


class FetchedChunks:
    """Chunks whose stored bytes have been fetched; by default without files to close."""

    strided: bool = False
    """Whether ``decode`` accepts memory of any strides."""

    def decode(self, index: Index, out: NDArray[Any]) -> bool:
        """Decode a chunk into ``out``: whole chunk, stored type, C order unless ``strided``.

        Return False and write nothing for a chunk that is not stored. Damaged bytes may raise any
        exception.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the files opened for these chunks; any number of times."""

    def place(self, index: Index) -> str:
        """Return the file that holds a chunk; empty if unknown."""
        return ""

    def stored_chunks(self) -> StoredChunks | None:
        """Return the bytes for a native decoder equal to ``decode``; None without one."""
        return None


class ChunkSource:
    """The chunks of one array in a store; by default one that is near, with known locations."""

    name: str
    """Name of the store in errors."""
    is_far: bool = False
    """Whether stored bytes are prefetched, and reads wait for them."""

    def native_source(self) -> LocatedChunks | None:
        """Return the locations from which native code decodes chunks; None without any."""
        return None

    def learn(self, chunks: ChunkIndices) -> bool:
        """Read the unknown locations of chunks; return whether any was unknown."""
        return False

    def fetch_chunks(self, chunks: ChunkIndices) -> FetchedChunks:
        """Fetch the stored bytes of chunks in as few requests as possible."""
        raise NotImplementedError

    def prefetch(self, chunks: ChunkIndices, size: int) -> Closable | None:
        """Begin to fetch chunks of ``size`` bytes each; None if the store is not far."""
        return None

    def fetch(self, chunks: Sequence[Index]) -> int | None:
        """Fetch stored chunks, drop them and return their bytes; None if unsupported."""
        return None


class ChunkedArray:
    """Reader of regions of an array that is stored in chunks.

    Chunks begin at multiples of ``chunks``, or as ``cuts`` defines. Only the first voxels of a
    shortened chunk belong to the array. ``token`` is the name of the array in the cache.
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
        # In C order; Python integers if the header claims more chunks than 64 bits can count.
        steps = np.cumprod([1, *self._cuts.counts[:0:-1]], dtype=object)[::-1]
        is_short = math.prod(self._cuts.counts) < 2**63
        self._steps = steps.astype(np.int64) if is_short else steps
        # Read the environment once per volume, not at each read.
        self._is_native, self._poison = is_available(self.ndim), _poison(dtype)
        self._grid = NativeGrid(self._cuts) if is_short and self._is_native else None
        self._finder: LocatedChunks | None = None
        self._fill_row = np.full(chunks[-1:], self._fill, dtype)

    def read(self, region: Region, *, counts: bool = False) -> NDArray[Any]:
        """Return a region in C order; values outside its box are undefined.

        ``counts`` adds the read itself to the tally, not only the decoded bytes.
        """
        plan = self._plan(region)
        out, cache, count = np.empty(region.shape, self.dtype), self._cache, 0
        if self._poison is not None:
            out.fill(self._poison)
        keeps, rows = cache.most_bytes >= self.chunk_bytes, plan.rows.copy()
        try:
            absent, arrays = np.arange(len(rows)), np.zeros(0, object)
            if cache.most_bytes:
                is_here, rows[:, ROOM], arrays = cache.get_all(plan.keys or self._keys(plan))
                rows[:, TASK], (absent,) = is_here * PLACE, (~is_here).nonzero()
            if len(absent) and 0 < usable_memory() < 2 * self.chunk_bytes:
                raise VolumeTooLarge(  # the chunk and its encoded bytes
                    f"a chunk of {self._source.name}, {self.chunks} {self.dtype}, takes "
                    f"{2 * self.chunk_bytes} bytes, and this process may use {usable_memory()}.",
                    do="Store it in smaller chunks, or check the header.",
                )
            if not self._is_native:
                for (there, inside), chunk in zip(_slices(plan.parts), arrays, strict=False):
                    if chunk is not None:
                        out[there] = self._fill if chunk is FILL_CHUNK else chunk[inside]
            elif len(absent):
                source = self._finder
                if source is None or not source.places.is_current:
                    source = self._finder = self._source.native_source()
                if source is not None and (HINTS.is_warm or source.store is None):
                    if source.touch is not None:
                        source.touch(len(absent) * source.span)
                    target = out, self.chunks, plan, rows, self._fill_row
                    keep, guards = self._keep if keeps else None, self._poison is not None
                    count, absent = place_chunks(*target, absent, source, keep, guards=guards)
                    if len(absent) and self._source.learn(plan.chunks[absent]):
                        more, absent = place_chunks(*target, absent, source, keep, guards=guards)
                        count += more
            elif len(rows):
                place_chunks(out, self.chunks, plan, rows, self._fill_row)
            if len(absent):
                count += self._fetch_absent(out, plan, rows, absent)
        finally:
            if counts or count:
                size = plan.voxels * self.dtype.itemsize * counts
                count *= self.chunk_bytes
                IO_COUNTERS.count(reads=int(counts), bytes_read=size, bytes_decoded=count)
        return out

    def needed_chunks(self, region: Region) -> NDArray[np.int64]:
        """Return the chunks (N, axes) of a region of stored axes."""
        return self._plan(region).chunks

    def needed_voxels(self, region: Region) -> int:
        """Return the number of voxels of the array in the chunks of a region."""
        return int(self._plan(region).voxels)

    def _plan(self, region: Region) -> ChunkPlan:
        plan: ChunkPlan | None = region.chunk_plan
        if plan is None or plan.cuts is not self._cuts:
            plan = self._grid.cover(region) if self._grid else None
        if plan is None:
            chunks = np.ascontiguousarray(self._cuts.touched_parts(region))
            rows = np.zeros((len(chunks), PARTS + 3 * self.ndim), np.int64)
            rows[:, PARTS:] = self._cuts.parts_in(chunks, region).reshape(-1, 3 * self.ndim)
            plan = ChunkPlan(cuts=self._cuts, chunks=chunks, rows=rows, order=chunks @ self._steps)
            plan.address = chunks.__array_interface__["data"][0]
            plan.voxels, plan.keys = self._cuts.voxels(chunks), None
            chunks.setflags(write=False)
        vars(region)["chunk_plan"] = plan
        return plan

    def _keys(self, plan: ChunkPlan) -> ChunkKeys:
        if plan.keys is None:
            plan.keys = ChunkKeys(map(self._first_key.__add__, plan.order.tolist()))
        keys: ChunkKeys = plan.keys
        return keys

    def _fetch_absent(self, out: Voxels, plan: ChunkPlan, rows: Numbers, absent: Numbers) -> int:
        """Fetch and decode chunks; return the number of stored ones."""
        count, payload = 0, self._source.fetch_chunks(plan.chunks[absent])
        try:
            bodies = payload.stored_chunks() if self._is_native else None
            target = out, self.chunks, plan, rows, self._fill_row
            if bodies is not None:
                # Reset rooms too: the arrays of a failed attempt are freed.
                rows[absent, :TASK], rows[absent, TASK] = 0, DECODE
                rows[absent[:, None], range(len(bodies.columns))] = bodies.columns.T
                keep = self._keep if self._cache.most_bytes >= self.chunk_bytes else None
                count, absent = place_chunks(
                    *target, absent, bodies, keep, guards=self._poison is not None
                )
            elif self._is_native and rows[:, TASK].any():
                place_chunks(*target)
            if len(absent):
                count += self._decode_each(out, plan, absent, payload)
        finally:
            payload.close()
        return count

    def _keep(
        self,
        plan: ChunkPlan,
        members: Numbers,
        arrays: list[Voxels],
        rooms: Numbers,
        is_stored: Any,
    ) -> None:
        """Put decoded chunks, and those that are not stored, into the cache."""
        sizes = np.where(is_stored, self.chunk_bytes, ENTRY_BYTES)
        if not is_stored.all():
            pairs = zip(arrays, is_stored.tolist(), strict=True)
            arrays = [array if exists else FILL_CHUNK for array, exists in pairs]
        self._cache.put_all(self._keys(plan), arrays, sizes, rooms * is_stored, members)

    def _decode_each(
        self, out: Voxels, plan: ChunkPlan, members: Numbers, payload: FetchedChunks
    ) -> int:
        """Decode chunks one by one; return the number of stored ones."""
        keeps, strided = self._cache.most_bytes >= self.chunk_bytes, payload.strided
        chunks, parts = plan.chunks[members], plan.parts[members]
        scratch = np.empty(self.chunks, self.dtype)
        count, rooms = 0, list[NDArray[Any]]()
        for index, (there, here) in zip(map(tuple, chunks.tolist()), _slices(parts), strict=True):
            slot = out[there]
            if not keeps and slot.shape == self.chunks and (strided or slot.flags.c_contiguous):
                # Decode in place, without a copy.
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
            self._keep(plan, members, rooms, addresses, is_stored)
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

    def prefetch(self, region: Region) -> Closable | None:
        """Begin to fetch the stored bytes of a region; the read raises any error.

        The bytes, and cached chunks of the region, stay until the ticket is closed. None if there
        is nothing to keep.
        """
        plan, source = self._plan(region), self._source
        is_far, chunks = source.is_far, plan.chunks
        asks = is_far or not HINTS.is_warm or next(HINTS.turns)
        if not self._cache.most_bytes:
            return source.prefetch(chunks, self.chunk_bytes) if asks else None
        # Cached chunks are not fetched. A far store reserves them until the read, because a miss
        # would wait for a request. Without reservation, chunks of an earlier read may evict them.
        announcement = self._cache.announce(self._keys(plan), keep=is_far)
        if not asks:
            return announcement
        try:
            skips = announcement.is_here
            if not is_far:  # the system got their hints with the announcement
                skips = skips | announcement.is_expected
            ticket = source.prefetch(chunks[~skips], self.chunk_bytes)
        except BaseException:
            announcement.close()
            raise
        return announcement if ticket is None else joint_ticket([announcement, ticket])

    def fetch(self, region: Region) -> int | None:
        """Fetch a region, drop its stored bytes and return their number; None if unsupported."""
        return self._source.fetch([tuple(row) for row in self.needed_chunks(region).tolist()])


def _poison(dtype: np.dtype[Any]) -> Any:
    """Return the value of voxels outside a box in tests; None if undefined."""
    setting = read_setting(POISON, "0")
    if setting == "0":
        return None
    if dtype.kind not in "fc":
        return np.iinfo(dtype).max
    return np.nan if setting == "1" else min(_LARGE, float(np.finfo(dtype).max))


def _slices(
    parts: NDArray[np.int64],
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield the slices of each part in the region and in its chunk."""
    for rows in parts.tolist():
        yield (
            tuple([slice(a, a + n) for a, _, n in rows]),
            tuple([slice(b, b + n) for _, b, n in rows]),
        )


class Lookup(NamedTuple):
    """A lookup of the ranges of chunks."""

    requests: Sequence[ReadRange]  # to be read first; empty if every range is known
    places: Callable[[Sequence[bytes | None]], ObjectRanges]
    """Returns the range of each chunk, given the answers to the requests."""
    extents: Callable[[], Mapping[str, Span]] = dict
    """Returns, after ``places``, the span of all chunks in each object of many chunks."""


class ChunkMap(Protocol):
    """The ranges of the chunks of one array; the defaults are for maps that need no read."""

    def lookup(self, chunks: ChunkIndices) -> Lookup:
        """Return the lookup of chunks; reads nothing."""
        return Lookup([], lambda answers: self.locate(chunks))

    def locate(self, chunks: ChunkIndices) -> ObjectRanges:
        """Return the range of each chunk; none for a chunk known not to be stored."""

    def native_places(self, most: int) -> ChunkPlaces | None:
        """Return the known ranges of chunks of at most ``most`` bytes, for native code."""
        return None
