"""Where patches may lie: how many voxels of each class a coarse grid of cells holds.

A cell is a few voxels wide, so a scan of 512 cubed takes 1 MB instead of 128, and is read once.
Sums over boxes come from the integral image: eight numbers, whatever the size of the box, in
which a cell that a face cuts counts by its part inside, as if its voxels were spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Region

Triple = tuple[int, int, int]
Counts = NDArray[np.uint32]

# Small against a patch, which must hold the cell that it was drawn for, and 512 times less data.
MOST_CELL = 8
# A patch is this many cells long at least, so that faces that cut cells matter little.
_CELLS_PER_PATCH = 4
# Each takes 64 sums: 4 MiB.
_BOXES_AT_ONCE = 4096


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

    def is_present(self, index: int, inside: Region) -> bool:
        """Return whether a cell that touches a region has voxels of a class."""
        return len(self._cells(index, inside)[0]) > 0

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
        voxels = float(np.prod(np.array(size, dtype=np.float64)))
        shares = np.empty(len(start))
        for first in range(0, len(start), _BOXES_AT_ONCE):
            part = slice(first, first + _BOXES_AT_ONCE)
            shares[part] = self._held(index, start[part], size) / voxels
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

    def _held(self, index: int, start: NDArray[Any], size: Sequence[int]) -> NDArray[np.float64]:
        """Return the voxels in boxes: between the corners of a cell their number is linear."""
        taps, weights = [], []
        for axis, (n, width, extent) in enumerate(zip(self.shape, self.cell, size, strict=True)):
            # Two taps before the box, which count against it, and two at its end.
            faces = np.clip(np.stack([start[:, axis], start[:, axis] + extent], axis=1), 0, n)
            before = np.minimum(faces // width, self.counts.shape[1 + axis] - 1)
            part = (faces - before * width) / np.minimum(width, n - before * width)
            taps.append(np.concatenate([before, before + 1], axis=1))
            signs = np.array([-1.0, 1.0])
            weights.append(np.concatenate([signs * (1 - part), signs * part], axis=1))
        i, j, k = taps
        sums = self._sums[index][i[:, :, None, None], j[:, None, :, None], k[:, None, None, :]]
        along_k = (sums * weights[2][:, None, None, :]).sum(axis=3)
        along_j = (along_k * weights[1][:, None, :]).sum(axis=2)
        held: NDArray[np.float64] = (along_j * weights[0]).sum(axis=1)
        return held


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
    counts: Any = flags.view(np.uint8)
    # Along the rows of memory first: what is left for the other axes is a fraction of it.
    for axis in sorted((1, 2, 3), key=lambda axis: flags.strides[axis]):
        first = np.arange(0, flags.shape[axis], cell[axis - 1])
        counts = np.add.reduceat(counts, first, axis=axis, dtype=np.uint32)
    found: Counts = counts
    return found
