"""A value op that changes the volumes of some keys only, as a member of a choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import as_keys
from .epilogue import Epilogue
from .value_op import Drawn, Facts, ValueOp


@dataclass(frozen=True)
class OnKeys(ValueOp):
    """What ``op`` does, to the volumes that are named; of other volumes the choice has none.

    A choice makes of it the op itself for these keys, and :class:`Elsewhere` for the others.
    """

    keys: tuple[str, ...]
    """The volumes, by their keys in the sample."""
    op: ValueOp
    """What is done to them."""

    name: ClassVar[str] = "on"

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", as_keys("On()", self.keys))
        if not self.keys:
            msg = f"On() takes at least one key of a volume, got none for {self.op.describe()}"
            raise ValueError(msg)
        if self.op.named_keys:
            msg = f"On({', '.join(map(repr, self.keys))}) holds an On() of its own; name keys once"
            raise ValueError(msg)

    @property
    def drawn_by(self) -> ValueOp:
        """The op whose record this is."""
        return self.op

    @property
    def named_keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """The volumes."""
        return self.keys

    @property
    def looks_at_all(self) -> bool:
        """Whether its op does."""
        return self.op.looks_at_all

    @property
    def takes_statistics(self) -> bool:
        """Whether the op does."""
        return self.op.takes_statistics

    @property
    def draws_axis(self) -> bool:
        """Whether the op does."""
        return self.op.draws_axis

    def along(self, axes: tuple[int, ...]) -> OnKeys:
        """Return this of the op that draws among these axes only."""
        return replace(self, op=self.op.along(axes))

    def draw(self, generator: np.random.Generator) -> Drawn | None:
        """Return what the op draws."""
        return self.op.draw(generator)

    def describe(self) -> str:
        """Return the op in words, and the keys."""
        return f"{self.op.describe()} on {' and '.join(self.keys)}"


@dataclass(frozen=True)
class Elsewhere(ValueOp):
    """Change nothing, and draw what ``op`` draws: it acts on other volumes of the sample.

    So the record of a choice is the same for all of them.
    """

    op: ValueOp
    """What is done to other volumes."""

    name: ClassVar[str] = "elsewhere"
    keeps_dtype: ClassVar[bool] = True
    pointwise: ClassVar[bool] = True

    @property
    def drawn_by(self) -> ValueOp:
        """The op whose record this is."""
        return self.op

    @property
    def draws_axis(self) -> bool:
        """Whether the op does."""
        return self.op.draws_axis

    def along(self, axes: tuple[int, ...]) -> Elsewhere:
        """Return this of the op that draws among these axes only."""
        return replace(self, op=self.op.along(axes))

    def draw(self, generator: np.random.Generator) -> Drawn | None:
        """Return what the op draws."""
        return self.op.draw(generator)

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue:
        """Return the one that changes nothing."""
        return Epilogue()

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Return ``array``."""
        return array

    def describe(self) -> str:
        """Return the op in words, and that it is not done here."""
        return f"{self.op.describe()} elsewhere"
