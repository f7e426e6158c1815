"""Weights of a window's voxels where windows overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.validate import as_choice

# Width of the bell (MONAI, nnU-Net), and MONAI's least weight, for the corners of a window.
_SIGMA = 0.125
_LEAST = 1e-3


def _gaussian(size: Sequence[int]) -> NDArray[np.float32]:
    bells = []
    for n in size:
        distance = np.arange(n, dtype=np.float32) - np.float32((n - 1) / 2)
        bells.append(np.exp(-(distance**2) / np.float32(2 * (_SIGMA * n) ** 2)))
    weights = _product(bells)
    least = max(float(weights[weights != 0].min()), _LEAST)
    return np.maximum(weights, np.float32(least))


def _hann(size: Sequence[int]) -> NDArray[np.float32]:
    # TorchIO's: the two zeros at the ends are left out.
    return _product([np.hanning(n + 2)[1:-1].astype(np.float32) for n in size])


def _product(axes: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    i, j, k = axes
    weights: NDArray[np.float32] = i[:, None, None] * j[:, None] * k
    return weights


BLENDS: dict[str, Callable[[Sequence[int]], NDArray[np.float32]] | None] = {
    "gaussian": _gaussian,
    "hann": _hann,
    "mean": None,
    "crop": None,
}
"""Function from a window's size to its weights; None: each voxel counts 1."""


def weights_of(blend: str, size: Sequence[int]) -> NDArray[np.float32] | None:
    """Return how much each voxel of a window counts, (I, J, K) float32; None: each as much.

    ValueError for a blend that is none of :data:`BLENDS`.

    Examples
    --------
    >>> weights_of("hann", (3, 1, 1)).ravel().tolist()
    [0.5, 1.0, 0.5]
    """
    make = BLENDS[as_choice("blend", blend, tuple(BLENDS))]
    return None if make is None else make(size)
