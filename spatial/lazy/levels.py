"""From which level of a pyramid a plan is read: the coarsest that has all that the plan takes.

A plan that takes every fourth voxel of a volume reads 64 times what it needs, to smooth it away.
Many volumes are stored at several resolutions, smoothed when they were written. A level loses
nothing where neighbours of the output lie at least as far apart as its voxels, in whatever
direction: where no singular value of the fused matrix, seen from that level, is below 1. What is
left between the level and the output is smoothed as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, OrientedBox, Region
from ...intensity import Epilogue
from ...volumes.pyramid import at_level, coarser_levels
from ...volumes.volume import Volume
from ..ops.resample_to import of_source
from ..plans.clip import Clip
from ..plans.plan import SpatialPlan
from ..plans.policy import INTENSITY, LEVEL, Policy, refuse_fill
from ..resampling.resample import Source, resample
from ..volume_like import has_chunks, refuse_complex
from .coarse import coarse_read
from .made_volume import MadeVolume

# Headers give 1.9999 for 2. A hundredth of a voxel of bandwidth is not what anybody could see.
_ENOUGH = 0.99


class ReadFrom(NamedTuple):
    """Where a plan is read."""

    volume: Any
    """The volume, or a level of it."""
    plan: SpatialPlan
    """The plan, from there."""
    level: int = 0
    """How many levels coarser than the volume; 0 for itself."""
    policy: Policy = INTENSITY
    """How it is sampled."""

    @property
    def region(self) -> Region:
        """The voxels that are read; empty where all is fill."""
        return self.plan.source_region(self.policy)

    @property
    def box(self) -> OrientedBox | None:
        """Where in the region the patch has taps, if that may spare chunks."""
        return self.plan.source_box(self.policy) if has_chunks(self.volume) else None


_SHOW: ContextVar[Callable[[Source], None] | None] = ContextVar("show", default=None)


@contextmanager
def stored_shown_to(show: Callable[[Source], None]) -> Iterator[None]:
    """Call ``show`` with the voxels of each image that is resampled inside, as they are stored."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)


def read_from(volume: Any, plan: SpatialPlan, policy: Policy) -> ReadFrom:
    """Return the volume or the level of it that is read for ``plan``, and the plan from there.

    The volume itself where the policy does not ask for levels, there are none, or a hard crop
    has faces that a level could not keep. Of a volume that is made on the way, those voxels
    that a coarser grid keeps, where they are enough.
    """
    if isinstance(volume, MadeVolume):
        stays = None if volume.tiled else coarse_read(volume, plan, policy)
        volume, plan = (volume, plan) if stays is None else stays
        return ReadFrom(volume, plan, policy=policy)
    if policy.antialias != LEVEL or not isinstance(volume, Volume):
        return ReadFrom(volume, plan, policy=policy)
    cut = plan.bounds != plan.source.region or any(isinstance(s, Clip) for s in plan.stages)
    levels = () if cut else coarser_levels(volume)
    for number in range(len(levels), 0, -1):
        seen = np.linalg.solve(levels[number - 1], plan.matrix)[:3, :3]
        if np.linalg.svd(seen, compute_uv=False).min() >= _ENOUGH:
            coarse = at_level(volume, number)
            # Of the grid that the plan has: volumes of a case may differ in the last digits.
            grid = Grid(coarse.spatial_shape, plan.source.affine @ levels[number - 1])
            return ReadFrom(coarse, of_source(plan, grid), number, policy)
    return ReadFrom(volume, plan, policy=policy)


def resampled_into(
    volume: Any, plan: SpatialPlan, policy: Policy, out: NDArray[Any], epilogue: Epilogue | None
) -> tuple[Source, SpatialPlan]:
    """Read what a plan needs, write what it gives; return what was read, and the plan from it."""
    refuse_fill(policy, out.dtype, volume.name)
    read = read_from(volume, plan, policy)
    stored, plan, region, box = read.volume, read.plan, read.region, read.box
    start = (region.start[0], region.start[1], region.start[2])
    if region.is_empty:
        nothing = np.empty((stored.shape[0], 0, 0, 0), np.uint8)
        source = Source(nothing, start, plan.bounds)
    else:
        refuse_complex(volume)
        voxels = stored.read(region, *(() if box is None else (box,)))
        source = Source(voxels.array, start, plan.bounds, voxels.slope, voxels.intercept)
        show = _SHOW.get()
        if show is not None and not isinstance(stored, MadeVolume) and volume.kind != "label":
            show(source)
    resample(source, plan.matrix, policy, out, plan.lowered, epilogue=epilogue)
    if isinstance(stored, Volume):
        stored.refuse_change()  # not before: a mapped file is read while it is resampled
    return source, plan
