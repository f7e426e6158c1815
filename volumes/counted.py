"""One read of a backend: checked beforehand, and entered in the tally."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core import IO_COUNTERS, OrientedBox, Region
from ..core.errors import BadHeader, CorruptVolume, OutOfVolume, VolumeChanged, VolumeTooLarge
from ..core.memory import usable_memory
from .backend import Backend
from .header import Shape
from .voxels import Voxels, plain


def counted_read(
    backend: Backend, region: Region, channels: tuple[int, int], box: OrientedBox | None = None
) -> Voxels:
    """Return the voxels of a region; of chunked stores only those near the box."""
    _check_memory(backend, region, channels)
    if backend.counts_below:
        below: Any = backend
        parts: Voxels = below.read(region, channels, box)
        return parts
    backend.check_version()
    try:
        voxels = _tallied(backend, region, channels, box)
    except CorruptVolume as error:
        if isinstance(error, VolumeChanged) or backend.is_current:
            raise
        raise VolumeChanged(error.what, do=error.do) from error
    shape = (channels[1] - channels[0], *region.shape)
    # A kernel would take whatever lies behind: own backends are anybody's code.
    if voxels.array.shape != shape:
        raise BadHeader(
            f"the backend {type(backend).__name__} of {backend.name} answered shape "
            f"{voxels.array.shape} for {shape[0]} channels of {region}.",
            do="read() returns Voxels of (C, i, j, k), and keeps every axis.",
        )
    if backend.header.dtype.kind == "b":
        return replace(voxels, array=plain(voxels.array), boolean=True)
    return voxels


def _tallied(
    backend: Backend, region: Region, channels: tuple[int, int], box: OrientedBox | None
) -> Voxels:
    if box is not None and backend.culls:
        culling: Any = backend  # which takes the box, as it says
        IO_COUNTERS.count(reads=1, bytes_read=culling.touched_bytes(region, channels, box))
        voxels: Voxels = culling.read(region, channels, box)
        return voxels
    IO_COUNTERS.count(reads=1, bytes_read=backend.touched_bytes(region, channels))
    return backend.read(region, channels)


def check_inside(region: Region, shape: Shape, name: str) -> None:
    """Raise ``OutOfVolume`` where a region reaches outside."""
    whole = Region.of_shape(shape[1:])
    if len(region.start) != len(whole.start) or not whole.contains(region):
        raise OutOfVolume(
            f"{region} does not lie inside {name}, of shape {shape}.",
            do="Intersect it with the volume first.",
        )


def _check_memory(backend: Backend, region: Region, channels: tuple[int, int]) -> None:
    """Refuse what cannot fit: a wrong header may speak of any size, and a sparse one be right."""
    size = region.size * (channels[1] - channels[0]) * backend.disk_dtype.itemsize
    # A view costs nothing before it is touched.
    if backend.access != "view" and 0 < usable_memory() < size:
        raise VolumeTooLarge(
            f"{region} of {backend.name}, of shape {backend.shape}, takes {size} bytes, and this "
            f"process may use {usable_memory()}.",
            do="Read smaller regions, or check the header.",
        )
