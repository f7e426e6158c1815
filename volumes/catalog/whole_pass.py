"""Cached results of one pass over a volume: histogram, statistics, foreground boxes.

A pass reads slabs of whole chunks, so its memory does not grow with the volume.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...core import Affine, Region
from ...core.context import RUNNING_PASS
from ...core.errors import VolumeError
from ...core.histogram import Distribution, Histogram, Moments
from ...core.lru_cache import MAX_WEIGHT, LRUCache
from ...core.sample import parse_json
from ...storage.content import content_key, content_key_now, version_key
from ...storage.disk_cache import get_or_make, load_entry, results_folder
from ..axis_map import AxisMap
from ..source import LocatedSource
from ..volume import Volume
from ..voxels import plain

T = TypeVar("T")

# One slab in float64 takes 32 MiB, large enough to hide the Python loop.
SLAB_VOXELS = 4 * 1024**2
_SAMPLE_LAYERS = 32  # of chunks, or of voxels where there are none
MOST_HISTOGRAMS = 16  # of up to 4 MiB
_VERSION = 1  # of boxes on disk
WITHOUT_NAN = (
    "Take statistics where values are finite, inside= the key of a mask of these voxels, or give "
    "the numbers that the op needs, mean= and std= for instance, as map_values() changes only what "
    "is read later; or store the volume without NaN"
)
_NOTHING = Region((0, 0, 0), (0, 0, 0))


class PassCache(Generic[T]):
    """Results of passes by content key, in this process and on disk.

    One of several processes reads the volume; the others wait for its result.
    """

    def __init__(
        self,
        place: str,
        decode: Callable[[bytes], T | None],
        encode: Callable[[T], bytes],
        most: int = MAX_WEIGHT,
        weigh: Callable[[T], int] = lambda value: 1,
    ) -> None:
        self._place, self._decode, self._encode = place, decode, encode
        self.memory: LRUCache[T] = LRUCache(most, weigh)

    def get(self, volumes: Sequence[Volume], how: tuple[Any, ...], compute: Callable[[], T]) -> T:
        """Return the cached result of volumes, else the result of ``compute``, and cache it."""

        def load() -> T:
            contents = [volume.content_key for volume in volumes]
            with RUNNING_PASS.over(volume.name for volume in volumes):
                return get_or_make(
                    self._file(contents, how),
                    self._decode,
                    compute,
                    self._encode,
                    is_current=lambda: [content_key_now(volume) for volume in volumes] == contents,
                )

        return self.memory.get_or((how, *map(version_key, volumes)), load)

    def known_result(self, volumes: Sequence[Volume], how: tuple[Any, ...]) -> T | None:
        """Return the cached result of volumes, or None; reads no voxel."""
        key = (how, *map(version_key, volumes))
        if (result := self.memory.get(key)) is not None:
            return result
        file = self._file([volume.content_key for volume in volumes], how)
        entry = None if file is None else load_entry(file, self._decode)
        return None if entry is None else self.memory.get_or(key, lambda: entry)

    def _file(self, contents: Sequence[str], how: tuple[Any, ...]) -> Path | None:
        if not all(contents):
            return None
        stem = content_key("-".join(contents), how) if how else "-".join(contents)
        kind, _, name = self._place.partition("/")
        return results_folder(kind) / name.format(stem)


def slabs(shape: tuple[int, int, int], unit: tuple[int, int, int], most: int) -> Iterator[Region]:
    """Yield regions that cover ``shape``, whole units each, of at most ``most`` voxels.

    A unit larger than ``most`` is yielded alone. The first axis, contiguous in a NIfTI file, grows
    first.

    Examples
    --------
    >>> list(slabs((4, 4, 2), (1, 2, 1), 8))
    [Region(0:4, 0:2, 0:1), Region(0:4, 2:4, 0:1), Region(0:4, 0:2, 1:2), Region(0:4, 2:4, 1:2)]
    """
    size = list(unit)
    for axis in range(3):
        room = most // (math.prod(size) // size[axis])
        size[axis] = min(shape[axis], max(size[axis], room // unit[axis] * unit[axis]))
    i, j, k = (range(0, n, s) for n, s in zip(shape, size, strict=True))
    whole = Region.of_shape(shape)
    for start in ((a, b, c) for c in k for b in j for a in i):
        yield Region(start, tuple(a + s for a, s in zip(start, size, strict=True))).intersect(whole)


def slabs_of(volume: Volume) -> Iterator[Region]:
    """Yield regions of at most SLAB_VOXELS in all channels that cover a volume."""
    most = max(1, SLAB_VOXELS // volume.shape[0])
    return slabs(volume.spatial_shape, volume.chunks or (1, 1, 1), most)


def refuse_complex(volume: Volume, clause: str, do: str) -> None:
    """Raise VolumeError for complex numbers; ``clause`` names the missing operation."""
    if volume.dtype.kind == "c":
        raise VolumeError(f"{volume.name} holds complex numbers, {clause}.", do=do)


def volume_histogram(
    volume: Volume, mask: Volume | None = None, channels: Sequence[int] | None = None
) -> Histogram:
    """Return the counts of values in some channels where any channel of a mask is above 0.

    Counts are exact for integers of up to 16 bits and for at most 2^18 different numbers. Other
    numbers are counted in bins, usually narrower than 10^-4 of the number
    (:class:`~voxpipe.core.histogram.Distribution`). The first call reads every voxel once; later
    calls for the same content, in any process, read nothing. A channel given twice counts twice.
    """
    if mask is not None and mask.shape[1:] != volume.shape[1:]:
        msg = f"{volume.name} has {volume.shape[1:]} voxels, but the mask {mask.name} has "
        do = "Statistics inside a label need one on the grid of the image."
        raise VolumeError(f"{msg}{mask.shape[1:]}", do=do)
    both = [volume] if mask is None else [volume, mask]
    how = () if channels is None else tuple(channels)
    return HISTOGRAMS.get(both, how, lambda: _histogram(volume, mask, channels))


def has_histogram(volume: Volume, mask: Volume | None = None) -> bool:
    """Whether :func:`volume_histogram` of all channels would read no voxel."""
    return HISTOGRAMS.known_result([volume] if mask is None else [volume, mask], ()) is not None


def _histogram(volume: Volume, mask: Volume | None, channels: Sequence[int] | None) -> Histogram:
    do = "Store magnitude and phase, or the two parts, as channels of real numbers."
    refuse_complex(volume, "of which there is no histogram", do)
    voxel = volume.read(Region((0, 0, 0), (1, 1, 1)))
    distribution = Distribution(voxel.array.dtype)
    for region in slabs_of(volume):
        numbers = volume.read(region).array
        if channels is not None:
            numbers = numbers[list(channels)]
        if mask is not None:
            numbers = numbers[:, (mask.read(region).array > 0).any(axis=0)]
        if not numbers.size:
            continue
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            what = f"{volume.name} holds NaN or infinite values, of which there is no histogram."
            raise VolumeError(what, do=f"{WITHOUT_NAN}.")
        distribution.add(numbers)
    histogram = distribution.histogram()
    if not histogram.count:
        where = f" inside {mask.name}" if mask is not None else ""
        what = f"{volume.name} has no voxel{where} to take statistics of."
        raise VolumeError(what, do="Give the numbers, or filter such cases out.")
    slope, intercept = volume.header.slope, volume.header.intercept
    return histogram.map(lambda numbers: numbers * slope + intercept)


def _histogram_of(content: bytes) -> Histogram | None:
    read = np.load(io.BytesIO(content), allow_pickle=False)
    if read.ndim == 2 and len(read) == 2 and read.size and read.dtype == np.float64:
        return Histogram(read[0], read[1].astype(np.int64))
    return None


def _histogram_bytes(histogram: Histogram) -> bytes:
    buffer = io.BytesIO()
    # Counts are exact in float64.
    np.save(buffer, np.stack([histogram.values, histogram.counts.astype(np.float64)]))
    return buffer.getvalue()


HISTOGRAMS = PassCache("histograms/{}.npy", _histogram_of, _histogram_bytes, MOST_HISTOGRAMS)


@dataclass(frozen=True)
class ForegroundRule:
    """Rule for voxels of interest; one channel of interest is enough."""

    above: float | None = None  # values above this
    labels: tuple[int, ...] = ()  # these values instead; with neither, all values except 0
    selection: Any = None  # voxels by a function of the user instead

    def of(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the values of interest."""
        if self.labels:
            return np.isin(values, self.labels)
        mask: NDArray[np.bool_] = values != 0 if self.above is None else values > self.above
        return mask

    def describe(self) -> str:
        """Return the voxels in words."""
        if self.selection is not None:
            return f"voxels by {self.selection.describe()}"
        if self.labels:
            return f"label{'s' * (len(self.labels) > 1)} {', '.join(map(str, self.labels))}"
        return "voxels other than 0" if self.above is None else f"voxels above {self.above:g}"


