"""Steps of patches put in the place of others: what was drawn for another, or where a batch is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ...core import Sample
from ...core.recorded import Recorded
from ...intensity import ValueStep
from ..ops.op import Step
from .lazy_patch import LazyPatch
from .made_volume import MadeVolume, made_of
from .pending import PendingPlan
from .stack import StackedPatch

S = TypeVar("S", Step, ValueStep)


def replayed(patch: LazyPatch, draws: Mapping[str, Any]) -> LazyPatch:
    """Return the patch with the recorded parameters in the place of its own draws.

    Parameters
    ----------
    patch
        Any lazy patch; its steps are those of its own chain.
    draws
        By name of stream, as in a batch's ``meta``. Steps that are not in it draw for themselves.

    Returns
    -------
    LazyPatch
        Of random numbers that belong to voxels (noise), a record holds the key. They are those of
        the recorded sample where the patch lies as that did.
    """
    if isinstance(patch, StackedPatch):
        patch = patch.with_members([replayed(member, draws) for member in patch.members])
        return replace(patch, values=tuple(_recorded(step, draws) for step in patch.values))
    if isinstance(patch.volume, MadeVolume):
        made = patch.volume
        before = replayed(made.patch, draws)
        # What was made with other draws is no copy of this.
        copy = made.copy if before.draws == made.patch.draws else None
        how = {"tiled": made.tiled, "copy": copy, "memory_bytes": made.memory_bytes}
        patch = made_of(patch, before, made.soft, made.because, **how)
    steps = tuple(_recorded(step, draws) for step in patch.pending.steps)
    values = tuple(_recorded(step, draws) for step in patch.values)
    pending = patch.pending.following(patch.pending.identity, steps)
    return replace(patch.with_pending(pending), values=values)


def in_batch(samples: Sequence[Any]) -> list[Any]:
    """Return the samples of a batch, whose patches know where in it they are.

    ``lazy_patch(oversample=)`` is a share of each batch. Nothing else changes, and what knows its
    place already keeps it.
    """
    size = len(samples)
    return [
        _at_position(sample, position, size) if isinstance(sample, Sample) else sample
        for position, sample in enumerate(samples)
    ]


def _at_position(sample: Sample, position: int, size: int) -> Sample:
    # Volumes of a sample share a plan, which is worked out once. The old one is kept beside the
    # new: its id is its name here.
    shared: dict[int, tuple[PendingPlan, PendingPlan]] = {}

    def step_at(step: Step) -> Step:
        # Of all ops only those that place patches have it.
        bind = getattr(step.op, "bound", None)
        op = step.op if bind is None else bind(position, size)
        return step if op is step.op else replace(step, op=op)

    def pending_at(pending: PendingPlan) -> PendingPlan:
        if id(pending) not in shared:
            steps = tuple(map(step_at, pending.steps))
            same = all(a is b for a, b in zip(steps, pending.steps, strict=True))
            after = pending if same else pending.following(pending.identity, steps)
            shared[id(pending)] = (pending, after)
        return shared[id(pending)][1]

    def patch_at(patch: LazyPatch) -> LazyPatch:
        if isinstance(patch, StackedPatch):
            members = [patch_at(member) for member in patch.members]
            same = all(a is b for a, b in zip(members, patch.members, strict=True))
            return patch if same else patch.with_members(members)
        made = patch.volume
        if isinstance(made, MadeVolume):
            before = patch_at(made.patch)
            if before is not made.patch:
                again = replace(made, patch=before)
                pending = replace(patch.pending, references={again.name: again})
                patch = replace(patch, volume=again, pending=pending)
        pending = pending_at(patch.pending)
        return patch if pending is patch.pending else patch.with_pending(pending)

    lazy = {key: patch for key, patch in sample.items() if isinstance(patch, LazyPatch)}
    after = {key: patch_at(patch) for key, patch in lazy.items()}
    changed = {key: patch for key, patch in after.items() if patch is not lazy[key]}
    return sample.with_data(**changed) if changed else sample


def streams_of(patch: LazyPatch) -> set[str]:
    """Return the names of the streams that a patch draws from, those before a flush among them."""
    mine = {step.stream_name for step in patch.pending.steps}
    mine |= {step.stream_name for step in patch.values}
    mine |= {name for member in patch.members for name in streams_of(member)}
    if isinstance(patch.volume, MadeVolume):
        mine |= streams_of(patch.volume.patch)
    return mine


def _recorded(step: S, draws: Mapping[str, Any]) -> S:
    if step.stream_name not in draws:
        return step
    return replace(step, recorded=Recorded(draws[step.stream_name]))
