"""A made volume of coarser voxels: only those that stay are made of what came before.

``low_resolution`` and ``anisotropy`` keep some voxels of the present grid and draw lines between
them. What a later spatial op samples along these lines is what it would sample between the kept
voxels themselves, where every one of those is a whole number of voxels from the next. So of the
first of the two interpolations a part is enough: one voxel in 27 for a factor of 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...core import Grid, Region
from ..ops.resample_to import of_source
from ..plans.clip import Clip
from ..plans.plan import SpatialPlan
from ..plans.policy import Policy
from ..plans.pull_back import extremes
from .made_volume import MadeVolume

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