def occupied_box(volume: Volume, interest: ForegroundRule, level: int = 0) -> Region:
    """Return the smallest box with all voxels of interest; an empty one if there are none.

    The first call reads the volume at most once, and nothing with a box in a manifest. Later calls
    for the same content, in any process, read nothing. ``level`` selects a resolution, 0 for the
    volume's own and at most the coarsest. A box of a coarser level is widened by one of its voxels,
    and misses details that the level has lost.
    """
    box = _recorded_box(volume, interest)
    if box is not None:
        return box
    return BOXES.get([volume], _box_key(interest, level), lambda: _box(volume, interest, level))


def known_box(volume: Volume, interest: ForegroundRule, level: int = 0) -> Region | None:
    """Return a cached or recorded :func:`occupied_box`, or None; reads no voxel."""
    box = _recorded_box(volume, interest)
    return BOXES.known_result([volume], _box_key(interest, level)) if box is None else box


def _box_key(interest: ForegroundRule, level: int) -> tuple[Any, ...]:
    own = () if interest.selection is None else (interest.selection.digest,)
    return (_VERSION, interest.above, interest.labels, level, *own)


def _recorded_box(volume: Volume, interest: ForegroundRule) -> Region | None:
    """Return the box of the classes of interest in a manifest; None without boxes."""
    boxes = getattr(volume.recorded_statistics, "boxes", ())
    if not boxes or interest.selection is not None:
        return None
    inside = interest.of(np.array([value for value, _ in boxes]))
    selection = np.array([box for _, box in boxes])[inside]
    if len(selection) == 0:
        return _NOTHING
    low, high = selection[:, :3].min(axis=0).tolist(), selection[:, 3:].max(axis=0).tolist()
    return Region(tuple(low), tuple(high))


