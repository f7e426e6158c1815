"""Contrast: spread the values about a middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.amounts import Entry, as_flag, as_number
from .affine_value_op import AffineValueOp
from .epilogue import Epilogue
from .random_op import FROM_0
from .value_op import Drawn, Facts


@dataclass(frozen=True)
class Contrast(AffineValueOp):
    """``(value - middle) * factor + middle``.

    Examples
    --------
    >>> Contrast((0.75, 1.25)).describe()
    'contrast factor (0.75, 1.25) about the mean of each volume'
    """

    factor: Entry
    """A number >= 0, or (low, high)."""
    middle: float | None = None
    """What stays as it is; None for the mean of the volume."""
    keep_range: bool = False
    """Whether to clamp to the smallest and largest value of the volume."""

    name: ClassVar[str] = "contrast"
    amounts: ClassVar[Any] = {"factor": FROM_0}

    def __post_init__(self) -> None:
        super().__post_init__()
        as_flag("keep_range", self.keep_range)
        object.__setattr__(self, "middle", as_number("middle", self.middle, optional=True))

    @property
    def takes_statistics(self) -> bool:
        """For the middle or the range."""
        return self.middle is None or self.keep_range

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue:
        """Return scale, shift and perhaps a clamp."""
        factor = drawn["factor"]
        middle = facts.statistics().mean if self.middle is None else self.middle
        shift = middle * (1 - factor)
        if not self.keep_range:
            return Epilogue(factor, shift)
        whole = facts.statistics()
        return Epilogue(factor, shift, whole.minimum, whole.maximum)

    def describe(self) -> str:
        """Return the amounts in words."""
        middle = "the mean of each volume" if self.middle is None else f"{self.middle:g}"
        kept = ", in its range" if self.keep_range else ""
        return f"{self.in_words(factor=self.factor)} about {middle}{kept}"
