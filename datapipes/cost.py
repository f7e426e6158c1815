"""The cost of patches and their access pattern: from the first plans, without reading a voxel."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, product
from typing import Any

import numpy as np

from ..core import Sample
from ..core.call_site import looking_ahead, shorten
from ..core.errors import SampleError, VoxpipeError
from ..core.native_library import native_level
from ..graph import (
    NoCut,
    Pipe,
    cut,
    describe,
    explain_graph,
    is_branch,
    parents_of,
    traits_of,
    verify,
    walk,
)
from ..spatial import LazyPatch
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.patch_report import breaks, describe_kept, interpolations, numpy_steps
from ..spatial.lazy.read_plan import ReadPlan
from ..spatial.lazy.stack import read_volume_of
from ..spatial.ops.op import size_on
from ..spatial.plans.stages import BY_NUMPY
from ..spatial.resampling.native_resampler import available, path
from ..volumes import Volume
from ..volumes.catalog.whole_pass import (
    ForegroundRule,
    has_histogram,
    has_statistics,
    known_box,
    reduce_volume,
)
from ..volumes.scheme import AccessHint, Demand, StoreLayout
from .datapipe import DataPipe
from .epoch import copy_for_epoch, may_look_ahead
from .item_numbers import items_from
from .patch_sampler import PatchSampler
from .shuffle_plans import Interleave
from .spatial import DataDependentPipe, PipeSteps
from .stitch import Stitch
from .values import ChangesValues

# Enough plans for a mean, few enough headers for a short wait.
PLANS = 16
_MB = 1e6


@dataclass(frozen=True)
class WholePass:
    """Volumes that a pipe reads from end to end before it can make their first patch."""

    pipe: Pipe  # which
    key: str  # of the volumes
    bytes_each: int
    """Stored voxels of the first of them, in bytes; chunks that are compressed take fewer."""
    volumes: int  # how many there are
    remote: bool  # whether they are at URLs

    @property
    def bytes(self) -> int:
        """Stored voxels of all volumes, in bytes."""
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

    patches: int  # samples looked at
    reads: float  # reads per sample
    bytes_needed: float  # bytes of the source regions, per sample
    bytes_read: float
    """Bytes of the chunks that are read for these, per sample: fewer if a rotated patch leaves out
    chunks of its region."""
    interpolations: float  # interpolations per sample
    copies: float  # plain copies per sample: plans that move whole voxels only
    notes: tuple[str, ...] = ()
    """A line each for:

    - volumes of the first sample: how they are sampled, made once and kept, or sampled anew;
    - work of NumPy, volumes read as a whole, and the resampler."""

    def __str__(self) -> str:
        reads = f"{self.reads:g} reads"
        size = f"{self.bytes_needed / _MB:.3g} MB"
        if self.bytes_read != self.bytes_needed:
            size += f" ({self.bytes_read / _MB:.3g} MB in whole chunks)"
        line = f"per patch: {reads}, {size}, {self.interpolations:g} interpolations, "
        line += f"{self.copies:g} copies   (mean of {self.patches} plans)"
        return "\n".join([line, *self.notes])


def cost_of(graph: Pipe, seed: int, epoch: int, tail: Sequence[Pipe] = ()) -> Cost | None:
    """Return the cost of the first patches of an epoch; None where nothing is planned lazily.

    ``tail`` are the pipes after the graph that run in the loader's process.
    """
    # Takes the graph as written: additions of adapters (timers, limits) do not run. Reads the
    # headers of the volumes concerned, and no voxel.
    planner = _planner_of(graph)
    if planner is None:
        return None
    with looking_ahead():
        items = islice(items_from(copy_for_epoch(planner, seed, epoch), 0), PLANS)
        plans = list(items)
        samples = [patches for item in plans if (patches := _patches_in(item))]
        means = _means([list(patches.values()) for patches in samples])
        one = next((p for p in plans if isinstance(p, Sample) and patches_of(p)), None)
        stitches = [pipe for pipe in tail if isinstance(pipe, Stitch)]
        words = [pipe.in_words(one) for pipe in stitches if one is not None]
    if means is None:
        return None
    first = samples[0]
    keys = max(map(len, first))
    kinds = max(len(patch.kind) for patch in first.values())
    once = _by_text({key: (describe_kept(patch),) for key, patch in first.items()}).items()
    anew = _by_text({key: breaks(patch) for key, patch in first.items()}).items()
    notes = [f"  {key:<{keys}}  {p.kind:<{kinds}}  {_policy(p)}" for key, p in first.items()]
    notes += [f"kept: {who} made once, {what}" for what, who in once]
    notes += [f"not fused: {who} sampled anew after {what}" for what, who in anew]
    notes += _slow_lines(samples)
    notes += [f"read as a whole: {each}" for each in passes_of(graph, seed, epoch)]
    notes += [*filter(None, words), *chain.from_iterable(map(_fixed_angles, walk(graph)))]
    return replace(means, notes=(*notes, f"resampled by: {_kernel()}"))


def _patches_in(item: Any) -> dict[str, LazyPatch]:
    """Return the lazy patches of a sample, or of the samples that ``zip()`` put side by side."""
    if not isinstance(item, tuple):
        return patches_of(item)
    every = enumerate(map(patches_of, item), 1)
    return {f"{key} {number}": patch for number, one in every for key, patch in one.items()}


def _lines_of_branches(graph: Pipe) -> list[str]:
    """Return a line for each pipe whose branches share its items."""
    trunks = {id(p): p for one in walk(graph) if is_branch(one) for p in parents_of(one)}
    lines = []
    for trunk in trunks.values():
        room = getattr(trunk, "buffer_size", None)
        how_many = f"up to {room}" if isinstance(room, int) and room >= 0 else "any number of"
        has_voxels = any(traits_of(pipe).voxels for pipe in walk(trunk))
        what = "with their voxels" if has_voxels else "as plans, without voxels"
        lines.append(
            f"{describe(trunk)}: its branches share one pass over what is before it; {how_many} "
            f"items wait for the slowest, {what}"
        )
    return lines


def passes_of(graph: Pipe, seed: int, epoch: int) -> tuple[WholePass, ...]:
    """Return which volumes will be read as a whole, as the first case shows."""
    # Statistics, boxes of foreground and tables of masks take a pass over each volume. Exceptions:
    # a manifest or the cache has them, or the voxels are in memory. Reads the headers of one case.
    asking = [pipe for pipe in walk(graph) if _reads_whole(pipe)]
    planner = _planner_of(graph) if asking else None
    if planner is None:
        return ()
    try:
        with looking_ahead():
            count = sum(_length(pipe, 1) for pipe in walk(graph) if not parents_of(pipe))
            every = list(walk(planner))
            has_new_keys = any(hasattr(pipe, "new_keys") for pipe in every)
            last = _volumes_of(copy_for_epoch(planner, seed, epoch))
            passes: dict[tuple[str, str], WholePass] = {}
            for pipe in asking:
                volumes = last
                if has_new_keys and any(one is pipe for one in every):  # by the names before it
                    volumes = _volumes_of(copy_for_epoch(parents_of(pipe)[0], seed, epoch))
                for key, volume, what, number in _passes_of_pipe(pipe, volumes, count):
                    places = [part.located_source for part in volume.parts]
                    if any(places) or any(part.access != "view" for part in volume.parts):
                        size = math.prod(volume.shape) * volume.disk_dtype.itemsize
                        remote = any(place is not None and not place.path for place in places)
                        entry = WholePass(pipe, key, size, number, remote)
                        passes.setdefault((key, what), entry)
            return tuple(passes.values())
    except (VoxpipeError, OSError, Warning):
        return ()


def _planner_of(graph: Pipe) -> Pipe | None:
    """Return the part of a graph that plans; None where it cannot be iterated for a look."""
    split = cut(graph)
    return None if isinstance(split, NoCut) or not may_look_ahead(split.planner) else split.planner


def _volumes_of(planner: Pipe) -> dict[str, Volume]:
    first = next(map(patches_of, planner), {})
    volumes = {
        key: getattr(patch.volume, "stored_volume", patch.volume) for key, patch in first.items()
    }
    return {key: v for key, v in volumes.items() if isinstance(v, Volume)}


def _reads_whole(pipe: Any) -> bool:
    if isinstance(pipe, PatchSampler):
        return pipe.mask is not None or pipe.weights is not None
    change = pipe.change if isinstance(pipe, ChangesValues) else None
    asks = change is not None and change.step.op.takes_statistics
    return isinstance(pipe, DataDependentPipe) or asks


def _passes_of_pipe(
    pipe: Any, volumes: Mapping[str, Volume], count: int
) -> Iterator[tuple[str, Volume, str, int]]:
    """Yield the volumes that a pipe reads as a whole, the purpose, and their number."""
    if isinstance(pipe, PatchSampler):
        source: Any = pipe.weights if pipe.mask is None else pipe.mask
        if isinstance(source, Volume):
            yield source.name, source, "table", 1
        elif source in volumes:
            yield source, volumes[source], "table", count
    elif isinstance(pipe, DataDependentPipe):
        asking: Any = pipe.steps[0].op
        needs = asking.needs
        volume = volumes.get(needs.key)
        rule = ForegroundRule(needs.above, needs.labels)
        is_statistic = isinstance(needs.above, str)
        if volume is not None and (is_statistic or known_box(volume, rule, needs.level) is None):
            yield needs.key, volume, f"box {needs}", count
    else:
        change = pipe.change
        op = change.step.op
        keys = change.keys or op.named_keys or [k for k, v in volumes.items() if v.kind == op.kind]
        mask = volumes.get(op.mask_key) if op.mask_key else None
        of_some = mask is not None or getattr(op, "above", None) is not None
        for key in keys:
            if (volume := volumes.get(key)) is None:
                continue
            volume = reduce_volume(volume, getattr(op, "statistics", "whole"))
            if not (has_histogram(volume, mask) if of_some else has_statistics(volume)):
                yield key, volume, "histogram" if of_some else "statistics", count


def _by_text(texts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return by text the keys that have it, as the subject of a sentence."""
    groups: dict[str, list[str]] = {}
    for key, several in texts.items():
        for text in filter(None, several):
            groups.setdefault(text, []).append(key)
    verbs = {text: "is" if len(keys) == 1 else "are" for text, keys in groups.items()}
    return {text: f"{' and '.join(keys)} {verbs[text]}" for text, keys in groups.items()}


