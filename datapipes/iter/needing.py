"""The pipe of an op that needs voxels of one volume to decide."""

from __future__ import annotations

from typing import Any

from ...core import Sample
from ...core.errors import SampleError, VoxpipeError
from ...spatial import Answered, LazyPatch, Step
from ..datapipe import wrong_item
from .inside_mask import volume_named
from .spatial import Adding, SpatialPipe, stepped


class NeedingPipe(SpatialPipe):
    """A pipe that adds an op which asks one volume of the sample, when its plan is worked out."""

    is_step = False
    stands_apart = "asks a volume of each sample, by a step of its own"

    def apply(self, item: Any) -> Sample:
        """Return the sample with the step added to its plan; no voxel is read."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample with a lazy volume", "Put open_volume() before.")
        (step,) = self.steps
        op: Any = step.op
        try:
            self._refuse_changed(op, item.get(op.needs.key))
            volume = volume_named(op.needs.key, item, "key")
        except VoxpipeError as error:
            raise error.at(self.origin, item.case)  # noqa: B904
        asking = Step(Answered(op, volume), step.stream_name, self.origin)
        return stepped(self, item, Adding([asking]), self.sampling)

    def _refuse_changed(self, op: Any, thing: Any) -> None:
        """Raise where a threshold could be meant for values that a pipe has changed."""
        patch = thing
        while isinstance(patch, LazyPatch):
            if patch.values and op.needs.above is not None:
                changed = patch.values[0].op.describe()
                raise SampleError(
                    f"{op.name}(above={op.needs.above:g}) looks at {op.needs.key!r} as it is "
                    f"stored, and {changed} comes before it",
                    do=f"Put {op.name} first, with a threshold in stored values.",
                )
            patch = getattr(patch.volume, "patch", None)
