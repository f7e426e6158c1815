"""Spatial ops of which some are applied: one op, whose plan stays pending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.draws import Choice
from ..plans.plan import SpatialPlan
from .op import Drawn, SpatialOp, displaces

Chain = tuple[tuple[int, SpatialOp], ...]
"""Ops in turn, each with its place among all ops of the member, which may be value ops too."""


@dataclass(frozen=True)
class SpatialChoice:
    """The spatial part of a choice."""

    choice: Choice
    """How members are chosen."""
    members: tuple[Chain, ...]
    """What each one does."""

    @property
    def name(self) -> str:
        """The chained form, which is the rule."""
        return self.choice.rule

    @property
    def lattice(self) -> bool:
        """Whether all of them move whole voxels only."""
        return all(op.lattice for chain in self.members for _, op in chain)

    @property
    def displaces(self) -> bool:
        """Whether one of them may."""
        return any(displaces(op) for chain in self.members for _, op in chain)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return which members act, and what each of their ops drew."""
        chosen = self.choice.draw(generator)
        if chosen is None:
            return None
        drawn: list[Any] = []
        for member in chosen.members:
            each: list[Any] = []
            for place, op in self.members[member]:
                values = op.draw(chosen.generator(member, place), plan)
                plan = _after(plan, op, values)
                each.append(None if values is None else dict(values))
            drawn.append(each)
        return {"chosen": chosen.members, "drawn": drawn}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan after those that act; the type does not depend on which they were."""
        for member, each in zip(drawn["chosen"], drawn["drawn"], strict=True):
            for (_, op), values in zip(self.members[member], each, strict=True):
                plan = _after(plan, op, values)
        return plan if self.lattice else plan.interpolated()

    def describe(self) -> str:
        """Return the rule and its members."""
        members = "; ".join(
            ", ".join(op.describe() for _, op in chain) or "-" for chain in self.members
        )
        return f"{self.choice.rule} ({members})"


def _after(plan: SpatialPlan, op: SpatialOp, drawn: Drawn | None) -> SpatialPlan:
    return plan if drawn is None else op.then(plan, drawn)
