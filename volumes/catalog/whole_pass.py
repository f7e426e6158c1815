"""What one pass over all voxels of a volume tells, kept: its histogram, the box of its foreground.

A volume is read slab by slab along its chunks, so the memory needed does not grow with it.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.errors import VolumeError
from ...core.histogram import Distribution, Histogram
from ...core.lru_cache import MAX_WEIGHT, LRUCache
from ...core.sample import parse_json
from ...storage.content import content_key, content_key_now, version_key
from ...storage.disk_cache import cache_directory, get_or_make, load_entry
from ..volume import Volume, at_level, coarser_levels
from ..voxels import plain

T = TypeVar("T")

# One slab in float64 takes 32 MiB: well in memory, large enough to hide the Python loop.
SLAB_VOXELS = 4 * 1024**2
# An entry takes up to 4 MiB.
MOST_HISTOGRAMS = 16
# Of boxes on disk: another one is not read.
_VERSION = 1
_NOTHING = Region((0, 0, 0), (0, 0, 0))


class PassCache(Generic[T]):
    """Results of passes, in this process and on disk, where the key changes with the content.

    Of several processes one reads the volume.
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
        self.remembered: LRUCache[T] = LRUCache(most, weigh)

    def get(self, volumes: Sequence[Volume], how: tuple[Any, ...], compute: Callable[[], T]) -> T:
        """Return what is known of volumes, else what ``compute`` returns, which is kept."""

        def load() -> T:
            contents = [volume.content_key for volume in volumes]
            return get_or_make(
                self._file(contents, how),
                self._decode,
                compute,
                self._encode,
                unchanged=lambda: [content_key_now(volume) for volume in volumes] == contents,
            )

        return self.remembered.get_or((how, *map(version_key, volumes)), load)

    def known(self, volumes: Sequence[Volume], how: tuple[Any, ...]) -> T | None:
        """Return what is known of volumes; reads no voxel."""
        key = (how, *map(version_key, volumes))
        found = self.remembered.get(key)
        if found is not None:
            return found
        file = self._file([volume.content_key for volume in volumes], how)
        loaded = None if file is None else load_entry(file, self._decode)
        return None if loaded is None else self.remembered.get_or(key, lambda: loaded)

    def _file(self, contents: Sequence[str], how: tuple[Any, ...]) -> Path | None:
        if not all(contents):
            return None
        stem = content_key("-".join(contents), how) if how else "-".join(contents)
        return cache_directory() / self._place.format(stem)


def slabs(shape: tuple[int, int, int], unit: tuple[int, int, int], most: int) -> Iterator[Region]:
    """Yield regions that cover ``shape``, whole units each, of at most ``most`` voxels.

    A unit larger than ``most`` is yielded alone. The first axis grows first: it is
    contiguous in a NIfTI file.

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
    """Yield regions that cover a volume, of as many voxels as fit into memory with all channels."""
    most = max(1, SLAB_VOXELS // volume.shape[0])
    return slabs(volume.spatial_shape, volume.chunks or (1, 1, 1), most)


def refuse_complex(volume: Volume, what: str, do: str) -> None:
    """Raise where a volume is of complex numbers, ``what`` of which there is none."""
    if volume.dtype.kind == "c":
        raise VolumeError(f"{volume.name} holds complex numbers, {what}.", do=do)


def volume_histogram(
    volume: Volume, mask: Volume | None = None, channels: Sequence[int] | None = None
) -> Histogram:
    """Return how often each value occurs, in some channels, where a mask on its grid is above 0.

    Counted as :class:`~voxpipe.core.histogram.Distribution` does: exactly for
    integers of up to 16 bits and wherever at most 2^18 different numbers occur, else in bins whose
    middle is below 10^-4 of each number as a rule. The first call reads every voxel once; later
    ones, in this process or for the same content in another, read nothing. Of a mask with several
    channels any counts; a channel that is named twice counts twice.
    """
    if mask is not None and mask.shape[1:] != volume.shape[1:]:
        raise VolumeError(
            f"{volume.name} has {volume.shape[1:]} voxels, but the mask {mask.name} has "
            f"{mask.shape[1:]}",
            do="Statistics inside a label need one on the grid of the image.",
        )
    both = [volume] if mask is None else [volume, mask]
    how = () if channels is None else tuple(channels)
    return HISTOGRAMS.get(both, how, lambda: _histogram(volume, mask, channels))


def has_histogram(volume: Volume, mask: Volume | None = None) -> bool:
    """Whether :func:`volume_histogram` of all channels would read no voxel."""
    return HISTOGRAMS.known([volume] if mask is None else [volume, mask], ()) is not None


def _histogram(volume: Volume, mask: Volume | None, channels: Sequence[int] | None) -> Histogram:
    refuse_complex(
        volume,
        "of which there is no histogram",
        "Store magnitude and phase, or the two parts, as channels of real numbers.",
    )
    one = volume.read(Region((0, 0, 0), (1, 1, 1)))
    counted = Distribution(one.array.dtype)
    for region in slabs_of(volume):
        stored = volume.read(region).array
        if channels is not None:
            stored = stored[list(channels)]
        if mask is not None:
            stored = stored[:, (mask.read(region).array > 0).any(axis=0)]
        if not stored.size:
            continue
        if stored.dtype.kind == "f" and not np.isfinite(stored).all():
            raise VolumeError(
                f"{volume.name} holds NaN or infinite values, of which there is no histogram.",
                do="Give the numbers that the op needs.",
            )
        counted.add(stored)
    found = counted.histogram()
    if not found.count:
        where = f" inside {mask.name}" if mask is not None else ""
        raise VolumeError(
            f"{volume.name} has no voxel{where} to take statistics of.",
            do="Give the numbers, or filter such cases out.",
        )
    slope, intercept = volume.header.slope, volume.header.intercept
    return found.mapped(lambda stored: stored * slope + intercept)


def _histogram_of(content: bytes) -> Histogram | None:
    read = np.load(io.BytesIO(content), allow_pickle=False)
    if read.ndim == 2 and len(read) == 2 and read.size and read.dtype == np.float64:
        return Histogram(read[0], read[1].astype(np.int64))
    return None


def _histogram_bytes(histogram: Histogram) -> bytes:
    packed = io.BytesIO()
    # Counts are exact in float64.
    np.save(packed, np.stack([histogram.values, histogram.counts.astype(np.float64)]))
    return packed.getvalue()


HISTOGRAMS = PassCache("histograms/{}.npy", _histogram_of, _histogram_bytes, MOST_HISTOGRAMS)


@dataclass(frozen=True)
class ForegroundRule:
    """Which voxels are of interest; a voxel is if one of its channels is."""

    above: float | None = None
    """Values above this."""
    labels: tuple[int, ...] = ()
    """These values instead; with neither, all that is not 0."""

    def of(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values are of interest."""
        if self.labels:
            return np.isin(values, self.labels)
        found: NDArray[np.bool_] = values != 0 if self.above is None else values > self.above
        return found

    def describe(self) -> str:
        """Return the voxels in words."""
        if self.labels:
            return f"label{'s' * (len(self.labels) > 1)} {', '.join(map(str, self.labels))}"
        return "voxels other than 0" if self.above is None else f"voxels above {self.above:g}"


