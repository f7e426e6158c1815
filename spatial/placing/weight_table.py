"""Tables of how likely each voxel is to be the middle of a patch: runs of equal weight.

A mask, a class of labels and a map of weights are one thing here: voxels that weigh something, and
a mask is a map of 0 and 1. Voxels beside each other on a line that weigh the same are one run, so a
label of a million voxels is some ten thousand runs, kept as a few bytes each. Where they do not
fit, as many runs are kept as do, spread evenly over all that weighs something.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.errors import PatchSizeError
from ...core.lru_cache import LRUCache, cached_property
from ..plans.mapping import to_output
from ..plans.plan import SpatialPlan
from .patch import nearest_box

Triple = tuple[int, int, int]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# What is held of the runs of one table while a volume is read: 24 MiB.
_RUN_LIMIT = 2**20
# Decoded runs of the tables in use: a hundred segmentations, or ten large maps of weights.
_RUN_CACHE_BYTES = 64 * 1024**2
# Bits of a weight that are kept: 1 to 4096 are exact, others are off by a thousandth at most.
_PRECISION = 12
# A run of a real segmentation takes this many bytes; where it is another number, a few more
# numbers of runs are tried.
_BYTES_PER_RUN = 2.0
# What runs weigh: as many as they have voxels, all the same, or a number of each voxel.
_BY_LENGTH, _ALIKE, _OWN = range(3)

# Places that are tried: a few at first, which do nearly always, and then more at once. Where half
# of what a turned box holds lies outside, one draw in 10^19 looks at every voxel.
_TRIES = (2, 6, 56)
NUMBERS = (1 + sum(_TRIES), 5)
"""What is drawn for one patch, whatever is needed of it: the first row is for what is chosen, the
others are tries: run, voxel, and the place in the voxel."""
# In voxels: more than two ways to compose a plan differ by.
_TIE = 1e-6
# Of which every one is looked at where no try fits: a few hundred milliseconds.
_MOST_VOXELS = 2**22

Fits = Callable[[Integers], NDArray[np.bool_]]
"""Says for which middles (N, 3) a patch about them will do."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of voxels along one axis, in the order of memory if that axis came last."""

    start: Integers  # (N,) the first voxel of each
    length: Integers  # (N,) voxels
    weight: Floats  # (N,) what each run weighs

    @cached_property
    def upto(self) -> Floats:
        """(N,) the weights up to each."""
        return np.cumsum(self.weight)

    @property
    def nbytes(self) -> int:
        """Memory that they take, the sums of weights included."""
        return self.start.nbytes + self.length.nbytes + 2 * self.weight.nbytes

    def __len__(self) -> int:
        return len(self.start)

    def choose(self, which: NDArray[Any]) -> Runs:
        """Return some of them."""
        return Runs(self.start[which], self.length[which], self.weight[which])


