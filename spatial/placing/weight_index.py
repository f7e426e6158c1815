"""Weight tables of volumes: built once, kept in memory and on the local disk, as masks are."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region
from ...core.errors import PatchSizeError
from ...volumes.cache.cache_directory import write_kept
from ...volumes.content import version_key
from .kept_tables import KNOWN, kept_table
from .looked_up import cells_of, values_on
from .sampling_mask import Triple
from .weight_table import CELL, MOST_DETAIL, Detail, Floats, WeightTable, packed

# Of what is kept on disk: another one is not read.
_VERSION = 1


def weight_table(volume: Any, grid: Grid) -> WeightTable | None:
    """Return what the voxels of a grid weigh.

    Parameters
    ----------
    volume
        The weights, a ``Volume`` of one channel on any grid: each voxel of ``grid`` takes the
        nearest one, 0 outside.
    grid
        Of what patches are cut from.

    Returns
    -------
    The table. None where it is not at hand, and nothing shall be read now.

    Raises
    ------
    PatchSizeError
        The volume has several channels, or weights that are no finite numbers from 0.
    """
    key = ("weights", *version_key(volume), grid.shape, grid.rows)
    found: WeightTable | None = KNOWN.get_or(key, lambda: _loaded_or_built(volume, grid))
    return found


def _loaded_or_built(volume: Any, grid: Grid) -> WeightTable | None:
    key = ("weights", _VERSION, MOST_DETAIL, grid.shape, grid.rows, CELL)
    return kept_table(
        volume, key, lambda file: _load(file, grid.shape), lambda: _built(volume, grid), _save
    )


def _built(volume: Any, grid: Grid) -> WeightTable:
    if volume.shape[0] != 1 or volume.dtype.kind not in "biuf":
        raise PatchSizeError(
            f"{volume.name} is given as weights=, and has {volume.shape[0]} channels of "
            f"{volume.dtype}: one channel of real numbers says how often each voxel is drawn.",
            do="Store the weights as a volume of their own.",
        )
    parts = (
        (region, _sound(volume, region, values[0]))
        for region, values in values_on(volume, grid, CELL)
    )
    return tabulated(grid.shape, parts)


def tabulated(shape: Triple, parts: Iterable[tuple[Region, NDArray[Any]]]) -> WeightTable:
    """Return the table of weights that come in parts.

    Parameters
    ----------
    shape
        Of the grid.
    parts
        Regions of whole cells that cover it, and the weights (i, j, k) there, finite and from 0.
    """
    sums = np.zeros([-(-n // c) for n, c in zip(shape, CELL, strict=True)])
    kept = _Kept(sums.shape)
    for region, values in parts:
        where = cells_of(region, CELL)
        weights = values.astype(np.float64)
        with np.errstate(over="ignore"):
            sums[where] = _reduced(np.add, weights)
            differ = _differences(weights, sums[where])
        # The mean of equal numbers is not always one of them.
        differ[_reduced(np.maximum, values) == _reduced(np.minimum, values)] = 0
        kept.add(weights, differ, np.array([s.start for s in where]))
    with np.errstate(over="ignore"):
        total = float(sums.sum())
    if not np.isfinite(total):
        raise PatchSizeError(
            "the weights of a volume add up to more than a number holds",
            do="Divide them by a number: what counts is how they are to each other.",
        )
    return WeightTable(shape, sums, kept.detail(), kept.left_out / (2 * total) if total else 0.0)


class _Kept:
    """The cells whose voxels differ most, as many as there is room for."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.left_out = 0.0
        """How much the voxels of other cells differ from the mean of theirs, added up."""
        self._shape = shape
        self._cells: list[tuple[float, int, bytes]] = []
        self._floor = 0.0

    def add(self, weights: Floats, differ: Floats, first: NDArray[Any]) -> None:
        """Keep cells of a part of the weights, whose first cell is ``first``."""
        flat = differ.ravel()
        order = np.argsort(-flat, kind="stable")
        order = order[flat[order] > 0]
        room = MOST_DETAIL
        for done, at in enumerate(order):
            # Neither among these nor among those before is there room for what comes now.
            if room < 0 or flat[at] < self._floor:
                self.left_out += float(flat[order[done:]].sum())
                break
            index = np.array(np.unravel_index(at, differ.shape))
            box = tuple(slice(a * c, a * c + c) for a, c in zip(index, CELL, strict=True))
            content = packed(weights[box].ravel())
            room -= len(content)
            cell = int(np.ravel_multi_index(tuple(index + first), self._shape))
            self._cells.append((float(flat[at]), cell, content))
        self._shorten()

    def _shorten(self) -> None:
        """Drop those that differ least, until there is room."""
        self._cells.sort(key=lambda one: one[0], reverse=True)
        ends = np.cumsum([len(content) for _, _, content in self._cells])
        count = int(np.searchsorted(ends, MOST_DETAIL, side="right"))
        dropped = self._cells[count:]
        if dropped:
            self._floor = dropped[0][0]
            self.left_out += sum(differ for differ, _, _ in dropped)
            del self._cells[count:]

    def detail(self) -> Detail:
        """Return what is kept."""
        cells = sorted((cell, content) for _, cell, content in self._cells)
        ends = np.cumsum([len(content) for _, content in cells], dtype=np.int64)
        content = b"".join(content for _, content in cells)
        return Detail(
            np.array([cell for cell, _ in cells], np.int64), ends, np.frombuffer(content, np.uint8)
        )


