"""Value ops that apply some of several ops, or one op to some volumes only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Stream
from ..core.draws import ChosenOps
from ..core.validate import as_keys
from .native import Change
from .value_op import NO_HALO, Epilogue, Facts, Halo, Params, ValueOp, same_as


class _OpWrapper(ValueOp):
    """A wrapper that holds an op and draws as the op does."""

    op: ValueOp

    recorded_op = same_as("op")
    draw = same_as("op.draw")
    draws_axis = same_as("op.draws_axis")
    draws_channels = same_as("op.draws_channels")

    def along(self, axes: tuple[int, ...]) -> ValueOp:
        wrapper: ValueOp = replace(cast(Any, self), op=self.op.along(axes))
        return wrapper

    def of_channels(self, count: int) -> ValueOp:
        wrapper: ValueOp = replace(cast(Any, self), op=self.op.of_channels(count))
        return wrapper


@dataclass(frozen=True)
class OnKeys(_OpWrapper):
    """``op`` on the named volumes; the choice skips it on others.

    A choice replaces it by the op itself for these keys, and by :class:`Elsewhere` for others.
    """

    keys: tuple[str, ...]
    """The volumes, by their keys in the sample."""
    op: ValueOp
    """The op for the named volumes."""

    name: ClassVar[str] = "on"
    named_keys = same_as("keys")
    looks_at_all = same_as("op.looks_at_all")
    takes_statistics = same_as("op.takes_statistics")
    checks: ClassVar[Any] = {"keys": lambda _, value: as_keys("On()", value)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.keys:
            msg = f"On() takes at least one key of a volume, got none for {self.op.describe()}"
            raise ValueError(msg)
        if self.op.named_keys:
            msg = f"On({', '.join(map(repr, self.keys))}) holds an On() of its own; name keys once"
            raise ValueError(msg)

    def describe(self) -> str:
        return f"{self.op.describe()} on {' and '.join(self.keys)}"


@dataclass(frozen=True)
class Elsewhere(_OpWrapper):
    """Change nothing, and draw as ``op``, which acts on other volumes of the sample.

    So the record of a choice is the same for all of them.
    """

    op: ValueOp
    """The op for the other volumes."""

    name: ClassVar[str] = "elsewhere"
    keeps_dtype: ClassVar[bool] = True
    pointwise: ClassVar[bool] = True

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue:
        return Epilogue()

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...]:
        return ()

    def describe(self) -> str:
        return f"{self.op.describe()} elsewhere"


Path = tuple[int, int]
"""Index of the member, and position in it."""

_SIGN_BIT = 2**63  # the second number of a stream is a signed one


def _of_all(name: str) -> Any:
    """Return a property: whether it holds for all ops of a choice."""
    return property(lambda self: all(getattr(op, name) for op in self.bare_ops()))


def _of_any(name: str) -> Any:
    """Return a property: whether it holds for any op of a choice."""
    return property(lambda self: any(getattr(op, name) for op in self.bare_ops()))


@dataclass(frozen=True)
class ValueChoice(ChosenOps, ValueOp):  # type: ignore[override]  # its name is the rule
    """The value part of a choice."""

    commutes = _of_all("commutes")
    keeps_dtype = _of_all("keeps_dtype")
    """The type must not depend on the choice."""
    pointwise = _of_all("pointwise")
    keeps_faces = _of_all("keeps_faces")
    by_channel = _of_all("by_channel")
    looks_around = _of_any("looks_around")
    looks_at_all = _of_any("looks_at_all")
    takes_statistics = _of_any("takes_statistics")
    draws_axis = _of_any("draws_axis")
    draws_channels = _of_any("draws_channels")

    def __post_init__(self) -> None:
        for op in self.bare_ops():
            if type(op).channels is not ValueOp.channels or type(op).dtype is not ValueOp.dtype:
                msg = f"a choice cannot hold {op.name}: the shape or type would depend on a draw"
                raise ValueError(msg)
        if len({op.mask_key for op in self.bare_ops()} - {None}) > 1:
            raise ValueError("the members of a choice take statistics inside one label at most")

    def bare_ops(self) -> Iterator[ValueOp]:
        """Yield the ops; an ``OnKeys`` yields its op."""
        return (op.op if isinstance(op, OnKeys) else op for op in self.ops())

    @property
    def waited_for(self) -> str:
        names = dict.fromkeys(op.waited_for for op in self.bare_ops() if not op.commutes)
        return f"{' and '.join(names)} in {self.choice.rule}()"

    @property
    def late_because(self) -> str:  # type: ignore[override]
        return "; ".join(filter(None, dict.fromkeys(op.late_because for op in self.bare_ops())))

    @property
    def mask_key(self) -> str | None:
        return next(filter(None, (op.mask_key for op in self.bare_ops())), None)

    @property
    def named_keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(key for op in self.ops() for key in op.named_keys))

    @property
    def for_given_keys(self) -> bool:
        """Whether a member acts on the pipe's volumes, and not on its own keys."""
        return any(
            op.for_given_keys if isinstance(op, ValueChoice) else not isinstance(op, OnKeys)
            for op in self.ops()
        )

    def of_key(self, key: str, *, is_target: bool) -> ValueChoice:
        # Members that act elsewhere are still drawn, and change nothing.
        if is_target and not self.named_keys:
            return self
        return self._with(lambda op: _of_key(op, key, is_target=is_target))

    def along(self, axes: tuple[int, ...]) -> ValueChoice:
        return self._with(lambda op: op.along(axes))

    def of_channels(self, count: int) -> ValueChoice:
        return self._with(lambda op: op.of_channels(count))

    def _with(self, change: Callable[[ValueOp], ValueOp]) -> ValueChoice:
        members = (tuple((at, change(op)) for at, op in chain) for chain in self.members)
        return replace(self, members=tuple(members))

    def draw(self, generator: np.random.Generator) -> Params | None:
        choice = self.choice.draw(generator)
        if choice is None:
            return None
        params = [
            [op.draw(choice.generator(member, place)) for place, op in self.members[member]]
            for member in choice.members
        ]
        return {"chosen": choice.members, "drawn": params}

    def halo(self, params: Params, grid: Grid) -> Halo:
        i, j, k = NO_HALO
        for op, values, _ in self.acting(params):
            a, b, c = op.halo(values, grid)
            i, j, k = i + a, j + b, k + c
        return (i, j, k)

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue | None:
        if self.keeps_dtype:  # of any type, whose digits float32 may not have
            return None
        together: Epilogue | None = Epilogue()
        for op, values, _ in self.acting(params):
            one = op.as_epilogue(values, facts)
            together = None if together is None or one is None else together.then(one)
        return together

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...] | None:
        together: tuple[Change, ...] = ()
        for op, values, path in self.acting(params):
            some = op.changes(values, cast(Facts, _FactsOfKey(facts, path)))
            if some is None:
                return None
            together += some
        return together

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        for op, values, path in self.acting(params):
            array = op.apply(array, values, cast(Facts, _FactsOfKey(facts, path)))
        return array


def _of_key(op: ValueOp, key: str, *, is_target: bool) -> ValueOp:
    if isinstance(op, OnKeys):
        return op.op if key in op.keys else Elsewhere(op.op)
    if isinstance(op, ValueChoice):
        return op.of_key(key, is_target=is_target)
    return op if is_target else Elsewhere(op)


class _FactsOfKey:
    """Facts with a key of their own, so that no two ops of a choice draw the same noise.

    The key follows from member and position of the op. In nested choices it follows from the whole
    path: the outer key is the seed of the inner one.
    """

    def __init__(self, facts: Facts, path: Path) -> None:
        self._facts = facts
        self._path = path

    @property
    def key(self) -> tuple[int, int]:
        low, high = self._facts.key
        return Stream(low, high % _SIGN_BIT, self._path, "choice").key()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)
