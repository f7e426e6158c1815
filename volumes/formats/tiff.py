"""TIFF, OME-TIFF and ImageJ stacks: by strip or tile, or mapped where nothing is compressed.

What tifffile says of a damaged file, as an error: by itself it logs, and goes on with less. A
download that was cut short loses the chain of pages, for example; tifffile then gives the pages
that are left, as a whole volume of fewer planes.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS
from ...core.errors import (
    BadHeader,
    MissingDependency,
    VolumeNotFound,
    VoxpipeError,
)
from ...core.locks import ForkSafeLock
from ...storage.content import content_key
from ...storage.location import file_system
from ...storage.ranges import LocalRanges, RangeStore, ReadRange, check_document
from ...storage.remote import RemoteFile
from ..backend import Backend, no_options
from ..chunks.chunk_cache import CHUNKS
from ..chunks.chunked_array import ChunkedArray, Index, Lookup
from ..chunks.ranged_chunks import RangedChunks
from ..header import Header
from ..voxels import refuse_unreadable
from .chunked_backend import ChunkedBackend, Layout, RemoteChunks, named_layout
from .local_file import LocalFile, file_stamp, open_local
from .raw import RawHeader, open_raw
from .stored_file import LocalStoredFile
from .tiff_pages import TiffImage, named_files, read_tiff
from .zarr_metadata import MOST_CHUNK_BYTES

# Complaints that change what the voxels are: the chain of pages, the series that they form, and
# tags that say how voxels lie. Broken private tags of microscopes are none of these.
_LAYOUT_TAGS = "25[6-9]|26[26]|27[03789]|284|317|32[02-5]|33[089]|347"
_SERIOUS = re.compile(
    rf"page offset|offset to page|tag list|series|circular|TiffTag ({_LAYOUT_TAGS})\b"
)
_LOGGER = "tifffile"
_LEVELS = ForkSafeLock()


class _Listener(logging.Handler):
    """Keeps what one thread is told."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._thread = threading.get_ident()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread and _SERIOUS.search(record.getMessage()):
            self.said.append(record.getMessage())


@contextmanager
def complaints_raised(name: str) -> Iterator[None]:
    """Raise what tifffile logs about the layout of a file as ``BadHeader``.

    Its other messages go where they always go.
    """
    logger, listener = logging.getLogger(_LOGGER), _Listener()
    with _LEVELS:
        before = logger.level
        # Somebody may have silenced it.
        if not logger.isEnabledFor(logging.ERROR):
            logger.setLevel(logging.ERROR)
        logger.addHandler(listener)
        try:
            yield
        finally:
            logger.removeHandler(listener)
            logger.setLevel(before)
    if listener.said:
        raise BadHeader(
            f"the tags of {name} make no sense: {listener.said[0]}.",
            do="Copy or download the file again, or convert it.",
        )


_OPTIONS = ("level", "series")
# Where four million segments lie, or what OME says of a hundred thousand planes.
_MOST_TAG_BYTES = 64 * 1024**2


def open_tiff(
    path: str, name: str, options: Mapping[str, Any], io: str = "auto", follow: str = "beside"
) -> Backend:
    """Return the backend of a local TIFF: bare where its voxels are, else by segments."""
    no_options(options, name, _OPTIONS)
    stamp = file_stamp(path)
    # By its path, so that the other files of an OME-TIFF are found beside it.
    with open_local(path):
        pass  # says in our words that there is no such file, or that it is a folder
    file = LocalStoredFile(path, name, io, follow)
    with _tiff_errors(name), _tifffile(name).TiffFile(path) as tiff:
        _check_named(tiff, file)
        with complaints_raised(name):
            image = read_tiff(tiff, options.get("level", 0), options.get("series", 0), name)
        layout = _checked_layout(image, name)
        if image.whole is not None:
            fields = RawHeader.of_array(layout, image.dtype, image.whole, image.affine)
            return open_raw(fields, [file], name)
    IO_COUNTERS.count(headers=1)
    return LocalTiff(path, image, layout, stamp, _own(options), name)


def _check_named(tiff: Any, file: LocalStoredFile) -> None:
    """Look at what the OME-XML of a local TIFF names, before tifffile opens it.

    A file that is not there is told where its planes are missing.
    """
    for reference in named_files(tiff):
        with suppress(VolumeNotFound):
            file.beside(reference)


class TiffBackend(ChunkedBackend):
    """A TIFF of which segments are read: each is decoded by tifffile, all else is voxpipe's."""

    def __init__(
        self,
        image: TiffImage,
        layout: Layout,
        store: RangeStore,
        token: str,
        name: str,
        stamp: tuple[int, ...] = (),
    ) -> None:
        array = ChunkedArray(
            image.shape,
            image.chunks,
            image.dtype,
            image.fill_value,
            source=RangedChunks(
                store,
                _Segments(image),
                _SegmentDecoder(image),
                token,
                math.prod(image.chunks) * image.dtype.itemsize,
            ),
            cache=CHUNKS,
            token=token,
        )
        chunks = layout.spatial_part(image.chunks)
        header = Header(layout.shape, image.affine, image.dtype, chunks, "range", stamp=stamp)
        super().__init__(array, layout, header, name)


