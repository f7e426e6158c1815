"""Which kind of work a plan is: what the native kernel has a path of its own for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ...core.affine3x4 import Affine3x4
from .policy import INTENSITY, Policy

if TYPE_CHECKING:
    from .plan import SpatialPlan

KernelClass = Literal["copy", "separable", "affine", "displacement"]
"""The cheapest first.

``"copy"``: whole voxels move, bit for bit. ``"separable"``: each axis of the source follows one
axis of the output, so taps and weights are tabulated once per axis (linear and nearest).
``"affine"``: every voxel has a place of its own. ``"displacement"``: and a spline moves it on.
"""


def kernel_class(plan: SpatialPlan, policy: Policy = INTENSITY) -> KernelClass:
    """Return the class of the work that ``plan`` is under ``policy``.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.core import Grid
    >>> from voxpipe.spatial import SpatialPlan
    >>> plan = SpatialPlan.identity(Grid((8, 8, 8), np.eye(4)))
    >>> half = np.diag([2.0, 2.0, 2.0, 1.0])
    >>> kernel_class(plan), kernel_class(plan.then(half, (4, 4, 4), lattice=False))
    ('copy', 'separable')
    """
    if plan.is_copy:
        return "copy"
    if plan.is_displaced:
        return "displacement"
    # A hard crop inside the kernel is tested voxel by voxel; cubic has no tables.
    plain = not plan.stages and policy.mode != "cubic"
    return "separable" if plain and _keeps_apart(plan.rows, plan.shape) else "affine"


def _keeps_apart(rows: Affine3x4, shape: Sequence[int]) -> bool:
    """Whether no two axes of the output lead along one of the source, nor one along two."""
    led: list[tuple[int, int]] = [
        (source, axis)
        for source in range(3)
        for axis in range(3)
        # Along an axis of one voxel nothing moves, whatever the matrix says.
        if rows[4 * source + axis] != 0 and shape[axis] > 1
    ]
    sources, axes = [source for source, _ in led], [axis for _, axis in led]
    return len(set(sources)) == len(led) == len(set(axes))
