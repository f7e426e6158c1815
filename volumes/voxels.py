"""Voxels of a read, their conversion to values, and indices of users.

A read never converts: it returns the stored array, perhaps a view of a mapped file, with the slope
and intercept of the header. Consumers apply these in their own pass over the numbers.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import OutOfVolume
from .header import EXACT_IN_FLOAT32, value_dtype

_BLOCK_VOXELS = 32 * 1024  # two blocks in double precision fit into a level-2 cache of 1 MiB


@dataclass(frozen=True, eq=False)
class Voxels:
    """Stored numbers of one region, with the slope and intercept of their values.

    Examples
    --------
    >>> voxels = Voxels(np.array([[[[0, 10]]]], dtype=">i2"), slope=0.5, intercept=-1.0)
    >>> voxels.values().tolist(), voxels.values().dtype.name
    ([[[[-1.0, 4.0]]]], 'float32')
    >>> Voxels(np.array([[[[0, 1]]]], np.uint8), boolean=True).values().tolist()
    [[[[False, True]]]]
    """

    array: NDArray[Any]
    """(C, i, j, k) in the stored type; maybe a read-only, strided view of a mapped file."""
    slope: float = 1.0  # factor from stored number to value
    intercept: float = 0.0  # value of a stored 0
    boolean: bool = False
    """Whether the numbers, 0 and 1 of uint8, have boolean values."""

    @property
    def is_scaled(self) -> bool:
        """Whether values differ from the stored numbers."""
        return (self.slope, self.intercept) != (1.0, 0.0)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of :meth:`values`."""
        disk_dtype = np.dtype(np.bool_) if self.boolean else self.array.dtype
        return value_dtype(disk_dtype, self.slope, self.intercept)

    def values(self) -> NDArray[Any]:
        """Return ``array * slope + intercept`` in native byte order.

        Returns
        -------
        ndarray
            (C, i, j, k) of :attr:`dtype`. Without scaling, in native byte order, it is
            :attr:`array` itself, which may be read-only.
        """
        if self.boolean:
            return self.array.view(np.bool_)
        if not self.is_scaled:
            return self.array.astype(self.dtype, copy=False)
        out = np.empty_like(self.array, dtype=self.dtype, subok=False)
        wide = np.result_type(self.dtype, np.float64)
        blocks = np.nditer(
            [self.array, out],
            flags=["external_loop", "buffered", "zerosize_ok"],
            op_flags=[["readonly"], ["writeonly"]],
            op_dtypes=[wide, wide],
            casting="same_kind",
            buffersize=_BLOCK_VOXELS,
        )
        # In double precision, rounded once; in blocks, to avoid a wide copy of the array.
        with blocks:
            for numbers, values in blocks:
                np.multiply(numbers, self.slope, out=values)
                values += self.intercept
        return out


# Relative, largest and least error of a label that was scaled in single precision. Labels that were
# divided by 255 or 65535 have larger errors.
_PART, _MOST_OFF, _LEAST_OFF = 1e-4, 1e-2, 1e-6


