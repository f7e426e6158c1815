"""The one call that turns stored voxels into output voxels.

Plans of whole voxels are copied in the stored type (``copy_voxels``); others are gathered block by
block (``interpolate``). If the native kernel (``native``) is built, it replaces both. They remain
as its reference, and for cases that it does not support.

Gathers in NumPy are exact to 1e-6 of the value range at any axis length. They are faster than
``affine_grid`` plus ``grid_sample`` (96^3 from int16 on one core: 20 ms instead of 46), because
neither a float copy nor a dense grid is made.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, Region
from ...core.affine3x4 import Affine3x4, affine3x4
from ...core.convert_dtype import convert_dtype
from ...intensity import Epilogue
from ...intensity.filters import filter_axis, gaussian, reach
from ..plans.plan import SpatialPlan
from ..plans.policy import INTENSITY, Padding, Policy
from ..plans.pull_back import Matrix, Sigmas, fold, sigmas, source_region, whole_rows
from ..plans.stages import NO_STAGES, KernelStages, displacement_bounds
from . import native_resampler as native
from .interpolate import convert_one, interpolate, one_tap_type, real_type
from .native_resampler import SourceVoxels

# Plans of whole voxels copy values in their stored type, bit for bit if the output type fits.


def copy_voxels(
    source: SourceVoxels, whole: NDArray[np.int64], policy: Policy, out: NDArray[Any]
) -> None:
    """Write ``out`` by copying; ``whole`` is a 3x4 signed permutation plus whole shift."""
    empty = source.array.size == 0
    axes = [int(np.flatnonzero(whole[:, axis])[0]) for axis in range(3)]
    view = source.array.transpose(0, *(1 + a for a in axes))
    target = out
    indices: list[NDArray[np.int64]] = []
    for axis, a in enumerate(axes):
        index = int(whole[a, axis]) * np.arange(out.shape[1 + axis]) + int(whole[a, 3])
        start, stop = source.bounds.start[a], source.bounds.stop[a]
        if policy.padding in ("constant", "zeros") or empty:
            inside = np.flatnonzero((index >= start) & (index < stop))
            # The index is monotonic, so the inside is one run of output voxels.
            run = slice(int(inside[0]), int(inside[-1]) + 1) if inside.size else slice(0, 0)
            target = target[(slice(None),) * (1 + axis) + (run,)]
            index = index[run]
        elif policy.padding == "border":
            index = np.clip(index, start, stop - 1)
        else:
            index = fold(index, start, stop).astype(np.int64)
        indices.append(index - source.start[a])
    if target.shape != out.shape or empty:
        out[...] = convert_one(0.0 if policy.padding == "zeros" else policy.fill, out.dtype)
    if not target.size or empty:
        return
    voxels = _select(view, indices)
    if source.slope != 1.0 or source.intercept != 0.0:
        voxels = voxels.astype(np.float64) * source.slope + source.intercept
    elif np.can_cast(voxels.dtype, target.dtype, "safe"):
        # Assignment converts block by block, without a copy of the whole.
        target[...] = voxels
        return
    target[...] = convert_dtype(voxels, target.dtype)


def _select(view: NDArray[Any], indices: list[NDArray[np.int64]]) -> NDArray[Any]:
    """Return ``view[:, i][:, :, j][..., k]``: a view where the indices are consecutive."""
    for axis, index in enumerate(indices, start=1):
        first, last = int(index[0]), int(index[-1])
        step = -1 if last < first else 1
        if np.any(np.diff(index) != step):
            view = np.take(view, index, axis=axis)
        else:
            stop = last + step
            run = slice(first, None if stop < 0 else stop, step)
            view = view[(slice(None),) * axis + (run,)]
    return view


# Padding of the volume for smoothing, as in the sampling afterwards. With constant padding the
# volume itself continues, so that a constant volume stays constant up to its faces.
_MODES: dict[Padding, Literal["edge", "symmetric", "constant"]] = {
    "border": "edge",
    "constant": "edge",
    "reflection": "symmetric",
    "zeros": "constant",
}


def smooth(source: SourceVoxels, region: Region, sigma: Sigmas, padding: Padding) -> SourceVoxels:
    """Return the voxels of ``region`` for sampling, smoothed, as values."""
    # ``source`` is the region ``with_halo``; ``sigma`` is the standard deviation per axis.
    dtype = source.array.dtype
    values: NDArray[Any] = source.array.astype(real_type(dtype, dtype))
    if source.slope != 1.0 or source.intercept != 0.0:
        values = (values * source.slope + source.intercept).astype(values.dtype, copy=False)
    for axis in range(3):
        # Surroundings of the region: the filter's reach, except beyond the volume.
        first = region.start[axis] - source.start[axis]
        after = values.shape[1 + axis] - first - region.shape[axis]
        far = reach(sigma[axis])
        if _MODES[padding] != "edge" and (first < far or after < far):
            widths = [(0, 0)] * 4
            widths[1 + axis] = (far - first, far - after)
            values = np.pad(values, widths, mode=_MODES[padding])
            first = far
        if far:
            filter_axis(values, axis, gaussian(sigma[axis]))
        values = values[(slice(None),) * (1 + axis) + (slice(first, first + region.shape[axis]),)]
    i, j, k = region.start
    return type(source)(values, (i, j, k), source.bounds)


def resample(
    source: SourceVoxels,
    matrix: Matrix | Affine3x4,
    policy: Policy,
    out: NDArray[Any],
    stages: KernelStages = NO_STAGES,
    *,
    epilogue: Epilogue | None = None,
    region: Region | None = None,
) -> None:
    """Sample ``source`` on an output grid, in place.

    ``policy.antialias`` smooths before, for the downsampling of ``matrix``.

    - ``source`` holds at least ``source_region(matrix, out.shape[1:], bounds, policy)``. That
      region may be passed as ``region``; voxels outside have no influence.
    - ``matrix`` is the pull-back, 3x4 or 4x4 float64: output index to *volume* index, voxel
      centres.
    - ``out`` is (C, I, J, K), an integer or float type of any strides; integers round half to even
      and saturate.
    - ``stages`` (``SpatialPlan.kernel_stages``) give ``policy.fill`` outside their boxes, from half
      a voxel beyond their last centres.
    - ``epilogue`` is a last step on the values, fill included.

    Examples
    --------
    >>> ramp = np.arange(4, dtype=np.int16).reshape(1, 4, 1, 1)
    >>> half = np.eye(4)
    >>> half[0, 3] = 0.5
    >>> out = np.empty((1, 4, 1, 1), np.float32)
    >>> resample(SourceVoxels(ramp, (0, 0, 0), Region.of_shape((4, 1, 1))), half, Policy(), out)
    >>> out.ravel().tolist()
    [0.5, 1.5, 2.5, 3.0]
    """
    rows, kind = affine3x4(matrix), source.array.dtype.kind
    if source.array.ndim != 4:
        raise ValueError(f"a source is (C, i, j, k), got shape {source.array.shape}")
    if kind not in "iufb":
        raise ValueError(f"a source holds integers or floats, got {source.array.dtype}")
    if not all(map(math.isfinite, rows)):
        raise ValueError(f"a pull-back is a finite 3x4 or 4x4 matrix, got {rows}")
    if out.ndim != 4 or out.shape[0] != source.array.shape[0]:
        raise ValueError(f"out is (C, I, J, K) with C = {source.array.shape[0]}, got {out.shape}")
    if out.dtype.kind not in "iuf":
        raise ValueError(f"out is an integer or float array, got {out.dtype}")
    if kind == "b":
        source = replace(source, array=source.array.view(np.uint8))
    shape, is_affine = out.shape[1:], not any(stages)
    moves = () if is_affine else displacement_bounds(rows, shape, stages)
    geometry = (rows, shape, source.bounds, policy.mode, policy.padding)
    if region is None:
        region = source_region(*geometry, policy.antialias is not False, moves)
    if (source.start, source.array.shape[1:]) != (region.start, region.shape):
        source = source.narrow(region)
    if policy.antialias and source.array.size and any(map(reach, sigma := sigmas(rows))):
        source = smooth(source, source_region(*geometry, False, moves), sigma, policy.padding)
    whole = whole_rows(rows, shape) if is_affine else None
    IO_COUNTERS.count(**{"interpolations" if whole is None else "copies": 1})
    mode = policy.mode if whole is None else "copy"
    where = (whole or rows, policy, out, stages, epilogue)
    if not native.run(mode, source, *where):
        _in_numpy(source, whole is not None, where)


def _in_numpy(source: SourceVoxels, copies: bool, where: Any) -> None:
    """Compute the same bits as the kernel."""
    matrix, policy, out, stages, epilogue = where

    def sample(source: SourceVoxels, policy: Policy, target: NDArray[Any]) -> NDArray[Any]:
        work = (source, np.reshape(matrix, (3, 4)), policy, target)
        copy_voxels(*work) if copies else interpolate(*work, stages)
        return target

    if epilogue is None:
        sample(source, policy, out)
        return
    one_tap = copies or policy.mode == "nearest"
    real = one_tap_type(out.dtype, source) if one_tap else real_type(out.dtype, source.array.dtype)
    values = epilogue.of(sample(source, policy, np.empty(out.shape, real)))
    if policy.fill and real == np.float32 and (policy.padding == "constant" or stages.clips):
        flat = np.zeros_like(source.array[:1], np.uint8)
        zeros = SourceVoxels(flat, source.start, source.bounds)
        flags = sample(zeros, replace(policy, fill=1), np.empty((1, *out.shape[1:]), np.uint8))
        np.copyto(values, epilogue.of(np.array(policy.fill)), where=flags != 0)
    out[...] = convert_dtype(values, out.dtype)


def outside_of(
    source: SourceVoxels, plan: SpatialPlan, policy: Policy, values: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return the flags of fill voxels, (I, J, K): those NaN in ``values``."""
    # ``source`` was resampled by ``plan``, before ops that may make NaN.
    mask: NDArray[np.bool_] = np.isnan(values[0])
    if source.array.dtype.kind != "f" or not mask.any() or np.isfinite(source.array).all():
        return mask
    # Some NaN are the volume's: sample zeros with a fill of 1 instead.
    zeros = np.zeros((1, *source.array.shape[1:]), np.uint8)
    flags = np.empty((1, *plan.shape), np.uint8)
    outside = replace(policy, fill=1, antialias=False)
    inside = SourceVoxels(zeros, source.start, source.bounds)
    resample(inside, plan.matrix, outside, flags, plan.kernel_stages)
    lies: NDArray[np.bool_] = flags[0] != 0
    return lies


