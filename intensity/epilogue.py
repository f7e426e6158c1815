"""A last step on values, on their way into the output: what a kernel does in passing."""

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

    @property
    def is_affine(self) -> bool:
        """Whether it clamps nothing."""
        return self.low == -np.inf and self.high == np.inf

    def then(self, later: Epilogue) -> Epilogue:
        """Return both in one, this first.

        Examples
        --------
        >>> Epilogue(2, 1, high=5).then(Epilogue(-1, 0, low=-4))
        Epilogue(scale=-2.0, shift=-1.0, low=-4.0, high=inf)
        """
        ends = [
            later.scale * end + later.shift if later.scale else later.shift for end in self._ends
        ]
        low, high = (min(max(end, later.low), later.high) for end in sorted(ends))
        shift = self.shift * later.scale + later.shift
        return Epilogue(self.scale * later.scale, shift, low, high)

    @property
    def _ends(self) -> tuple[float, float]:
        return (self.low, self.high)

    def on(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return ``array``, changed in place."""
        if self.scale != 1:
            np.multiply(array, np.float32(self.scale), out=array)
        if self.shift != 0:
            np.add(array, np.float32(self.shift), out=array)
        if not self.is_affine:
            np.clip(array, np.float32(self.low), np.float32(self.high), out=array)
        return array
