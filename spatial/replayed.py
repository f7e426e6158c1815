"""What was drawn for one item, done to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ..core.recorded import Recorded
from ..intensity import ValueStep
from .lazy_patch import LazyPatch
from .op import Step

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
        Random numbers that belong to voxels (noise) are those of its own item: a record holds
        parameters, not voxels.
    """
    steps = tuple(_recorded(step, draws) for step in patch.pending.steps)
    values = tuple(_recorded(step, draws) for step in patch.values)
    pending = patch.pending.following(patch.pending.identity, steps)
    return replace(patch.with_pending(pending), values=values)


def _recorded(step: S, draws: Mapping[str, Any]) -> S:
    if step.stream_name not in draws:
        return step
    return replace(step, recorded=Recorded(draws[step.stream_name]))
