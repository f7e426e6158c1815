"""Normalize: subtract a mean, divide by a standard deviation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import as_number, as_volume_key
from .value_op import Drawn, Epilogue, Facts, ValueOp

# In deviations: a mean further from 0 costs a float32 digit that a subtraction in float64 keeps.
MOST_SHIFT = 10.0


def normalize(
    array: NDArray[Any], mean: float, std: float, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return ``(array - mean) / std`` in float32.

    Parameters
    ----------
    array
        Values of any shape and real type.
    mean, std
        In the units of the values; with ``std`` 0 the mean is subtracted only.
    out
        Where to write, float32; it may be ``array`` itself. By default a new array.

    Examples
    --------
    >>> normalize(np.array([1, 3], np.int16), mean=2, std=0.5).tolist()
    [-2.0, 2.0]
    """
    # The subtraction is done in float64, block by block inside NumPy: a small difference of
    # large numbers keeps its digits, and no float64 copy of the whole is made.
    result = np.empty(array.shape, np.float32) if out is None else out
    np.subtract(array, np.float64(mean), out=result, dtype=np.float64, casting="same_kind")
    if std != 0:
        np.divide(result, np.float32(std), out=result)
    return result


@dataclass(frozen=True)
class Normalize(ValueOp):
    """Shift and scale the values; by default to mean 0 and deviation 1 over the whole volume.

    Examples
    --------
    >>> Normalize().describe()
    'normalize by the mean and deviation of each volume'
    """

    mean: float | None = None
    """What to subtract; None for the mean of the volume."""
    std: float | None = None
    """What to divide by, above or equal 0; None for the deviation of the volume."""
    above: float | None = None
    """Statistics of voxels above this; None for all."""
    inside: str | None = None
    """Statistics of voxels inside the label of this key, on the same grid; None for all."""

    name: ClassVar[str] = "normalize"
    pointwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, least in (("mean", -math.inf), ("std", 0.0), ("above", -math.inf)):
            number = as_number(name, getattr(self, name), least=least, optional=True)
            object.__setattr__(self, name, number)
        as_volume_key("inside", self.inside)

    @property
    def takes_statistics(self) -> bool:
        """Unless both numbers are given."""
        return self.mean is None or self.std is None

    @property
    def mask_key(self) -> str | None:
        """The label inside which statistics are taken."""
        return self.inside

    def _numbers(self, facts: Facts) -> tuple[float, float]:
        """Return mean and deviation; statistics are asked for only if needed."""
        mean, std = self.mean, self.std
        if mean is None or std is None:
            statistics = facts.statistics(self.above)
            mean = statistics.mean if mean is None else mean
            std = statistics.std if std is None else std
        return mean, std

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue | None:
        """Return scale and shift; None where a small difference of large numbers is wanted."""
        mean, std = self._numbers(facts)
        scale = 1 / std if std else 1.0
        if not (math.isfinite(mean) and math.isfinite(scale)):
            return None
        return None if abs(mean * scale) > MOST_SHIFT and std else Epilogue(scale, -mean * scale)

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Normalize ``array`` in place."""
        return normalize(array, *self._numbers(facts), out=array)

    def describe(self) -> str:
        """Return the op in words."""
        where = "" if self.inside is None else f" inside {self.inside}"
        where += "" if self.above is None else f" above {self.above:g}"
        if self.mean is None and self.std is None:
            return f"normalize by the mean and deviation of each volume{where}"
        mean = "the mean of each volume" if self.mean is None else f"{self.mean:g}"
        std = "the deviation of each volume" if self.std is None else f"{self.std:g}"
        return f"normalize by mean {mean}, deviation {std}{where}"
