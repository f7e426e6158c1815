"""One file behind a URL, through fsspec: its size, its beginning, ranges of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from ..core.errors import VolumeError
from .coalesce import Span
from .content import content_key
from .location import file_system, remote_errors

# Where file systems say which version of a file they speak of.
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created")


class RemoteFile:
    """A file of which ranges can be read. It keeps no connection of its own."""

    def __init__(self, url: str, options: Mapping[str, Any], name: str) -> None:
        self.name = name
        self._url = url
        self._system, self._path = file_system(url, options)
        with remote_errors(name):
            self._info: Mapping[str, Any] = self._system.info(self._path)
        if self._info.get("size") is None:
            raise VolumeError(
                f"the server of {name} does not say how large the file is.",
                do="Copy the file to a local disk or to an object store.",
            )

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(self._info["size"])

    @property
    def cache_key(self) -> str:
        """A name for this file, and for this version of it as far as the store tells."""
        return content_key(self._url, (self.size, *self._versions()))

    @property
    def content_key(self) -> str:
        """The same, but empty if the store does not tell versions apart."""
        return self.cache_key if self._versions() else ""

    def _versions(self) -> list[str]:
        return [str(self._info[key]) for key in _VERSIONS if self._info.get(key)]

    def head(self, length: int) -> bytes:
        """Return the first bytes, at most ``length``."""
        with remote_errors(self.name):
            found: bytes = self._system.cat_file(self._path, start=0, end=min(length, self.size))
        return found

    def ranges(self, spans: Sequence[Span]) -> list[bytes]:
        """Return the bytes of each span; requests run side by side where fsspec can."""
        starts, stops = [a for a, _ in spans], [b for _, b in spans]
        with remote_errors(self.name):
            found: list[bytes] = self._system.cat_ranges(
                [self._path] * len(spans), starts, stops, on_error="raise"
            )
        return found

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file to read it from beginning to end."""
        with remote_errors(self.name), self._system.open(self._path, "rb") as file:
            yield file
