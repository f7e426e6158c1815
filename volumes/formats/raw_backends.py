"""Backends of voxels that lie uncompressed in a stream: local, by range, or decoded once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core import TALLY, OrientedBox, Region
from ...core.errors import TruncatedVolume
from ...storage.decoded_cache import DecodedCache, is_in_memory
from ...storage.decompress import BEST_RATIOS, decompress
from ...storage.disk_cache import cache_budget, cache_directory
from ...storage.file_reader import Hint
from ...storage.ranges import REMOTE_RUN, Joining, Span, coalesce, joining
from ...storage.read_ahead import Ticket
from ...storage.remote import Piece, RemoteFile
from ...storage.retry import read_anew
from ..backend import Backend, Channels
from ..fetched import touch
from ..local_voxels import RawFile, placed_layout
from ..raw_header import RawHeader, check_length
from ..scheme import REMOTE_ROWS_GAP, StoreLayout
from ..voxels import Voxels, plain
from .stored_file import FilesBackend, StoredFile, joined_key, stamps_of


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

    Parameters
    ----------
    fields
        What the header says; ``offset`` counts from where the decoded stream begins.
    files
        The header's file first, that of the voxels last; often they are one.
    name
        What errors call the volume.
    encoding
        ``"raw"``, or how the stream is compressed (:mod:`compressed_streams`).
    skip
        Bytes of the file before a compressed stream.
    trailing
        Whether something else may follow the voxels in a compressed stream.

    Raises
    ------
    TruncatedVolume
        The file is too short for what the header speaks of.
    """
    TALLY.count(headers=1)
    if encoding != "raw":
        _check_ratio(fields, files[-1].size - skip, encoding, name)

        def write(raw: BinaryIO) -> None:
            with files[-1].open() as compressed:
                compressed.seek(skip)
                decompress(compressed, raw, encoding, fields.end, name, trailing=trailing)

        return DecodedRaw(fields, files, name, write)
    check_length(fields, files[-1].size, name)
    if isinstance(files[-1], RemoteFile):
        return RemoteRaw(fields, files, name)
    return LocalRaw(fields, files, name)


def _check_ratio(fields: RawHeader, size: int, encoding: str, name: str) -> None:
    if fields.end > max(0, size) * BEST_RATIOS[encoding]:
        raise TruncatedVolume(
            f"{name} holds {size} compressed bytes, which cannot decode to the {fields.end} "
            "that its header speaks of.",
            do="Copy or download the file again.",
        )


class LocalRaw(FilesBackend):
    """A local file: a region is a strided view of its map, or read when it is asked for.

    Mapped, the kernel's page cache is the only memory it takes, and processes share it.
    """

    def __init__(self, fields: RawHeader, files: Sequence[StoredFile], name: str) -> None:
        self.files = files
        with files[-1].open() as file:
            self._voxels = RawFile(file, fields, files[-1].io, name)
        mapped = self._voxels.choice.mode == "mmap"
        super().__init__(fields.header("view" if mapped else "range", stamps_of(files)), name)

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return what a scheme needs to know."""
        return placed_layout(super().layout(volumes), self._voxels.choice)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a region: a view where the file is mapped."""
        array = self._voxels.read(region, channels)
        return Voxels(array, self.header.slope, self.header.intercept)

    @property
    def looks_ahead(self) -> bool:
        """Whether it may be worth telling what is going to be read."""
        return self._voxels.looks_ahead

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Hint | None:
        """Tell the system what is going to be read."""
        return self._voxels.prefetch(region)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Bring in the bytes of the file on which the region lies."""
        return self._voxels.fetch(region, channels)


class DecodedRaw(FilesBackend):
    """A compressed stream: a raw copy of it once voxels are asked for.

    Random access inside gzip costs a fraction of decoding everything, again and again.
    So the first read of voxels decodes the stream into the cache directory. ``write``
    gets a file and writes the decoded stream to it.
    """

    def __init__(
        self,
        fields: RawHeader,
        files: Sequence[StoredFile],
        name: str,
        write: Callable[[BinaryIO], None],
    ) -> None:
        self._fields, self.files, self._write = fields, files, write
        self._lock = threading.Lock()
        self._decoded: RawFile | None = None
        super().__init__(fields.header("stream", stamps_of(files)), name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a region of the decoded copy, which the first call may have to make."""
        with self._lock:
            if self._decoded is None:
                self._decoded = self._copy()
            decoded = self._decoded
        array = decoded.read(region, channels)
        return Voxels(array, self.header.slope, self.header.intercept)

    @property
    def looks_ahead(self) -> bool:
        """Whether there is a decoded copy of which something may be told."""
        return self._decoded is not None and self._decoded.looks_ahead

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Hint | None:
        """Tell the system what is going to be read of the decoded copy, once there is one."""
        return None if self._decoded is None else self._decoded.prefetch(region)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Bring in the bytes of the decoded copy, which the first call may have to make."""
        return touch(self.read(region, channels).array)

    def _copy(self) -> RawFile:
        """Return the decoded copy; how it is read depends on where the cache directory is."""
        cache = DecodedCache(cache_directory(), cache_budget())
        key = joined_key([file.cache_key for file in self.files])
        with cache.open(key, self._fields.end, self._write_copy, self.name) as raw:
            # Without a disk that takes it, every handle that is open costs as much.
            self.resident_bytes = self._fields.end if is_in_memory(raw) else 0
            return RawFile(raw, self._fields, self.files[-1].io, self.name)

    def _write_copy(self, raw: BinaryIO) -> None:
        """Decode into ``raw``; a file behind a URL again where it makes no sense."""

        def write() -> None:
            raw.seek(0)
            self._write(raw)

        if isinstance(self.files[-1], RemoteFile):
            read_anew(write)
        else:
            write()


class RemoteRaw(FilesBackend):
    """A file that fsspec reaches. A region is a few range requests, never the whole file."""

    remote = True

    def __init__(self, fields: RawHeader, files: Sequence[StoredFile], name: str) -> None:
        self._fields, self.files = fields, files
        super().__init__(fields.header("range"), name)

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
        gap, most = joining(Joining(REMOTE_ROWS_GAP, REMOTE_RUN))
        rows = self._fields.row_spans(region, channels, most)
        return rows, coalesce(rows, gap, most)

    @property
    def _remote(self) -> RemoteFile:
        file = self.files[-1]
        assert isinstance(file, RemoteFile)
        return file

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Fetch the region: its bytes are its voxels, so there is nothing to decode."""
        return self.read(region, channels).array.nbytes


def at_the_end(fields: RawHeader, header: StoredFile, data: StoredFile, before: int) -> RawHeader:
    """Return a header whose voxels are the last bytes of ``data``, after ``before`` others.

    Raises
    ------
    TruncatedVolume
        It holds fewer bytes than that.
    """
    if data.size < before + fields.voxel_bytes:
        raise TruncatedVolume(
            f"{header.name} speaks of {fields.voxel_bytes} bytes of voxels, of which "
            f"{data.name} holds {max(0, data.size - before)}.",
            do="Copy or download the file again.",
        )
    return replace(fields, offset=data.size - fields.voxel_bytes)


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
