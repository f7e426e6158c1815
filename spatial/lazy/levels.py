"""From which level of a pyramid a plan is read: the coarsest that has all that the plan takes.

A plan that takes every fourth voxel of a volume reads 64 times what it needs, to smooth it away.
Many volumes are stored at several resolutions, smoothed when they were written. A level loses
nothing where neighbours of the output lie at least as far apart as its voxels, in whatever
direction: where no singular value of the fused matrix, seen from that level, is below 1. What is
left between the level and the output is smoothed as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
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
from ..plans.pull_back import extremes
from ..resampling.resample import resample
from ..resampling.source import Source
from ..volume_like import has_chunks, refuse_complex
from .made_volume import MadeVolume

# A made volume of coarser voxels: only those that stay are made of what came before.
#
# ``low_resolution`` and ``anisotropy`` keep some voxels of the present grid and draw lines between
# them. What a later spatial op samples along these lines is what it would sample between the kept
# voxels themselves, where every one of those is a whole number of voxels from the next. So of the
# first of the two interpolations a part is enough: one voxel in 27 for a factor of 3.

# In voxels; what a matrix product leaves of a place on the face of the volume.
_ON_THE_FACE = 1e-9


@dataclass(frozen=True, eq=False)
class CoarseVolume(MadeVolume):
    """The voxels of a made volume that stay, made of its patch without the op that coarsens."""

    whole: SpatialPlan | None = None
    """The plan by which all of them are made of what the patch is made of."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K)."""
        assert self.whole is not None
        return (self.patch.shape[0], *self.whole.shape)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """Type of the voxels: that of all ops which mix them."""
        return np.dtype(np.float32)

    def part(self, region: Region) -> SpatialPlan:
        """Return the plan by which a region is made of what the patch is made of."""
        assert self.whole is not None
        return self.whole.crop(region.start, region.shape)


class Coarse(NamedTuple):
    """Where a plan is read."""

    volume: CoarseVolume
    """The voxels that stay."""
    plan: SpatialPlan
    """The plan, from there."""


def coarse_read(made: MadeVolume, plan: SpatialPlan, policy: Policy) -> Coarse | None:
    """Return what stays of a made volume, and the plan from there; None where that is not enough.

    It is where the op that coarsens is the last one to act, by whole factors, after ops that
    treat each value by itself; and where the plan interpolates linearly inside the volume.
    """
    if policy.mode != "linear" or policy.antialias or plan.is_copy or not _inside(plan):
        return None
    patch = made.patch
    if patch.plan.is_copy or patch.policy.antialias or made.dtype != np.float32:
        return None
    before = made.part_of(patch.plan)
    acting = patch.acting_on(before)
    factors = acting[-1][0].op.coarser(acting[-1][1]) if acting else None
    if factors is None or not all(step.op.pointwise for step, _, _ in acting[:-1]):
        return None
    flat = [n == 1 for n in before.shape]
    i, j, k = (1 if one else factor for factor, one in zip(factors, flat, strict=True))
    if (i, j, k) == (1, 1, 1) or not all(float(factor).is_integer() for factor in (i, j, k)):
        return None
    scale, shape = _coarse_grid((int(i), int(j), int(k)), acting[-1][2].corner, before.shape)
    last = patch.values.index(acting[-1][0])
    kept = replace(patch, values=patch.values[:last])
    whole = before.then(scale, shape, lattice=False)
    volume = CoarseVolume(kept, made.soft, whole=whole)
    return Coarse(volume, of_source(plan, Grid(shape, plan.source.affine @ scale)))


def _inside(plan: SpatialPlan) -> bool:
    """Whether no voxel comes from beyond the outermost centres, and nothing is cut off."""
    if plan.bounds != plan.source.region or any(isinstance(s, Clip) for s in plan.stages):
        return False
    lows, highs = extremes(plan.matrix, plan.shape)
    moves = plan.moves or ((0.0, 0.0),) * 3
    return all(
        low + least >= -_ON_THE_FACE and high + most <= n - 1 + _ON_THE_FACE
        for low, high, (least, most), n in zip(lows, highs, moves, plan.source.shape, strict=True)
    )


def _coarse_grid(
    factors: tuple[int, int, int], corner: tuple[int, int, int], shape: tuple[int, int, int]
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], tuple[int, int, int]]:
    """Return the matrix from index of the voxels that stay to index of all, and their number.

    ``corner`` is the lattice index of the first of all voxels; those that stay have multiples of
    the factors, from the last one that is not after it.
    """
    matrix = np.diag([*map(float, factors), 1.0])
    counts = []
    for axis, (factor, first, count) in enumerate(zip(factors, corner, shape, strict=True)):
        least, most = first // factor, math.ceil((first + count - 1) / factor)
        matrix[axis, 3] = factor * least - first
        counts.append(most - least + 1)
    i, j, k = counts
    return matrix, (i, j, k)


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
