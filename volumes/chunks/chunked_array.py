"""An array stored in chunks: which ones a region needs, and how they are put together.

One reader for every chunked format. The format brings chunks and decodes one at a time into
memory that is there (:class:`ChunkSource`); culling, the cache, the counts and putting the
pieces together are here.
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
from .native import (
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
_LARGE = 1e30  # no sum of a few of them overflows


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

    def native_source(self) -> LocatedChunks | None:
        """Return what finds chunks and decodes them natively; None if nothing does."""

    def learn(self, chunks: ChunkIndices) -> bool:
        """Read what tells where chunks lie, if that is not known; return whether it was not."""

    def fetch_chunks(self, chunks: ChunkIndices) -> FetchedChunks:
        """Fetch the stored bytes of chunks, as few requests as possible."""

    def prefetch(self, chunks: ChunkIndices, size: int) -> Closable | None:
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
        self._source, self._cache, self._token = source, cache, token
        self._first_key = first_key(token)
        # In C order; Python's numbers where the chunks that a header claims are too many.
        steps = np.cumprod([1, *self._cuts.counts[:0:-1]], dtype=object)[::-1]
        is_short = math.prod(self._cuts.counts) < 2**63
        self._steps = steps.astype(np.int64) if is_short else steps
        # Asked of the environment when a volume is opened, and not at each read.
        self._is_native, self._poison = is_available(self.ndim), _poison(dtype)
        self._grid = NativeGrid(self._cuts) if is_short and self._is_native else None
        self._finder: LocatedChunks | None = None
        # One row of a chunk that is not stored.
        self._fill_row = np.full(chunks[-1:], self._fill, dtype)

    def read(self, region: Region, *, counts: bool = False) -> NDArray[Any]:
        """Return a region, C order; in chunks beside its box it holds anything."""
        # With ``counts`` the read is entered in the tally, and not only what it decodes.
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
                raise VolumeTooLarge(  # the chunk, and what it was made of
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
        """Return how many voxels of the array they hold."""
        return int(self._plan(region).voxels)

    def _plan(self, region: Region) -> ChunkPlan:
        """Return what a region needs."""
        plan: ChunkPlan | None = vars(region).get("_plan")
        if plan is None or plan.cuts is not self._cuts:
            plan = self._grid.cover(region) if self._grid else None
        if plan is None:
            chunks = np.ascontiguousarray(self._cuts.touched_parts(region))
            rows = np.zeros((len(chunks), PARTS + 3 * self.ndim), np.int64)
            rows[:, PARTS:] = self._cuts.parts_in(chunks, region).reshape(-1, 3 * self.ndim)
            plan = ChunkPlan(cuts=self._cuts, chunks=chunks, rows=rows, order=chunks @ self._steps)
            plan.address = chunks.__array_interface__["data"][0]
            plan.voxels, plan.keys = self._cuts.voxels(chunks, region), None
            chunks.setflags(write=False)
            vars(region)["_plan"] = plan
        return plan

    def _keys(self, plan: ChunkPlan) -> ChunkKeys:
        """Return the keys in the cache of chunks."""
        if plan.keys is None:
            plan.keys = ChunkKeys(map(self._first_key.__add__, plan.order.tolist()))
        keys: ChunkKeys = plan.keys
        return keys

    def _fetch_absent(self, out: Voxels, plan: ChunkPlan, rows: Numbers, absent: Numbers) -> int:
        """Fetch chunks before they are decoded; return how many were stored."""
        count, payload = 0, self._source.fetch_chunks(plan.chunks[absent])
        try:
            bodies = payload.stored_chunks() if self._is_native else None
            target = out, self.chunks, plan, rows, self._fill_row
            if bodies is not None:
                # Of rooms, too: those of an attempt that failed are gone.
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
        """Give the cache chunks that were decoded, or are not stored."""
        sizes = np.where(is_stored, self.chunk_bytes, ENTRY_BYTES)
        if not is_stored.all():
            pairs = zip(arrays, is_stored.tolist(), strict=True)
            arrays = [array if one else FILL_CHUNK for array, one in pairs]
        self._cache.put_all(self._keys(plan), arrays, sizes, rooms * is_stored, members)

    def _decode_each(
        self, out: Voxels, plan: ChunkPlan, members: Numbers, payload: FetchedChunks
    ) -> int:
        """Decode chunks one after another, and return how many were stored."""
        keeps, strided = self._cache.most_bytes >= self.chunk_bytes, payload.strided
        chunks, parts = plan.chunks[members], plan.parts[members]
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
        return announcement if ticket is None else joint_ticket([announcement, ticket])

    def fetch(self, region: Region) -> int | None:
        """Bring in the stored bytes of a region and drop them; return how many.

        None where the format cannot tell fetching from decoding.
        """
        return self._source.fetch([tuple(row) for row in self.needed_chunks(region).tolist()])


def _poison(dtype: np.dtype[Any]) -> Any:
    """Return the value of voxels that are not read, None for any."""
    setting = read_setting(POISON, "0")
    if setting == "0":
        return None
    if dtype.kind not in "fc":
        return np.iinfo(dtype).max
    return np.nan if setting == "1" else min(_LARGE, float(np.finfo(dtype).max))


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
