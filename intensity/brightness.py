"""Brightness, Contrast, Clamp, Gamma: another scale of values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import ParameterRange, as_flag, or_none
from . import native
from .native import ByStatistics, Change, ChannelStatistics
from .noise import log_of_mantissa
from .normalize import as_rising
from .value_op import (
    ABOVE_0,
    ANY,
    FROM_0,
    NUMBER_OR_NONE,
    PATCH,
    VOLUME,
    AffineValueOp,
    Epilogue,
    Facts,
    Params,
    TwoSidedOp,
    as_over,
)


@dataclass(frozen=True)
class Brightness(TwoSidedOp, AffineValueOp):
    """``value * factor + add``, the same for all voxels.

    Examples
    --------
    >>> Brightness((0.75, 1.25), p=0.15).describe()
    'brightness factor (0.75, 1.25) add 0 (p=0.15)'
    """

    factor: ParameterRange = 1.0
    """A number, or (low, high)."""
    add: ParameterRange = 0.0
    """A number, or (low, high), in the units of the values."""

    name: ClassVar[str] = "brightness"
    about_1: ClassVar[str] = "factor"
    amounts: ClassVar[Any] = {"factor": ANY, "add": ANY}

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue:
        return Epilogue(params["factor"], params["add"])


@dataclass(frozen=True)
class Contrast(TwoSidedOp, AffineValueOp):
    """``(value - middle) * factor + middle``.

    The mean of a CT is near that of air, far below the mean of a patch inside the body. With
    ``statistics_over="patch"``, as in nnU-Net, mean and range are those of each channel of the
    op's input, with the halo of later filters. Overlapping patches then differ.

    Examples
    --------
    >>> Contrast((0.75, 1.25)).describe()
    'contrast factor (0.75, 1.25) about the mean of each volume'
    >>> Contrast((0.75, 1.25), keep_range=True, statistics_over="patch").describe()
    'contrast factor (0.75, 1.25) about the mean of each patch, in its range'
    """

    factor: ParameterRange
    """A number >= 0, or (low, high)."""
    middle: float | None = None
    """Value that stays; None for the mean of the volume."""
    keep_range: bool = False
    """Whether to clamp to the smallest and largest value of the volume."""
    statistics_over: str = VOLUME
    """Source of mean and range: ``"volume"``, or ``"patch"``."""

    name: ClassVar[str] = "contrast"
    about_1: ClassVar[str] = "factor"
    amounts: ClassVar[Any] = {"factor": FROM_0}
    checks: ClassVar[Any] = {
        "keep_range": as_flag,
        "statistics_over": as_over,
        "middle": NUMBER_OR_NONE,
    }

    @property
    def looks_at_all(self) -> bool:
        return not self.pointwise

    @property
    def takes_statistics(self) -> bool:
        return self.statistics_over == VOLUME and (self.middle is None or self.keep_range)

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return self.statistics_over == VOLUME or (self.middle is not None and not self.keep_range)

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue | None:
        if not self.pointwise:
            return None
        factor = params["factor"]
        middle = facts.statistics().mean if self.middle is None else self.middle
        shift = middle * (1 - factor)
        if not self.keep_range:
            return Epilogue(factor, shift)
        whole = facts.statistics()
        return Epilogue(factor, shift, whole.minimum, whole.maximum)

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...] | None:
        if self.pointwise:
            return super().changes(params, facts)
        factor = params["factor"]

        def spread(patch: ChannelStatistics) -> tuple[Epilogue]:
            middle = patch.mean if self.middle is None else self.middle
            ends = (patch.low, patch.high) if self.keep_range else ()
            return (Epilogue(factor, middle * (1 - factor), *ends),)

        return (ByStatistics(self.name, spread),)

    def describe(self) -> str:
        middle = (
            f"the mean of each {self.statistics_over}"
            if self.middle is None
            else f"{self.middle:g}"
        )
        suffix = ", in its range" if self.keep_range else ""
        return f"{self.in_words(factor=self.factor)} about {middle}{suffix}"


@dataclass(frozen=True)
class Clamp(AffineValueOp):
    """Values below ``low`` become ``low``, those above ``high`` become ``high``.

    It commutes with interpolation nearly: where values beyond the range are next to others, the
    edge between them moves by a fraction of a voxel.

    Examples
    --------
    >>> Clamp(-1000, 400).describe()
    'clamp to -1000 .. 400'
    """

    low: float | None = None
    """None for no end."""
    high: float | None = None
    """None for no end."""

    name: ClassVar[str] = "clamp"
    checks: ClassVar[Any] = {"low": NUMBER_OR_NONE, "high": NUMBER_OR_NONE}

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self._ends
        if low > high or (low, high) == (-math.inf, math.inf):
            msg = f"clamp takes low <= high, at least one of them, got {self.low!r}, {self.high!r}"
            raise ValueError(msg)

    @property
    def _ends(self) -> tuple[float, float]:
        low = -math.inf if self.low is None else self.low
        return low, math.inf if self.high is None else self.high

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue:
        return Epilogue(1.0, 0.0, *self._ends)

    def describe(self) -> str:
        low, high = self._ends
        return f"{self.in_words()} to {low:g} .. {high:g}"


# batchgeneratorsv2's constant, for a patch that is constant afterwards.
_LEAST_STD = 1e-7
# One by less is no float32.
_LEAST_RANGE = 2.0**-126


@dataclass(frozen=True)
class Gamma(TwoSidedOp):
    """``low + (high - low) * ((value - low) / (high - low)) ** gamma``; the ends stay.

    Values beyond the ends are mirrored at the lower one, so that no root of a negative number is
    taken. Commutes with interpolation nearly, as far as the curve is straight from voxel to voxel.

    MONAI's ``AdjustContrast`` is ``statistics_over="patch"`` on a patch: the ends are those of each
    channel, as in nnU-Net. Overlapping patches then differ.

    Examples
    --------
    >>> Gamma((0.7, 1.5)).describe()
    'gamma (0.7, 1.5) in the range of each volume'
    >>> Gamma((0.7, 1.5), statistics_over="patch", keep_statistics=True, invert=True).describe()
    'gamma (0.7, 1.5) in the range of each patch, inverted, its mean and deviation kept'
    """

    gamma: ParameterRange
    """A number above 0, or (low, high); above 1 darkens."""
    in_range: tuple[float, float] | None = None
    """The ends (low, high); None for the smallest and largest value of the volume."""
    statistics_over: str = VOLUME
    """Source of the ends: ``"volume"``, or ``"patch"``."""
    keep_statistics: bool = False
    """Whether each channel of the patch gets its mean and deviation back; of a patch only."""
    invert: bool = False
    """Whether to mirror the values first, so that bright values are bent most."""

    name: ClassVar[str] = "gamma"
    about_1: ClassVar[str] = "gamma"
    amounts: ClassVar[Any] = {"gamma": ABOVE_0}
    checks: ClassVar[Any] = {
        "in_range": or_none(as_rising),
        "statistics_over": as_over,
        "keep_statistics": as_flag,
        "invert": as_flag,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_statistics and self.statistics_over != PATCH:
            msg = "keep_statistics is of a patch, as the mean of the whole volume is not known "
            raise ValueError(f'{msg}after the bend: write statistics_over="patch" too')

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return not self.keep_statistics and (
            self.statistics_over == VOLUME or self.in_range is not None
        )

    @property
    def looks_at_all(self) -> bool:
        return not self.pointwise

    @property
    def takes_statistics(self) -> bool:
        return self.in_range is None and self.statistics_over == VOLUME

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...]:
        ends = self.in_range
        if ends is None and self.statistics_over == VOLUME:
            whole = facts.statistics()
            ends = (whole.minimum, whole.maximum)
        if ends is not None and not self.keep_statistics:
            return (_Bend(params["gamma"], *ends, self.invert),)

        def bend(before: ChannelStatistics) -> tuple[Change, ...]:
            def restore(after: ChannelStatistics) -> tuple[Epilogue]:
                scale = before.std / max(after.std, _LEAST_STD)
                return (Epilogue(scale, before.mean - after.mean * scale),)

            low, high = ends or (before.low, before.high)
            last = (ByStatistics(self.name, restore),) if self.keep_statistics else ()
            return (_Bend(params["gamma"], low, high, self.invert), *last)

        return (ByStatistics(self.name, bend),)

    def describe(self) -> str:
        where = (
            f"the range of each {self.statistics_over}"
            if self.in_range is None
            else f"{self.in_range}"
        )
        where += ", inverted" if self.invert else ""
        where += ", its mean and deviation kept" if self.keep_statistics else ""
        return f"{self.in_words(gamma=self.gamma)} in {where}"


@dataclass(frozen=True)
class _Bend:
    """The formula of :class:`Gamma` between two ends.

    ``native/gamma.h`` takes the same steps in the same order, and so to the same bits.
    """

    gamma: float
    low: float
    high: float
    invert: bool

    name: ClassVar[str] = "gamma"

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Start of distances, factor to a part of the range, and factor back."""
        size = self.high - self.low
        # Inverted, distances start at the upper end.
        start, sign = (self.high, -1) if self.invert else (self.low, 1)
        return start, sign / size if abs(size) >= _LEAST_RANGE else 0.0, sign * size

    def native_step(self) -> bytes:
        return native.pack_step(native.BEND, (self.gamma, *self.numbers))

    def in_numpy(self, channel: NDArray[np.float32], number: int) -> None:
        start, inward, outward = map(np.float32, self.numbers)
        # Plane by plane, so that temporaries stay in the cache.
        for plane in channel:
            part = (plane - start) * inward
            plane[...] = np.copysign(power(np.abs(part), self.gamma), part) * outward + start


