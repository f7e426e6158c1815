"""Boxes of voxels: regions, chunks and rotated boxes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

_ONE_BEFORE = np.array([[0], [1]])  # turns a stop into the last voxel


@dataclass(frozen=True, init=False, repr=False)
class Region:
    """The voxels ``start <= index < stop``, axis by axis.

    Any number of axes; spatial regions have three, in array order (I, J, K). A region may be
    partly or wholly outside its volume. If it has a ``box``, a read needs only the chunks that
    the box touches; other voxels are undefined. The box does not take part in comparisons.

    Examples
    --------
    >>> a = Region((0, 0), (4, 6))
    >>> a.intersect(Region((2, 3), (9, 9)))
    Region(2:4, 3:6)
    >>> a.shape, a.size
    ((4, 6), 24)
    """

    start: tuple[int, ...]
    """First index on each axis."""
    stop: tuple[int, ...]
    """One past the last index on each axis."""

    if TYPE_CHECKING:  # not fields: derived, or only for reads
        box: OrientedBox | None
        """The part in which voxels are needed; None for everywhere."""
        shape: tuple[int, ...]
        """Length of each axis, never negative."""
        is_empty: bool
        """Whether no voxel is inside."""
        chunk_plan: Any  # from its last read by a chunked array; None before
        storage_region: Any  # the same along the stored axes, from its last read; None before
    chunk_plan = storage_region = None

    def __init__(
        self, start: Sequence[int], stop: Sequence[int], box: OrientedBox | None = None
    ) -> None:
        if len(start) != len(stop):
            raise ValueError(f"start and stop need as many axes, got {start} and {stop}")
        # Plain ints, for JSON and slices.
        first, last = tuple(map(int, start)), tuple(map(int, stop))
        shape = tuple(map(operator.sub, last, first))
        if min(shape, default=0) < 0:
            shape = tuple([max(0, length) for length in shape])
        self.__dict__.update(start=first, stop=last, box=box, shape=shape, is_empty=0 in shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return Region, (self.start, self.stop, self.box)

    @classmethod
    def of_shape(cls, shape: Sequence[int]) -> Region:
        """Return the region that covers a whole array of ``shape``."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def size(self) -> int:
        """Number of voxels."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The region as an index of an array; it must not start below zero."""
        return tuple(map(slice, self.start, self.stop))

    def shift(self, offset: Sequence[int]) -> Region:
        """Move by ``offset`` voxels."""
        return Region(
            tuple(a + o for a, o in zip(self.start, offset, strict=True)),
            tuple(b + o for b, o in zip(self.stop, offset, strict=True)),
        )

    def pad(self, halo: int | Sequence[int]) -> Region:
        """Grow by ``halo`` voxels on both sides of each axis."""
        halos = (halo,) * len(self.start) if isinstance(halo, int) else tuple(halo)
        return Region(
            [a - h for a, h in zip(self.start, halos, strict=True)],
            [b + h for b, h in zip(self.stop, halos, strict=True)],
        )

    def intersect(self, other: Region) -> Region:
        """Return the voxels in both; empty if there are none."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        return Region(start, tuple(max(a, b) for a, b in zip(start, stop, strict=True)))

    def contains(self, other: Region) -> bool:
        """Whether every voxel of ``other`` is in this region; True if ``other`` is empty."""
        return other.is_empty or self.intersect(other) == other

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield ``(start, stop)`` of each axis."""
        return iter(zip(self.start, self.stop, strict=True))

    def __repr__(self) -> str:
        return f"Region({', '.join(f'{a}:{b}' for a, b in self)})"