class LocalTiff(LocalFile, TiffBackend):
    """A local TIFF, read by segments."""

    def __init__(
        self,
        path: str,
        image: TiffImage,
        layout: Layout,
        stamp: tuple[int, ...],
        version: tuple[object, ...],
        name: str,
    ) -> None:
        self.path = path
        store = LocalRanges(os.path.dirname(path))
        token = content_key(path, (*stamp, *version))
        super().__init__(image, layout, store, token, name, stamp)


class RemoteTiff(RemoteChunks, TiffBackend):
    """A TIFF behind a URL, of which ranges are read."""

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], name: str, options: Mapping[str, Any]
    ) -> None:
        no_options(options, name, _OPTIONS)
        self._file = RemoteFile(url, storage_options, name)
        self._system, _ = file_system(url, storage_options)
        with self._file.open() as whole, _tiff_errors(name):
            file: Any = _Tags(whole, name)
            tiff = _tifffile(name).TiffFile(file, name=name.rpartition("/")[2])
            with complaints_raised(name):
                image = read_tiff(tiff, options.get("level", 0), options.get("series", 0), name)
            layout = _checked_layout(image, name)
        IO_COUNTERS.count(headers=1)
        token = content_key(self._file.cache_key, _own(options))
        # A store of one object, whose name is empty.
        image = replace(image, files=("",) * len(image.files))
        super().__init__(image, layout, self._file.store, token, name)


class _Tags:
    """A file of which tags are read: none is as long as all of a file of a hostile server."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name

    def read(self, size: int = -1) -> bytes:
        """Read as many bytes; ``BadHeader`` for more than a tag has."""
        check_document(size if size >= 0 else 1 << 62, self._name, _MOST_TAG_BYTES)
        found: bytes = self._file.read(size)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Segments:
    """Where the segments of an image lie, by their place in the grid of chunks."""

    def __init__(self, image: TiffImage) -> None:
        self._grid = _grid(image)
        self._files, self._places = image.files, image.places

    def locate(self, chunks: Sequence[Index]) -> list[ReadRange | None]:
        """Return where each segment lies; None for one that is not stored."""
        rows = np.ravel_multi_index(tuple(np.array(chunks).T), self._grid)
        return [
            ReadRange(self._files[file], start, start + length) if length else None
            for file, start, length in self._places[rows].tolist()
        ]

    def lookup(self, chunks: Sequence[Index]) -> Lookup:
        """Return the same; nothing must be read for it."""
        return Lookup([], lambda answers: self.locate(chunks))


def _grid(image: TiffImage) -> tuple[int, ...]:
    """Return how many segments there are along each axis."""
    return tuple(-(-n // c) for n, c in zip(image.shape, image.chunks, strict=True))


class _SegmentDecoder:
    def __init__(self, image: TiffImage) -> None:
        self._decode, self._grid = image.decode, _grid(image)
        self._per_page = image.per_page

    def decode(self, data: memoryview, out: NDArray[Any], index: Index) -> None:
        """Decode one segment."""
        number = int(np.ravel_multi_index(index, self._grid)) % self._per_page
        out[...] = self._decode(data, number)


def _checked_layout(image: TiffImage, name: str) -> Layout:
    refuse_unreadable(image.dtype, name)
    if min(image.shape) < 1:
        raise BadHeader(f"{name} holds no voxels: {image.shape}.", do="Check the file.")
    if math.prod(image.chunks) * image.dtype.itemsize > MOST_CHUNK_BYTES:
        raise BadHeader(
            f"one segment of {name}, {image.chunks} {image.dtype}, takes more than "
            f"{MOST_CHUNK_BYTES} bytes.",
            do="Store it in tiles.",
        )
    return named_layout(image.shape, image.axes, name)


def _own(options: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(options.get(key, 0) for key in _OPTIONS)


def _tifffile(name: str) -> Any:
    try:
        import tifffile
    except ImportError:
        raise MissingDependency(
            f"reading {name} needs tifffile, which is not installed.",
            do="pip install 'voxpipe[formats]'",
        ) from None
    return tifffile


@contextmanager
def _tiff_errors(name: str) -> Iterator[None]:
    """Turn what tifffile raises on a file that is damaged into errors that name it."""
    try:
        yield
    except (VoxpipeError, MemoryError):
        raise
    except Exception as error:  # struct.error, IndexError, its own: whatever the bytes lead to
        raise BadHeader(
            f"the tags of {name} make no sense: {type(error).__name__}: {error}.",
            do="Copy the file again, or convert it.",
        ) from error
