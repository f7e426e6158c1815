"""Coarser voxels along one axis, in place: every few voxels one stays, and lines lie in between.

NumPy here is the reference; ``native/coarsen.h`` takes the same steps, and gives the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import native


def coarsen_axis(array: NDArray[np.float32], axis: int, factor: float, corner: int) -> None:
    """Keep only every ``factor``-th voxel of an axis, and draw lines in between, in place.

    Which voxels stay is a matter of the lattice, not of where the array begins: number ``m``
    is the voxel nearest to ``m * factor``.

    Parameters
    ----------
    array
        (C, I, J, K) float32 of any strides, with ``ceil(factor) + 1`` voxels around what is wanted.
    axis
        0, 1 or 2.
    factor
        At least 1.
    corner
        Lattice index of the first voxel along the axis.

    Examples
    --------
    >>> row = np.array([0, 5, 20, 0, 40], np.float32).reshape(1, 1, 1, 5)
    >>> coarsen_axis(row, axis=2, factor=2, corner=0)
    >>> row.ravel().tolist()
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    length = array.shape[axis + 1]
    place = (corner + np.arange(length)) / factor
    before = np.floor(place)
    low, high = (
        np.clip(np.rint(m * factor) - corner, 0, length - 1).astype(np.int32)
        for m in (before, before + 1)
    )
    part = (place - before).astype(np.float32)
    if native.coarsen_axis(array, axis, low, high, part):
        return
    first = np.take(array, low, axis=axis + 1)
    rise = np.take(array, high, axis=axis + 1)
    along = part.reshape(-1, *[1] * (2 - axis))
    with np.errstate(invalid="ignore"):
        rise -= first
        rise *= along
        np.add(first, rise, out=array)
    # A voxel that is kept is what it is, beside an infinite one too.
    np.copyto(array, first, where=np.isnan(array) & (along == 0))
