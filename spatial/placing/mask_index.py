"""Sampling masks of volumes: built once, kept in memory and on the local disk.

Building one reads a mask volume from end to end, slab by slab along its chunks. After that no
voxel is read to draw a patch, in this process or, for files, in any other of the machine.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region
from ...core.errors import PatchSizeError
from ...core.remembered import Remembered
from ...volumes.cache.cache_directory import cache_directory, write_whole
from ...volumes.catalog.statistics import SLAB_VOXELS, slabs
from ...volumes.content import content_key
from ..estimating import may_read
from ..plans.plan import SpatialPlan
from ..plans.policy import LABEL
from ..resampling.resample import Source, resample
from .sampling_mask import SamplingMask, Triple, counted

Label = Any
"""A whole number, several that are one class, or ``OTHER``."""
OTHER = "other"
"""All labels that are not listed, as one class."""
Classes = tuple[Label, ...]
"""Labels; empty for one class of all that is not 0."""

# A hundred scans of 512 cubed with one class, whose voxels would take 13 GB.
MOST_BYTES = 256 * 1024**2
# Of what is kept on disk: another one is not read.
_VERSION = 2

_KNOWN: Remembered[SamplingMask | None] = Remembered(
    MOST_BYTES, lambda mask: 0 if mask is None else mask.nbytes
)


def sampling_mask(volume: Any, grid: Grid, cell: Triple, classes: Classes) -> SamplingMask | None:
    """Return how many voxels of each class lie in the cells of a grid.

    Parameters
    ----------
    volume
        The mask, a ``Volume`` on any grid: it is looked up by nearest neighbour, 0 outside.
    grid
        Of what patches are cut from.
    cell
        Extent of the cells.
    classes
        Labels to tell apart, of which several may be one class; none for one class of all voxels
        that are not 0 in some channel.

    Returns
    -------
    The mask. None where it is not at hand, and nothing shall be read now.

    Raises
    ------
    PatchSizeError
        Classes of a volume of several channels.
    """
    key = (volume.token, volume.header.stamp, grid.shape, grid.rows, cell, classes)
    return _KNOWN.get_or(key, lambda: _loaded_or_counted(volume, grid, key))


def _loaded_or_counted(volume: Any, grid: Grid, key: tuple[Any, ...]) -> SamplingMask | None:
    *_, cell, classes = key
    file = _file(volume, key)
    found = None if file is None else _load(file, grid.shape, cell, len(classes) or 1)
    if found is None:
        if not may_read():
            return None
        found = SamplingMask(grid.shape, cell, _counts(volume, grid, cell, classes))
        if file is not None:
            _save(file, found)
    return found


def forget_masks() -> None:
    """Drop what is kept in memory."""
    _KNOWN.clear()


def _counts(volume: Any, grid: Grid, cell: Triple, classes: Classes) -> NDArray[np.uint32]:
    if classes and volume.shape[0] > 1:
        raise PatchSizeError(
            f"{volume.name} has {volume.shape[0]} channels, and classes are told by the labels of "
            "one.",
            do="Leave class_weights out: then a voxel is inside where any channel is not 0.",
        )
    cells = tuple(-(-n // c) for n, c in zip(grid.shape, cell, strict=True))
    counts = np.zeros((len(classes) or 1, *cells), np.uint32)
    matrix = np.linalg.solve(volume.grid.affine, grid.affine)
    plan = SpatialPlan(volume.grid, matrix, grid.shape)
    is_same = plan.is_copy and plan.source_region(LABEL) == volume.grid.region == grid.region
    unit = _unit(cell, volume.chunks) if is_same else cell
    for region in slabs(grid.shape, unit, max(1, SLAB_VOXELS // volume.shape[0])):
        values = volume.read(region).values() if is_same else _looked_up(volume, plan, region)
        first = [a // c for a, c in zip(region.start, cell, strict=True)]
        found = np.concatenate([counted(flags, cell) for flags in _flags(values, classes)])
        counts[
            (slice(None), *(slice(a, a + n) for a, n in zip(first, found.shape[1:], strict=True)))
        ] = found
    return counts


def _looked_up(volume: Any, plan: SpatialPlan, region: Region) -> NDArray[Any]:
    """Return the values of a mask on a region of another grid."""
    part = plan.crop(region.start, region.shape)
    needed = part.source_region(LABEL)
    out = np.zeros((volume.shape[0], *region.shape), volume.dtype)
    if needed.is_empty:
        return out
    voxels = volume.read(needed)
    i, j, k = needed.start
    source = Source(voxels.array, (i, j, k), part.bounds, voxels.slope, voxels.intercept)
    resample(source, part.matrix, LABEL, out)
    return out


def _flags(values: NDArray[Any], classes: Classes) -> Iterator[NDArray[np.bool_]]:
    """Yield where each class is, (1, i, j, k)."""
    if not classes:
        yield (values != 0).any(axis=0, keepdims=True)
    for label in classes:
        if label == OTHER:
            listed = [each for other in classes if other != OTHER for each in _each(other)]
            yield ~np.isin(values, listed)
        else:
            yield np.isin(values, label) if isinstance(label, tuple) else values == label


def _each(label: Label) -> tuple[int, ...]:
    return label if isinstance(label, tuple) else (label,)


def _unit(cell: Triple, chunks: Triple | None) -> Triple:
    """Return whole cells in whole chunks, so that no chunk is decoded twice."""
    i, j, k = (math.lcm(a, b) for a, b in zip(cell, chunks or (1, 1, 1), strict=True))
    # Chunks of 60 and cells of 8 meet every 120 voxels; some meet never in a slab.
    return (i, j, k) if i * j * k <= SLAB_VOXELS else cell


def _file(volume: Any, key: Sequence[Any]) -> Path | None:
    content = volume.content_key
    if not content:
        return None
    # The grid may be one that the user gave beside the file, whose voxels then lie elsewhere.
    own = volume.grid
    name = content_key(content, (_VERSION, own.shape, own.rows, *key[2:]))
    return cache_directory() / "sampling" / f"{name}.npz"


def _load(file: Path, shape: Triple, cell: Triple, classes: int) -> SamplingMask | None:
    """Return what another process built, None if there is nothing sound."""
    cells = tuple(-(-n // c) for n, c in zip(shape, cell, strict=True))
    with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile):
        # From memory: NumPy leaves a file open that is no archive.
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as stored:
            counts = stored["counts"]
        if counts.shape == (classes, *cells) and counts.dtype == np.uint32:
            return SamplingMask(shape, cell, counts)
    return None


def _save(file: Path, mask: SamplingMask) -> None:
    # Only saves time: a full or read-only disk must not stop anybody.
    content = io.BytesIO()
    np.savez_compressed(content, counts=mask.counts)
    with suppress(OSError):
        write_whole(file, content.getvalue())
