"""Noise, a number of its own for every voxel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from ..core.validate import ParameterRange
from .counter_noise import add_gaussian, make_rician
from .random_op import ANY, FROM_0, RandomValueOp
from .value_op import Drawn, Facts


@dataclass(frozen=True)
class Noise(RandomValueOp):
    """Add normal numbers, independent from voxel to voxel of the result.

    They belong to voxels of the lattice: before patches are cut, overlapping patches agree. It
    is done after later spatial ops, so its strength does not depend on their interpolation.

    Examples
    --------
    >>> Noise((0, 0.1), p=0.5).describe()
    'noise std (0.0, 0.1) (p=0.5)'
    """

    std: ParameterRange
    """Standard deviation, in the units of the values: a number >= 0, or (low, high)."""
    mean: ParameterRange = 0.0
    """A number, or (low, high)."""

    name: ClassVar[str] = "noise"
    amounts: ClassVar[Any] = {"std": FROM_0, "mean": ANY}
    keyed: ClassVar[bool] = True

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        key, _ = facts.key_from(drawn["key"])
        add_gaussian(array, facts.corner, key, drawn["mean"], drawn["std"])
        return array

    def describe(self) -> str:
        """Return the amounts in words."""
        more = {} if self.mean == 0 else {"mean": self.mean}
        return self.in_words(std=self.std, **more)


@dataclass(frozen=True)
class RicianNoise(RandomValueOp):
    """The noise of magnitude images: normal noise in both parts of a complex number.

    ``sqrt((value + a) ** 2 + b ** 2)``, with ``a`` and ``b`` normal, of mean 0 and deviation
    ``std``: where the value is ``v``, a number of the Rice distribution of ``v`` and ``std``.

    References
    ----------
    Gudbjartsson and Patz, "The Rician distribution of noisy MRI data", Magnetic Resonance in
    Medicine 34 (1995).

    Examples
    --------
    >>> RicianNoise(0.1).describe()
    'rician_noise std 0.1'
    """

    std: ParameterRange
    """Standard deviation of either part: a number >= 0, or (low, high)."""

    name: ClassVar[str] = "rician_noise"
    amounts: ClassVar[Any] = {"std": FROM_0}
    keyed: ClassVar[bool] = True

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place; the result is nowhere negative."""
        key, _ = facts.key_from(drawn["key"])
        make_rician(array, facts.corner, key, drawn["std"])
        return array

    def describe(self) -> str:
        """Return the amount in words."""
        return self.in_words(std=self.std)
