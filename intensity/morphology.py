"""Ops on masks, one per channel: morphology, and removal of parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import ParameterRange, as_choice, as_probability, entries_of, parse_range
from .choice import ChannelwiseOp
from .value_op import ABOVE_0, FROM_0, Facts, Params, RandomValueOp, number_text

Mask = NDArray[np.bool_]
OPERATORS = ("dilate", "erode", "close", "open")


def dilate(mask: Mask, radius: float) -> Mask:
    """Return the voxels within ``radius`` voxels of the mask.

    Examples
    --------
    >>> line = np.zeros((1, 1, 7), bool)
    >>> line[0, 0, 3] = True
    >>> dilate(line, 1.5).astype(int).ravel().tolist()
    [0, 0, 1, 1, 1, 0, 0]
    """
    # Squares of the distance along K, then J, then I: the least sum is the distance in space
    # (Felzenszwalb and Huttenlocher 2012). Distances beyond the radius are skipped.
    far = math.floor(radius)
    beyond = 3 * far * far + 1
    near: NDArray[np.int32] = np.where(mask, 0, beyond).astype(np.int32)
    for axis in (2, 1, 0):
        before = near.copy()
        length = mask.shape[axis]
        for step in range(1, min(far, length - 1) + 1):
            low = [slice(None)] * 3
            high = [slice(None)] * 3
            low[axis], high[axis] = slice(0, length - step), slice(step, None)
            for to, of in ((tuple(low), tuple(high)), (tuple(high), tuple(low))):
                np.minimum(near[to], before[of] + step * step, out=near[to])
    return np.asarray(near <= radius * radius)


def erode(mask: Mask, radius: float) -> Mask:
    """Return the voxels further than ``radius`` from all voxels outside the mask.

    Beyond the array the mask goes on, so nothing is worn off at its faces.
    """
    return ~dilate(~mask, radius)


def morph(mask: Mask, operator: str, radius: float) -> Mask:
    """Return a mask after one of ``OPERATORS`` with a ball of ``radius`` voxels."""
    first, second = {"close": (dilate, erode), "open": (erode, dilate)}.get(operator, (None, None))
    if first is None or second is None:
        return dilate(mask, radius) if operator == "dilate" else erode(mask, radius)
    return second(first(mask, radius), radius)


def parts_of(mask: Mask) -> tuple[NDArray[np.int64], int]:
    """Return each voxel's part number, 0 outside, and the number of parts.

    Voxels that touch, by a corner too, are of one part. Parts are numbered by their first voxels.

    Examples
    --------
    >>> labels, count = parts_of(np.array([[[1, 1, 0, 1], [0, 0, 1, 0]]], bool))
    >>> labels[0].tolist(), count
    ([[1, 1, 0, 1], [0, 0, 1, 0]], 1)
    """
    # Runs along K are joined with touching runs of the four rows before.
    wide = np.pad(mask, ((1, 1), (1, 1), (1, 1)))
    steps = np.diff(wide.astype(np.int8), axis=2)
    rows = wide.shape[1]
    i, j, start = np.nonzero(steps == 1)
    stop = np.nonzero(steps == -1)[2]
    row = i * rows + j
    parent = np.arange(len(row))
    # Two rows as one number line, so that searchsorted finds a run by its end.
    width = wide.shape[2] + 1
    first, last = row * width + start, row * width + stop
    edges = []
    for shift in (1, rows - 1, rows, rows + 1):
        low = np.searchsorted(last, first - shift * width, "left")
        high = np.searchsorted(first, last - shift * width, "right")
        counts = np.maximum(high - low, 0)
        ours = np.repeat(np.arange(len(row)), counts)
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        edges.append(np.stack([ours, np.repeat(low, counts) + inside]))
    a, b = np.concatenate(edges, axis=1) if edges else np.empty((2, 0), int)
    while True:
        low = np.minimum(parent[a], parent[b])
        before = parent.copy()
        np.minimum.at(parent, before[a], low)
        np.minimum.at(parent, before[b], low)
        parent = parent[parent]
        if np.array_equal(parent, before):
            break
    numbers, of_run = np.unique(parent, return_inverse=True)
    labels = np.zeros(wide.shape, np.int64)
    lengths = stop - start
    inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(start + 1, lengths) + inside
    labels[np.repeat(i, lengths), np.repeat(j, lengths), places] = np.repeat(of_run + 1, lengths)
    return labels[1:-1, 1:-1, 1:-1], len(numbers)


@dataclass(frozen=True)
class _MorphologyOfChannel(RandomValueOp):
    """Draws for a channel."""

    radius: ParameterRange
    operator: ParameterRange
    turn: ParameterRange = (0.0, 1.0)

    name: ClassVar[str] = "random_morphology"
    amounts: ClassVar[Any] = {"turn": FROM_0, "operator": FROM_0, "radius": ABOVE_0}


@dataclass(frozen=True)
class _PartOfChannel(RandomValueOp):
    """Draws for a channel: its part, as a number from 0 to 1."""

    turn: ParameterRange = (0.0, 1.0)
    which: ParameterRange = (0.0, 1.0)

    name: ClassVar[str] = "drop_component"
    amounts: ClassVar[Any] = {"turn": FROM_0, "which": FROM_0}


@dataclass(frozen=True)
class _MaskOp(ChannelwiseOp):
    """Shared behaviour of ops that change masks, one per channel, in a drawn order."""

    p: float = field(default=1.0, kw_only=True)
    """Probability that anything is changed."""
    p_channel: float = field(default=1.0, kw_only=True)
    """Probability of each channel, given that the op acts."""

    kind: ClassVar[str] = "label"
    keeps_dtype: ClassVar[bool] = True
    commutes: ClassVar[bool] = False
    looks_at_all: ClassVar[bool] = True
    checks: ClassVar[Any] = {"p": as_probability, "p_channel": as_probability}

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        acting = [(one["turn"], n, one) for n, one in enumerate(params["channels"]) if one]
        for _, number, values in sorted(acting, key=lambda one: one[:2]):
            box = _box_of(array[number] != 0, self.margin(values))
            if box is not None:
                self.change(array[(slice(None), *box)], number, values, array[0].size)
        return array

    def margin(self, values: Params) -> int:
        """Return the largest distance of changes from a mask, and of reads."""
        return 0

    def change(self, channels: NDArray[Any], number: int, values: Params, voxels: int) -> None:
        """Change one of the channels in place; the array has the mask and its surroundings."""
        raise NotImplementedError

    def in_words(self, text: str) -> str:
        """Return the op with its probabilities, where they are not 1."""
        shares = ("p", self.p), ("p_channel", self.p_channel)
        words = ", ".join(f"{name}={share:g}" for name, share in shares if share != 1)
        return f"{self.name} {text}{f' ({words})' if words else ''}"


def _box_of(mask: Mask, margin: int) -> tuple[slice, slice, slice] | None:
    """Return the bounding box of a mask, with a margin; None for an empty mask."""
    sides = []
    for axis in range(3):
        inside = np.flatnonzero(mask.any(axis=tuple(n for n in range(3) if n != axis)))
        if not inside.size:
            return None
        sides.append(slice(max(int(inside[0]) - margin, 0), int(inside[-1]) + 1 + margin))
    i, j, k = sides
    return i, j, k


def _as_operators(name: str, value: Any) -> tuple[str, ...]:
    operators = entries_of(value) or (value,)
    return tuple(as_choice(name, one, OPERATORS) for one in operators)


@dataclass(frozen=True)
class RandomMorphology(_MaskOp):
    """Grow, shrink, close or open each channel's mask by a ball; growth takes from others.

    nnU-Net does this to the segmentation of a coarser network that it is given, so that it does not
    learn to copy it. It acts on the patch: at its faces nothing is worn off.

    Examples
    --------
    >>> RandomMorphology((1, 8), p=0.4, p_channel=0.5).describe()
    'random_morphology dilate, erode, close or open by (1.0, 8.0) voxels (p=0.4, p_channel=0.5)'
    """

    radius: ParameterRange = (1.0, 8.0)
    """Radius of the ball, in voxels: a number above 0, or (low, high)."""
    operators: tuple[str, ...] = OPERATORS
    """One of these is drawn for each channel."""

    name: ClassVar[str] = "random_morphology"
    checks: ClassVar[Any] = {
        "radius": partial(parse_range, positive=True),
        "operators": _as_operators,
    }

    @property
    def op(self) -> RandomValueOp:
        count = float(len(self.operators))
        return _MorphologyOfChannel(self.radius, (0.0, count), p=self.p_channel)

    def margin(self, values: Params) -> int:
        return int(values["radius"]) + 1

    def change(self, channels: NDArray[Any], number: int, values: Params, voxels: int) -> None:
        before = channels[number] != 0
        last = len(self.operators) - 1
        operator = self.operators[min(int(values["operator"]), last)]
        after = morph(before, operator, values["radius"])
        channels[:, after & ~before] = 0
        channels[number] = after

    def describe(self) -> str:
        *some, last = self.operators
        either = f"{', '.join(some)} or {last}" if some else last
        return self.in_words(f"{either} by {number_text(self.radius)} voxels")


@dataclass(frozen=True)
class DropComponent(_MaskOp):
    """Take one connected part out of each channel's mask, of those that are not too large.

    Voxels that touch, by a corner too, are connected.

    Examples
    --------
    >>> DropComponent(0.15, p=0.2, p_channel=0.5).describe()
    'drop_component below 0.15 of the patch (p=0.2, p_channel=0.5)'
    """

    max_fraction: float = 0.15
    """Limit of a part's size, as a share of the patch."""

    name: ClassVar[str] = "drop_component"
    checks: ClassVar[Any] = {"max_fraction": as_probability}

    @property
    def op(self) -> RandomValueOp:
        return _PartOfChannel(p=self.p_channel)

    def change(self, channels: NDArray[Any], number: int, values: Params, voxels: int) -> None:
        parts, count = parts_of(channels[number] != 0)
        sizes = np.bincount(parts.ravel(), minlength=count + 1)
        small = np.flatnonzero(sizes[1:] < self.max_fraction * voxels) + 1
        if small.size:
            number_of_part = small[min(int(values["which"] * small.size), small.size - 1)]
            channels[number][parts == number_of_part] = 0

    def describe(self) -> str:
        return self.in_words(f"below {self.max_fraction:g} of the patch")


OPS = (DropComponent, RandomMorphology)
