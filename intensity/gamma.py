"""Gamma: bend the scale of values between its ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import ParameterRange, as_flag
from .random_op import ABOVE_0, PATCH, VOLUME, RandomValueOp, as_over, channel_range
from .rescale import as_rising
from .value_op import Drawn, Facts

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
    given: tuple[float, float] | None = None
    """The ends (low, high); None for the smallest and largest value of the volume."""
    over: str = VOLUME
    """The ends of what: ``"volume"``, or ``"patch"``."""
    keep_statistics: bool = False
    """Whether each channel of the patch gets its mean and deviation back; of a patch only."""
    invert: bool = False
    """Whether to bend the values upside down: what is bright is bent most."""

    name: ClassVar[str] = "gamma"
    amounts: ClassVar[Any] = {"gamma": ABOVE_0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given is not None:
            object.__setattr__(self, "given", as_rising("given", self.given))
        as_over(self.over)
        as_flag("keep_statistics", self.keep_statistics)
        as_flag("invert", self.invert)
        if self.keep_statistics and self.over != PATCH:
            msg = (
                "keep_statistics is of a patch, as the mean of the whole volume is not known after"
            )
            raise ValueError(f'{msg} the bend: write over="patch" too')

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        """Whether a value's result depends on that value alone: not if it does on the patch."""
        return not self.keep_statistics and (self.over == VOLUME or self.given is not None)

    @property
    def looks_at_all(self) -> bool:
        """Whether mean and range are those of what it is given."""
        return not self.pointwise

    @property
    def takes_statistics(self) -> bool:
        """Unless the ends are given, or taken of each patch."""
        return self.given is None and self.over == VOLUME

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        for channel in array:
            if self.given is not None:
                ends = self.given
            elif self.over == PATCH:
                ends = channel_range(channel, self.name)
            else:
                whole = facts.statistics()
                ends = (whole.minimum, whole.maximum)
            before = _mean_and_std(channel) if self.keep_statistics else None
            self._bend(channel, *ends, drawn["gamma"])
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
        """Return the exponent in words."""
        where = f"the range of each {self.over}" if self.given is None else f"{self.given}"
        where += ", inverted" if self.invert else ""
        where += ", its mean and deviation kept" if self.keep_statistics else ""
        return f"{self.in_words(gamma=self.gamma)} in {where}"


def _mean_and_std(channel: NDArray[Any]) -> tuple[float, float]:
    """Return the mean and the deviation of a sample, n - 1, as nnU-Net has it."""
    ddof = min(1, channel.size - 1)
    return float(channel.mean(dtype=np.float64)), float(channel.std(dtype=np.float64, ddof=ddof))