def _slow_lines(samples: list[dict[str, LazyPatch]]) -> tuple[str, ...]:
    """Return a line for each set of steps that NumPy does, with the volumes and their number."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, patch in (one for patches in samples for one in patches.items()):
        for names in numpy_steps(patch):
            groups.setdefault(names, []).append(key)
    return tuple(
        f"by NumPy: {' and '.join(dict.fromkeys(keys))}, {len(keys)} plan(s) looked at, in which "
        f"{', '.join(names)} meet: {BY_NUMPY}"
        for names, keys in groups.items()
    )


def _policy(patch: LazyPatch) -> str:
    policy = patch.policy
    fill = f" {policy.fill:g}" if policy.padding == "constant" else ""
    smooth = ", antialiased" if policy.antialias else ""
    smooth += " from coarser levels" if policy.antialias == "level" else ""
    lengths = getattr(read_volume_of(patch), "lengths", "")
    size = f", stored voxels of {lengths}" if lengths else ""
    return f"{policy.mode}{smooth}, {policy.padding}{fill} outside{size}"


def _kernel() -> str:
    if native_level() is None:
        return "NumPy, as VOXPIPE_NATIVE=0 asks: the same values, many times slower"
    if available():
        return f"native {path()}"
    return "NumPy, because the native kernel is missing (make native): many times slower"


def _means(samples: list[list[LazyPatch]]) -> Cost | None:
    if not samples:
        return None
    every = [patch for patches in samples for patch in patches]
    read = [one for patch in every for one in patch.reads()]
    reads = sum(not one.region.is_empty for one in read)
    exact, whole = (sum(one.read_bytes(whole_chunks=w) for one in read) for w in (False, True))
    resamples, copies = map(sum, zip(*map(interpolations, every), strict=True))
    n = len(samples)
    return Cost(n, reads / n, exact / n, whole / n, resamples / n, copies / n)


def explain(pipe: Pipe) -> str:
    """Return a chain as text: one line per pipe, and the cost of one patch.

    Reads the headers of the first volumes for the cost, and no voxel. A loader's own
    ``explain()`` also shows changes by adapters and the process of each pipe.

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
    body, tail = verify(pipe), []
    while traits_of(body).main_process and len(parents_of(body)) == 1:
        tail.append(body)
        (body,) = parents_of(body)
    return "\n\n".join(filter(None, [explain_graph(pipe), explain_cost(body, 0, 0, tail)]))


