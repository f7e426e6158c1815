"""One file behind a URL: its size, its beginning, ranges of it, and all of it as a stream."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO

from ..core.errors import TruncatedVolume, VolumeChanged, VolumeNotFound
from .coalesce import Span
from .content import content_key
from .in_flight import Later
from .location import remote_errors
from .ranges import ReadRange
from .read_ahead import AHEAD, Index, Ticket, works_ahead
from .remote import RemoteStore, open_remote
from .remote_ranges import RemoteRanges

# Read side by side while a file is streamed: 4 connections of 60 MB/s decode as fast as one core.
_PIECE_BYTES = 4 * 1024**2
_PIECES = 4

Piece = bytes | memoryview


class RemoteFile:
    """A file of which ranges can be read. It keeps no connection of its own."""

    def __init__(self, url: str, options: Mapping[str, Any], name: str) -> None:
        self.name = name
        self._url, self._options = url, options
        # The file is the root of its store; its key is empty.
        self._store = open_remote(url, options)
        self._facts = self._store.facts("")
        if isinstance(self._store, RemoteRanges):
            self._store.expect("", self._facts)
        self._token = f"{self.cache_key} spans"
        # Whether anything of this version was handed out.
        self._is_read = False

    @property
    def store(self) -> RemoteStore:
        """What reads it, under an empty key: only this version of it, where the store can."""
        return self._store

    @property
    def is_current(self) -> bool:
        """Whether no read has found another version. Asking would be one request per read."""
        return not (isinstance(self._store, RemoteRanges) and self._store.rewritten)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._facts.size

    def errors(self) -> AbstractContextManager[None]:
        """Turn what a file system raises meanwhile into errors that name the file, no secret."""
        return remote_errors(self.name, self._options, url=self._url)

    @property
    def cache_key(self) -> str:
        """A name for this file, and for this version of it as far as the store tells."""
        return content_key(self._url, (self.size, self._facts.version))

    @property
    def content_key(self) -> str:
        """The same, but empty if the store does not tell versions apart."""
        return self.cache_key if self._facts.version else ""

    def head(self, length: int) -> bytes:
        """Return the first bytes, at most ``length``."""
        # obstore answers with a view, which parsers cannot search.
        return bytes(self.ranges([(0, min(length, self.size))])[0])

    def ranges(self, spans: Sequence[Span]) -> list[Piece]:
        """Return the bytes of each span; requests run side by side where the store can.

        Raises
        ------
        VolumeNotFound
            The file is not there any more.
        """
        here = AHEAD.taken(self._token, spans)
        absent = [span for span in spans if span not in here]
        self._is_read |= bool(here)
        fetched = self._fetched([ReadRange("", *span) for span in absent])
        self._is_read = True
        found: dict[Index, Piece | None] = {**here}
        found.update(zip(absent, fetched, strict=True))
        pieces = [piece for span in spans if (piece := found[span]) is not None]
        if len(pieces) < len(spans):
            raise VolumeNotFound(f"there is nothing at {self.name} any more.", do="Check the URL.")
        return pieces

    def _fetched(self, wanted: Sequence[ReadRange]) -> Sequence[Piece | None]:
        """Return the bytes of ranges; of another version than was said, where nothing was read.

        What was said of the file may be what somebody on the way made of it.
        """
        try:
            return self._store.get_ranges(wanted)
        except VolumeChanged:
            if self._is_read or not isinstance(self._store, RemoteRanges):
                raise
            facts = self._store.facts("")
            if facts == self._facts or facts != self._store.facts(""):
                raise
            self._facts = facts
            self._store.expect("", facts)
            return self._store.get_ranges(wanted)

    def prefetch(self, spans: Sequence[Span]) -> Ticket | None:
        """Begin to fetch spans that are going to be read; close the ticket once they were."""
        store = self._store
        if not spans or not works_ahead(store):
            return None

        async def bring(wanted: Sequence[Index], later: Later) -> dict[Index, memoryview | None]:
            found = await store.get_ranges_async(
                [ReadRange("", *span) for span in wanted], ahead=later
            )
            pieces = (None if piece is None else memoryview(piece) for piece in found)
            return dict(zip(wanted, pieces, strict=True))

        return AHEAD.begin(self._token, spans, lambda span: span[1] - span[0], store, bring)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file to read it from beginning to end."""
        with io.BufferedReader(_Stream(self), _PIECE_BYTES) as stream:
            yield stream


class _Stream(io.RawIOBase):
    """A remote file read in order from wherever it stands, a few pieces at a time."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._at = 0
        self._pieces: list[memoryview] = []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at - sum(map(len, self._pieces))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._file.size}[whence]
        self._pieces.clear()
        self._at = min(max(0, base + offset), self._file.size)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if not self._pieces and self._at < self._file.size:
            self._fetch()
        if not self._pieces:
            return 0
        piece = self._pieces[0]
        count = min(len(buffer), len(piece))
        buffer[:count] = piece[:count]
        self._pieces[0] = piece[count:]
        if count == len(piece):
            del self._pieces[0]
        return count

    def _fetch(self) -> None:
        starts = range(self._at, self._file.size, _PIECE_BYTES)[:_PIECES]
        spans = [(start, min(start + _PIECE_BYTES, self._file.size)) for start in starts]
        for (start, stop), piece in zip(spans, self._file.ranges(spans), strict=True):
            if len(piece) != stop - start:
                raise TruncatedVolume(
                    f"{self._file.name} sent {len(piece)} of the {stop - start} bytes from "
                    f"{start} on.",
                    do="Read again, or check the store.",
                )
            self._pieces.append(memoryview(piece))
        self._at = spans[-1][1]
