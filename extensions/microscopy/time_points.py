"""Time points of images: one alone, or all as channels, time slowest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core import Region
from ...core.errors import SampleError
from ...volumes.axis_map import AxisMap
from ...volumes.axis_map_source import AxisMappedBackend
from ...volumes.backend import Backend, Channels, read_counted
from ...volumes.chunks.chunked_array import NeededChunks
from ...volumes.stack_source import Read, ViewedBackend
from ...volumes.voxels import Voxels

TIMES_AS_CHANNELS = ("channels", "all")
"""Values of ``time=`` by which all time points are channels."""


class TimePoint(ViewedBackend):
    """The channels of one time point of an image, whose times and channels are C.

    The backend ``inner`` is that of the image. Its ``channels`` of the time point are in ascending
    order. Keys of the content have the number ``time``.
    """

    counts_below = True

    def __init__(self, inner: Backend, channels: Sequence[int], time: int) -> None:
        shape = len(channels), *inner.header.shape[1:]
        every = inner.header.channel_names
        names = tuple(every[channel] for channel in channels) if every else ()
        times = inner.header.times._replace(number=1, stride=1)
        header = replace(inner.header, shape=shape, channel_names=names, times=times)
        super().__init__(inner, header, "time", time)
        self._runs = _runs(channels)
        self.levels = inner.levels

    def _parts(self, channels: Channels | None) -> Iterator[Channels]:
        """Yield the channels of the image, run by run."""
        first, last = channels or (0, self.shape[0])
        begin = 0
        for start, stop in self._runs:
            low, high = max(first - begin, 0), min(last - begin, stop - start)
            begin += stop - start
            if low < high:
                yield start + low, start + high

    def reads(self, region: Region, channels: Channels | None) -> Iterator[Read]:
        """Yield the reads of the image, one for each run of channels."""
        for part in self._parts(channels):
            yield self._inner, region, part

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return the stored voxels of a region at this time."""
        parts = [read_counted(*part) for part in self.reads(region, channels)]
        if len(parts) == 1:
            return parts[0]
        return replace(parts[0], array=np.concatenate([part.array for part in parts]))

    def needed_chunks(
        self, region: Region, channels: Channels | None = None
    ) -> NeededChunks | None:
        """Return the chunks of the image that a read needs."""
        parts = [self._inner.needed_chunks(region, part) for part in self._parts(channels)]
        if len(parts) == 1 or None in parts:
            return parts[0]
        every = [part for part in parts if part is not None]
        chunks = np.unique(np.concatenate([part.chunks for part in every]), axis=0)
        return NeededChunks(chunks, sum(part.voxels for part in every), every[0].chunk_bytes)


def _runs(numbers: Sequence[int]) -> list[Channels]:
    """Return ascending numbers as half-open intervals.

    Examples
    --------
    >>> _runs([0, 1, 2, 5, 7, 8])
    [(0, 3), (5, 6), (7, 9)]
    """
    runs: list[Channels] = []
    for number in map(int, numbers):
        if runs and runs[-1][1] == number:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return runs


def at_time(backend: Backend, time: Any, name: str) -> Backend:
    """Return one time point of an image, or all of them as channels, time slowest."""
    if time in TIMES_AS_CHANNELS:
        return times_slowest(backend)
    times, channels = backend.header.times, range(backend.shape[0])
    if not backend.header.names_axes:
        msg = f"{name} does not name its axes, so it has no time points"
        raise SampleError(msg, do='Name them by ⟦axes="tczyx"⟧, in the order of the array.')
    if isinstance(time, bool) or not isinstance(time, int) or not 0 <= time < times.number:
        have = f"0 to {times.number - 1}" if times.number > 1 else "only 0"
        do = 'Give a number from 0, or ⟦time="channels"⟧ for all of them as channels.'
        raise SampleError(f"{name} has no time point {time!r}, but {have}", do=do)
    missing = getattr(backend, "missing_planes", None)
    if missing is not None and time in missing.times:
        raise missing.error(name)
    if times.number == 1:
        return backend
    return TimePoint(backend, times.first(channels)[time].tolist(), time)


def times_slowest(backend: Backend) -> Backend:
    """Return an image with all channels of time 0 first, then those of time 1."""
    channels = np.arange(backend.shape[0])
    order = backend.header.times.first(channels).ravel()
    if np.array_equal(order, channels):
        return backend
    return AxisMappedBackend(backend, AxisMap.from_table("C", order))
