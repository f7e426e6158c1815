"""Parts of OME images as volumes: one label group, or one time point."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core import Region
from ...core.errors import SampleError, VolumeError, VolumeNotFound
from ...storage.location import public_name
from ...volumes.backend import Backend, Channels, read_counted
from ...volumes.chunks.chunked_array import NeededChunks
from ...volumes.formats.stored_file import Format
from ...volumes.registry import BackendRequest, resolve_backend
from ...volumes.stack_source import Read, ViewedBackend
from ...volumes.voxels import Voxels
from ..formats.hdf5 import FORMATS as HDF5
from .ome_metadata import LABELS, OmeNode, join
from .tiff_sequence import SUFFIXES, TIMES_AS_CHANNELS, is_pattern


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


def open_view(
    request: BackendRequest,
    name: str,
    label: str | None = None,
    time: int | str | None = None,
    **options: Any,
) -> Any:
    """Return the backend of a label group or a time point of an image.

    Raises
    ------
    VolumeNotFound
        The image has no such label group; the error lists them.
    SampleError
        The image has no such time point.
    """
    inner = _without_view(request, options)
    if label is not None:
        inner = _at_label(inner, name, label)
    backend = resolve_backend(inner)
    if backend is None:
        raise VolumeError(f"{name} is no image of OME-Zarr or TIFF.", do="Check the path.")
    if time in (None, *TIMES_AS_CHANNELS) or not isinstance(backend, Backend):
        return backend
    return at_time(backend, time, name)


def _without_view(request: BackendRequest, options: Mapping[str, Any]) -> BackendRequest:
    # Not by replace(), which reads the affine as a tensor.
    return BackendRequest(**{**vars(request), "reader_kwargs": options})


def request_of_file(request: BackendRequest) -> BackendRequest:
    """Return the request for the whole image, of which another request is for a part."""
    rest = {name: one for name, one in request.reader_kwargs.items() if name not in _PARTS}
    return _without_view(request, rest)


def _at_label(request: BackendRequest, name: str, label: Any) -> BackendRequest:
    """Return the request for a label group of the image of a request."""
    if not isinstance(label, str):
        msg = f"label= of {name} is {label!r}"
        raise SampleError(msg, do="Give the name of one label group, 'nuclei' for instance.")
    path = f"{LABELS}/{label}"
    if request.zarr_store is not None:
        group = request.zarr_store
        if not hasattr(group, "groups") or path not in group:
            msg = f"{name} has no label group {label!r}"
            raise VolumeNotFound(msg, do="Give the group at labels/NAME, or a path with ⟦label=⟧.")
        return BackendRequest(**{**vars(request), "zarr_store": group[path]})
    place = os.fspath(request.path) if request.path else request.uri or ""
    OmeNode.at(place, request.storage_options).label(label)
    there = join(place, path)
    if request.path is None:
        return BackendRequest(**{**vars(request), "uri": there, "remote_zarr_uri": there})
    return BackendRequest(**{**vars(request), "path": type(request.path)(there)})


def at_time(backend: Backend, time: Any, name: str) -> Backend:
    """Return one time point of an image."""
    times, channels = backend.header.times, range(backend.shape[0])
    if not backend.header.names_axes:
        msg = f"{name} does not name its axes, so it has no time points"
        raise SampleError(msg, do='Name them by ⟦axes="tczyx"⟧, in the order of the array.')
    if isinstance(time, bool) or not isinstance(time, int) or not 0 <= time < times.number:
        have = f"0 to {times.number - 1}" if times.number > 1 else "only 0"
        do = 'Give a number from 0, or ⟦time="channels"⟧ for all of them as channels.'
        raise SampleError(f"{name} has no time point {time!r}, but {have}", do=do)
    if times.number == 1:
        return backend
    return TimePoint(backend, times.first(channels)[time].tolist(), time)


def _is_view(request: BackendRequest) -> bool:
    """Whether a request is for a part of an image: a label group or a time point."""
    if not request.reader_kwargs.keys() & _PARTS:
        return False
    if request.zarr_store is not None:
        return True
    place = os.fspath(request.path) if request.path else request.uri or ""
    if is_pattern(place) or "pattern" in request.reader_kwargs:
        return False
    if request.path is not None and os.path.isdir(place):
        return bool(OmeNode.at(place).version)
    name = public_name(place).lower()
    return name.endswith((*SUFFIXES, *HDF5.suffixes)) or ".zarr" in name


_PARTS = {"label", "time"}
_OPTIONS = ("label", "time", "level", "axes", "series", "dataset")
FORMATS = Format("ome-part", (), open_view, _OPTIONS, matches=_is_view, rank=-2)
