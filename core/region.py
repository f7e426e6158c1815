"""Boxes of voxels: in one volume, in its chunks, and turned."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

_ONE_BEFORE = np.array([[0], [1]])  # of a start nothing, of a stop one voxel


@dataclass(frozen=True, init=False, repr=False)
class Region:
    """The voxels ``start <= index < stop``, axis by axis.

    Any number of axes; spatial regions have three, in array order (I, J, K). A
    region may lie partly or wholly outside the volume it speaks of. Where it has a ``box``, a read
    of it needs the voxels in that; those in chunks beside it hold anything. Regions of the same
    voxels are equal, with a box and without.

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

    if TYPE_CHECKING:  # no fields: they follow from these, or count for reads alone
        box: OrientedBox | None
        """Where in it voxels are needed; None for everywhere."""
        shape: tuple[int, ...]
        """Length of each axis, never negative."""
        is_empty: bool
        """Whether no voxel is inside."""

    def __init__(
        self, start: Sequence[int], stop: Sequence[int], box: OrientedBox | None = None
    ) -> None:
        if len(start) != len(stop):
            raise ValueError(f"start and stop need as many axes, got {start} and {stop}")
        # Plain ints: a region travels as JSON and as a slice.
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
        """Return the voxels in both; empty where they do not meet."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        return Region(start, tuple(max(a, b) for a, b in zip(start, stop, strict=True)))

    def contains(self, other: Region) -> bool:
        """Whether every voxel of ``other`` is in this region; an empty one always is."""
        return other.is_empty or self.intersect(other) == other

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield ``(start, stop)`` of each axis."""
        return iter(zip(self.start, self.stop, strict=True))

    def __repr__(self) -> str:
        return f"Region({', '.join(f'{a}:{b}' for a, b in self)})"


@dataclass(frozen=True, eq=False)
class OrientedBox:
    """Where the voxels of an output grid come from, as a box with the plan's axes.

    A turned patch touches about half of the chunks that its axis-aligned bounds touch.
    What touches nothing of the box is not read.

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
    """How far from a source coordinate its taps lie, per source axis, in voxels."""
    clamp: Region | None = None
    """Boxes that reach its faces also hold the taps of coordinates beyond them; None for none."""
    axes: tuple[int, int, int] = (0, 1, 2)  # which axes of the array the three of the source are
    beyond: float = math.inf
    """How far beyond the faces of ``clamp`` such coordinates lie at most, in voxels."""

    def touches(self, start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of N half-open boxes may hold a tap; one that is left out holds none.

        ``start`` and ``stop``, (N, axes), are the first voxel of each and one past the last, in
        indices of the array.

        Notes
        -----
        The separating-axis test (Gottschalk et al., 1996) with the face normals of the
        oriented box; those of the boxes are their bounding region, which the caller has
        intersected already. Leaving out the edge normals keeps a few boxes too many.
        """
        if start.shape[1] > 3 or self.axes != (0, 1, 2):
            start, stop = start[:, self.axes], stop[:, self.axes]
        turn = self.matrix[:, :3]
        half_output = (np.array(self.shape, dtype=np.float64) - 1) / 2
        centre = turn @ half_output + self.matrix[:, 3]
        back = np.linalg.inv(turn)
        if self.clamp is not None:
            # What lies before a face is read at the face: boxes there reach out to all of it.
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
    """An array cut into equal chunks, the last of which may hang over the edge.

    With ``block`` into parts of chunks, which begin anew in every chunk, whatever is left over.
    Places are computed, as a header may claim any number of chunks.

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
        """Of each axis length, chunk, part of a chunk, and how many of these are in one."""
        self._shape, self._chunk, self._block, self._per_chunk = self.columns
        axes = zip(shape, chunk, block, per_chunk, strict=True)
        self.counts = tuple(n // c * per - (-(n % c) // b) for n, c, b, per in axes)
        """Number of parts along each axis."""

    def touched_parts(self, region: Region) -> NDArray[np.int64]:
        """Return the index of each part (N, axes) that a region touches, and its box, in C order.

        Worked out once for a region: who looks ahead, who counts and who reads ask the same.
        """
        memo = vars(region).get("_touched")
        if memo is not None and memo[0] is self:
            indices: NDArray[np.int64] = memo[1]
            return indices
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
        start, stop = self.bounds(parts)
        if region.box is not None and len(parts) > 1:
            near = region.box.touches(np.maximum(start, ends[0]), np.minimum(stop, ends[1]))
            parts, start, stop = parts[near], start[near], stop[near]
        parts.setflags(write=False)  # whoever asks again gets the same
        vars(region)["_touched"] = self, parts, start, stop
        return parts

    def _bounds_in(
        self, parts: NDArray[np.int64], region: Region | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the bounds of parts, which may be those that a region touches."""
        memo = None if region is None else vars(region).get("_touched")
        return self.bounds(parts) if memo is None or memo[1] is not parts else memo[2:]

    def voxels(self, parts: NDArray[np.int64], region: Region | None = None) -> int:
        """Return how many voxels of the array parts (N, axes) hold, those of a region perhaps."""
        start, stop = self._bounds_in(parts, region)
        return int(np.add.reduce(np.multiply.reduce(stop - start, axis=1)))

    def bounds(self, parts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where parts (N, axes) begin, and one past their last voxels inside the array."""
        if self.is_whole:
            start = parts * self._chunk
            return start, np.minimum(start + self._chunk, self._shape)
        # One ends where the next begins, sooner than its length where it is cut short.
        chunk, part = np.divmod(np.stack([parts, parts + 1]), self._per_chunk)
        start, following = chunk * self._chunk + part * self._block
        return start, np.minimum(following, self._shape)

    def parts_in(self, parts: NDArray[np.int64], region: Region) -> NDArray[np.int64]:
        """Return which voxels of some parts lie in a region: (N, axes, 3).

        Per axis, the first of them in indices of the region, in indices of the part, and how many.
        """
        start, stop = self._bounds_in(parts, region)
        first = np.maximum(start, region.start)
        result = np.empty((*first.shape, 3), np.int64)
        result[..., 0] = first - region.start
        result[..., 1] = first - start
        result[..., 2] = np.minimum(stop, region.stop) - first
        return result
