"""The box that the voxels of interest lie in: found once per volume, in bounded memory.

Read slab by slab along the chunks, the outer ones first, as what lies inside the box found so far
cannot change it. Kept per process, and on disk under a key that changes when the content does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.errors import VolumeError
from ...core.lru_cache import LRUCache
from ...core.sample import parse_json
from ...storage.content import content_key, content_key_now, version_key
from ...storage.disk_cache import cache_directory, get_or_make, load_entry
from ..volume import Volume, at_level, coarser_levels
from ..voxels import plain
from .statistics import SLAB_VOXELS, slabs

_REMEMBERED: LRUCache[Region] = LRUCache()
# Of what is kept on disk: another one is not read.
_VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True)
class ForegroundRule:
    """Which voxels are of interest; a voxel is if one of its channels is."""

    above: float | None = None
    """Values above this."""
    labels: tuple[int, ...] = ()
    """These values instead; with neither, all that is not 0."""

    def of(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values are of interest.

        Examples
        --------
        >>> ForegroundRule(above=2).of(np.array([1, 2, 3])).tolist()
        [False, False, True]
        """
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
    Later ones, in this process or for the same content in another, read nothing.

    Examples
    --------
    >>> array = np.zeros((8, 8, 8))
    >>> array[2:4, 5, 1:7] = 3
    >>> occupied_box(Volume(array), ForegroundRule(above=0))
    Region(2:4, 5:6, 1:7)
    """
    key = (*version_key(volume), interest, level)
    return _REMEMBERED.get_or(key, lambda: _known_or_computed(volume, interest, level))


def _known_or_computed(volume: Volume, interest: ForegroundRule, level: int) -> Region:
    recorded = _recorded(volume, interest)
    if recorded is not None:
        return recorded
    content = volume.content_key
    return get_or_make(
        _file(content, interest, level),
        _decoded,
        lambda: _computed(volume, interest, level),
        _encoded,
        unchanged=lambda: content_key_now(volume) == content,
    )


def known_box(volume: Volume, interest: ForegroundRule, level: int = 0) -> Region | None:
    """Return what :func:`occupied_box` does if that is known; reads no voxel."""
    found = _REMEMBERED.get((*version_key(volume), interest, level))
    return _known(volume, interest, level) if found is None else found


def _computed(volume: Volume, interest: ForegroundRule, level: int) -> Region:
    number = min(level, len(coarser_levels(volume)) if level else 0)
    if number:
        coarse = occupied_box(at_level(volume, number), interest)
        return coarse if coarse.is_empty else _widened(coarse, volume, number)
    if volume.dtype.kind == "c":
        raise VolumeError(
            f"{volume.name} holds complex numbers, of which none is above another.",
            do="Store the magnitude.",
        )
    lows, highs = [*volume.spatial_shape], [0, 0, 0]
    most = max(1, SLAB_VOXELS // volume.shape[0])
    regions = list(slabs(volume.spatial_shape, volume.chunks or (1, 1, 1), most))
    for region in _outer_first(regions):
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
    wide = Region(tuple(map(int, lows)), tuple(map(int, highs)))
    return wide.intersect(Region.of_shape(volume.spatial_shape))


_NOTHING = Region((0, 0, 0), (0, 0, 0))


def _outer_first(regions: Sequence[T]) -> Iterator[T]:
    """Yield the first, the last, the second, the last but one, and so on.

    Examples
    --------
    >>> list(_outer_first("abcde"))
    ['a', 'e', 'b', 'd', 'c']
    """
    for number in range(len(regions)):
        half = number // 2
        yield regions[-1 - half] if number % 2 else regions[half]


def _known(volume: Volume, interest: ForegroundRule, level: int) -> Region | None:
    """Return what the manifest or another process found out."""
    recorded = _recorded(volume, interest)
    file = _file(volume.content_key, interest, level) if recorded is None else None
    return recorded if file is None else load_entry(file, _decoded)


def _decoded(content: bytes) -> Region:
    start, stop = parse_json(content)["box"]
    return Region(tuple(map(int, start)), tuple(map(int, stop)))


def _recorded(volume: Volume, interest: ForegroundRule) -> Region | None:
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


def _encoded(found: Region) -> bytes:
    return json.dumps({"box": [found.start, found.stop]}).encode()


def _file(content: str, interest: ForegroundRule, level: int) -> Path | None:
    if not content:
        return None
    name = content_key(content, (_VERSION, interest.above, interest.labels, level))
    return cache_directory() / "boxes" / f"{name}.json"
