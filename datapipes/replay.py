"""Replay: the draws of one sample, applied to others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core import Grid, Sample
from ..core.call_site import shorten
from ..core.draws import check_record
from ..core.errors import BadRecord, SampleError
from ..graph import Pipe, walk
from ..intensity import ValueOp, ValueStep
from ..spatial import SpatialPlan, Step
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.patch_steps import replay_draws, streams_of
from .datapipe import PerItem, chained_form, wrong_item
from .spatial import FusedSpatial
from .values import ChangesValues, ChoicePipe

_GIVE = 'Give it batch["meta"][0]["draws"].'
# A volume that any patch fits into, for the form of an op's draws.
_ANY_VOLUME = SpatialPlan.identity(Grid((512, 512, 512), np.eye(4)))


@chained_form("replay")
class Replay(PerItem):
    """Apply the draws of a record to every sample, in place of new draws.

    Put it after the pipes of the record. For the same augmentation of another volume, of a
    prediction, or of a sample to see again.

    For random numbers per voxel (noise), the record has their key. They are the same for the same
    places in patches, under keys of the same names. So are those of your own ops that pass a drawn
    number to ``facts.key_from``.

    Parameters
    ----------
    draws
        By name of stream: ``batch["meta"][n]["draws"]``, also after JSON. Pipes that are not in it
        draw for themselves.

    Raises
    ------
    BadRecord
        A pipe upstream could not have drawn its record. For a choice the message has the path of
        the member: ``drawn[0][1]`` is the second op of the first member that was chosen.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> def chain(volume):
    ...     return from_cases([{"image": volume}]).open_volume().rotate((-15, 15))
    >>> first = next(iter(chain(np.zeros((8, 8, 8)))))["image"]
    >>> other = next(iter(chain(np.ones((8, 8, 8))).replay(first.draws)))["image"]
    >>> other.draws == first.draws
    True
    """

    def __init__(self, parent: Pipe, draws: Mapping[str, Any]) -> None:
        super().__init__(parent)
        if not isinstance(draws, Mapping) or not all(isinstance(name, str) for name in draws):
            msg = f"replay() takes a mapping from stream to parameters, got {shorten(draws)}"
            raise SampleError(msg, do=_GIVE).at(self.origin)
        if "draws" in draws and "identity" in draws:
            msg = "replay() takes what was drawn, and this is all that meta says of a sample"
            raise SampleError(msg, do=_GIVE).at(self.origin)
        self.draws = dict(draws)
        for pipe in walk(parent):  # steps that are known from the pipes alone
            stable = isinstance(pipe, (ChoicePipe, FusedSpatial)) or getattr(pipe, "is_step", False)
            steps: list[Step | ValueStep] = [*pipe.steps] if stable else []
            if isinstance(pipe, ChangesValues) and pipe.change is not None:
                steps.append(pipe.change.step)
            for step in steps:
                if step.stream_name in self.draws:
                    _refuse_bad(step, self.draws[step.stream_name])

    def apply(self, item: Any) -> Sample:
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample", "Put replay() after the pipes it speaks of.")
        lazy = patches_of(item)
        streams = {name for patch in lazy.values() for name in streams_of(patch)}
        if unknown := sorted(set(self.draws) - streams):
            msg = f"replay() has a record of {', '.join(unknown)}, but the pipes before it are "
            msg += ", ".join(sorted(streams)) or "none"
            do = "Build the chain with the names that it had, or leave these out."
            raise SampleError(msg, do=do).at(self.origin, item.case)
        return item.with_data(**replay_draws(lazy, self.draws))


def _refuse_bad(step: Step | ValueStep, record: Any) -> None:
    def draw(op: Any) -> Any:
        generator = np.random.default_rng(0)
        try:
            return op.draw(*((generator,) if isinstance(op, ValueOp) else (generator, _ANY_VOLUME)))
        except Exception as error:  # it asks for more than is known here: checked at its first use
            raise BadRecord(str(error)) from error

    try:
        check_record(step.op, record, draw)
    except BadRecord as error:
        raise error.at(step.origin)  # noqa: B904
