"""What a patch costs, and what is read before it: from plans, without reading a voxel."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ..batching import ApplyValue
from ..core.errors import VoxpipeError
from ..graph import (
    NoCut,
    Pipe,
    cut,
    describe,
    explain_graph,
    parents_of,
    verify,
    walk,
)
from ..spatial import LazyPatch, without_reading
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.patch_report import (
    breaks,
    interpolations,
    kept,
    left_to_numpy,
)
from ..spatial.plans.stages import BY_NUMPY
from ..spatial.resampling.native import available, path
from ..spatial.volume_like import stored_of
from ..volumes import Volume
from ..volumes.catalog.statistics import has_statistics
from ..volumes.catalog.whole_pass import ForegroundRule, has_histogram, known_box
from .choices import ChoicePipe
from .datapipe import DataPipe
from .epoch import copy_for_epoch, may_look_ahead
from .patch_sampler import PatchSampler
from .spatial import DataDependentPipe
from .values import ValuePipe

# Enough plans that a mean says something, few enough headers that nobody waits.
PLANS = 16
_MB = 1e6


@dataclass(frozen=True)
class WholePass:
    """Volumes that a pipe reads from end to end before it can make their first patch."""

    pipe: Pipe
    """Which."""
    key: str
    """Of the volumes."""
    bytes_each: int
    """Stored voxels of the first of them, in bytes; chunks that are compressed take fewer."""
    volumes: int
    """How many there are."""
    remote: bool
    """Whether they lie behind URLs."""

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return self.bytes_each * self.volumes

    def __str__(self) -> str:
        many = "volume" if self.volumes == 1 else "volumes"
        return (
            f"{self.key}, by {describe(self.pipe)}: {self.volumes} {many} of "
            f"{self.bytes_each / _MB:.3g} MB, {self.bytes / _MB:.3g} MB together, once; kept in "
            "the cache for all workers, epochs and runs"
        )


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
    """Bytes of the chunks that are read for these, per sample: fewer where a patch lies across its
    region, and chunks beside it are left out."""
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
    kept: tuple[str, ...] = ()
    """Per volume of the first sample that is made once and kept: where, and what that costs."""
    slow: tuple[str, ...] = ()
    """Which steps of which plans the kernel does not do together, and what to do."""
    passes: tuple[WholePass, ...] = ()
    """Which volumes are read as a whole, once, and by which pipe."""

    def __str__(self) -> str:
        reads = f"{self.reads:g} reads"
        size = f"{self.bytes_needed / _MB:.3g} MB"
        if self.bytes_read != self.bytes_needed:
            size += f" ({self.bytes_read / _MB:.3g} MB in whole chunks)"
        lines = [
            f"per patch: {reads}, {size}, {self.interpolations:g} interpolations, "
            f"{self.copies:g} copies   (mean of {self.patches} plans)"
        ]
        lines += [f"  {line}" for line in self.sampled]
        lines += (*self.kept, *self.unfused, *self.slow)
        lines += [f"read as a whole: {each}" for each in self.passes]
        if self.kernel:
            lines.append(f"resampled by: {self.kernel}")
        return "\n".join(lines)


def cost_of(graph: Pipe, seed: int, epoch: int) -> Cost | None:
    """Return the cost of the first patches of an epoch; None where nothing is planned lazily.

    Takes the graph as written: what adapters put in (timers, limits) is not asked to run.
    Reads the headers of the volumes concerned, and no voxel.
    """
    planner = _planner_of(graph)
    if planner is None:
        return None
    try:
        with without_reading():
            items = islice(copy_for_epoch(planner, seed, epoch), PLANS)
            samples = [patches_of(item) for item in items]
            cost = _mean([list(patches.values()) for patches in samples if patches])
    except (VoxpipeError, OSError, Warning):
        # What cannot be planned is reported when it is read, with its case and pipe.
        return None
    if cost is None:
        return None
    first = next(filter(None, samples))
    return replace(
        cost,
        sampled=_sampling_lines(first),
        kernel=_kernel(),
        unfused=_unfused_lines(first),
        kept=_kept_lines(first),
        slow=_slow_lines(samples),
        passes=passes_of(graph, seed, epoch),
    )


def passes_of(graph: Pipe, seed: int, epoch: int) -> tuple[WholePass, ...]:
    """Return which volumes will be read as a whole, as the first case shows.

    Statistics, boxes of foreground and tables of masks take a pass over each volume, unless a
    manifest or the cache has them, or the voxels are in memory. Reads the headers of one case.
    """
    asking = [pipe for pipe in walk(graph) if _reads_whole(pipe)]
    planner = _planner_of(graph) if asking else None
    if planner is None:
        return ()
    try:
        with without_reading():
            last = _volumes_of(copy_for_epoch(planner, seed, epoch))
            sources = [pipe for pipe in walk(graph) if not parents_of(pipe)]
            volumes = [last] * len(asking)
            if any(hasattr(pipe, "renamed") for pipe in walk(planner)):
                planned = set(map(id, walk(planner)))
                for n, pipe in enumerate(asking):  # by the names that they have before each
                    if id(pipe) in planned:
                        before = copy_for_epoch(parents_of(pipe)[0], seed, epoch)
                        volumes[n] = _volumes_of(before)
            return tuple(_passes(asking, volumes, sum(map(_count, sources))))
    except (VoxpipeError, OSError, Warning):
        return ()


def _planner_of(graph: Pipe) -> Pipe | None:
    """Return the part of a graph that plans; None where it cannot be iterated for a look."""
    split = cut(graph)
    return None if isinstance(split, NoCut) or not may_look_ahead(split.planner) else split.planner


def _volumes_of(planner: Pipe) -> dict[str, Volume]:
    first = next(map(patches_of, planner), {})
    volumes = {key: stored_of(patch.volume) for key, patch in first.items()}
    return {key: v for key, v in volumes.items() if isinstance(v, Volume)}


def _reads_whole(pipe: Any) -> bool:
    if isinstance(pipe, PatchSampler):
        return pipe.mask is not None or pipe.weights is not None
    change = _change_of(pipe)
    asks = change is not None and change.step.op.takes_statistics
    return isinstance(pipe, DataDependentPipe) or asks


def _change_of(pipe: Any) -> ApplyValue | None:
    """Return what a pipe does to values, that of a choice included."""
    if isinstance(pipe, ValuePipe):
        return pipe.instructions()[0]
    return pipe.change if isinstance(pipe, ChoicePipe) else None


def _count(source: Any) -> int:
    try:
        return len(source)
    except TypeError:
        return 1


def _passes(
    asking: list[Pipe], volumes: Sequence[Mapping[str, Volume]], count: int
) -> Iterator[WholePass]:
    told: set[tuple[str, str]] = set()
    for pipe, given in zip(asking, volumes, strict=True):
        for key, volume, what, number in _passes_of_pipe(pipe, given, count):
            in_memory = all(p.located is None and p.access == "view" for p in volume.parts)
            if in_memory or (key, what) in told:
                continue
            told.add((key, what))
            size = math.prod(volume.shape) * volume.disk_dtype.itemsize
            located = [part.located for part in volume.parts]
            remote = any(place is not None and not place.path for place in located)
            yield WholePass(pipe, key, size, number, remote)


def _passes_of_pipe(
    pipe: Any, volumes: Mapping[str, Volume], count: int
) -> Iterator[tuple[str, Volume, str, int]]:
    """Yield which volumes a pipe reads as a whole, what for, and how many there are."""
    if isinstance(pipe, PatchSampler):
        given: Any = pipe.weights if pipe.mask is None else pipe.mask
        if isinstance(given, Volume):
            yield given.name, given, "table", 1
        elif given in volumes:
            yield given, volumes[given], "table", count
    elif isinstance(pipe, DataDependentPipe):
        asking: Any = pipe.steps[0].op
        needs = asking.needs
        volume = volumes.get(needs.key)
        if volume is not None and not _box_is_known(volume, needs):
            yield needs.key, volume, f"box {needs}", count
    else:
        yield from _passes_of_statistics(pipe, volumes, count)


def _passes_of_statistics(
    pipe: Any, volumes: Mapping[str, Volume], count: int
) -> Iterator[tuple[str, Volume, str, int]]:
    change: Any = _change_of(pipe)
    op = change.step.op
    keys = change.keys or op.named_keys or [k for k, v in volumes.items() if v.kind == op.kind]
    mask = volumes.get(op.mask_key) if op.mask_key else None
    of_some = mask is not None or getattr(op, "above", None) is not None
    for key in keys:
        volume = volumes.get(key)
        if volume is None:
            continue
        if not (has_histogram(volume, mask) if of_some else has_statistics(volume)):
            yield key, volume, "histogram" if of_some else "statistics", count


def _box_is_known(volume: Volume, needs: Any) -> bool:
    if isinstance(needs.above, str):
        return False
    return known_box(volume, ForegroundRule(needs.above, needs.labels), needs.level) is not None


def _sampling_lines(patches: dict[str, LazyPatch]) -> tuple[str, ...]:
    keys = max(map(len, patches))
    kinds = max(len(patch.kind) for patch in patches.values())
    return tuple(
        f"{key:<{keys}}  {patch.kind:<{kinds}}  {_policy(patch)}" for key, patch in patches.items()
    )


def _unfused_lines(patches: dict[str, LazyPatch]) -> tuple[str, ...]:
    found = _by_text({key: breaks(patch) for key, patch in patches.items()})
    return tuple(f"not fused: {who} sampled anew after {what}" for what, who in found.items())


def _kept_lines(patches: dict[str, LazyPatch]) -> tuple[str, ...]:
    found = _by_text({key: (kept(patch),) for key, patch in patches.items()})
    return tuple(f"kept: {who} made once, {what}" for what, who in found.items() if what)


def _by_text(texts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return by text the keys that have it, as the subject of a sentence."""
    found: dict[str, list[str]] = {}
    for key, several in texts.items():
        for text in several:
            found.setdefault(text, []).append(key)
    verbs = {text: "is" if len(keys) == 1 else "are" for text, keys in found.items()}
    return {text: f"{' and '.join(keys)} {verbs[text]}" for text, keys in found.items()}


