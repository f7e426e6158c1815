"""Changes of values in place: one call of the native library per channel of a patch.

Without the library, NumPy takes the same steps: to the same bits, many times slower.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.native_library import native_level, native_library

_JOB = struct.Struct("=3q3q3q")
_STEP = struct.Struct("=qQ4d3q3q3q")
_OK, _NO_MEMORY = 0, 2  # VoxpipeStatus of native/interface.h
SCALE, BEND, GAUSSIAN, RICIAN, FILTER, COARSEN = range(6)


class ChannelStatistics(NamedTuple):
    """Mean, deviation (of a sample) and range of a channel; NaN where a value is not finite."""

    mean: float
    std: float
    low: float
    high: float


class ArrayChange(Protocol):
    """A change of an array's values, in native code, or in NumPy to the same bits."""

    @property
    def name(self) -> str:
        """The op that does it."""

    def native_step(self) -> bytes:
        """Return the packed step for the native code."""

    def in_numpy(self, channel: NDArray[np.float32], number: int) -> None:
        """Change a channel (I, J, K) in place; ``number`` is its own."""


class ByStatistics(NamedTuple):
    """A change of a channel by its statistics before."""

    name: str
    """The op that does it."""
    changes: Callable[[ChannelStatistics], Sequence[Any]]
    """Returns the changes, in order."""


Change = ArrayChange | ByStatistics


class NoRange(ValueError):
    """Raised for a mean or range of values that are not all finite."""

    def __init__(self, change: Change, number: int) -> None:
        msg = f"a patch with NaN or infinite values has no mean or range for {change.name}()"
        super().__init__(msg)
        self.number = number


def change_values(array: NDArray[np.float32], changes: Sequence[Change]) -> None:
    """Change ``array``, (C, I, J, K), in place, in as few passes as possible.

    ``NoRange`` has the number of the change that needs a missing mean or range.
    """
    if not array.size:
        return
    values = np.require(array, requirements=["C", "ALIGNED"])  # itself, if it is that
    try:
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for number, channel in enumerate(values):
                _change_channel(channel, number, changes)
    finally:
        if values is not array:
            array[...] = values


def _change_channel(channel: NDArray[np.float32], number: int, changes: Sequence[Change]) -> None:
    waiting: list[ArrayChange] = []
    # A stack, next change last: recursion would keep the channel until garbage collection.
    rest = [*enumerate(changes)][::-1]
    while rest:
        place, change = rest.pop()
        if not isinstance(change, ByStatistics):
            waiting.append(change)
            continue
        statistics = _do(channel, number, waiting, counts=True)
        waiting.clear()
        if not math.isfinite(statistics.mean):
            raise NoRange(change, place)
        rest += [(place, following) for following in change.changes(statistics)][::-1]
    if waiting:
        _do(channel, number, waiting)


def _do(
    channel: NDArray[np.float32], number: int, changes: Sequence[ArrayChange], counts: bool = False
) -> ChannelStatistics:
    """Apply changes that need no statistics; return the statistics afterwards if it ``counts``."""
    steps, numbers = [change.native_step() for change in changes], np.zeros(4)
    if not change_natively(channel, number, steps, numbers if counts else None):
        for change in changes:
            change.in_numpy(channel, number)
        if counts:
            return _statistics_of(channel)
    return ChannelStatistics(*numbers.tolist())


# The library sums in the same order, in sixteen lanes along the last axis: the same bits.
_LANES = 16


def _statistics_of(channel: NDArray[np.float32]) -> ChannelStatistics:
    first = float(channel[0, 0, 0])  # reference for all sums, so that squares keep their digits
    length, count = channel.shape[-1], channel.size
    lanes = np.zeros((*channel.shape[:-1], -(-length // _LANES) * _LANES))
    np.subtract(channel, first, out=lanes[..., :length], dtype=np.float64)
    lanes = lanes.reshape(-1, _LANES)
    total, squares = float(_sum(_sum(lanes))), float(_sum(_sum(lanes * lanes)))
    # Sample deviation (n - 1), as in nnU-Net.
    variance = max((squares - total * total / count) / max(count - 1, 1), 0.0)
    std = math.sqrt(variance) if math.isfinite(variance) else math.nan
    return ChannelStatistics(first + total / count, std, float(channel.min()), float(channel.max()))


def _sum(numbers: NDArray[np.float64]) -> Any:
    """Return the sum along the first axis, one after another: ``numpy.sum`` adds in pairs."""
    return np.add.accumulate(numbers, axis=0)[-1]


def pack_step(
    kind: int,
    numbers: tuple[float, ...] = (),
    key: int = 0,
    corner: tuple[int, int, int] = (0, 0, 0),
    weights: tuple[NDArray[np.float32], ...] = (),
) -> bytes:
    """Return ``VoxpipeStep`` of native/interface.h; it holds addresses of the weights."""
    places = [array.ctypes.data for array in weights] or (0, 0, 0)
    radii = [array.size - 1 for array in weights] or (0, 0, 0)
    four = (*numbers, 0.0, 0.0, 0.0, 0.0)[:4]
    return _STEP.pack(kind, key, *four, *corner, *places, *radii)


def change_natively(
    channel: NDArray[Any], number: int, steps: Sequence[bytes], statistics: Any = None
) -> bool:
    """Apply steps to a channel, (I, J, K) in C order, in place; False if not possible.

    ``number`` is the channel's, for noise; ``statistics`` receives four float64 afterwards.
    """
    path, library = native_level(), _library()
    if path is None or library is None or channel.dtype != np.float32:
        return False
    payload = np.frombuffer(b"".join(steps) or b"\0", np.uint8)
    places = channel.ctypes.data, number, *channel.shape, payload.ctypes.data
    room = 0 if statistics is None else statistics.ctypes.data
    status = library.voxpipe_values(_JOB.pack(path, *places, len(steps), room))
    if status == _NO_MEMORY:  # some passes may be done: do not repeat them in NumPy
        raise MemoryError("there is no memory for a plane of values between two passes")
    return bool(status == _OK)


@cache
def _library() -> Any:
    """Return the loaded library, or None: the resampler says so, once, where it is missing."""
    return native_library(["voxpipe_values"])[0]
