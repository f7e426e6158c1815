"""Opens URLs: a store of ranges, by obstore where it can, and single files."""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

from ..core.errors import (
    MissingDependency,
    TruncatedVolume,
    VolumeChanged,
    VolumeNotFound,
    VolumeReadError,
)
from ..core.lru_cache import LRUCache
from ..core.settings import REMOTE, read_setting
from .content import content_key
from .fsspec_ranges import file_system_of, list_with, open_fsspec
from .in_flight import RequestPriority
from .location import (
    WILDCARD,
    fixed_folder,
    is_url,
    literal_name,
    public_name,
    remote_errors,
)
from .obstore_ranges import ObstoreRanges, is_bucket, is_usable, settings_of
from .ranges import ReadRange, Span
from .read_ahead import AHEAD, Index, ReadAhead, Ticket
from .remote_answers import FaultAdvice, advice_on
from .remote_ranges import RemoteRanges
from .retry import Retry


def open_remote(url: str, options: Mapping[str, Any], retry: Retry | None = None) -> RemoteRanges:
    """Return the objects below a URL."""
    wish = read_setting(REMOTE, "")
    if wish == "fsspec":
        return open_fsspec(url, options, retry)
    settings = settings_of(url, options, os.environ)
    if isinstance(settings, str):
        if wish and not settings.startswith("it is not used for"):
            raise MissingDependency(
                f"{REMOTE}=obstore, but {public_name(url)} cannot be read with it: {settings}.",
                do=f"Unset {REMOTE}, or change the storage_options.",
            )
        return open_fsspec(url, options, retry)
    # In a child of a process that used it, only fsspec goes on.
    if wish or is_usable():
        return ObstoreRanges(url, options, settings, retry, only=bool(wish))
    return open_fsspec(url, options, retry)


def open_for_versions(url: str, options: Mapping[str, Any]) -> RemoteRanges:
    """Return the objects below a URL, by a client that names versions as in every other process.

    One that was forked reads through fsspec, and compares versions of one that uses obstore. Where
    their words differ fsspec is asked, which takes a second to import.
    """
    store = open_remote(url, options)
    if isinstance(store, ObstoreRanges) and not store.versions_as_fsspec:
        return open_fsspec(url, options)
    return store


# Read side by side while a file is streamed: 4 connections of 60 MB/s decode as fast as one core.
_PIECE_BYTES = 4 * 1024**2
_PIECES = 4

Piece = bytes | memoryview


# Objects that one request of a listing returns.
_PAGE = 1000
# Most objects of a recursive listing: first four requests, then, if each request found a match,
# 400 requests, whose entries take 120 MB.
_FEW_OBJECTS, _MOST_OBJECTS = 4 * _PAGE, 400 * _PAGE

Matches = dict[str, bool]
"""Whether each path is a folder, or a link to one, by path."""


