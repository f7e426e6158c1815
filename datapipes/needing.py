"""The pipe of an op that needs voxels of one volume to decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core import Sample
from ..core.errors import SampleError, VoxpipeError
from ..spatial import Answered, LazyPatch, stored_labels
from ..spatial.volume_like import made_like
from .datapipe import wrong_item
from .inside_mask import volume_named
from .spatial import Adding, SpatialPipe, stepped


class NeedingPipe(SpatialPipe):
    """A pipe that adds an op which asks one volume of the sample, when its plan is worked out."""

    is_step = False
    stands_apart = (
        "asks a volume of each sample, so it stays a pipe of its own; the plan is one all the "
        "same, and costs no interpolation more"
    )

    def apply(self, item: Any) -> Sample:
        """Return the sample with the step added to its plan; no voxel is read."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample with a lazy volume", "Put open_volume() before.")
        (step,) = self.steps
        op: Any = step.op
        try:
            op = self._as_stored(op, item.get(op.needs.key))
            volume = volume_named(op.needs.key, item, "key")
        except VoxpipeError as error:
            raise error.at(self.origin, item.case)  # noqa: B904
        asking = replace(step, op=Answered(op, volume))
        return stepped(self, item, Adding([asking]), self.sampling)

    def _as_stored(self, op: Any, thing: Any) -> Any:
        """Return the op with labels as they are stored.

        Raises where a threshold could be meant for values that a pipe has changed.
        """
        if op.needs.above is None:
            labels = stored_labels(thing, op.needs.labels, op.name, op.needs.key)
            if labels == op.needs.labels:
                return op
            if not labels:
                raise SampleError(
                    f"{op.name} asks for {op.needs.describe()}, which no label becomes",
                    do="Name labels as remap_labels gives them.",
                )
            return replace(op, labels=labels)
        changed = _changed(thing)
        if changed is not None:
            raise SampleError(
                f"{op.name}(above={op.needs.above!r}) looks at {op.needs.key!r} as it is "
                f"stored, and {changed} comes before it",
                do=f"Put {op.name} first, with a threshold in stored values.",
            )
        return op


def _changed(thing: Any) -> str | None:
    """Return in words an op that changes values of a patch, of a member or before a flush."""
    if not isinstance(thing, LazyPatch):
        return None
    if thing.values:
        return thing.values[0].op.describe()
    made = made_like(thing.volume)
    below = thing.members or (() if made is None else (made.patch,))
    return next((found for found in map(_changed, below) if found is not None), None)
