"""Matrices of the ops: forward maps, and their pull-backs about the centre of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from ...core.errors import BadHeader
from ...core.rows import Linear, Rows, Vector, affine, applied, inverse, linear_of, product
from .plan import Shape, SpatialPlan
from .planar import confined, flat_axes, normal

Space = Literal["world", "voxel"]
"""``"world"``: millimetres along x, y, z; ``"voxel"``: voxels along the array's axes."""

_STAY = (0.0, 0.0, 0.0)


def as_space(value: str) -> Space:
    """Return ``value`` if it names a space.

    Raises
    ------
    ValueError
        It does not.
    """
    if isinstance(value, str) and value == "world":
        return "world"
    if isinstance(value, str) and value == "voxel":
        return "voxel"
    msg = f"space is 'world' or 'voxel', got {value!r}"
    raise ValueError(msg)


def rotation(degrees: Sequence[float]) -> Linear:
    """Return ``Rz @ Ry @ Rx``, right-handed: +90 about z turns x into y.

    Examples
    --------
    >>> rotation((0, 0, 90))[:6]
    (0.0, -1.0, 0.0, 1.0, 0.0, 0.0)
    """
    (cx, sx), (cy, sy), (cz, sz) = map(_cos_sin, degrees)
    up, across = sx * sy, cx * sy
    return (
        *(cy * cz, up * cz - cx * sz, across * cz + sx * sz),
        *(cy * sz, up * sz + cx * cz, across * sz - sx * cz),
        *(-sy, sx * cy, cx * cy),
    )


def turning(plan: SpatialPlan, degrees: Sequence[float], space: Space) -> Linear:
    """Return the rotation of a plan's content; 2-D data turn in their plane only.

    Of the three angles these take the one about the axis next to their normal.
    """
    flat = flat_axes(plan)
    if len(flat) != 1:
        return rotation(degrees)
    if space == "voxel":
        return rotation([degrees[axis] if axis == flat[0] else 0.0 for axis in range(3)])
    (x, y, z), nearest = normal(plan, flat[0])
    if 1.0 in (x, y, z):
        return rotation([degrees[axis] if axis == nearest else 0.0 for axis in range(3)])
    c, s = _cos_sin(degrees[nearest])
    v = 1 - c
    return (
        *(c + x * x * v, x * y * v - z * s, x * z * v + y * s),
        *(y * x * v + z * s, c + y * y * v, y * z * v - x * s),
        *(z * x * v - y * s, z * y * v + x * s, c + z * z * v),
    )


def _cos_sin(degrees: float) -> tuple[float, float]:
    turns, rest = divmod(degrees, 90.0)
    if rest == 0:
        # Quarter turns are exact, so that they can be copied.
        return ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))[int(turns) % 4]
    return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))


def shearing(factors: Sequence[float]) -> Linear:
    """Return the unit triangular matrix of the factors (xy, xz, yz).

    Examples
    --------
    >>> shearing((0.1, 0.2, 0.3))
    (1.0, 0.1, 0.2, 0.0, 1.0, 0.3, 0.0, 0.0, 1.0)
    """
    xy, xz, yz = factors
    return (1.0, xy, xz, 0.0, 1.0, yz, 0.0, 0.0, 1.0)


def scaling(factors: Sequence[float]) -> Linear:
    """Return the diagonal matrix of the factors, one per axis."""
    x, y, z = factors
    return (x, 0.0, 0.0, 0.0, y, 0.0, 0.0, 0.0, z)


