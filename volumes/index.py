"""Indices of a four-dimensional volume, as TorchIO spells them: axes are always kept."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..core import Affine
from ..core.errors import OutOfVolume


def normalize_index(item: Any, ndim: int = 4) -> tuple[slice, ...]:
    """Return an index as one slice per axis.

    An integer becomes a slice of length one, one ellipsis expands, missing axes
    are taken whole. Bounds are not checked: the shape is not known here.

    Parameters
    ----------
    item
        An integer (NumPy's too), a slice, an ellipsis, or a tuple of these.
    ndim
        Number of axes.

    Raises
    ------
    IndexError
        Too many indices, or more than one ellipsis.
    TypeError
        Anything else, booleans included.

    Examples
    --------
    >>> normalize_index((0, ..., -1))
    (slice(0, 1, None), slice(None, None, None), slice(None, None, None), slice(-1, None, None))
    """
    return tuple(_as_slice(entry) for entry in _expand(item, ndim))


def index_ranges(item: Any, shape: tuple[int, ...], name: str) -> tuple[range, ...]:
    """Return the indices that ``item`` selects on each axis of ``shape``; never none of them."""
    ranges = []
    for axis, (entry, length) in enumerate(zip(_expand(item, len(shape)), shape, strict=True)):
        if isinstance(entry, int) and not -length <= entry < length:
            raise OutOfVolume(
                f"index {entry} is out of range for axis {axis} of {name}, of length {length}.",
                do=f"Use {-length} to {length - 1}.",
            )
        selected = range(length)[_as_slice(entry)]
        if not selected:
            raise OutOfVolume(
                f"{entry} selects nothing on axis {axis} of {name}, of length {length}.",
                do="Select at least one voxel.",
            )
        ranges.append(selected)
    return tuple(ranges)


def _expand(item: Any, ndim: int) -> list[int | slice]:
    entries = list(item) if isinstance(item, tuple) else [item]
    holes = [at for at, entry in enumerate(entries) if entry is Ellipsis]
    if len(holes) > 1:
        msg = f"Only one ellipsis is allowed in an index, got {len(holes)}"
        raise IndexError(msg)
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
    # bool is an int in Python, and True as an index is nearly always a slip.
    if type(entry).__name__ not in ("bool", "bool_"):
        try:
            return operator.index(entry)
        except TypeError:
            pass
    msg = f"Index not understood: {entry!r}. Use integers, slices and one ellipsis."
    raise TypeError(msg)


def _as_slice(entry: int | slice) -> slice:
    if isinstance(entry, slice):
        return entry
    return slice(entry, None) if entry == -1 else slice(entry, entry + 1)


def steps_matrix(ranges: tuple[range, ...]) -> Affine:
    """Return the matrix from an index into the ranges to the index that stands there."""
    steps = np.diag([*(float(r.step) for r in ranges), 1.0])
    steps[:3, 3] = [r.start for r in ranges]
    return steps


def range_text(r: range) -> str:
    """Return a range as the slice that a user would write."""
    step = "" if r.step == 1 else f":{r.step}"
    return f"{r[0]}:{r[-1] + (1 if r.step > 0 else -1)}{step}"