def _box(volume: Volume, interest: ForegroundRule, level: int) -> Region:
    number = min(level, len(coarser_levels(volume)) if level else 0)
    if interest.selection is not None:
        coarse = _box(interest.selection.mask_of(volume, level), ForegroundRule(), 0)
        return _widen(coarse, volume, number) if number and not coarse.is_empty else coarse
    if number:
        coarse = occupied_box(at_level(volume, number), interest)
        return coarse if coarse.is_empty else _widen(coarse, volume, number)
    refuse_complex(volume, "of which none is above another", "Store the magnitude.")
    lows, highs = [*volume.spatial_shape], [0, 0, 0]
    regions = list(slabs_of(volume))
    for number in range(len(regions)):
        # The outer regions first: regions inside the box so far cannot change it.
        region = regions[-1 - number // 2 if number % 2 else number // 2]
        if Region(tuple(lows), tuple(map(max, lows, highs))).contains(region):
            continue
        inside: Any = interest.of(plain(volume.read(region).values())).any(axis=0)
        for axis in range(3):
            rest = tuple(other for other in range(3) if other != axis)
            hits = np.flatnonzero(inside.any(axis=rest))
            if hits.size:
                lows[axis] = min(lows[axis], region.start[axis] + int(hits[0]))
                highs[axis] = max(highs[axis], region.start[axis] + int(hits[-1]) + 1)
    return _NOTHING if highs[0] == 0 else Region(tuple(lows), tuple(highs))


def _widen(box: Region, volume: Volume, number: int) -> Region:
    """Return a box of a coarser level, widened by one of its voxels, in voxels of the volume."""
    matrix = coarser_levels(volume)[number - 1]
    steps, shift = matrix.diagonal()[:3], matrix[:3, 3]
    lows = np.floor(steps * (np.array(box.start) - 1.5) + shift + 0.5).astype(int)
    highs = np.ceil(steps * (np.array(box.stop) + 0.5) + shift + 0.5).astype(int)
    return Region(tuple(lows), tuple(highs)).intersect(Region.of_shape(volume.spatial_shape))


def coarser_levels(volume: Volume) -> tuple[Affine, ...]:
    """Return the matrices from indices of coarser levels to those of the volume; may open it.

    Only OME-Zarr and NIfTI-Zarr by path or URL have levels.
    """
    axis_map = volume.axis_map
    if volume.located_source is None or (axis_map and any(rule.axis for rule in axis_map.rules)):
        return ()
    return volume.probe().levels


def at_level(volume: Volume, number: int) -> Volume:
    """Return the level that is ``number`` steps coarser, 0 for the volume itself.

    Its affine follows from that of the volume, given by the user or stored.
    """
    if number == 0:
        return volume
    levels = coarser_levels(volume)
    base = volume.located_source
    if base is None or not 0 < number <= len(levels):
        msg = f"{volume.name} has {len(levels)} coarser levels, so 0 to that; got {number!r}"
        raise IndexError(msg)
    kwargs = base.options.reader_kwargs
    reader_kwargs = {**kwargs, "level": kwargs.get("level", 0) + number}
    options = replace(base.options, affine=None, reader_kwargs=reader_kwargs)
    # The absolute path: another process may run in another directory.
    source = LocatedSource(base.path or base.location, options)
    coarse = Volume.of_source(source, volume.kind, volume.affine @ levels[number - 1])
    return coarse if volume.axis_map is None else coarse.with_axis_map(volume.axis_map)


def reduce_volume(volume: Volume, statistics: str) -> Volume:
    """Return the voxels for statistics: ``"whole"``, ``"level 2"`` (coarser) or ``"sample"``.

    A sample has whole layers of chunks, evenly spread along the axis with the most layers.
    """
    if statistics == "whole":
        return volume
    if statistics.startswith("level"):
        number = min(int(statistics.split()[1]), len(coarser_levels(volume)))
        if number:
            return at_level(volume, number)
        msg = f"{volume.name} has no coarser level, and statistics={statistics!r} reads one"
        raise VolumeError(msg, do='Write statistics="sample" or "whole".')
    chunks, shape = volume.chunks or (1, 1, 1), volume.spatial_shape
    layers = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    axis = max(range(3), key=lambda axis: (layers[axis], axis))
    if layers[axis] <= _SAMPLE_LAYERS:
        return volume
    size, picks = chunks[axis], np.linspace(0, layers[axis] - 1, _SAMPLE_LAYERS).round()
    ends = [(int(n) * size, min((int(n) + 1) * size, shape[axis])) for n in picks]
    return volume.with_axis_map(AxisMap.from_table(axis, [n for end in ends for n in range(*end)]))


def _region_of(content: bytes) -> Region:
    start, stop = parse_json(content)["box"]
    return Region(tuple(map(int, start)), tuple(map(int, stop)))


BOXES = PassCache(
    "boxes/{}.json", _region_of, lambda box: json.dumps({"box": [box.start, box.stop]}).encode()
)


Box = tuple[int, int, int, int, int, int]  # start I, J, K and stop I, J, K; half open

# Range of labels with boxes; a wider range means instances, which need none.
MOST_LABELS = 4096


class ClassBoxes:
    """Boxes of whole numbers, collected from pieces of a volume."""

    def __init__(self) -> None:
        self._boxes: dict[int, list[int]] | None = {}

    def add(self, numbers: NDArray[Any], start: Sequence[int]) -> None:
        """Add a piece, (C, i, j, k), that begins at ``start``; floats discard all boxes."""
        if self._boxes is None or numbers.size == 0:
            return
        low = int(numbers.min()) if numbers.dtype.kind in "iu" else 0
        if numbers.dtype.kind not in "iu" or int(numbers.max()) - low >= MOST_LABELS:
            self._boxes = None
            return
        wide = numbers if numbers.dtype.kind == "u" else numbers.astype(np.int64)
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
        """Return (number, box) sorted by number; nothing if the boxes were discarded."""
        items = sorted((self._boxes or {}).items())
        return tuple((number, _box_of(box)) for number, box in items)


# Up to here, comparing with each code takes less time than counting all codes at once.
_FEW = 24


def _one_by_one(codes: NDArray[np.int16], there: Sequence[int]) -> list[list[Any]]:
    """Return for each axis and code a mask of the indices with that code."""
    presence: list[list[Any]] = [[], [], []]
    for code in there:
        here: Any = (codes == code).any(axis=0)
        plane = here.any(axis=2)
        presence[0].append(plane.any(axis=1))
        presence[1].append(plane.any(axis=0))
        presence[2].append(here.any(axis=(0, 1)))
    return presence


def _at_once(codes: NDArray[np.int16], there: Sequence[int]) -> list[list[Any]]:
    """Return the masks of :func:`_one_by_one` by counting pairs of code and index."""
    presence: list[list[Any]] = []
    for axis, length in enumerate(codes.shape[1:], start=1):
        index = np.arange(length, dtype=np.int32)
        index = index.reshape([-1 if other == axis else 1 for other in range(4)])
        pairs = codes.astype(np.int32) * length + index
        counts = np.bincount(pairs.ravel(), minlength=(there[-1] + 1) * length)
        present = counts.reshape(-1, length) > 0
        presence.append([present[code] for code in there])
    return presence


PERCENTILES = (0.5, 1.0, 5.0, 50.0, 95.0, 99.0, 99.5)
"""Ranks of the stored percentiles; symmetric, so that a slope may be negative."""
# Brain atlases have a few hundred classes; more are instances, whose counts are not balanced.
MOST_CLASSES = 4096


@dataclass(frozen=True)
class Statistics:
    """Statistics of the values of all voxels and channels of one volume."""

    mean: float  # arithmetic mean
    std: float  # population standard deviation
    minimum: float  # smallest value
    maximum: float  # largest value
    count: int  # number of voxels
    percentiles: tuple[float, ...]  # at ``PERCENTILES``, as by ``numpy.percentile``
    classes: tuple[tuple[float, int], ...] = ()
    """(value, number of voxels) of a label volume; empty for others, or above 4096 classes."""
    boxes: tuple[tuple[float, Box], ...] = ()  # (value, its box) of whole labels; empty for others

    def keeps(self, rank: float) -> bool:
        """Whether this percentile is stored."""
        return rank in PERCENTILES

    def percentile(self, rank: float) -> float:
        """Return one of the stored percentiles."""
        if rank not in PERCENTILES:
            raise ValueError(f"percentiles are kept of the ranks {PERCENTILES}, got {rank!r}")
        return self.percentiles[PERCENTILES.index(rank)]

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON data, with NaN and infinity as strings."""
        percentiles = dict(zip(map(str, PERCENTILES), self.percentiles, strict=True))
        return {
            **{name: _number_out(getattr(self, name)) for name in _NUMBERS},
            "count": self.count,
            "percentiles": {rank: _number_out(value) for rank, value in percentiles.items()},
            "classes": [[_number_out(value), count] for value, count in self.classes],
            "boxes": [[_number_out(value), list(box)] for value, box in self.boxes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Statistics:
        """Return the statistics of a document by :meth:`to_json`."""
        return cls(
            **{name: float(data[name]) for name in _NUMBERS},
            count=int(data["count"]),
            percentiles=tuple(float(data["percentiles"][str(rank)]) for rank in PERCENTILES),
            classes=tuple((_plain(float(v)), int(n)) for v, n in data["classes"]),
            boxes=tuple((_plain(float(v)), _box_of(b)) for v, b in data["boxes"]),
        )


def _box_of(numbers: Sequence[Any]) -> Box:
    a, b, c, d, e, f = map(int, numbers)
    return (a, b, c, d, e, f)


_NUMBERS = ("mean", "std", "minimum", "maximum")


def volume_statistics(volume: Volume) -> Statistics:
    """Return mean, deviation, range and percentiles of a volume; for labels also class counts.

    Percentiles are exact for integers of up to 16 bits and for at most 2^18 different numbers.
    Others are accurate to half the width of one of 2^17 to 2^18 bins. Bins divide the range of
    integers equally. Bins of floats are a fraction of the number: for float32 usually below 10^-4,
    at most 0.2 % (float64: 3 %).

    The first call reads every voxel once, in bounded memory, and nothing for a volume with
    statistics in a manifest. Later calls for the same content, in any process, read nothing. A NaN
    voxel makes all numbers but the count NaN.

    Examples
    --------
    >>> found = volume_statistics(Volume(np.array([[[1.0, 2.0, 3.0, 6.0]]]), kind="label"))
    >>> found.mean, found.std, found.minimum, found.maximum, found.count
    (3.0, 1.8708286933869707, 1.0, 6.0, 4)
    >>> found.percentile(50), found.classes
    (2.5, ((1, 1), (2, 1), (3, 1), (6, 1)))
    """
    statistics: Statistics | None = volume.recorded_statistics
    if statistics is not None:
        return statistics
    return STATISTICS.get([volume], _how(volume), lambda: _compute(volume))


def has_statistics(volume: Volume) -> bool:
    """Whether :func:`volume_statistics` would read no voxel: a manifest or the cache has them."""
    in_manifest = volume.recorded_statistics is not None
    return in_manifest or STATISTICS.known_result([volume], _how(volume)) is not None


def _how(volume: Volume) -> tuple[str, ...]:
    return ("label",) if volume.kind == "label" else ()


def _compute(volume: Volume) -> Statistics:
    do = "Normalize with a mean= and std= of your own, or store the magnitude."
    refuse_complex(volume, "which have no minimum", do)
    distribution = Distribution(volume.header.value_type or volume.header.disk_dtype)
    moments = Moments()
    boxes = ClassBoxes() if volume.kind == "label" else None
    for region in slabs_of(volume):
        numbers = volume.read(region).array
        distribution.add(numbers)
        if boxes is not None:
            boxes.add(numbers, region.start)
        if not distribution.is_dense:
            moments = moments.join(Moments.of(numbers))
    histogram = distribution.histogram()
    if distribution.is_dense:
        moments = Moments.of_histogram(histogram)
    statistics = _as_values(volume, moments, histogram)
    if boxes is None:
        return statistics
    slope, intercept = volume.header.slope, volume.header.intercept
    table = tuple((_plain(float(n * slope + intercept)), box) for n, box in boxes.table())
    classes = _classes(volume, histogram) if distribution.is_exact else ()
    return replace(statistics, boxes=table, classes=classes)


def _as_values(volume: Volume, moments: Moments, histogram: Histogram) -> Statistics:
    """Return statistics of values from those of the stored numbers."""
    slope, intercept = volume.header.slope, volume.header.intercept
    ends = (slope * moments.low + intercept, slope * moments.high + intercept)
    if math.isnan(moments.mean):
        percentiles = [math.nan] * len(PERCENTILES)
    else:
        ranks = PERCENTILES if slope > 0 else [100 - rank for rank in PERCENTILES]
        # A bin may reach beyond the last number in it.
        numbers = np.clip([histogram.percentile(r) for r in ranks], moments.low, moments.high)
        percentiles = (numbers * slope + intercept).tolist()
    return Statistics(
        mean=slope * moments.mean + intercept,
        std=abs(slope) * math.sqrt(moments.squares / moments.count),
        minimum=float(np.minimum(*ends)),
        maximum=float(np.maximum(*ends)),
        count=moments.count,
        percentiles=tuple(percentiles),
    )


def _classes(volume: Volume, histogram: Histogram) -> tuple[tuple[float, int], ...]:
    numbers, counts = histogram.values, histogram.counts
    if len(numbers) > MOST_CLASSES or np.isnan(numbers).any():
        return ()
    values = numbers * volume.header.slope + volume.header.intercept
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return tuple(sorted((_plain(value), count) for value, count in pairs))


STATISTICS = PassCache(
    "statistics/{}.json",
    lambda content: Statistics.from_json(parse_json(content)),
    lambda statistics: json.dumps(statistics.to_json()).encode(),
)


def _number_out(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _plain(value: float) -> float:
    return int(value) if value.is_integer() else value