def pull_back(
    plan: SpatialPlan,
    forward: Linear,
    move: Sequence[float] = _STAY,
    *,
    space: Space,
    shape: Sequence[int] | None = None,
) -> Rows:
    """Return the pull-back of a forward map about the centre of the plan's output.

    The world is that of the plan's *present* affine, which says where the content came from: an
    op after a rotation acts along the axes of the world, not along those of the turned grid. So
    a chain gives what its ops give one after another with the volume stored in between.

    The content at ``centre + x`` goes to ``centre + forward @ x + move``. 2-D data stay in their
    plane.

    Parameters
    ----------
    plan
        The present plan; its output grid has the centre.
    forward
        3x3, row by row.
    move
        Millimetres along x, y, z, or voxels along the array's axes.
    space
        Where ``forward`` and ``move`` act.
    shape
        Shape of the new output, which has the same centre; by default the present one.

    Raises
    ------
    BadHeader
        The affine cannot be inverted and ``space`` is ``"world"``.
    """
    turn, back = _in_voxels(plan, forward, move, space)
    return about_centre(turn, plan.shape, plan.shape if shape is None else shape, back)


def growing(
    plan: SpatialPlan,
    forward: Linear,
    *,
    space: Space,
    whole: Callable[[float], int],
    backward: bool = False,
) -> tuple[Rows, Shape]:
    """Return the pull-back of a forward map, and the shape of a grid that holds what it gives.

    Parameters
    ----------
    plan, forward, space
        As for :func:`pull_back`.
    whole
        How many voxels are made of an extent, between the outer faces and in voxels.
    backward
        Whether the extents are those of what the map backwards gives.
    """
    turn, back = _in_voxels(plan, forward, _STAY, space)
    out = turn if backward else inverse(turn)
    rows = (out[0:3], out[3:6], out[6:9])
    extents = (sum(abs(m) * n for m, n in zip(row, plan.shape, strict=True)) for row in rows)
    i, j, k = (max(1, whole(extent)) for extent in extents)
    return about_centre(turn, plan.shape, (i, j, k), back), (i, j, k)


def _in_voxels(
    plan: SpatialPlan, forward: Linear, move: Sequence[float], space: Space
) -> tuple[Linear, Vector]:
    """Return the linear part of a pull-back, and what it adds, in voxels of the present grid."""
    turn = inverse(forward)
    x, y, z = applied(turn, move)
    back = (-x, -y, -z)
    # What is the same along all axes is so along the voxels' own, whatever these are. So zero
    # strength is exactly the identity.
    is_even = turn == scaling((turn[0],) * 3)
    if space == "world" and (not is_even or any(back)):
        to_world = linear_of(plan.affine_rows)
        to_voxel = _inverse_of_affine(to_world)
        back = applied(to_voxel, back)
        turn = turn if is_even else product(product(to_voxel, turn), to_world)
    flat = flat_axes(plan)
    if flat:
        turn = confined(turn, flat)
        i, j, k = (0.0 if axis in flat else b for axis, b in enumerate(back))
        back = (i, j, k)
    return turn, back


def about_centre(
    turn: Linear, before: Sequence[int], after: Sequence[int], back: Vector = _STAY
) -> Rows:
    """Return the pull-back with a linear part, from the centre of a grid to that of another.

    Examples
    --------
    >>> about_centre(scaling((2, 2, 1)), (8, 9, 5), (4, 4, 5))
    (2, 0.0, 0.0, 0.5, 0.0, 2, 0.0, 1.0, 0.0, 0.0, 1, 0.0)
    """
    (i, j, k), (u, v, w) = _centre(before), applied(turn, _centre(after))
    x, y, z = back
    return affine(turn, ((i - u) + x, (j - v) + y, (k - w) + z))


def _centre(shape: Sequence[int]) -> Vector:
    i, j, k = shape
    return ((i - 1) / 2, (j - 1) / 2, (k - 1) / 2)


def _inverse_of_affine(linear: Linear) -> Linear:
    try:
        return inverse(linear)
    except np.linalg.LinAlgError:
        rows = [list(linear[start : start + 3]) for start in (0, 3, 6)]
        raise BadHeader(
            f"the affine has no inverse, so its voxels have no place in the world: {rows}",
            do='Pass affine= when opening the volume, or space="voxel" to this op.',
        ) from None
