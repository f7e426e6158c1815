"""Gamma: bend the scale of values between its ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.amounts import Entry
from .random_op import ABOVE_0, RandomValueOp
from .rescale import as_rising
from .value_op import Drawn, Facts


@dataclass(frozen=True)
class Gamma(RandomValueOp):
    """``low + (high - low) * ((value - low) / (high - low)) ** gamma``; the ends stay.

    Values beyond the ends are mirrored at the lower one, so that no root of a negative number is
    taken. Commutes with interpolation nearly, as far as the curve is straight from voxel to voxel.

    MONAI's ``AdjustContrast`` has this formula, between the ends of what it is given.

    Examples
    --------
    >>> Gamma((0.7, 1.5)).describe()
    'gamma (0.7, 1.5) in the range of each volume'
    """

    gamma: Entry
    """A number above 0, or (low, high); above 1 darkens."""
    given: tuple[float, float] | None = None
    """The ends (low, high); None for the smallest and largest value of the volume."""

    name: ClassVar[str] = "gamma"
    pointwise: ClassVar[bool] = True
    amounts: ClassVar[Any] = {"gamma": ABOVE_0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given is not None:
            object.__setattr__(self, "given", as_rising("given", self.given))

    @property
    def takes_statistics(self) -> bool:
        """Unless the ends are given."""
        return self.given is None

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        if self.given is None:
            whole = facts.statistics()
            low, high = whole.minimum, whole.maximum
        else:
            low, high = self.given
        size = high - low
        if not size:
            return array
        # Plane by plane: what lies in between stays in the cache.
        for plane in array.reshape(-1, *array.shape[2:]) if array.flags.c_contiguous else array:
            part = (plane - np.float32(low)) * np.float32(1 / size)
            bent = np.abs(part)
            np.power(bent, np.float32(drawn["gamma"]), out=bent)
            np.copysign(bent, part, out=bent)
            plane[...] = bent * np.float32(size) + np.float32(low)
        return array

    def describe(self) -> str:
        """Return the exponent in words."""
        where = "the range of each volume" if self.given is None else f"{self.given}"
        return f"{self.in_words(gamma=self.gamma)} in {where}"