def occupied_box(volume: Volume, interest: ForegroundRule, level: int = 0) -> Region:
    """Return the smallest box of ``volume`` with all voxels of interest; empty if there are none.

    The first call reads the volume once, or less; none of it where its manifest has the box.
    Later ones, in this process or for the same content in another, read nothing. ``level`` counts
    resolutions, 0 for its own, the coarsest if it has fewer; a box of a coarser one is widened by
    one of its voxels, and lacks what that level has lost.
    """
    recorded = _recorded_box(volume, interest)
    if recorded is not None:
        return recorded
    return BOXES.get([volume], _box_key(interest, level), lambda: _box(volume, interest, level))


def known_box(volume: Volume, interest: ForegroundRule, level: int = 0) -> Region | None:
    """Return what :func:`occupied_box` does if that is known; reads no voxel."""
    recorded = _recorded_box(volume, interest)
    return BOXES.known([volume], _box_key(interest, level)) if recorded is None else recorded


def _box_key(interest: ForegroundRule, level: int) -> tuple[Any, ...]:
    return (_VERSION, interest.above, interest.labels, level)


def _recorded_box(volume: Volume, interest: ForegroundRule) -> Region | None:
    """Return the box around those classes of a manifest that are of interest; None without."""
    boxes = getattr(volume.recorded_statistics, "boxes", ())
    if not boxes:
        return None
    inside = interest.of(np.array([value for value, _ in boxes]))
    chosen = np.array([box for _, box in boxes])[inside]
    if len(chosen) == 0:
        return _NOTHING
    low, high = chosen[:, :3].min(axis=0).tolist(), chosen[:, 3:].max(axis=0).tolist()
    return Region(tuple(low), tuple(high))


def _box(volume: Volume, interest: ForegroundRule, level: int) -> Region:
    number = min(level, len(coarser_levels(volume)) if level else 0)
    if number:
        coarse = occupied_box(at_level(volume, number), interest)
        return coarse if coarse.is_empty else _widened(coarse, volume, number)
    refuse_complex(volume, "of which none is above another", "Store the magnitude.")
    lows, highs = [*volume.spatial_shape], [0, 0, 0]
    regions = list(slabs_of(volume))
    for number in range(len(regions)):
        # The outer ones first: what lies inside the box found so far cannot change it.
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


def _widened(box: Region, volume: Volume, number: int) -> Region:
    """Return a box of a coarser level, one of its voxels larger on each side, in the own voxels."""
    matrix = coarser_levels(volume)[number - 1]
    steps, shift = matrix.diagonal()[:3], matrix[:3, 3]
    lows = np.floor(steps * (np.array(box.start) - 1.5) + shift + 0.5).astype(int)
    highs = np.ceil(steps * (np.array(box.stop) + 0.5) + shift + 0.5).astype(int)
    return Region(tuple(lows), tuple(highs)).intersect(Region.of_shape(volume.spatial_shape))


def _region_of(content: bytes) -> Region:
    start, stop = parse_json(content)["box"]
    return Region(tuple(map(int, start)), tuple(map(int, stop)))


BOXES = PassCache(
    "boxes/{}.json", _region_of, lambda box: json.dumps({"box": [box.start, box.stop]}).encode()
)