def _reduced(by: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
    """Return one number per cell; those at the ends may be cut."""
    # Along the rows of memory first: what is left for the other axes is a fraction of it.
    for axis in sorted(range(3), key=lambda axis: values.strides[axis]):
        values = by.reduceat(values, np.arange(0, values.shape[axis], CELL[axis]), axis=axis)
    return values


def _differences(weights: Floats, sums: Floats) -> Floats:
    """Return how much the voxels of each cell differ from their mean, added up."""
    means = sums
    for axis, (n, c) in enumerate(zip(weights.shape, CELL, strict=True)):
        count = np.diff(np.append(np.arange(0, n, c), n))
        each = means / count.reshape([-1 if a == axis else 1 for a in range(3)])
        means = np.repeat(each, count, axis=axis)
    return _reduced(np.add, np.abs(weights - means))


def _sound(volume: Any, region: Region, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values if they are weights."""
    if values.dtype.kind in "bu":
        return values
    sound = (values >= 0) & np.isfinite(values)
    if sound.all():
        return values
    wrong = np.argwhere(~sound)
    at = tuple(int(a + b) for a, b in zip(wrong[0], region.start, strict=True))
    raise PatchSizeError(
        f"{volume.name} is given as weights=, and holds {values[tuple(wrong[0])]} at voxel {at} "
        "of what patches are cut from: weights are finite numbers from 0.",
        do="Write 0 where no patch shall have its middle; add a number to all if some are below.",
    )


def _load(file: Path, shape: Triple) -> WeightTable | None:
    """Return what another process built, None if there is nothing sound."""
    cells = tuple(-(-n // c) for n, c in zip(shape, CELL, strict=True))
    with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile):
        # From memory: NumPy leaves a file open that is no archive.
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as stored:
            sums, deviation = stored["sums"], float(stored["deviation"])
            detail = Detail(stored["cells"], stored["ends"], stored["packed"])
        if sums.shape == cells and sums.dtype == np.float64:
            return WeightTable(shape, sums, detail, deviation)
    return None


def _save(file: Path, table: WeightTable) -> None:
    content, detail = io.BytesIO(), table.detail
    np.savez_compressed(
        content,
        sums=table.sums,
        deviation=table.deviation,
        cells=detail.cells,
        ends=detail.ends,
        packed=detail.packed,
    )
    write_kept(file, content.getvalue())
