"""World coordinates of ITK and its formats: to the left, to the back and up (LPS), not RAS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core import Affine

# Left and posterior are counted the other way round.
RAS_OF_LPS = (-1.0, -1.0, 1.0)


def world_affine(
    columns: Sequence[Sequence[float]],
    origin: Sequence[float],
    signs: Sequence[float] = RAS_OF_LPS,
) -> Affine:
    """Return the 4x4 matrix, RAS+, of steps along the voxel axes and the first voxel's place.

    Parameters
    ----------
    columns
        For each of up to three voxel axes, the step in the world. World axes beyond
        the third (time) are dropped; missing ones are filled in, one unit long.
    origin
        World coordinates of voxel (0, 0, 0).
    signs
        What turns each world axis into R, A, S; by default it is LPS.

    Examples
    --------
    >>> world_affine([(2, 0), (0, 3)], (10, 20))[:3].tolist()
    [[-2.0, 0.0, 0.0, -10.0], [0.0, -3.0, 0.0, -20.0], [0.0, 0.0, 1.0, 0.0]]
    """
    affine: NDArray[np.float64] = np.eye(4)
    for axis, step in enumerate(columns):
        affine[:3, axis] = (*step, 0.0, 0.0, 0.0)[:3]
    affine[:3, 3] = (*origin, 0.0, 0.0, 0.0)[:3]
    affine[:3] *= np.array(signs)[:, None]
    return affine + 0.0  # no negative zeros
