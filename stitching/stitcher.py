"""Weigh and sum windows, and finish each cell after its last window."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core import Region
from ..core.errors import PatchSizeError
from ..core.validate import as_choice
from .open_cells import CellMemory, OpenCells, new_array
from .windows import Cell, Windows

# Cached sums of weights: cells far from the faces of a volume share them.
_SUMS = 16
_CELL = "cell"  # first entry of the keys of cells, unlike those of an output
# Width of the bell (MONAI, nnU-Net), and MONAI's least weight, for the corners of a window.
_SIGMA = 0.125
_LEAST = 1e-3


def _gaussian(size: Sequence[int]) -> NDArray[np.float32]:
    bells = []
    for n in size:
        distance = np.arange(n, dtype=np.float32) - np.float32((n - 1) / 2)
        bells.append(np.exp(-(distance**2) / np.float32(2 * (_SIGMA * n) ** 2)))
    weights = _product(bells)
    least = max(float(weights[weights != 0].min()), _LEAST)
    return np.maximum(weights, np.float32(least))


def _hann(size: Sequence[int]) -> NDArray[np.float32]:
    # TorchIO's: the two zeros at the ends are left out.
    return _product([np.hanning(n + 2)[1:-1].astype(np.float32) for n in size])


def _product(axes: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    i, j, k = axes
    weights: NDArray[np.float32] = i[:, None, None] * j[:, None] * k
    return weights


BLENDS: dict[str, Callable[[Sequence[int]], NDArray[np.float32]] | None] = {
    "gaussian": _gaussian,
    "hann": _hann,
    "mean": None,
    "crop": None,
}
"""Function from a window's size to its weights; None: each voxel counts 1."""


def weights_of(blend: str, size: Sequence[int]) -> NDArray[np.float32] | None:
    """Return how much each voxel of a window counts, (I, J, K) float32; None: each as much.

    ValueError for a blend that is none of :data:`BLENDS`.

    Examples
    --------
    >>> weights_of("hann", (3, 1, 1)).ravel().tolist()
    [0.5, 1.0, 0.5]
    """
    make = BLENDS[as_choice("blend", blend, tuple(BLENDS))]
    return None if make is None else make(size)


class BoxWriter(Protocol):
    """Receiver of finished voxels."""

    def begin(self, channels: int) -> None:
        """Set the number of channels, before the first voxels."""

    def write(self, region: Region, voxels: NDArray[np.float32]) -> None:
        """Write the voxels (C, I, J, K) of a box: the blended output of the model."""

    def write_zeros(self, region: Region) -> None:
        """Write 0 to a box without windows, for any activation."""


