"""Reference results of resampling, computed slowly and obviously in float64.

Independent of the resampler: coordinates are not clamped or folded. Instead the *volume* is
extended to all integers by its padding rule, and every value is the plain sum over eight corners.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Region
from ..spatial import Clip, Policy, SpatialPlan

Floats = NDArray[np.float64]


def sample_plan(values: NDArray[Any], plan: SpatialPlan, policy: Policy) -> Floats:
    """Return the result of ``plan`` for a whole volume (C, I, J, K), as float64."""
    where, outside = places(plan)
    samples = sample_at(values, where, plan.bounds, policy)
    samples[:, outside] = policy.fill
    return samples.reshape(values.shape[0], *plan.shape)


def places(plan: SpatialPlan) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the source of each output voxel, (3, N), and which voxels a hard crop left out."""
    where = move(plan.matrix, np.indices(plan.shape, dtype=np.float64).reshape(3, -1))
    outside = np.zeros(where.shape[1], dtype=bool)
    for stage in reversed(plan.stages):
        if isinstance(stage, Clip):
            at = move(stage.matrix, where)
            last = np.array(stage.shape, dtype=np.float64)[:, None] - 1
            outside |= np.any((at < -0.5) | (at > last + 0.5), axis=0)
        else:
            where = where + spline_at(stage.control, move(stage.matrix, where))
    return where, outside


def move(matrix: NDArray[Any], points: Floats) -> Floats:
    """Return ``points``, (3, N), after an affine 4x4 matrix."""
    result: Floats = np.asarray(matrix)[:3, :3] @ points + np.asarray(matrix)[:3, 3:]
    return result


def spline_at(control: NDArray[Any], where: Floats) -> Floats:
    """Return a uniform cubic B-spline, (3, N), of control points (3, a, b, c) at (3, N) places.

    Unlike the resampler, which walks through cells, it weighs every control point by the closed
    form of the basis at its distance. Beyond the ends the last point repeats, and places are
    clamped to the first and the last.
    """
    weights = []
    for place, size in zip(where, control.shape[1:], strict=True):
        place = np.clip(place, 0, size - 1)
        weight = np.zeros((size, place.size))
        for point in range(-3, size + 3):
            weight[min(max(point, 0), size - 1)] += _basis(np.abs(place - point))
        weights.append(weight)
    result: Floats = np.einsum("dabc,an,bn,cn->dn", control, *weights, optimize="greedy")
    return result


def _basis(distance: Floats) -> Floats:
    """Return the cubic B-spline's basis (Unser 1999, eq. 5) at distances from its centre."""
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = (2 - distance) ** 3 / 6
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


def sample_at(values: NDArray[Any], where: Floats, bounds: Region, policy: Policy) -> Floats:
    """Return the values (C, N) of a volume at the coordinates ``where``, (3, N) float64."""
    first = np.array(bounds.start, dtype=np.float64)[:, None]
    last = np.array(bounds.stop, dtype=np.float64)[:, None] - 1
    if bounds.is_empty:
        fill = 0.0 if policy.padding == "zeros" else policy.fill
        return np.full((values.shape[0], where.shape[1]), fill)
    outside = np.any((where < first - 0.5) | (where > last + 0.5), axis=0)
    if policy.padding == "constant":
        where = np.clip(where, first, last)
    samples = np.zeros((values.shape[0], where.shape[1]))
    if policy.mode == "nearest":
        samples = _extend(values, np.rint(where).astype(np.int64), bounds, policy.padding)
    else:
        lower = np.floor(where).astype(np.int64)
        for corner in itertools.product((0, 1), repeat=3):
            up = np.array(corner)[:, None]
            weight = np.prod(np.where(up == 1, where - lower, 1 - (where - lower)), axis=0)
            samples += weight * _extend(values, lower + up, bounds, policy.padding)
    if policy.padding == "constant":
        samples[:, outside] = policy.fill
    return samples


def _extend(values: NDArray[Any], index: NDArray[np.int64], bounds: Region, padding: str) -> Floats:
    """Return the volume at any integer index, (3, N) to (C, N)."""
    inside = np.ones(index.shape[1], dtype=bool)
    indices: list[Any] = []
    for row, (a, b) in zip(index, bounds, strict=True):
        inside &= (row >= a) & (row < b)
        indices.append(_mirror(row, a, b) if padding == "reflection" else np.clip(row, a, b - 1))
    samples: Floats = values[:, indices[0], indices[1], indices[2]].astype(np.float64)
    return samples * inside if padding == "zeros" else samples


def _mirror(index: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """Reflect an index with the last voxel repeated: ... 1 0 | 0 1 2 | 2 1 ..."""
    length = stop - start
    there = (index - start) % (2 * length)
    return np.minimum(there, 2 * length - 1 - there) + start


def inside(plan: SpatialPlan) -> NDArray[np.bool_]:
    """Return which output voxels (I, J, K) are between the centres of the outermost voxels."""
    where, _ = places(plan)
    first = np.array(plan.bounds.start, dtype=np.float64)[:, None]
    last = np.array(plan.bounds.stop, dtype=np.float64)[:, None] - 1
    # 1e-9: rounding may put a coordinate beyond the last centre.
    mask: NDArray[np.bool_] = np.all((where >= first - 1e-9) & (where <= last + 1e-9), axis=0)
    return mask.reshape(plan.shape)
