"""Plans of whole voxels: a crop, flip, turn or pad is copied in its stored type.

Nothing is interpolated, so every value that the output type can hold arrives bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..plans.padding import fold
from ..plans.policy import Policy
from .convert import convert, convert_one

if TYPE_CHECKING:
    from .resample import Source


def copy_voxels(
    source: Source, whole: NDArray[np.int64], policy: Policy, out: NDArray[Any]
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
            # The index is monotonic, so what lies inside is one run of output voxels.
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
    if target.size and not empty:
        _assign(target, _select(view, indices), source)


def _select(view: NDArray[Any], indices: list[NDArray[np.int64]]) -> NDArray[Any]:
    """Return ``view[:, i][:, :, j][..., k]``: a view where the indices are consecutive."""
    runs: list[slice] = []
    for index in indices:
        run = _as_slice(index)
        runs.append(slice(None) if run is None else run)
    selected = view[(slice(None), *runs)]
    for axis, index in enumerate(indices):
        if _as_slice(index) is None:
            selected = np.take(selected, index, axis=1 + axis)
    return selected


def _as_slice(index: NDArray[np.int64]) -> slice | None:
    """Return an index that steps by +1 or -1 throughout as a slice."""
    first, last = int(index[0]), int(index[-1])
    step = -1 if last < first else 1
    if np.any(np.diff(index) != step):
        return None
    stop = last + step
    return slice(first, None if stop < 0 else stop, step)


def _assign(target: NDArray[Any], voxels: NDArray[Any], source: Source) -> None:
    if source.slope == 1.0 and source.intercept == 0.0:
        if voxels.dtype.newbyteorder("=") == target.dtype or _is_widening(voxels, target):
            target[...] = voxels
            return
        values = voxels
    else:
        values = voxels.astype(np.float64) * source.slope + source.intercept
    target[...] = convert(values, target.dtype)


def _is_widening(voxels: NDArray[Any], target: NDArray[Any]) -> bool:
    # Assignment converts block by block then, without a copy of the whole.
    return np.can_cast(voxels.dtype, target.dtype, "safe")