class Stitcher:
    """Blend windows of one volume, which may come in any order, each once.

    Parameters
    ----------
    windows
        Places of the windows.
    blend
        One of ``BLENDS``.
    output
        Receives finished voxels, cell by cell.
    cells
        Storage of the unfinished sums.

    Examples
    --------
    >>> class Print:
    ...     def begin(self, channels): ...
    ...     def write(self, region, voxels):
    ...         print(region, voxels.ravel().tolist())
    >>> stitcher = Stitcher(Windows((3, 1, 1), (2, 1, 1), (1, 0, 0)), "mean", Print())
    >>> stitcher.add(0, np.full((1, 2, 1, 1), 2, np.float32))
    Region(0:1, 0:1, 0:1) [2.0]
    >>> stitcher.add(1, np.full((1, 2, 1, 1), 4, np.float32))
    Region(1:2, 0:1, 0:1) [3.0]
    Region(2:3, 0:1, 0:1) [4.0]
    """

    def __init__(
        self, windows: Windows, blend: str, output: BoxWriter, cells: OpenCells | None = None
    ) -> None:
        self.windows, self.output = windows, output
        self.cells = OpenCells(CellMemory(2**62)) if cells is None else cells
        self._weights = weights_of(blend, windows.size)
        self._ones = None if self._weights is not None else np.ones(windows.size, np.float32)
        self.present = np.zeros(len(windows), np.bool_)
        """Windows that were added."""
        self.past = np.zeros(len(windows), np.bool_)
        """Windows that were added or left out."""
        self._open_counts = windows.touch_counts()
        self._sums: OrderedDict[tuple[Any, ...], NDArray[np.float32]] = OrderedDict()
        self.channels = 0

    @property
    def is_whole(self) -> bool:
        """Whether every window came or was left out."""
        return bool(self.past.all())

    def add(self, number: int, voxels: NDArray[Any]) -> None:
        """Add the output (C, I, J, K) of one window; a repeated window is ignored.

        Raises PatchSizeError for another size, or another number of channels than before.
        """
        if self.past[number]:
            return
        self.refuse_shape(voxels)
        self.begin(voxels.shape[0])
        if voxels.shape[0] != self.channels:
            msg = f"a window has {voxels.shape[0]} channels, and the first had {self.channels}"
            raise PatchSizeError(msg, do="A model must give as many for every window.")
        self.present[number] = self.past[number] = True
        for cell in self.windows.cells(number):
            where = self.windows.slices(cell, number)
            part = voxels[(slice(None), *where)]
            key = (_CELL, *cell)
            if self._open_counts[cell] == 1 and key not in self.cells:
                # A single window is its own mean, with or without weights.
                self._open_counts[cell] = 0
                self.output.write(self.windows.region(cell), part.astype(np.float32, copy=False))
                continue
            weights = None if self._weights is None else self._weights[where]
            is_first, shape = key not in self.cells, part.shape
            total = self.cells.new(key, shape, np.float32) if is_first else self.cells.change(key)
            _add_weighted(total, part, weights, is_first=is_first)
            self._leave(cell)

    def leave_out(self, numbers: Iterable[int]) -> None:
        """Mark windows as left out; voxels without a window become 0."""
        for number in numbers:
            if self.past[number]:
                continue
            self.past[number] = True
            for cell in self.windows.cells(number):
                self._leave(cell)

    def begin(self, channels: int) -> None:
        """Set the number of channels: before the first window, or without any."""
        if not self.channels:
            self.channels = channels
            self.output.begin(channels)
            for cell in _cells(self._open_counts == 0):
                self._finish_open(cell)

    def resume(self, present: NDArray[np.bool_], past: NDArray[np.bool_], channels: int) -> None:
        """Continue another process's run; ``cells`` has its sums already."""
        self.present, self.past = present.copy(), past.copy()
        for number in np.flatnonzero(past).tolist():
            for cell in self.windows.cells(number):
                self._open_counts[cell] -= 1
        self.channels = channels
        if channels:
            self.output.begin(channels)

    def finished_regions(self) -> list[Region]:
        """Return the boxes of the cells that are done."""
        return [self.windows.region(cell) for cell in _cells(self._open_counts == 0)]

    def refuse_shape(self, voxels: NDArray[Any]) -> None:
        """Raise PatchSizeError for an output that is not (C, I, J, K) of a window."""
        if voxels.ndim != 4 or voxels.shape[1:] != self.windows.size or not voxels.shape[0]:
            size = "x".join(map(str, self.windows.size))
            msg = f"the output for a window of {size} voxels has the shape {voxels.shape}"
            do = "A model must give (B, C, I, J, K) of the size that it was given."
            raise PatchSizeError(msg, do=do)

    def _leave(self, cell: Cell) -> None:
        self._open_counts[cell] -= 1
        if self._open_counts[cell] == 0 and self.channels:
            self._finish_open(cell)

    def _finish_open(self, cell: Cell) -> None:
        """Finish a cell after its last window."""
        key, region = (_CELL, *cell), self.windows.region(cell)
        if key not in self.cells:
            self.output.write_zeros(region)
            return
        numbers = [n for n in self.windows.windows(cell) if self.present[n]]
        total, weight = self.cells.pop(key), self._weight_of(cell, numbers)
        if weight is not None:
            np.divide(total, weight, out=total)
        self.output.write(region, total)

    def _weight_of(self, cell: Cell, numbers: list[int]) -> NDArray[np.float32] | None:
        """Return the sum of the windows' weights in a cell; None if it is 1."""
        if self._weights is None and len(numbers) == 1:
            return None
        weights = self._ones if self._weights is None else self._weights
        assert weights is not None
        slices = [self.windows.slices(cell, n) for n in numbers]
        key = tuple((s.start, s.stop) for one in slices for s in one)
        total = self._sums.get(key)
        if total is None:
            total = new_array(self.windows.region(cell).shape, np.dtype(np.float32))
            for one in slices:
                total += weights[one]
            self._sums[key] = total
            if len(self._sums) > _SUMS:
                self._sums.popitem(last=False)
        return total


def _cells(mask: NDArray[np.bool_]) -> list[Cell]:
    return [(i, j, k) for i, j, k in np.argwhere(mask).tolist()]


def _add_weighted(
    total: NDArray[np.float32],
    part: NDArray[Any],
    weights: NDArray[np.float32] | None,
    *,
    is_first: bool,
) -> None:
    """Add a window's voxels to a cell; the first window sets them."""
    if weights is None:
        np.add(part, 0 if is_first else total, out=total)
        return
    import torch  # here, because plans of windows need no torch

    # One pass, where NumPy takes two. Tensors need writable memory without negative strides.
    values = np.require(part, np.float32, "W")
    values = values if min(values.strides) > 0 else values.copy()
    to, one, other = map(torch.from_numpy, (total, values, weights))
    torch.mul(one, other, out=to) if is_first else to.addcmul_(one, other)
