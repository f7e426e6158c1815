"""Brightness, contrast and clamp: a scale, a shift and two ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import ParameterRange, as_flag, as_number
from .random_op import ANY, FROM_0, VOLUME, AffineValueOp, as_over, channel_range
from .value_op import Drawn, Epilogue, Facts


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

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue:
        """Return scale and shift."""
        return Epilogue(drawn["factor"], drawn["add"])

    def describe(self) -> str:
        """Return the amounts in words."""
        return self.in_words(factor=self.factor, add=self.add)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        as_flag("keep_range", self.keep_range)
        as_over(self.over)
        object.__setattr__(self, "middle", as_number("middle", self.middle, optional=True))

    @property
    def looks_at_all(self) -> bool:
        """Whether mean and range are those of what it is given."""
        return not self.pointwise

    @property
    def takes_statistics(self) -> bool:
        """For the middle or the range of the volume."""
        return self.over == VOLUME and (self.middle is None or self.keep_range)

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        """Whether a value's result depends on that value alone: not if it does on the patch."""
        return self.over == VOLUME or (self.middle is not None and not self.keep_range)

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue | None:
        """Return scale, shift and perhaps a clamp; None where the patch has to be there first."""
        if not self.pointwise:
            return None
        factor = drawn["factor"]
        middle = facts.statistics().mean if self.middle is None else self.middle
        shift = middle * (1 - factor)
        if not self.keep_range:
            return Epilogue(factor, shift)
        whole = facts.statistics()
        return Epilogue(factor, shift, whole.minimum, whole.maximum)

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        if self.pointwise:
            return super().apply(array, drawn, facts)
        factor = drawn["factor"]
        for channel in array:
            low, high = channel_range(channel, self.name)
            middle = float(channel.mean(dtype=np.float64)) if self.middle is None else self.middle
            ends = (low, high) if self.keep_range else ()
            Epilogue(factor, middle * (1 - factor), *ends).on(channel)
        return array

    def describe(self) -> str:
        """Return the amounts in words."""
        middle = f"the mean of each {self.over}" if self.middle is None else f"{self.middle:g}"
        kept = ", in its range" if self.keep_range else ""
        return f"{self.in_words(factor=self.factor)} about {middle}{kept}"


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

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low", "high"):
            as_number(name, getattr(self, name), optional=True)
        low, high = self._ends
        if low > high or (low, high) == (-math.inf, math.inf):
            msg = f"clamp takes low <= high, at least one of them, got {self.low!r}, {self.high!r}"
            raise ValueError(msg)

    @property
    def _ends(self) -> tuple[float, float]:
        low = -math.inf if self.low is None else float(self.low)
        return low, math.inf if self.high is None else float(self.high)

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue:
        """Return the clamp."""
        return Epilogue(1.0, 0.0, *self._ends)

    def describe(self) -> str:
        """Return the range in words."""
        low, high = self._ends
        return f"{self.in_words()} to {low:g} .. {high:g}"
