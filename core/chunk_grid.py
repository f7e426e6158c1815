"""Which chunks of a stored array a region touches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .region import Region


@dataclass(frozen=True)
class ChunkGrid:
    """An array cut into equal chunks; the last ones may hang over the edge.

    Examples
    --------
    >>> grid = ChunkGrid((10, 10), (4, 4))
    >>> list(grid.touched(Region((3, 0), (5, 2))))
    [(0, 0), (1, 0)]
    >>> grid.region((2, 2))
    Region(8:10, 8:10)
    """

    shape: tuple[int, ...]
    """Shape of the whole array, in voxels."""
    chunk: tuple[int, ...]
    """Shape of one chunk, in voxels."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks on each axis."""
        return tuple(math.ceil(n / c) for n, c in zip(self.shape, self.chunk, strict=True))

    def touched(self, region: Region) -> Iterator[tuple[int, ...]]:
        """Yield the index of each chunk that shares a voxel with ``region``, in C order."""
        inside = region.intersect(Region.of_shape(self.shape))
        if inside.is_empty:
            return
        ranges = [
            range(a // c, (b - 1) // c + 1) for (a, b), c in zip(inside, self.chunk, strict=True)
        ]
        index = [r.start for r in ranges]
        while True:
            yield tuple(index)
            for axis in reversed(range(len(index))):
                index[axis] += 1
                if index[axis] < ranges[axis].stop:
                    break
                index[axis] = ranges[axis].start
            else:
                return

    def region(self, index: tuple[int, ...]) -> Region:
        """Return the voxels of one chunk, cut at the array's edge."""
        start = tuple(i * c for i, c in zip(index, self.chunk, strict=True))
        stop = tuple(min(a + c, n) for a, c, n in zip(start, self.chunk, self.shape, strict=True))
        return Region(start, stop)

    def cover(self, region: Region) -> Region:
        """Return the smallest union of whole chunks around ``region``, as one region."""
        inside = region.intersect(Region.of_shape(self.shape))
        start = tuple(a // c * c for (a, _), c in zip(inside, self.chunk, strict=True))
        stop = tuple(
            min(math.ceil(b / c) * c, n)
            for (_, b), c, n in zip(inside, self.chunk, self.shape, strict=True)
        )
        return Region(start, stop)
