"""The voxels around a patch: those that its value ops look at, and those that are fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...intensity import Drawn, ValueStep
from ...intensity.value_op import Halo
from ...intensity.value_step import apply_steps, fold_epilogues, total_halo
from ..ops.crop import widened
from ..plans.plan import SpatialPlan
from ..plans.policy import Policy
from ..plans.stages import Clip
from ..resampling.resample import resample
from ..resampling.source import Source
from ..volume_like import patch_before

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


def changed_by_last(patch: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return what the last value op makes of voxels that the patch gave without it.

    There is no volume around voxels that are there already: what an op looks at beyond their
    faces is their outermost ones again.
    """
    if not patch.values:  # of a stack, whose members have it each
        ends = np.cumsum([0, *(member.channels for member in patch.members)]).tolist()
        apart = zip(patch.members, pairwise(ends), strict=True)
        return np.concatenate([changed_by_last(one, array[a:b]) for one, (a, b) in apart])
    step = patch.values[-1]
    drawn = patch.drawn[-1][1]
    if drawn is None:
        return array.astype(step.op.dtype(array.dtype))
    halo = step.op.halo(drawn, patch.plan.grid)
    wide = np.pad(array, [(0, 0), *((h, h) for h in halo)], mode="edge")
    epilogue, rest = fold_epilogues(patch.acting_on(with_halo_of(patch.plan, halo))[-1:])
    if epilogue is not None:  # as the resampler does in passing, to the same bits
        wide = epilogue.on(wide.astype(np.float32, copy=False))
    result = apply_steps(rest, wide)
    inside = tuple(slice(h, h + n) for h, n in zip(halo, array.shape[1:], strict=True))
    return np.ascontiguousarray(result[(slice(None), *inside)])


# Fill in the units that values have where a pipe asked for it, after the first value ops.
#
# Value ops act after the one interpolation, so what the resampler leaves outside goes through
# them. A fill that was asked for after some of them does not: outside is NaN while these act, and
# the fill from then on. So it is exact, also where no number becomes it by these. Which voxels lie
# outside follows from the plan, not from the values: a voxel that is NaN in the file, or by an op,
# stays NaN.


def steps_before_fill(
    patch: Any, acting: Sequence[tuple[ValueStep, Any]], plan: SpatialPlan
) -> int:
    """Return how many of the steps that act come before the fill; 0 where none is left outside.

    Ops that take any type, on channels and labels, have no NaN: a fill goes through these.
    """
    if patch.filled_after <= 0 or not _leaves_some(patch.policy, plan):
        return 0
    before = {id(step) for step in patch.values[: patch.filled_after]}
    first = [step for step, _ in acting if id(step) in before]
    return 0 if all(step.op.keeps_dtype for step in first) else len(first)


def _leaves_some(policy: Policy, plan: SpatialPlan) -> bool:
    return policy.padding == "constant" or any(isinstance(stage, Clip) for stage in plan.stages)


def filling(patch: Any, plan: SpatialPlan) -> Policy:
    """Return the policy of a patch, with the fill as it is at the patch's first value op."""
    policy: Policy = patch.policy
    if patch.filled_after >= 0 or not _leaves_some(policy, plan):
        return policy
    return replace(policy, fill=float(_outside(patch)[0]))


def fills_apart(patch: Any, plan: SpatialPlan) -> NDArray[np.float32] | None:
    """Return the fill of each channel, (C, 1, 1, 1); None where one is that of all.

    Of volumes that were stacked and then flushed each brings what its own value ops made of it.
    """
    before = patch_before(patch.volume)
    if before is None or patch.filled_after >= 0 or not _leaves_some(patch.policy, plan):
        return None
    fills = _outside(patch)
    if (fills == fills[0]).all() or np.isnan(fills).all():
        return None
    return np.asarray(fills, np.float32).reshape(-1, 1, 1, 1)


def _outside(patch: Any) -> NDArray[np.float64]:
    """Return the fill of each channel, or one of all of them.

    Of one from before a flush or realize(), it is what value ops made of it there: those that treat
    each value by itself, as statistics follow them; others are passed over.
    """
    before = patch_before(patch.volume)
    if patch.filled_after >= 0 or before is None:
        return np.array([patch.policy.fill])
    return _given_outside(before)


def _given_outside(patch: Any) -> NDArray[np.float64]:
    """Return what a patch gives outside, after its value ops."""
    if patch.members and patch.filled_after <= 0:
        each = [(_given_outside(member), member.shape[0]) for member in patch.members]
        fills = np.concatenate([np.broadcast_to(fill, count) for fill, count in each])
        fills = fills[:1] if (fills == fills[0]).all() else fills
    else:
        fills = _outside(patch)
    late = {id(step) for step in patch.values[max(patch.filled_after, 0) :]}
    for step, drawn, facts in patch.acting_on(patch.plan):
        if id(step) in late and step.op.pointwise:
            voxels = fills.astype(np.float32).reshape(-1, 1, 1, 1)
            fills = np.ravel(step.op.apply(voxels, drawn, facts)).astype(np.float64)
    return fills


def marking(policy: Policy) -> Policy:
    """Return the policy with NaN outside, of floats."""
    return replace(policy, fill=np.nan, dtype=None)


def outside_of(
    source: Source, plan: SpatialPlan, policy: Policy, resampled: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return which voxels of a patch are fill, (I, J, K).

    Parameters
    ----------
    source
        What was resampled.
    plan
        By which, from there.
    policy
        The one that ``marking`` returned.
    resampled
        What came of it, before ops that may make NaN of a number.
    """
    marked: NDArray[np.bool_] = np.isnan(resampled[0])
    if source.array.dtype.kind != "f" or not marked.any() or np.isfinite(source.array).all():
        return marked
    # NaN of the volume lies among them: what a volume of zeros has elsewhere is outside.
    zeros = np.zeros((1, *source.array.shape[1:]), np.uint8)
    flags = np.empty((1, *plan.shape), np.uint8)
    outside = replace(policy, fill=1, antialias=False)
    inside = Source(zeros, source.start, source.bounds)
    resample(inside, plan.matrix, outside, flags, plan.kernel_stages)
    lies: NDArray[np.bool_] = flags[0] != 0
    return lies
