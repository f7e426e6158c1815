"""Mean and spread of many numbers, joined from those of parts without losing digits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """Of none, or of some numbers.

    Examples
    --------
    >>> both = Moments.of(np.array([1, 2])).joined(Moments.of(np.array([6])))
    >>> both.mean, both.squares, both.low, both.high, both.count
    (3.0, 14.0, 1.0, 6.0, 3)
    """

    count: int = 0
    """How many."""
    mean: float = 0.0
    """Their mean."""
    squares: float = 0.0
    """Sum of the squared distances from it."""
    low: float = math.inf
    """The smallest."""
    high: float = -math.inf
    """The largest."""

    @classmethod
    def of(cls, numbers: NDArray[Any]) -> Moments:
        """Return the moments of an array; those with a NaN or infinity are NaN."""
        wide = numbers.astype(np.float64)
        # Of infinite numbers there is none either, which whoever asks is told in words.
        with np.errstate(invalid="ignore"):
            low, high, mean = float(wide.min()), float(wide.max()), float(wide.mean())
            wide -= mean
            np.square(wide, out=wide)
            return cls(wide.size, mean, float(wide.sum()), low, high)

    @classmethod
    def counted(cls, numbers: NDArray[np.float64], counts: NDArray[np.int64]) -> Moments:
        """Return the moments of ascending numbers that occur so often each."""
        count = int(counts.sum())
        mean = float((numbers * counts).sum()) / count
        squares = float((np.square(numbers - mean) * counts).sum())
        return cls(count, mean, squares, float(numbers[0]), float(numbers[-1]))

    def joined(self, other: Moments) -> Moments:
        """Return the moments of both together."""
        # Chan, Golub & LeVeque (1979).
        delta, count = other.mean - self.mean, self.count + other.count
        return Moments(
            count,
            self.mean + delta * other.count / count,
            self.squares + other.squares + delta * delta * self.count * other.count / count,
            float(np.minimum(self.low, other.low)),
            float(np.maximum(self.high, other.high)),
        )
