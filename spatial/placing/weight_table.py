"""How likely each voxel is to be the middle of a patch: sums of weights per cell, and voxels.

What a cell weighs is exact, as a sum in float64. Inside a cell whose voxels weigh the same, each
is as likely as another. Of other cells the weights of the voxels are kept too, in 16 bits of which
12 are precision, those first whose voxels differ most; what is left out for want of room is told
by ``deviation``.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.remembered import Remembered
from .looked_up import cells_of
from .sampling_mask import Triple

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Cells = NDArray[np.int32]

CELL: Triple = (8, 8, 8)
"""Voxels of a cell: sums of a scan of 512 cubed take 2 MiB."""
MOST_DETAIL = 1024**2
"""Bytes of the voxels of cells, as they are kept: some 20 000 cells on the surface of a mask, 2000
of weights that differ everywhere. A hundred volumes stay in memory, and are read in 10 ms."""

# In which patches of one volume are drawn at a time: the volume, and the region of a visit.
_MOST_REGIONS = 2
# Its number and the weights up to it.
_CELL_BYTES = 4 + 8
# The smallest positive number of 16 bits: what weighs anything can be drawn.
_LEAST = np.float16(2.0**-24)


@dataclass(frozen=True, eq=False)
class Detail:
    """The weights of voxels in some cells, each cell compressed on its own."""

    cells: Integers
    """(N,) which cells, in C order, ascending."""
    ends: Integers
    """(N,) where each ends among the bytes."""
    packed: NDArray[np.uint8]
    """All of them, one after another."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.cells.nbytes + self.ends.nbytes + self.packed.nbytes

    def weights(self, cell: int) -> Floats | None:
        """Return what the voxels of a cell weigh, up to a factor, flat; None if it is not kept."""
        at = int(np.searchsorted(self.cells, cell))
        if at == len(self.cells) or self.cells[at] != cell:
            return None
        begin = int(self.ends[at - 1]) if at else 0
        return unpacked(self.packed[begin : int(self.ends[at])].tobytes())


