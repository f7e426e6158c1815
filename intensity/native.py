"""The native library for values in place: noise of voxels, filters and coarser voxels.

Where it is missing, callers take the same steps in NumPy: the same bits, many times slower.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.native_library import address_of, native_library, requested_path

ABI = 2  # VOXPIPE_VALUES_ABI of native/values.h
_NOISE = struct.Struct("=3q3q3q3q3qQ2d")
_FILTER = struct.Struct("=2q3q3q3q3q")
_COARSEN = struct.Struct("=2q3q3q3q4q")
_KINDS = {"gaussian": 0, "rician": 1}
_DONE = 0


def add_noise(
    array: NDArray[np.float32],
    kind: str,
    corner: tuple[int, int, int],
    key: int,
    mean: float,
    std: float,
) -> bool:
    """Add noise to ``array``, (C, I, J, K), in place, or return False and leave it alone."""
    requested, library = requested_path(), _library()
    if requested is None or library is None or not _fits(array):
        return False
    channels, *size = array.shape
    channel_stride, *stride = array.strides
    job = _NOISE.pack(
        *(ABI, requested, _KINDS[kind], address_of(array), channels, channel_stride),
        *(*size, *stride, *corner, key, mean, std),
    )
    return bool(library.voxpipe_noise(job) == _DONE)


def filter_axis(array: NDArray[np.float32], axis: int, weights: NDArray[np.float32]) -> bool:
    """Filter ``array``, (C, I, J, K), along one of its spatial axes, 0 to 2, or return False."""
    requested, library = requested_path(), _library()
    if requested is None or library is None or not _fits(array):
        return False
    channels, *size = array.shape
    channel_stride, *stride = array.strides
    weights = np.ascontiguousarray(weights, np.float32)
    job = _FILTER.pack(
        *(ABI, requested, address_of(array), channels, channel_stride),
        *(*size, *stride, axis, address_of(weights), weights.size - 1),
    )
    return bool(library.voxpipe_filter(job) == _DONE)


def coarsen_axis(
    array: NDArray[np.float32],
    axis: int,
    low: NDArray[np.int32],
    high: NDArray[np.int32],
    part: NDArray[np.float32],
) -> bool:
    """Set each voxel of ``array``, (C, I, J, K), between two along an axis, or return False.

    ``low`` and ``high`` are where these lie, ``part`` is how much of the way between them is gone;
    one of each per voxel of the axis.
    """
    requested, library = requested_path(), _library()
    if requested is None or library is None or not _fits(array):
        return False
    channels, *size = array.shape
    channel_stride, *stride = array.strides
    tables = [
        np.ascontiguousarray(table, kind)
        for table, kind in ((low, np.int32), (high, np.int32), (part, np.float32))
    ]
    job = _COARSEN.pack(
        *(ABI, requested, address_of(array), channels, channel_stride),
        *(*size, *stride, axis, *map(address_of, tables)),
    )
    return bool(library.voxpipe_coarsen(job) == _DONE)


def _fits(array: NDArray[Any]) -> bool:
    return array.dtype == np.float32 and array.ndim == 4 and array.size > 0


@cache
def _library() -> Any:
    """Return the loaded library, or None: the resampler says so, once, where it is missing."""
    jobs = ["voxpipe_noise", "voxpipe_filter", "voxpipe_coarsen"]
    return native_library(jobs, version="voxpipe_values_abi", expected=ABI)[0]