class Globs:
    """The globs of one pass over a storage: they share one listing of each folder.

    A bucket is listed recursively, in pages of a thousand objects. If these pages return fewer
    matches than there were requests, the folders are listed one by one. On a disk, only folders
    that the pattern matches are listed.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._listings: dict[tuple[str, int | None], Matches] = {}

    def match(self, pattern: str) -> tuple[Any, str, Matches]:
        """Return the file system, the pattern as a path in it, and what matches, sorted.

        A folder that is called as the pattern is written is meant: ``"scans [2021]/*/"``.
        """
        from fsspec.utils import glob_translate

        system, path = file_system_of(pattern, self._options)
        before, inside, _ = pattern.partition(path)
        path = self._escape_folders(system, path, pattern)
        root, rest = fixed_folder(path)
        if not WILDCARD.search(rest):
            name = root + literal_name(rest)
            exists = list_with(system, "exists", name, pattern, self._options)
            return system, path, {name: False} if exists else {}
        ends = "/" if pattern.endswith("/") and not rest.endswith("/") else ""
        regex = re.compile(re.escape(root) + glob_translate(rest + ends))
        folders_only = ends or rest.endswith(("/", "**"))

        def matching(paths: Matches) -> Matches:
            return {
                name: is_folder
                for name, is_folder in paths.items()
                if regex.match(f"{name}/" if folders_only and is_folder else name)
            }

        if is_url(pattern):
            depth = None if "**" in rest else rest.strip("/").count("/") + 1
            url = before + root if inside else ""
            paths = self._listings.get((url, depth)) or self._below(
                system, url, root, depth, matching
            )
            self._listings[url, depth] = paths if url else {}
        else:
            paths = self._on_disk(root, rest.split("/"))
        return system, path, dict(sorted(matching(paths).items()))

    def _escape_folders(self, system: Any, path: str, pattern: str) -> str:
        """Return a pattern in which the folders that exist as they are written are escaped."""
        parts = path.split("/")
        for number, part in enumerate(parts):
            if not WILDCARD.search(part):
                continue
            literal = "/".join([*map(literal_name, parts[:number]), part])
            if "*" in part or not list_with(system, "exists", literal, pattern, self._options):
                break
            parts[number] = glob.escape(part)
        return "/".join(parts)

    def _below(
        self,
        system: Any,
        url: str,
        root: str,
        depth: int | None,
        matching: Callable[[Matches], Matches],
    ) -> Matches:
        # A pattern with ** needs all pages: folder by folder, there would be more requests.
        limits = (_FEW_OBJECTS, _MOST_OBJECTS) if depth is not None else (None,)
        for most in limits if is_bucket(url) else ():
            entries = open_remote(url, self._options).entries(most)
            paths = _with_folders(root, [entry.key for entry in entries])
            if most is None or len(entries) <= most:
                return paths
            if len(matching(paths)) < len(entries) // _PAGE:
                break

        def refuse(error: OSError) -> None:
            if advice_on(error) is not FaultAdvice.ABSENT:
                raise error

        # Without on_error, fsspec leaves a folder out that cannot be listed.
        how: dict[str, Any] = {"maxdepth": depth, "withdirs": True, "detail": True}
        infos = list_with(system, "find", root, url or root, self._options, on_error=refuse, **how)
        return {name.rstrip("/"): info.get("type") == "directory" for name, info in infos.items()}

    def _on_disk(self, root: str, parts: Sequence[str]) -> Matches:
        """Return the paths below a folder that match the parts of a pattern, one by one."""
        from fsspec.utils import glob_translate

        paths = {root.rstrip("/"): os.path.isdir(root)}
        for part in parts:
            folders = [name for name, is_folder in paths.items() if is_folder]
            if part == "**":
                for folder in folders:  # which grows
                    below = self._inside(folder)
                    paths |= below
                    inner = [name for name, is_folder in below.items() if is_folder]
                    folders += [name for name in inner if not os.path.islink(name)]  # no circles
                break
            fits = re.compile(glob_translate(part)).match
            paths = {
                name: is_folder
                for folder in folders
                for name, is_folder in self._inside(folder).items()
                if fits(name[len(folder) + 1 :])
            }
        return paths

    def _inside(self, folder: str) -> Matches:
        """Return the paths directly in a folder of a disk; a folder without access is empty."""
        if (folder, 1) not in self._listings:
            paths: Matches = {}
            try:
                with os.scandir(f"{folder}/") as entries:
                    for entry in entries:
                        is_folder = False
                        with suppress(OSError):  # a link to itself, or into a closed folder
                            is_folder = entry.is_dir()
                        paths[f"{folder}/{entry.name}"] = is_folder
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                pass
            except OSError as error:
                what = f"listing {folder} failed: {error.strerror}."
                raise VolumeReadError(what, do="Check the disk and how it is mounted.") from error
            self._listings[folder, 1] = paths
        return self._listings[folder, 1]


def _with_folders(root: str, keys: Sequence[str]) -> Matches:
    """Return the objects of a listing, and the folders that they lie in."""
    paths: Matches = {}
    for key in keys:
        paths.setdefault(root + key, False)
        folder = key.rpartition("/")[0]
        while folder and not paths.get(root + folder):
            paths[root + folder] = True
            folder = folder.rpartition("/")[0]
    return paths


class RemoteFile:
    """A file of which ranges can be read. It keeps no connection of its own."""

    def __init__(
        self, url: str, options: Mapping[str, Any], name: str, ahead: ReadAhead = AHEAD
    ) -> None:
        self.name = name
        self._url, self._options, self._ahead = url, options, ahead
        self.store = open_remote(url, options)
        """What reads this version of it, under an empty key: it is the root."""
        self._facts = self.store.facts("")
        self.store.expect("", self._facts)
        self._token = f"{self.cache_key} spans"
        # Whether anything of this version was handed out.
        self._is_read = False

    @property
    def is_current(self) -> bool:
        """Whether no read has found another version. Asking would be one request per read."""
        return not self.store.rewrites

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
        """Return the bytes of each span; requests run side by side where the store can."""
        here = self._ahead.take(self._token, spans)
        absent = [span for span in spans if span not in here]
        self._is_read |= bool(here)
        answers = self._fetch([ReadRange("", *span) for span in absent])
        self._is_read = True
        by_span: dict[Index, Piece | None] = {**here}
        by_span.update(zip(absent, answers, strict=True))
        pieces = [piece for span in spans if (piece := by_span[span]) is not None]
        if len(pieces) < len(spans):
            raise VolumeNotFound(f"there is nothing at {self.name} any more.", do="Check the URL.")
        return pieces

    def _fetch(self, ranges: Sequence[ReadRange]) -> Sequence[Piece | None]:
        """Return bytes of ranges; if nothing was read before, of another version than was said."""
        try:
            return self.store.get_ranges(ranges)
        except VolumeChanged:
            if self._is_read:
                raise
            facts = self.store.facts("")
            if facts == self._facts or facts != self.store.facts(""):
                raise
            self._facts = facts
            self.store.expect("", facts)
            return self.store.get_ranges(ranges)

    def whole_ranges(self, spans: Sequence[Span]) -> list[Piece]:
        """Return the bytes of each span, ``TruncatedVolume`` where one is not all there."""
        pieces = self.ranges(spans)
        for (start, stop), piece in zip(spans, pieces, strict=True):
            if len(piece) != stop - start:
                what = f"{self.name} sent {len(piece)} of the {stop - start} bytes from {start} on."
                raise TruncatedVolume(what, do="Read again, or check the store.")
        return pieces

    def prefetch(self, spans: Sequence[Span]) -> Ticket | None:
        """Begin to fetch spans that are going to be read; close the ticket once they were."""
        if not spans:
            return None
        store = self.store

        async def fetch_chunks(
            chunks: Sequence[Index], later: RequestPriority
        ) -> dict[Index, memoryview | None]:
            answers = await store.get_ranges_async(
                [ReadRange("", *span) for span in chunks], ahead=later
            )
            pieces = (None if piece is None else memoryview(piece) for piece in answers)
            return dict(zip(chunks, pieces, strict=True))

        return self._ahead.begin(self._token, spans, lambda s: s[1] - s[0], store, fetch_chunks)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file to read it from beginning to end."""
        with io.BufferedReader(_RemoteStream(self), _PIECE_BYTES) as stream:
            yield stream


