"""Which chunks a patch touches, from its plan and the header: no voxel is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import ChunkGrid, Sample
from ..spatial import LazyPatch
from ..volumes import Volume

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
        if isinstance(thing, LazyPatch) and isinstance(thing.volume, Volume):
            for place, part in enumerate(thing.parts):
                yield from chunks_of((sample.identity[:1], key, place), part)


def planned_apart(sample: Sample) -> Sample:
    """Return a sample whose plans are worked out anew: what is estimated for it stays with it."""
    lazy = {k: v for k, v in sample.items() if isinstance(v, LazyPatch)}
    apart = {
        key: patch.with_pending(patch.pending.following(sample.identity, patch.pending.steps))
        for key, patch in lazy.items()
    }
    return sample.with_data(**apart)


def chunks_of(name: tuple[Any, ...], patch: LazyPatch) -> Iterator[Touched]:
    """Yield the chunks that a patch touches; ``name`` is that of its volume."""
    volume: Any = patch.volume
    region = patch.source_region
    if region.is_empty:
        return
    shape = volume.shape[1:]
    chunk = volume.chunks or tuple(min(CUBE, n) for n in shape)
    grid = ChunkGrid(shape, chunk)
    size = math.prod(chunk) * volume.shape[0] * np.dtype(volume.disk_dtype).itemsize
    indices = np.array(list(grid.touched(region)))
    if indices.size == 0:
        return
    box = patch.plan.source_box(patch.policy)
    if box is not None and volume.chunks is not None and len(indices) > 1:
        start = np.maximum(indices * np.array(chunk), region.start)
        stop = np.minimum((indices + 1) * np.array(chunk), region.stop)
        indices = indices[box.touches(start, stop)]
    for index in indices.tolist():
        yield Touched((*name, *index), size)
