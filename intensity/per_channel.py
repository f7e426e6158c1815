"""PerChannel: an op that draws for each channel on its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core import Grid
from ..core.validate import as_probability
from .native import Change
from .value_op import NO_HALO, Facts, Halo, Params, ValueOp, same_as


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
    Statistics of the volume are of all channels together, those of the patch of each channel.

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

    def coarser(self, params: Params) -> tuple[float, float, float] | None:
        first, *others = params["channels"]
        none = first is None or others
        factors: tuple[float, float, float] | None = None if none else self.op.coarser(first)
        return factors

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
                result = self.op.apply(part, values, facts)
                if result is not part:
                    part[...] = result
        return array

    def describe(self) -> str:
        p = f" (p={self.p:g})" if self.p != 1 else ""
        return f"{self.name}{p}: {self.op.describe()}"


OPS = (PerChannel,)
