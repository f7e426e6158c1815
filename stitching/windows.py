"""Places of the windows that cover a volume, and the cells between their faces.

The faces of all windows cut each axis into intervals, and the volume into cells. A window covers a
whole cell or none of it. A cell is finished after its last window, in any order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core import Region
from ..core.lru_cache import cached_property
from ..spatial.placing.patch import positions

Triple = tuple[int, int, int]
Cell = Triple
"""Index of the interval on each axis."""


@dataclass(frozen=True)
class _Axis:
    """The windows along one axis of a grid of windows."""

    starts: tuple[int, ...]  # first voxel of each window; may be negative
    spans: tuple[tuple[int, int], ...]  # voxels that each window fills, (start, stop)

    @classmethod
    def of(cls, extent: int, size: int, overlap: int, cuts: bool) -> _Axis:
        """Return the windows of one axis; ``cuts`` assigns each voxel to one of them."""
        starts = tuple(start for (start,) in positions((extent,), (size,), (overlap,)))
        ends = [(max(start, 0), min(start + size, extent)) for start in starts]
        if cuts:
            # Neighbours share the overlap in halves; the later of two windows fills a voxel.
            firsts = [0, *(start + overlap - overlap // 2 for start in starts[1:])]
            ends = list(itertools.pairwise([*firsts, extent]))
        return cls(starts, tuple(ends))

    @cached_property
    def faces(self) -> tuple[int, ...]:
        """Return the starts of the intervals, and the end of the last."""
        return tuple(sorted({face for span in self.spans for face in span}))

    @cached_property
    def intervals(self) -> tuple[tuple[int, int], ...]:
        """Return the first interval of each window, and the one after its last."""
        at = {face: number for number, face in enumerate(self.faces)}
        return tuple((at[start], at[stop]) for start, stop in self.spans)

    @cached_property
    def touching(self) -> tuple[tuple[int, int], ...]:
        """Return the first window that touches each interval, and the one after the last."""
        # Spans are ordered, so those that touch an interval are consecutive.
        return tuple(
            (
                next(n for n, (_, stop) in enumerate(self.intervals) if stop > number),
                sum(first <= number for first, _ in self.intervals),
            )
            for number in range(len(self.faces) - 1)
        )


@dataclass(frozen=True)
class Windows:
    """Windows of one size that cover a volume, numbered in C order.

    Examples
    --------
    >>> windows = Windows((9, 4, 4), (4, 4, 4), (2, 0, 0))
    >>> len(windows), windows.start(3)
    (4, (5, 0, 0))
    >>> [windows.region(cell) for cell in windows.cells(3)]
    [Region(5:6, 0:4, 0:4), Region(6:8, 0:4, 0:4), Region(8:9, 0:4, 0:4)]
    """

    shape: Triple
    """Shape of the volume."""
    size: Triple
    """Voxels of a window along each axis."""
    overlap: Triple
    """Voxels that neighbours share, the last two of an axis more."""
    cuts: bool = False
    """Whether each voxel is filled by one window alone, the one with the nearest middle."""

    @cached_property
    def axes(self) -> tuple[_Axis, ...]:
        """Return the windows along each axis."""
        every = zip(self.shape, self.size, self.overlap, strict=True)
        return tuple(_Axis.of(*numbers, self.cuts) for numbers in every)

    @cached_property
    def counts(self) -> Triple:
        """Windows along each axis."""
        i, j, k = (len(axis.starts) for axis in self.axes)
        return (i, j, k)

    def __len__(self) -> int:
        return math.prod(self.counts)

    def place(self, number: int) -> Triple:
        """Return the index of a window along each axis."""
        _, j, k = self.counts
        return (number // (j * k), number // k % j, number % k)

    def number(self, start: Sequence[int]) -> int:
        """Return the number of the window with a start; ValueError without one."""
        i, j, k = (axis.starts.index(at) for axis, at in zip(self.axes, start, strict=True))
        return (i * self.counts[1] + j) * self.counts[2] + k

    def start(self, number: int) -> Triple:
        """Return the first voxel of a window; may be outside the volume."""
        i, j, k = (a.starts[n] for a, n in zip(self.axes, self.place(number), strict=True))
        return (i, j, k)

    def cells(self, number: int) -> Iterator[Cell]:
        """Yield the cells that a window fills."""
        pairs = zip(self.axes, self.place(number), strict=True)
        i, j, k = (range(*axis.intervals[n]) for axis, n in pairs)
        return itertools.product(i, j, k)

    def windows(self, cell: Cell) -> Iterator[int]:
        """Yield the numbers of the windows that fill a cell."""
        _, j, k = self.counts
        pairs = zip(self.axes, cell, strict=True)
        for a, b, c in itertools.product(*(range(*axis.touching[n]) for axis, n in pairs)):
            yield (a * j + b) * k + c

    def region(self, cell: Cell) -> Region:
        """Return the box of a cell in the volume."""
        pairs = list(zip(self.axes, cell, strict=True))
        return Region([a.faces[n] for a, n in pairs], [a.faces[n + 1] for a, n in pairs])

    def slices(self, cell: Cell, number: int) -> tuple[slice, slice, slice]:
        """Return the slices of a cell in one of its windows."""
        every = zip(self.axes, cell, self.place(number), strict=True)
        i, j, k = (
            slice(axis.faces[n] - axis.starts[at], axis.faces[n + 1] - axis.starts[at])
            for axis, n, at in every
        )
        return (i, j, k)

    def touch_counts(self) -> NDArray[np.int64]:
        """Return the number of windows that fill each cell."""
        i, j, k = (np.array([b - a for a, b in axis.touching]) for axis in self.axes)
        counts: NDArray[np.int64] = i[:, None, None] * j[:, None] * k
        return counts

    @property
    def band_bytes(self) -> int:
        """Most bytes of open sums of one channel, for windows in the order of a chain."""
        # One layer of windows stays open until its neighbours came; float32.
        shares = (self.touch_counts() > 1).any()
        return 4 * min(self.size[0], self.shape[0]) * math.prod(self.shape[1:]) if shares else 0

    @cached_property
    def slow_axis(self) -> int:
        """Return the axis of the outermost loop over windows, for the least open sums."""
        # The later one of equal axes, along which files are contiguous.
        return max(range(3), key=lambda axis: (self.shape[axis], axis))

    def sort(self, numbers: Iterable[int]) -> list[int]:
        """Return windows in the order with the least open sums: the slow axis outermost.

        Within a layer the first axis is fastest, as in files. So finished voxels are neighbours in
        the file, and are written to the same pages.
        """

        def key(number: int) -> tuple[int, ...]:
            place = self.place(number)
            return (place[self.slow_axis], *reversed(place))

        return sorted(numbers, key=key)


def overlap_in_voxels(share: Sequence[float], size: Sequence[int]) -> Triple:
    """Return the overlap in voxels, by MONAI's rule: the step is rounded down.

    Examples
    --------
    >>> overlap_in_voxels((0.5, 0.25, 0.75), (5, 10, 1))
    (3, 3, 0)
    """
    i, j, k = (n - max(1, int(n * (1 - part))) for n, part in zip(size, share, strict=True))
    return (i, j, k)
