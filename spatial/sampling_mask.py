"""Where patches may lie: how many voxels of each class a coarse grid of cells holds.

A cell is a few voxels wide, so a scan of 512 cubed takes 1 MB instead of 128, and is read once.
Sums over boxes come from the integral image: eight numbers, whatever the size of the box, in
which a cell that a face cuts counts by its part inside, as if its voxels were spread evenly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Region

Triple = tuple[int, int, int]
Counts = NDArray[np.uint32]

# Small against a patch, which must hold the cell that it was drawn for, and 512 times less data.
MOST_CELL = 8
# A patch is this many cells long at least, so that faces that cut cells matter little.
_CELLS_PER_PATCH = 4


def cell_for(size: Sequence[int]) -> Triple:
    """Return the extent of cells that suit patches of a size.

    Examples
    --------
    >>> cell_for((96, 12, 1))
    (8, 3, 1)
    """
    i, j, k = (max(1, min(MOST_CELL, n // _CELLS_PER_PATCH)) for n in size)
    return i, j, k


@dataclass(frozen=True, eq=False)
class SamplingMask:
    """Voxels of each class in every cell of a grid.

    Examples
    --------
    >>> inside = np.zeros((1, 4, 4, 4), bool)
    >>> inside[0, :2] = True
    >>> mask = SamplingMask((4, 4, 4), (2, 2, 2), counted(inside, (2, 2, 2)))
    >>> mask.total(0), mask.share(0, np.array([[0, 0, 0], [1, 0, 0]]), (2, 4, 4)).tolist()
    (32, [1.0, 0.5])
    """

    shape: Triple
    """Voxels of the grid."""
    cell: Triple
    """Voxels of a cell; the last ones of an axis may be cut."""
    counts: Counts
    """(classes, cells along I, J, K)."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes, its sums included."""
        return self.counts.nbytes * 5  # counters of 4 bytes, sums of 8 twice

    def total(self, index: int) -> int:
        """Return the number of voxels of a class."""
        return int(self._sums[index, -1, -1, -1])

    def share(self, index: int, start: NDArray[Any], size: Sequence[int]) -> NDArray[np.float64]:
        """Return what part of boxes a class takes up, between 0 and 1.

        Parameters
        ----------
        index
            Which class.
        start
            (N, 3), first voxels of the boxes, which may hang over the grid; nothing is there.
        size
            Voxels of the boxes.
        """
        faces = (start, start + np.array(size))
        total = np.zeros(len(start))
        for corner in itertools.product((0, 1), repeat=3):
            point = np.stack([faces[end][:, axis] for axis, end in enumerate(corner)], axis=1)
            total += (-1) ** (3 - sum(corner)) * self._below(index, point)
        shares: NDArray[np.float64] = total / float(np.prod(np.array(size, dtype=np.float64)))
        return shares

    def pick(
        self, index: int, inside: Region, numbers: NDArray[np.float64]
    ) -> NDArray[np.int64] | None:
        """Return voxels in the cells of a class: each cell as likely as it holds voxels.

        Parameters
        ----------
        index
            Which class.
        inside
            Only cells that touch this region.
        numbers
            (N, 4) in [0, 1): for the cell, and for the place in it.

        Returns
        -------
        (N, 3) voxels, or None where no cell has any.
        """
        cells, upto = self._cells(index, inside)
        if not len(cells):
            return None
        chosen = np.searchsorted(upto, numbers[:, 0] * upto[-1], side="right")
        low = cells[np.minimum(chosen, len(cells) - 1)] * self.cell
        room = np.minimum(self.cell, np.array(self.shape) - low)
        voxels: NDArray[np.int64] = low + (numbers[:, 1:] * room).astype(np.int64)
        return voxels

    def middles(self, index: int, inside: Region) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the middle voxel of every cell that has voxels of a class, and how many."""
        cells, upto = self._cells(index, inside)
        low = cells * self.cell
        high = np.minimum(low + self.cell, self.shape)
        return (low + high - 1) // 2, np.diff(upto, prepend=0)

    def _cells(self, index: int, inside: Region) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the cells with voxels of a class, and these voxels up to each."""
        if inside == Region.of_shape(self.shape):
            return self._all_cells[index]
        return _occupied(self.counts[index], inside, self.cell)

    @cached_property
    def _all_cells(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        whole = Region.of_shape(self.shape)
        return [_occupied(counts, whole, self.cell) for counts in self.counts]

    @cached_property
    def _sums(self) -> NDArray[np.int64]:
        """Voxels before each corner of the cells."""
        sums = np.pad(self.counts.astype(np.int64), ((0, 0), (1, 0), (1, 0), (1, 0)))
        for axis in (1, 2, 3):
            np.cumsum(sums, axis=axis, out=sums)
        return sums

    def _below(self, index: int, point: NDArray[Any]) -> NDArray[np.float64]:
        """Return the voxels before points: linear within a cell, constant beyond the grid."""
        place = np.clip(point, 0, self.shape)
        before = np.minimum(place // self.cell, np.array(self.counts.shape[1:]) - 1)
        width = np.minimum(self.cell, np.array(self.shape) - before * self.cell)
        part = (place - before * self.cell) / width
        sums, found = self._sums[index], np.zeros(len(point))
        for corner in itertools.product((0, 1), repeat=3):
            weight = np.prod(np.where(corner, part, 1 - part), axis=1)
            found += weight * sums[tuple((before + corner).T)]
        return found


def _occupied(
    counts: Counts, inside: Region, cell: Triple
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    first = np.array(inside.start) // cell
    last = -(-np.array(inside.stop) // cell)
    part = counts[tuple(slice(a, b) for a, b in zip(first, last, strict=True))]
    where = np.nonzero(part)
    cells: NDArray[np.int64] = np.stack(where, axis=1) + first.astype(np.int64)
    return cells, np.cumsum(part[where], dtype=np.int64)


def counted(flags: NDArray[np.bool_], cell: Sequence[int]) -> Counts:
    """Return how many flags are set in every cell.

    Parameters
    ----------
    flags
        (classes, I, J, K).
    cell
        Extent of a cell; those at the ends may be cut.
    """
    counts: Any = flags
    for axis, width in enumerate(cell, 1):
        counts = np.add.reduceat(
            counts, np.arange(0, flags.shape[axis], width), axis=axis, dtype=np.uint32
        )
    found: Counts = counts
    return found
