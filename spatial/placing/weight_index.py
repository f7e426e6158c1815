"""Tables of masks and weights: made once by reading a volume from end to end, then kept.

They are kept in memory, and on the local disk for what has a content key. After that no voxel is
read to draw a patch, in this process or any other of the machine.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region
from ...core.errors import PatchSizeError
from ...core.sample import parse_json
from ...storage.content import version_key
from ..ops.op import may_read
from .looked_up import cells_of, values_on
from .patch import GridPatch
from .sampling_mask import CellCounts, SamplingMask, counted, refuse_image, refuse_shares
from .weight_table import (
    KNOWN,
    Collected,
    Runs,
    Triple,
    WeightTable,
    kept_table,
    runs_of,
    tabulated,
)

Label = Any
"""A whole number, several that are one class, or ``OTHER``."""
OTHER = "other"
"""All labels that are not listed, as one class."""
EACH = "each"
"""As the only class: every label that is not 0 is a class of its own."""
Classes = tuple[Label, ...]
"""Labels; empty for one class of all that is not 0."""

# Of what is kept on disk: another one is not read.
_VERSION = 4
VOXELS_PER_BYTE = 500
"""Voxels of a mask for which its table has one byte, all classes together."""
# What a file on disk takes beside the runs.
_BESIDE = 1024
LEAST_BYTES = 2048
"""What the table of a mask may take however small it is: that of a million voxels."""
MOST_BYTES = 1024**2
"""What the table of a map of weights may take: half a million voxels that differ everywhere."""
MOST_EACH = 1024
"""How many classes a mask may have that nobody listed: whole-body labels have some hundred, a
segmentation of cells has thousands, of which none is a class."""


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

    def made() -> SamplingMask:
        return SamplingMask((None,), (_weighed(volume, grid),))

    found = _known(volume, grid, ("weights", MOST_BYTES), None, made)
    return None if found is None else found.tables[0]


def sampling_mask(
    volume: Any,
    grid: Grid,
    cell: Triple | None,
    classes: Classes,
    inside: Region | None = None,
) -> SamplingMask | None:
    """Return the voxels of each class of a mask.

    Parameters
    ----------
    volume
        The mask, a ``Volume`` on any grid: it is looked up by nearest neighbour, 0 outside.
    grid
        Of what patches are cut from.
    cell
        Extent of the cells by which shares of patches are known; None for no shares.
    classes
        Labels to tell apart, of which several may be one class; ``(EACH,)`` for every label that is
        not 0; none for one class of all voxels that are not 0 in some channel.
    inside
        The only voxels that matter; not kept on disk. By default all are.

    Returns
    -------
    The mask. None where it is not at hand, and nothing shall be read now.

    Raises
    ------
    PatchSizeError
        Classes of a volume of several channels; or, without classes, an image in the place of a
        mask. Nothing is kept then, so it is refused by every process.
    """
    key = ("mask", cell, classes, volume.kind)
    within = grid.region if inside is None else inside
    return _known(volume, grid, key, inside, lambda: _masked(volume, grid, cell, classes, within))


def box_counts(volume: Any, grid: Grid, patches: GridPatch) -> NDArray[np.int64] | None:
    """Return how many voxels of a mask the patches of a grid hold, exactly.

    Parameters
    ----------
    volume
        The mask, a ``Volume`` on any grid: it is looked up by nearest neighbour, 0 outside.
    grid
        Of what patches are cut from.
    patches
        Where they lie in it.

    Returns
    -------
    (N,) in their order. None where they are not at hand, and nothing shall be read now.

    Raises
    ------
    PatchSizeError
        The volume is an image, not a mask.
    """

    def counted_now() -> SamplingMask:
        return SamplingMask((), (), CellCounts(grid.shape, (1, 1, 1), _held(volume, grid, patches)))

    key = ("boxes", tuple(patches.size), patches.overlap, volume.kind)
    found = _known(volume, grid, key, None, counted_now)
    if found is None or found.shares is None:
        return None
    return found.shares.counts.ravel().astype(np.int64)


def _held(volume: Any, grid: Grid, patches: GridPatch) -> NDArray[np.uint32]:
    boxes = [
        Region.of_shape(patch.size).shift(patch.start) for patch in patches.patches(grid.shape)
    ]
    held = np.zeros((len(boxes), 1, 1, 1), np.uint32)
    for region, values in _mask_values(volume, grid):
        inside = (values != 0).any(axis=0)
        for number, box in enumerate(boxes):
            part = box.intersect(region)
            if not part.is_empty:
                slices = part.shift([-first for first in region.start]).slices
                held[number] += int(np.count_nonzero(inside[slices]))
    return held


def _mask_values(
    volume: Any,
    grid: Grid,
    cell: Triple = (1, 1, 1),
    inside: Region | None = None,
    classes: Classes = (),
) -> Iterator[tuple[Region, NDArray[Any]]]:
    """Yield what ``values_on`` does; refuse what is no mask, of what has no classes images too."""
    seen: set[int] = set()
    for region, values in values_on(volume, grid, cell, inside):
        refuse_shares(volume, values)
        if not classes:
            refuse_image(volume, values, seen)
        yield region, values


def _known(
    volume: Any,
    grid: Grid,
    key: tuple[Any, ...],
    inside: Region | None,
    make: Callable[[], SamplingMask],
) -> SamplingMask | None:
    """Return a mask from memory, from the disk, or made now if voxels may be read."""
    key = (_VERSION, *key, grid.shape, grid.rows)

    def loaded_or_made() -> SamplingMask | None:
        if inside is not None:
            return make() if may_read() else None
        return kept_table(
            volume,
            key,
            lambda content: _decoded(content, grid.shape),
            make,
            lambda mask: _encoded(mask, grid.shape),
        )

    known = (*version_key(volume), inside, *key)
    mask: SamplingMask | None = KNOWN.get_or(known, loaded_or_made)
    return mask


def _weighed(volume: Any, grid: Grid) -> WeightTable:
    if volume.shape[0] != 1 or volume.dtype.kind not in "biuf":
        raise PatchSizeError(
            f"{volume.name} is given as weights=, and has {volume.shape[0]} channels of "
            f"{volume.dtype}: one channel of real numbers says how often each voxel is drawn.",
            do="Store the weights as a volume of their own.",
        )
    parts = (
        (region, _sound(volume, region, values[0])) for region, values in values_on(volume, grid)
    )
    return tabulated(grid.shape, parts, MOST_BYTES)


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


def _masked(
    volume: Any, grid: Grid, cell: Triple | None, classes: Classes, inside: Region
) -> SamplingMask:
    """Return the mask: one pass over the volume, all classes at once."""
    channels = volume.shape[0]
    if classes not in ((), (EACH,)) and channels > 1:
        raise PatchSizeError(
            f"{volume.name} has {channels} channels, and classes are told by the labels of one.",
            do="Leave class_weights out: then a voxel is inside where any channel is not 0.",
        )
    named = () if channels > 1 else classes
    found = _Classes(named, grid.shape)
    cells = [-(-n // c) for n, c in zip(grid.shape, cell or (1, 1, 1), strict=True)]
    counts = np.zeros((max(1, len(named)), *cells) if cell else (0, 0, 0, 0), np.uint32)
    for region, values in _mask_values(volume, grid, cell or (1, 1, 1), inside, classes):
        one = values[0] if named else (values != 0).any(axis=0)
        part = region.intersect(inside)
        found.add(volume, one[part.shift([-first for first in region.start]).slices], part)
        if cell is not None:
            parts = [counted(flags, cell) for flags in _flags(values, named)]
            counts[(slice(None), *cells_of(region, cell))] = np.concatenate(parts)
    shares = None if cell is None else CellCounts(grid.shape, cell, counts)
    return SamplingMask(found.labels, found.tables(), shares)


class _Classes:
    """Collects the voxels of classes, which may not be known before."""

    def __init__(self, classes: Classes, shape: Triple) -> None:
        self.shape = shape
        self._each = classes == (EACH,)
        self._classes: list[Label] = [] if self._each else list(classes or (None,))
        self._found = [Collected(shape) for _ in self._classes]

    @property
    def labels(self) -> Classes:
        """The classes."""
        return tuple(self._classes)

    def add(self, volume: Any, values: NDArray[Any], region: Region) -> None:
        """Take the values (i, j, k) of a region."""
        runs, label = runs_of(values, region, self.shape)
        if self._each:
            self._add_each(volume, runs, _whole(label))
            return
        if self._classes == [None]:
            self._found[0].add(runs.chosen(label != 0))
            return
        for flags, found in zip(_flags(label[None], self.labels), self._found, strict=True):
            found.add(runs.chosen(flags[0]))

    def _add_each(self, volume: Any, runs: Runs, label: NDArray[np.int64]) -> None:
        there = np.unique(label)
        for one in there[there != 0].tolist():
            if one not in self._classes:
                self._classes.append(one)
                self._found.append(Collected(self.shape))
        if len(self._classes) > MOST_EACH:
            raise PatchSizeError(
                f"{volume.name} holds more than {MOST_EACH} labels: too many to draw each as often "
                "as another",
                do="Say which are classes, class_weights={1: 1, 2: 1}, or {'other': 1} for all "
                "that are not 0 together.",
            )
        order = np.argsort(label, kind="stable")
        ends = np.searchsorted(label[order], there, side="right")
        for one, begin, end in zip(there.tolist(), [0, *ends[:-1]], ends, strict=True):
            if one:
                self._found[self._classes.index(one)].add(runs.chosen(order[begin:end]))

    def tables(self) -> tuple[WeightTable, ...]:
        """Return the table of each; small classes first are kept whole, the rest have one share."""
        if self._each:
            order = np.argsort(np.array(self._classes, np.int64), kind="stable").tolist()
            self._classes = [self._classes[n] for n in order]
            self._found = [self._found[n] for n in order]
        room = max(LEAST_BYTES, math.prod(self.shape) // VOXELS_PER_BYTE - _BESIDE)
        tables: dict[int, WeightTable] = {}
        smallest_first = sorted(range(len(self._found)), key=lambda n: self._found[n].held)
        for done, n in enumerate(smallest_first):
            table = self._found[n].table(room // (len(self._found) - done))
            tables[n] = table
            room -= table.nbytes
        return tuple(tables[n] for n in range(len(self._found)))


def _whole(labels: NDArray[Any]) -> NDArray[np.int64]:
    whole = np.rint(np.nan_to_num(labels)) if labels.dtype.kind == "f" else labels
    found: NDArray[np.int64] = whole.astype(np.int64)
    return found


def _flags(values: NDArray[Any], classes: Classes) -> Iterator[NDArray[np.bool_]]:
    """Yield where each class is, (1, ...)."""
    if not classes or classes == (EACH,):
        yield (values != 0).any(axis=0, keepdims=True)
        return
    for label in classes:
        if label == OTHER:
            listed = [each for other in classes if other != OTHER for each in _each(other)]
            yield ~np.isin(values, listed)
        else:
            yield np.isin(values, label) if isinstance(label, tuple) else values == label


def _each(label: Label) -> tuple[int, ...]:
    return label if isinstance(label, tuple) else (label,)


_FIELDS = ("total", "voxels", "places", "is_exact")


def _decoded(content: bytes, shape: Triple) -> SamplingMask | None:
    """Return what another process built, None if there is nothing sound."""
    with suppress(BadZipFile):
        # From memory: NumPy leaves a file open that is no archive.
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            told = parse_json(str(stored["told"]))
            packed, counts = stored["packed"].tobytes(), stored["counts"]
        ends = np.cumsum([0, *told["sizes"]]).tolist()
        if told["shape"] != list(shape) or ends[-1] != len(packed):
            return None
        tables = tuple(
            WeightTable(shape, **dict(zip(_FIELDS, fields, strict=True)), packed=packed[begin:end])
            for fields, begin, end in zip(told["tables"], ends[:-1], ends[1:], strict=True)
        )
        labels = tuple(tuple(one) if isinstance(one, list) else one for one in told["labels"])
        cell: Any = told["cell"]
        shares = CellCounts(shape, tuple(cell), counts) if cell else None
        return SamplingMask(labels, tables, shares)
    return None


def _encoded(mask: SamplingMask, shape: Triple) -> bytes:
    told = {
        "shape": shape,
        "labels": mask.labels,
        "tables": [[getattr(table, name) for name in _FIELDS] for table in mask.tables],
        "sizes": [table.nbytes for table in mask.tables],
        "cell": mask.shares.cell if mask.shares is not None else None,
    }
    counts = np.zeros(0, np.uint32) if mask.shares is None else mask.shares.counts
    everything = np.frombuffer(b"".join(table.packed for table in mask.tables), np.uint8)
    content = io.BytesIO()
    np.savez_compressed(content, told=np.array(json.dumps(told)), packed=everything, counts=counts)
    return content.getvalue()