@dataclass(frozen=True, eq=False)
class WeightTable:
    """What the voxels of a grid weigh, by cells.

    Examples
    --------
    >>> weights = np.zeros((16, 8, 8))
    >>> weights[12, 3, 4], weights[2, 2, 2] = 9, 1
    >>> from voxpipe.spatial.placing.weight_index import tabulated
    >>> table = tabulated((16, 8, 8), [(Region.of_shape((16, 8, 8)), weights)])
    >>> numbers = np.array([[0.05, 0.5], [0.5, 0.1], [0.95, 0.9]])
    >>> table.pick(Region.of_shape(table.shape), numbers).tolist()
    [[2, 2, 2], [12, 3, 4], [12, 3, 4]]
    """

    shape: Triple
    """Voxels of the grid."""
    sums: Floats
    """(cells along I, J, K), what each weighs."""
    detail: Detail
    """Of cells whose voxels differ."""
    deviation: float
    """Between 0 and 1: the part of all draws, at most, that fall on other voxels than the weights
    say, always in the same cell: half the sum of what the probabilities are off by."""
    _by_region: Remembered[tuple[Cells, Floats]] = field(
        default_factory=lambda: Remembered(_MOST_REGIONS), init=False, repr=False
    )

    @property
    def nbytes(self) -> int:
        """Memory that it takes, at most."""
        regions = np.count_nonzero(self.sums) * _CELL_BYTES * _MOST_REGIONS
        return int(self.sums.nbytes + self.detail.nbytes + regions)

    @property
    def total(self) -> float:
        """Return what all voxels weigh."""
        return float(self.sums.sum())

    def pick(self, inside: Region, numbers: Floats) -> Integers | None:
        """Return voxels, each as likely as its weight.

        Parameters
        ----------
        inside
            Only cells that touch this region.
        numbers
            (N, 2) in [0, 1): for the cell, and for the voxel in it.

        Returns
        -------
        (N, 3) voxels, or None where no cell weighs anything.
        """
        cells, upto = self.cells(inside)
        if not len(cells):
            return None
        chosen = cells[_drawn(upto, numbers[:, 0])]
        found = np.empty((len(chosen), 3), np.int64)
        for cell in set(chosen.tolist()):
            those = chosen == cell
            found[those] = self._voxels(cell, numbers[those, 1])
        return found

    def cells(self, inside: Region) -> tuple[Cells, Floats]:
        """Return the cells that touch a region and weigh anything, and their weights up to each."""

        def found() -> tuple[Cells, Floats]:
            first = [s.start for s in cells_of(_widened(inside), CELL)]
            part = self.sums[cells_of(_widened(inside), CELL)]
            where = np.nonzero(part)
            index = tuple(a + b for a, b in zip(where, first, strict=True))
            cells = np.ravel_multi_index(index, self.sums.shape)
            return cells.astype(np.int32), np.cumsum(part[where])

        if inside.is_empty:
            return np.zeros(0, np.int32), np.zeros(0)
        return self._by_region.get_or(inside, found)

    def voxels(self, cells: Cells) -> Iterator[tuple[Integers, Floats]]:
        """Yield for each cell the voxels (N, 3) that weigh anything, and what they weigh."""
        for cell in cells.tolist():
            low, extent = self._extent(cell)
            weights = self._weights(cell, extent)
            where = np.flatnonzero(weights)
            whole = float(self.sums.flat[cell])
            yield (
                _unravelled(where, extent) + low,
                weights[where] * (whole / float(weights.sum())),
            )

    def middles(self, cells: Cells) -> Integers:
        """Return the middle voxels (N, 3) of cells."""
        low = _unravelled(cells, self.sums.shape) * CELL
        middles: Integers = (low + np.minimum(low + CELL, self.shape) - 1) // 2
        return middles

    def _voxels(self, cell: int, numbers: Floats) -> Integers:
        low, extent = self._extent(cell)
        upto = np.cumsum(self._weights(cell, extent))
        return _unravelled(_drawn(upto, numbers), extent) + low

    def _extent(self, cell: int) -> tuple[Integers, tuple[int, ...]]:
        """Return the first voxel of a cell, and how many it has along each axis."""
        # In plain numbers: NumPy's functions would take half of the time of a draw.
        _, along_j, along_k = self.sums.shape
        i, rest = divmod(cell, along_j * along_k)
        index = (i, *divmod(rest, along_k))
        low = [a * c for a, c in zip(index, CELL, strict=True)]
        sizes = zip(low, CELL, self.shape, strict=True)
        return np.array(low), tuple(min(c, n - a) for a, c, n in sizes)

    def _weights(self, cell: int, extent: tuple[int, ...]) -> Floats:
        found = self.detail.weights(cell)
        return np.ones(math.prod(extent)) if found is None else found


def packed(weights: Floats) -> bytes:
    """Return weights, none below 0 and some above, in few bytes; they lose a common factor.

    Examples
    --------
    >>> unpacked(packed(np.array([0.0, 1.0, 9.0]))).tolist()
    [0.0, 0.0625, 0.5625]
    """
    # A power of two: whole numbers of up to 11 bits stay as they are to each other.
    _, exponent = np.frexp(weights.max())
    half = np.ldexp(weights, -exponent).astype(np.float16)
    half[(half == 0) & (weights > 0)] = _LEAST
    # First bytes, then second ones: neighbours have the same exponents.
    return zlib.compress(half.view(np.uint8).reshape(-1, 2).T.tobytes(), 1)


def unpacked(content: bytes) -> Floats:
    """Return what :func:`packed` made of weights."""
    halves = np.frombuffer(zlib.decompress(content), np.uint8).reshape(2, -1)
    return np.ascontiguousarray(halves.T).view(np.float16)[:, 0].astype(np.float64)


def _drawn(upto: Floats, numbers: Floats) -> Integers:
    """Return which entries numbers in [0, 1) choose; never one of weight 0, to which none leads."""
    last = np.searchsorted(upto, upto[-1], side="left")
    found = np.searchsorted(upto, numbers * upto[-1], side="right")
    drawn: Integers = np.minimum(found, last)
    return drawn


def _unravelled(index: Cells | Integers, shape: tuple[int, ...]) -> Integers:
    return np.stack(np.unravel_index(index, shape), axis=-1).astype(np.int64)


def _widened(region: Region) -> Region:
    """Return the region from the beginning of a cell."""
    start = tuple(a // c * c for a, c in zip(region.start, CELL, strict=True))
    return Region(start, region.stop)
