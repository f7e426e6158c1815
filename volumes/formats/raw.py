"""Voxels that lie uncompressed in a stream of bytes: mapped, read by range, or decoded once.

A format parses its header into a :class:`RawHeader`. Mapping a file, asking a server for ranges and
decoding a compressed stream once are then the same for all of them: :func:`open_raw`.
"""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, Affine, OrientedBox, Region
from ...core.errors import TruncatedVolume
from ...core.memory import usable_memory
from ...storage.decoded_cache import DecodedCache, is_in_memory
from ...storage.decompress import BEST_RATIOS, decompress
from ...storage.disk_cache import cache_budget, cache_directory
from ...storage.file_reader import (
    HINTS,
    FileReader,
    Hint,
    IoChoice,
    choose_io,
    file_system_of,
    rows_of_box,
)
from ...storage.ranges import REMOTE_RUN, CoalescePolicy, Span, coalesce, coalesce_policy
from ...storage.read_ahead import Ticket
from ...storage.remote import Piece, RemoteFile
from ...storage.retry import read_anew
from ..backend import Backend, Channels
from ..header import IDENTITY, Access, Header, Triple
from ..scheme import REMOTE_ROWS_GAP, StoreLayout
from ..voxels import Voxels, plain, touch
from .chunked_backend import Layout
from .stored_file import MAPS, FilesBackend, Place, StoredFile, joined_key


