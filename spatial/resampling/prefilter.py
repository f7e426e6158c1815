"""Smoothing of the voxels that were read, before fewer are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...intensity.filter_axis import filter_axis, gaussian, reach
from ..plans.downsampling import Sigmas
from ..plans.policy import Padding

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
    stored = source.array.dtype
    is_wide = stored.itemsize > 4 or (stored.kind in "iu" and stored.itemsize == 4)
    values: NDArray[Any] = source.array.astype(np.float64 if is_wide else np.float32)
    if source.slope != 1.0 or source.intercept != 0.0:
        values = (values * source.slope + source.intercept).astype(values.dtype, copy=False)
    for axis in range(3):
        # What lies around the region at hand: all that the filter looks at, but beyond the volume.
        first = region.start[axis] - source.start[axis]
        after = values.shape[1 + axis] - first - region.shape[axis]
        far = reach(sigma[axis])
        if _MODES[padding] != "edge" and (first < far or after < far):
            widths = [(0, 0)] * 4
            widths[1 + axis] = (far - first, far - after)
            values = np.pad(values, widths, mode=_MODES[padding])
            first = far
        if far:
            filter_axis(values, axis, gaussian(sigma[axis]))
        values = values[(slice(None),) * (1 + axis) + (slice(first, first + region.shape[axis]),)]
    i, j, k = region.start
    return type(source)(values, (i, j, k), source.bounds)
