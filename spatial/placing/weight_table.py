"""Tables of the probability of each voxel to be the middle of a patch: runs of equal weight.

A mask, a class of labels and a weight map are all weighted voxels; a mask is a map of 0 and 1.
Neighbours of equal weight on a line form a run. A label of a million voxels has some ten thousand
runs of a few bytes. If the runs exceed the limit, a sample of them is kept, evenly by weight.
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

# Limit of one table's runs while a volume is read: 24 MiB.
_RUN_LIMIT = 2**20
# Decoded runs of the tables in use: a hundred segmentations, or ten large maps of weights.
_RUN_CACHE_BYTES = 64 * 1024**2
# Precision of weights: 1 to 4096 are exact, others are off by a thousandth at most.
_PRECISION = 12
# Bytes of a run in real segmentations; for others a few more numbers of runs are tried.
_BYTES_PER_RUN = 2.0
# Weights of runs: their lengths, all equal, or a number for each voxel.
_BY_LENGTH, _ALIKE, _OWN = range(3)

# Numbers of tries: nearly always a few suffice, even if half of a turned box is outside.
_TRIES = (2, 6, 56)
NUMBERS = (1 + sum(_TRIES), 5)
"""Shape of the draws for one patch, independent of their use. The first row chooses; the others are
tries: run, voxel, and the place in the voxel."""
# In voxels: above the difference between two ways to compose a plan.
_TIE = 1e-6
# Limit for checking every voxel if no try fits: a few hundred milliseconds.
_MOST_VOXELS = 2**22

Fits = Callable[[Integers], NDArray[np.bool_]]
"""Returns for middles (N, 3) whether a patch about them is accepted."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of voxels along one axis, in the order of memory if that axis came last."""

    start: Integers  # (N,) first voxels
    length: Integers  # (N,) voxels
    weight: Floats  # (N,) weights of runs

    @cached_property
    def upto(self) -> Floats:
        """(N,) cumulative weights."""
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
    """Weights of the voxels of a grid."""

    shape: Triple  # voxels of the grid
    total: float  # sum of the weights
    voxels: int  # number of voxels with a weight
    places: int  # number of these that can be drawn
    is_exact: bool
    """Whether all runs are kept: then each voxel is as likely as its weight, to a thousandth of it.
    Else the table keeps one run from each of many parts of equal weight, drawn alike. So places
    follow the weights, and a drawn voxel always has a weight."""
    payload: bytes  # the runs

    @property
    def nbytes(self) -> int:
        """Memory of the packed table; decoded runs are in ``RUN_CACHE``."""
        return len(self.payload)

    def pick(self, inside: Region, numbers: Floats) -> Integers | None:
        """Return voxels (N, 3) of a region, drawn by weight; None if none has a weight."""
        # ``numbers`` are (N, 2) in [0, 1): for the run, and for the voxel in it.
        runs = self._inside(inside)
        if not len(runs):
            return None
        upto = runs.upto
        last = np.searchsorted(upto, upto[-1], side="left")  # skips trailing runs without weight
        run = np.minimum(np.searchsorted(upto, numbers[:, 0] * upto[-1], side="right"), last)
        length = runs.length[run]
        along = np.minimum((numbers[:, 1] * length).astype(np.int64), length - 1)
        return self._voxels(runs.start[run] + along)

    def has_some(self, inside: Region) -> bool:
        """Return whether a voxel of a region has a weight."""
        return len(self._inside(inside)) > 0

    def every(self, inside: Region, most: int) -> tuple[Integers, Floats]:
        """Return the voxels (N, 3) of a region and their weights."""
        # Above ``most`` voxels, the middle voxels of the runs stand for all.
        runs = self._inside(inside)
        if runs.length.sum() > most:
            return self._voxels(runs.start + runs.length // 2), runs.weight
        each = np.repeat(runs.weight / runs.length, runs.length)
        first = np.repeat(np.cumsum(runs.length) - runs.length, runs.length)
        along = np.arange(len(each)) - first
        return self._voxels(np.repeat(runs.start, runs.length) + along), each

    def _inside(self, region: Region) -> Runs:
        """Return the runs in a region, cut at its faces."""
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
        # The same sequence in every process, with new numbers at every call.
        self._numbers = np.random.Generator(np.random.Philox(0))

    def add(self, runs: Runs) -> None:
        """Add the runs of a part."""
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
    """Return the table of weights in parts, in ``most`` bytes."""
    # Parts cover a grid, each voxel once, with weights (i, j, k), finite and from 0.
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
    """Return packed runs; weights lose a common factor."""
    columns: list[NDArray[Any]] = [np.diff(runs.start, prepend=0).astype("<u8")]
    columns.append(runs.length.astype("<u4"))
    each = runs.weight / runs.length
    kind = _BY_LENGTH if _is_one(each) else _ALIKE if _is_one(runs.weight) else _OWN
    if kind == _OWN:
        # A power of two, so that weights of 1e300 fit, too.
        _, exponent = np.frexp(each.max())
        fraction, own = np.frexp(np.ldexp(each, -exponent))
        weights = np.ldexp(np.rint(np.ldexp(fraction, _PRECISION)), own - _PRECISION)
        # Any weight above 0 must stay above 0.
        columns.append(np.maximum(weights, np.finfo(np.float32).tiny).astype("<f4"))
    # Group bytes by their position in a number: most of them are 0.
    planes = [c.view(np.uint8).reshape(len(runs), c.itemsize).T.tobytes() for c in columns]
    return bytes([kind]) + zlib.compress(b"".join(planes), 9)


def unpack(content: bytes) -> Runs:
    """Return the runs from :func:`pack`; ValueError for other bytes."""
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
    # The total is divided into parts of equal weight along the order of memory. Each part gives one
    # run, drawn by weight, so voxels of equal weight have equal chances.
    upto = np.cumsum(runs.weight)
    places = (np.arange(count) + numbers.random(count)) / count
    indices = np.searchsorted(upto, places * upto[-1], side="right")
    subset = runs.choose(np.minimum(indices, len(runs) - 1))
    return Runs(subset.start, subset.length, np.full(count, float(upto[-1]) / count))


def _order(shape: Triple) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the axes of a grid and their lengths, the axis of the runs last."""
    # The longest axis gives the fewest lines.
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
    """Return a voxel of a plan's grid, drawn from a table; None if none fits."""
    # The voxel is from ``low`` to ``high``, and passes ``will_do``; ``numbers`` in [0, 1) have the
    # shape ``NUMBERS``. ``box`` is a box of the source with all such voxels, if known. With
    # ``spread`` a source voxel counts with its extent, so it may be any of several voxels of the
    # grid. Else its middle counts, and a voxel of the grid that looks it up exactly is preferred to
    # a near one.
    #
    # For plans that are no copy, add one voxel: the nearest voxel may be outside the box.
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
            # Voxels of the grid that look up exactly these source voxels; for a field, all.
            found_at = middles @ plan.matrix[:3, :3].T + plan.matrix[:3, 3]
            just = fits & (np.rint(found_at) == voxels).all(axis=1)
        if just.any():
            voxel: Integers = middles[np.argmax(just)]
            return voxel
        if near is None and fits.any():
            near = middles[np.argmax(fits)]
    if near is not None:
        return near
    # Few of the box's voxels fit: check all.
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
    """Return the grid voxels nearest to source places, and whether they are allowed."""
    points, valid = to_output(plan.to_output, plan.stages, places)
    # Off the edge between voxels: volumes of a sample round this place differently.
    middles = np.rint(points + _TIE).astype(np.int64)
    fits: NDArray[np.bool_] = ((middles >= low) & (middles <= high)).all(axis=1) & valid
    return middles, fits
