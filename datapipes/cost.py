"""What a patch costs: read from the plans of the first samples, without reading a voxel."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from ..core import ChunkGrid, Sample
from ..core.errors import VoxpipeError
from ..graph import NoCut, Pipe, clone, cut, parents_of, traits_of, walk
from ..spatial import LazyPatch, without_reading
from ..spatial.lazy.made_volume import StoredRead, breaks, interpolations, stored_reads
from ..spatial.lazy.slow_steps import left_to_numpy
from ..spatial.plans.stages import BY_NUMPY
from ..spatial.resampling.native import available, path
from .epoch import set_epoch
from .iter.cases import FromCases, ListCases

# Enough plans that a mean says something, few enough headers that nobody waits.
PLANS = 16
_MB = 1e6


@dataclass(frozen=True)
class Cost:
    """Means over the plans that were looked at."""

    patches: int
    """Samples looked at."""
    reads: float
    """Reads per sample."""
    bytes_needed: float
    """Bytes of the source regions, per sample."""
    bytes_read: float
    """Bytes of the chunks that these touch, per sample."""
    interpolations: float
    """Interpolations per sample."""
    copies: float
    """Plain copies per sample: plans that move whole voxels only."""
    sampled: tuple[str, ...] = ()
    """Per volume of the first sample: key, kind, mode, padding and fill, in words."""
    kernel: str = ""
    """What resamples in this process; workers have the same."""
    unfused: tuple[str, ...] = ()
    """Per volume of the first sample that is interpolated anew: after which op, and where."""
    slow: tuple[str, ...] = ()
    """Which steps of which plans the kernel does not do together, and what to do."""

    def __str__(self) -> str:
        reads = f"{self.reads:g} reads"
        size = f"{self.bytes_needed / _MB:.3g} MB"
        if self.bytes_read > self.bytes_needed:
            size += f" ({self.bytes_read / _MB:.3g} MB in whole chunks)"
        lines = [
            f"per patch: {reads}, {size}, {self.interpolations:g} interpolations, "
            f"{self.copies:g} copies   (mean of {self.patches} plans)"
        ]
        lines += [f"  {line}" for line in self.sampled]
        lines += (*self.unfused, *self.slow)
        if self.kernel:
            lines.append(f"resampled by: {self.kernel}")
        return "\n".join(lines)


def cost_of(graph: Pipe, seed: int, epoch: int) -> Cost | None:
    """Return the cost of the first patches of an epoch; None where nothing is planned lazily.

    Takes the graph as written: what adapters put in (timers, limits) is not asked to run.
    Reads the headers of the volumes concerned, and no voxel.
    """
    split = cut(graph)
    if isinstance(split, NoCut) or not may_look_ahead(split.planner):
        return None
    # A copy: looking ahead must not disturb an epoch that is running.
    planner = clone(split.planner)
    set_epoch(planner, seed, epoch)
    try:
        with warnings.catch_warnings(), without_reading():
            warnings.simplefilter("ignore")  # they come when the patches are made
            samples = [dict(_patches(item)) for item in islice(planner, PLANS)]
            cost = _mean([list(patches.values()) for patches in samples if patches])
    except (VoxpipeError, OSError):
        # What cannot be planned is reported when it is read, with its case and pipe.
        return None
    if cost is None:
        return None
    # Not where warnings are ignored: that the kernel is missing is said once.
    first = next(filter(None, samples))
    return replace(
        cost,
        sampled=_sampled(first),
        kernel=_kernel(),
        unfused=_unfused(first),
        slow=_slow(samples),
    )


def may_look_ahead(planner: Pipe) -> bool:
    """Whether planning a few items uses up nothing and runs nothing of the user's."""
    every = list(walk(planner))
    sources = [pipe for pipe in every if not parents_of(pipe)]
    again = all(isinstance(pipe, (FromCases, ListCases)) for pipe in sources)
    return again and not any(traits_of(p).opaque or not traits_of(p).known for p in every)


def _patches(item: object) -> Iterator[tuple[str, LazyPatch]]:
    if isinstance(item, Sample):
        yield from ((key, thing) for key, thing in item.items() if isinstance(thing, LazyPatch))


def _sampled(patches: dict[str, LazyPatch]) -> tuple[str, ...]:
    keys = max(map(len, patches))
    kinds = max(len(patch.kind) for patch in patches.values())
    return tuple(
        f"{key:<{keys}}  {patch.kind:<{kinds}}  {_policy(patch)}" for key, patch in patches.items()
    )


def _unfused(patches: dict[str, LazyPatch]) -> tuple[str, ...]:
    found: dict[str, list[str]] = {}
    for key, patch in patches.items():
        for what in breaks(patch):
            found.setdefault(what, []).append(key)
    return tuple(
        f"not fused: {' and '.join(keys)} {'is' if len(keys) == 1 else 'are'} "
        f"sampled anew after {what}"
        for what, keys in found.items()
    )


def _slow(samples: list[dict[str, LazyPatch]]) -> tuple[str, ...]:
    """Return a line for each set of steps that NumPy does, with the volumes and their number."""
    found: dict[tuple[str, ...], list[str]] = {}
    for patches in samples:
        for key, patch in patches.items():
            for names in left_to_numpy(patch):
                found.setdefault(names, []).append(key)
    return tuple(
        f"by NumPy: {' and '.join(dict.fromkeys(keys))}, {len(keys)} plan(s) looked at, in which "
        f"{', '.join(names)} meet: {BY_NUMPY}"
        for names, keys in found.items()
    )


def _policy(patch: LazyPatch) -> str:
    policy = patch.policy
    fill = f" {policy.fill:g}" if policy.padding == "constant" else ""
    smooth = ", antialiased" if policy.antialias else ""
    smooth += " from coarser levels" if policy.antialias == "level" else ""
    return f"{policy.mode}{smooth}, {policy.padding}{fill} outside"


def _kernel() -> str:
    if os.environ.get("VOXPIPE_NATIVE") == "0":
        return "NumPy, as VOXPIPE_NATIVE=0 asks: the same values, many times slower"
    if available():
        return f"native {path()}"
    return "NumPy, because the native kernel is missing (make native): many times slower"


def _mean(samples: list[list[LazyPatch]]) -> Cost | None:
    if not samples:
        return None
    every = [patch for patches in samples for patch in patches]
    read = [one for patch in every for one in stored_reads(patch)]
    count = len(samples)
    interpolated, copies = map(sum, zip(*map(interpolations, every), strict=True))
    return Cost(
        patches=count,
        reads=sum(not one.region.is_empty for one in read) / count,
        bytes_needed=sum(_bytes(one, whole_chunks=False) for one in read) / count,
        bytes_read=sum(_bytes(one, whole_chunks=True) for one in read) / count,
        interpolations=interpolated / count,
        copies=copies / count,
    )


def _bytes(read: StoredRead, *, whole_chunks: bool) -> int:
    volume, region, *_ = read
    chunks = volume.chunks
    if whole_chunks and chunks is not None:
        region = ChunkGrid(volume.shape[1:], chunks).cover(region)
    return int(region.size * volume.shape[0] * volume.disk_dtype.itemsize)
