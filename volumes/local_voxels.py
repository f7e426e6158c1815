"""Bare voxels of a local file: a view of its map, or read when they are asked for.

Formats come in two kinds. What has a :class:`RawHeader` is a :class:`RawFile`; arrays in C order
with a :class:`Layout` are an :class:`ArrayFile` of a backend.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, BinaryIO

from numpy.typing import NDArray

from ..core import OrientedBox, Region
from ..core.memory import usable_memory
from ..storage.file_reader import HINTS, FileReader, Hint
from ..storage.local_io import IoChoice, choose_io, file_system_of
from ..storage.ranges import Span
from .backend import Backend, Channels
from .fetched import touch
from .header import Header
from .local_file import LocalFile
from .mapped import MAPS, Place
from .raw_header import RawHeader, part_of
from .scheme import StoreLayout
from .voxels import Voxels, plain


def io_of(file: BinaryIO, wanted: str) -> IoChoice:
    """Return how an open file is read, given what the user said."""
    size = os.fstat(file.fileno()).st_size
    return choose_io(wanted, file_system_of(file), size, usable_memory())


class RawFile:
    """The voxels of one open file, whose header was read.

    Parameters
    ----------
    file
        Open for reading; may be closed afterwards.
    fields
        What the header says; ``offset`` counts from the beginning of this file.
    wanted
        How to read it, as the user said.
    name
        What errors call the volume.
    """

    def __init__(self, file: BinaryIO, fields: RawHeader, wanted: str, name: str) -> None:
        self._fields = fields
        self._view: NDArray[Any] | None = None
        self._place: Place | None = None
        if isinstance(file, io.BytesIO):
            self.choice = IoChoice("mmap", "it is in memory")
            self._view = plain(fields.view(file.getvalue()))
            return
        self.choice = io_of(file, wanted)
        if self.choice.mode == "mmap":
            self._view = plain(fields.view(MAPS.add(file)))
            self._place = MAPS.place_of(self._view)
        else:
            self._reader = FileReader(file, self.choice, name)
            self.choice = self._reader.choice

    def read(self, region: Region, channels: Channels | None = None) -> NDArray[Any]:
        """Return a region as (C, i, j, k): a view, or memory of its own."""
        count = self._fields.channels
        if self._view is not None:
            MAPS.trim()
            return part_of(self._view, region, channels, count)
        wanted = channels or (0, count)
        flat = self._reader.read(*self._box(region, wanted)).reshape(-1)
        return plain(self._fields.of_rows(flat, region, wanted))

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Bring in the bytes of a region."""
        found = self.read(region, channels)
        return touch(found) if self._view is not None else found.nbytes

    @property
    def looks_ahead(self) -> bool:
        """Whether it may be worth telling what is going to be read."""
        return self.choice.mode != "direct" and HINTS.worth_asking()

    def prefetch(self, region: Region) -> Hint | None:
        """Tell the system that a region is going to be read."""
        if self._view is None:
            return self._reader.will_need(*self._box(region, (0, self._fields.channels)))
        if self._place is None:
            return None
        others = (slice(None),) * (self._view.ndim - 3)
        return self._place.prefetch(self._view, (*others, *region.slices))

    def _box(
        self, region: Region, channels: Channels
    ) -> tuple[Sequence[int], Sequence[Span], int, int]:
        lengths, box = self._fields.stored_box(region, channels)
        return lengths, box, self._fields.dtype.itemsize, self._fields.offset


class ArrayFile(LocalFile, Backend):
    """An array in C order that lies bare in a local file, read when it is asked for.

    Parameters
    ----------
    file
        Open for reading; may be closed afterwards.
    choice
        ``"pread"`` or ``"direct"``.
    path
        Of the file.
    offset
        Where the array begins in it, in bytes.
    layout
        Which of its axes are C, I, J and K.
    header, name
        Of the volume.
    """

    def __init__(
        self,
        file: BinaryIO,
        choice: IoChoice,
        path: str,
        offset: int,
        layout: Any,
        header: Header,
        name: str,
    ) -> None:
        self.path = path
        self._offset, self._layout = offset, layout
        self._reader = FileReader(file, choice, name)
        super().__init__(header, name)

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return what a scheme needs to know."""
        return placed_layout(super().layout(volumes), self._reader.choice)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read the rows of the region."""
        where, (first, last) = self._box(region, channels or (0, self.shape[0]))
        found = self._reader.read(*where)
        shape = [stop - start for start, stop in where[1]]
        array = found.reshape(-1).view(self.disk_dtype).reshape(shape)
        return Voxels(plain(self._layout.fold(array)[first:last]))

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Read the region: its bytes are its voxels, so there is nothing to decode."""
        return self.read(region, channels).array.nbytes

    @property
    def looks_ahead(self) -> bool:
        """Whether it may be worth telling what is going to be read."""
        return self._reader.choice.mode != "direct" and HINTS.worth_asking()

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Hint | None:
        """Tell the system what is going to be read."""
        where, _ = self._box(region, (0, self.shape[0]))
        return self._reader.will_need(*where)

    def _box(self, region: Region, channels: Channels) -> tuple[Any, Channels]:
        index, part = self._layout.index(region, channels)
        spans = [(s.start, s.stop) for s in index]
        return (self._layout.stored, spans, self.disk_dtype.itemsize, self._offset), part


def placed_layout(layout: StoreLayout, choice: IoChoice) -> StoreLayout:
    """Return a layout that says how the file is read, at the usual speed of its place."""
    return layout.on_network(str(choice)) if choice.network else layout.read_by(str(choice))
