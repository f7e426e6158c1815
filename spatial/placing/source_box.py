"""Which source voxels the grid of a plan lies among."""

from __future__ import annotations

import math

from ...core import Region
from ..plans.plan import SpatialPlan
from ..plans.pull_back import extremes


def source_box(plan: SpatialPlan) -> Region:
    """Return a box of source voxels that holds every voxel that is the nearest one of some place.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.core import Grid
    >>> plan = SpatialPlan.identity(Grid((9, 9, 9), np.eye(4)))
    >>> source_box(plan.crop((2, -1, 0), (3, 4, 9)))
    Region(2:5, 0:3, 0:9)
    """
    low, high = extremes(plan.matrix[:3], plan.shape)
    if plan.moves:
        low = [a + least for a, (least, _) in zip(low, plan.moves, strict=True)]
        high = [b + most for b, (_, most) in zip(high, plan.moves, strict=True)]
    box = Region(tuple(map(math.floor, low)), tuple(math.ceil(v) + 1 for v in high))
    return box.intersect(plan.source.region)
