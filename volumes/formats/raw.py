"""Uncompressed voxels in a stream of bytes: mapped, read by range, or decoded once.

A format parses its header into a :class:`RawHeader`. :func:`open_raw` then maps the file, requests
ranges of it, or decodes a compressed stream once.
"""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, Affine, Region
from ...core.errors import TruncatedVolume
from ...core.lru_cache import LRUCache, cached_property
from ...storage.decompress import BEST_RATIOS, decompress
from ...storage.direct_reader import DirectReader
from ...storage.disk_cache import cache_budget, cache_directory
from ...storage.file_reader import HINTS, FileReader, IoChoice, choose_io, file_system_at
from ...storage.ranges import (
    REMOTE_RUN,
    CoalescePolicy,
    Span,
    StoredBox,
    coalesce,
    coalesce_policy,
    rows_of_box,
)
from ...storage.read_ahead import Closable, Ticket, joint_ticket
from ...storage.remote import RemoteFile
from ...storage.retry import read_anew
from ...storage.volume_cache import VolumeCache, is_in_memory
from ..backend import Backend, Channels
from ..header import IDENTITY, Access, Header, Triple
from ..scheme import REMOTE_ROWS_GAP, StoreLayout
from ..voxels import Voxels, touch
from .chunked_backend import Layout
from .stored_file import (
    MAPPED_AROUND,
    MAPS,
    FilesBackend,
    MappedFile,
    StoredFile,
    check_size,
    joined_key,
)


