"""Tables of patch positions: the voxels of each class of a mask, or a weight per voxel.

A mask, its classes and a weight map are all tables of weighted voxels; a mask has weights 0 and 1.
One pass over the volume makes a table. Tables are cached in memory, and on the local disk for
volumes with a content key. Later draws read no voxel, in any process of the machine.
"""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region
from ...core.call_site import is_looking_ahead
from ...core.context import RUNNING_PASS
from ...core.errors import PatchSizeError
from ...core.lru_cache import cached_property
from ...core.sample import parse_json
from ...storage.content import version_key
from ...volumes.catalog.whole_pass import SLAB_VOXELS, PassCache, slabs
from ...volumes.voxels import plain
from ..ops.foreground_crop import Selection
from ..ops.grid_op import warn_of_outside
from ..plans.plan import SpatialPlan
from ..plans.policy import LABEL
from ..resampling.native_resampler import SourceVoxels
from ..resampling.resample import resample
from .patch import GridPatch
from .weight_table import RUN_CACHE, RunCollector, Runs, Triple, WeightTable, runs_of, tabulate

_HALF = 0.5


def values_on(
    volume: Any, grid: Grid, cell: Triple = (1, 1, 1), inside: Region | None = None
) -> Iterator[tuple[Region, NDArray[Any]]]:
    """Yield regions that cover a grid, each of whole cells, and the values (C, i, j, k) there."""
    # The volume may have any grid: values are looked up by nearest neighbour, 0 outside. Cells are
    # cut at the ends of the grid. Regions outside ``inside`` are skipped.
    matrix = np.linalg.solve(volume.grid.affine, grid.affine)
    plan = SpatialPlan(volume.grid, matrix, grid.shape)
    # A flip is a copy with the same region, so compare the matrix to within half a voxel.
    away = np.abs(matrix - np.eye(4))
    stays = away[:3, :3].max() < _HALF and away[:3, 3].max() < _HALF
    is_same = plan.is_copy and volume.grid.shape == grid.shape and stays
    # Whole cells in whole chunks, so that no chunk is decoded twice, if both fit into a slab.
    chunks = volume.chunks or (1, 1, 1)
    i, j, k = (math.lcm(a, b) for a, b in zip(cell, chunks, strict=True))
    unit = (i, j, k) if is_same and i * j * k <= SLAB_VOXELS else cell
    for region in slabs(grid.shape, unit, max(1, SLAB_VOXELS // volume.shape[0])):
        if inside is not None and region.intersect(inside).is_empty:
            continue
        values = volume.read(region).values() if is_same else _resample(volume, plan, region)
        yield region, plain(values)


def _resample(volume: Any, plan: SpatialPlan, region: Region) -> NDArray[Any]:
    part = plan.crop(region.start, region.shape)
    box = part.source_region(LABEL)
    out: NDArray[Any] = plain(np.zeros((volume.shape[0], *region.shape), volume.dtype))
    if box.is_empty:
        return out
    voxels = volume.read(box)
    i, j, k = box.start
    source = SourceVoxels(voxels.array, (i, j, k), part.bounds, voxels.slope, voxels.intercept)
    resample(source, part.matrix, LABEL, out)
    return out


_MEANT_HINT = (
    " If they are labels all the same, or all of an image that is not 0 is meant: name them in "
    "open_volume(labels=), under a key of their own, or write vp.Volume(..., kind='label')."
)
MOST_VALUES = 64
"""Most values of a mask that is not marked as a label. Any slab of a CT has hundreds. An unmarked
segmentation has some dozens of organs at most."""
# A label stored as bytes with a slope of 1/255 is 1 only up to rounding.
_WHOLE = 1e-4


def refuse_shares(volume: Any, values: NDArray[Any]) -> None:
    """Refuse a mask with fractional values: ``weights=`` is for these."""
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


def refuse_image(volume: Any, values: NDArray[Any], distinct: set[int]) -> None:
    """Refuse an image: nearly all its voxels would count as inside."""
    # Other volumes are judged by their number of values, labels by their values below 0: instances
    # may be thousands, but few labels are ignored. ``distinct`` collects the values of all slabs.
    is_label = volume.kind == "label"
    if is_label and values.dtype.kind == "u":
        return
    telling = _first_of_runs(values)
    telling = telling[telling < 0] if is_label else telling[telling != 0]
    if telling.dtype.kind == "f":
        telling = np.rint(telling[np.isfinite(telling)]).astype(np.int64)
    if distinct:
        telling = telling[~np.isin(telling, list(distinct))]
    distinct.update(np.unique(telling).tolist())
    if len(distinct) <= MOST_VALUES:
        return
    which = "below 0" if is_label else "other than 0"
    hint = "" if is_label else _MEANT_HINT
    raise PatchSizeError(
        f"{volume.name} is given as mask=, of which every voxel that is not 0 counts as inside, "
        f"and looks like an image: more than {MOST_VALUES} different values {which}, "
        f"{min(distinct)} to {max(distinct)} among them",
        do="Give a label, or a mask of its values above a threshold; or give it as weights= if "
        f"a voxel shall be drawn as often as its value says.{hint}",
    )


def _first_of_runs(values: NDArray[Any]) -> NDArray[Any]:
    """Return the first of each run of one value along the rows of memory, flat."""
    # The runs hold every value, and masks have few runs.
    axis = min((1, 2, 3), key=lambda axis: (values.shape[axis] == 1, abs(values.strides[axis])))
    rows = np.moveaxis(values, axis, -1)
    others = rows[..., 1:]
    return np.concatenate([rows[..., 0].ravel(), others[others != rows[..., :-1]]])


def mask_values(
    volume: Any,
    grid: Grid,
    cell: Triple = (1, 1, 1),
    inside: Region | None = None,
    classes: Sequence[Any] = (),
) -> Iterator[tuple[Region, NDArray[Any]]]:
    """Yield from ``values_on``; refuse fractional values, and images if there are no classes."""
    distinct: set[int] = set()
    for region, values in values_on(volume, grid, cell, inside):
        refuse_shares(volume, values)
        if not classes:
            refuse_image(volume, values, distinct)
        yield region, values


Label = Any
"""A whole number, several numbers as one class, or ``OTHER``."""
OTHER = "other"
"""All labels that are not listed, as one class."""
EACH = "each"
"""As the only class: every label except 0 is its own class."""
Classes = tuple[Label, ...]
"""Labels; empty for one class of all labels except 0."""

# Version of the files on disk: others are not read.
_VERSION = 4
VOXELS_PER_BYTE = 500
"""Voxels of a mask for which its table has one byte, all classes together."""
# Bytes of a file on disk besides the runs.
_BESIDE = 1024
LEAST_BYTES = 2048
"""Least limit of a mask's table, for small masks: that of a million voxels."""
MOST_BYTES = 1024**2
"""Limit of a weight map's table: half a million voxels without equal neighbours."""
MOST_EACH = 1024
"""Most classes of a mask without listed labels. Whole-body labels have some hundred. A cell
segmentation has thousands of labels, and none is a class."""

Counts = NDArray[np.uint32]

# Small against a patch.
MOST_CELL = 8
# Least cells along a patch, so that cut cells matter little.
_CELLS_PER_PATCH = 4
# Each box needs 64 sums: 4 MiB.
_BOXES_AT_ONCE = 4096


def cell_for(size: Sequence[int]) -> Triple:
    """Return the extent of cells for patches of a size: (8, 3, 1) for (96, 12, 1)."""
    i, j, k = (max(1, min(MOST_CELL, n // _CELLS_PER_PATCH)) for n in size)
    return i, j, k


@dataclass(frozen=True, eq=False)
class SamplingMask:
    """The voxels of each class of a mask, all equally likely."""

    labels: tuple[Any, ...]
    """Labels, tuples of labels, or ``"other"``; of a mask without classes one entry, None."""
    tables: tuple[WeightTable, ...]  # voxels by class
    shares: CellCounts | None = None  # counts by cell, if shares are needed

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        counts = 0 if self.shares is None else self.shares.nbytes
        return sum(table.nbytes for table in self.tables) + counts

    @property
    def is_exact(self) -> bool:
        """Whether every voxel of every class can be drawn."""
        return all(table.is_exact for table in self.tables)


@dataclass(frozen=True, eq=False)
class CellCounts:
    """Voxels of each class in every cell of a grid."""

    # Shares of patches come from these counts and their integral image: eight numbers for a box of
    # any size. A cell that a face cuts counts in proportion, as if its voxels were spread evenly.

    shape: Triple  # voxels of the grid
    cell: Triple  # voxels of a cell; the last ones of an axis may be cut
    counts: Counts  # (classes, cells along I, J, K)

    @property
    def nbytes(self) -> int:
        """Memory that they take, their sums included."""
        return self.counts.nbytes * 3  # counters of 4 bytes, sums of 8

    def share(self, index: int, start: NDArray[Any], size: Sequence[int]) -> NDArray[np.float64]:
        """Return the part of boxes that a class fills, between 0 and 1."""
        # Boxes begin at ``start`` (N, 3) and may exceed the grid, which is empty there.
        voxels = float(np.prod(np.array(size, dtype=np.float64)))
        shares = np.empty(len(start))
        for first in range(0, len(start), _BOXES_AT_ONCE):
            part = slice(first, first + _BOXES_AT_ONCE)
            shares[part] = self._count_in(index, start[part], size) / voxels
        return shares

    @cached_property
    def _sums(self) -> NDArray[np.int64]:
        """Voxels before each corner of the cells."""
        sums = np.pad(self.counts.astype(np.int64), ((0, 0), (1, 0), (1, 0), (1, 0)))
        for axis in (1, 2, 3):
            np.cumsum(sums, axis=axis, out=sums)
        return sums

    def _count_in(
        self, index: int, start: NDArray[Any], size: Sequence[int]
    ) -> NDArray[np.float64]:
        """Return the voxels in boxes: between the corners of a cell their number is linear."""
        taps, weights = [], []
        for axis, (n, width, extent) in enumerate(zip(self.shape, self.cell, size, strict=True)):
            # Two taps before the box (negative), and two at its end.
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
        counts: NDArray[np.float64] = (along_j * weights[0]).sum(axis=1)
        return counts


def count_cells(flags: NDArray[np.bool_], cell: Sequence[int]) -> Counts:
    """Return how many flags (classes, I, J, K) are set in every cell; the last ones may be cut."""
    counts: Any = flags.view(np.uint8)
    # Start along the rows of memory: it leaves the least for the other axes.
    for axis in sorted((1, 2, 3), key=lambda axis: flags.strides[axis]):
        first = np.arange(0, flags.shape[axis], cell[axis - 1])
        counts = np.add.reduceat(counts, first, axis=axis, dtype=np.uint32)
    result: Counts = counts
    return result


def weight_table(volume: Any, grid: Grid) -> WeightTable | None:
    """Return the weights of a grid's voxels; None if they must not be read now."""
    # Voxels get the weight of the nearest voxel of a one-channel ``Volume`` on any grid, 0 outside.
    # Raises PatchSizeError for several channels and for negative or infinite weights.

    def weigh(weights: Any) -> SamplingMask:
        return SamplingMask((None,), (_weigh(weights, grid),))

    mask = _known_mask(volume, grid, ("weights", MOST_BYTES), None, weigh)
    return None if mask is None else mask.tables[0]


def sampling_mask(
    volume: Any,
    grid: Grid,
    cell: Triple | None,
    classes: Classes,
    inside: Region | None = None,
    selection: Selection | None = None,
) -> SamplingMask | None:
    """Return the voxels of each class of a mask; None if it must not be read now."""
    # The mask ``Volume`` may have any grid: it is looked up by nearest neighbour, 0 outside.
    # - ``cell``: extent of the cells for shares of patches, None for no shares.
    # - ``classes``: labels, or tuples of labels; ``(EACH,)`` for every label except 0. Empty for
    #   one class of all voxels that are not 0 in some channel. Each of several channels is a class,
    #   and its values are weights.
    # - ``inside``: the only relevant voxels, by default all; such a mask is not kept on disk.
    # - ``selection``: makes the mask out of the volume.
    #
    # Raises PatchSizeError for classes that are no channel, and for an image without classes.
    # Nothing is kept then, so every process refuses it.
    key = ("mask", cell, classes, volume.kind)
    within = grid.region if inside is None else inside

    def build(mask: Any) -> SamplingMask:
        return _build_mask(mask, grid, cell, classes, within)

    return _known_mask(volume, grid, key, inside, build, selection)


def box_counts(
    volume: Any, grid: Grid, patches: GridPatch, selection: Selection | None = None
) -> NDArray[np.int64] | None:
    """Return the exact number of mask voxels in each patch of a grid, (N,) in order."""
    # None if they must not be read now; PatchSizeError for an image.

    def count(whole: Any) -> SamplingMask:
        boxes = [
            Region.of_shape(patch.size).shift(patch.start) for patch in patches.patches(grid.shape)
        ]
        counts = np.zeros((len(boxes), 1, 1, 1), np.uint32)
        for region, values in mask_values(whole, grid):
            inside = (values != 0).any(axis=0)
            for number, box in enumerate(boxes):
                part = box.intersect(region)
                if not part.is_empty:
                    slices = part.shift([-first for first in region.start]).slices
                    counts[number] += int(np.count_nonzero(inside[slices]))
        return SamplingMask((), (), CellCounts(grid.shape, (1, 1, 1), counts))

    key = ("boxes", tuple(patches.size), patches.overlap, volume.kind)
    mask = _known_mask(volume, grid, key, None, count, selection)
    if mask is None or mask.shares is None:
        return None
    return mask.shares.counts.ravel().astype(np.int64)


def forget_masks() -> None:
    """Drop the masks and weights that are kept in memory."""
    MASKS.memory.clear()
    RUN_CACHE.clear()


def _known_mask(
    volume: Any,
    grid: Grid,
    key: tuple[Any, ...],
    inside: Region | None,
    make_of: Callable[[Any], SamplingMask],
    selection: Selection | None = None,
) -> SamplingMask | None:
    """Return a mask from memory, from the disk, or made now if voxels may be read."""
    # Warn here, because a table from the disk skips the pass.
    warn_of_outside(volume, grid)
    # The user may have given the grid apart from the file, which moves its voxels.
    own = volume.grid
    if selection is not None:
        key = (*key, selection.digest, selection.level)

    def make() -> SamplingMask:
        return make_of(selection.mask_of(volume, selection.level) if selection else volume)

    how = (own.shape, own.rows, _VERSION, *key, grid.shape, grid.rows)
    if inside is not None:  # kept in memory alone
        cache, where = MASKS.memory, (how, version_key(volume), inside)
        if is_looking_ahead():
            return cache.get(where)
        with RUNNING_PASS.over([volume.name]):
            return cache.get_or(where, make)
    return (
        MASKS.known_result([volume], how) if is_looking_ahead() else MASKS.get([volume], how, make)
    )


def _weigh(volume: Any, grid: Grid) -> WeightTable:
    if volume.shape[0] != 1 or volume.dtype.kind not in "biuf":
        raise PatchSizeError(
            f"{volume.name} is given as weights=, and has {volume.shape[0]} channels of "
            f"{volume.dtype}: one channel of real numbers says how often each voxel is drawn.",
            do="Store the weights as a volume of their own.",
        )
    parts = (
        (region, _sound(volume, region, values[0])) for region, values in values_on(volume, grid)
    )
    return tabulate(grid.shape, parts, MOST_BYTES)


def _sound(
    volume: Any, region: Region, values: NDArray[Any], argument: str = "weights"
) -> NDArray[Any]:
    """Return the values; raise if they are no weights."""
    if values.dtype.kind in "bu":
        return values
    sound = (values >= 0) & np.isfinite(values)
    if sound.all():
        return values
    wrong = np.argwhere(~sound)
    at = tuple(int(a + b) for a, b in zip(wrong[0], region.start, strict=True))
    msg = (
        f"{volume.name} is given as {argument}=, and holds {values[tuple(wrong[0])]} at voxel {at} "
    )
    do = "Write 0 where no patch may have its middle; add a number to all if some are below."
    raise PatchSizeError(f"{msg}of the grid: weights are finite numbers from 0.", do=do)


def _build_mask(
    volume: Any, grid: Grid, cell: Triple | None, classes: Classes, inside: Region
) -> SamplingMask:
    """Return the mask: one pass over the volume, all classes at once."""
    channels = volume.shape[0]
    by_channel = channels > 1 and classes not in ((), (EACH,))
    if by_channel and not {*classes} <= {*range(channels), OTHER}:
        msg = f"{volume.name} has {channels} channels, each a class, and the classes are {classes}"
        raise PatchSizeError(msg, do=f"Name channels in class_weights, 0 to {channels - 1}.")
    labels = classes if by_channel or channels == 1 else ()
    collector = _Classes(labels, grid.shape)
    cells = [-(-n // c) for n, c in zip(grid.shape, cell or (1, 1, 1), strict=True)]
    counts = np.zeros((max(1, len(labels)), *cells) if cell else (0, 0, 0, 0), np.uint32)
    own = (volume, grid, cell or (1, 1, 1), inside)
    for region, values in values_on(*own) if by_channel else mask_values(*own, classes):
        part = region.intersect(inside)
        slices = part.shift([-first for first in region.start]).slices
        if by_channel:
            each = [_sound(volume, region, one, "mask") for one in _of_classes(values, classes)]
            collector.add_weights([one[slices] for one in each], part)
        else:
            one = values[0] if labels else (values != 0).any(axis=0)
            collector.add(volume, one[slices], part)
        if cell is not None:
            split = [one[None] > 0 for one in each] if by_channel else _flags(values, labels)
            parts = [count_cells(flags, cell) for flags in split]
            # The region begins with a whole cell.
            ends = zip(region.start, region.stop, cell, strict=True)
            cells_of = [slice(a // c, -(-b // c)) for a, b, c in ends]
            counts[(slice(None), *cells_of)] = np.concatenate(parts)
    shares = None if cell is None else CellCounts(grid.shape, cell, counts)
    return SamplingMask(collector.labels, collector.tables(), shares)


class _Classes:
    """Collects the voxels of classes, which may be found on the way."""

    def __init__(self, classes: Classes, shape: Triple) -> None:
        self.shape = shape
        self._each = classes == (EACH,)
        self._classes: list[Label] = [] if self._each else list(classes or (None,))
        self._runs = [RunCollector(shape) for _ in self._classes]

    @property
    def labels(self) -> Classes:
        """The classes."""
        return tuple(self._classes)

    def add(self, volume: Any, values: NDArray[Any], region: Region) -> None:
        """Add the values (i, j, k) of a region."""
        runs, label = runs_of(values, region, self.shape)
        if self._each:
            self._add_each(volume, runs, _whole(label))
            return
        if self._classes == [None]:
            self._runs[0].add(runs.choose(label != 0))
            return
        for flags, collector in zip(_flags(label[None], self.labels), self._runs, strict=True):
            collector.add(runs.choose(flags[0]))

    def add_weights(self, weights: Sequence[NDArray[Any]], region: Region) -> None:
        """Add a weight (i, j, k) of each class for the voxels of a region."""
        for one, collector in zip(weights, self._runs, strict=True):
            runs, each = runs_of(one, region, self.shape)
            own = Runs(runs.start, runs.length, runs.weight * each)
            collector.add(own.choose(each > 0))

    def _add_each(self, volume: Any, runs: Runs, label: NDArray[Any]) -> None:
        there = np.unique(label)
        for one in there[there != 0].tolist():
            if one not in self._classes:
                self._classes.append(one)
                self._runs.append(RunCollector(self.shape))
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
                self._runs[self._classes.index(one)].add(runs.choose(order[begin:end]))

    def tables(self) -> tuple[WeightTable, ...]:
        """Return the tables; small classes are kept whole first, the others share the rest."""
        if self._each:
            order = sorted(range(len(self._classes)), key=self._classes.__getitem__)
            self._classes = [self._classes[n] for n in order]
            self._runs = [self._runs[n] for n in order]
        room = max(LEAST_BYTES, math.prod(self.shape) // VOXELS_PER_BYTE - _BESIDE)
        tables: dict[int, WeightTable] = {}
        smallest_first = sorted(range(len(self._runs)), key=lambda n: self._runs[n].count)
        for rank, n in enumerate(smallest_first):
            table = self._runs[n].table(room // (len(self._runs) - rank))
            tables[n] = table
            room -= table.nbytes
        return tuple(tables[n] for n in range(len(self._runs)))


def _of_classes(values: NDArray[Any], classes: Classes) -> Iterator[NDArray[Any]]:
    """Yield the channel of each class; for ``OTHER`` the sum of those that are not listed."""
    others = [n for n in range(len(values)) if n not in classes]
    for label in classes:
        yield values[others].sum(axis=0) if label == OTHER else values[label]


def _whole(labels: NDArray[Any]) -> NDArray[Any]:
    if labels.dtype.kind == "u":  # uint64 exceeds int64
        return labels
    whole = np.rint(np.nan_to_num(labels)) if labels.dtype.kind == "f" else labels
    return whole.astype(np.int64)


def _flags(values: NDArray[Any], classes: Classes) -> Iterator[NDArray[np.bool_]]:
    """Yield the flags of each class, (1, ...)."""
    if not classes or classes == (EACH,):
        yield (values != 0).any(axis=0, keepdims=True)
        return
    for label in classes:
        if label == OTHER:
            others = [one if isinstance(one, tuple) else (one,) for one in classes if one != OTHER]
            labels = list(itertools.chain.from_iterable(others))
            yield ~np.isin(values, labels)
        else:
            yield np.isin(values, label) if isinstance(label, tuple) else values == label


_FIELDS = ("total", "voxels", "places", "is_exact")


def _decode(content: bytes) -> SamplingMask | None:
    """Return a mask from another process; None if it is corrupt."""
    with suppress(BadZipFile):
        # From memory: NumPy would leave a corrupt file open.
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            meta = parse_json(str(archive["told"]))
            buffer, counts = archive["packed"].tobytes(), archive["counts"]
        ends = np.cumsum([0, *meta["sizes"]]).tolist()
        if ends[-1] != len(buffer):
            return None
        shape: Any = tuple(meta["shape"])
        tables = tuple(
            WeightTable(shape, **dict(zip(_FIELDS, fields, strict=True)), payload=buffer[begin:end])
            for fields, begin, end in zip(meta["tables"], ends[:-1], ends[1:], strict=True)
        )
        labels = tuple(tuple(one) if isinstance(one, list) else one for one in meta["labels"])
        cell: Any = meta["cell"]
        shares = CellCounts(shape, tuple(cell), counts) if cell else None
        return SamplingMask(labels, tables, shares)
    return None


def _encode(mask: SamplingMask) -> bytes:
    shapes = [part.shape for part in (mask.shares, *mask.tables) if part is not None]
    meta = {
        "shape": shapes[0] if shapes else (),
        "labels": mask.labels,
        "tables": [[getattr(table, name) for name in _FIELDS] for table in mask.tables],
        "sizes": [table.nbytes for table in mask.tables],
        "cell": mask.shares.cell if mask.shares is not None else None,
    }
    counts = np.zeros(0, np.uint32) if mask.shares is None else mask.shares.counts
    everything = np.frombuffer(b"".join(table.payload for table in mask.tables), np.uint8)
    content = io.BytesIO()
    np.savez_compressed(content, told=np.array(json.dumps(meta)), packed=everything, counts=counts)
    return content.getvalue()


# The tables of a thousand scans of 512 cubed, whose voxels would take 130 GB.
_MOST_BYTES = 256 * 1024**2
MASKS = PassCache("sampling/{}.npz", _decode, _encode, _MOST_BYTES, lambda mask: mask.nbytes)
"""Masks and weights by their sources; the least recently used are dropped first."""
