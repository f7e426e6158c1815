"""Matrices of the ops: forward maps, and their pull-backs about the centre of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..core.errors import BadHeader
from .plan import SpatialPlan
from .pull_back import Matrix

Space = Literal["world", "voxel"]
"""``"world"``: millimetres along x, y, z; ``"voxel"``: voxels along the array's axes."""

Linear = NDArray[np.float64]
"""A 3x3 float64 matrix."""


def as_space(value: str) -> Space:
    """Return ``value`` if it names a space.

    Raises
    ------
    ValueError
        It does not.
    """
    if value == "world":
        return "world"
    if value == "voxel":
        return "voxel"
    msg = f"space is 'world' or 'voxel', got {value!r}"
    raise ValueError(msg)


def rotation(degrees: Sequence[float]) -> Linear:
    """Return ``Rz @ Ry @ Rx``, right-handed: +90 about z turns x into y.

    Examples
    --------
    >>> rotation((0, 0, 90)).astype(int).tolist()
    [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    """
    (cx, sx), (cy, sy), (cz, sz) = map(_cos_sin, degrees)
    about_x = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_z = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    return np.asarray(about_z @ about_y @ about_x, dtype=np.float64)


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
    >>> shearing((0.1, 0.2, 0.3)).tolist()
    [[1.0, 0.1, 0.2], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]]
    """
    xy, xz, yz = factors
    return np.array([[1, xy, xz], [0, 1, yz], [0, 0, 1]], dtype=np.float64)


def pull_back(
    plan: SpatialPlan,
    forward: Linear,
    move: Sequence[float] | NDArray[np.float64] = (0.0, 0.0, 0.0),
    *,
    space: Space,
    shape: Sequence[int] | None = None,
) -> Matrix:
    """Return the 4x4 pull-back of a forward map about the centre of the plan's output.

    The world is that of the plan's *present* affine, which says where the content came from: an
    op after a rotation acts along the axes of the world, not along those of the turned grid. So
    a chain gives what its ops give one after another with the volume stored in between.

    The content at ``centre + x`` goes to ``centre + forward @ x + move``.

    Parameters
    ----------
    plan
        The present plan; its output grid has the centre.
    forward
        3x3 float64.
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
    turn = np.linalg.inv(forward)
    back = -turn @ np.asarray(move, dtype=np.float64)
    # With no turn there is nothing to carry into voxels: zero strength is exactly the identity.
    is_turned = not np.array_equal(turn, np.eye(3))
    if space == "world" and (is_turned or back.any()):
        to_world = plan.affine[:3, :3]
        to_voxel = _inverse_of_affine(to_world)
        back = to_voxel @ back
        turn = to_voxel @ turn @ to_world if is_turned else turn
    centre = (np.array(plan.shape, dtype=np.float64) - 1) / 2
    new_centre = (np.array(shape, dtype=np.float64) - 1) / 2 if shape is not None else centre
    result = np.eye(4)
    result[:3, :3] = turn
    result[:3, 3] = (centre - turn @ new_centre) + back
    return result


def _inverse_of_affine(linear: Linear) -> Linear:
    try:
        return np.asarray(np.linalg.inv(linear), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise BadHeader(
            f"the affine has no inverse, so its voxels have no place in the world: "
            f"{linear.tolist()}",
            do='Pass affine= when opening the volume, or space="voxel" to this op.',
        ) from None
