"""Choices among ops of both kinds: the user's form, and its spatial and its value part.

Both parts draw from one stream, the choice first, so they choose alike independently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.draws import Choice, ChosenOps, Rule
from ...core.validate import as_keys, as_probability, entries_of, is_integer
from ...intensity import ValueOp
from ...intensity.choice import OnKeys, ValueChoice
from ..plans.plan import SpatialPlan
from .foreground_crop import NeedingOp
from .op import Params, SpatialOp, displaces


@dataclass(frozen=True)
class SpatialChoice(ChosenOps):
    """The spatial part of a choice."""

    @property
    def lattice(self) -> bool:
        """Whether all of them move whole voxels only."""
        return all(op.lattice for op in self.ops())

    @property
    def displaces(self) -> bool:
        """Whether one of them may displace voxels."""
        return any(map(displaces, self.ops()))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        choice = self.choice.draw(generator)
        if choice is None:
            return None
        params: list[Any] = []
        for member in choice.members:
            each: list[Any] = []
            for place, op in self.members[member]:
                values = op.draw(choice.generator(member, place), plan)
                plan = plan if values is None else op.then(plan, values)
                each.append(None if values is None else dict(values))
            params.append(each)
        return {"chosen": choice.members, "drawn": params}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        for op, values, _ in self.acting(params):
            plan = op.then(plan, values)
        # The type must not depend on the choice.
        return plan if self.lattice else plan.interpolate()


@dataclass(frozen=True)
class Choices:
    """Some of several ops, or chains of ops; made by ``OneOf`` and the like."""

    choice: Choice
    """How members are chosen."""
    members: tuple[tuple[Any, ...], ...]
    """Chains of spatial ops, value ops and further choices."""

    def __post_init__(self) -> None:
        for chain in self.members:
            for op in chain:
                if not isinstance(op, (SpatialOp, ValueOp, Choices)) or isinstance(op, type):
                    msg = f"{self.choice.rule}() chooses among ops such as Rotate(15), got {op!r}"
                    raise ValueError(msg)
                if isinstance(op, NeedingOp):
                    raise ValueError(
                        f"{self.choice.rule}() cannot choose {op.describe()}: it asks a volume, "
                        f"as a pipe of its own does; write .{op.name}(...) before or after"
                    )
        anyhow = self.choice.rule != "one_of" and self.choice.rule != "random_apply"
        chains = [sum(self.members, ())] if anyhow else list(self.members)
        for chain in chains:
            self._refuse_late_spatial(chain, in_any_order=self.choice.rule == "random_order")

    def _refuse_late_spatial(self, chain: Sequence[Any], *, in_any_order: bool) -> None:
        """Raise if a spatial op would have to interpolate the result of a value op."""
        waiting = ""
        for op in (*chain, *chain) if in_any_order else chain:
            spatial, values = _parts(op)
            if waiting and spatial is not None:
                raise ValueError(
                    f"in {self.choice.rule}(), {spatial.describe()} may come after {waiting}, "
                    "which does not commute with it; put value ops of that kind after all "
                    "spatial ones, in a choice of their own"
                )
            if values is not None and not values.commutes:
                waiting = values.describe()

    def describe(self) -> str:
        members = "; ".join(", ".join(op.describe() for op in chain) for chain in self.members)
        p = f" (p={self.choice.p:g})" if self.choice.p != 1 else ""
        return f"{self.choice.rule} ({members}){p}"

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        every = (op for chain in self.members for op in chain)
        return tuple(text for op in every for text in getattr(op, "likely_mistakes", ()))

    @property
    def spatial(self) -> SpatialChoice | None:
        """The choice of the spatial ops; None without spatial ops."""
        chains = self._chains(0)
        return SpatialChoice(self.choice, chains) if any(chains) else None

    @property
    def values(self) -> ValueChoice | None:
        """The choice of the value ops; None without value ops."""
        chains = self._chains(1)
        return ValueChoice(self.choice, chains) if any(chains) else None

    def _chains(self, part: int) -> tuple[tuple[tuple[int, Any], ...], ...]:
        return tuple(
            tuple((place, one) for place, op in enumerate(chain) if (one := _parts(op)[part]))
            for chain in self.members
        )


def _parts(op: Any) -> tuple[SpatialOp | None, ValueOp | None]:
    if isinstance(op, Choices):
        return op.spatial, op.values
    return (None, op) if isinstance(op, ValueOp) else (op, None)


def OneOf(ops: Any, weights: Sequence[float] | None = None, p: float = 1.0) -> Choices:  # noqa: N802
    """Choose one of several ops, or chains of ops, by weight.

    Parameters
    ----------
    ops
        A sequence of ops, of sequences of ops, and of choices; or a mapping from op to weight.
    weights
        Relative weights; equal ones by default.
    p
        Probability that any is applied.

    Examples
    --------
    >>> from voxpipe.spatial import Flip, Rotate
    >>> OneOf([Rotate(15), (Rotate(5), Flip(0))]).spatial.describe()
    'one_of (rotate 15.0 degrees; rotate 5.0 degrees, flip axis 0)'
    """
    return _choices("one_of", ops, weights=weights, p=p)


def SomeOf(  # noqa: N802
    ops: Any, count: Any, weights: Sequence[float] | None = None, p: float = 1.0
) -> Choices:
    """Choose ``count`` different ops, which act in the order given.

    Parameters
    ----------
    ops, weights, p
        As for :func:`OneOf`.
    count
        How many: a number, or (least, most).

    Examples
    --------
    >>> from voxpipe.spatial import Flip
    >>> SomeOf([Flip(0), Flip(1), Flip(2)], (1, 2)).choice.count
    (1, 2)
    """
    return _choices("some_of", ops, weights=weights, count=count, p=p)


def RandomOrder(ops: Any, p: float = 1.0) -> Choices:  # noqa: N802
    """Apply all of ``ops``, in an order that is drawn per item.

    Examples
    --------
    >>> from voxpipe.spatial import Flip, Rotate
    >>> RandomOrder([Rotate(15), Flip(0)]).choice.size
    2
    """
    return _choices("random_order", ops, p=p)


def RandomApply(ops: Any, p: float = 0.5) -> Choices:  # noqa: N802
    """Apply all of ``ops`` in turn, or none of them, with probability ``p``.

    Examples
    --------
    >>> from voxpipe.spatial import Flip, Rotate
    >>> RandomApply([Rotate(15), Flip(0)], p=0.1).choice.p
    0.1
    """
    chain = (ops,) if not isinstance(ops, (list, tuple)) else tuple(ops)
    return _choices("random_apply", [chain], p=p)


def On(keys: str | Collection[str], op: Any) -> ValueOp:  # noqa: N802
    """Return a member of a choice that changes the volumes of some keys only.

    Other members follow the pipe's ``keys=``. A sample has one choice, and one draw of the op.

    Parameters
    ----------
    keys
        The key of a volume, or several.
    op
        A value op, or a choice among value ops.

    Raises
    ------
    ValueError
        A key is no word, or the op moves voxels: all volumes of a sample move alike.

    Examples
    --------
    >>> from voxpipe.intensity import Blur, Noise
    >>> OneOf([On("ct", Noise(0.1)), On(["t1", "t2"], Blur(1))]).describe()
    'one_of (noise std 0.1 on ct; blur sigma 1 mm on t1 and t2)'
    """
    spatial, values = _parts(op) if isinstance(op, (Choices, ValueOp, SpatialOp)) else (None, None)
    if spatial is not None and not isinstance(op, type):
        raise ValueError(
            f"On() takes value ops, and {spatial.describe()} moves voxels, which all volumes of a "
            "sample do alike; put it into the choice as it is"
        )
    if values is None or isinstance(op, type):
        raise ValueError(f"On() takes keys and one value op, as On('ct', Noise(0.1)), got {op!r}")
    return OnKeys(as_keys("On()", keys), values)


def _choices(
    rule: Rule, ops: Any, *, weights: Sequence[float] | None = None, count: Any = 1, p: float = 1.0
) -> Choices:
    if isinstance(ops, Mapping):
        if weights is not None:
            raise ValueError(f"{rule}() got weights twice: in the mapping and as weights=")
        ops, weights = list(ops), list(ops.values())
    if not isinstance(ops, (list, tuple)):
        raise ValueError(f"{rule}() takes a list of ops, got {ops!r}")
    members = tuple(tuple(op) if isinstance(op, (list, tuple)) else (op,) for op in ops)
    numbers = entries_of(count) or (count, count)
    if len(numbers) != 2 or not all(map(is_integer, numbers)):
        raise ValueError(f"count is a whole number or (least, most), got {count!r}")
    try:
        shares = () if weights is None else tuple(float(weight) for weight in weights)
    except (TypeError, ValueError):
        msg = f"weights are numbers of at least 0, one per op, got {weights!r}"
        raise ValueError(msg) from None
    choice = Choice(
        rule, len(members), shares, (int(numbers[0]), int(numbers[1])), as_probability("p", p)
    )
    return Choices(choice, members)
