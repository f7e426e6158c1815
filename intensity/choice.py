"""Value ops of which some are applied, or which are applied to some volumes only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Stream
from ..core.draws import Choice
from ..core.validate import as_keys
from .value_op import NO_HALO, Drawn, Epilogue, Facts, Halo, ValueOp


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


Chain = tuple[tuple[int, ValueOp], ...]
"""Ops in turn, each with its place among all ops of the member, which may be spatial ones too."""
Path = tuple[int, int]
"""Which member, and which place in it."""

_SIGNED = 2**63  # the second number of a stream is a signed one


@dataclass(frozen=True)
class ValueChoice(ValueOp):
    """The value part of a choice."""

    choice: Choice
    """How members are chosen."""
    members: tuple[Chain, ...]
    """What each one does."""

    @property
    def name(self) -> str:  # type: ignore[override]
        """The chained form, which is the rule."""
        return self.choice.rule

    @property
    def commutes(self) -> bool:  # type: ignore[override]
        """Whether all of them do."""
        return all(op.commutes for op in self._ops())

    @property
    def keeps_dtype(self) -> bool:  # type: ignore[override]
        """Whether all of them do; so the type does not depend on which is chosen."""
        return all(op.keeps_dtype for op in self._ops())

    @property
    def waited_for(self) -> str:
        """Those that do not commute, and the rule."""
        names = dict.fromkeys(op.waited_for for op in self._ops() if not op.commutes)
        return f"{' and '.join(names)} in {self.choice.rule}()"

    @property
    def late_because(self) -> str:  # type: ignore[override]
        """Why later spatial ops wait for those that do not commute."""
        return "; ".join(dict.fromkeys(op.late_because for op in self._ops() if op.late_because))

    @property
    def looks_around(self) -> bool:
        """Whether one of them does."""
        return any(op.looks_around for op in self._ops())

    def __post_init__(self) -> None:
        for op in self._ops():
            if type(op).channels is not ValueOp.channels or type(op).dtype is not ValueOp.dtype:
                msg = f"a choice cannot hold {op.name}: the shape or type would depend on a draw"
                raise ValueError(msg)
        if len({op.mask_key for op in self._ops()} - {None}) > 1:
            msg = "the members of a choice take statistics inside one label at most"
            raise ValueError(msg)

    def _ops(self) -> Iterator[ValueOp]:
        for chain in self.members:
            for _, op in chain:
                yield op.op if isinstance(op, OnKeys) else op

    @property
    def named_keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """The volumes that members name for themselves."""
        named = (key for chain in self.members for _, op in chain for key in op.named_keys)
        return tuple(dict.fromkeys(named))

    @property
    def for_asked(self) -> bool:
        """Whether a member acts on the volumes that the pipe is for, and not on keys of its own."""
        members = (op for chain in self.members for _, op in chain)
        return any(
            op.for_asked if isinstance(op, ValueChoice) else not isinstance(op, OnKeys)
            for op in members
        )

    def of_key(self, key: str, *, asked: bool) -> ValueChoice:
        """Return the choice as it is for one volume, which draws the same.

        What acts elsewhere is still drawn, and does nothing.
        """
        if asked and not self.named_keys:
            return self
        return self._with(lambda op: _of_key(op, key, asked=asked))

    @property
    def draws_axis(self) -> bool:
        """Whether one of them does."""
        return any(op.draws_axis for op in self._ops())

    def along(self, axes: tuple[int, ...]) -> ValueChoice:
        """Return the choice among the same, which draw among these axes only."""
        return self._with(lambda op: op.along(axes))

    def _with(self, changed: Callable[[ValueOp], ValueOp]) -> ValueChoice:
        members = (tuple((at, changed(op)) for at, op in chain) for chain in self.members)
        return replace(self, members=tuple(members))

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        """Whether all of them are."""
        return all(op.pointwise for op in self._ops())

    @property
    def by_channel(self) -> bool:
        """Whether all of them are."""
        return all(op.by_channel for op in self._ops())

    @property
    def looks_at_all(self) -> bool:
        """Whether a member does."""
        return any(op.looks_at_all for op in self._ops())

    @property
    def takes_statistics(self) -> bool:
        """Whether one of them does."""
        return any(op.takes_statistics for op in self._ops())

    @property
    def mask_key(self) -> str | None:
        """The label that one of them takes statistics inside of."""
        return next(filter(None, (op.mask_key for op in self._ops())), None)

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

    def _acting(self, drawn: Drawn) -> Iterator[tuple[ValueOp, Drawn, Path]]:
        for member, each in zip(drawn["chosen"], drawn["drawn"], strict=True):
            for (place, op), values in zip(self.members[member], each, strict=True):
                if values is not None:
                    yield op, values, (member, place)

    def halo(self, drawn: Drawn, grid: Grid) -> Halo:
        """Return that of those which act, added up."""
        i, j, k = NO_HALO
        for op, values, _ in self._acting(drawn):
            a, b, c = op.halo(values, grid)
            i, j, k = i + a, j + b, k + c
        return (i, j, k)

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue | None:
        """Return those which act as one, where each of them is an epilogue."""
        if self.keeps_dtype:  # of any type, whose digits float32 may not have
            return None
        together: Epilogue | None = Epilogue()
        for op, values, _ in self._acting(drawn):
            one = op.as_epilogue(values, facts)
            together = None if together is None or one is None else together.then(one)
        return together

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Return the array after those that act."""
        for op, values, path in self._acting(drawn):
            array = op.apply(array, values, cast(Facts, _Keyed(facts, path)))
        return array

    def describe(self) -> str:
        """Return the rule and its members."""
        members = "; ".join(
            ", ".join(op.describe() for _, op in chain) or "-" for chain in self.members
        )
        return f"{self.choice.rule} ({members})"


def _of_key(op: ValueOp, key: str, *, asked: bool) -> ValueOp:
    if isinstance(op, OnKeys):
        return op.op if key in op.keys else Elsewhere(op.op)
    if isinstance(op, ValueChoice):
        return op.of_key(key, asked=asked)
    return op if asked else Elsewhere(op)


class _Keyed:
    """Facts with a key of their own, so that no two ops of a choice draw the same noise.

    It follows from where the op stands, member and place. In a choice within a choice it follows
    from the whole path: the outer one's key is the seed of the inner one's.
    """

    def __init__(self, facts: Facts, path: Path) -> None:
        self._facts = facts
        self._path = path

    @property
    def key(self) -> tuple[int, int]:
        low, high = self._facts.key
        return Stream(low, high % _SIGNED, self._path, "choice").key()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)
