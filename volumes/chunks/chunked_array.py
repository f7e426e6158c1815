"""An array stored in chunks: which ones a region needs, and how they are put together.

One reader for every chunked format. The format brings chunks and decodes one at a time into
memory that is there (:class:`ChunkSource`); culling, the cache, the counts and putting the
pieces together are here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, OrientedBox, Region
from ...core.errors import CorruptVolume, VolumeTooLarge, VoxpipeError
from ...core.memory import usable_memory
from ...storage.ranges import ReadRange, Span
from ...storage.read_ahead import Closes, Tickets
from .chunk_cache import ChunkCache

N = TypeVar("N", int, NDArray[np.int64])


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


class _Axis(NamedTuple):
    """The cuts along one axis: computed, as a header may claim any number of them."""

    length: int
    chunk: int
    block: int

    @property
    def per_chunk(self) -> int:
        return -(-self.chunk // self.block)

    @property
    def parts(self) -> int:
        whole, rest = divmod(self.length, self.chunk)
        return whole * self.per_chunk - (-rest // self.block)

    def at(self, voxel: int) -> int:
        """Return which part holds a voxel."""
        return voxel // self.chunk * self.per_chunk + voxel % self.chunk // self.block

    def start(self, part: N) -> N:
        if self.chunk == self.block:
            return part * self.chunk
        return part // self.per_chunk * self.chunk + part % self.per_chunk * self.block


class ChunkLayout:
    """The cuts of one array along each stored axis.

    Examples
    --------
    >>> cuts = ChunkLayout((10,), (6,), (4,))
    >>> cuts.counts
    (3,)
    >>> [each.tolist() for each in cuts.bounds(np.array([[0], [1], [2]]))]
    [[[0], [4], [6]], [[4], [6], [10]]]
    >>> cuts.touched(Region((5,), (8,))).tolist()
    [[1], [2]]
    """

    def __init__(
        self, shape: Sequence[int], chunk: Sequence[int], block: Sequence[int] | None = None
    ) -> None:
        blocks = chunk if block is None else block
        self._axes = tuple(map(_Axis, shape, chunk, blocks))
        self.counts = tuple(axis.parts for axis in self._axes)
        """Number of parts along each axis."""

    def touched(self, region: Region) -> NDArray[np.int64]:
        """Return the index of each part (N, axes) that a region touches, in C order."""
        if region.is_empty:
            return np.empty((0, len(self._axes)), np.int64)
        ranges = [
            np.arange(axis.at(first), axis.at(last - 1) + 1)
            for axis, (first, last) in zip(self._axes, region, strict=True)
        ]
        return np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(ranges))

    def needed(
        self, region: Region, box: OrientedBox | None = None, axes: tuple[int, int, int] = (0, 1, 2)
    ) -> NDArray[np.int64]:
        """Return the index of each part (N, axes) of a region that a box in three axes touches."""
        parts = self.touched(region)
        if box is None or len(parts) < 2:
            return parts
        start, stop = self.bounds(parts)
        start, stop = np.maximum(start, region.start), np.minimum(stop, region.stop)
        return parts[box.touches(start[:, axes], stop[:, axes])]

    def voxels(self, parts: NDArray[np.int64]) -> int:
        """Return how many voxels of the array parts (N, axes) hold."""
        start, stop = self.bounds(parts)
        return int((stop - start).prod(axis=1).sum())

    def bounds(self, chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where parts (N, axes) begin, and one past their last voxels inside the array."""
        start = np.empty_like(chunks)
        stop = np.empty_like(chunks)
        for n, axis in enumerate(self._axes):
            start[:, n] = axis.start(chunks[:, n])
            # Where the next one begins, which is sooner than its length where one is cut short.
            stop[:, n] = np.minimum(axis.start(chunks[:, n] + 1), axis.length)
        return start, stop

    def pieces(self, chunks: NDArray[np.int64], region: Region) -> ChunkSlices:
        """Return what tells, of each of some parts (N, axes), what it shares with a region."""
        return ChunkSlices(self._axes, chunks, region)


