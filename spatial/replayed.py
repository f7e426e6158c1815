"""What was drawn for one item, done to another: ops that draw what a record says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Grid
from ..intensity.value_op import Drawn, Facts, Halo, ValueOp
from .lazy_patch import LazyPatch
from .op import SpatialOp
from .plan import SpatialPlan


@dataclass(frozen=True)
class ReplayedSpatial:
    """A spatial op whose parameters are given."""

    op: SpatialOp
    """What is done."""
    recorded: Any
    """What it drew; None where it did not act."""

    @property
    def name(self) -> str:
        """That of the op."""
        return self.op.name

    @property
    def lattice(self) -> bool:
        """That of the op."""
        return self.op.lattice

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the record."""
        found: Drawn | None = self.recorded
        return found

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan followed by the op."""
        return self.op.then(plan, drawn)

    def describe(self) -> str:
        """Return the op in words."""
        return f"{self.op.describe()}, replayed"


@dataclass(frozen=True)
class ReplayedValue(ValueOp):
    """A value op whose parameters are given."""

    op: ValueOp
    """What is done."""
    recorded: Any
    """What it drew; None where it did not act."""

    def __getattribute__(self, name: str) -> Any:
        # Everything but the draw is the op's own, class attributes included.
        if name in _OWN or name.startswith("__"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "op"), name)

    def draw(self, generator: np.random.Generator) -> Drawn | None:
        """Return the record."""
        found: Drawn | None = self.recorded
        return found

    def halo(self, drawn: Drawn, grid: Grid) -> Halo:
        """Return that of the op."""
        return self.op.halo(drawn, grid)

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Return what the op makes of the array."""
        return self.op.apply(array, drawn, facts)

    def describe(self) -> str:
        """Return the op in words."""
        return f"{self.op.describe()}, replayed"


_OWN = frozenset({"op", "recorded", "draw", "describe"})


def replayed(patch: LazyPatch, draws: Mapping[str, Any]) -> LazyPatch:
    """Return the patch with the recorded parameters in the place of its own draws.

    Parameters
    ----------
    patch
        Any lazy patch; its steps are those of its own chain.
    draws
        By name of stream, as in a batch's ``meta``. Steps that are not in it draw for themselves.

    Returns
    -------
    LazyPatch
        Random numbers that belong to voxels (noise) are those of its own item: a record holds
        parameters, not voxels.
    """
    steps = tuple(
        replace(step, op=ReplayedSpatial(step.op, draws[step.stream_name]))
        if step.stream_name in draws
        else step
        for step in patch.pending.steps
    )
    values = tuple(
        replace(step, op=ReplayedValue(step.op, draws[step.stream_name]))
        if step.stream_name in draws
        else step
        for step in patch.values
    )
    pending = patch.pending.following(patch.pending.identity, steps)
    return replace(patch.with_pending(pending), values=values)
