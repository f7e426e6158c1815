"""Two plans in turn as one: for places, through what a flush left between them."""

from __future__ import annotations

import numpy as np

from .clip import Clip
from .displacement import Displacement
from .plan import SpatialPlan
from .stages import Stage


def one_after_another(before: SpatialPlan, after: SpatialPlan) -> SpatialPlan:
    """Return one plan from the source of ``before`` to the output of ``after``.

    It says where voxels come from, and nothing of where padding began in between.

    Parameters
    ----------
    before
        Any plan with a way back.
    after
        A plan whose source is the output of ``before``.

    Examples
    --------
    >>> from voxpipe.core import Grid
    >>> first = SpatialPlan.identity(Grid((8, 8, 8), np.eye(4))).crop((1, 2, 3), (4, 4, 4))
    >>> second = SpatialPlan.identity(first.grid).crop((1, 1, 1), (2, 2, 2))
    >>> one_after_another(first, second).source_region()
    Region(2:4, 3:5, 4:6)
    """
    matrix = before.matrix
    stages: list[Stage] = [*before.stages]
    if after.stages:
        back = before.to_output
        for stage in after.stages:
            if isinstance(stage, Clip):
                stages.append(stage.after(back))
            else:
                points = np.tensordot(matrix[:3, :3], stage.control, axes=1)
                stages.append(Displacement(points, stage.matrix @ back))
    whole = matrix @ after.matrix
    return SpatialPlan(before.source, whole, after.shape, None, stages, False, before.slices)