@dataclass(frozen=True, eq=False)
class OrientedBox:
    """The source of an output grid's voxels, as a box along the plan's axes.

    A rotated patch touches about half of the chunks that its axis-aligned bounds touch. Chunks
    that do not touch the box are not read.

    Examples
    --------
    >>> turned = np.array([[0.7, -0.7, 0, 8], [0.7, 0.7, 0, 0], [0, 0, 1, 0]])
    >>> box = OrientedBox(turned, (12, 12, 4), halo=(1.0, 1.0, 1.0))
    >>> box.touches(np.array([[0, 0, 0], [4, 4, 0]]), np.array([[2, 2, 4], [8, 8, 4]])).tolist()
    [False, True]
    """

    matrix: NDArray[np.float64]
    """3x4 float64, invertible: output index to source index, voxel centres."""
    shape: tuple[int, int, int]  # shape (I, J, K) of the output
    halo: tuple[float, float, float]
    """Largest distance of a tap from its source coordinate, per source axis, in voxels."""
    clamp: Region | None = None
    """Boxes at its faces also hold the taps of coordinates beyond the faces; None for none."""
    axes: tuple[int, int, int] = (0, 1, 2)  # the array's axes of the three source axes
    beyond: float = math.inf
    """Largest distance of such coordinates beyond the faces of ``clamp``, in voxels."""

    def touches(self, start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of N half-open boxes may hold a tap; the others hold none.

        ``start`` and ``stop``, (N, axes), are the first voxel of each and one past the last, in
        indices of the array.

        Notes
        -----
        The separating-axis test (Gottschalk et al., 1996) with the face normals of the oriented
        box. The caller has already intersected the boxes with its bounding region. Without the
        edge normals, a few boxes too many pass.
        """
        if start.shape[1] > 3 or self.axes != (0, 1, 2):
            start, stop = start[:, self.axes], stop[:, self.axes]
        turn = self.matrix[:, :3]
        half_output = (np.array(self.shape, dtype=np.float64) - 1) / 2
        centre = turn @ half_output + self.matrix[:, 3]
        back = np.linalg.inv(turn)
        if self.clamp is not None:
            # Coordinates beyond a face are read at the face: extend boxes at the faces.
            reach, faces = np.abs(turn) @ half_output + np.array(self.halo), self.clamp
            low = np.maximum(np.floor(centre - reach), np.array(faces.start) - self.beyond)
            high = np.minimum(np.ceil(centre + reach) + 1, np.array(faces.stop) + self.beyond)
            start = np.where(start <= self.clamp.start, np.minimum(start, low), start)
            stop = np.where(stop >= self.clamp.stop, np.maximum(stop, high), stop)
        middle = (start + stop - 1) / 2 - centre
        half = (stop - start - 1) / 2 + np.array(self.halo)
        reach = half_output + half @ np.abs(back).T
        # Rounding must not lose a chunk: a millionth of a voxel is far above it.
        inside: NDArray[np.bool_] = (np.abs(middle @ back.T) <= reach + 1e-6).all(axis=1)
        return inside


class ChunkGrid:
    """An array of equal chunks; the last one may be cut by the edge.

    ``block`` divides every chunk into parts of that size; the last part of a chunk may be
    shorter. Nothing is stored per chunk, because a header may claim any number of them.

    Examples
    --------
    >>> cuts = ChunkGrid((10,), (6,), (4,))
    >>> cuts.counts
    (3,)
    >>> [each.tolist() for each in cuts.bounds(np.array([[0], [1], [2]]))]
    [[[0], [4], [6]], [[4], [6], [10]]]
    >>> cuts.touched_parts(Region((5,), (8,))).tolist()
    [[1], [2]]
    >>> cuts.parts_in(np.array([[1], [2]]), Region((5,), (8,))).tolist()
    [[[0, 1, 1]], [[1, 0, 2]]]
    """

    def __init__(
        self, shape: Sequence[int], chunk: Sequence[int], block: Sequence[int] | None = None
    ) -> None:
        self.is_whole = block is None
        """Whether parts are whole chunks."""
        block = chunk if block is None else block
        per_chunk = [-(-c // b) for c, b in zip(chunk, block, strict=True)]
        self.columns: NDArray[np.int64] = np.array([shape, chunk, block, per_chunk], np.int64)
        """Per axis: length, chunk length, part length, and parts in a chunk."""
        self._shape, self._chunk, self._block, self._per_chunk = self.columns
        axes = zip(shape, chunk, block, per_chunk, strict=True)
        self.counts = tuple(n // c * per - (-(n % c) // b) for n, c, b, per in axes)
        """Number of parts along each axis."""

    def touched_parts(self, region: Region) -> NDArray[np.int64]:
        """Return the parts (N, axes) that a region and its box touch, in C order."""
        if region.is_empty:
            return np.empty((0, len(self.counts)), np.int64)
        ends = np.array([region.start, region.stop])
        chunk, voxel = np.divmod(ends - _ONE_BEFORE, self._chunk)
        if self.is_whole:
            first, last = chunk
        else:
            first, last = chunk * self._per_chunk + voxel // self._block
        parts: NDArray[np.int64] = np.indices((last - first + 1).tolist()).reshape(len(first), -1).T
        parts = parts + first
        if region.box is None or len(parts) <= 1:
            return parts
        start, stop = self.bounds(parts)
        near = region.box.touches(np.maximum(start, ends[0]), np.minimum(stop, ends[1]))
        return parts[near]

    def voxels(self, parts: NDArray[np.int64]) -> int:
        """Return the number of voxels in parts (N, axes)."""
        start, stop = self.bounds(parts)
        return int(np.add.reduce(np.multiply.reduce(stop - start, axis=1)))

    def bounds(self, parts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first voxels of parts (N, axes), and one past their last in the array."""
        if self.is_whole:
            start = parts * self._chunk
            return start, np.minimum(start + self._chunk, self._shape)
        # A part ends where the next begins, also where the chunk cuts it.
        chunk, part = np.divmod(np.stack([parts, parts + 1]), self._per_chunk)
        start, following = chunk * self._chunk + part * self._block
        return start, np.minimum(following, self._shape)

    def parts_in(self, parts: NDArray[np.int64], region: Region) -> NDArray[np.int64]:
        """Return the intersections of parts with a region, (N, axes, 3).

        Per axis: the first voxel as an index of the region and of the part, and the length.
        """
        start, stop = self.bounds(parts)
        first = np.maximum(start, region.start)
        result = np.empty((*first.shape, 3), np.int64)
        result[..., 0] = first - region.start
        result[..., 1] = first - start
        result[..., 2] = np.minimum(stop, region.stop) - first
        return result
