"""Sampling masks of volumes: built once, kept in memory and on the local disk.

Building one reads a mask volume from end to end, slab by slab along its chunks. After that no
voxel is read to draw a patch, in this process or, for files, in any other of the machine.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ...core import Grid
from ...core.errors import PatchSizeError
from ...volumes.cache.cache_directory import write_kept
from ...volumes.content import version_key
from .kept_tables import KNOWN, kept_table
from .looked_up import cells_of, values_on
from .sampling_mask import SamplingMask, Triple, counted

Label = Any
"""A whole number, several that are one class, or ``OTHER``."""
OTHER = "other"
"""All labels that are not listed, as one class."""
Classes = tuple[Label, ...]
"""Labels; empty for one class of all that is not 0."""

# Of what is kept on disk: another one is not read.
_VERSION = 3
_MEANT = (
    " If they are labels all the same, or all of an image that is not 0 is meant: name them in "
    "open_volume(labels=), under a key of their own, or write vp.Volume(..., kind='label')."
)
MOST_VALUES = 64
"""How many values a mask may have that nobody called a label: a CT has hundreds in any slab, and
what people segment and forget to name as a label has some dozens of organs at most."""
# A label that was stored as bytes with a slope of 1/255 comes back as 1 to within rounding.
_WHOLE = 1e-4


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
        Classes of a volume of several channels; or, without classes, an image in the place of a
        mask. Nothing is kept then, so it is refused by every process.
    """
    kind = volume.kind
    key = (*version_key(volume), grid.shape, grid.rows, cell, classes, kind)
    found: SamplingMask | None = KNOWN.get_or(key, lambda: _loaded_or_counted(volume, grid, key))
    return found


def _loaded_or_counted(volume: Any, grid: Grid, key: tuple[Any, ...]) -> SamplingMask | None:
    *_, cell, classes, _ = key
    return kept_table(
        volume,
        (_VERSION, *key[3:]),
        lambda file: _load(file, grid.shape, cell, len(classes) or 1),
        lambda: SamplingMask(grid.shape, cell, _counts(volume, grid, cell, classes)),
        _save,
    )


def _counts(volume: Any, grid: Grid, cell: Triple, classes: Classes) -> NDArray[np.uint32]:
    if classes and volume.shape[0] > 1:
        raise PatchSizeError(
            f"{volume.name} has {volume.shape[0]} channels, and classes are told by the labels of "
            "one.",
            do="Leave class_weights out: then a voxel is inside where any channel is not 0.",
        )
    cells = tuple(-(-n // c) for n, c in zip(grid.shape, cell, strict=True))
    counts = np.zeros((len(classes) or 1, *cells), np.uint32)
    seen: set[int] = set()
    for region, values in values_on(volume, grid, cell):
        _refuse_shares(volume, values)
        if not classes:
            _refuse_image(volume, values, seen)
        found = np.concatenate([counted(flags, cell) for flags in _flags(values, classes)])
        counts[(slice(None), *cells_of(region, cell))] = found
    return counts


def _refuse_shares(volume: Any, values: NDArray[Any]) -> None:
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


def _refuse_image(volume: Any, values: NDArray[Any], seen: set[int]) -> None:
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
    content = io.BytesIO()
    np.savez_compressed(content, counts=mask.counts)
    write_kept(file, content.getvalue())