def label_numbers(voxels: Voxels) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return the nearest whole numbers of values, and flags of values that are no labels.

    - A scaled integer is a label within half a step of its scale.
    - A float is a label within rounding errors, below the first integer that its type skips.

    The flags are None where all values are labels.

    Examples
    --------
    >>> stored = np.array([[[[0, 50, 99]]]], np.int16)
    >>> label_numbers(Voxels(stored, slope=0.0202))
    (array([[[[0, 1, 2]]]], dtype=int32), None)
    >>> label_numbers(Voxels(np.array([[[[3.0000002, 0.5]]]])))[1].tolist()
    [[[[False, True]]]]
    """
    array, is_float = voxels.array, voxels.array.dtype.kind == "f"
    if not is_float and array.dtype.itemsize <= EXACT_IN_FLOAT32:
        table = _label_table(array.dtype.newbyteorder("="), voxels.slope, voxels.intercept)
        labels, wrong = table[array], np.iinfo(table.dtype.name).min
        return labels, labels == wrong if labels.min(initial=0) == wrong else None
    values = array if is_float and not voxels.is_scaled else array.astype(np.float64)
    values = values * voxels.slope + voxels.intercept if voxels.is_scaled else values
    numbers = np.rint(values)
    most = 2.0 ** (np.finfo(array.dtype).nmant + 1) if is_float else np.inf
    is_whole = is_float and bool((values == numbers).all())
    if is_whole and abs(values.min(initial=0)) <= most >= values.max(initial=0):
        return values, None
    size = np.abs(numbers)
    step = 0.0 if is_float else abs(voxels.slope) / 2
    slack = np.minimum(_LEAST_OFF + _PART * size, _MOST_OFF) if is_float else 0.0
    rounding = np.finfo(np.float32).eps * (size + abs(voxels.intercept))
    with np.errstate(invalid="ignore"):  # infinity less infinity
        off = np.abs(values - numbers)
    flags = ~((off <= step + slack + rounding) & (size <= most))  # NaN is no label
    return numbers, flags if flags.any() else None


@lru_cache(maxsize=16)
def _label_table(dtype: np.dtype[Any], slope: float, intercept: float) -> NDArray[Any]:
    """Return the label of each number of a small type, negative numbers from the end.

    The least integer marks numbers that are no labels.
    """
    limits = np.iinfo(dtype)
    raw = np.roll(np.arange(limits.min, limits.max + 1), limits.min)
    numbers, flags = label_numbers(Voxels(raw, slope, intercept))
    fits = np.abs(numbers).max() <= np.iinfo(np.int32).max
    table = numbers.astype(np.int32 if fits else np.int64)
    if flags is not None:
        table[flags] = np.iinfo(table.dtype.name).min
    return table


@lru_cache(maxsize=64)
def stored_number(
    dtype: np.dtype[Any], slope: float, intercept: float, label: float
) -> float | None:
    """Return the stored number that reads as a label; None if there is none.

    Examples
    --------
    >>> stored_number(np.dtype(np.int16), 0.5, 1.0, 3.0), stored_number(np.dtype("u1"), 1, 9, 3)
    (4.0, None)
    """
    if not float(label).is_integer():
        return None
    number = (label - intercept) / slope
    if dtype.kind in "iu":
        limits, number = np.iinfo(dtype), round(number)
        if not limits.min <= number <= limits.max:
            return None
    with np.errstate(over="ignore"):
        raw = np.array([number], dtype.newbyteorder("="))
    numbers, flags = label_numbers(Voxels(raw, slope, intercept))
    return float(raw[0]) if flags is None and numbers[0] == label else None


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of ``array`` with booleans as 0 and 1, and with integers of known width.

    Resampling kernels need numbers, and torch has no arithmetic on bool.
    """
    if array.dtype.kind == "b":
        return array.view(np.uint8)
    return array.view(array.dtype.str) if array.dtype.char in "qQ" else array


# Smallest page of memory; larger pages are touched several times.
_PAGE_BYTES = 4096


def touch(array: NDArray[Any]) -> int:
    """Read one element of every page of ``array``; return its bytes."""
    if array.size:
        fastest = min(range(array.ndim), key=lambda axis: abs(array.strides[axis]) or _PAGE_BYTES)
        step = max(1, _PAGE_BYTES // max(1, abs(array.strides[fastest])))
        index = [slice(None)] * array.ndim
        index[fastest] = slice(None, None, step)
        array[tuple(index)].copy()
        # A row that begins within a page may end on one more.
        index[fastest] = slice(-1, None)
        array[tuple(index)].copy()
    return array.nbytes


def index_ranges(item: Any, shape: tuple[int, ...], name: str) -> tuple[range, ...]:
    """Return the indices that ``item`` selects on each axis of ``shape``; refuse an empty axis."""
    ranges = []
    for axis, (entry, length) in enumerate(zip(_expand(item, len(shape)), shape, strict=True)):
        if isinstance(entry, int) and not -length <= entry < length:
            msg = f"index {entry} is out of range for axis {axis} of {name}, of length {length}."
            raise OutOfVolume(msg, do=f"Use {-length} to {length - 1}.")
        part = entry if isinstance(entry, slice) else slice(entry, entry + 1 or None)
        indices = range(length)[part]
        if not indices:
            msg = f"{entry} selects nothing on axis {axis} of {name}, of length {length}."
            raise OutOfVolume(msg, do="Select at least one voxel.")
        ranges.append(indices)
    return tuple(ranges)


def _expand(item: Any, ndim: int) -> list[int | slice]:
    entries = list(item) if isinstance(item, tuple) else [item]
    holes = [at for at, entry in enumerate(entries) if entry is Ellipsis]
    if len(holes) > 1:
        raise IndexError(f"Only one ellipsis is allowed in an index, got {len(holes)}")
    missing = ndim - len(entries) + len(holes)
    if missing < 0:
        msg = f"Too many indices: a volume has {ndim} axes, got {len(entries) - len(holes)}"
        raise IndexError(msg)
    at = holes[0] if holes else len(entries)
    entries[at : at + len(holes)] = [slice(None)] * missing
    return [_entry(entry) for entry in entries]


def _entry(entry: Any) -> int | slice:
    if isinstance(entry, slice):
        return entry
    # bool is an int in Python, but True as an index is nearly always a mistake.
    if type(entry).__name__ not in ("bool", "bool_"):
        try:
            return operator.index(entry)
        except TypeError:
            pass
    raise TypeError(f"Index not understood: {entry!r}. Use integers, slices and one ellipsis.")
