"""A part of a volume by an index: read once, with the affine of the part."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import Affine
from .backend import Backend, boxed
from .counted import counted_read
from .header import affine_entries, array_header
from .index import index_ranges
from .source import ArraySource


def cut_out(backend: Backend, item: Any, affine: Affine, name: str) -> ArraySource:
    """Return what an index selects, as a source in memory; its affine is that of the part.

    Parameters
    ----------
    backend
        The whole.
    item
        Integers, slices and an ellipsis, as of :func:`normalize_index`.
    affine
        4x4 of the whole.
    name
        What messages call the whole.

    Raises
    ------
    IndexError
        Out of range, or nothing is selected.
    """
    ranges = index_ranges(item, backend.shape, name)
    channels, region, selection = boxed(ranges)
    voxels = counted_read(backend, region, channels)
    array = voxels.array[selection].copy(order="K")
    if voxels.boolean:
        array = array.view(np.bool_)
    entries = affine_entries(affine @ _steps(ranges[1:]), name)
    part = f"{name}[{', '.join(_range_text(r) for r in ranges)}]"
    header = array_header(
        array,
        entries,
        part,
        slope=voxels.slope,
        intercept=voxels.intercept,
        tensor_dtype=backend.header.tensor_dtype,
    )
    return ArraySource(array, header, part)


def _steps(ranges: tuple[range, ...]) -> Affine:
    """Return the matrix from an index into the ranges to the index that stands there."""
    steps = np.diag([*(float(r.step) for r in ranges), 1.0])
    steps[:3, 3] = [r.start for r in ranges]
    return steps


def _range_text(r: range) -> str:
    step = "" if r.step == 1 else f":{r.step}"
    return f"{r[0]}:{r[-1] + (1 if r.step > 0 else -1)}{step}"