class ChunkSlices:
    """What chunks and a region have in common, as a part of either.

    A patch touches a hundred chunks, but only five of each axis: slices are made of these.

    Examples
    --------
    >>> region = Region((5,), (8,))
    >>> cuts = ChunkLayout((10,), (4,))
    >>> cuts.pieces(cuts.touched(region), region)((1,))
    ((slice(0, 3, None),), (slice(1, 4, None),))
    """

    def __init__(self, axes: Sequence[_Axis], chunks: NDArray[np.int64], region: Region) -> None:
        self._there: list[dict[int, slice]] = []
        self._here: list[dict[int, slice]] = []
        for n, (axis, (first, last)) in enumerate(zip(axes, region, strict=True)):
            there, here = {}, {}
            for i in np.unique(chunks[:, n]).tolist():
                begin, end = axis.start(i), min(axis.start(i + 1), axis.length)
                start, stop = max(begin, first), min(end, last)
                there[i] = slice(start - first, stop - first)
                here[i] = slice(start - begin, stop - begin)
            self._there.append(there)
            self._here.append(here)

    def __call__(self, index: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Return which part of the region a chunk fills, and which part of the chunk that is."""
        return (
            tuple(map(dict.__getitem__, self._there, index)),
            tuple(map(dict.__getitem__, self._here, index)),
        )


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

    def fetch_chunks(self, chunks: Sequence[Index]) -> FetchedChunks:
        """Fetch the stored bytes of chunks, as few requests as possible."""

    def prefetch(self, chunks: Sequence[Index], size: int) -> Closes | None:
        """Begin to fetch the stored bytes of chunks of ``size`` bytes each.

        None where they are not far away, whether there are any or not.
        """

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
        cuts: ChunkLayout | None = None,
    ) -> None:
        self.shape, self.chunks, self.dtype = shape, chunks, dtype
        self.ndim = len(shape)
        self.chunk_bytes = math.prod(chunks) * dtype.itemsize
        self._fill = np.asarray(fill_value).astype(dtype)[()]
        self._cuts = ChunkLayout(shape, chunks) if cuts is None else cuts
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

    def voxels(self, chunks: NDArray[np.int64]) -> int:
        """Return how many voxels of the array chunks (N, axes) hold."""
        return self._cuts.voxels(chunks)

    def keys(self, chunks: NDArray[np.int64]) -> list[tuple[str, Index]]:
        """Return under which keys chunks (N, axes) are kept."""
        return [(self._token, tuple(row)) for row in chunks.tolist()]

    def read(
        self,
        region: Region,
        box: OrientedBox | None = None,
        axes: tuple[int, int, int] = (0, 1, 2),
    ) -> NDArray[Any]:
        """Return a region, C order; where no tap lies it holds anything."""
        out = _room(region.shape, self.dtype)
        chunks = self.needed(region, box, axes)
        if out.size == 0 or len(chunks) == 0:
            return out
        pieces = self._cuts.pieces(chunks, region)
        missing: list[Index] = []
        for key in self.keys(chunks):
            held = self._cache.get(key)
            if held is None:
                missing.append(key[1])
            else:
                there, here = pieces(key[1])
                out[there] = held[here]
        if missing:
            self._read_missing(out, missing, pieces)
        return out

    def _read_missing(self, out: NDArray[Any], missing: list[Index], pieces: ChunkSlices) -> None:
        # The chunk, and what it was made of.
        if 0 < usable_memory() < 2 * self.chunk_bytes:
            raise VolumeTooLarge(
                f"a chunk of {self._source.name}, {self.chunks} {self.dtype}, takes "
                f"{2 * self.chunk_bytes} bytes, and this process may use {usable_memory()}.",
                do="Store it in smaller chunks, or check the header.",
            )
        brought = self._source.fetch_chunks(missing)
        keeps = self._cache.most_bytes >= self.chunk_bytes
        scratch: NDArray[Any] | None = None
        decoded = 0
        for index in missing:
            there, here = pieces(index)
            if not keeps and (slot := self._slot(out[there], brought.strided)) is not None:
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
                out[there] = scratch[here]
                if self._cache.put((self._token, index), scratch):
                    scratch = None
            else:
                out[there] = self._fill
                # Kept as one number: nobody has to look for it in the store again.
                self._cache.put((self._token, index), np.broadcast_to(self._fill, self.chunks))
        IO_COUNTERS.count(bytes_decoded=decoded * self.chunk_bytes)

    def _slot(self, part: NDArray[Any], strided: bool) -> NDArray[Any] | None:
        """Return the part of a region as room for a whole chunk; None if it is none."""
        whole = part.shape == self.chunks and (strided or part.flags.c_contiguous)
        return part if whole else None

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
        keys = self.keys(self.needed(region, box, axes))
        if not self._cache.most_bytes:
            return self._prefetch_from_source(keys)
        told = self._cache.announce(keys)
        try:
            # What is here is not fetched, and stays until it was read: a read that missed it
            # would wait for a request.
            held = told.keep()
            fetched = self._prefetch_from_source([key for key in keys if key not in held])
        except BaseException:
            told.close()
            raise
        if fetched is None:
            told.let_go()  # nothing is far away: what is needed sooner may take its place
            return told
        return Tickets([told, fetched])

    def _prefetch_from_source(self, keys: Sequence[tuple[str, Index]]) -> Closes | None:
        return self._source.prefetch([index for _, index in keys], self.chunk_bytes)

    def fetch(
        self,
        region: Region,
        box: OrientedBox | None = None,
        axes: tuple[int, int, int] = (0, 1, 2),
    ) -> int | None:
        """Bring in the stored bytes of a region and drop them; return how many.

        None where the format cannot tell fetching from decoding.
        """
        return self._source.fetch([key[1] for key in self.keys(self.needed(region, box, axes))])


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return memory for a region; poisoned, on request, where chunks are left out."""
    room = np.empty(shape, dtype)
    if os.environ.get(POISON_VARIABLE):
        room.fill(np.nan if dtype.kind in "fc" else np.iinfo(dtype).max)
    return room


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
