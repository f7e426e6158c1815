"""A symmetric filter along one axis, in place; beyond its ends the outermost voxels go on.

NumPy here is the reference; ``native/filter.h`` adds in the same order, and gives the same bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from . import native

# Where SciPy's gaussian_filter ends the kernel, in standard deviations.
TRUNCATE = 4.0


def reach(sigma: float) -> int:
    """Return how many voxels on either side a Gaussian of ``sigma`` voxels looks at."""
    return int(TRUNCATE * sigma + 0.5)


def gaussian(sigma: float) -> NDArray[np.float32]:
    """Return the weights of a voxel itself and of its neighbours on one side, which sum to 1.

    Examples
    --------
    >>> gaussian(0.3).tolist()
    [0.9923275113105774, 0.0038362587802112103]
    """
    radius = reach(sigma)
    weights = [1.0]
    weights += [math.exp(-0.5 * (t / sigma) ** 2) for t in range(1, radius + 1)]
    return (np.array(weights) / (2 * sum(weights) - 1)).astype(np.float32)


def filter_axis(array: NDArray[np.float32], axis: int, weights: NDArray[np.float32]) -> None:
    """Filter ``array``, (C, I, J, K), along spatial axis 0, 1 or 2, in place.

    Parameters
    ----------
    array
        float32, of any strides.
    axis
        Which one.
    weights
        Of the voxel itself, then of the neighbours on either side alike.
    """
    if weights.size == 1 and weights[0] == 1:
        return
    if native.filter_axis(array, axis, weights):
        return
    radius, length = weights.size - 1, array.shape[axis + 1]
    ends = [(0, 0)] * 4
    ends[axis + 1] = (radius, radius)
    padded = np.moveaxis(np.pad(array, ends, mode="edge"), axis + 1, 0)
    total = weights[0] * padded[radius : radius + length]
    for t in range(1, radius + 1):
        neighbours = padded[radius - t : radius - t + length]
        total += weights[t] * (neighbours + padded[radius + t : radius + t + length])
    np.moveaxis(array, axis + 1, 0)[...] = total