@dataclass(frozen=True, eq=False)
class WeightTable:
    """What the voxels of a grid weigh."""

    shape: Triple  # voxels of the grid
    total: float  # what all voxels weigh
    voxels: int  # how many voxels weigh anything
    places: int  # how many of them can be drawn
    is_exact: bool
    """Whether these are all: then each voxel is as likely as its weight, to a thousandth of it.
    Else runs were left out for want of room. Those that are kept lie evenly over all that weighs
    something, one in each of many parts of the same weight; they are drawn alike, so places come up
    as often as the weights say, and what is drawn weighs something always."""
    payload: bytes  # the runs

    @property
    def nbytes(self) -> int:
        """Memory that it takes; the runs of tables in use are decoded beside it, within bounds."""
        return len(self.payload)

    def pick(self, inside: Region, numbers: Floats) -> Integers | None:
        """Return voxels (N, 3) of a region, each as likely as its weight; None if none weighs."""
        # ``numbers`` are (N, 2) in [0, 1): for the run, and for the voxel in it.
        runs = self._inside(inside)
        if not len(runs):
            return None
        upto = runs.upto
        last = np.searchsorted(upto, upto[-1], side="left")  # none that weighs nothing beside it
        run = np.minimum(np.searchsorted(upto, numbers[:, 0] * upto[-1], side="right"), last)
        length = runs.length[run]
        along = np.minimum((numbers[:, 1] * length).astype(np.int64), length - 1)
        return self._voxels(runs.start[run] + along)

    def has_some(self, inside: Region) -> bool:
        """Return whether a voxel of a region weighs anything."""
        return len(self._inside(inside)) > 0

    def every(self, inside: Region, most: int) -> tuple[Integers, Floats]:
        """Return the voxels (N, 3) of a region and what they weigh."""
        # Where they are more than ``most``, the voxels in the middle of the runs stand for all.
        runs = self._inside(inside)
        if runs.length.sum() > most:
            return self._voxels(runs.start + runs.length // 2), runs.weight
        each = np.repeat(runs.weight / runs.length, runs.length)
        first = np.repeat(np.cumsum(runs.length) - runs.length, runs.length)
        along = np.arange(len(each)) - first
        return self._voxels(np.repeat(runs.start, runs.length) + along), each

    def _inside(self, region: Region) -> Runs:
        """Return what of the runs lies in a region."""
        whole = Region.of_shape(self.shape)

        def decode() -> Runs:
            if region == whole:
                return unpack(self.payload)
            return self._cut(self._inside(whole), region)

        return RUN_CACHE.get_or((self, region), decode)

    def _cut(self, runs: Runs, region: Region) -> Runs:
        order, lengths = _order(self.shape)
        low, high = ([ends[axis] for axis in order] for ends in (region.start, region.stop))
        line, first = np.divmod(runs.start, lengths[2])
        i, j = np.divmod(line, lengths[1])
        begin = np.maximum(first, low[2])
        length = np.minimum(first + runs.length, high[2]) - begin
        mask = (i >= low[0]) & (i < high[0]) & (j >= low[1]) & (j < high[1]) & (length > 0)
        part = runs.choose(mask)
        length = length[mask]
        weight = part.weight * (length / part.length)
        return Runs(part.start + (begin - first)[mask], length, weight)

    def _voxels(self, flat: Integers) -> Integers:
        order, lengths = _order(self.shape)
        voxels = np.empty((len(flat), 3), np.int64)
        for axis, index in zip(order, np.unravel_index(flat, lengths), strict=True):
            voxels[:, axis] = index
        return voxels


RUN_CACHE: LRUCache[Runs] = LRUCache(_RUN_CACHE_BYTES, lambda runs: runs.nbytes + 1)


class RunCollector:
    """Collects the runs of one table, part by part, in bounded memory."""

    def __init__(self, shape: Triple, most_held: int = _RUN_LIMIT) -> None:
        self.shape = shape
        self.total = 0.0
        self.voxels = 0
        self._most_held = most_held
        self._parts: list[Runs] = []
        self.count = 0
        self._is_thin = False
        # The same numbers in every process, and others every time.
        self._numbers = np.random.Generator(np.random.Philox(0))

    def add(self, runs: Runs) -> None:
        """Take the runs of a part."""
        with np.errstate(over="ignore"):
            self.total += float(runs.weight.sum())
        self.voxels += int(runs.length.sum())
        self._parts.append(runs)
        self.count += len(runs)
        if self.count > 2 * self._most_held and np.isfinite(self.total):
            self._parts = [_thin(self._join(), self._most_held, self._numbers)]
            self.count, self._is_thin = self._most_held, True

    def table(self, most: int) -> WeightTable:
        """Return the table, in ``most`` bytes at most."""
        runs = self._join()
        content = b""
        # No run takes less than a few bits.
        is_exact = not self._is_thin and len(runs) < 4 * most + 64
        if is_exact:
            content = pack(runs)
            is_exact = len(content) <= most or len(runs) <= 1
        count = min(len(runs), max(1, int(most / _BYTES_PER_RUN)))
        subset = runs
        while not is_exact:
            subset = _thin(runs, count, self._numbers)
            content = pack(subset)
            if len(content) <= most or count == 1:
                break
            count = max(1, min(count - 1, int(count * most / len(content) * 0.98)))
        _, first = np.unique(subset.start, return_index=True)
        places = int(subset.length[first].sum())
        return WeightTable(self.shape, self.total, self.voxels, places, is_exact, content)

    def _join(self) -> Runs:
        if not self._parts:
            return Runs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        names = ("start", "length", "weight")
        runs = Runs(*(np.concatenate([getattr(p, name) for p in self._parts]) for name in names))
        return runs.choose(np.argsort(runs.start, kind="stable"))


def tabulate(shape: Triple, parts: Iterable[tuple[Region, NDArray[Any]]], most: int) -> WeightTable:
    """Return the table, in ``most`` bytes, of weights that come in parts."""
    # Parts are regions that cover a grid, each voxel once, and the weights (i, j, k) there, finite
    # and from 0.
    collector = RunCollector(shape)
    for region, weights in parts:
        runs, values = runs_of(weights, region, shape)
        with np.errstate(over="ignore"):
            weight = values.astype(np.float64) * runs.length
        collector.add(Runs(runs.start, runs.length, weight).choose(values > 0))
    if not np.isfinite(collector.total):
        msg = "the weights of a volume add up to more than a number holds"
        do = "Divide them by a number: what counts is how they are to each other."
        raise PatchSizeError(msg, do=do)
    return collector.table(most)


def runs_of(values: NDArray[Any], region: Region, shape: Triple) -> tuple[Runs, NDArray[Any]]:
    """Return the runs of equal values (i, j, k) on a region of a grid, and the value of each."""
    # Every voxel is in one run. The weight of a run is its length.
    order, lengths = _order(shape)
    rows = np.ascontiguousarray(values.transpose(order))
    begins = np.ones(rows.shape, np.bool_)
    np.not_equal(rows[..., 1:], rows[..., :-1], out=begins[..., 1:])
    begin = np.flatnonzero(begins)
    length = np.diff(begin, append=rows.size)
    index = np.unravel_index(begin, rows.shape)
    i, j, k = (at + region.start[axis] for at, axis in zip(index, order, strict=True))
    start = (i * lengths[1] + j) * lengths[2] + k
    return Runs(start, length, length.astype(np.float64)), rows.ravel()[begin]


def pack(runs: Runs) -> bytes:
    """Return runs in few bytes; what they weigh loses a common factor."""
    columns: list[NDArray[Any]] = [np.diff(runs.start, prepend=0).astype("<u8")]
    columns.append(runs.length.astype("<u4"))
    each = runs.weight / runs.length
    kind = _BY_LENGTH if _is_one(each) else _ALIKE if _is_one(runs.weight) else _OWN
    if kind == _OWN:
        # A power of two: what weighs 1e300 fits too.
        _, exponent = np.frexp(each.max())
        fraction, own = np.frexp(np.ldexp(each, -exponent))
        weights = np.ldexp(np.rint(np.ldexp(fraction, _PRECISION)), own - _PRECISION)
        # What weighs anything can be drawn.
        columns.append(np.maximum(weights, np.finfo(np.float32).tiny).astype("<f4"))
    # Bytes of the same place beside each other: most of them are 0.
    planes = [c.view(np.uint8).reshape(len(runs), c.itemsize).T.tobytes() for c in columns]
    return bytes([kind]) + zlib.compress(b"".join(planes), 9)


def unpack(content: bytes) -> Runs:
    """Return the runs that :func:`pack` made bytes of; ValueError for other bytes."""
    kind = content[0]
    types: list[np.dtype[Any]] = [np.dtype("<u8"), np.dtype("<u4")]
    types += [np.dtype("<f4")] * (kind == _OWN)
    planes = np.frombuffer(zlib.decompress(content[1:]), np.uint8)
    count = len(planes) // sum(each.itemsize for each in types)
    columns, at = [], 0
    for each in types:
        part = planes[at : at + count * each.itemsize].reshape(each.itemsize, count)
        columns.append(np.ascontiguousarray(part.T).view(each)[:, 0])
        at += part.size
    length = columns[1].astype(np.int64)
    weight = np.ones(count) if kind == _ALIKE else length.astype(np.float64)
    if kind == _OWN:
        weight *= columns[2]
    return Runs(np.cumsum(columns[0].astype(np.int64)), length, weight)


def _is_one(values: Floats) -> bool:
    return bool((values == values[:1]).all())


def _thin(runs: Runs, count: int, numbers: np.random.Generator) -> Runs:
    """Return ``count`` runs of the same weight that stand for all of them."""
    # What there is is divided into so many parts of the same weight, along the order of memory, and
    # each part gives one run, as likely as it weighs; so no voxel has a better chance than another
    # of its weight.
    upto = np.cumsum(runs.weight)
    places = (np.arange(count) + numbers.random(count)) / count
    indices = np.searchsorted(upto, places * upto[-1], side="right")
    subset = runs.choose(np.minimum(indices, len(runs) - 1))
    return Runs(subset.start, subset.length, np.full(count, float(upto[-1]) / count))


def _order(shape: Triple) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the axes of a grid, that of the runs last, and their lengths."""
    # Along the longest axis there are the fewest lines.
    along = shape.index(max(shape))
    i, j = (axis for axis in range(3) if axis != along)
    return (i, j, along), (shape[i], shape[j], shape[along])


def draw_middle(
    table: WeightTable,
    low: Integers,
    high: Integers,
    numbers: Floats,
    plan: SpatialPlan,
    will_do: Fits | None = None,
    *,
    box: Region | None = None,
    spread: bool = False,
) -> Integers | None:
    """Return a voxel of the grid of a plan that is drawn from a table; None if there is none."""
    # It lies from ``low`` to ``high``, and is one that will do; ``numbers`` in [0, 1) have the
    # shape ``NUMBERS``. ``box`` is a box of the source that holds all such voxels, where one is
    # known. With ``spread`` a voxel of the source counts with all its extent, so that one that is
    # several voxels of the grid is any of them. Else it counts with its middle, and a voxel of the
    # grid that looks just it up is taken rather than one that is near.
    # A place that is not in the middle of a voxel may be the nearest one to one beside the box.
    edge = 0 if plan.is_copy else 1
    if box is None:
        box = nearest_box(plan.crop((low - edge).tolist(), (high - low + 1 + 2 * edge).tolist()))
    near: Integers | None = None
    for tries in np.split(numbers[1:], np.cumsum(_TRIES)[:-1]):
        voxels = table.pick(box, tries[:, :2])
        if voxels is None:
            return None
        is_spread = spread and not plan.is_copy
        places = voxels + tries[:, 2:] - 0.5 if is_spread else voxels
        middles, fits = _fitting(places.astype(np.float64), low, high, plan)
        if will_do is not None:
            fits &= will_do(middles)
        just = fits
        if not (spread or plan.is_copy or plan.is_displaced):
            # Those that look up the very voxels of the source; of a field, all.
            found_at = middles @ plan.matrix[:3, :3].T + plan.matrix[:3, 3]
            just = fits & (np.rint(found_at) == voxels).all(axis=1)
        if just.any():
            voxel: Integers = middles[np.argmax(just)]
            return voxel
        if near is None and fits.any():
            near = middles[np.argmax(fits)]
    if near is not None:
        return near
    # Little of what the box weighs will do.
    voxels, weights = table.every(box, _MOST_VOXELS)
    middles, fits = _fitting(voxels.astype(np.float64), low, high, plan)
    if will_do is not None:
        fits[fits] = will_do(middles[fits])
    if not fits.any():
        return None
    upto = np.cumsum(weights[fits])
    index = int(np.searchsorted(upto, numbers[0, 3] * upto[-1], side="right"))
    chosen_one: Integers = middles[fits][min(index, len(upto) - 1)]
    return chosen_one


def _fitting(
    places: Floats, low: Integers, high: Integers, plan: SpatialPlan
) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the voxels of the grid that source places are nearest to, and which will do."""
    points, valid = to_output(plan.to_output, plan.stages, places)
    # Never on the edge between two: volumes of a sample compute this place differently.
    middles = np.rint(points + _TIE).astype(np.int64)
    fits: NDArray[np.bool_] = ((middles >= low) & (middles <= high)).all(axis=1) & valid
    return middles, fits
