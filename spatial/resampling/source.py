"""Voxels that are resampled, where they lie, and the types that values are converted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Region


@dataclass(frozen=True, eq=False)
class Source:
    """Stored voxels, and where in the volume they lie."""

    array: NDArray[Any]
    """(C, i, j, k), any integer or float type, strides and byte order; read-only is fine."""
    start: tuple[int, int, int]
    """Volume index of ``array[:, 0, 0, 0]``."""
    bounds: Region
    """The voxels that count as volume, in volume indices; padding begins at its faces."""
    slope: float = 1.0
    """A value is ``stored * slope + intercept``."""
    intercept: float = 0.0
    """See ``slope``."""

    def __post_init__(self) -> None:
        if self.array.ndim != 4:
            msg = f"a source is (C, i, j, k), got shape {self.array.shape}"
            raise ValueError(msg)
        if self.array.dtype.kind not in "iufb":
            msg = f"a source holds integers or floats, got {self.array.dtype}"
            raise ValueError(msg)
        if self.array.dtype.kind == "b":
            object.__setattr__(self, "array", self.array.view(np.uint8))

    @property
    def region(self) -> Region:
        """The voxels at hand, in volume indices."""
        return Region.of_shape(self.array.shape[1:]).shift(self.start)

    def narrow(self, region: Region) -> Source:
        """Return the part inside ``region``, as a view.

        Raises
        ------
        ValueError
            Some voxel of ``region`` is not at hand.
        """
        # Plain numbers: regions would take a third of the time of a small copy.
        (i, j, k), (a, b, c), (x, y, z) = self.start, region.start, region.stop
        _, size_i, size_j, size_k = self.array.shape
        inside: tuple[slice, slice, slice]
        if region.is_empty:
            inside = (slice(0, 0),) * 3
        elif a < i or b < j or c < k or x > i + size_i or y > j + size_j or z > k + size_k:
            msg = f"resampling needs {region}, but only {self.region} was read"
            raise ValueError(msg)
        else:
            inside = slice(a - i, x - i), slice(b - j, y - j), slice(c - k, z - k)
        start = (a, b, c)
        return Source(
            self.array[(slice(None), *inside)], start, self.bounds, self.slope, self.intercept
        )


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
