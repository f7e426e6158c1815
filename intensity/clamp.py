"""Clamp: bring what lies beyond a range to its ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..core.validate import as_number
from .affine_value_op import AffineValueOp
from .epilogue import Epilogue
from .value_op import Drawn, Facts


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
