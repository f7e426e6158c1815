"""Normalize, Rescale, RescalePercentiles: values brought to a mean, or to a range."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import SampleError
from ..core.suggest import percentile_hint
from ..core.validate import LATER, as_flag, as_number, as_volume_key, entries_of, or_none
from .value_op import (
    NUMBER_OR_NONE,
    AffineValueOp,
    Epilogue,
    Facts,
    Params,
    ValueOp,
    VolumeStatistics,
    same_as,
)

# In deviations: a mean further from 0 costs a float32 digit that a subtraction in float64 keeps.
MOST_SHIFT = 10.0
WHOLE = "whole"
_LEVEL = re.compile(r"level [1-9]\d{0,2}")
Pair = tuple[float, float]


def normalize(
    array: NDArray[Any], mean: float, std: float, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return ``(array - mean) / std`` in float32, in ``out``, which may be ``array``, or anew.

    With ``std`` 0 the mean is subtracted only.

    Examples
    --------
    >>> normalize(np.array([1, 3], np.int16), mean=2, std=0.5).tolist()
    [-2.0, 2.0]
    """
    # Subtract in float64, block by block inside NumPy, without a float64 copy of the whole.
    result = np.empty(array.shape, np.float32) if out is None else out
    np.subtract(array, np.float64(mean), out=result, dtype=np.float64, casting="same_kind")
    if std != 0:
        np.divide(result, np.float32(std), out=result)
    return result


def as_statistics(name: str, value: Any) -> str:
    """Return the voxels of which statistics are taken, as text."""
    if isinstance(value, str) and (value in (WHOLE, "sample") or _LEVEL.fullmatch(value)):
        return value
    raise ValueError(f"{name} are of {WHOLE!r}, 'sample' or 'level 2' (1, ...), got {value!r}")


class FromStatistics(ValueOp):
    """Shared behaviour of ops that use statistics of a volume, of a coarser level or a sample."""

    statistics: str
    above: float | None = None
    inside: str | None = None
    checks: ClassVar[Any] = {"statistics": as_statistics}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistics != WHOLE and self.inside is not None:
            msg = f"statistics={self.statistics!r} have no mask, and inside={self.inside!r}"
            raise ValueError(f"{msg} is on the grid of the whole volume; leave one of them out")

    def statistics_of(self, facts: Facts, above: float | None = None) -> VolumeStatistics:
        """Return the statistics of the chosen voxels."""
        facts = facts if self.statistics == WHOLE else facts.on_voxels(self.statistics)
        return facts.statistics(above)

    def statistics_text(self) -> str:
        """Return the choice of voxels in words; empty for the whole volume."""
        if self.statistics == WHOLE:
            return ""
        kind = "a sample" if self.statistics == "sample" else self.statistics
        return f", statistics of {kind}"


@dataclass(frozen=True)
class Normalize(FromStatistics):
    """Shift and scale the values; by default to mean 0 and deviation 1 over the whole volume.

    Examples
    --------
    >>> Normalize().describe()
    'normalize by the mean and deviation of each volume'
    """

    mean: float | None = None
    """Value to subtract; None for the mean of the volume."""
    std: float | None = None
    """Divisor, above or equal 0; None for the deviation of the volume."""
    above: float | None = None
    """Statistics of voxels above this; None for all."""
    inside: str | None = None
    """Statistics of voxels inside the label of this key, on the same grid; None for all."""
    statistics: str = field(default=WHOLE, kw_only=True, metadata=LATER)
    """Voxels that are read for them: ``"whole"``; ``"level 2"``, two levels coarser in a pyramid;
    or ``"sample"``, 32 layers of chunks. The last two read little of a large volume."""

    name: ClassVar[str] = "normalize"
    mask_key = same_as("inside")
    pointwise: ClassVar[bool] = True
    checks: ClassVar[Any] = {
        "mean": NUMBER_OR_NONE,
        "std": partial(NUMBER_OR_NONE, least=0.0),
        "above": NUMBER_OR_NONE,
        "inside": as_volume_key,
    }

    @property
    def takes_statistics(self) -> bool:
        return self.mean is None or self.std is None

    def _numbers(self, facts: Facts) -> tuple[float, float]:
        """Return mean and deviation; computes statistics only if needed."""
        mean, std = self.mean, self.std
        if mean is None or std is None:
            statistics = self._statistics(facts)
            mean = statistics.mean if mean is None else mean
            std = statistics.std if std is None else std
        return mean, std

    def _statistics(self, facts: Facts) -> VolumeStatistics:
        """Return the statistics of the selected voxels, or of all in a constant volume."""
        statistics = self.statistics_of(facts, self.above)
        if (self.above is None and self.inside is None) or not math.isnan(statistics.mean):
            return statistics
        whole = self.statistics_of(facts)
        if whole.minimum == whole.maximum:  # a modality that is missing becomes 0
            return whole
        limit = f"inside {self.inside}" if self.above is None else f"above {self.above:g}"
        do = "Give normalize() a mean and std, or leave the case out by filter()."
        raise SampleError(f"normalize: no voxel of the volume is {limit}", do=do)

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue | None:
        mean, std = self._numbers(facts)
        scale = 1 / std if std else 1.0
        if not (math.isfinite(mean) and math.isfinite(scale)):
            return None
        return None if abs(mean * scale) > MOST_SHIFT and std else Epilogue(scale, -mean * scale)

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        return normalize(array, *self._numbers(facts), out=array)

    def describe(self) -> str:
        where = "" if self.inside is None else f" inside {self.inside}"
        where += "" if self.above is None else f" above {self.above:g}"
        where += self.statistics_text()
        if self.mean is None and self.std is None:
            return f"normalize by the mean and deviation of each volume{where}"
        mean = "the mean of each volume" if self.mean is None else f"{self.mean:g}"
        std = "the deviation of each volume" if self.std is None else f"{self.std:g}"
        return f"normalize by mean {mean}, deviation {std}{where}"


