"""Where a box of an array in C order lies in a file: its rows, or a few blocks that hold them.

The rows of a box lie on a lattice, so they are joined axis by axis and not row by row: a patch of
96 cubed has 9216 rows, and is 96 blocks, each with the strides inside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .coalesce import Span

# Steps of the golden ratio fall into no lattice.
_GOLDEN = (1 + 5**0.5) / 2


@dataclass(frozen=True)
class Block:
    """Bytes that are read at once."""

    start: int
    """First byte, counted from the beginning of the array."""
    size: int
    """How many, those between rows included."""
    target: tuple[Any, ...]
    """Index of the rows in ``Blocks.shape``."""
    shape: tuple[int, ...]
    """Of the rows: the last axis is the bytes of a row."""
    strides: tuple[int, ...]
    """Between rows, in bytes of the block."""

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing between its rows."""
        return math.prod(self.shape) == self.size


class Blocks:
    """How a box is read.

    Parameters
    ----------
    lengths
        Of the array, slowest axis first.
    box
        First and last index along each axis, half-open.
    itemsize
        Bytes of one number.
    gap
        Bytes between two rows that are worth reading for nothing.
    most
        Longest block with something between its rows, in bytes.

    Examples
    --------
    >>> [(b.start, b.size) for b in Blocks([4, 10], [(0, 4), (2, 4)], 1, gap=8, most=100)]
    [(2, 32)]
    >>> [(b.start, b.size) for b in Blocks([4, 10], [(0, 4), (2, 4)], 1, gap=8, most=15)]
    [(2, 12), (22, 12)]
    >>> [(b.start, b.size) for b in Blocks([4, 10], [(1, 3), (2, 4)], 1, gap=7, most=100)]
    [(12, 2), (22, 2)]
    """

    def __init__(
        self, lengths: Sequence[int], box: Sequence[Span], itemsize: int, *, gap: int, most: int
    ) -> None:
        strides = [math.prod(lengths[axis + 1 :]) * itemsize for axis in range(len(lengths))]
        row, run = _row_of(lengths, box, itemsize)
        self._start = sum(a * s for (a, _), s in zip(box[: row + 1], strides, strict=False))
        self._counts = [b - a for a, b in box[:row]]
        self._strides = strides[:row]
        self.shape = (*self._counts, run)
        """Of all rows, in order; bytes."""
        self._axis, self._each, self._span = self._joined(run, gap, most)

    def _joined(self, run: int, gap: int, most: int) -> tuple[int, int, int]:
        """Return the slowest axis along which rows are joined, how many, and the bytes then."""
        axis, span = len(self._counts), run
        while axis > 0:
            count, stride = self._counts[axis - 1], self._strides[axis - 1]
            if count > 1 and (stride - span > gap or stride + span > most):
                break
            axis -= 1
            each = min(count, 1 + max(0, most - span) // stride)
            if each < count:
                return axis, each, span
            span += (count - 1) * stride
        return axis, 1, span

    def places(self, count: int) -> list[int]:
        """Return bytes of rows that lie all over the box, counted as ``Block.start`` is.

        Examples
        --------
        >>> Blocks([4, 10], [(0, 4), (2, 4)], 1, gap=8, most=100).places(2)
        [13, 33]
        """
        found = []
        for n in range(count):
            along, at = (n + 0.5) / count, self._start
            for length, stride in zip(self.shape, (*self._strides, 1), strict=True):
                at += int(along % 1 * length) * stride
                # Another place along the next axis: no two samples in one plane of it.
                along = along * _GOLDEN + 0.5
            found.append(at)
        return found

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks in the order of the file."""
        axis, counts, strides = self._axis, self._counts, self._strides
        inner = tuple(strides[axis:]), tuple(self.shape[axis:])
        whole = self._each == 1
        # The axis along which blocks are cut belongs to the outer ones, in steps.
        steps = [range(n) for n in counts[:axis]]
        if not whole:
            steps.append(range(0, counts[axis], self._each))
        for place in itertools.product(*steps):
            start = self._start + sum(n * s for n, s in zip(place, strides, strict=False))
            if whole:
                yield Block(start, self._span, place, inner[1], (*inner[0], 1))
                continue
            n = min(self._each, counts[axis] - place[-1])
            target = (*place[:-1], slice(place[-1], place[-1] + n))
            shape = (n, *self.shape[axis + 1 :])
            size = self._span + (n - 1) * strides[axis]
            yield Block(start, size, target, shape, (*inner[0], 1))


def rows_of_box(
    lengths: Sequence[int],
    box: Sequence[Span],
    itemsize: int,
    offset: int = 0,
    most: int | None = None,
) -> list[Span]:
    """Return the runs of bytes that hold a box of an array, in the order of the file.

    Parameters
    ----------
    lengths
        Of the array, slowest axis first.
    box
        First and last index along each axis, half-open.
    itemsize
        Bytes of one number.
    offset
        Where the array begins in the file, in bytes.
    most
        Rows are joined to runs of at most so many bytes, where nothing lies between them.

    Examples
    --------
    >>> rows_of_box([4, 5], [(1, 3), (2, 4)], 1), rows_of_box([4, 5], [(1, 3), (0, 5)], 2)
    ([(7, 9), (12, 14)], [(10, 30)])
    >>> rows_of_box([4, 5], [(1, 3), (0, 5)], 2, offset=100, most=19)
    [(110, 120), (120, 130)]
    """
    row, run = _row_of(lengths, box, itemsize, most)
    starts: NDArray[np.int64] = np.zeros(1, np.int64)
    for length, (first, last) in zip(lengths[:row], box[:row], strict=True):
        starts = (starts[:, None] * length + np.arange(first, last, dtype=np.int64)).ravel()
    stride = math.prod(lengths[row + 1 :]) * itemsize
    starts = (starts * lengths[row] + box[row][0]) * stride + offset
    return [(start, start + run) for start in starts.tolist()]


def _row_of(
    lengths: Sequence[int], box: Sequence[Span], itemsize: int, most: int | None = None
) -> tuple[int, int]:
    """Return along which axis the rows of a box go, and how many bytes a row has."""
    counts = [last - first for first, last in box]
    axis = len(lengths) - 1
    run = counts[axis] * itemsize
    # Axes that are read whole lengthen the row along the one before them.
    while axis > 0 and tuple(box[axis]) == (0, lengths[axis]):
        longer = run * counts[axis - 1]
        if most is not None and longer > most:
            break
        axis, run = axis - 1, longer
    return axis, run
