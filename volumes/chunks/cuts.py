"""Where an array is cut into chunks: at equal steps, or at those of blocks within chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...core import OrientedBox, Region

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


class Cuts:
    """The cuts of one array along each stored axis.

    Parameters
    ----------
    shape
        Of the array.
    chunk
        Of a chunk; the last may hang over the edge.
    block
        Of the parts of a chunk, which begin anew in every chunk, whatever is left over.

    Examples
    --------
    >>> cuts = Cuts((10,), (6,), (4,))
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

    def pieces(self, chunks: NDArray[np.int64], region: Region) -> Pieces:
        """Return what tells, of each of some parts (N, axes), what it shares with a region."""
        return Pieces(self._axes, chunks, region)


class Pieces:
    """What chunks and a region have in common, as a part of either.

    A patch touches a hundred chunks, but only five of each axis: slices are made of these.

    Examples
    --------
    >>> region = Region((5,), (8,))
    >>> cuts = Cuts((10,), (4,))
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
