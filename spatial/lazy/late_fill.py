"""Fill in the units that values have where a pipe asked for it, after the first value ops.

Value ops act after the one interpolation, so what the resampler leaves outside goes through them.
A fill that was asked for after some of them does not: outside is NaN while these act, and the fill
from then on. So it is exact, also where no number becomes it by these. Which voxels lie outside is
told by the plan, not by the values: a voxel that is NaN in the file, or by an op, stays NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...intensity import ValueStep
from ..plans.clip import Clip
from ..plans.plan import SpatialPlan
from ..plans.policy import Policy
from ..resampling.resample import resample
from ..resampling.source import Source
from ..volume_like import patch_before

if TYPE_CHECKING:
    from .lazy_patch import LazyPatch


def steps_before_fill(
    patch: LazyPatch, acting: Sequence[tuple[ValueStep, Any]], plan: SpatialPlan
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


def filling(patch: LazyPatch, plan: SpatialPlan) -> Policy:
    """Return the policy of a patch, with the fill as it is at the patch's first value op."""
    if patch.filled_after >= 0 or not _leaves_some(patch.policy, plan):
        return patch.policy
    return replace(patch.policy, fill=float(_outside(patch)[0]))


def fills_apart(patch: LazyPatch, plan: SpatialPlan) -> NDArray[np.float32] | None:
    """Return the fill of each channel, (C, 1, 1, 1); None where one is that of all.

    Of volumes that were stacked and then flushed each brings what its own value ops made of it.
    """
    before: LazyPatch | None = patch_before(patch.volume)
    if before is None or patch.filled_after >= 0 or not _leaves_some(patch.policy, plan):
        return None
    fills = _outside(patch)
    if (fills == fills[0]).all() or np.isnan(fills).all():
        return None
    return np.asarray(fills, np.float32).reshape(-1, 1, 1, 1)


def _outside(patch: LazyPatch) -> NDArray[np.float64]:
    """Return the fill of each channel, or one of all of them.

    Of one from before a flush or realize(), it is what value ops made of it there: those that treat
    each value by itself, as statistics follow them; others are passed over.
    """
    before: LazyPatch | None = patch_before(patch.volume)
    if patch.filled_after >= 0 or before is None:
        return np.array([patch.policy.fill])
    return _given_outside(before)


def _given_outside(patch: LazyPatch) -> NDArray[np.float64]:
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
    resample(inside, plan.matrix, outside, flags, plan.lowered)
    lies: NDArray[np.bool_] = flags[0] != 0
    return lies
