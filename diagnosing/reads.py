"""What the making of a batch reads, from its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..batching.parts import map_patches
from ..core import Sample
from ..spatial import LazyPatch
from ..spatial.lazy.read_plan import ReadPlan
from ..volumes import Volume


def reads_of(items: Sequence[Any]) -> tuple[ReadPlan, ...]:
    """Return the reads that the lazy patches among ``items`` need; reads headers only."""
    every = (
        t for i in map_patches(items, lambda p: p) if isinstance(i, Sample) for t in i.values()
    )
    patches = [thing for thing in every if isinstance(thing, LazyPatch)]
    reads = [read for patch in patches for read in patch.reads()]
    return tuple(r for r in reads if isinstance(r.volume, Volume) and not r.region.is_empty)