def rescaling(low: float, high: float, out: Pair, *, clamp: bool) -> tuple[Epilogue, ...]:
    """Return the changes from ``low .. high`` to ``out``; a range of one value gives ``out[0]``."""
    # Two steps where float32 would lose digits: a value near ``low`` is subtracted first.
    scale = (out[1] - out[0]) / (high - low) if high > low else 0.0
    ends = (min(out), max(out)) if clamp else (-math.inf, math.inf)
    if not MOST_SHIFT * abs(out[1] - out[0]) < abs(low * scale) < math.inf:
        return (Epilogue(scale, out[0] - low * scale, *ends),)
    near = float(np.float32(low))
    return (Epilogue(shift=-near), Epilogue(scale, out[0] + (near - low) * scale, *ends))


def as_pair(name: str, value: Any) -> tuple[float, float]:
    """Return two different finite numbers."""
    try:
        low, high = map(float, entries_of(value))
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low != high):
        raise ValueError(f"{name} is two different numbers (low, high), got {value!r}")
    return low, high


def as_rising(name: str, value: Any) -> tuple[float, float]:
    """Return two finite numbers of which the first is the smaller one."""
    low, high = as_pair(name, value)
    if low > high:
        raise ValueError(f"{name} is a range (low, high) with low < high, got {value!r}")
    return low, high


@dataclass(frozen=True)
class Rescale(AffineValueOp):
    """Bring the range of the volume, or a given one, to ``out_range``.

    Examples
    --------
    >>> Rescale(in_range=(-1000, 1000)).describe()
    'rescale -1000 .. 1000 to 0 .. 1'
    """

    out_range: tuple[float, float] = (0.0, 1.0)
    """New values of the ends. The first may be the larger: ``(1, 0)`` turns dark into bright."""
    in_range: tuple[float, float] | None = None
    """The ends, low < high; None for the smallest and largest value of the volume."""
    clamp: bool = False
    """Whether values beyond the ends become those of the ends."""

    name: ClassVar[str] = "rescale"
    checks: ClassVar[Any] = {"out_range": as_pair, "clamp": as_flag, "in_range": or_none(as_rising)}

    @property
    def takes_statistics(self) -> bool:
        return self.in_range is None

    def changes(self, params: Params, facts: Facts) -> tuple[Epilogue, ...]:
        if self.in_range is None:
            whole = facts.statistics()
            return rescaling(whole.minimum, whole.maximum, self.out_range, clamp=self.clamp)
        return rescaling(*self.in_range, self.out_range, clamp=self.clamp)

    def describe(self) -> str:
        ends = "the range of each volume"
        if self.in_range is not None:
            ends = f"{self.in_range[0]:g} .. {self.in_range[1]:g}"
        return f"{self.in_words()} {ends} to {self.out_range[0]:g} .. {self.out_range[1]:g}"


@dataclass(frozen=True)
class RescalePercentiles(FromStatistics, AffineValueOp):
    """Map two percentiles of the volume to ``out_range``, and clamp values beyond.

    ``a2 + (b2 - a2) * (value - a) / (b - a)``, where ``a`` and ``b`` are percentiles:
    linear between the two values next in rank, as ``numpy.percentile`` has them.

    References
    ----------
    Nyul and Udupa, "On standardizing the MR image intensity scale", Magnetic Resonance in Medicine
    42 (1999): why percentiles. Hyndman and Fan, "Sample quantiles in statistical packages", The
    American Statistician 50 (1996): which, their definition 7.

    Examples
    --------
    >>> RescalePercentiles(0.5, 99.5).describe()
    'rescale_percentiles 0.5 .. 99.5 to 0 .. 1'
    """

    lower: float = 0.5
    """In percent, 0 <= lower < upper <= 100."""
    upper: float = 99.5
    """See ``lower``."""
    out_range: tuple[float, float] = (0.0, 1.0)
    """New values of the percentiles."""
    clamp: bool = True
    """Whether values beyond the percentiles become those of the percentiles."""
    above: float | None = None
    """Only voxels above this count; None for all."""
    inside: str | None = None
    """Only voxels inside the label of this key count; None for all."""
    statistics: str = field(default=WHOLE, kw_only=True, metadata=LATER)
    """Voxels that are read: ``"whole"``, ``"level 2"`` or ``"sample"``, as in ``Normalize``."""

    name: ClassVar[str] = "rescale_percentiles"
    takes_statistics: ClassVar[bool] = True
    mask_key = same_as("inside")
    checks: ClassVar[Any] = {
        "lower": as_number,
        "upper": as_number,
        "out_range": as_pair,
        "clamp": as_flag,
        "above": NUMBER_OR_NONE,
        "inside": as_volume_key,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lower < self.upper <= 100:
            pair = f"{self.lower:g}, {self.upper:g}"
            raise ValueError(f"percentiles are 0 <= lower < upper <= 100, got {pair}")

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        return percentile_hint("upper", [self.lower, self.upper])

    def changes(self, params: Params, facts: Facts) -> tuple[Epilogue, ...]:
        whole = self.statistics_of(facts, self.above)
        low, high = whole.percentile(self.lower), whole.percentile(self.upper)
        return rescaling(low, high, self.out_range, clamp=self.clamp)

    def describe(self) -> str:
        return (
            f"{self.in_words()} {self.lower:g} .. {self.upper:g} "
            f"to {self.out_range[0]:g} .. {self.out_range[1]:g}{self.statistics_text()}"
        )


OPS = (Normalize, Rescale, RescalePercentiles)
