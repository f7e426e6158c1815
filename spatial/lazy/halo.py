"""The voxels around a patch that its value ops look at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...intensity import Drawn, ValueStep
from ...intensity.value_op import Halo
from ...intensity.value_step import total_halo
from ..ops.pad import widened
from ..plans.plan import SpatialPlan

# A matrix entry below this moves no voxel of any axis by as much as plans are exact to.
_FLAT = 1e-9


def halo_of(acting: Sequence[tuple[ValueStep, Drawn]], plan: SpatialPlan) -> Halo:
    """Return the halo: none along an axis along which the volume has one voxel only."""
    halo = total_halo(acting, plan.grid)
    if not any(halo):
        return halo
    moves = np.abs(plan.matrix[:3, :3]) > _FLAT
    flat = np.array(plan.source.shape) == 1
    i, j, k = (h if moves[~flat, axis].any() else 0 for axis, h in enumerate(halo))
    return (i, j, k)


def with_halo_of(plan: SpatialPlan, halo: Halo) -> SpatialPlan:
    """Return the plan with ``halo`` voxels more on either side."""
    return widened(plan, [(h, h) for h in halo]) if any(halo) else plan
