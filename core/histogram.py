"""How often each value occurs: enough for every statistic of a volume, without its voxels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Histogram:
    """Values and how many voxels have them; or means of narrow bins and how many lie in each.

    Examples
    --------
    >>> histogram = Histogram(np.array([1.0, 2.0, 6.0]), np.array([1, 2, 1]))
    >>> histogram.mean, histogram.percentile(50), histogram.above(1).minimum
    (2.75, 2.0, 2.0)
    """

    values: Floats
    """Finite, rising."""
    counts: NDArray[np.int64]
    """As many, each above 0."""

    @property
    def count(self) -> int:
        """Number of voxels."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Arithmetic mean; NaN if there is no voxel."""
        return float(self.values @ self.counts) / self.count if self.count else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation."""
        if not self.count:
            return math.nan
        return math.sqrt(float((self.values - self.mean) ** 2 @ self.counts) / self.count)

    @property
    def minimum(self) -> float:
        """Smallest value."""
        return float(self.values[0]) if self.count else math.nan

    @property
    def maximum(self) -> float:
        """Largest value."""
        return float(self.values[-1]) if self.count else math.nan

    def percentile(self, q: float) -> float:
        """Return what ``numpy.percentile`` gives for all voxels, interpolated linearly."""
        if not self.count:
            return math.nan
        place = q / 100 * (self.count - 1)
        ends = np.cumsum(self.counts)
        lower, upper = np.searchsorted(ends, [math.floor(place), math.ceil(place)], side="right")
        low, high = float(self.values[lower]), float(self.values[upper])
        return low + (high - low) * (place - math.floor(place))

    def mapped(self, function: Callable[[Floats], Floats]) -> Histogram:
        """Return the histogram of what a function makes of each value."""
        values = np.asarray(function(self.values), np.float64)
        if (values[1:] >= values[:-1]).all():
            return Histogram(values, self.counts)
        order = np.argsort(values, kind="stable")
        return Histogram(values[order], self.counts[order])

    def above(self, threshold: float) -> Histogram:
        """Return the part of larger values."""
        kept = self.values > threshold
        return Histogram(self.values[kept], self.counts[kept])


def merge_histograms(histograms: Sequence[Histogram]) -> Histogram:
    """Return the histogram of the voxels of all.

    Examples
    --------
    >>> one = Histogram(np.array([1.0, 3.0]), np.array([1, 1]))
    >>> merge_histograms([one, Histogram(np.array([2.0]), np.array([4]))]).values.tolist()
    [1.0, 2.0, 3.0]
    """
    values = np.concatenate([histogram.values for histogram in histograms])
    counts = np.concatenate([histogram.counts for histogram in histograms])
    order = np.argsort(values, kind="stable")
    return Histogram(values[order], counts[order])
