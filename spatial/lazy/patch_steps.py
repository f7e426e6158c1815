"""Steps of patches: replay of recorded draws, binding to a batch position, and queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ...core.draws import RecordedDraw
from ...core.errors import SampleError
from ...intensity import RemapLabels, ValueStep
from ..ops.op import Step
from .lazy_patch import LazyPatch, patches_of
from .patch_report import sources_of
from .stack import StackedPatch
from .transform_chain import TransformChain
from .virtual_volume import VirtualVolume

S = TypeVar("S", Step, ValueStep)
T = TypeVar("T")


def replay_draws(
    patches: Mapping[str, LazyPatch], draws: Mapping[str, Any]
) -> dict[str, LazyPatch]:
    """Return the patches with recorded parameters in place of their own draws."""
    # ``draws`` are by name of stream, as in a batch's ``meta``; other steps draw for themselves.
    # For noise a record holds the key, so it repeats only at the recorded place.

    def record_step(step: S) -> S:
        if step.stream_name not in draws:
            return step
        return replace(step, record=RecordedDraw(draws[step.stream_name]))

    anew = _OtherSteps(record_step, record_step)
    return {key: anew.patch(patch) for key, patch in patches.items()}


def in_batch(samples: Sequence[Any], first: int = 0, size: int | None = None) -> list[Any]:
    """Return samples of a batch from one position on; their patches know their positions in it."""
    # ``lazy_patch(oversample=)`` is a share of each batch. Ops that have a position keep it.
    batch = []
    for position, sample in enumerate(samples, first):
        step_at = partial(_at_position, position, len(samples) if size is None else size)
        anew, lazy = _OtherSteps(step_at, lambda step: step), patches_of(sample)
        after = {key: anew.patch(patch) for key, patch in lazy.items()}
        changes = {key: patch for key, patch in after.items() if patch is not lazy[key]}
        batch.append(sample.with_data(**changes) if changes else sample)
    return batch


def _at_position(position: int, size: int, step: Step) -> Step:
    # Only ops that place patches have this method.
    bind = getattr(step.op, "at_position", None)
    op = step.op if bind is None else bind(position, size)
    return step if op is step.op else replace(step, op=op)


class _OtherSteps:
    """Replaces steps in the patches of one sample, before flushes and in members too."""

    # Patches that share a plan share the new one, computed once. Unchanged objects stay identical.

    def __init__(
        self, step: Callable[[Step], Step], value: Callable[[ValueStep], ValueStep]
    ) -> None:
        self._step, self._value = step, value
        # The old object is kept with the new one, because its id is the key.
        self._by_id: dict[int, tuple[Any, Any]] = {}

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
        if id(thing) not in self._by_id:
            self._by_id[id(thing)] = (thing, change(thing))
        after: T = self._by_id[id(thing)][1]
        return after

    def _volume(self, volume: Any) -> Any:
        if not isinstance(volume, VirtualVolume):
            return volume
        patch: Any = volume.patch
        before = self.patch(patch)
        if before is patch:
            return volume
        # A copy made with other draws is not valid.
        stays = volume.copy is None or before.draws == volume.patch.draws
        return replace(volume, patch=before, copy=volume.copy if stays else None)

    def _pending(self, pending: TransformChain) -> TransformChain:
        steps = tuple(map(self._step, pending.steps))
        references: Any = pending.references
        volumes = {key: self._once(one, self._volume) for key, one in references.items()}
        moving = self._once(pending.moving, self._volume)
        if _all_same((*volumes.values(), moving), (*references.values(), pending.moving)):
            same = _all_same(steps, pending.steps)
            return pending if same else replace(pending, steps=steps)
        return replace(pending, references=volumes, steps=steps, moving=moving)


def _all_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(a is b for a, b in zip(some, others, strict=True))


def streams_of(patch: LazyPatch) -> set[str]:
    """Return the names of a patch's random streams, including those before a flush."""
    every = sources_of(patch)
    return {step.stream_name for one in every for step in (*one.pending.steps, *one.values)}


# Ops that decide where to cut read stored labels; only ``remap_labels`` can be inverted.


def stored_labels(patch: Any, labels: Sequence[int], who: str, key: str) -> tuple[int, ...]:
    """Return the stored labels that have become ``labels``; empty if they were removed.

    Empty ``labels`` mean all but 0. Items other than a lazy patch are unchanged. ``who`` and
    ``key`` name the op and the volume in the SampleError. That error is raised for value ops other
    than ``remap_labels``, and where too many stored labels became one.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> stored_labels(SimpleNamespace(), (1, 2), "label_crop", "label")
    (1, 2)
    """
    current = set(labels)
    for step in _changes(patch):
        op = step.op
        if not isinstance(op, RemapLabels):
            msg = f"{who} looks at {key!r} as it is stored, and {op.describe()} comes before it"
            raise SampleError(msg, do=f"Put {who} before it, with labels as they are stored.")
        new = dict(op.mapping)
        if not labels:
            _refuse_another_zero(op, new, who, key)
            continue
        if op.unknown is not None and op.unknown in current:
            raise SampleError(
                f"{who} asks for label {op.unknown} of {key!r}, which {op.describe()} makes of all "
                "labels that it does not name",
                do=f"Put {who} before it, with labels as they are stored.",
            )
        same = current - set(new) if op.unknown is None else set()
        current = same | {old for old, label in new.items() if label in current}
    return tuple(sorted(current))


def refuse_changed(patch: Any, who: str, key: str) -> None:
    """Refuse a volume with changed values where an op needs the stored ones."""
    for step in _changes(patch):
        msg = f"{who} looks at {key!r} as it is stored, and {step.op.describe()} comes before it"
        raise SampleError(msg, do=f"Put {who} before it, or leave {key!r} out of it with keys=.")


def _changes(patch: Any) -> Iterator[Any]:
    """Yield the value steps of a patch, the last one first, through flushes."""
    for one in sources_of(patch) if isinstance(patch, LazyPatch) else ():
        yield from reversed(one.values)


def _refuse_another_zero(op: RemapLabels, new: dict[int, int], who: str, key: str) -> None:
    """Raise if the labels that are 0 differ from the stored zeros."""
    zero = {old for old, label in new.items() if label == 0} | ({0} - set(new))
    if zero != {0} or op.unknown == 0 or (op.unknown is not None and 0 not in new):
        raise SampleError(
            f"{who} uses the stored zeros of {key!r}, but {op.describe()} before it changes which "
            "labels are 0",
            do=f"Name the labels, or put {who} before it.",
        )