def _slow_lines(samples: list[dict[str, LazyPatch]]) -> tuple[str, ...]:
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
    read = [one for patch in every for one in patch.reads()]
    count = len(samples)
    interpolated, copies = map(sum, zip(*map(interpolations, every), strict=True))
    return Cost(
        patches=count,
        reads=sum(not one.region.is_empty for one in read) / count,
        bytes_needed=sum(one.read_bytes(whole_chunks=False) for one in read) / count,
        bytes_read=sum(one.read_bytes(whole_chunks=True) for one in read) / count,
        interpolations=interpolated / count,
        copies=copies / count,
    )


def explain(pipe: Pipe) -> str:
    """Return a chain as text: one line per pipe, and what one patch costs.

    Reads the headers of the first volumes for the cost, and no voxel. A loader's own
    ``explain()`` also shows what adapters changed and what runs in which process.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((64, 64, 64), np.int16)}]).open_volume()
    >>> print(explain(pipe.lazy_patch(32).flip().batch_patches(1)))
    0 from_cases(1 cases)
    1 open_volume()
    2 lazy_patch(32)
    3 flip()
    4 batch_patches(1)
    <BLANKLINE>
    per patch: 1 reads, 0.0655 MB, 0 interpolations, 1 copies   (mean of 1 plans)
      image  intensity  linear, border outside
    resampled by: ...
    """
    cost = cost_of(verify(pipe), seed=0, epoch=0)
    return explain_graph(pipe) + (f"\n\n{cost}" if cost is not None else "")


DataPipe.explainer = staticmethod(explain)
