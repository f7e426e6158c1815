"""Backends whose voxels lie in chunks, and how stored axes become (C, I, J, K)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...core import OrientedBox, Region
from ...core.errors import BadHeader
from ...core.lru_cache import cached_property
from ...storage.read_ahead import Closes
from ...storage.remote import RemoteFile
from ..backend import Backend, Channels
from ..chunks.chunked_array import Needed
from ..header import Header, Shape, Triple
from ..voxels import Voxels, plain

SPATIAL = ("x", "y", "z")


@dataclass(frozen=True)
class Layout:
    """Which stored axes are folded into C, in stored order, and which are I, J, K."""

    stored: tuple[int, ...]
    """Shape of the stored array."""
    folded: tuple[int, ...]
    """Stored axes that become C; the last of them runs fastest."""
    spatial: tuple[int | None, int | None, int | None]
    """Stored axis of I, J and K; None for one that is not stored and has length 1."""

    @property
    def shape(self) -> Shape:
        """(C, I, J, K)."""
        i, j, k = (1 if axis is None else self.stored[axis] for axis in self.spatial)
        return math.prod(self.stored[axis] for axis in self.folded), i, j, k

    def spatial_part(self, stored: Sequence[int]) -> Triple:
        """Return the entries of I, J, K of something given per stored axis, 1 where not stored."""
        i, j, k = (1 if axis is None else int(stored[axis]) for axis in self.spatial)
        return i, j, k

    def index(self, region: Region, channels: Channels) -> tuple[tuple[slice, ...], Channels]:
        """Return the index of the stored array, and the channels among those that it gives.

        Where several axes are folded, the slowest is narrowed and the others are
        read whole; the channels asked for are then a part of what is read.
        """
        index = [slice(0, length) for length in self.stored]
        for axis, (start, stop) in zip(self.spatial, region, strict=True):
            if axis is not None:
                index[axis] = slice(start, stop)
        if not self.folded:
            return tuple(index), (0, 1)
        inner = math.prod(self.stored[axis] for axis in self.folded[1:])
        first = channels[0] // inner
        index[self.folded[0]] = slice(first, -(-channels[1] // inner))
        return tuple(index), (channels[0] - first * inner, channels[1] - first * inner)

    def fold(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a stored array, or a part of it, as (C, I, J, K): a view."""
        kept = [axis for axis in self.spatial if axis is not None]
        turned = array.transpose((*self.folded, *kept))
        lengths = [1 if axis is None else array.shape[axis] for axis in self.spatial]
        return turned.reshape((math.prod(array.shape[axis] for axis in self.folded), *lengths))


def plain_layout(stored: tuple[int, ...], name: str) -> Layout:
    """Return the layout of an array without metadata: (I, J), (I, J, K) or (C, I, J, K).

    Examples
    --------
    >>> plain_layout((3, 8, 9, 10), "a.zarr").shape, plain_layout((8, 9), "b.zarr").shape
    ((3, 8, 9, 10), (1, 8, 9, 1))
    """
    if len(stored) == 2:
        return Layout(stored, (), (0, 1, None))
    if len(stored) == 3:
        return Layout(stored, (), (0, 1, 2))
    if len(stored) == 4:
        return Layout(stored, (0,), (1, 2, 3))
    raise BadHeader(
        f"the array of {name} has {len(stored)} axes and nothing says what they are.",
        do="Store two to four axes, (I, J, K) or (C, I, J, K), or write OME-Zarr metadata.",
    )


def named_layout(stored: tuple[int, ...], axes: Sequence[str], name: str) -> Layout:
    """Return the layout of an array whose axes have names.

    Examples
    --------
    >>> named_layout((2, 3, 10, 9, 8), "tczyx", "a.ome.zarr").shape
    (6, 8, 9, 10)
    """
    if len(stored) != len(axes):
        raise BadHeader(
            f"the array of {name} has {len(stored)} axes, and its metadata name {len(axes)}: "
            f"{', '.join(axes)}.",
            do="Write the metadata again.",
        )
    place = {axis: n for n, axis in enumerate(axes)}
    x, y, z = (place.get(axis) for axis in SPATIAL)
    folded = tuple(n for n, axis in enumerate(axes) if axis not in SPATIAL)
    return Layout(stored, folded, (x, y, z))


class ChunkedBackend(Backend):
    """One array in chunks, as (C, I, J, K).

    Parameters
    ----------
    array
        Reads regions in stored axes: a :class:`ChunkedArray`, or what answers as one.
    layout
        Which stored axes are which.
    header, name
        As for any backend.
    """

    keeps_chunks = True

    def __init__(self, array: Any, layout: Layout, header: Header, name: str) -> None:
        self._array: Any = array
        self._layout = layout
        self.culls = None not in layout.spatial
        super().__init__(header, name)

    def read(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> Voxels:
        """Read the chunks that the region touches, of these only those that the box touches."""
        index, (first, last) = self._index(region, channels)
        part = self._layout.fold(self._decoded(index, box))
        return Voxels(plain(part[first:last]), self.header.slope, self.header.intercept)

    def _decoded(self, index: Region, box: OrientedBox | None) -> NDArray[Any]:
        found: NDArray[Any] = self._array.read(index, *self._culling(box))
        return found

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Closes | None:
        """Begin to fetch the chunks that the region and the box touch."""
        begun: Closes | None = self._array.prefetch(
            self._index(region, None)[0], *self._culling(box)
        )
        return begun

    def touched_bytes(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> int:
        """Return the bytes of the chunks that a read touches, cut at the array's edge."""
        return self.needed(region, channels, box).voxels * self.disk_dtype.itemsize

    def needed(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> Needed:
        """Return the chunks that a read fetches and decodes."""
        array = self._array
        chunks = array.needed(self._index(region, channels)[0], *self._culling(box))
        return Needed(chunks, array.voxels(chunks), array.chunk_bytes)

    def fetch(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> int | None:
        """Fetch the stored chunks that a read needs, without decoding them."""
        fetched: int | None = self._array.fetch(
            self._index(region, channels)[0], *self._culling(box)
        )
        return fetched

    def _index(self, region: Region, channels: Channels | None) -> tuple[Region, Channels]:
        """Return a region of the stored array, and the channels among those that it gives."""
        index, part = self._layout.index(region, channels or (0, self.shape[0]))
        return Region(tuple(s.start for s in index), tuple(s.stop for s in index)), part

    def _culling(self, box: OrientedBox | None) -> tuple[Any, ...]:
        axes = self._layout.spatial
        return () if box is None or None in axes else (box, axes)


class OneRemoteFile(Backend):
    """A backend of one remote file, mixed in with how its voxels are read."""

    remote = True
    _file: RemoteFile

    @property
    def content_key(self) -> str:
        """A name for this file in this version, where the store tells versions apart."""
        return self._file.content_key

    @cached_property
    def version(self) -> Hashable:
        """Return what the store says of this version."""
        return self._file.content_key

    @property
    def is_current(self) -> bool:
        """Whether no read has found another version."""
        return self._file.is_current


class RemoteChunks(OneRemoteFile, ChunkedBackend):
    """One whose chunks are fetched by those who know of objects only: errors name the URL."""

    def _decoded(self, index: Region, box: OrientedBox | None) -> NDArray[Any]:
        with self._file.errors():
            return super()._decoded(index, box)

    def fetch(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> int | None:
        """Fetch the stored chunks, without decoding them."""
        with self._file.errors():
            return super().fetch(region, channels, box)
