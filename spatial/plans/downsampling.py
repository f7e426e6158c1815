"""How much a plan smooths before it takes fewer voxels than there are: from its matrix alone.

Where neighbours of the output lie s voxels of the source apart, a Gaussian of ``(s - 1) / 2``
voxels goes before: the rule of scikit-image's ``resize`` (``anti_aliasing_sigma``), which MONAI's
``Resize`` took over. How far apart they lie, and in which direction, are the singular values of
the fused matrix and its left singular vectors; so a chain is smoothed once, for what all of it
does, and a rotation alone is not smoothed at all.

The Gaussian is done along the axes of the source. Where the directions lie oblique to these, which
takes a turned output of unequal voxels, the Gaussian that is done is the smallest of this form
that the rule's fits in by its diagonal: nothing aliases, some detail across is lost.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...core import Region
from ...core.rows import Rows
from ...intensity.filter_axis import reach
from .policy import Policy

Sigmas = tuple[float, float, float]
"""Standard deviation along each axis of the source, in its voxels."""

_MOST_REMEMBERED = 1024


@lru_cache(_MOST_REMEMBERED)
def sigmas(rows: Rows) -> Sigmas:
    """Return how much to smooth along each axis of the source.

    Parameters
    ----------
    rows
        Pull-back, output index to source index, row by row.

    Examples
    --------
    >>> sigmas((4.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 0.5, 0))
    (1.5, 0.0, 0.0)
    """
    linear = np.reshape(rows, (3, 4))[:, :3]
    directions, steps, _ = np.linalg.svd(linear)
    wanted = np.maximum(0.0, (steps - 1) / 2)
    covariance = (directions * wanted**2) @ directions.T
    # A diagonal matrix minus this one is positive semidefinite where each entry is at least the
    # sum of the row's magnitudes (Gershgorin): smoothed enough in every direction.
    i, j, k = np.sqrt(np.abs(covariance).sum(axis=1)).tolist()
    return (i, j, k)


def reaches(rows: Rows, policy: Policy) -> tuple[int, int, int]:
    """Return how many voxels more than it samples a plan reads on either side, per axis."""
    if not policy.antialias:
        return (0, 0, 0)
    i, j, k = map(reach, sigmas(rows))
    return (i, j, k)


def with_halo(region: Region, bounds: Region, halo: tuple[int, int, int]) -> Region:
    """Return ``region`` with what the filter takes in around it, inside ``bounds``."""
    if region.is_empty or not any(halo):
        return region
    start = (max(a - r, b) for a, b, r in zip(region.start, bounds.start, halo, strict=True))
    stop = (min(a + r, b) for a, b, r in zip(region.stop, bounds.stop, halo, strict=True))
    return Region(tuple(start), tuple(stop))
