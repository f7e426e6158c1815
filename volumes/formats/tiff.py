"""TIFF, OME-TIFF and ImageJ stacks: by strip or tile, or mapped where nothing is compressed.

What tifffile says of a damaged file, as an error: by itself it logs, and goes on with less. A
download that was cut short loses the chain of pages, for example; tifffile then gives the pages
that are left, as a whole volume of fewer planes.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS
from ...core.errors import (
    BadHeader,
    VolumeNotFound,
)
from ...core.locks import ForkSafeLock
from ...storage.content import content_key
from ...storage.ranges import ReadRange, check_document
from ..backend import Backend
from ..chunks.chunked_array import ChunkedArray, Index, Lookup
from ..chunks.ranged_chunks import RangedChunks
from ..session import opening_session
from .chunked_backend import ChunkedBackend, chunked_header, named_layout
from .raw import RawHeader, open_raw
from .stored_file import Format, LocalStoredFile, StoredFile, import_package, library_errors
from .tiff_pages import TiffImage, named_files, read_tiff

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


# Where four million segments lie, or what OME says of a hundred thousand planes.
_MOST_TAG_BYTES = 64 * 1024**2


def open_tiff(file: StoredFile, level: int = 0, series: int = 0) -> Backend:
    """Return the backend of a TIFF: of bare voxels on a local disk as raw, else by segments."""
    name, is_local = file.name, isinstance(file, LocalStoredFile)
    tifffile = import_package("tifffile", name)
    what, do = f"the tags of {name} make no sense", "Copy the file again, or convert it."
    with file.open() as opened, library_errors(what, do):
        if isinstance(file, LocalStoredFile):
            # By its path, so that the other files of an OME-TIFF are found beside it.
            with tifffile.TiffFile(file.path) as tiff:
                # One that is not there is told where its planes are missing.
                for reference in named_files(tiff):
                    with suppress(VolumeNotFound):
                        file.beside(reference)
                image = _read(tiff, level, series, name)
        else:
            tags: Any = _Tags(opened, name)
            tiff = tifffile.TiffFile(tags, name=name.rpartition("/")[2])
            image = _read(tiff, level, series, name)
            # A store of one object, whose name is empty.
            image = replace(image, files=("",) * len(image.files))
        layout = named_layout(image.shape, image.axes, name)
        header = chunked_header(layout, image.chunks, image.dtype, name, image.affine)
    if is_local and image.whole is not None:
        fields = RawHeader.of_array(layout, image.dtype, image.whole, image.affine)
        return open_raw(fields, [file], name)
    IO_COUNTERS.count(headers=1)
    token = content_key(file.cache_key, (level, series))
    size = math.prod(image.chunks) * image.dtype.itemsize
    segments = _Segments(image)
    # Each is decoded by tifffile, all else is voxpipe's.
    array = ChunkedArray(
        image.shape,
        image.chunks,
        image.dtype,
        image.fill_value,
        source=RangedChunks(file.store, segments, segments, token, size),
        cache=opening_session().chunks,
        token=token,
    )
    return ChunkedBackend(array, layout, [file], header, name)


def _read(tiff: Any, level: int, series: int, name: str) -> TiffImage:
    with complaints_raised(name):
        return read_tiff(tiff, level, series, name)


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
    """Where the segments of an image lie, and what they hold, by place in the grid of chunks."""

    def __init__(self, image: TiffImage) -> None:
        self._image = image
        self._grid = tuple(-(-n // c) for n, c in zip(image.shape, image.chunks, strict=True))

    def locate(self, chunks: Sequence[Index]) -> list[ReadRange | None]:
        """Return where each segment lies; None for one that is not stored."""
        rows = np.ravel_multi_index(tuple(np.array(chunks).T), self._grid)
        return [
            ReadRange(self._image.files[file], start, start + length) if length else None
            for file, start, length in self._image.places[rows].tolist()
        ]

    def lookup(self, chunks: Sequence[Index]) -> Lookup:
        """Return the same; nothing must be read for it."""
        return Lookup([], lambda answers: self.locate(chunks))

    def decode(self, data: memoryview, out: NDArray[Any], index: Index) -> None:
        """Decode one segment."""
        number = int(np.ravel_multi_index(index, self._grid)) % self._image.per_page
        out[...] = self._image.decode(data, number)


FORMATS = (
    Format("tiff", (".tif", ".tiff", ".tf8", ".btf"), open_tiff, ("level", "series"), "tifffile"),
)
