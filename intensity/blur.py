"""Blur and sharpen: filters by a Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..core import Grid
from ..core.validate import ParameterRange
from . import native
from .random_op import FROM_0, RandomValueOp
from .value_op import Drawn, Facts, Halo

# A symmetric filter along one axis, in place; beyond its ends the outermost voxels go on.
#
# NumPy here is the reference; ``native/filter.h`` adds in the same order, and gives the same bits.

# Where SciPy's gaussian_filter ends the kernel, in standard deviations.
TRUNCATE = 4.0


def reach(sigma: float) -> int:
    """Return how many voxels on either side a Gaussian of ``sigma`` voxels looks at."""
    return int(TRUNCATE * sigma + 0.5)


def gaussian(sigma: float) -> NDArray[np.float32]:
    """Return the weights of a voxel itself and of its neighbours on one side, which sum to 1.

    Examples
    --------
    >>> gaussian(0.3).tolist()
    [0.9923275113105774, 0.0038362587802112103]
    """
    radius = reach(sigma)
    weights = [1.0]
    weights += [math.exp(-0.5 * (t / sigma) ** 2) for t in range(1, radius + 1)]
    return (np.array(weights) / (2 * sum(weights) - 1)).astype(np.float32)


def filter_axis(array: NDArray[np.float32], axis: int, weights: NDArray[np.float32]) -> None:
    """Filter ``array``, (C, I, J, K), along spatial axis 0, 1 or 2, in place.

    Parameters
    ----------
    array
        float32, of any strides.
    axis
        Which one.
    weights
        Of the voxel itself, then of the neighbours on either side alike.
    """
    if weights.size == 1 and weights[0] == 1:
        return
    if native.filter_axis(array, axis, weights):
        return
    radius, length = weights.size - 1, array.shape[axis + 1]
    ends = [(0, 0)] * 4
    ends[axis + 1] = (radius, radius)
    padded = np.moveaxis(np.pad(array, ends, mode="edge"), axis + 1, 0)
    total = weights[0] * padded[radius : radius + length]
    for t in range(1, radius + 1):
        neighbours = padded[radius - t : radius - t + length]
        total += weights[t] * (neighbours + padded[radius + t : radius + t + length])
    np.moveaxis(array, axis + 1, 0)[...] = total


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
