"""An array stored in chunks: which ones a region needs, and how they are put together.

One reader for every chunked format. The format brings chunks and decodes one at a time into
memory that is there (:class:`ChunkSource`); culling, the cache, the counts and putting the
pieces together are here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, ChunkGrid, OrientedBox, Region
from ...core.errors import CorruptVolume, VolumeTooLarge, VoxpipeError
from ...core.memory import usable_memory
from ...storage.ranges import ReadRange, Span
from ...storage.read_ahead import Closes, closed_together
from .chunk_cache import ChunkCache


class Needed(NamedTuple):
    """The chunks that a read needs: what is fetched and decoded, no more and no less."""

    chunks: NDArray[np.int64]
    """Their indices (N, axes), each once, in the grid of chunks as stored."""
    voxels: int
    """How many numbers they hold, of all channels; what hangs over the array's edge left out."""
    chunk_bytes: int
    """Bytes of one that is decoded, whole."""

    @property
    def bytes(self) -> int:
        """Bytes of all of them, decoded."""
        return len(self.chunks) * self.chunk_bytes


Index = tuple[int, ...]
"""Place of a chunk in the grid of chunks, per stored axis."""

# Answers that one array keeps, some kilobytes each: the patches of a few batches.
_REMEMBERED = 32

POISON_VARIABLE = "VOXPIPE_POISON"
"""Set to fill what is not read with NaN, or the largest number: to see that nobody uses it."""


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


