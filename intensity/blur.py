"""Blur and sharpen: filters by a Gaussian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..core import Grid
from ..core.validate import ParameterRange
from .filter_axis import filter_axis, gaussian, reach
from .random_op import FROM_0, RandomValueOp
from .value_op import Drawn, Facts, Halo

Unit = Literal["mm", "voxel"]


@dataclass(frozen=True)
class _Gaussian(RandomValueOp):
    """What blur and sharpen share: the filter, its reach, its unit."""

    sigma: ParameterRange
    """Standard deviation along every axis: a number >= 0, or (low, high)."""
    unit: Unit = "mm"
    """``"mm"``, or ``"voxel"`` of the grid as it is here."""

    commutes: ClassVar[bool] = False
    amounts: ClassVar[Any] = {"sigma": FROM_0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.unit, str) or self.unit not in ("mm", "voxel"):
            msg = f"unit is 'mm' or 'voxel', got {self.unit!r}"
            raise ValueError(msg)

    @property
    def by_channel(self) -> bool:
        """It filters each by itself."""
        return True

    def sigmas(self, drawn: Drawn, grid: Grid) -> tuple[float, float, float]:
        """Return the deviation along each axis, in voxels."""
        sigma = drawn["sigma"]
        a, b, c = grid.spacing if self.unit == "mm" else (1.0, 1.0, 1.0)
        return (sigma / a, sigma / b, sigma / c)

    def halo(self, drawn: Drawn, grid: Grid) -> Halo:
        """Return four deviations, where SciPy's filter ends too."""
        i, j, k = map(reach, self.sigmas(drawn, grid))
        return (i, j, k)

    def blurred(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Filter ``array`` in place."""
        for axis, sigma in enumerate(self.sigmas(drawn, facts.grid)):
            if reach(sigma) and array.shape[axis + 1] > 1:
                filter_axis(array, axis, gaussian(sigma))
        return array

    def describe(self) -> str:
        """Return the deviation in words."""
        return f"{self.in_words(sigma=self.sigma)} {self.unit}"


@dataclass(frozen=True)
class Blur(_Gaussian):
    """A Gaussian filter, on what the chain so far gives; later spatial ops interpolate that.

    Beyond the volume, the padding of the volume's sampling goes in.

    Examples
    --------
    >>> Blur((0.5, 1.5), p=0.2).describe()
    'blur sigma (0.5, 1.5) (p=0.2) mm'
    """

    name: ClassVar[str] = "blur"

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        return self.blurred(array, drawn, facts)


@dataclass(frozen=True)
class Sharpen(_Gaussian):
    """``value + amount * (value - blurred)``, an unsharp mask.

    Examples
    --------
    >>> Sharpen(1.0, amount=(0.5, 2)).describe()
    'sharpen sigma 1 mm amount (0.5, 2.0)'
    """

    amount: ParameterRange = 1.0
    """How much of what a blur takes away is added: a number >= 0, or (low, high)."""

    name: ClassVar[str] = "sharpen"
    amounts: ClassVar[Any] = {"sigma": FROM_0, "amount": FROM_0}

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        soft = self.blurred(array.copy(), drawn, facts)
        np.subtract(array, soft, out=soft)
        soft *= np.float32(drawn["amount"])
        array += soft
        return array

    def describe(self) -> str:
        """Return deviation and amount in words."""
        return f"{super().describe()} amount {_in_words(self.amount)}"


def _in_words(entry: ParameterRange) -> str:
    return str(entry) if isinstance(entry, tuple) else f"{entry:g}"