_LOG2_E = 1.4426950408889634
_UPPER_BITS = np.uint32(0xFFFFF000)
_ROUNDS = np.float32(12582912)  # 1.5 * 2^23: adding it rounds half to even
_MOST_EXPONENT = 300
# Cephes Mathematical Library, exp2f (S. Moshier), the lowest power first.
_POWERS_OF_2 = (
    6.931472028550421e-1,
    2.402264791363012e-1,
    5.550332471162809e-2,
    9.618437357674640e-3,
    1.339887440266574e-3,
    1.535336188319500e-4,
)


def power(base: NDArray[np.float32], exponent: float) -> NDArray[np.float32]:
    """Return ``base ** exponent`` for ``base >= 0`` and ``exponent > 0``, float32.

    Accurate to 2.5 units of the last place for exponents up to 2, and 4 up to 5. A base below
    2^-126 counts as 0.

    Examples
    --------
    >>> power(np.array([0, 0.25, 1], np.float32), 0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    # The exponent's part for whole powers of 2 has 12 bits: the product is exact.
    large = (np.array(exponent, np.float32).view(np.uint32) & _UPPER_BITS).view(np.float32)[()]
    y, e, x, z = log_of_mantissa(base)
    t = (x + (y + z * np.float32(-0.5))) * np.float32(exponent * _LOG2_E)
    whole = e * large
    n = np.clip(whole + t, np.float32(-_MOST_EXPONENT), np.float32(_MOST_EXPONENT))
    n = (n + _ROUNDS) - _ROUNDS
    f = (whole - n) + (e * np.float32(exponent - float(large)) + t)
    a, b, c, d, g, h = map(np.float32, _POWERS_OF_2)
    ff = f * f
    p = (f * a + np.float32(1)) + ((f * c + b) + ((f * g + d) + ff * h) * ff) * ff
    unit = (np.clip(n, -126, 127).astype(np.int32) + np.int32(127)) << np.int32(23)
    p *= unit.view(np.float32)
    p[(n < -126) | (base < np.finfo(np.float32).tiny)] = 0
    p[n > 127] = np.inf
    return np.where(base <= np.finfo(np.float32).max, p, base)


OPS = (Brightness, Clamp, Contrast, Gamma)