class ChunkSource(Protocol):
    """Where the chunks of one array come from."""

    @property
    def name(self) -> str:
        """What errors call the store."""

    @property
    def is_far(self) -> bool:
        """Whether stored bytes are fetched before they are needed, and waited for."""

    def fetch_chunks(self, chunks: Sequence[Index]) -> FetchedChunks:
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
        self._source, self._cache, self._token = source, cache, token
        self._asked: dict[Any, NDArray[np.int64]] = {}

    def needed(
        self, region: Region, box: OrientedBox | None = None, axes: tuple[int, int, int] = (0, 1, 2)
    ) -> NDArray[np.int64]:
        """Return the chunks (N, axes) of a region of stored axes that a box in ``axes`` touches."""
        # A read is counted before it is done, and announced before that, in another thread: three
        # times the same question, of which the answer takes a fifth of a millisecond.
        question = region, box, axes
        known = self._asked.get(question)
        if known is not None:
            return known
        chunks = self._cuts.needed(region, box, axes)
        chunks.setflags(write=False)  # whoever asks again gets the same
        if len(self._asked) >= _REMEMBERED:
            self._asked.clear()
        self._asked[question] = chunks
        return chunks

    def read(
        self,
        region: Region,
        box: OrientedBox | None = None,
        axes: tuple[int, int, int] = (0, 1, 2),
    ) -> NDArray[Any]:
        """Return a region, C order; where no tap lies it holds anything."""
        out = np.empty(region.shape, self.dtype)
        if os.environ.get(POISON_VARIABLE):
            out.fill(np.nan if self.dtype.kind in "fc" else np.iinfo(self.dtype).max)
        chunks = self.needed(region, box, axes)
        if out.size == 0 or len(chunks) == 0:
            return out
        missing: dict[Index, tuple[tuple[slice, ...], tuple[slice, ...]]] = {}
        for row, piece in zip(chunks.tolist(), self._cuts.pieces(chunks, region), strict=True):
            index = tuple(row)
            held = self._cache.get((self._token, index))
            if held is None:
                missing[index] = piece
            else:
                out[piece[0]] = held[piece[1]]
        if missing:
            self._read_missing(out, missing)
        return out

    def _read_missing(
        self,
        out: NDArray[Any],
        missing: Mapping[Index, tuple[tuple[slice, ...], tuple[slice, ...]]],
    ) -> None:
        # The chunk, and what it was made of.
        if 0 < usable_memory() < 2 * self.chunk_bytes:
            raise VolumeTooLarge(
                f"a chunk of {self._source.name}, {self.chunks} {self.dtype}, takes "
                f"{2 * self.chunk_bytes} bytes, and this process may use {usable_memory()}.",
                do="Store it in smaller chunks, or check the header.",
            )
        brought = self._source.fetch_chunks(list(missing))
        keeps, strided = self._cache.most_bytes >= self.chunk_bytes, brought.strided
        scratch: NDArray[Any] | None = None
        decoded = 0
        for index, (there, here) in missing.items():
            slot = out[there]
            whole = slot.shape == self.chunks and (strided or slot.flags.c_contiguous)
            if whole and not keeps:
                # Straight to where it is wanted: no copy of the chunk is made.
                if self._decode(brought, index, slot):
                    decoded += 1
                else:
                    slot[...] = self._fill
                continue
            if scratch is None:
                scratch = np.empty(self.chunks, self.dtype)
            if self._decode(brought, index, scratch):
                decoded += 1
                slot[...] = scratch[here]
                if self._cache.put((self._token, index), scratch):
                    scratch = None
            else:
                slot[...] = self._fill
                # Kept as one number: nobody has to look for it in the store again.
                self._cache.put((self._token, index), np.broadcast_to(self._fill, self.chunks))
        IO_COUNTERS.count(bytes_decoded=decoded * self.chunk_bytes)

    def _decode(self, brought: FetchedChunks, index: Index, out: NDArray[Any]) -> bool:
        try:
            return brought.decode(index, out)
        except (MemoryError, VoxpipeError):
            raise
        except Exception as error:  # each codec has its own
            start, stop = self._cuts.bounds(np.array([index]))
            spans = zip(start[0].tolist(), stop[0].tolist(), strict=True)
            where = ", ".join(f"{a}:{b}" for a, b in spans)
            raise CorruptVolume(
                f"[{where}] of {self._source.name} cannot be decoded, its bytes in "
                f"{brought.place(index) or 'the file'}: {type(error).__name__}: {error}.",
                do="Copy or write this file again.",
            ) from error

    def prefetch(
        self,
        region: Region,
        box: OrientedBox | None = None,
        axes: tuple[int, int, int] = (0, 1, 2),
    ) -> Closes | None:
        """Begin to bring in the stored bytes of a region that is going to be read.

        They wait until the ticket is closed, and so do decoded chunks of it that are kept. None
        where there is nothing to wait for. What goes wrong is raised by the read.
        """
        chunks = [tuple(row) for row in self.needed(region, box, axes).tolist()]
        if not self._cache.most_bytes:
            return self._source.prefetch(chunks, self.chunk_bytes)
        # What is here is not fetched, and stays until it was read, as a read that missed it would
        # wait for a request; where nothing is far away, what is needed sooner may take its place.
        keys = [(self._token, index) for index in chunks]
        told = self._cache.announce(keys, keep=self._source.is_far)
        try:
            absent = [key[1] for key in keys if key not in told.here]
            fetched = self._source.prefetch(absent, self.chunk_bytes)
        except BaseException:
            told.close()
            raise
        return closed_together([told, fetched])

    def fetch(
        self,
        region: Region,
        box: OrientedBox | None = None,
        axes: tuple[int, int, int] = (0, 1, 2),
    ) -> int | None:
        """Bring in the stored bytes of a region and drop them; return how many.

        None where the format cannot tell fetching from decoding.
        """
        chunks = self.needed(region, box, axes).tolist()
        return self._source.fetch([tuple(row) for row in chunks])


class Lookup(NamedTuple):
    """How to find out where chunks lie."""

    requests: Sequence[ReadRange]
    """What must be read first; empty if everything is known."""
    places: Callable[[Sequence[bytes | None]], list[ReadRange | None]]
    """Returns where each chunk lies, of the answers; None for one that is known not to be."""
    extents: Callable[[], Mapping[str, Span]] = dict
    """Returns from where to where objects that hold many chunks hold any, by object; after
    ``places``."""


class ChunkMap(Protocol):
    """Where the chunks of one array lie."""

    def lookup(self, chunks: Sequence[Index]) -> Lookup:
        """Return how to find out where each chunk lies; reads nothing."""

    def locate(self, chunks: Sequence[Index]) -> list[ReadRange | None]:
        """Return where each chunk lies; None for one that is known not to be stored."""
