"""Value ops made of others: some of several, one on some volumes, one for each channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Stream
from ..core.draws import ChosenOps
from ..core.validate import as_keys, as_probability
from .native_values import Change
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


class ChannelwiseOp(ValueOp):
    """A value op that draws ``op`` for each channel, after one draw for ``p``.

    Its parameters are ``{"channels": [...]}``, None for an unchanged channel.
    """

    op: Any
    p: float
    draws_channels = True

    @property
    def recorded_channels(self) -> tuple[Any, int]:
        """The op of each channel, and the number of channels, 0 if unknown."""
        return self.op, 0

    def of_channels(self, count: int) -> ValueOp:
        return _OfChannels(self, count)

    def draw(self, generator: np.random.Generator) -> Params | None:
        return self.draw_for(1, generator)

    def draw_for(self, count: int, generator: np.random.Generator) -> Params | None:
        """Return the parameters for ``count`` channels, or None if the op does not act."""
        acts = generator.random() < self.p
        each = [self.op.draw(generator) for _ in range(count)]
        channels = [None if values is None else dict(values) for values in each]
        return {"channels": channels} if acts else None


@dataclass(frozen=True)
class _OfChannels(ValueOp):
    """An op that draws for a known number of channels."""

    whole: ChannelwiseOp
    count: int

    name = same_as("whole.name")
    describe = same_as("whole.describe")

    @property
    def recorded_channels(self) -> tuple[Any, int]:
        return self.whole.op, self.count

    def draw(self, generator: np.random.Generator) -> Params | None:
        return self.whole.draw_for(self.count, generator)


@dataclass(frozen=True)
class PerChannel(ChannelwiseOp):
    """Apply an op to each channel on its own: its ``p`` and its amounts are drawn for each.

    As in nnU-Net, ``p`` is the probability of the image, and the op's that of each channel.
    So are statistics, of the volume and of the patch: ``per_channel(Normalize())`` gives each
    channel mean 0 and deviation 1.

    Examples
    --------
    >>> from voxpipe.intensity import Blur
    >>> PerChannel(Blur((0.5, 1), "voxel", p=0.5), p=0.2).describe()
    'per_channel (p=0.2): blur sigma (0.5, 1.0) (p=0.5) voxel'
    """

    op: Any
    """A value op that keeps the channels and the type, such as ``Blur((0.5, 1), p=0.5)``."""
    p: float = field(default=1.0, kw_only=True)
    """Probability that any channel is changed."""

    name: ClassVar[str] = "per_channel"

    commutes = same_as("op.commutes")  # of other ops a matter of the class
    keeps_dtype = same_as("op.keeps_dtype")
    kind = same_as("op.kind")
    looks_around = same_as("op.looks_around")
    looks_at_all = same_as("op.looks_at_all")
    takes_statistics = same_as("op.takes_statistics")
    late_because = same_as("op.late_because")
    mask_key = same_as("op.mask_key")
    draws_axis = same_as("op.draws_axis")
    checks: ClassVar[Any] = {"p": as_probability}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.op, ValueOp) or isinstance(self.op, ChannelwiseOp):
            raise ValueError(f"per_channel takes a value op such as Blur(1), got {self.op!r}")
        kind = type(self.op)
        if kind.channels is not ValueOp.channels or kind.dtype is not ValueOp.dtype:
            raise ValueError(f"per_channel keeps the channels, and {self.op.name} may not")

    @property
    def waited_for(self) -> str:
        return f"{self.op.waited_for} in per_channel()"

    def along(self, axes: tuple[int, ...]) -> PerChannel:
        return replace(self, op=self.op.along(axes))

    def halo(self, params: Params, grid: Grid) -> Halo:
        each = [self.op.halo(one, grid) for one in params["channels"] if one is not None]
        i, j, k = np.max([NO_HALO, *each], axis=0).tolist()
        return (i, j, k)

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...] | None:
        if len(params["channels"]) != 1:
            return None
        (values,) = params["channels"]
        if values is None:
            return ()
        changes: tuple[Change, ...] | None = self.op.changes(values, facts)
        return changes

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        for number, values in enumerate(params["channels"]):
            if values is not None:
                part = array[number : number + 1]
                own = facts.on_channel(number) if self.op.takes_statistics else facts
                result = self.op.apply(part, values, own)
                if result is not part:
                    part[...] = result
        return array

    def describe(self) -> str:
        p = f" (p={self.p:g})" if self.p != 1 else ""
        return f"{self.name}{p}: {self.op.describe()}"


OPS = (PerChannel,)
