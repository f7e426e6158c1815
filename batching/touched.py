"""Which chunks a patch touches, from its plan and the header: no voxel is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..core import Sample
from ..spatial import LazyPatch
from ..spatial.lazy.made_volume import StoredRead, stored_reads
from ..volumes import Volume
from ..volumes.chunks.chunked_array import Cuts, Needed

# Bare voxels have no chunks: they are counted in cubes of this edge, which are kept or not by the
# operating system.
CUBE = 32


@dataclass(frozen=True)
class Touched:
    """One chunk that a patch touches."""

    chunk: tuple[Any, ...]
    """Which one: the volume, and the index."""
    bytes: int
    """What it takes decoded."""


def touched(sample: Any) -> Iterator[Touched]:
    """Yield the chunks that the lazy patches of a sample touch."""
    if not isinstance(sample, Sample):
        return
    for key, thing in sample.items():
        if isinstance(thing, LazyPatch):
            for place, read in enumerate(stored_reads(thing)):
                yield from chunks_of((sample.identity[:1], key, place), read)


def planned_apart(sample: Sample) -> Sample:
    """Return a sample whose plans are worked out anew: what is estimated for it stays with it."""
    lazy = {k: v for k, v in sample.items() if isinstance(v, LazyPatch)}
    apart = {
        key: patch.with_pending(patch.pending.following(sample.identity, patch.pending.steps))
        for key, patch in lazy.items()
    }
    return sample.with_data(**apart)


def chunks_of(name: tuple[Any, ...], read: StoredRead) -> Iterator[Touched]:
    """Yield the chunks that are read of a file; ``name`` is that of its volume."""
    if read.region.is_empty or not isinstance(read.volume, Volume):
        return
    needed = read.needed
    if needed is None:
        shape = read.volume.spatial_shape
        cube = tuple(min(CUBE, n) for n in shape)
        cubes = Cuts(shape, cube).touched(read.region)
        size = math.prod(cube) * read.volume.shape[0] * read.volume.disk_dtype.itemsize
        needed = Needed(cubes, 0, size)
    for index in needed.chunks.tolist():
        yield Touched((*name, read.level, *index), needed.chunk_bytes)
