"""From one number type to another without surprises: round, saturate, never truncate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def convert(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``values`` in ``dtype``.

    Floats become integers by rounding half to even; numbers outside the integer type's range
    become its nearest end; NaN becomes 0. Everything that fits is exact.

    Parameters
    ----------
    values
        Integers or floats of any shape and byte order.
    dtype
        An integer or float type.

    Examples
    --------
    >>> convert(np.array([1.5, 2.5, -3.0, 300.0, np.nan]), np.dtype("uint8")).tolist()
    [2, 2, 0, 255, 0]
    """
    if values.dtype == dtype:
        return values
    if dtype.kind == "f":
        # Beyond float16 and float32 lies infinity: that is what these types say.
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    return _saturate(values, dtype) if values.dtype.kind != "f" else _round(values, dtype)


def convert_one(value: float, dtype: np.dtype[Any]) -> Any:
    """Return one number in ``dtype``, by the rules of :func:`convert`.

    Examples
    --------
    >>> int(convert_one(-1024.0, np.dtype("uint8")))
    0
    """
    return convert(np.array([value], dtype=np.float64), dtype)[0]


def bfloat16_bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return floats as the bits of bfloat16, rounded half to even; NaN stays NaN.

    Examples
    --------
    >>> [hex(bits) for bits in bfloat16_bits(np.array([1.0, -2.0], np.float32)).tolist()]
    ['0x3f80', '0xc000']
    """
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(
        np.uint16
    )


def _saturate(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    have, want = np.iinfo(values.dtype), np.iinfo(dtype)
    low, high = max(int(have.min), int(want.min)), min(int(have.max), int(want.max))
    if (low, high) != (have.min, have.max):
        values = np.clip(values, low, high)
    return values.astype(dtype)


def _round(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    # float32 holds every integer of 16 bits and less, float64 every one of 32.
    real = values.astype(np.float64 if dtype.itemsize > 2 else np.float32, copy=False)
    rounded = np.rint(real)
    nan = np.isnan(rounded)
    if nan.any():
        rounded[nan] = 0
    # 2**63 is a float64, the largest int64 is not: stay below it, then put the end itself.
    high = real.dtype.type(limits.max)
    safe = high if int(high) == limits.max else np.nextafter(high, real.dtype.type(0))
    result: NDArray[Any] = np.clip(rounded, real.dtype.type(limits.min), safe).astype(dtype)
    if safe != high:
        result[rounded >= high] = limits.max
    return result
