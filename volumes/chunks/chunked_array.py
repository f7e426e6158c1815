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
from .chunk_cache import ENTRY_BYTES, FILL_CHUNK, ChunkCache, ChunkKeys, FoundChunks, first_key
from .native import StoredChunks, addresses_of, is_available, place_chunks

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

    def fetch_chunks(self, chunks: ChunkIndices) -> FetchedChunks:
        """Fetch the stored bytes of chunks, as few requests as possible."""

    def prefetch(self, chunks: ChunkIndices, size: int) -> Closes | None:
        """Begin to fetch the stored bytes of chunks of ``size`` bytes each; None if not far."""

    def fetch(self, chunks: Sequence[Index]) -> int | None:
        """Fetch the stored bytes of chunks and drop them; None for one that only decodes."""


class _Read(NamedTuple):
    """A region that is read, and the chunks that it needs."""

    out: NDArray[Any]
    keys: ChunkKeys
    chunks: NDArray[np.int64]  # their places (N, axes)
    parts: NDArray[np.int64]  # (N, axes, 3), see ``ChunkGrid.parts_in``


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
        self._first_key = first_key(token)
        # In C order; Python's numbers where the chunks that a header claims are too many.
        steps = np.cumprod([1, *self._cuts.counts[:0:-1]], dtype=object)[::-1]
        is_short = math.prod(self._cuts.counts) < 2**63
        self._steps = steps.astype(np.int64) if is_short else steps
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
        keys, parts = self._keys(region, chunks), self._cuts.parts_in(chunks, region)
        entries, is_native = self._cache.get_all(keys), is_available(self.ndim)
        (absent,) = (~entries.is_here).nonzero()
        if len(absent):
            self._read_absent(_Read(out, keys, chunks, parts), entries, absent)
        elif is_native:
            place_chunks(out, self.chunks, parts, entries.addresses, self._fill_row)
        if not is_native:
            for (there, inside), chunk in zip(_slices(parts), entries.arrays, strict=True):
                if chunk is not None:
                    out[there] = self._fill if chunk is FILL_CHUNK else chunk[inside]
        return out

    def _read_absent(self, read: _Read, entries: FoundChunks, absent: NDArray[np.int64]) -> None:
        """Fetch and decode the chunks that are not here, and place all, or in Python only these."""
        if 0 < usable_memory() < 2 * self.chunk_bytes:  # the chunk, and what it was made of
            raise VolumeTooLarge(
                f"a chunk of {self._source.name}, {self.chunks} {self.dtype}, takes "
                f"{2 * self.chunk_bytes} bytes, and this process may use {usable_memory()}.",
                do="Store it in smaller chunks, or check the header.",
            )
        count, (here,) = 0, entries.is_here.nonzero()
        payload = self._source.fetch_chunks(read.chunks[absent])
        try:
            is_native = is_available(self.ndim)
            bodies = payload.stored_chunks() if is_native else None
            if bodies is None and is_native and len(here):
                place = read.parts[here], entries.addresses[here], self._fill_row
                place_chunks(read.out, self.chunks, *place)
            # What is decoded to be kept is in memory before it is known whether it has room.
            step = max(1, _STEP_BYTES // self.chunk_bytes)
            for first in range(0, len(absent), step):
                its = absent[first : first + step]
                if bodies is not None:
                    columns = bodies.columns[:, first : first + step]
                    # Those that are here come to their places along with the first ones.
                    members = its if first or not len(here) else np.concatenate([here, its])
                    rooms, some = entries.addresses[members], bodies._replace(columns=columns)
                    is_done = self._decode_all(read, members, rooms, some)
                    count += len((is_done & (columns[[0, 3]] != 0).any(axis=0)).nonzero()[0])
                    its = its[~is_done]
                if len(its):
                    count += self._decode_each(read, its, payload)
        finally:
            payload.close()
        if count:
            IO_COUNTERS.count(bytes_decoded=count * self.chunk_bytes)

    def _keys(self, region: Region, chunks: NDArray[np.int64]) -> ChunkKeys:
        """Return the keys in the cache of the chunks of a region; worked out once for it."""
        first = self._first_key
        memo = vars(region).get("_keys")
        if memo is None or memo[0] != first:
            keys = ChunkKeys(map(first.__add__, (chunks @ self._steps).tolist()))
            memo = vars(region)["_keys"] = first, keys
        result: ChunkKeys = memo[1]
        return result

    def _decode_all(
        self, read: _Read, members: NDArray[np.int64], rooms: NDArray[np.int64], those: StoredChunks
    ) -> NDArray[np.bool_]:
        """Place chunks in one call, the last of them decoded first; return which could be."""
        columns, arrays = those.columns, list[NDArray[Any]]()
        first = len(members) - columns.shape[1]
        if self._cache.most_bytes >= self.chunk_bytes:
            shape, dtype, is_there = self.chunks, self.dtype, (columns[0] | columns[3]) != 0
            flags = is_there.tolist()
            arrays = [np.empty(shape, dtype) if one else FILL_CHUNK for one in flags]
            rooms[first:][is_there] = addresses_of(compress(arrays, flags))
        place = read.out, self.chunks, read.parts[members], rooms, self._fill_row
        is_done = place_chunks(*place, those.decoder, columns)[first:]
        if arrays:
            arrays = [*compress(arrays, is_done.tolist())]
            self._keep(read.keys, members[first:][is_done], arrays, rooms[first:][is_done])
        return is_done

    def _keep(
        self,
        keys: ChunkKeys,
        members: NDArray[np.int64],
        arrays: list[NDArray[Any]],
        rooms: NDArray[np.int64],
    ) -> None:
        """Give the cache chunks that were decoded."""
        sizes = np.where(rooms == 0, ENTRY_BYTES, self.chunk_bytes)
        self._cache.put_all(keys, arrays, sizes, rooms, members)

    def _decode_each(self, read: _Read, members: NDArray[np.int64], payload: FetchedChunks) -> int:
        """Decode chunks one after another, and return how many were stored."""
        keeps, strided = self._cache.most_bytes >= self.chunk_bytes, payload.strided
        out, chunks, parts = read.out, read.chunks[members], read.parts[members]
        scratch = np.empty(self.chunks, self.dtype)
        count, rooms = 0, list[NDArray[Any]]()
        for index, (there, here) in zip(map(tuple, chunks.tolist()), _slices(parts), strict=True):
            slot = out[there]
            if not keeps and slot.shape == self.chunks and (strided or slot.flags.c_contiguous):
                # Straight to where it is wanted: no copy of the chunk is made.
                if is_stored := self._decode(payload, index, slot):
                    count += 1
                    continue
            else:
                is_stored = self._decode(payload, index, scratch)
            count += is_stored
            slot[...] = scratch[here] if is_stored else self._fill
            if keeps:
                rooms.append(scratch if is_stored else FILL_CHUNK)
                scratch = np.empty(self.chunks, self.dtype) if is_stored else scratch
        if keeps:
            addresses = np.array([0 if r is FILL_CHUNK else r.ctypes.data for r in rooms], np.int64)
            self._keep(read.keys, members, rooms, addresses)
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
        chunks = self.needed_chunks(region)
        if not self._cache.most_bytes:
            return self._source.prefetch(chunks, self.chunk_bytes)
        # What is here is not fetched, and stays until it was read, as a read that missed it would
        # wait for a request; where nothing is far away, what is needed sooner may take its place.
        announcement = self._cache.announce(self._keys(region, chunks), keep=self._source.is_far)
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
