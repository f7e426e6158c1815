"""The native library for values in place: noise of voxels, filters and coarser voxels.

Where it is missing, callers take the same steps in NumPy: the same bits, many times slower. Each
function changes ``array``, (C, I, J, K), in place, or returns False and leaves it alone.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.native_library import LEVEL_OF_NAME, VARIABLE, native_library

ABI = 2  # VOXPIPE_VALUES_ABI of native/values.h
_NOISE = struct.Struct("=3q3q3q3q3qQ2d")
_FILTER = struct.Struct("=2q3q3q3q3q")
_COARSEN = struct.Struct("=2q3q3q3q4q")
_KINDS = {"gaussian": 0, "rician": 1}
_OK = 0


def add_noise(
    array: NDArray[np.float32],
    kind: str,
    corner: tuple[int, int, int],
    key: int,
    mean: float,
    std: float,
) -> bool:
    """Add noise of voxels whose first has the lattice index ``corner``."""
    return _run("voxpipe_noise", _NOISE, (_KINDS[kind],), array, *corner, key, mean, std)


def filter_axis(array: NDArray[np.float32], axis: int, weights: NDArray[np.float32]) -> bool:
    """Filter along one of the spatial axes, 0 to 2."""
    weights = np.ascontiguousarray(weights, np.float32)
    numbers = (axis, weights.ctypes.data, weights.size - 1)
    return _run("voxpipe_filter", _FILTER, (), array, *numbers)


def coarsen_axis(
    array: NDArray[np.float32],
    axis: int,
    low: NDArray[np.int32],
    high: NDArray[np.int32],
    part: NDArray[np.float32],
) -> bool:
    """Set each voxel between two along an axis, as ``part`` of the way from ``low`` to ``high``.

    One of each per voxel of the axis; ``low`` and ``high`` are indices.
    """
    tables = (np.ascontiguousarray(table) for table in (low, high, part))
    places = [table.ctypes.data for table in tables]
    return _run("voxpipe_coarsen", _COARSEN, (), array, axis, *places)


def _run(
    function: str, job: struct.Struct, kind: tuple[int, ...], array: NDArray[Any], *numbers: float
) -> bool:
    path, library = LEVEL_OF_NAME.get(os.environ.get(VARIABLE, ""), 0), _library()
    if path is None or library is None:
        return False
    if array.dtype != np.float32 or array.ndim != 4 or not array.size:
        return False
    channels, *size = array.shape
    channel_stride, *stride = array.strides
    payload = job.pack(
        *(ABI, path, *kind, array.ctypes.data, channels, channel_stride),
        *(*size, *stride, *numbers),
    )
    return bool(getattr(library, function)(payload) == _OK)


@cache
def _library() -> Any:
    """Return the loaded library, or None: the resampler says so, once, where it is missing."""
    jobs = ["voxpipe_noise", "voxpipe_filter", "voxpipe_coarsen"]
    return native_library(jobs, version="voxpipe_values_abi", abi=ABI)[0]
