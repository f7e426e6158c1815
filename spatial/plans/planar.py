"""Data without extent along some axis: 2-D images, which have K = 1.

An op that is told "for every axis" leaves such an axis alone: nothing can be interpolated along
it. The stored volume has to be flat there too: a patch of one slice out of a 3-D volume has
voxels on both sides, and is turned out of its plane as any other; also once a flush, or
``realize().open_volume()``, has left nothing around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core.rows import Linear, linear_of
from .plan import SpatialPlan

# An axis of the source that only follows one axis of the output, up to rounding.
_ALONE = 1e-9
# A normal this close to an axis of the world is that axis, up to the float32 of headers.
_AXIAL = 1e-6


def flat_axes(plan: SpatialPlan) -> tuple[int, ...]:
    """Return the axes along which both the present grid and the stored volume have one voxel.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.core import Grid
    >>> flat_axes(SpatialPlan.identity(Grid((64, 64, 1), np.eye(4))))
    (2,)
    """
    source = plan.source.shape
    if 1 not in source:
        return ()
    found = []
    for axis in (axis for axis in range(3) if source[axis] == 1 and axis not in plan.slices):
        each = [abs(m) for m in plan.rows[4 * axis : 4 * axis + 3]]
        largest = max(each)
        nearest = each.index(largest)
        if plan.shape[nearest] == 1 and sum(each) - largest <= _ALONE * largest:
            found.append(nearest)
    return tuple(sorted(set(found)))


def confined(turn: Linear, axes: Sequence[int]) -> Linear:
    """Return a 3x3 in voxels that leaves ``axes`` as they are.

    Examples
    --------
    >>> confined((0.5, 0.1, 0.1, 0, 0.5, 0.1, 0, 0, 0.5), [2])
    (0.5, 0.1, 0.0, 0, 0.5, 0.0, 0.0, 0.0, 1.0)
    """
    if not axes:
        return turn
    a, b, c, d, e, f, g, h, i = (
        m if row not in axes and column not in axes else float(row == column)
        for (row, column), m in zip(_PLACES, turn, strict=True)
    )
    return (a, b, c, d, e, f, g, h, i)


_PLACES = [(row, column) for row in range(3) for column in range(3)]


def normal(plan: SpatialPlan, axis: int) -> tuple[tuple[float, float, float], int]:
    """Return the unit normal of the other two axes in the world, and the world axis next to it.

    It points along that axis, not against it, and is exactly that axis where it nearly is.
    """
    turn = linear_of(plan.affine_rows)
    (a, b, c), (u, v, w) = ((turn[n], turn[3 + n], turn[6 + n]) for n in range(3) if n != axis)
    x, y, z = b * w - c * v, c * u - a * w, a * v - b * u
    nearest = max(range(3), key=lambda n: abs((x, y, z)[n]))
    length = math.copysign(math.sqrt(x * x + y * y + z * z), (x, y, z)[nearest])
    unit = (x / length, y / length, z / length)
    if sum(abs(unit[n]) for n in range(3) if n != nearest) < _AXIAL:
        return (float(nearest == 0), float(nearest == 1), float(nearest == 2)), nearest
    return unit, nearest
