"""Where an array is cut into chunks: at equal steps, or at those of blocks within chunks."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core import Region


class Cuts:
    """The cuts of one array along each stored axis.

    Parameters
    ----------
    edges
        Per axis, growing: the first voxel of every chunk, and the length of the array.

    Examples
    --------
    >>> cuts = Cuts.nested((10,), (6,), (4,))
    >>> cuts.edges[0].tolist()
    [0, 4, 6, 10]
    >>> cuts.touched(Region((5,), (8,))).tolist()
    [[1], [2]]
    """

    def __init__(self, edges: Sequence[NDArray[np.int64]]) -> None:
        self.edges = tuple(edges)
        self._lists: list[list[int]] = [each.tolist() for each in self.edges]

    @classmethod
    def equal(cls, shape: Sequence[int], chunk: Sequence[int]) -> Cuts:
        """Return the cuts into equal chunks; the last may hang over the edge."""
        return cls.nested(shape, chunk, chunk)

    @classmethod
    def nested(cls, shape: Sequence[int], chunk: Sequence[int], block: Sequence[int]) -> Cuts:
        """Return the cuts into blocks that begin anew in every chunk, whatever is left over."""
        edges = []
        for length, outer, inner in zip(shape, chunk, block, strict=True):
            starts = np.arange(0, length, outer)[:, None] + np.arange(0, outer, inner)
            edges.append(np.append(starts[starts < length], length).astype(np.int64))
        return cls(edges)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return tuple(len(edges) - 1 for edges in self.edges)

    def touched(self, region: Region) -> NDArray[np.int64]:
        """Return the index of each chunk (N, axes) that a region touches, in C order."""
        # NumPy's search lets other threads have the interpreter, and would wait to get it back.
        ranges = [
            # From the last chunk that begins before the region to the last that begins in it.
            np.arange(bisect_right(edges, a) - 1, bisect_left(edges, b))
            for edges, (a, b) in zip(self._lists, region, strict=True)
        ]
        if math.prod(map(len, ranges)) == 0 or region.is_empty:
            return np.empty((0, len(ranges)), np.int64)
        return np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(ranges))

    def bounds(self, chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where chunks (N, axes) begin, and one past their last voxels inside the array."""
        start = np.empty_like(chunks)
        stop = np.empty_like(chunks)
        for axis, edges in enumerate(self.edges):
            start[:, axis] = edges[chunks[:, axis]]
            stop[:, axis] = edges[chunks[:, axis] + 1]
        return start, stop

    def pieces(self, chunks: NDArray[np.int64], region: Region) -> Pieces:
        """Return what tells, of each of some chunks (N, axes), what it shares with a region."""
        return Pieces(self.edges, chunks, region)


class Pieces:
    """What chunks and a region have in common, as a part of either.

    A patch touches a hundred chunks, but only five of each axis: slices are made of these.

    Examples
    --------
    >>> region = Region((5,), (8,))
    >>> cuts = Cuts.equal((10,), (4,))
    >>> cuts.pieces(cuts.touched(region), region)((1,))
    ((slice(0, 3, None),), (slice(1, 4, None),))
    """

    def __init__(
        self, edges: Sequence[NDArray[np.int64]], chunks: NDArray[np.int64], region: Region
    ) -> None:
        self._there: list[dict[int, slice]] = []
        self._here: list[dict[int, slice]] = []
        for axis, (first, last) in enumerate(region):
            there, here = {}, {}
            for i in np.unique(chunks[:, axis]).tolist():
                begin, end = edges[axis][i : i + 2].tolist()
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
