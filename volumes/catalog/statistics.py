"""Mean, spread, range and percentiles of a whole volume, computed once and kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import VolumeError
from ...core.histogram import Distribution, Histogram
from ...core.sample import parse_json
from ..volume import Volume
from .whole_pass import PassCache, refuse_complex, slabs_of

Box = tuple[int, int, int, int, int, int]
"""Start I, J, K and stop I, J, K; half open."""

# Between the smallest and the largest label: beyond, they are instances, of which nobody asks.
MOST_LABELS = 4096


class ClassBoxes:
    """Boxes of whole numbers, from a volume that comes in pieces."""

    def __init__(self) -> None:
        self._boxes: dict[int, list[int]] | None = {}

    def add(self, stored: NDArray[Any], start: Sequence[int]) -> None:
        """Take in a piece, (C, i, j, k), that begins at ``start``; floats end it all."""
        if self._boxes is None or stored.size == 0:
            return
        low = int(stored.min()) if stored.dtype.kind in "iu" else 0
        if stored.dtype.kind not in "iu" or int(stored.max()) - low >= MOST_LABELS:
            self._boxes = None
            return
        wide = stored if stored.dtype.kind == "u" else stored.astype(np.int64)
        codes = (wide - wide.dtype.type(low)).astype(np.int16)  # 12 bits
        there = np.flatnonzero(np.bincount(codes.ravel(order="K"))).tolist()
        presence = _one_by_one if len(there) <= _FEW else _at_once
        for axis, (first, present) in enumerate(zip(start, presence(codes, there), strict=True)):
            for code, row in zip(there, present, strict=True):
                places = np.flatnonzero(row)
                box = self._boxes.setdefault(low + code, [2**62] * 3 + [0] * 3)
                box[axis] = min(box[axis], first + int(places[0]))
                box[axis + 3] = max(box[axis + 3], first + int(places[-1]) + 1)
        if len(self._boxes) > MOST_LABELS:
            self._boxes = None

    def table(self) -> tuple[tuple[int, Box], ...]:
        """Return (number, box) in the order of the numbers; nothing if it came to an end."""
        found = sorted((self._boxes or {}).items())
        return tuple((number, (b[0], b[1], b[2], b[3], b[4], b[5])) for number, b in found)


# Of so many classes, looking at each takes less time than counting all at once.
_FEW = 24


def _one_by_one(codes: NDArray[np.int16], there: Sequence[int]) -> list[list[Any]]:
    """Return for each axis, and each code, at which indices it occurs."""
    found: list[list[Any]] = [[], [], []]
    for code in there:
        here: Any = (codes == code).any(axis=0)
        plane = here.any(axis=2)
        found[0].append(plane.any(axis=1))
        found[1].append(plane.any(axis=0))
        found[2].append(here.any(axis=(0, 1)))
    return found


def _at_once(codes: NDArray[np.int16], there: Sequence[int]) -> list[list[Any]]:
    """Return the same, by counting pairs of code and index."""
    found: list[list[Any]] = []
    for axis, length in enumerate(codes.shape[1:], start=1):
        index = np.arange(length, dtype=np.int32)
        index = index.reshape([-1 if other == axis else 1 for other in range(4)])
        pairs = codes.astype(np.int32) * length + index
        seen = np.bincount(pairs.ravel(), minlength=(there[-1] + 1) * length)
        present = seen.reshape(-1, length) > 0
        found.append([present[code] for code in there])
    return found


@dataclass(frozen=True)
class Moments:
    """Of none, or of some numbers."""

    count: int = 0
    """How many."""
    mean: float = 0.0
    """Their mean."""
    squares: float = 0.0
    """Sum of the squared distances from it."""
    low: float = math.inf
    """The smallest."""
    high: float = -math.inf
    """The largest."""

    @classmethod
    def of(cls, numbers: NDArray[Any]) -> Moments:
        """Return the moments of an array; those with a NaN or infinity are NaN."""
        wide = numbers.astype(np.float64)
        # Of infinite numbers there is none either, which whoever asks is told in words.
        with np.errstate(invalid="ignore"):
            low, high, mean = float(wide.min()), float(wide.max()), float(wide.mean())
            wide -= mean
            np.square(wide, out=wide)
            return cls(wide.size, mean, float(wide.sum()), low, high)

    @classmethod
    def counted(cls, histogram: Histogram) -> Moments:
        """Return the moments of the numbers in a histogram."""
        numbers, counts, count = histogram.values, histogram.counts, histogram.count
        mean = float((numbers * counts).sum()) / count
        squares = float((np.square(numbers - mean) * counts).sum())
        return cls(count, mean, squares, float(numbers[0]), float(numbers[-1]))

    def joined(self, other: Moments) -> Moments:
        """Return the moments of both together."""
        # Chan, Golub & LeVeque (1979).
        delta, count = other.mean - self.mean, self.count + other.count
        return Moments(
            count,
            self.mean + delta * other.count / count,
            self.squares + other.squares + delta * delta * self.count * other.count / count,
            float(np.minimum(self.low, other.low)),
            float(np.maximum(self.high, other.high)),
        )


PERCENTILES = (0.5, 1.0, 5.0, 50.0, 95.0, 99.0, 99.5)
"""Ranks of the percentiles that are kept; as many from either end, so a slope may be negative."""
# Atlases of the brain have some hundred; more are instances, whose counts nobody balances.
MOST_CLASSES = 4096


@dataclass(frozen=True)
class Statistics:
    """Numbers over all voxels and channels of one volume, as values."""

    mean: float
    """Arithmetic mean."""
    std: float
    """Population standard deviation."""
    minimum: float
    """Smallest value."""
    maximum: float
    """Largest value."""
    count: int
    """Number of voxels."""
    percentiles: tuple[float, ...] = ()
    """Those of ``PERCENTILES``, as ``numpy.percentile``; empty where they were not computed."""
    classes: tuple[tuple[float, int], ...] = ()
    """(value, number of voxels) of a label volume; empty for others, or of more than 4096."""
    boxes: tuple[tuple[float, Box], ...] = ()
    """(value, box that it lies in) of a volume of whole labels; empty for others."""

    def keeps(self, rank: float) -> bool:
        """Whether this percentile is kept."""
        return rank in PERCENTILES and bool(self.percentiles)

    def percentile(self, rank: float) -> float:
        """Return one of the percentiles that are kept."""
        if rank not in PERCENTILES:
            msg = f"percentiles are kept of the ranks {PERCENTILES}, got {rank!r}"
            raise ValueError(msg)
        if not self.percentiles:
            raise VolumeError(
                "the manifest has no percentiles.", do="Write it again (voxpipe index)."
            )
        return self.percentiles[PERCENTILES.index(rank)]

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as plain data; JSON has no NaN and no infinity, they are words."""
        percentiles = dict(zip(map(str, PERCENTILES), self.percentiles, strict=False))
        return {
            **{name: _number_out(getattr(self, name)) for name in _NUMBERS},
            "count": self.count,
            "percentiles": {rank: _number_out(value) for rank, value in percentiles.items()},
            "classes": [[_number_out(value), count] for value, count in self.classes],
            "boxes": [[_number_out(value), list(box)] for value, box in self.boxes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Statistics:
        """Return the numbers that :meth:`to_json` described, now or in an earlier version."""
        kept = data.get("percentiles") or {}
        ranks = [str(rank) for rank in PERCENTILES]
        return cls(
            **{name: float(data[name]) for name in _NUMBERS},
            count=int(data["count"]),
            percentiles=tuple(float(kept[rank]) for rank in ranks) if kept else (),
            classes=tuple((_plain(float(v)), int(n)) for v, n in data.get("classes") or ()),
            boxes=tuple((_plain(float(v)), _box(b)) for v, b in data.get("boxes") or ()),
        )


def _box(numbers: Sequence[Any]) -> Box:
    a, b, c, d, e, f = map(int, numbers)
    return (a, b, c, d, e, f)


_NUMBERS = ("mean", "std", "minimum", "maximum")


def volume_statistics(volume: Volume) -> Statistics:
    """Return mean, deviation, range and percentiles of a volume; of labels also class counts.

    Percentiles are exact for integers of up to 16 bits, and for whatever has at most 2^18
    different numbers. Others are known to half the width of a bin, of which there are 2^17 to
    2^18: of integers they divide the range; of floats their width is a part of the number itself,
    for float32 below 10^-4 of it as a rule, 0.2 % if every exponent occurred (float64: 3 %).

    The first call reads every voxel once, in bounded memory; none at all if
    the volume comes from a manifest that has them. Later ones, in this
    process or for the same content in another, read nothing. A NaN among the voxels
    makes all of them NaN but the count.

    Examples
    --------
    >>> found = volume_statistics(Volume(np.array([[[1.0, 2.0, 3.0, 6.0]]]), kind="label"))
    >>> found.mean, found.std, found.minimum, found.maximum, found.count
    (3.0, 1.8708286933869707, 1.0, 6.0, 4)
    >>> found.percentile(50), found.classes
    (2.5, ((1, 1), (2, 1), (3, 1), (6, 1)))
    """
    recorded: Statistics | None = volume.recorded_statistics
    if recorded is not None:
        return recorded
    return STATISTICS.get([volume], _how(volume), lambda: _compute(volume))


def has_statistics(volume: Volume) -> bool:
    """Whether :func:`volume_statistics` would read no voxel: a manifest or the cache has them."""
    recorded = volume.recorded_statistics is not None
    return recorded or STATISTICS.known([volume], _how(volume)) is not None


def _how(volume: Volume) -> tuple[str, ...]:
    return ("label",) if volume.kind == "label" else ()


def _compute(volume: Volume) -> Statistics:
    refuse_complex(
        volume,
        "which have no minimum",
        "Normalize with a mean= and std= of your own, or store the magnitude.",
    )
    distribution = Distribution(volume.header.value_type or volume.header.disk_dtype)
    moments = Moments()
    boxes = ClassBoxes() if volume.kind == "label" else None
    for region in slabs_of(volume):
        stored = volume.read(region).array
        distribution.add(stored)
        if boxes is not None:
            boxes.add(stored, region.start)
        if not distribution.is_dense:
            moments = moments.joined(Moments.of(stored))
    histogram = distribution.histogram()
    if distribution.is_dense:
        moments = Moments.counted(histogram)
    found = _as_values(volume, moments, histogram)
    if boxes is None:
        return found
    slope, intercept = volume.header.slope, volume.header.intercept
    table = tuple((_plain(float(n * slope + intercept)), box) for n, box in boxes.table())
    classes = _classes(volume, histogram) if distribution.is_exact else ()
    return replace(found, boxes=table, classes=classes)


def _as_values(volume: Volume, stored: Moments, histogram: Histogram) -> Statistics:
    """Return statistics of values from those of the stored numbers."""
    slope, intercept = volume.header.slope, volume.header.intercept
    ends = (slope * stored.low + intercept, slope * stored.high + intercept)
    if math.isnan(stored.mean):
        percentiles = [math.nan] * len(PERCENTILES)
    else:
        ranks = PERCENTILES if slope > 0 else [100 - rank for rank in PERCENTILES]
        # A bin may reach beyond the last number in it.
        found = np.clip([histogram.percentile(r) for r in ranks], stored.low, stored.high)
        percentiles = (found * slope + intercept).tolist()
    return Statistics(
        mean=slope * stored.mean + intercept,
        std=abs(slope) * math.sqrt(stored.squares / stored.count),
        minimum=float(np.minimum(*ends)),
        maximum=float(np.maximum(*ends)),
        count=stored.count,
        percentiles=tuple(percentiles),
    )


def _classes(volume: Volume, histogram: Histogram) -> tuple[tuple[float, int], ...]:
    numbers, counts = histogram.values, histogram.counts
    if len(numbers) > MOST_CLASSES or np.isnan(numbers).any():
        return ()
    values = numbers * volume.header.slope + volume.header.intercept
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return tuple(sorted((_plain(value), count) for value, count in pairs))


def _decoded(content: bytes) -> Statistics | None:
    """Return what another process computed, None if it is not complete."""
    found = Statistics.from_json(parse_json(content))
    return found if found.percentiles else None


STATISTICS = PassCache(
    "statistics/{}.json", _decoded, lambda found: json.dumps(found.to_json()).encode()
)


def _number_out(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _plain(value: float) -> float:
    """Return whole numbers as such: classes are 1 and 2, not 1.0 and 2.0."""
    return int(value) if value.is_integer() else value
