"""Objects behind a URL, in ranges, through fsspec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .location import file_system, public_name, remote_errors
from .ranges import ReadRange


class FsspecRanges:
    """A folder of any file system that fsspec knows. It keeps no connection of its own."""

    # What an object store sends during one round trip: a request costs as much as these bytes.
    gap = 1024**2
    # Bounds the memory of one request; several are under way at once.
    most = 16 * 1024**2

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._name = public_name(url)
        # Held like the handle that uses it: a forked child that inherits both must not be the
        # one that closes its connections, in an event loop that it does not have.
        self._system, root = file_system(url, options)
        self._root = root.rstrip("/")

    @property
    def name(self) -> str:
        """The URL, without credentials."""
        return self._name

    def get(self, key: str) -> bytes | None:
        """Return a whole object; None where there is none."""
        with remote_errors(self._name):
            try:
                found: bytes = self._system.cat_file(self._path(key))
            except (FileNotFoundError, IsADirectoryError):
                return None
        return found

    def get_ranges(self, ranges: Sequence[ReadRange]) -> list[bytes | None]:
        """Return the bytes of each range; requests run side by side where fsspec can."""
        if not ranges:
            return []
        with remote_errors(self._name):
            answers = self._system.cat_ranges(
                [self._path(wanted.object) for wanted in ranges],
                [wanted.start or None for wanted in ranges],
                [wanted.stop for wanted in ranges],
                on_error="return",
            )
            found: list[bytes | None] = []
            for answer in answers:
                if isinstance(answer, (FileNotFoundError, IsADirectoryError)):
                    found.append(None)
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    found.append(answer)
        return found

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""
        return int(self._system.size(self._path(key)))

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the objects below a prefix, as keys."""
        with remote_errors(self._name):
            for path in self._system.find(self._path(prefix)):
                yield path[len(self._root) :].lstrip("/")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root
