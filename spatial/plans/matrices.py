"""Matrices of the ops: forward maps, and their pull-backs about the centre of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np

from ...core.affine3x4 import Affine3x4, Matrix3x3, Vector, apply, inverse, linear_of, product
from ...core.errors import BadHeader
from ...core.grid import AS_READ
from ...core.validate import as_choice
from .plan import Shape, SpatialPlan

# Data without extent along some axis: 2-D images, which have K = 1.
#
# An op with one amount "for every axis" leaves such an axis alone, as it cannot be interpolated.
# The stored volume has to be flat there, too: a slice of a 3-D volume has neighbours and is turned
# out of its plane, even after a flush or ``realize().open_volume()``.

# Tolerance for a source axis that follows one output axis only.
_ALONE = 1e-9
# A normal this close to an axis of the world is that axis, up to the float32 of headers.
_AXIAL = 1e-6


def flat_axes(plan: SpatialPlan) -> tuple[int, ...]:
    """Return the axes along which both the present grid and the stored volume have one voxel."""
    source = plan.source.shape
    if 1 not in source:
        return ()
    axes = []
    for axis in (axis for axis in range(3) if source[axis] == 1 and axis not in plan.slices):
        each = [abs(m) for m in plan.rows[4 * axis : 4 * axis + 3]]
        largest = max(each)
        nearest = each.index(largest)
        if plan.shape[nearest] == 1 and sum(each) - largest <= _ALONE * largest:
            axes.append(nearest)
    return tuple(sorted(set(axes)))


def normal(plan: SpatialPlan, axis: int) -> tuple[tuple[float, float, float], int]:
    """Return the world normal of the other two axes, and the world axis nearest to it."""
    # The normal points along that axis, and is set to it exactly if it is close.
    turn = linear_of(plan.affine_rows if plan.axes in AS_READ else plan.frame_rows)
    (a, b, c), (u, v, w) = ((turn[n], turn[3 + n], turn[6 + n]) for n in range(3) if n != axis)
    x, y, z = b * w - c * v, c * u - a * w, a * v - b * u
    nearest = max(range(3), key=lambda n: abs((x, y, z)[n]))
    length = math.copysign(math.sqrt(x * x + y * y + z * z), (x, y, z)[nearest])
    unit = (x / length, y / length, z / length)
    if sum(abs(unit[n]) for n in range(3) if n != nearest) < _AXIAL:
        return (float(nearest == 0), float(nearest == 1), float(nearest == 2)), nearest
    return unit, nearest


Space = Literal["world", "voxel"]
"""``"world"``: millimetres along x, y, z; ``"voxel"``: voxels along the array's axes."""


as_space = partial(as_choice, choices=("world", "voxel"))


def rotation(degrees: Sequence[float]) -> Matrix3x3:
    """Return ``Rz @ Ry @ Rx``, right-handed: +90 about z turns x into y."""
    numbers: list[float] = []
    for angle in degrees:
        turns, rest = divmod(angle, 90.0)
        radians = math.radians(angle)
        # Quarter turns are exact, so that they can be copied.
        exact = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))[int(turns) % 4]
        numbers += (math.cos(radians), math.sin(radians)) if rest else exact
    cx, sx, cy, sy, cz, sz = numbers
    up, across = sx * sy, cx * sy
    return (
        *(cy * cz, up * cz - cx * sz, across * cz + sx * sz),
        *(cy * sz, up * sz + cx * cz, across * sz - sx * cz),
        *(-sy, sx * cy, cx * cy),
    )


def turning(plan: SpatialPlan, degrees: Sequence[float], space: Space) -> Matrix3x3:
    """Return the rotation of a plan's content; 2-D data turn in their plane only."""
    # 2-D data use the angle about the axis nearest to their normal.
    flat = flat_axes(plan)
    if len(flat) != 1:
        return rotation(degrees)
    if space == "voxel":
        return rotation([degrees[axis] if axis == flat[0] else 0.0 for axis in range(3)])
    (x, y, z), nearest = normal(plan, flat[0])
    if 1.0 in (x, y, z):
        return rotation([degrees[axis] if axis == nearest else 0.0 for axis in range(3)])
    c, _, _, s, *_ = rotation((0.0, 0.0, degrees[nearest]))  # cosine and sine
    v = 1 - c
    return (
        *(c + x * x * v, x * y * v - z * s, x * z * v + y * s),
        *(y * x * v + z * s, c + y * y * v, y * z * v - x * s),
        *(z * x * v - y * s, z * y * v + x * s, c + z * z * v),
    )


def shearing(factors: Sequence[float]) -> Matrix3x3:
    """Return the unit triangular matrix of the factors (xy, xz, yz)."""
    xy, xz, yz = factors
    return (1.0, xy, xz, 0.0, 1.0, yz, 0.0, 0.0, 1.0)


