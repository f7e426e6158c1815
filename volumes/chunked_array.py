"""An array stored in chunks: which ones a region needs, where their bytes are, what they hold.

One reader for every chunked format. The format says where a chunk lies (:class:`ChunkMap`)
and how it is decoded (:class:`ChunkDecoder`); culling, coalescing, the cache and putting the
pieces together are here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core import OrientedBox, Region
from ..core.errors import CorruptVolume, VoxpipeError
from .chunk_cache import ChunkCache
from .joining import Joining, joining
from .ranges import Joined, LocalRanges, RangeStore, ReadRange, read_joined
from .read_ahead import AHEAD, AheadStore, Ticket, works_ahead

Index = tuple[int, ...]
"""Place of a chunk in the grid of chunks, per stored axis."""


POISON_VARIABLE = "VOXPIPE_POISON"
"""Set to fill what is not read with NaN, or the largest number: to see that nobody uses it."""


class Lookup(NamedTuple):
    """How to find out where chunks lie."""

    requests: Sequence[ReadRange]
    """What must be read first; empty if everything is known."""
    places: Callable[[Sequence[bytes | None]], list[ReadRange | None]]
    """Returns where each chunk lies, of the answers; None for one that is known not to be."""


class ChunkMap(Protocol):
    """Where the chunks of one array lie."""

    def lookup(self, chunks: Sequence[Index]) -> Lookup:
        """Return how to find out where each chunk lies; reads nothing."""

    def locate(self, chunks: Sequence[Index]) -> list[ReadRange | None]:
        """Return where each chunk lies; None for one that is known not to be stored."""


class ChunkDecoder(Protocol):
    """Makes voxels of the bytes of a chunk; may depend on which one it is."""

    def decode(self, data: memoryview, out: NDArray[Any], index: Index) -> None:
        """Decode the chunk at ``index`` into ``out``: whole chunk, stored type, C order.

        With any strides where the decoder has a true attribute ``strided``.

        May raise anything where the bytes are damaged.
        """


class ChunkedArray:
    """Reads regions of an array that is stored in chunks.

    Parameters
    ----------
    shape, chunks
        Of the array and of one chunk, per stored axis.
    dtype
        Type of the numbers as stored.
    fill_value
        What a chunk that is not stored holds.
    store, chunk_map, decoder
        Where bytes come from, where in it chunks lie, and how they are decoded.
    cache, token
        Where decoded chunks are kept, and this array's name among others there.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        chunks: tuple[int, ...],
        dtype: np.dtype[Any],
        fill_value: Any,
        *,
        store: RangeStore,
        chunk_map: ChunkMap,
        decoder: ChunkDecoder,
        cache: ChunkCache,
        token: str,
    ) -> None:
        self.shape, self.chunks, self.dtype = shape, chunks, dtype
        self.ndim = len(shape)
        self._fill = np.asarray(fill_value).astype(dtype)[()]
        self._store, self._map, self._decoder = store, chunk_map, decoder
        self._cache, self._token = cache, token

    def needed(
        self, region: Region, box: OrientedBox | None = None, axes: tuple[int, int, int] = (0, 1, 2)
    ) -> NDArray[np.int64]:
        """Return the chunks (N, axes) that a read needs: those of the region that the box touches.

        Parameters
        ----------
        region
            In stored axes.
        box
            Where taps lie, in three of the stored axes.
        axes
            Which stored axes these are.
        """
        chunk = np.array(self.chunks)
        ranges = [
            np.arange(a // c, -(-b // c)) for (a, b), c in zip(region, self.chunks, strict=True)
        ]
        grid = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, self.ndim)
        if box is None or len(grid) < 2:
            return grid
        start = np.maximum(grid * chunk, region.start)
        stop = np.minimum((grid + 1) * chunk, region.stop)
        return grid[box.touches(start[:, axes], stop[:, axes])]

    def read(
        self,
        region: Region,
        box: OrientedBox | None = None,
        axes: tuple[int, int, int] = (0, 1, 2),
    ) -> NDArray[Any]:
        """Return a region, C order; where no tap lies it holds anything.

        Parameters
        ----------
        region, box, axes
            As for :meth:`needed`.
        """
        chunks = [tuple(row) for row in self.needed(region, box, axes).tolist()]
        out = _room(region.shape, self.dtype)
        if out.size == 0:
            return out
        missing: list[Index] = []
        for index in chunks:
            held = self._cache.get((self._token, index))
            if held is None:
                missing.append(index)
            else:
                self._place(out, region, index, held)
        if missing:
            self._read_missing(out, region, missing)
        return out

    def _read_missing(self, out: NDArray[Any], region: Region, missing: list[Index]) -> None:
        data = AHEAD.taken(self._token, missing)
        absent = [index for index in missing if index not in data]
        places = self._map.locate(absent) if absent else []
        stored = [(index, place) for index, place in zip(absent, places, strict=True) if place]
        answers = read_joined(self._store, [place for _, place in stored], *self._joining())
        data.update(zip((index for index, _ in stored), answers, strict=True))
        where = dict(stored)
        keeps = self._cache.most_bytes >= math.prod(self.chunks) * self.dtype.itemsize
        scratch: NDArray[Any] | None = None
        for index in missing:
            found = data.get(index)
            slot = None if keeps else self._slot(out, region, index)
            if slot is not None:
                # Straight to where it is wanted: no copy of the chunk is made.
                if found is None:
                    slot[...] = self._fill
                else:
                    self._decode(found, slot, index, where.get(index))
                continue
            if scratch is None or keeps:
                scratch = np.empty(self.chunks, self.dtype)
            if found is None:
                scratch[...] = self._fill
            else:
                self._decode(found, scratch, index, where.get(index))
            self._place(out, region, index, scratch)
            if keeps:
                self._cache.put((self._token, index), scratch)

    def _decode(
        self, data: memoryview, out: NDArray[Any], index: Index, place: ReadRange | None
    ) -> None:
        try:
            _check_length(data, place)
            self._decoder.decode(data, out, index)
        except (MemoryError, VoxpipeError):
            raise
        except Exception as error:  # each codec has its own
            spans = zip(index, self.chunks, self.shape, strict=True)
            where = ", ".join(f"{i * c}:{min((i + 1) * c, n)}" for i, c, n in spans)
            file = place.object if place is not None else ""
            raise CorruptVolume(
                f"[{where}] of {self._store.name} cannot be decoded, its bytes in "
                f"{file or 'the file'}: {type(error).__name__}: {error}.",
                do="Copy or write this file again.",
            ) from error

    def _place(self, out: NDArray[Any], region: Region, index: Index, chunk: NDArray[Any]) -> None:
        there, here = [], []
        for i, c, (a, b) in zip(index, self.chunks, region, strict=True):
            first = i * c
            start, stop = max(first, a), min(first + c, b)
            there.append(slice(start - a, stop - a))
            here.append(slice(start - first, stop - first))
        out[tuple(there)] = chunk[tuple(here)]

    def _slot(self, out: NDArray[Any], region: Region, index: Index) -> NDArray[Any] | None:
        """Return where in ``out`` a chunk is to be decoded; None if only a part of it is there."""
        here = []
        for i, c, (a, b) in zip(index, self.chunks, region, strict=True):
            if i * c < a or (i + 1) * c > b:
                return None
            here.append(slice(i * c - a, (i + 1) * c - a))
        slot = out[tuple(here)]
        any_strides = getattr(self._decoder, "strided", False)
        return slot if any_strides or slot.flags.c_contiguous else None

    def prefetch(
        self,
        region: Region,
        box: OrientedBox | None = None,
        axes: tuple[int, int, int] = (0, 1, 2),
    ) -> Ticket | None:
        """Begin to bring in the stored bytes of a region that is going to be read.

        They wait until the ticket is closed; None where there is nothing to wait for. What
        goes wrong is raised by the read.

        Parameters
        ----------
        region, box, axes
            As for :meth:`needed`.
        """
        needed = [tuple(row) for row in self.needed(region, box, axes).tolist()]
        if isinstance(self._store, LocalRanges):
            absent = [index for index in needed if not self._cache.holds((self._token, index))]
            places = self._map.locate(absent)
            self._store.will_need([place for place in places if place is not None])
            return None
        store = self._store
        if not needed or not works_ahead(store):
            return None
        # What is not fetched because it is here must be here when the read comes.
        moment = AHEAD.moment()
        kept = self._cache.reserve(moment, [(self._token, index) for index in needed])
        here = set(kept)
        chunks = [index for index in needed if (self._token, index) not in here]
        size = math.prod(self.chunks) * self.dtype.itemsize
        let_go = partial(self._cache.passed, moment, kept)
        bring = partial(self._bring, self._joining(), store)
        return AHEAD.begin(self._token, chunks, lambda _: size, store, bring, let_go)

    async def _bring(
        self, joined: Joining, store: AheadStore, chunks: Sequence[Index]
    ) -> dict[Index, memoryview | None]:
        lookup = self._map.lookup(chunks)
        places = lookup.places(
            await store.fetch(lookup.requests, ahead=True) if lookup.requests else ()
        )
        stored = [(index, place) for index, place in zip(chunks, places, strict=True) if place]
        plan = Joined([place for _, place in stored], *joined)
        answers = plan.split(await store.fetch(plan.requests, ahead=True)) if stored else []
        found: dict[Index, memoryview | None] = dict.fromkeys(chunks)
        found.update(zip((index for index, _ in stored), answers, strict=True))
        return found

    def _joining(self) -> Joining:
        """Return which ranges become one request: as the scheme says, or the store."""
        store = self._store
        return joining(Joining(getattr(store, "gap", 0), getattr(store, "most", 1 << 62)))

    def fetch(
        self,
        region: Region,
        box: OrientedBox | None = None,
        axes: tuple[int, int, int] = (0, 1, 2),
    ) -> int:
        """Bring in the stored bytes of a region and drop them; return how many."""
        chunks = [tuple(row) for row in self.needed(region, box, axes).tolist()]
        places = [place for place in self._map.locate(chunks) if place is not None]
        answers = read_joined(self._store, places, *self._joining())
        return sum(len(answer) for answer in answers if answer is not None)


def _check_length(data: memoryview, place: ReadRange | None) -> None:
    """Refuse a piece that ends early: some decoders make voxels of it nevertheless."""
    if place is not None and place.stop is not None and place.start >= 0:
        expected = place.stop - place.start
        if len(data) < expected:
            raise EOFError(f"{len(data)} of {expected} bytes are there")


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return memory for a region; poisoned, on request, where chunks are left out."""
    room = np.empty(shape, dtype)
    if os.environ.get(POISON_VARIABLE):
        room.fill(np.nan if dtype.kind in "fc" else np.iinfo(dtype).max)
    return room