@dataclass(frozen=True)
class RawHeader:
    """What a header says about the voxels."""

    shape: tuple[int, ...]
    """As stored, the fastest axis first."""
    dtype: np.dtype[Any]
    """As stored, with its byte order."""
    offset: int
    """Where the voxels begin in the stream, in bytes."""
    affine: tuple[float, ...]
    """Voxel to world in millimetres, 16 entries row by row."""
    slope: float = 1.0
    intercept: float = 0.0
    axes: Triple = (0, 1, 2)
    """Which stored axes are I, J, K; the others are folded into C."""

    @classmethod
    def of_array(
        cls,
        layout: Layout,
        dtype: np.dtype[Any],
        offset: int,
        affine: tuple[float, ...] = IDENTITY,
        *,
        fortran: bool = False,
    ) -> RawHeader:
        """Return the header of an array in C order, or with its first axis the fastest.

        Examples
        --------
        >>> RawHeader.of_array(Layout((7, 9), (), (0, 1, None)), np.dtype("i2"), 0).axes
        (1, 0, 2)
        """
        last = len(layout.stored) - 1
        shape = layout.stored if fortran else layout.stored[::-1]
        axes = []
        for axis in layout.spatial:
            if axis is None:
                shape += (1,)
                axes.append(len(shape) - 1)
            else:
                axes.append(axis if fortran else last - axis)
        return cls(shape, dtype, offset, affine, axes=(axes[0], axes[1], axes[2]))

    @classmethod
    def of_sizes(
        cls,
        sizes: Sequence[int],
        dtype: np.dtype[Any],
        offset: int,
        affine: tuple[float, ...],
        *,
        scale: tuple[float, float] = (1.0, 0.0),
        colours: int = 1,
    ) -> RawHeader:
        """Return the header of I, J, K, which may be fewer, and further axes behind them.

        Colours run faster than these.
        """
        first = int(colours > 1)
        shape = (*(colours,) * first, *sizes, *(1,) * (3 - len(sizes)))
        return cls(shape, dtype, offset, affine, *scale, (first, first + 1, first + 2))

    @property
    def channels(self) -> int:
        """Colour, time and further axes, folded; the first stored of them runs fastest."""
        return math.prod(n for axis, n in enumerate(self.shape) if axis not in self.axes)

    @property
    def voxel_bytes(self) -> int:
        """Bytes of all voxels."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """One past the last byte of the voxels in the stream."""
        return self.offset + self.voxel_bytes

    def header(self, access: Access) -> Header:
        """Return what a backend answers."""
        i, j, k = (self.shape[axis] for axis in self.axes)
        scale = self.slope, self.intercept
        return Header((self.channels, i, j, k), self.affine, self.dtype, None, access, *scale)

    def view(self, buffer: Any) -> NDArray[Any]:
        """Return the voxels of a mapped file, without copying: channel axes first, then I, J, K.

        There is one channel axis, unless channels are stored on both sides of I, J, K.
        """
        flat: NDArray[Any] = np.frombuffer(buffer, self.dtype, math.prod(self.shape), self.offset)
        return self._turned(flat, [n for n, _ in self._merged()])

    def row_spans(self, region: Region, channels: Channels, most: int) -> list[Span]:
        """Return the runs of bytes that hold a region, in the order of the stream.

        Along the fastest axis; where that is whole, along the next too, up to ``most`` bytes.
        """
        lengths, box = self.stored_box(region, channels)
        return rows_of_box(lengths, box, self.dtype.itemsize, self.offset, most)

    def stored_box(self, region: Region, channels: Channels) -> tuple[list[int], list[Span]]:
        """Return lengths of the stored axes, and what a region takes of them, slowest first."""
        lengths = [n for n, _ in self._merged()]
        return lengths[::-1], self._ranges(region, channels)[::-1]

    def of_rows(self, flat: NDArray[np.uint8], region: Region, channels: Channels) -> NDArray[Any]:
        """Return the bytes of a region, in the order of the stream, as (C, i, j, k)."""
        sizes = [last - first for first, last in self._ranges(region, channels)]
        return fold(self._turned(flat.view(self.dtype), sizes), channels, self.channels)

    def _merged(self) -> list[tuple[int, int | None]]:
        """Return length, and number among I, J, K, per stored axis; neighbouring channels as one.

        The number of channels is None.
        """
        merged: list[tuple[int, int | None]] = []
        for axis, n in enumerate(self.shape):
            if axis in self.axes:
                merged.append((n, self.axes.index(axis)))
            elif n == 1:
                continue
            elif merged and merged[-1][1] is None:
                merged[-1] = (merged[-1][0] * n, None)
            else:
                merged.append((n, None))
        return merged

    def _ranges(self, region: Region, channels: Channels) -> list[Span]:
        """Return what to read of each merged axis: all channels where they lie on two sides."""
        spatial, merged = list(region), self._merged()
        alone = sum(number is None for _, number in merged) == 1
        return [
            spatial[number] if number is not None else channels if alone else (0, n)
            for n, number in merged
        ]

    def _turned(self, flat: NDArray[Any], sizes: list[int]) -> NDArray[Any]:
        """Return flat voxels of merged axes as a view, channel axes first, slowest first."""
        numbers = [number for _, number in self._merged()]
        others = [at for at, number in enumerate(numbers) if number is None]
        array = flat.reshape(sizes[::-1])  # C order: the slowest axis first
        order = (*others[::-1], *map(numbers.index, range(3)))
        turned = array.transpose([len(sizes) - 1 - at for at in order])
        return turned if others else turned[None]


def part_of(
    view: NDArray[Any], region: Region, channels: Channels | None, count: int
) -> NDArray[Any]:
    """Return a region of (c..., I, J, K), which has ``count`` channels, as (C, i, j, k)."""
    index: Any = (..., *region.slices)
    return fold(view[index], channels or (0, count), count)


def fold(array: NDArray[Any], channels: Channels, count: int) -> NDArray[Any]:
    """Return (c..., i, j, k) as (C, i, j, k), narrowed to ``channels`` if it holds all ``count``.

    This copies only where channels are stored on both sides of the spatial axes.
    """
    if array.ndim > 4:
        array = array.reshape((count, *array.shape[-3:]))
    return array[slice(*channels)] if array.shape[0] == count else array


def open_raw(
    fields: RawHeader,
    files: Sequence[StoredFile],
    name: str,
    *,
    encoding: str = "raw",
    skip: int = 0,
    trailing: bool = False,
) -> Backend:
    """Return the backend of voxels whose header was read.

    The header's file comes first, that of the voxels last; often they are one. The stream begins
    ``skip`` bytes into that, compressed as ``encoding`` says, and the ``offset`` of the voxels
    counts from there; where ``trailing``, something else may follow them.
    """
    IO_COUNTERS.count(headers=1)
    if encoding != "raw":
        size = max(0, files[-1].size - skip)
        if fields.end > size * BEST_RATIOS[encoding]:
            raise TruncatedVolume(
                f"{name} holds {size} compressed bytes, which cannot decode to the {fields.end} "
                "that its header speaks of.",
                do="Copy or download the file again.",
            )

        def write(raw: BinaryIO) -> None:
            with files[-1].open() as compressed:
                compressed.seek(skip)
                decompress(compressed, raw, encoding, fields.end, name, trailing=trailing)

        return LocalRaw(fields, files, name, write)
    if files[-1].size < fields.end:
        raise TruncatedVolume(
            f"{name} holds {files[-1].size} bytes, and its header speaks of {fields.end} "
            f"({'x'.join(map(str, fields.shape))} {fields.dtype.name} from byte {fields.offset}).",
            do="Copy or download the file again.",
        )
    if isinstance(files[-1], RemoteFile):
        return RemoteRaw(fields, files, name)
    return LocalRaw(fields, files, name)


class LocalRaw(FilesBackend):
    """A stream of voxels on this machine: a region is a view of its map, or read when asked for.

    Mapped, the kernel's page cache is the only memory it takes, and processes share it. Random
    access inside gzip costs a fraction of decoding everything, again and again. So of a stream
    that has to be decoded the first read of voxels makes a copy in the cache directory: ``write``
    gets a file, and writes the decoded stream to it.
    """

    _choice: IoChoice | None = None
    _view: NDArray[Any] | None = None
    _place: Place | None = None

    def __init__(
        self,
        fields: RawHeader,
        files: Sequence[StoredFile],
        name: str,
        write: Callable[[BinaryIO], None] | None = None,
    ) -> None:
        self._fields, self._write = fields, write
        self._lock = threading.Lock()
        access: Access = "stream"
        if write is None:
            with files[-1].open() as file:
                self._use(file, files[-1].io, name)
            access = "range" if self._view is None else "view"
        super().__init__(files, fields.header(access), name)
        # Decoded, it takes a descriptor, wherever the file lies.
        self.remote = False

    def _use(self, file: BinaryIO, wanted: str, name: str) -> None:
        """Read voxels from an open file, which may be closed afterwards, as was wanted."""
        if isinstance(file, io.BytesIO):
            self._view = plain(self._fields.view(file.getvalue()))
            self._choice = IoChoice("mmap", "it is in memory")
            return
        size = os.fstat(file.fileno()).st_size
        choice = choose_io(wanted, file_system_of(file), size, usable_memory())
        if choice.mode == "mmap":
            self._view = plain(self._fields.view(MAPS.add(file)))
            self._place = MAPS.place_of(self._view)
        else:
            self._reader = FileReader(file, choice, name)
            choice = self._reader.choice
        self._choice = choice

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return what a scheme needs to know: how the file is read, at the usual speed there."""
        found, choice = super().layout(volumes), self._choice
        if self._write is not None or choice is None:
            return found
        return found.on_network(str(choice)) if choice.network else found.read_by(str(choice))

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a region: a view where the file is mapped."""
        if self._choice is None:
            self._decode()
        count = self._fields.channels
        if self._view is not None:
            MAPS.trim()
            array = part_of(self._view, region, channels, count)
        else:
            wanted = channels or (0, count)
            flat = self._reader.read(*self._box(region, wanted)).reshape(-1)
            array = plain(self._fields.of_rows(flat, region, wanted))
        return Voxels(array, self.header.slope, self.header.intercept)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Bring in the bytes of the file on which the region lies."""
        found = self.read(region, channels).array
        return found.nbytes if self._view is None else touch(found)

    @property
    def looks_ahead(self) -> bool:
        """Whether it may be worth telling what is going to be read; not before it is decoded."""
        choice = self._choice
        return choice is not None and choice.mode != "direct" and HINTS.worth_asking()

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Hint | None:
        """Tell the system what is going to be read; not of a copy that is not made yet."""
        if self._choice is None:
            return None
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

    def _decode(self) -> None:
        """Make the decoded copy; a file behind a URL is read again where it makes no sense."""
        with self._lock:
            if self._choice is not None:
                return
            cache = DecodedCache(cache_directory(), cache_budget())
            key = joined_key([file.cache_key for file in self.files])
            # How it is read depends on where the cache directory is.
            with cache.open(key, self._fields.end, self._write_copy, self.name) as raw:
                # Without a disk that takes it, every handle that is open costs as much.
                self.resident_bytes = self._fields.end if is_in_memory(raw) else 0
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
    """A file behind a URL. A region is a few range requests, never the whole file."""

    def __init__(self, fields: RawHeader, files: Sequence[StoredFile], name: str) -> None:
        assert isinstance(files[-1], RemoteFile)
        self._fields, self._remote = fields, files[-1]
        super().__init__(files, fields.header("range"), name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Fetch the runs of the region, neighbours in one request."""
        channels = channels or (0, self.shape[0])
        rows, spans = self._runs(region, channels)
        flat = rows_of(rows, spans, self._remote.ranges(spans), self.name)
        view = plain(self._fields.of_rows(flat, region, channels))
        return Voxels(view, self.header.slope, self.header.intercept)

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Ticket | None:
        """Begin to fetch the runs of the region."""
        return self._remote.prefetch(self._runs(region, (0, self.shape[0]))[1])

    def _runs(self, region: Region, channels: Channels) -> tuple[list[Span], list[Span]]:
        """Return the rows of a region, and the spans that hold them."""
        gap, most = coalesce_policy(CoalescePolicy(REMOTE_ROWS_GAP, REMOTE_RUN))
        rows = self._fields.row_spans(region, channels, most)
        return rows, coalesce(rows, gap, most)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Fetch the region: its bytes are its voxels, so there is nothing to decode."""
        return self.read(region, channels).array.nbytes


def rows_of(
    rows: list[Span], spans: list[Span], pieces: list[Piece], name: str
) -> NDArray[np.uint8]:
    """Return the bytes of all rows, one after another, taken from the spans that hold them."""
    flat = np.empty(sum(stop - start for start, stop in rows), np.uint8)
    at, row = 0, 0
    for (first, last), piece in zip(spans, pieces, strict=True):
        if len(piece) != last - first:
            raise TruncatedVolume(
                f"{name} sent {len(piece)} of the {last - first} bytes from {first} on.",
                do="Read again, or check the store.",
            )
        source = np.frombuffer(piece, np.uint8)
        while row < len(rows) and rows[row][1] <= last:
            start, stop = rows[row]
            flat[at : at + stop - start] = source[start - first : stop - first]
            at, row = at + stop - start, row + 1
    return flat


# Left and posterior are counted the other way round.
RAS_OF_LPS = (-1.0, -1.0, 1.0)


def world_affine(
    columns: Sequence[Sequence[float] | NDArray[np.float64]],
    origin: Sequence[float],
    signs: Sequence[float] = RAS_OF_LPS,
) -> Affine:
    """Return the 4x4 matrix, RAS+, of steps along up to three voxel axes, and the first's place.

    World axes beyond the third (time) are dropped; missing ones are filled in, one unit long.
    ``signs`` turn each world axis into R, A, S.

    Examples
    --------
    >>> world_affine([(2, 0), (0, 3)], (10, 20))[:3].tolist()
    [[-2.0, 0.0, 0.0, -10.0], [0.0, -3.0, 0.0, -20.0], [0.0, 0.0, 1.0, 0.0]]
    """
    affine: NDArray[np.float64] = np.eye(4)
    for axis, step in enumerate(columns):
        affine[:3, axis] = (*step, 0.0, 0.0, 0.0)[:3]
    affine[:3, 3] = (*origin, 0.0, 0.0, 0.0)[:3]
    affine[:3] *= np.array(signs)[:, None]
    return affine + 0.0  # no negative zeros
