"""The voxels around a patch that its value ops look at, and the axes that have some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...intensity import Drawn, ValueStep
from ...intensity.value_op import Halo
from ...intensity.value_step import applied, folded, total_halo
from ..ops.pad import widened
from ..plans.plan import SpatialPlan

if TYPE_CHECKING:
    from .lazy_patch import LazyPatch

# A matrix entry below this moves no voxel of any axis by as much as plans are exact to.
_FLAT = 1e-9


def halo_of(acting: Sequence[tuple[ValueStep, Drawn]], plan: SpatialPlan) -> Halo:
    """Return the halo: none along an axis along which the volume has one voxel only."""
    halo = total_halo(acting, plan.grid)
    if not any(halo):
        return halo
    axes = _axes_of(plan)
    i, j, k = (h if axis in axes else 0 for axis, h in enumerate(halo))
    return (i, j, k)


def drawing_along(step: ValueStep, plan_of: Callable[[], SpatialPlan]) -> ValueStep:
    """Return a step that draws an axis, if it does, among those along which there are voxels."""
    if not step.op.draws_axis:
        return step
    plan = plan_of()
    return replace(step, op=step.op.along(_axes_of(plan, plan.slices)))


def _axes_of(plan: SpatialPlan, slices: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the axes of the output along which the volume has more than one voxel.

    ``slices`` are those of the source that count as having more: a flush left one slice of them,
    and changes no draw.
    """
    moves = np.abs(plan.matrix[:3, :3]) > _FLAT
    flat = [n == 1 and axis not in slices for axis, n in enumerate(plan.source.shape)]
    return tuple(axis for axis in range(3) if moves[np.logical_not(flat), axis].any())


def with_halo_of(plan: SpatialPlan, halo: Halo) -> SpatialPlan:
    """Return the plan with ``halo`` voxels more on either side."""
    return widened(plan, [(h, h) for h in halo]) if any(halo) else plan


def changed_by_last(patch: LazyPatch, array: NDArray[Any]) -> NDArray[Any]:
    """Return what the last value op makes of voxels that the patch gave without it.

    There is no volume around voxels that are there already: what an op looks at beyond their
    faces is their outermost ones again.
    """
    if not patch.values:  # of a stack, whose members have it each
        ends = np.cumsum([0, *(member.channels for member in patch.members)]).tolist()
        apart = zip(patch.members, pairwise(ends), strict=True)
        return np.concatenate([changed_by_last(one, array[a:b]) for one, (a, b) in apart])
    step = patch.values[-1]
    drawn = patch._drawn(step)
    if drawn is None:
        return array.astype(step.op.dtype(array.dtype))
    halo = step.op.halo(drawn, patch.plan.grid)
    wide = np.pad(array, [(0, 0), *((h, h) for h in halo)], mode="edge")
    epilogue, rest = folded(patch.acting_on(with_halo_of(patch.plan, halo))[-1:])
    if epilogue is not None:  # as the resampler does in passing, to the same bits
        wide = epilogue.on(wide.astype(np.float32, copy=False))
    result = applied(rest, wide)
    inside = tuple(slice(h, h + n) for h, n in zip(halo, array.shape[1:], strict=True))
    return np.ascontiguousarray(result[(slice(None), *inside)])
