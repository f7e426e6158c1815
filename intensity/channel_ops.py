"""Ops that choose channels, and ops that change labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.errors import VolumeError
from ..core.validate import (
    as_channels,
    as_choice,
    as_number,
    as_probability,
    entries_of,
    is_integer,
    or_none,
)
from .noise import PER_WORD, philox
from .value_op import Facts, Params, RandomValueOp, ValueOp


@dataclass(frozen=True)
class SelectChannels(ValueOp):
    """Keep some channels, in the order given.

    Examples
    --------
    >>> SelectChannels((2, 0)).describe()
    'select_channels 2, 0'
    """

    indices: int | str | tuple[int | str, ...]
    """From 0 in each time, or names, such as ``"DAPI"``; one may come more than once."""

    name: ClassVar[str] = "select_channels"
    keeps_dtype: ClassVar[bool] = True
    checks: ClassVar[Any] = {"indices": as_channels}

    @property
    def has_names(self) -> bool:
        """Whether channels are named; pipes replace names by numbers before the op acts."""
        return any(isinstance(one, str) for one in entries_of(self.indices))

    def channels(self, count: int) -> int:
        if self.has_names:
            msg = f"select_channels is to keep {self.indices}, and only a pipe knows the names"
            raise VolumeError(msg, do="Give numbers, from 0.")
        if max(entries_of(self.indices)) >= count:
            msg = f"select_channels is to keep {self.indices}, of {count} channels"
            raise VolumeError(msg, do=f"Channels are counted from 0: name some below {count}.")
        return len(entries_of(self.indices))

    def kept_channels(self) -> tuple[int, ...]:
        return entries_of(self.indices)

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        self.channels(array.shape[0])
        channels: NDArray[Any] = array[list(entries_of(self.indices))]
        return channels

    def describe(self) -> str:
        return f"{self.name} {', '.join(map(str, entries_of(self.indices)))}"


@dataclass(frozen=True)
class MeanOfChannels(ValueOp):
    """The mean of all channels, as one.

    Examples
    --------
    >>> MeanOfChannels().describe()
    'mean_of_channels'
    """

    name: ClassVar[str] = "mean_of_channels"

    def channels(self, count: int) -> int:
        return 1

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        mean: NDArray[Any] = array.mean(axis=0, keepdims=True, dtype=np.float32)
        return mean

    def describe(self) -> str:
        return self.name


@dataclass(frozen=True)
class DropChannels(RandomValueOp):
    """Fill whole channels with one value; at least one stays.

    Examples
    --------
    >>> DropChannels(0.25).describe()
    'drop_channels p_channel 0.25'
    """

    p_channel: float
    """Probability of each channel, 0 to 1."""
    fill: float = 0.0
    """The value that a dropped channel has."""

    name: ClassVar[str] = "drop_channels"
    draws_key: ClassVar[bool] = True
    checks: ClassVar[Any] = {"p_channel": as_probability, "fill": as_number}

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        numbers = philox((np.arange(array.shape[0]), 0, 0, 0), params["key"])[0] * PER_WORD
        mask = numbers < self.p_channel
        mask[np.argmax(numbers)] = False
        array[mask] = self.fill
        return array

    def describe(self) -> str:
        return self.in_words(p_channel=self.p_channel)


_LEAST, _MOST = -(2**63), 2**64 - 1


def _check_labels(name: str, labels: Sequence[Any], value: Any) -> None:
    """Raise ``ValueError`` for a label that no type holds, or that occurs twice."""
    for number, label in enumerate(labels):
        if not _LEAST <= label <= _MOST:
            raise ValueError(f"{name} has {label}, which no integer of 64 bits holds, in {value!r}")
        if label in labels[:number]:
            raise ValueError(f"{name} has {label} twice: {value!r}")


def _as_classes(name: str, value: Any) -> tuple[int, ...]:
    labels = entries_of(value)
    if isinstance(value, int) and is_integer(value):
        labels = tuple(range(value))
    if not labels or not all(map(is_integer, labels)):
        raise ValueError(f"{name} is a number above 0 or several labels, got {value!r}")
    _check_labels(name, labels, value)
    return tuple(map(int, labels))


def _as_mapping(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    entries = tuple(value.items()) if isinstance(value, Mapping) else entries_of(value)
    pairs = [entries_of(pair) for pair in entries]
    numbers = [n for pair in pairs for n in pair]
    if not pairs or {len(pair) for pair in pairs} != {2} or not all(map(is_integer, numbers)):
        raise ValueError(f"{name} is {{old label: new label}}, of integers, got {value!r}")
    _check_labels(name, [old for old, _ in pairs], value)
    _check_labels(name, sorted({new for _, new in pairs}), value)
    return tuple(sorted((int(a), int(b)) for a, b in pairs))


def _as_label(name: str, value: Any) -> Any:
    if not is_integer(value):
        raise ValueError(f"{name} is an integer or None, got {value!r}")
    _check_labels(name, (value,), value)
    return value


def _as_regions(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    regions = [entries_of(one) or (one,) for one in entries_of(value)]
    if not regions or not all(is_integer(n) for one in regions for n in one):
        msg = f"{name} is one entry for each region, a label or several, got {value!r}"
        raise ValueError(msg)
    for one in regions:
        _check_labels("a region", one, value)
    return tuple(tuple(map(int, one)) for one in regions)


OTHERS = ("error", "drop")
_MOST_NAMES = 8  # a message is read by a person


class _ChannelPerClass(ValueOp):
    """Shared behaviour of ops that make a channel, uint8, for each entry of a field."""

    keeps_dtype: ClassVar[bool] = True
    kind: ClassVar[str] = "label"
    argument: ClassVar[str]
    """The field."""

    def channels(self, count: int) -> int:
        if count != 1:
            msg = f"{self.name} is for a label of one channel, not of {count}"
            raise VolumeError(msg, do="Choose one with select_channels(...).")
        return len(getattr(self, self.argument))

    def dtype(self, in_dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(np.uint8)


@dataclass(frozen=True)
class OneHot(_ChannelPerClass):
    """A channel for every class, 1 where it is and 0 elsewhere, uint8.

    Commutes with spatial ops where labels are sampled as they are by default, ``"nearest"``.

    Examples
    --------
    >>> OneHot(3).describe(), OneHot((1, 4)).describe()
    ('one_hot of 0, 1, 2', 'one_hot of 1, 4')
    """

    classes: int | tuple[int, ...]
    """How many, from 0; or which labels, of which 0 may be left out."""
    unknown: Literal["error", "drop"] = "error"
    """Handling of a voxel without any of the labels: an error, or 0 in every channel."""

    name: ClassVar[str] = "one_hot"
    argument: ClassVar[str] = "classes"
    checks: ClassVar[Any] = {"classes": _as_classes, "unknown": partial(as_choice, choices=OTHERS)}

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        self.channels(array.shape[0])
        labels = np.array(entries_of(self.classes)).reshape(-1, 1, 1, 1)
        flags = array == labels
        if self.unknown == "error":
            rest = array[0][~flags.any(axis=0)]
            others = np.unique(rest[rest != 0])
            if others.size:
                other_names = ", ".join(map(str, others[:_MOST_NAMES].tolist()))
                names = ", ".join(map(str, entries_of(self.classes)))
                raise VolumeError(
                    f"one_hot has channels for {names}, and a patch has {other_names}",
                    do="Name all labels, one_hot((0, 2, 5)); bring them to 0, 1, 2 with "
                    'remap_labels; or give unknown="drop".',
                )
        result: NDArray[Any] = flags.view(np.uint8)
        return result

    def describe(self) -> str:
        return f"{self.name} of {', '.join(map(str, entries_of(self.classes)))}"


@dataclass(frozen=True)
class RemapLabels(ValueOp):
    """Give labels other numbers; several may become one.

    Commutes with spatial ops with the default sampling, ``"nearest"``; remaps the fill, too.

    Examples
    --------
    >>> RemapLabels({2: 1, 4: 1}).describe()
    'remap_labels 2 to 1, 4 to 1'
    """

    mapping: Any
    """Old label to new label."""
    unknown: int | None = None
    """New label of all labels that are not in ``mapping``; None keeps them."""

    name: ClassVar[str] = "remap_labels"
    keeps_dtype: ClassVar[bool] = True
    kind: ClassVar[str] = "label"
    checks: ClassVar[Any] = {"mapping": _as_mapping, "unknown": or_none(_as_label)}

    def dtype(self, in_dtype: np.dtype[Any]) -> np.dtype[Any]:
        new = [b for _, b in self.mapping] + ([] if self.unknown is None else [self.unknown])
        common = np.result_type(in_dtype, *(np.min_scalar_type(n) for n in (min(new), max(new))))
        if common.kind != "f":  # by its name: torch has no ``ulonglong``
            return np.dtype(common.str)
        # NumPy's common type of uint64 and a negative number is a float, which is no label.
        result = np.dtype(np.int64) if in_dtype.kind in "iu" else common
        most = 2**63 - 1 if result.kind == "i" else 2 ** (np.finfo(result.name).nmant + 1)
        for old, label in (*self.mapping, ("unknown", self.unknown or 0)):
            if abs(label) > most:
                what = f"remap_labels makes {old} {label}, which {result} does not hold exactly"
                raise VolumeError(what, do=f"Give labels up to {most}.")
        return result

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        result = array.astype(self.dtype(array.dtype))
        if self.unknown is not None:
            result[...] = self.unknown
        for old, new in self.mapping:
            result[array == old] = new
        return result

    def describe(self) -> str:
        pairs = ", ".join(f"{a} to {b}" for a, b in self.mapping)
        return f"{self.name} {pairs}{'' if self.unknown is None else f', others to {self.unknown}'}"


@dataclass(frozen=True)
class Regions(_ChannelPerClass):
    """A channel for every region, 1 where one of its labels is and 0 elsewhere, uint8.

    Regions may overlap, unlike the classes of ``one_hot``: the whole tumour holds its core. Labels
    of no region are 0 everywhere. Commutes with spatial ops as ``remap_labels`` does.

    Examples
    --------
    >>> Regions(((1, 2, 3), (2, 3), 3)).describe()
    'regions 1+2+3, 2+3, 3'
    """

    classes: tuple[int | tuple[int, ...], ...]
    """For each region the labels that it is made of: one, or several."""

    name: ClassVar[str] = "regions"
    argument: ClassVar[str] = "classes"
    checks: ClassVar[Any] = {"classes": _as_regions}

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        self.channels(array.shape[0])
        # One by one: np.isin compares uint64 with other integers in float64.
        flags = [np.any([array[0] == n for n in entries_of(one)], axis=0) for one in self.classes]
        return np.stack(flags).view(np.uint8)

    def describe(self) -> str:
        return f"{self.name} {', '.join('+'.join(map(str, entries_of(r))) for r in self.classes)}"


OPS = (DropChannels, MeanOfChannels, OneHot, Regions, RemapLabels, SelectChannels)
