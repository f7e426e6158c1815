"""Brightness, Contrast, Clamp, Gamma: another scale of values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import ParameterRange, as_flag
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
    RandomValueOp,
    as_over,
    channel_range,
)


@dataclass(frozen=True)
class Brightness(AffineValueOp):
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
    amounts: ClassVar[Any] = {"factor": ANY, "add": ANY}

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue:
        return Epilogue(params["factor"], params["add"])


@dataclass(frozen=True)
class Contrast(AffineValueOp):
    """``(value - middle) * factor + middle``.

    The mean of a CT is that of the air around the body, far below a patch inside. nnU-Net, and
    whoever changes cut patches, spreads values about the mean of the patch: ``over="patch"``, which
    takes mean and range of each channel of what the op is given, the voxels around the patch
    included that filters after it look at. Patches that overlap then differ where they do.

    Examples
    --------
    >>> Contrast((0.75, 1.25)).describe()
    'contrast factor (0.75, 1.25) about the mean of each volume'
    >>> Contrast((0.75, 1.25), keep_range=True, over="patch").describe()
    'contrast factor (0.75, 1.25) about the mean of each patch, in its range'
    """

    factor: ParameterRange
    """A number >= 0, or (low, high)."""
    middle: float | None = None
    """What stays as it is; None for the mean of the volume."""
    keep_range: bool = False
    """Whether to clamp to the smallest and largest value of the volume."""
    over: str = VOLUME
    """Mean and range of what: ``"volume"``, or ``"patch"``."""

    name: ClassVar[str] = "contrast"
    amounts: ClassVar[Any] = {"factor": FROM_0}
    checks: ClassVar[Any] = {"keep_range": as_flag, "over": as_over, "middle": NUMBER_OR_NONE}

    @property
    def looks_at_all(self) -> bool:
        return not self.pointwise

    @property
    def takes_statistics(self) -> bool:
        return self.over == VOLUME and (self.middle is None or self.keep_range)

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return self.over == VOLUME or (self.middle is not None and not self.keep_range)

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

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        if self.pointwise:
            return super().apply(array, params, facts)
        factor = params["factor"]
        for channel in array:
            low, high = channel_range(channel, self.name)
            middle = float(channel.mean(dtype=np.float64)) if self.middle is None else self.middle
            ends = (low, high) if self.keep_range else ()
            Epilogue(factor, middle * (1 - factor), *ends).on(channel)
        return array

    def describe(self) -> str:
        middle = f"the mean of each {self.over}" if self.middle is None else f"{self.middle:g}"
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


# batchgeneratorsv2's: of a patch that is constant afterwards.
_LEAST_STD = 1e-7


@dataclass(frozen=True)
class Gamma(RandomValueOp):
    """``low + (high - low) * ((value - low) / (high - low)) ** gamma``; the ends stay.

    Values beyond the ends are mirrored at the lower one, so that no root of a negative number is
    taken. Commutes with interpolation nearly, as far as the curve is straight from voxel to voxel.

    MONAI's ``AdjustContrast`` has this formula, between the ends of what it is given, which is
    ``over="patch"`` of a patch: the ends of each channel, as nnU-Net has it, too. Patches that
    overlap then differ where they do.

    Examples
    --------
    >>> Gamma((0.7, 1.5)).describe()
    'gamma (0.7, 1.5) in the range of each volume'
    >>> Gamma((0.7, 1.5), over="patch", keep_statistics=True, invert=True).describe()
    'gamma (0.7, 1.5) in the range of each patch, inverted, its mean and deviation kept'
    """

    gamma: ParameterRange
    """A number above 0, or (low, high); above 1 darkens."""
    in_range: tuple[float, float] | None = None
    """The ends (low, high); None for the smallest and largest value of the volume."""
    over: str = VOLUME
    """The ends of what: ``"volume"``, or ``"patch"``."""
    keep_statistics: bool = False
    """Whether each channel of the patch gets its mean and deviation back; of a patch only."""
    invert: bool = False
    """Whether to bend the values upside down: what is bright is bent most."""

    name: ClassVar[str] = "gamma"
    amounts: ClassVar[Any] = {"gamma": ABOVE_0}
    checks: ClassVar[Any] = {
        "in_range": as_rising,
        "over": as_over,
        "keep_statistics": as_flag,
        "invert": as_flag,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_statistics and self.over != PATCH:
            msg = "keep_statistics is of a patch, as the mean of the whole volume is not known "
            raise ValueError(f'{msg}after the bend: write over="patch" too')

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return not self.keep_statistics and (self.over == VOLUME or self.in_range is not None)

    @property
    def looks_at_all(self) -> bool:
        return not self.pointwise

    @property
    def takes_statistics(self) -> bool:
        return self.in_range is None and self.over == VOLUME

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        for channel in array:
            if self.in_range is not None:
                ends = self.in_range
            elif self.over == PATCH:
                ends = channel_range(channel, self.name)
            else:
                whole = facts.statistics()
                ends = (whole.minimum, whole.maximum)
            before = _mean_and_std(channel) if self.keep_statistics else None
            self._bend(channel, *ends, params["gamma"])
            if before is not None:
                mean, std = _mean_and_std(channel)
                scale = before[1] / max(std, _LEAST_STD)
                channel *= np.float32(scale)
                channel += np.float32(before[0] - mean * scale)
        return array

    def _bend(self, channel: NDArray[Any], low: float, high: float, gamma: float) -> None:
        size = high - low
        if not size:
            return
        # Upside down the lower end is the upper one, and each value as far from it.
        start, sign = (high, -1) if self.invert else (low, 1)
        # Plane by plane: what lies in between stays in the cache.
        for plane in channel if channel.flags.c_contiguous else (channel,):
            part = (plane - np.float32(start)) * np.float32(sign / size)
            bent = np.abs(part)
            np.power(bent, np.float32(gamma), out=bent)
            np.copysign(bent, part, out=bent)
            plane[...] = bent * np.float32(sign * size) + np.float32(start)

    def describe(self) -> str:
        where = f"the range of each {self.over}" if self.in_range is None else f"{self.in_range}"
        where += ", inverted" if self.invert else ""
        where += ", its mean and deviation kept" if self.keep_statistics else ""
        return f"{self.in_words(gamma=self.gamma)} in {where}"


def _mean_and_std(channel: NDArray[Any]) -> tuple[float, float]:
    """Return the mean and the deviation of a sample, n - 1, as nnU-Net has it."""
    ddof = min(1, channel.size - 1)
    return float(channel.mean(dtype=np.float64)), float(channel.std(dtype=np.float64, ddof=ddof))


OPS = (Brightness, Clamp, Contrast, Gamma)