def explain_cost(graph: Pipe, seed: int, epoch: int, tail: Sequence[Pipe] = ()) -> str:
    """Return :func:`cost_of` as text, or why it is unknown, and shared items of branches."""
    try:
        cost = cost_of(graph, seed, epoch, tail)
        lines = [] if cost is None else [str(cost)]
    except VoxpipeError as error:
        lines = [f"nothing could be planned: {error}"]
    except (OSError, Warning):  # reported when it is read, with its case and pipe
        lines = []
    return "\n".join([*lines, *_lines_of_branches(graph)])


def _fixed_angles(pipe: Pipe) -> Iterator[str]:
    """Yield a line for each single angle, which other libraries take for a range."""
    steps: Any = vars(pipe).get("steps")  # of a user's pipe it may be anything
    for step, name in product(steps if isinstance(steps, PipeSteps) else (), ("degrees", "rotate")):
        angle = getattr(step.op, name, None)
        if angle and not isinstance(angle, tuple) and angle % 90:  # turns are meant
            draws = f"{name}=({-abs(angle):g}, {abs(angle):g}) draws the angles"
            yield f"{describe(pipe)}: {angle:g} degrees each time; {draws}"


DataPipe.explainer = staticmethod(explain)


# A percentile of 99 needs about as many.
SAMPLE_COUNT = 256
# Headers of a bucket take 0.1 s each, and the epoch waits for them; cases of one list are stored
# alike. They are those with which the epoch goes on: it would read these headers anyway.
CASES = 4
# Time that planning may add to the start of an epoch.
SECONDS = 0.25
# Longest skip to the place of a resume: later patches cost the same, and a skip through the order
# of an epoch is slow.
FARTHEST = 10_000
# Plans that are made in any case. The first one of a bucket opens a connection, and one patch is
# no estimate of the chunks of others.
LEAST_PLANS = 8