@dataclass(frozen=True)
class RawHeader:
    """Fields of a header about the voxels."""

    layout: Layout  # as one array in C order
    dtype: np.dtype[Any]  # as stored, with its byte order
    offset: int  # of the first voxel in the stream, in bytes
    affine: tuple[float, ...] = IDENTITY  # voxel to millimetres, 16 entries row by row
    slope: float = 1.0
    intercept: float = 0.0
    step: int = 0  # bytes from an entry of the first axis to the next; 0 without gaps between them

    @property
    def voxel_bytes(self) -> int:
        """Bytes from the first voxel to the end of the last one."""
        first, *rest = self.layout.sizes
        return (first - 1) * self.strides[0] + math.prod(rest) * self.dtype.itemsize

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Bytes from an entry of each stored axis to the next."""
        sizes, size = self.layout.sizes, self.dtype.itemsize
        first, *rest = (math.prod(sizes[axis:]) * size for axis in range(1, len(sizes) + 1))
        return self.step or first, *rest

    def header(self, access: Access) -> Header:
        """Return the header of the backend."""
        layout, scale = self.layout, (self.slope, self.intercept)
        fields = layout.shape, self.affine, self.dtype, None, access, *scale
        names = layout.channel_names
        more: Any = {"channel_names": names, "times": layout.times}
        return Header(*fields, names_axes=layout.is_named, **more)

    def box(self, index: Region) -> StoredBox:
        """Return the place of a region of the stored array in the file."""
        ends = list(zip(index.start, index.stop, strict=True))
        return StoredBox(ends, self.strides, self.offset)


def fastest_first(sizes: Sequence[int], axes: Triple = (0, 1, 2), colours: int = 1) -> Layout:
    """Return the layout of voxels from lengths of axes, fastest first; ``axes`` are I, J, K.

    Missing spatial axes have length 1. The others become C; adjacent ones become a single axis, so
    that channels can be read alone. Colours are the fastest axis.

    Examples
    --------
    >>> fastest_first((7, 9, 5, 2), colours=3)
    Layout(sizes=(2, 5, 9, 7, 3), c_axes=(0, 4), spatial=(3, 2, 1), is_named=True)
    """
    first = int(colours > 1)
    shape = (*(colours,) * first, *sizes, *(1,) * (3 - len(sizes)))
    groups: list[tuple[int, int | None]] = []  # per stored axis: length, number among I, J, K
    for axis, n in enumerate(shape):
        number = axes.index(axis - first) if axis - first in axes else None
        if number is None and groups and groups[-1][1] is None:
            groups[-1] = (groups[-1][0] * n, None)
        elif number is not None or n > 1:
            groups.append((n, number))
    numbers = [number for _, number in groups[::-1]]
    c_axes = tuple(at for at, number in enumerate(numbers) if number is None)
    i, j, k = map(numbers.index, range(3))
    return Layout(tuple(n for n, _ in groups[::-1]), c_axes, (i, j, k))


def open_raw(
    fields: RawHeader,
    files: Sequence[StoredFile],
    name: str,
    *,
    encoding: str = "raw",
    skip: int = 0,
    trailing: bool = False,
) -> Backend:
    """Return the backend of voxels, given the fields of their header.

    ``files`` begin with that of the header and end with that of the voxels, often the same. The
    stream begins at byte ``skip``, compressed by ``encoding``; the ``offset`` of the voxels counts
    from there. If ``trailing``, other bytes may follow them.
    """
    IO_COUNTERS.count(headers=1)
    end = fields.offset + fields.voxel_bytes
    if encoding != "raw":
        size = max(0, files[-1].size - skip)
        if end > size * BEST_RATIOS[encoding]:
            msg = f"{name} holds {size} compressed bytes, which cannot decode to the {end} "
            raise TruncatedVolume(f"{msg}of its header.")

        def write(raw: BinaryIO) -> None:
            with files[-1].open() as stream:
                stream.seek(skip)
                decompress(stream, raw, encoding, end, name, trailing=trailing)

        return LocalRaw(fields, files, name, write)
    check_size(name, files[-1].size, end)
    if isinstance(files[-1], RemoteFile):
        return RemoteRaw(fields, files, name)
    return LocalRaw(fields, files, name)


class LocalRaw(FilesBackend):
    """A local stream of voxels: a region is a view of its map, or is read on demand.

    A map takes only pages of the kernel's cache, which processes share. Random access inside gzip
    costs a fraction of a full decode each time. So the first read of a compressed stream makes a
    decoded copy in the cache directory: ``write`` writes it to a file.
    """

    _choice: IoChoice | None = None
    _view: NDArray[Any] | None = None
    _map: MappedFile | None = None

    def __init__(
        self,
        fields: RawHeader,
        files: Sequence[StoredFile],
        name: str,
        write: Callable[[BinaryIO], None] | None = None,
    ) -> None:
        self._fields, self._write = fields, write
        self._dtype = np.dtype("u1") if fields.dtype.kind == "b" else fields.dtype
        self._lock = threading.Lock()
        access: Access = "stream"
        if write is None:
            with files[-1].open() as file:
                self._use(file, files[-1].io, name)
            access = "range" if self._view is None else "view"
        super().__init__(files, fields.header(access), name)
        self.remote = False  # the decoded copy is local

    def _use(self, file: BinaryIO, mode: str, name: str) -> None:
        """Use an open file for reads by ``mode``; it may be closed afterwards."""
        buffer: Any = file.getvalue() if isinstance(file, io.BytesIO) else None
        choice = IoChoice("mmap", "it is in memory")
        if buffer is None:
            device = os.fstat(file.fileno()).st_dev
            choice = choose_io(mode, file_system_at(file.name, device))
        if choice.mode == "mmap":
            if buffer is None:
                buffer = self._map = MAPS.add(file)
            fields = self._fields
            form = fields.layout.sizes, self._dtype, buffer, fields.offset, fields.strides
            self._view = np.ndarray(*form)
        else:
            kind = DirectReader if choice.mode == "direct" else FileReader
            self._reader = kind(file, choice, name)
            choice = self._reader.choice
        self._choice = choice

    def layout(self, volumes: int = 1) -> StoreLayout:
        store, choice = super().layout(volumes), self._choice
        if self._write is not None or choice is None:
            return store
        return store.on_network(str(choice)) if choice.network else replace(store, io=str(choice))

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a region: a view of a mapped file."""
        if self._choice is None:
            self._decode()
        layout = self._fields.layout
        index, (first, last) = layout.index(region, channels)
        if self._view is not None:
            array = self._view[*map(slice, index.start, index.stop)]
            if self._map is not None:
                # First byte of the box, its extent, and the bytes that a read maps.
                start, size, resident = self._fields.offset, array.itemsize, array.itemsize
                axes = zip(index.start[::-1], array.shape[::-1], array.strides[::-1], strict=True)
                for first_voxel, count, stride in axes:
                    start += first_voxel * stride
                    size += (count - 1) * stride
                    resident = count * min(stride, resident + MAPPED_AROUND)
                MAPS.touch(self._map, min(size, resident), start, start + size)
        else:
            flat = self._reader.read(self._fields.box(index)).reshape(-1)
            array = flat.view(self._dtype).reshape(index.shape)
        return Voxels(layout.fold(array)[first:last], self.header.slope, self.header.intercept)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        array = self.read(region, channels).array
        return array.nbytes if self._view is None else touch(array)

    @property
    def looks_ahead(self) -> bool:  # type: ignore[override]
        """Whether hints to the system may be worth it; false before the decoded copy exists."""
        choice = self._choice
        return choice is not None and (not HINTS.is_warm or next(HINTS.turns))

    def prefetch(self, region: Region, channels: Channels | None = None) -> Ticket | None:
        """Send hints of a read to the system, once the decoded copy exists."""
        if self._choice is None:
            return None
        index, _ = self._fields.layout.index(region, channels)
        if self._view is None:
            return self._reader.will_need(self._fields.box(index))
        return None if self._map is None else self._map.prefetch(self._fields.box(index))

    def _decode(self) -> None:
        """Make the decoded copy; read a damaged remote file again."""
        with self._lock:
            if self._choice is not None:
                return
            cache = VolumeCache(cache_directory(), cache_budget())
            key = joined_key([file.cache_key for file in self.files])
            size = self._fields.offset + self._fields.voxel_bytes
            with cache.open(key, size, self._write_copy, self.name) as raw:
                # Without a disk for the copy, each open handle holds it in memory.
                self.resident_bytes = size if is_in_memory(raw) else 0
                self._use(raw, self.files[-1].io, self.name)

    def _write_copy(self, raw: BinaryIO) -> None:
        def write() -> None:
            assert self._write is not None
            raw.seek(0)
            self._write(raw)

        if isinstance(self.files[-1], RemoteFile):
            read_anew(write)
        else:
            write()


