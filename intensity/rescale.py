"""Rescale: bring one range of values to another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.suggest import percentile_hint
from ..core.validate import as_flag, as_number, as_volume_key, entries_of
from .random_op import AffineValueOp
from .value_op import Drawn, Epilogue, Facts


def rescaling(low: float, high: float, out: tuple[float, float], *, clamp: bool) -> Epilogue:
    """Return what brings ``low .. high`` to ``out``; a range of one value goes to ``out[0]``."""
    scale = (out[1] - out[0]) / (high - low) if high > low else 0.0
    ends = (min(out), max(out)) if clamp else (-math.inf, math.inf)
    return Epilogue(scale, out[0] - low * scale, *ends)


def as_pair(name: str, value: Any) -> tuple[float, float]:
    """Return two different finite numbers.

    Raises
    ------
    ValueError
        They are not.
    """
    try:
        low, high = map(float, entries_of(value))
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low != high):
        msg = f"{name} is two different numbers (low, high), got {value!r}"
        raise ValueError(msg)
    return low, high


def as_rising(name: str, value: Any) -> tuple[float, float]:
    """Return two finite numbers of which the first is the smaller one.

    Raises
    ------
    ValueError
        They are not.
    """
    low, high = as_pair(name, value)
    if low > high:
        msg = f"{name} is a range (low, high) with low < high, got {value!r}"
        raise ValueError(msg)
    return low, high


@dataclass(frozen=True)
class Rescale(AffineValueOp):
    """Bring the range of the volume, or a given one, to ``out``.

    Examples
    --------
    >>> Rescale(given=(-1000, 1000)).describe()
    'rescale -1000 .. 1000 to 0 .. 1'
    """

    out: tuple[float, float] = (0.0, 1.0)
    """What the ends become. The first may be the larger: ``(1, 0)`` turns dark into bright."""
    given: tuple[float, float] | None = None
    """The ends, low < high; None for the smallest and largest value of the volume."""
    clamp: bool = False
    """Whether values beyond the ends become those of the ends."""

    name: ClassVar[str] = "rescale"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "out", as_pair("out", self.out))
        as_flag("clamp", self.clamp)
        if self.given is not None:
            object.__setattr__(self, "given", as_rising("given", self.given))

    @property
    def takes_statistics(self) -> bool:
        """Unless the ends are given."""
        return self.given is None

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue:
        """Return scale and shift."""
        if self.given is None:
            whole = facts.statistics()
            return rescaling(whole.minimum, whole.maximum, self.out, clamp=self.clamp)
        return rescaling(*self.given, self.out, clamp=self.clamp)

    def describe(self) -> str:
        """Return the ranges in words."""
        given = "the range of each volume"
        if self.given is not None:
            given = f"{self.given[0]:g} .. {self.given[1]:g}"
        return f"{self.in_words()} {given} to {self.out[0]:g} .. {self.out[1]:g}"


@dataclass(frozen=True)
class RescalePercentiles(AffineValueOp):
    """Bring two percentiles of the volume to ``out``, and clamp what lies beyond.

    ``out[0] + (out[1] - out[0]) * (value - a) / (b - a)``, where ``a`` and ``b`` are percentiles:
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
    out: tuple[float, float] = (0.0, 1.0)
    """What the percentiles become."""
    clamp: bool = True
    """Whether values beyond the percentiles become those of the percentiles."""
    above: float | None = None
    """Only voxels above this count; None for all."""
    inside: str | None = None
    """Only voxels inside the label of this key count; None for all."""

    name: ClassVar[str] = "rescale_percentiles"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lower", "upper"):
            as_number(name, getattr(self, name))
        as_flag("clamp", self.clamp)
        object.__setattr__(self, "above", as_number("above", self.above, optional=True))
        as_volume_key("inside", self.inside)
        if not 0 <= self.lower < self.upper <= 100:
            msg = f"percentiles are 0 <= lower < upper <= 100, got {self.lower!r}, {self.upper!r}"
            raise ValueError(msg)
        object.__setattr__(self, "out", as_pair("out", self.out))

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        """What is allowed, but hardly meant."""
        return percentile_hint("upper", [self.lower, self.upper])

    @property
    def mask_key(self) -> str | None:
        """The label inside which percentiles are taken."""
        return self.inside

    @property
    def takes_statistics(self) -> bool:
        """For the percentiles."""
        return True

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue:
        """Return scale, shift and clamp."""
        whole = facts.statistics(self.above)
        low, high = whole.percentile(self.lower), whole.percentile(self.upper)
        return rescaling(low, high, self.out, clamp=self.clamp)

    def describe(self) -> str:
        """Return the percentiles in words."""
        return (
            f"{self.in_words()} {self.lower:g} .. {self.upper:g} "
            f"to {self.out[0]:g} .. {self.out[1]:g}"
        )