class Seekable(io.RawIOBase):
    """A file of ``size`` bytes for one thread at a time; a subclass says what brings them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def piece(self, start: int, stop: int) -> bytes | memoryview:
        """Return the bytes from ``start`` to ``stop``, at least one of them."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read anywhere."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to where the next read begins."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the file goes; return how many bytes."""
        view = memoryview(buffer).cast("B")
        stop = min(self._at + len(view), self._size)
        if self._at >= stop:
            return 0
        piece = self.piece(self._at, stop)
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _RemoteStream(Seekable):
    """A remote file read in order from wherever it stands, a few pieces at a time."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file.size)
        self._file = file
        # With the place of the first byte of each; they follow one another.
        self._pieces: list[tuple[int, memoryview]] = []

    def piece(self, start: int, stop: int) -> memoryview:
        """Return bytes up to the end of the piece that they begin in."""
        while self._pieces and self._pieces[0][0] + len(self._pieces[0][1]) <= start:
            del self._pieces[0]
        if not self._pieces or start < self._pieces[0][0]:
            self._pieces.clear()  # not beside those that come now
            starts = range(start, self._file.size, _PIECE_BYTES)[:_PIECES]
            spans = [(at, min(at + _PIECE_BYTES, self._file.size)) for at in starts]
            pieces = self._file.whole_ranges(spans)
            self._pieces = [(at, memoryview(p)) for at, p in zip(starts, pieces, strict=True)]
        first, piece = self._pieces[0]
        return piece[start - first : stop - first]


# Tables lie scattered in a file, a few hundred bytes each. One request brings the neighbours as
# well; at 60 MB/s that takes a millisecond longer.
_PAGE_BYTES = 64 * 1024
# The tables of a file with some ten thousand chunks.
_MOST_PAGES = 64


class RangeFile(Seekable):
    """A file for one thread at a time: small reads go by pages, large ones as they are."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file.size)
        self._file = file
        self._pages: LRUCache[bytes] = LRUCache(_MOST_PAGES)

    def piece(self, start: int, stop: int) -> Piece:
        """Return bytes, from memory where they are there."""
        if stop - start > _PAGE_BYTES:
            return self._fetch([(start, stop)])[0]
        number, last = start // _PAGE_BYTES, (stop - 1) // _PAGE_BYTES
        pages = b"".join(
            self._pages.get_or(n, partial(self._page, n)) for n in range(number, last + 1)
        )
        return pages[start - number * _PAGE_BYTES : stop - number * _PAGE_BYTES]

    def _page(self, number: int) -> bytes:
        start = number * _PAGE_BYTES
        span = (start, min(start + _PAGE_BYTES, self._file.size))
        return bytes(self._fetch([span])[0])

    def _fetch(self, spans: Sequence[Span]) -> list[Piece]:
        return self._file.whole_ranges(spans)