@dataclass(frozen=True)
class AccessPattern:
    """The access pattern of a chain, by key; or why it is unknown beforehand."""

    layouts: Mapping[str, StoreLayout] = field(default_factory=dict)  # how they are stored
    demands: Mapping[str, Demand] = field(default_factory=dict)  # of the patches
    volumes: Mapping[str, Volume] = field(default_factory=dict)  # the first volume of each key
    left_out: Mapping[str, str] = field(default_factory=dict)  # by key: why nothing is known of it
    unknown: str = ""  # why nothing was measured


def measure_access(
    graph: Pipe,
    seed: int,
    epoch: int,
    batches: int = 0,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> AccessPattern:
    """Return the access pattern of the next patches of an epoch."""
    # Reads the headers of the first volumes, and no voxel.
    split, hint = cut(graph), _hint_of(graph)
    if isinstance(split, NoCut):
        return AccessPattern(unknown=split.reason)
    if not may_look_ahead(split.planner):
        why = "planning ahead would use up the source, or run functions of yours"
        return AccessPattern(unknown=why)
    planner = copy_for_epoch(split.planner, seed, epoch)
    by_key: dict[str, list[LazyPatch]] = {}
    left_out: dict[str, str] = {}
    cases: set[int] = set()
    order: list[int] = []
    try:
        with looking_ahead():
            start = min(batches * split.group, FARTHEST)
            for item in _for_a_while(islice(items_from(planner, start), SAMPLE_COUNT), clock):
                if not isinstance(item, Sample):
                    continue
                order.append(item.identity[0])
                if item.identity[0] not in cases and len(cases) == CASES:
                    continue
                cases.add(item.identity[0])
                for key, patch in patches_of(item).items():
                    if not isinstance(read_volume_of(patch), Volume):
                        left_out[key] = f"{patch.volume.name} does not say how it is stored"
                        continue
                    patch.source_region  # noqa: B018  works out the plan, which takes the time
                    by_key.setdefault(key, []).append(patch)
            # Visits that take turns; 1 where batches hold patches of several.
            turns = [pipe.visits for pipe in walk(planner) if isinstance(pipe, Interleave)]
            firsts = range(0, len(order), split.group)
            alone = all(len(set(order[first : first + split.group])) == 1 for first in firsts)
            together = turns[-1] if turns and alone else 1
            draws = max(1, len(order) // max(1, len({*order})))
            how = (split.group, together, _comes_after_others(order, together), draws)
            pattern = _pattern(by_key, planner, hint, *how)
            unknown = pattern.unknown if not left_out or by_key else "; ".join(left_out.values())
            return replace(pattern, left_out=left_out, unknown=unknown)
    except Exception as error:
        # An error of a plan is reported when its patch is read, with its case and pipe.
        return AccessPattern(unknown=f"planning ahead failed: {type(error).__name__}")


def _for_a_while(items: Iterable[Any], clock: Callable[[], float]) -> Iterator[Any]:
    """Yield items until ``SECONDS`` after the first, which may come after many that are skipped."""
    # But not fewer than ``LEAST_PLANS``.
    end = math.inf
    for number, item in enumerate(items, 1):
        end = min(end, clock() + SECONDS)
        yield item
        if number >= LEAST_PLANS and clock() >= end:
            return


def _comes_after_others(cases: list[int], together: int) -> bool:
    """Whether a case comes again after ``together`` others."""
    last: dict[int, int] = {}
    for place, case in enumerate(cases):
        between = cases[last.get(case, place) + 1 : place]
        if len(set(between)) >= together:
            return True
        last[case] = place
    return False


def _pattern(by_key: Mapping[str, list[LazyPatch]], planner: Pipe, *how: Any) -> AccessPattern:
    """Return the access pattern of patches by key; ``how`` are other arguments of ``_demand``."""
    if not by_key:
        return AccessPattern(unknown="nothing is read lazily")
    every = list(walk(planner))
    count = sum(_length(pipe) for pipe in every if not parents_of(pipe))
    cutting = next((p for p in reversed(every) if isinstance(p, PatchSampler)), None)
    firsts: dict[str, Any] = {key: read_volume_of(patches[0]) for key, patches in by_key.items()}
    return AccessPattern(
        layouts={key: volume.layout(max(1, count)) for key, volume in firsts.items()},
        demands={key: _demand(patches, cutting, *how) for key, patches in by_key.items()},
        volumes=firsts,
    )


def _channel_chunks(reads: Iterable[ReadPlan], layout: StoreLayout) -> float:
    """Return the chunks that hold the channels of a unit; 1 where a chunk holds all of them."""
    if layout.chunk is None or layout.access == "stream":
        return 1.0
    sizes = [read.needed_chunks.chunk_bytes for read in reads if read.needed_chunks is not None]
    return max(1.0, layout.unit_bytes / min(sizes)) if sizes else 1.0


def _length(source: Any, unknown: int = 0) -> int:
    try:
        return len(source)
    except TypeError:
        return unknown


def _demand(
    patches: list[LazyPatch],
    cutting: PatchSampler | None,
    hint: AccessHint | None,
    items: int,
    together: int,
    is_scattered: bool,
    draws: int,
) -> Demand:
    reads = [patch.reads() for patch in patches]
    extents = np.array([np.max([read.region.shape for read in each], axis=0) for each in reads])
    mean = extents.mean(axis=0)
    highest = np.percentile(extents, 99, axis=0, method="higher")
    size = sum(math.prod(p.shape) * p.dtype.itemsize for p in patches) / len(patches)
    # Chunks; of bare voxels one, if any.
    every = [read for each in reads for read in each]
    bare = sum(not read.region.is_empty for read in every if read.needed_chunks is None)
    chunks = bare + sum(
        len(read.needed_chunks.chunks) for read in every if read.needed_chunks is not None
    )
    uniform = cutting if cutting is not None and cutting.sampling == "uniform" else None
    region = None if uniform is None or uniform.region is None else uniform.region.region
    # A function or a key has a number for each volume: the planned patches are a lower bound.
    if uniform is None or not uniform.samples_source:
        draws = 1 if uniform is None else uniform.samples_per_volume
    return Demand(
        support=(float(mean[0]), float(mean[1]), float(mean[2])),
        support_p99=(float(highest[0]), float(highest[1]), float(highest[2])),
        chunks=chunks / len(patches),
        channel_chunks=_channel_chunks(every, read_volume_of(patches[0]).layout()),
        items=items,
        batch_bytes=math.ceil(size * items),
        made_bytes=max(sum(read.made_bytes for read in each) for each in reads),
        patch=(1, 1, 1) if uniform is None else size_on(uniform.given_size, patches[0].plan),
        region=None if region is None else (region[0], region[1], region[2]),
        draws=draws,
        is_scattered=is_scattered,
        together=together,
        hint=hint,
    )


def _hint_of(graph: Pipe) -> AccessHint | None:
    """Return the joint hint of all pipes and of the functions that they hold; None without any."""
    things = [thing for pipe in walk(graph) for thing in (pipe, vars(pipe).get("fn"))]
    hints = [hint for thing in things if (hint := getattr(thing, "access_hint", None)) is not None]
    for hint in hints:
        if not isinstance(hint, AccessHint):
            msg = f"access_hint is a voxpipe.volumes.AccessHint, got {shorten(hint)}"
            raise SampleError(msg, do="Write AccessHint(tile=(64, 64, 64)), for instance.")
    return AccessHint.join(hints) if hints else None