class RemoteRaw(FilesBackend):
    """A remote file. A region takes a few range requests, never the whole file."""

    def __init__(self, fields: RawHeader, files: Sequence[StoredFile], name: str) -> None:
        assert isinstance(files[-1], RemoteFile)
        self._fields, self._remote = fields, files[-1]
        self._dtype = np.dtype("u1") if fields.dtype.kind == "b" else fields.dtype
        super().__init__(files, fields.header("range"), name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        index, (first, last) = self._fields.layout.index(region, channels)
        rows, spans = self._runs(index)
        flat = np.empty(sum(stop - start for start, stop in rows), np.uint8)
        at, row = 0, 0
        for (start, stop), piece in zip(spans, self._remote.ranges(spans), strict=True):
            source = np.frombuffer(piece, np.uint8)
            while row < len(rows) and rows[row][1] <= stop:
                begin, end = rows[row]
                flat[at : at + end - begin] = source[begin - start : end - start]
                at, row = at + end - begin, row + 1
        array = self._fields.layout.fold(flat.view(self._dtype).reshape(index.shape))
        return Voxels(array[first:last], self.header.slope, self.header.intercept)

    def prefetch(self, region: Region, channels: Channels | None = None) -> Ticket | None:
        return self._remote.prefetch(self._runs(self._fields.layout.index(region, channels)[0])[1])

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        return self.read(region, channels).array.nbytes

    def _runs(self, index: Region) -> tuple[list[Span], list[Span]]:
        """Return the rows of a region of the stored array, and the joined spans of the requests."""
        gap, most = coalesce_policy(CoalescePolicy(REMOTE_ROWS_GAP, REMOTE_RUN))
        rows = rows_of_box(self._fields.box(index), most)
        return rows, coalesce(rows, gap, most)


class StoredAxes(Layout):
    """Layout of an array whose regions have its stored axes."""

    def index(self, region: Region, channels: Channels | None = None) -> tuple[Region, Channels]:
        return region, (0, 1)

    def fold(self, array: NDArray[Any]) -> NDArray[Any]:
        return array[None]


MOST_OPEN = 64
"""Files of one volume that are open at a time."""


class SplitRaw(FilesBackend):
    """Voxels in several files, each with some entries of the leading axes, in order.

    ``lead`` counts these axes. ``counts`` are the entries of each file, ``starts`` the bytes before
    its first voxel; ``fields.step`` is the distance of its entries.
    """

    def __init__(
        self,
        fields: RawHeader,
        files: Sequence[StoredFile],
        name: str,
        *,
        lead: int,
        counts: Sequence[int],
        starts: Sequence[int],
    ) -> None:
        self._fields, self._lead, self._starts, self._counts = fields, lead, starts, counts
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._open = LRUCache[LocalRaw | RemoteRaw](most=MOST_OPEN)
        super().__init__(files, fields.header("range"), name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        layout = self._fields.layout
        index, (first, last) = layout.index(region, channels)
        pieces = [file.read(box).array[0] for file, box in self._parts(index)]
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        array = layout.fold(whole.reshape(index.shape))
        return Voxels(array[first:last], self.header.slope, self.header.intercept)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        return touch(self.read(region, channels).array)

    def prefetch(self, region: Region, channels: Channels | None = None) -> Closable | None:
        index = self._fields.layout.index(region, channels)[0]
        return joint_ticket(file.prefetch(box) for file, box in self._parts(index))

    def _parts(self, index: Region) -> Iterator[tuple[LocalRaw | RemoteRaw, Region]]:
        """Yield the files of a region, in order, and the box in each."""
        lead = self._lead
        ranges = [range(*ends) for ends in zip(index.start[:lead], index.stop[:lead], strict=True)]
        entries = np.ravel_multi_index(np.ix_(*ranges), self._fields.layout.sizes[:lead]).ravel()
        which = self._ends.searchsorted(entries, "right")
        cuts = ((np.diff(entries) != 1) | (np.diff(which) != 0)).nonzero()[0] + 1
        for run in np.split(np.arange(len(entries)), cuts):
            number = int(which[run[0]])
            before = int(self._ends[number]) - self._counts[number]
            start = int(entries[run[0]]) - before, *index.start[lead:]
            stop = int(entries[run[-1]]) + 1 - before, *index.stop[lead:]
            yield self._open.get_or(number, partial(self._open_file, number)), Region(start, stop)

    def _open_file(self, number: int) -> LocalRaw | RemoteRaw:
        """Open one file as an array of its entries."""
        file, rest = self.files[number - len(self._counts)], self._fields.layout.sizes[self._lead :]
        sizes = self._counts[number], *rest
        layout = StoredAxes(sizes, tuple(range(len(sizes))), (None, None, None))
        fields = replace(self._fields, layout=layout, offset=self._starts[number])
        check_size(file.name, file.size, fields.offset + fields.voxel_bytes)
        kind = RemoteRaw if isinstance(file, RemoteFile) else LocalRaw
        return kind(fields, [file], file.name)


# LPS negates the first two axes.
RAS_OF_LPS = (-1.0, -1.0, 1.0)


def world_affine(
    columns: Sequence[Sequence[float] | NDArray[np.float64]],
    origin: Sequence[float],
    signs: Sequence[float] = RAS_OF_LPS,
) -> Affine:
    """Return the 4x4 matrix, RAS+, from steps along up to three voxel axes and the origin.

    Drops world axes after the third (time) and adds missing ones of unit length. The third axis of
    a plane is its upward normal. ``signs`` convert the world axes to R, A, S.

    Examples
    --------
    >>> world_affine([(2, 0), (0, 3)], (10, 20))[:3].tolist()
    [[-2.0, 0.0, 0.0, -10.0], [0.0, -3.0, 0.0, -20.0], [0.0, 0.0, 1.0, 0.0]]
    """
    affine: NDArray[np.float64] = np.eye(4)
    for axis, step in enumerate(columns):
        affine[:3, axis] = (*step, 0.0, 0.0, 0.0)[:3]
    if len(columns) == 2:
        with np.errstate(all="ignore"):  # ``affine_entries`` refuses numbers that are not finite
            normal = np.cross(affine[:3, 0], affine[:3, 1])
            length = np.linalg.norm(normal)
            affine[:3, 2] = normal / (-length if normal[2] < 0 else length or 1.0)
    affine[:3, 3] = (*origin, 0.0, 0.0, 0.0)[:3]
    affine[:3] *= np.array(signs)[:, None]
    return affine + 0.0  # no negative zeros
