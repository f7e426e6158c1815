"""Brightness: multiply, and add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.validate import ParameterRange
from .affine_value_op import AffineValueOp
from .epilogue import Epilogue
from .random_op import ANY
from .value_op import Drawn, Facts


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
