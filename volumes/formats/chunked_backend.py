"""A backend whose voxels lie in chunks: turned boxes are culled, decoded chunks are kept."""

from __future__ import annotations

from typing import Any

from ...core import OrientedBox, Region
from ...storage.read_ahead import Closes
from ..backend import Backend, Channels
from ..chunks.chunked_array import ChunkedArray, Needed
from ..header import Header
from ..voxels import Voxels, plain
from .zarr_layout import Layout


class ChunkedBackend(Backend):
    """One array in chunks, as (C, I, J, K).

    Parameters
    ----------
    array
        Reads regions in stored axes.
    layout
        Which stored axes are which.
    header, name
        As for any backend.
    """

    keeps_chunks = True

    def __init__(self, array: ChunkedArray, layout: Layout, header: Header, name: str) -> None:
        self._array, self._layout = array, layout
        self.culls = None not in layout.spatial
        super().__init__(header, name)

    def read(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> Voxels:
        """Read the chunks that the region touches, of these only those that the box touches."""
        index, (first, last) = self._index(region, channels)
        part = self._layout.fold(self._array.read(index, *self._culling(box)))
        return Voxels(plain(part[first:last]), self.header.slope, self.header.intercept)

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Closes | None:
        """Begin to fetch the chunks that the region and the box touch."""
        return self._array.prefetch(self._index(region, None)[0], *self._culling(box))

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
        return self._array.fetch(self._index(region, channels)[0], *self._culling(box))

    def _index(self, region: Region, channels: Channels | None) -> tuple[Region, Channels]:
        """Return a region of the stored array, and the channels among those that it gives."""
        index, part = self._layout.index(region, channels or (0, self.shape[0]))
        return Region(tuple(s.start for s in index), tuple(s.stop for s in index)), part

    def _culling(self, box: OrientedBox | None) -> tuple[Any, ...]:
        axes = self._layout.spatial
        return () if box is None or None in axes else (box, axes)
