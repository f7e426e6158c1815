"""The native library for values in place: all steps of a patch in one call.

Where it is missing, callers take the same steps in NumPy: the same bits, many times slower.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.native_library import native_level, native_library

_JOB = struct.Struct("=3q3q2q")
_STEP = struct.Struct("=2qQ4d3q3q3q")
_NO_RANGE = 1024  # VOXPIPE_NO_RANGE, of the first step
_OK = 0  # VoxpipeStatus of native/interface.h
MOST_STEPS = 64  # VOXPIPE_MOST_STEPS, of one call
SCALE, SPREAD, GAMMA, GAUSSIAN, RICIAN, FILTER, COARSEN = range(7)
OF_PATCH, KEEP_RANGE, KEEP_STATISTICS, INVERT = 1, 2, 4, 8


def pack_step(
    kind: int,
    numbers: tuple[float, ...] = (),
    flags: int = 0,
    key: int = 0,
    corner: tuple[int, int, int] = (0, 0, 0),
    weights: tuple[NDArray[np.float32], ...] = (),
) -> bytes:
    """Return ``VoxpipeStep`` of native/interface.h; it holds addresses of the weights."""
    places = [array.ctypes.data for array in weights] or (0, 0, 0)
    radii = [array.size - 1 for array in weights] or (0, 0, 0)
    four = (*numbers, 0.0, 0.0, 0.0, 0.0)[:4]
    return _STEP.pack(kind, flags, key, *four, *corner, *places, *radii)


def change(array: NDArray[Any], steps: Sequence[bytes]) -> int | None:
    """Do up to 64 steps to ``array``, (C, I, J, K), in place; None if it was left alone.

    Else return how many were done: all, or those before one that asks for the mean or the range of
    values of which some are not finite.
    """
    path, library = native_level(), _library()
    if path is None or library is None:
        return None
    if array.dtype != np.float32 or array.ndim != 4 or not array.size:
        return None
    values = np.require(array, requirements=["C", "ALIGNED"])  # itself, if it is that
    payload = np.frombuffer(b"".join(steps), np.uint8)
    places = values.ctypes.data, *values.shape, payload.ctypes.data
    status = library.voxpipe_values(_JOB.pack(path, *places, len(steps)))
    if status != _OK and status < _NO_RANGE:
        return None
    if values is not array:
        array[...] = values
    return len(steps) if status == _OK else int(status) - _NO_RANGE


@cache
def _library() -> Any:
    """Return the loaded library, or None: the resampler says so, once, where it is missing."""
    return native_library(["voxpipe_values"])[0]
