"""Ranges of bytes of named objects: all that a chunked format asks of a disk or a bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from .coalesce import coalesce

# ``pread`` takes memory for all that it is asked for: a damaged index may ask for terabytes.
_MOST_UNCHECKED = 4 * 1024**2


class ReadRange(NamedTuple):
    """Bytes ``start`` to ``stop`` of one object; ``start < 0`` counts from its end."""

    object: str
    """Key below the root of the store."""
    start: int = 0
    """First byte, or how many bytes before the end."""
    stop: int | None = None
    """One past the last byte; None for the end."""


class RangeStore(Protocol):
    """Objects under one root, read in ranges. Safe to use from several threads."""

    @property
    def name(self) -> str:
        """Root, without credentials."""

    def get(self, key: str) -> bytes | None:
        """Return a whole object; None where there is none."""

    def get_ranges(self, ranges: Sequence[ReadRange]) -> list[bytes | None]:
        """Return the bytes of each range, side by side where that is faster.

        None for an object that is not there. A range that goes on beyond the end of its
        object comes back short.
        """

    def size(self, key: str) -> int:
        """Return the size of an object in bytes; ``FileNotFoundError`` where there is none."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys below ``prefix``, in any order."""


class LocalRanges:
    """Files below a folder, read with ``pread``: no handle is kept, no offset shared."""

    # Between two ranges of a file the kernel reads ahead this much anyway.
    gap = 64 * 1024
    most = 4 * 1024**2

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def name(self) -> str:
        """The folder."""
        return self._root

    def get(self, key: str) -> bytes | None:
        """Return a whole file; None where there is none."""
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                return file.readall()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def get_ranges(self, ranges: Sequence[ReadRange]) -> list[bytes | None]:
        """Return the bytes of each range, opening each file once."""
        found: list[bytes | None] = [None] * len(ranges)
        by_object: dict[str, list[int]] = {}
        for place, wanted in enumerate(ranges):
            by_object.setdefault(wanted.object, []).append(place)
        for key, places in by_object.items():
            try:
                fd = os.open(self._path(key), os.O_RDONLY | getattr(os, "O_BINARY", 0))
            except (FileNotFoundError, NotADirectoryError):
                continue
            try:
                for place in places:
                    found[place] = _read(fd, ranges[place])
            finally:
                os.close(fd)
        return found

    def size(self, key: str) -> int:
        """Return the size of a file in bytes."""
        return os.stat(self._path(key)).st_size

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the files below a folder, as keys."""
        for folder, _, files in os.walk(self._path(prefix)):
            inside = os.path.relpath(folder, self._root)
            for file in files:
                yield file if inside == "." else f"{inside}/{file}".replace(os.sep, "/")

    def _path(self, key: str) -> str:
        return os.path.join(self._root, key) if key else self._root


def _read(fd: int, wanted: ReadRange) -> bytes:
    start, stop = wanted.start, wanted.stop
    if start < 0 or stop is None or stop - start > _MOST_UNCHECKED:
        size = os.fstat(fd).st_size
        start = max(0, size + start) if start < 0 else start
        stop = size if stop is None else min(stop, size)
    pieces = []
    while start < stop:
        piece = os.pread(fd, stop - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_joined(
    store: RangeStore, ranges: Sequence[ReadRange], gap: int, most: int
) -> list[memoryview | None]:
    """Return the bytes of each range, neighbours in one request.

    Parameters
    ----------
    store
        Where the objects are.
    ranges
        In any order; those with a negative start or an open end are asked for alone.
    gap
        Bytes between two ranges of one object that are worth reading for nothing.
    most
        Longest joined range, in bytes.
    """
    found: list[memoryview | None] = [None] * len(ranges)
    alone: list[int] = []
    by_object: dict[str, list[tuple[int, int, int]]] = {}
    for place, (key, start, stop) in enumerate(ranges):
        if start < 0 or stop is None:
            alone.append(place)
        else:
            by_object.setdefault(key, []).append((start, stop, place))
    requests = [ranges[place] for place in alone]
    joined: list[tuple[str, tuple[int, int]]] = []
    for key, spans in by_object.items():
        spans.sort()
        joined += [(key, span) for span in coalesce([s[:2] for s in spans], gap, most)]
    requests += [ReadRange(key, start, stop) for key, (start, stop) in joined]
    answers = store.get_ranges(requests)
    for place, answer in zip(alone, answers, strict=False):
        found[place] = None if answer is None else memoryview(answer)
    at = dict.fromkeys(by_object, 0)
    for (key, (first, last)), answer in zip(joined, answers[len(alone) :], strict=True):
        spans, n = by_object[key], at[key]
        whole = None if answer is None else memoryview(answer)
        while n < len(spans) and spans[n][1] <= last and spans[n][0] >= first:
            start, stop, place = spans[n]
            found[place] = None if whole is None else whole[start - first : stop - first]
            n += 1
        at[key] = n
    return found
