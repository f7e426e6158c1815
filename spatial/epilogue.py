"""A last step on values, on their way into the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Epilogue:
    """``clamp(value * scale + shift, low, high)``, after slope, intercept, padding and fill.

    Examples
    --------
    >>> Epilogue(scale=0.5, high=3.0).of(np.array([2.0, 8.0])).tolist()
    [1.0, 3.0]
    """

    scale: float = 1.0
    """Factor."""
    shift: float = 0.0
    """Summand, after the factor."""
    low: float = -np.inf
    """Smallest result."""
    high: float = np.inf
    """Largest result; not below ``low``."""

    def __post_init__(self) -> None:
        for name in ("scale", "shift", "low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not (np.isfinite(self.scale) and np.isfinite(self.shift) and self.low <= self.high):
            msg = f"an epilogue has finite scale and shift and low <= high, got {self!r}"
            raise ValueError(msg)

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the results for float values; NaN stays NaN."""
        result: NDArray[Any] = np.clip(values * self.scale + self.shift, self.low, self.high)
        return result
