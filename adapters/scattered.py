"""Whether a shuffle of patches makes every chunk be decoded again and again, and what would not."""

from __future__ import annotations

import math
from typing import Any

from ..core.memory import usable_memory
from ..datapipes.cost import measure_access
from ..datapipes.iter import PatchSampler, ShufflePlans
from ..datapipes.shuffle_plans import CHUNK_LOCAL, GLOBAL, MEMORY_BYTES, NONE, OWN
from ..graph import Pipe, describe, parents_of, walk
from ..volumes.scheme import Demand, StoreLayout
from .profile import untimed

# What the loader grants itself for decoded chunks where it needs more than usual.
_MEMORY_PART = 4
# Below that a cache that holds everything would save less than half of the decoding.
_AGAIN = 2.0


def scattered(sink: Pipe) -> tuple[Pipe, str, str] | None:
    """Return a shuffle that defeats the chunk cache, what it does, and what to do about it.

    None where nothing is decoded twice anyway: volumes that are mapped or in memory, few patches
    of each, or all that are mixed fit into memory. Reads the headers of the first volumes, and
    that only where patches are shuffled.
    """
    found = _shuffle_of_patches(sink)
    if found is None:
        return None
    shuffle, patches = found
    asked = measure_access(untimed(sink), 0, 0)
    memory = max(MEMORY_BYTES, (usable_memory() or 0) // _MEMORY_PART)
    for key, layout in asked.layouts.items():
        demand = asked.demands[key]
        again, mixed = _again(layout, demand), _mixed(shuffle, layout, demand)
        if again < _AGAIN or mixed <= memory:
            continue
        what = f"{describe(shuffle)} mixes the patches of volumes of {_size(mixed)} ({key!r}), "
        what += f"more than memory keeps: each chunk is decoded about {again:.0f} times an epoch"
        what += ", and not once"
        do = f"Put .shuffle_plans(ShuffleSpec.chunk_local({MEMORY_BYTES})) in its place, after "
        return shuffle, what, f"{do}{describe(patches)}: it mixes what a cache of so much keeps."
    return None


def _shuffle_of_patches(sink: Pipe) -> tuple[Any, PatchSampler] | None:
    """Return the first shuffle of plans behind a pipe that cuts several patches of a volume."""
    behind: dict[int, PatchSampler | None] = {}
    for pipe in walk(sink):
        above = [behind[id(parent)] for parent in parents_of(pipe)]
        cut = above[0] if len(above) == 1 else None
        if cut is not None and hasattr(type(pipe), "set_shuffle") and not _is_local(pipe):
            return pipe, cut
        behind[id(pipe)] = pipe if isinstance(pipe, PatchSampler) else cut
    return None


def _is_local(pipe: Any) -> bool:
    # Of an order of the user's own nothing is known.
    return isinstance(pipe, ShufflePlans) and pipe.spec.kind in (CHUNK_LOCAL, NONE, OWN)


def _again(layout: StoreLayout, demand: Demand) -> float:
    """Return how often a chunk is decoded in an epoch if nothing is kept."""
    if layout.chunk is None:
        return 1.0
    chunks = math.prod(-(-n // c) for n, c in zip(layout.shape, layout.chunk, strict=True))
    return demand.draws * demand.chunks / chunks


def _mixed(shuffle: Any, layout: StoreLayout, demand: Demand) -> int:
    """Return the decoded bytes of the volumes whose patches are mixed."""
    window = getattr(shuffle, "buffer_size", None)
    if isinstance(shuffle, ShufflePlans) and shuffle.spec.kind != GLOBAL:
        window = shuffle.spec.size
    count = layout.volumes
    if window is not None:
        count = min(count, -(-window // demand.draws))
    return count * math.prod(layout.shape) * layout.itemsize


def _size(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"
