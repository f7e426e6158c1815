"""What was drawn for one item, done to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ...core.recorded import Recorded
from ...intensity import ValueStep
from ..ops.op import Step
from .lazy_patch import LazyPatch
from .made_volume import MadeVolume, made_of
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
        patch = made_of(patch, replayed(patch.volume.patch, draws), patch.volume.soft)
    steps = tuple(_recorded(step, draws) for step in patch.pending.steps)
    values = tuple(_recorded(step, draws) for step in patch.values)
    pending = patch.pending.following(patch.pending.identity, steps)
    return replace(patch.with_pending(pending), values=values)


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
