"""Smoothing of the voxels that were read, before fewer are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core import Region
from .downsampling import Sigmas, radius
from .policy import Padding

if TYPE_CHECKING:
    from .resample import Source

# Beyond the volume: as the sampling that follows sees it. Where that gives a constant, the volume
# itself goes on meanwhile, so that a constant volume stays constant up to its faces.
_MODES: dict[Padding, Literal["edge", "symmetric", "constant"]] = {
    "border": "edge",
    "constant": "edge",
    "reflection": "symmetric",
    "zeros": "constant",
}


# Voxels of one slab. From 2^14 to 2^17 it makes no difference; 2^20 takes half as long again.
_SLAB = 2**16


def smoothed(source: Source, region: Region, sigma: Sigmas, padding: Padding) -> Source:
    """Return the voxels of ``region``, smoothed, as values.

    Parameters
    ----------
    source
        Exactly ``downsampling.with_halo(region, bounds, ...)``.
    region
        What will be sampled.
    sigma
        Standard deviation along each axis.
    padding
        What lies outside the volume.
    """
    is_wide = source.array.dtype.itemsize > 4 or (
        source.array.dtype.kind in "iu" and (source.array.dtype.itemsize == 4)
    )
    values: NDArray[Any] = source.array.astype(np.float64 if is_wide else np.float32)
    if source.slope != 1.0 or source.intercept != 0.0:
        values = (values * source.slope + source.intercept).astype(values.dtype, copy=False)
    at_hand = source.region
    for axis in range(3):
        reach = radius(sigma[axis])
        if reach == 0:
            continue
        before = at_hand.start[axis] - (region.start[axis] - reach)
        after = (region.stop[axis] + reach) - at_hand.stop[axis]
        widths = [(0, 0)] * 4
        widths[1 + axis] = (before, after)
        if before or after:
            values = np.pad(values, widths, mode=_MODES[padding])
        values = _along(values, 1 + axis, _weights(sigma[axis], reach))
    i, j, k = region.start
    return type(source)(np.ascontiguousarray(values), (i, j, k), source.bounds)


def _weights(sigma: float, reach: int) -> list[float]:
    """Return the weights of a Gaussian from its middle outwards; all of them add to one."""
    weights = np.exp(-0.5 * (np.arange(reach + 1) / sigma) ** 2)
    found: list[float] = (weights / (weights[0] + 2 * weights[1:].sum())).tolist()
    return found


def _along(values: NDArray[Any], axis: int, weights: list[float]) -> NDArray[Any]:
    """Return the weighted sums along one axis, which is shorter by the reach at either end."""
    shape = list(values.shape)
    shape[axis] -= 2 * (len(weights) - 1)
    result = np.empty(shape, values.dtype)
    # Slab by slab, so that the passes over the taps stay in the cache: 1.8 times as fast.
    across = 2 if axis == 1 else 1
    step = max(1, _SLAB * values.shape[across] // max(values.size, 1))
    for start in range(0, values.shape[across], step):
        slab = (slice(None),) * across + (slice(start, start + step),)
        _slab_along(values[slab], axis, weights, result[slab])
    return result


def _slab_along(
    values: NDArray[Any], axis: int, weights: list[float], result: NDArray[Any]
) -> None:
    reach, size = len(weights) - 1, result.shape[axis]

    def shifted(by: int) -> NDArray[Any]:
        return values[(slice(None),) * axis + (slice(reach + by, reach + by + size),)]

    # The differences to the middle: a constant stays the very same constant.
    twice = 2 * shifted(0)
    pair = np.empty(result.shape, values.dtype)
    result[...] = 0
    for by, weight in enumerate(weights[1:], start=1):
        np.add(shifted(-by), shifted(by), out=pair)
        pair -= twice
        pair *= values.dtype.type(weight)
        result += pair
    result += shifted(0)
