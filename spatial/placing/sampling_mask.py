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

from ...core.errors import PatchSizeError
from ...core.lru_cache import cached_property
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


_MEANT = (
    " If they are labels all the same, or all of an image that is not 0 is meant: name them in "
    "open_volume(labels=), under a key of their own, or write vp.Volume(..., kind='label')."
)
MOST_VALUES = 64
"""How many values a mask may have that nobody called a label: a CT has hundreds in any slab, and
what people segment and forget to name as a label has some dozens of organs at most."""
# A label that was stored as bytes with a slope of 1/255 comes back as 1 to within rounding.
_WHOLE = 1e-4


def refuse_shares(volume: Any, values: NDArray[Any]) -> None:
    """Refuse what is no mask and no label: there is a way to draw by such values."""
    if values.dtype.kind != "f":
        return
    off = np.abs(values - np.rint(values)) > _WHOLE * np.maximum(1, np.abs(values))
    if off.any():
        first = float(values[tuple(np.argwhere(off)[0])])
        raise PatchSizeError(
            f"{volume.name} is given as mask=, of which every voxel that is not 0 counts alike, "
            f"and holds values that are no whole numbers, the first of them {first:g}",
            do="Give it as weights= if a voxel shall be drawn as often as its value says, or a "
            "mask of its values above a threshold.",
        )


def refuse_image(volume: Any, values: NDArray[Any], seen: set[int]) -> None:
    """Refuse an image, of which any voxel that is not 0 would count as inside.

    What nobody called a label is told by how many values it has, a label by how many below 0:
    there may be thousands of instances, and one or two numbers for what is to be ignored.
    ``seen`` has those of the slabs before, and gets those of this one.
    """
    is_label = volume.kind == "label"
    if is_label and values.dtype.kind == "u":
        return
    telling = _first_of_runs(values)
    telling = telling[telling < 0] if is_label else telling[telling != 0]
    if telling.dtype.kind == "f":
        telling = np.rint(telling[np.isfinite(telling)]).astype(np.int64)
    if seen:
        telling = telling[~np.isin(telling, list(seen))]
    seen.update(np.unique(telling).tolist())
    if len(seen) <= MOST_VALUES:
        return
    which = "below 0" if is_label else "other than 0"
    meant = "" if is_label else _MEANT
    raise PatchSizeError(
        f"{volume.name} is given as mask=, of which every voxel that is not 0 counts as inside, "
        f"and looks like an image: more than {MOST_VALUES} different values {which}, "
        f"{min(seen)} to {max(seen)} among them",
        do="Give a label, or a mask of its values above a threshold; or give it as weights= if "
        f"a voxel shall be drawn as often as its value says.{meant}",
    )


def _first_of_runs(values: NDArray[Any]) -> NDArray[Any]:
    """Return the first of each run of one value along the rows of memory, flat.

    They hold every value that there is, and masks have few of them.
    """
    axis = min((1, 2, 3), key=lambda axis: (values.shape[axis] == 1, abs(values.strides[axis])))
    rows = np.moveaxis(values, axis, -1)
    others = rows[..., 1:]
    return np.concatenate([rows[..., 0].ravel(), others[others != rows[..., :-1]]])
