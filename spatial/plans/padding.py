"""Where a coordinate outside the volume lands, for reflection.

The other rules need no map of their own: clamping is clipping, and fill is a mask.
Reflection is half-sample symmetric: the mirror stands on the outer face of the last
voxel, half a voxel beyond its centre, so the last voxel is repeated once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def fold(values: Any, start: int, stop: int) -> NDArray[np.float64]:
    """Return coordinates reflected into ``start - 0.5 .. stop - 0.5``, float64.

    Examples
    --------
    >>> fold([-2, -1, 0, 3, 4, 5], 0, 4).tolist()
    [1.0, 0.0, 0.0, 3.0, 3.0, 2.0]
    """
    face, length = start - 0.5, float(stop - start)
    away = np.abs(np.asarray(values, dtype=np.float64) - face)
    np.fmod(away, 2 * length, out=away)
    folded: NDArray[np.float64] = np.minimum(away, 2 * length - away) + face
    return folded


def fold_interval(low: float, high: float, start: int, stop: int) -> tuple[float, float]:
    """Return the smallest interval that holds every reflected coordinate of ``low .. high``.

    Examples
    --------
    >>> fold_interval(-3.0, 1.0, 0, 10)
    (-0.5, 2.0)
    """
    face, length = start - 0.5, stop - start
    ends = fold([low, high], start, stop)
    lowest, highest = float(ends.min()), float(ends.max())
    # Between its turning points, which lie on the faces of the copies, the fold is monotonic.
    first = int(np.ceil((low - face) / length))
    last = int(np.floor((high - face) / length))
    turns = {m % 2 for m in range(first, min(last, first + 1) + 1)}
    if 0 in turns:
        lowest = face
    if 1 in turns:
        highest = stop - 0.5
    return lowest, highest
