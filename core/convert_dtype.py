"""Type conversion that rounds and clips; it never truncates or wraps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def convert_dtype(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``values`` in ``dtype``; both are integers or floats of any byte order.

    Floats become integers by rounding half to even; numbers outside the integer type's range
    become its nearest end; NaN becomes 0. Numbers that fit are exact.

    Examples
    --------
    >>> convert_dtype(np.array([1.5, 2.5, -3.0, 300.0, np.nan]), np.dtype("uint8")).tolist()
    [2, 2, 0, 255, 0]
    """
    if values.dtype == dtype:
        return values
    if dtype.kind == "f":
        # Numbers beyond the range of float16 and float32 become infinite.
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    if values.dtype.kind == "f":
        return _round(values, dtype)
    have, want = np.iinfo(values.dtype), np.iinfo(dtype)
    low, high = max(int(have.min), int(want.min)), min(int(have.max), int(want.max))
    if (low, high) != (have.min, have.max):
        values = np.clip(values, low, high)
    return values.astype(dtype)


def _round(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    # float32 holds every integer of 16 bits and less, float64 every one of 32.
    real = values.astype(np.float64 if dtype.itemsize > 2 else np.float32, copy=False)
    whole = np.rint(real)
    nan = np.isnan(whole)
    if nan.any():
        whole[nan] = 0
    # 2**63 is a float64, the largest int64 is not: clip below it, then write the end itself.
    high = real.dtype.type(limits.max)
    safe = high if int(high) == limits.max else np.nextafter(high, real.dtype.type(0))
    result: NDArray[Any] = np.clip(whole, real.dtype.type(limits.min), safe).astype(dtype)
    if safe != high:
        result[whole >= high] = limits.max
    return result