def apply_plan(plan: SpatialPlan, array: NDArray[Any], policy: Policy = INTENSITY) -> NDArray[Any]:
    """Return an array resampled once to the output grid of a plan.

    Parameters
    ----------
    plan
        Its source is the grid of the array: ``patch.whole_plan.inverse()`` for a prediction on a
        patch.
    array
        (C, I, J, K) or (I, J, K), integers, booleans or floats; booleans count as uint8.
    policy
        Sampling: ``Policy("linear", "constant")`` for probabilities, ``LABEL`` for labels.

    Returns
    -------
    A new array with as many axes, of ``policy.dtype``. Without it, the array's type for copies and
    ``"nearest"``, otherwise float32.

    Raises
    ------
    ValueError
        The array has another shape than the plan's source, or another kind of type.

    Examples
    --------
    A patch that was mirrored, and a prediction on it, laid into the volume:

    >>> from voxpipe.core import Grid
    >>> from voxpipe.spatial import LABEL, Flip
    >>> volume = SpatialPlan.identity(Grid((4, 4, 4), np.eye(4)))
    >>> plan = Flip().then(volume.crop((1, 0, 0), (2, 2, 1)), {"axes": [0]})
    >>> predicted = np.array([[[1], [2]], [[3], [4]]], np.uint8)
    >>> apply_plan(plan.inverse(), predicted, LABEL)[:, :2, 0].tolist()
    [[0, 0], [3, 4], [1, 2], [0, 0]]
    """
    values = np.asarray(array)
    has_channels = values.ndim == 4
    voxels = values if has_channels else values[None]
    if values.ndim not in (3, 4) or voxels.shape[1:] != plan.source.shape:
        i, j, k = plan.source.shape
        grid = f"(C, {i}, {j}, {k}) or ({i}, {j}, {k})"
        raise ValueError(f"the plan begins at {grid}, got {values.shape}")
    voxels = voxels.view(np.uint8) if voxels.dtype.kind == "b" else voxels
    is_exact = (plan.keeps_dtype and plan.is_copy) or policy.mode == "nearest"
    dtype = policy.dtype or (voxels.dtype.newbyteorder("=") if is_exact else np.dtype(np.float32))
    out = np.empty((voxels.shape[0], *plan.shape), dtype)
    resample(
        SourceVoxels(voxels, (0, 0, 0), plan.bounds), plan.matrix, policy, out, plan.kernel_stages
    )
    return out if has_channels else out[0]
