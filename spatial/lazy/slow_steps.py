"""Which steps of a patch are left to NumPy, because the kernel does not do them together."""

from __future__ import annotations

from ..ops.op import Step
from .lazy_patch import LazyPatch
from .made_volume import MadeVolume
from .pending import PendingPlan


def left_to_numpy(patch: LazyPatch) -> tuple[tuple[str, ...], ...]:
    """Return the steps with displacements and hard crops, for each plan that NumPy does.

    Through any number of made volumes, the first one first; nothing where the kernel does all.
    """
    if patch.members:
        return tuple(steps for member in patch.members for steps in left_to_numpy(member))
    below: tuple[tuple[str, ...], ...] = ()
    if isinstance(patch.volume, MadeVolume):
        below = left_to_numpy(patch.volume.patch)
    if patch.plan.lowered.is_for_kernel:
        return below
    return (*below, tuple(map(_told, steps_with_stages(patch.pending))))


def steps_with_stages(pending: PendingPlan) -> tuple[Step, ...]:
    """Return the steps that added a stage to the plan of an item: what no matrix can say."""
    plan, found = pending.begun, []
    for step in pending.steps:
        before, plan = plan, step.apply(plan, pending.draws[step.stream_name])
        found += [step] * (len(plan.stages) > len(before.stages))
    return tuple(found)


def _told(step: Step) -> str:
    return f"{step.stream_name}{f' at {step.origin}' if step.origin else ''}"
