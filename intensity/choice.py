"""Value ops of which some are applied: one op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ..core import Grid
from ..core.choice import Choice
from .value_op import NO_HALO, Drawn, Facts, Halo, ValueOp

Chain = tuple[tuple[int, ValueOp], ...]
"""Ops in turn, each with its place among all ops of the member, which may be spatial ones too."""


@dataclass(frozen=True)
class ValueChoice(ValueOp):
    """The value part of a choice."""

    choice: Choice
    """How members are chosen."""
    members: tuple[Chain, ...]
    """What each one does."""

    name: ClassVar[str] = "choice"

    @property
    def commutes(self) -> bool:  # type: ignore[override]
        """Whether all of them do."""
        return all(op.commutes for chain in self.members for _, op in chain)

    @property
    def keeps_dtype(self) -> bool:  # type: ignore[override]
        """Whether all of them do; so the type does not depend on which is chosen."""
        return all(op.keeps_dtype for chain in self.members for _, op in chain)

    def draw(self, generator: np.random.Generator) -> Drawn | None:
        """Return which members act, and what each of their ops drew."""
        chosen = self.choice.draw(generator)
        if chosen is None:
            return None
        drawn = [
            [op.draw(chosen.generator(member, place)) for place, op in self.members[member]]
            for member in chosen.members
        ]
        return {"chosen": chosen.members, "drawn": drawn}

    def _acting(self, drawn: Drawn) -> Iterator[tuple[ValueOp, Drawn]]:
        for member, each in zip(drawn["chosen"], drawn["drawn"], strict=True):
            for (_, op), values in zip(self.members[member], each, strict=True):
                if values is not None:
                    yield op, values

    def halo(self, drawn: Drawn, grid: Grid) -> Halo:
        """Return that of those which act, added up."""
        i, j, k = NO_HALO
        for op, values in self._acting(drawn):
            a, b, c = op.halo(values, grid)
            i, j, k = i + a, j + b, k + c
        return (i, j, k)

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Return the array after those that act."""
        for number, (op, values) in enumerate(self._acting(drawn)):
            array = op.apply(array, values, cast(Facts, _Keyed(facts, number)))
        return array

    def describe(self) -> str:
        """Return the rule and its members."""
        members = "; ".join(
            ", ".join(op.describe() for _, op in chain) or "-" for chain in self.members
        )
        return f"{self.choice.rule} ({members})"


class _Keyed:
    """Facts with a key of their own, so that two ops of one choice draw different noise."""

    def __init__(self, facts: Facts, number: int) -> None:
        self._facts = facts
        low, high = facts.key
        self.key = ((low + number) % 2**64, high)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)
