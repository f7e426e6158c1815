"""Where patches may lie: the voxels of every class, and what part of a patch a class takes up.

Shares of patches come from counts per cell of a few voxels and their integral image: eight numbers
for a box of any size, in which a cell that a face cuts counts by its part inside, as if its voxels
were spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.remembered import cached_property
from .weight_table import Triple, WeightTable

Counts = NDArray[np.uint32]

# Small against a patch.
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
    """The voxels of each class of a mask, of which each is as likely to be drawn as another."""

    labels: tuple[Any, ...]
    """The classes: labels, tuples of labels, or ``"other"``; of a mask without classes one entry,
    None."""
    tables: tuple[WeightTable, ...]
    """The voxels of each."""
    shares: CellCounts | None = None
    """What boxes hold of each, where somebody asked for shares."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(table.nbytes for table in self.tables) + (self.shares or _NOTHING).nbytes

    @property
    def is_exact(self) -> bool:
        """Whether every voxel of every class can be drawn."""
        return all(table.is_exact for table in self.tables)

    def total(self, index: int) -> int:
        """Return the number of voxels of a class."""
        return self.tables[index].voxels


@dataclass(frozen=True, eq=False)
class CellCounts:
    """Voxels of each class in every cell of a grid.

    Examples
    --------
    >>> inside = np.zeros((1, 4, 4, 4), bool)
    >>> inside[0, :2] = True
    >>> cells = CellCounts((4, 4, 4), (2, 2, 2), counted(inside, (2, 2, 2)))
    >>> cells.share(0, np.array([[0, 0, 0], [1, 0, 0]]), (2, 4, 4)).tolist()
    [1.0, 0.5]
    """

    shape: Triple
    """Voxels of the grid."""
    cell: Triple
    """Voxels of a cell; the last ones of an axis may be cut."""
    counts: Counts
    """(classes, cells along I, J, K)."""

    @property
    def nbytes(self) -> int:
        """Memory that they take, their sums included."""
        return self.counts.nbytes * 3  # counters of 4 bytes, sums of 8

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


_NOTHING = CellCounts((0, 0, 0), (1, 1, 1), np.zeros((0, 0, 0, 0), np.uint32))


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
