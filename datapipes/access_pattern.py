"""What the patches of a chain ask of the stores: measured on the first plans, without a voxel.

Plans cost microseconds, so a few hundred are made and looked at. Headers cost a request each, so
only the patches of the first few cases are: cases of one list are stored alike. They are those
with which the epoch goes on, so that no header is read that it would not read anyway.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from ..core import Sample
from ..graph import NoCut, Pipe, cut, parents_of, walk
from ..spatial import LazyPatch, without_reading
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.patch_report import breaks
from ..spatial.lazy.read_plan import ReadPlan
from ..spatial.lazy.stack import read_volume_of
from ..spatial.ops.op import size_on
from ..volumes import Volume
from ..volumes.scheme import Demand, StoreLayout
from .epoch import copy_for_epoch, items_from, may_look_ahead
from .patch_sampler import PatchSampler
from .shuffle_plans import Interleave

# A percentile of 99 needs about as many.
PLANS = 256
# Headers of a bucket take 0.1 s each, and the epoch waits for them.
CASES = 4
# Of what an epoch takes to start: nothing that anybody notices.
SECONDS = 0.25
# How far ahead of a resume it goes: patches there cost what they cost further on, and the way
# through the order of an epoch is long.
FARTHEST = 10_000
# So many are looked at however long they take: the first one of a bucket opens a connection, and
# one patch says little of how many chunks the others touch.
LEAST_PLANS = 8

_UNKNOWN_STORE = "{} does not say how it is stored"


@dataclass(frozen=True)
class AccessPattern:
    """What a chain asks, by key; or why nobody can tell beforehand."""

    layouts: Mapping[str, StoreLayout] = field(default_factory=dict)
    """How the volumes of each key are stored."""
    demands: Mapping[str, Demand] = field(default_factory=dict)
    """What patches ask of them."""
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    """The first volume of each key."""
    sampled_anew: Mapping[str, str] = field(default_factory=dict)
    """By key: after what its voxels are sampled anew, so that these are the reads of what that
    makes."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By key: why nothing is known of it."""
    unknown: str = ""
    """Why nothing was measured."""


