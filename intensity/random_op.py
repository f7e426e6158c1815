"""Value ops with amounts: a fixed number, or a range to draw from, and whether to act at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import as_probability, parse_range, value_at
from .value_op import Drawn, Epilogue, Facts, ValueOp

ABOVE_0: Mapping[str, Any] = {"positive": True}
FROM_0: Mapping[str, Any] = {"least": 0.0}
ANY: Mapping[str, Any] = {}
VOLUME, PATCH = "volume", "patch"


def as_over(given: Any) -> str:
    """Return what statistics are taken of, ``"volume"`` or ``"patch"``; ValueError for others."""
    if not isinstance(given, str) or given not in (VOLUME, PATCH):
        raise ValueError(f'over is "{VOLUME}" or "{PATCH}", got {given!r}')
    return str(given)


def channel_range(channel: NDArray[Any], what: str) -> tuple[float, float]:
    """Return the smallest and largest value of a channel of a patch.

    Raises
    ------
    ValueError
        There is none: it holds NaN, or infinite values.
    """
    low, high = float(channel.min()), float(channel.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"a patch with NaN or infinite values has no mean or range for {what}()")
    return low, high


@dataclass(frozen=True)
class RandomValueOp(ValueOp):
    """A value op whose ``amounts`` are drawn, one double each, after one that decides on ``p``."""

    p: float = field(default=1.0, kw_only=True)
    """Probability that the op acts."""

    amounts: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The fields that are numbers or ranges, in the order of drawing, and what they may be."""
    keyed: ClassVar[bool] = False
    """Whether random numbers belong to its voxels: ``"key"`` is drawn last, for these."""

    def __post_init__(self) -> None:
        for name, allowed in self.amounts.items():
            object.__setattr__(self, name, parse_range(name, getattr(self, name), **allowed))
        object.__setattr__(self, "p", as_probability("p", self.p))

    def draw(self, generator: np.random.Generator) -> Drawn | None:
        """Return the amounts by name, or None."""
        acts = generator.random() < self.p
        drawn: dict[str, Any] = {
            name: value_at(getattr(self, name), generator.random()) for name in self.amounts
        }
        if self.keyed:
            drawn["key"] = int(generator.random() * 2**53)  # all bits of a double
        return drawn if acts else None

    def in_words(self, **words: Any) -> str:
        """Return the chained form, what was given, and ``p`` where it is not 1."""
        told = "".join(
            f" {_number(value)}" if name == self.name else f" {name} {_number(value)}"
            for name, value in words.items()
        )
        return f"{self.name}{told}{f' (p={self.p:g})' if self.p != 1 else ''}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class AffineValueOp(RandomValueOp):
    """Derive, and say which epilogue it is."""

    pointwise: ClassVar[bool] = True

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue | None:
        """Return scale, shift and clamp."""
        raise NotImplementedError

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        epilogue = self.as_epilogue(drawn, facts)
        assert epilogue is not None  # who has none applies it otherwise
        return epilogue.on(array)
