"""Steps of patches put in the place of others: what was drawn for another, or where a batch is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ...core.draws import RecordedDraw
from ...intensity import ValueStep
from ..ops.op import Step
from .lazy_patch import LazyPatch, patches_of
from .made_volume import MadeVolume
from .pending import PendingPlan
from .stack import StackedPatch

S = TypeVar("S", Step, ValueStep)
T = TypeVar("T")


def replayed(patches: Mapping[str, LazyPatch], draws: Mapping[str, Any]) -> dict[str, LazyPatch]:
    """Return the patches with the recorded parameters in the place of their own draws.

    Parameters
    ----------
    patches
        The lazy patches of a sample; their steps are those of its own chain.
    draws
        By name of stream, as in a batch's ``meta``. Steps that are not in it draw for themselves.

    Returns
    -------
    dict
        By key. Of random numbers that belong to voxels (noise), a record holds the key. They are
        those of the recorded sample where the patch lies as that did.
    """
    anew = _Anew(lambda step: _recorded(step, draws), lambda step: _recorded(step, draws))
    return {key: anew.patch(patch) for key, patch in patches.items()}


def in_batch(samples: Sequence[Any]) -> list[Any]:
    """Return the samples of a batch, whose patches know where in it they are.

    ``lazy_patch(oversample=)`` is a share of each batch. Nothing else changes, and what knows its
    place already keeps it.
    """
    size = len(samples)
    return [_at_position(sample, position, size) for position, sample in enumerate(samples)]


def _at_position(sample: Any, position: int, size: int) -> Any:
    def step_at(step: Step) -> Step:
        # Of all ops only those that place patches have it.
        bind = getattr(step.op, "bound", None)
        op = step.op if bind is None else bind(position, size)
        return step if op is step.op else replace(step, op=op)

    anew, lazy = _Anew(step_at, lambda step: step), patches_of(sample)
    after = {key: anew.patch(patch) for key, patch in lazy.items()}
    changed = {key: patch for key, patch in after.items() if patch is not lazy[key]}
    return sample.with_data(**changed) if changed else sample


class _Anew:
    """Puts other steps into the patches of one sample, before flushes and in members too.

    Patches that share a plan share the new one, which is worked out once; what stays as it is
    stays the same object.
    """

    def __init__(
        self, step: Callable[[Step], Step], value: Callable[[ValueStep], ValueStep]
    ) -> None:
        self._step, self._value = step, value
        # What was there is kept beside what came of it: its id is its name here.
        self._seen: dict[int, tuple[Any, Any]] = {}

    def patch(self, patch: LazyPatch) -> LazyPatch:
        """Return the patch with other steps."""
        values = tuple(map(self._value, patch.values))
        if not _all_same(values, patch.values):
            patch = replace(patch, values=values)
        if isinstance(patch, StackedPatch):
            members = [self.patch(member) for member in patch.members]
            return patch if _all_same(members, patch.members) else patch.with_members(members)
        volume = self._once(patch.volume, self._volume)
        patch = patch if volume is patch.volume else patch.with_volume(volume)
        pending = self._once(patch.pending, self._pending)
        return patch if pending is patch.pending else patch.with_pending(pending)

    def _once(self, thing: T, change: Callable[[T], T]) -> T:
        if id(thing) not in self._seen:
            self._seen[id(thing)] = (thing, change(thing))
        after: T = self._seen[id(thing)][1]
        return after

    def _volume(self, volume: Any) -> Any:
        if not isinstance(volume, MadeVolume):
            return volume
        before = self.patch(volume.patch)
        if before is volume.patch:
            return volume
        # What was made with other draws is no copy of this.
        stays = volume.copy is None or before.draws == volume.patch.draws
        return replace(volume, patch=before, copy=volume.copy if stays else None)

    def _pending(self, pending: PendingPlan) -> PendingPlan:
        steps = tuple(map(self._step, pending.steps))
        references: Any = pending.references
        volumes = {key: self._once(one, self._volume) for key, one in references.items()}
        moving = self._once(pending.moving, self._volume)
        if _all_same((*volumes.values(), moving), (*references.values(), pending.moving)):
            same = _all_same(steps, pending.steps)
            return pending if same else pending.following(pending.identity, steps)
        return replace(pending, references=volumes, steps=steps, moving=moving)


def _all_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(a is b for a, b in zip(some, others, strict=True))


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
    return replace(step, recorded=RecordedDraw(draws[step.stream_name]))