def scaling(factors: Sequence[float]) -> Matrix3x3:
    """Return the diagonal matrix of the factors, one per axis."""
    x, y, z = factors
    return (x, 0.0, 0.0, 0.0, y, 0.0, 0.0, 0.0, z)


def pull_back(
    plan: SpatialPlan,
    forward: Matrix3x3,
    move: Sequence[float] = (0.0, 0.0, 0.0),
    *,
    space: Space,
    shape: Sequence[int] | None = None,
) -> Affine3x4:
    """Return the pull-back of the map from ``centre + x`` to ``centre + forward @ x + move``."""
    # World space is that of the plan's *present* affine: an op after a rotation acts along the
    # world's axes, not those of the turned grid. So a chain gives the result of its ops one after
    # another. A ``shape`` of the new output has the same centre. 2-D data stay in their plane.
    turn, back = inverse(forward), (0.0, 0.0, 0.0)
    if any(move):
        x, y, z = apply(turn, move)
        back = (-x, -y, -z)
    # An isotropic map is the same in voxel space. So zero strength is exactly the identity.
    factor = turn[0]
    is_even = turn == (factor, 0.0, 0.0, 0.0, factor, 0.0, 0.0, 0.0, factor)
    if space == "world" and (not is_even or any(back)):
        to_world = linear_of(plan.affine_rows if plan.axes in AS_READ else plan.frame_rows)
        try:
            to_voxel = inverse(to_world)
        except np.linalg.LinAlgError:
            rows = [list(to_world[start : start + 3]) for start in (0, 3, 6)]
            msg = f"the affine has no inverse, so its voxels have no place in the world: {rows}"
            do = 'Pass ⟦affine=⟧ when opening the volume, or space="voxel" to this op.'
            raise BadHeader(msg, do=do) from None
        back = apply(to_voxel, back) if any(back) else back
        turn = turn if is_even else product(product(to_voxel, turn), to_world)
    flat = flat_axes(plan) if 1 in plan.shape else ()
    if flat:
        places = [(row, column) for row in range(3) for column in range(3)]
        turn = tuple(  # type: ignore[assignment]
            m if row not in flat and column not in flat else float(row == column)
            for (row, column), m in zip(places, turn, strict=True)
        )
        i, j, k = (0.0 if axis in flat else b for axis, b in enumerate(back))
        back = (i, j, k)
    return about_centre(turn, plan.shape, plan.shape if shape is None else shape, back)


def growing(
    plan: SpatialPlan,
    forward: Matrix3x3,
    *,
    space: Space,
    whole: Callable[[float], int],
    backward: bool = False,
) -> tuple[Affine3x4, Shape]:
    """Return the pull-back of a forward map, and the shape of a grid that holds its image."""
    # ``whole`` rounds an extent to voxels; ``backward`` uses the extents of the inverse map.
    turn = linear_of(pull_back(plan, forward, space=space))
    out = turn if backward else inverse(turn)
    rows = (out[0:3], out[3:6], out[6:9])
    extents = (sum(abs(m) * n for m, n in zip(row, plan.shape, strict=True)) for row in rows)
    i, j, k = (max(1, whole(extent)) for extent in extents)
    return about_centre(turn, plan.shape, (i, j, k)), (i, j, k)


def about_centre(
    turn: Matrix3x3, before: Sequence[int], after: Sequence[int], back: Vector = (0.0, 0.0, 0.0)
) -> Affine3x4:
    """Return the pull-back of a linear part about the centres of two grids."""
    a, b, c, d, e, f, g, h, i = turn
    (j, k, m), (n, o, s), (p, q, r) = before, after, back
    x, y, z, u, v, w = (j - 1) / 2, (k - 1) / 2, (m - 1) / 2, (n - 1) / 2, (o - 1) / 2, (s - 1) / 2
    return (
        *(a, b, c, (x - (a * u + b * v + c * w)) + p),
        *(d, e, f, (y - (d * u + e * v + f * w)) + q),
        *(g, h, i, (z - (g * u + h * v + i * w)) + r),
    )


def compose_plans(before: SpatialPlan, after: SpatialPlan) -> SpatialPlan:
    """Return one plan from the source of ``before`` to the output of ``after``, which follows."""
    # The result has the origin of voxels, without the padding in between.
    matrix = before.matrix
    stages = list(before.stages)
    if after.stages:
        back = before.to_output
        stages += [stage.move(matrix, back) for stage in after.stages]
    whole = matrix @ after.matrix
    shape, slices = after.shape, before.slices
    return SpatialPlan(before.source, whole, shape, None, stages, False, slices, after.axes)