def measure_access(
    graph: Pipe,
    seed: int,
    epoch: int,
    batches: int = 0,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> AccessPattern:
    """Return what the next patches of an epoch ask of the stores.

    Reads the headers of the first volumes, and no voxel.
    """
    split = cut(graph)
    if isinstance(split, NoCut):
        return AccessPattern(unknown=split.reason)
    if not may_look_ahead(split.planner):
        return AccessPattern(
            unknown="planning ahead would use up the source, or run functions of yours"
        )
    planner = copy_for_epoch(split.planner, seed, epoch)
    seen: dict[str, list[LazyPatch]] = {}
    left_out: dict[str, str] = {}
    cases: set[int] = set()
    order: list[int] = []
    try:
        with without_reading():
            skipped = min(batches * split.group, FARTHEST)
            for item in _for_a_while(islice(items_from(planner, skipped), PLANS), clock):
                if not isinstance(item, Sample):
                    continue
                order.append(item.identity[0])
                if item.identity[0] not in cases and len(cases) == CASES:
                    continue
                cases.add(item.identity[0])
                for key, patch in patches_of(item).items():
                    if not isinstance(_stored_volume(patch), Volume):
                        left_out[key] = _UNKNOWN_STORE.format(patch.volume.name)
                        continue
                    patch.source_region  # noqa: B018  works out the plan, which takes the time
                    seen.setdefault(key, []).append(patch)
            together = _visits_at_once(planner, order, split.group)
            scattered = _scattered(order, together)
            asked = _pattern(seen, planner, split.group, together, scattered)
            unknown = asked.unknown if not left_out or seen else "; ".join(left_out.values())
            return replace(asked, left_out=left_out, unknown=unknown)
    except Exception as error:
        # What cannot be planned is reported when it is read, with its case and pipe.
        return AccessPattern(unknown=f"planning ahead failed: {type(error).__name__}")


def _for_a_while(items: Iterable[Any], clock: Callable[[], float]) -> Iterator[Any]:
    """Yield items until ``SECONDS`` after the first, which may come after many that are skipped.

    But not fewer than ``LEAST_PLANS``.
    """
    end = math.inf
    for number, item in enumerate(items, 1):
        end = min(end, clock() + SECONDS)
        yield item
        if number >= LEAST_PLANS and clock() >= end:
            return


def _stored_volume(patch: LazyPatch) -> Any:
    """Return the volume that lies in a file, below what ops made of it, or the copy of that."""
    return read_volume_of(patch)


def _visits_at_once(planner: Pipe, cases: list[int], items: int) -> int:
    """Return how many visits take turns; 1 where batches hold patches of several."""
    turns = [pipe.visits for pipe in walk(planner) if isinstance(pipe, Interleave)]
    batches = (cases[first : first + items] for first in range(0, len(cases), items))
    return turns[-1] if turns and all(len(set(batch)) == 1 for batch in batches) else 1


def _scattered(cases: list[int], together: int = 1) -> bool:
    """Whether a case comes again after ``together`` others.

    Examples
    --------
    >>> _scattered([3, 3, 1, 1, 2]), _scattered([3, 1, 3]), _scattered([3, 1, 3, 1, 2], 2)
    (False, True, False)
    """
    last: dict[int, int] = {}
    for place, case in enumerate(cases):
        between = cases[last.get(case, place) + 1 : place]
        if len(set(between)) >= together:
            return True
        last[case] = place
    return False


def _pattern(
    seen: Mapping[str, list[LazyPatch]], planner: Pipe, items: int, together: int, scattered: bool
) -> AccessPattern:
    if not seen:
        return AccessPattern(unknown="nothing is read lazily")
    every = list(walk(planner))
    count = sum(_length(pipe) for pipe in every if not parents_of(pipe))
    cutting = next((p for p in reversed(every) if isinstance(p, PatchSampler)), None)
    firsts: dict[str, Any] = {key: _stored_volume(patches[0]) for key, patches in seen.items()}
    anew = {key: breaks(patches[0]) for key, patches in seen.items()}
    return AccessPattern(
        layouts={key: volume.layout(max(1, count)) for key, volume in firsts.items()},
        demands={
            key: replace(_demand(patches, cutting, items, scattered), together=together)
            for key, patches in seen.items()
        },
        volumes=firsts,
        sampled_anew={key: ", and after ".join(by) for key, by in anew.items() if by},
    )


def _length(source: Any) -> int:
    try:
        return len(source)
    except TypeError:
        return 0


def _demand(
    patches: list[LazyPatch], cutting: PatchSampler | None, items: int, scattered: bool
) -> Demand:
    reads = [patch.reads() for patch in patches]
    extents = np.array([np.max([read.region.shape for read in each], axis=0) for each in reads])
    mean = extents.mean(axis=0)
    highest = np.percentile(extents, 99, axis=0, method="higher")
    size = sum(math.prod(p.shape) * p.dtype.itemsize for p in patches) / len(patches)
    uniform = cutting if cutting is not None and cutting.sampling == "uniform" else None
    region = None if uniform is None or uniform.region is None else uniform.region.region
    return Demand(
        support=(float(mean[0]), float(mean[1]), float(mean[2])),
        support_p99=(float(highest[0]), float(highest[1]), float(highest[2])),
        chunks=sum(_chunks(read) for each in reads for read in each) / len(patches),
        items=items,
        batch_bytes=math.ceil(size * items),
        made_bytes=max(sum(read.made_bytes for read in each) for each in reads),
        patch=(1, 1, 1) if uniform is None else size_on(uniform.given_size, patches[0].plan),
        region=None if region is None else (region[0], region[1], region[2]),
        draws=1 if uniform is None else uniform.samples_per_volume,
        scattered=scattered,
    )


def _chunks(read: ReadPlan) -> int:
    """Return the number of chunks that a patch reads; of bare voxels one, if any."""
    needed = read.needed
    return int(not read.region.is_empty) if needed is None else len(needed.chunks)
