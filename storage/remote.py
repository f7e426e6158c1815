"""Stores and files at URLs, read through obstore or fsspec."""

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
    lower_schemes,
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
    """Return the store of a URL: obstore if it can express the options, else fsspec."""
    client, url = read_setting(REMOTE, ""), lower_schemes(url)
    if client == "fsspec":
        return open_fsspec(url, options, retry)
    settings = settings_of(url, options, os.environ)
    if isinstance(settings, str):
        if client and not settings.startswith("it is not used for"):
            msg = f"{REMOTE}=obstore, but {public_name(url)} cannot be read with it: {settings}."
            raise MissingDependency(msg, do=f"Unset {REMOTE}, or change the ⟦storage_options⟧.")
        return open_fsspec(url, options, retry)
    # A forked child of a process that used obstore needs fsspec.
    if client or is_usable():
        return ObstoreRanges(url, options, settings, retry, only=bool(client))
    return open_fsspec(url, options, retry)


# Concurrent pieces of a streamed file: 4 connections of 60 MB/s feed the decoder of one core.
_PIECE_BYTES = 4 * 1024**2
_PIECES = 4

Piece = bytes | memoryview


# Objects of one page of a listing.
_PAGE = 1000
# Most objects of a recursive listing: four pages first, then, if each page has a match, 400 pages,
# whose entries take 120 MB.
_FEW_OBJECTS, _MOST_OBJECTS = 4 * _PAGE, 400 * _PAGE

Matches = dict[str, bool]
"""Whether a path is a folder, or a link to one, by path."""


class Globs:
    """Globs of one pass over a storage, with one listing of each folder.

    A bucket is listed recursively, in pages of a thousand objects, or folder by folder if there are
    fewer matches than pages. On a disk, only folders that match the pattern are listed.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._listings: dict[tuple[str, int | None], Matches] = {}

    def match(self, pattern: str) -> tuple[Any, str, Matches]:
        """Return the file system, the pattern as a path in it, and the sorted matches.

        Existing folders with wildcards in their names match literally: ``"scans [2021]/*/"``.
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
            listing = self._listings.get((url, depth))
            paths = listing or self._below(system, url, root, depth, matching)
            self._listings[url, depth] = paths if url else {}
        else:
            paths = self._on_disk(root, rest.split("/"))
        return system, path, dict(sorted(matching(paths).items()))

    def _escape_folders(self, system: Any, path: str, pattern: str) -> str:
        """Return a pattern in which folders that exist under their literal name are escaped."""
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
        # A pattern with ** needs all pages: listing folder by folder takes more requests.
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

        # Without on_error, fsspec skips a folder that cannot be listed.
        find: dict[str, Any] = {"maxdepth": depth, "withdirs": True, "detail": True}
        infos = list_with(system, "find", root, url or root, self._options, on_error=refuse, **find)
        return {name.rstrip("/"): info.get("type") == "directory" for name, info in infos.items()}

    def _on_disk(self, root: str, parts: Sequence[str]) -> Matches:
        """Return the local paths below a folder that match the parts of a pattern."""
        from fsspec.utils import glob_translate

        paths = {root.rstrip("/"): os.path.isdir(root)}
        for part in parts:
            folders = [name for name, is_folder in paths.items() if is_folder]
            if part == "**":
                for folder in folders:  # the list grows
                    below = self._inside(folder)
                    paths |= below
                    inner = [name for name, is_folder in below.items() if is_folder]
                    folders += [name for name in inner if not os.path.islink(name)]  # no cycles
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
        """Return the entries of a local folder; a folder without access is empty."""
        if (folder, 1) not in self._listings:
            paths: Matches = {}
            try:
                with os.scandir(f"{folder}/") as entries:
                    for entry in entries:
                        is_folder = False
                        with suppress(OSError):  # a cyclic link, or a folder without access
                            is_folder = entry.is_dir()
                        paths[f"{folder}/{entry.name}"] = is_folder
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                pass
            except OSError as error:
                msg = f"listing {folder} failed: {error.strerror}."
                raise VolumeReadError(msg, do="Check the disk and how it is mounted.") from error
            self._listings[folder, 1] = paths
        return self._listings[folder, 1]


def _with_folders(root: str, keys: Sequence[str]) -> Matches:
    """Return the objects of a listing and their folders."""
    paths: Matches = {}
    for key in keys:
        paths.setdefault(root + key, False)
        folder = key.rpartition("/")[0]
        while folder and not paths.get(root + folder):
            paths[root + folder] = True
            folder = folder.rpartition("/")[0]
    return paths


class RemoteFile:
    """Remote file that is read in ranges. It keeps no own connection."""

    def __init__(
        self, url: str, options: Mapping[str, Any], name: str, ahead: ReadAhead = AHEAD
    ) -> None:
        self.name = name
        self._url, self._options, self._ahead = url, options, ahead
        self.store = open_remote(url, options)
        """Store that reads this version of the file; the file is its root, with an empty key."""
        self._facts = self.store.facts("")
        self.store.expect("", self._facts)
        self._token = f"{self.cache_key} spans"
        # Whether bytes of this version were returned.
        self._is_read = False

    @property
    def is_current(self) -> bool:
        """Whether no read has found another version; sends no request."""
        return not self.store.rewrites

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._facts.size

    def errors(self) -> AbstractContextManager[None]:
        """Turn errors of the file system into voxpipe errors with the file name and no secret."""
        return remote_errors(self.name, self._options, url=self._url)

    @property
    def cache_key(self) -> str:
        """Key of this file, and of its version if the store reports one."""
        return content_key(self._url, (self.size, self._facts.version))

    @property
    def content_key(self) -> str:
        """The cache key; empty if the store reports no versions."""
        return self.cache_key if self._facts.version else ""

    def head(self, length: int) -> bytes:
        """Return the first bytes, at most ``length``."""
        # obstore returns a view, which parsers cannot search.
        return bytes(self.ranges([(0, min(length, self.size))])[0])

    def ranges(self, spans: Sequence[Span]) -> list[Piece]:
        """Return the bytes of each span, with prefetched bytes and concurrent requests.

        Before the first read, a new version of the file is accepted. ``TruncatedVolume`` for a
        short answer.
        """
        ready = self._ahead.take(self._token, spans)
        absent = [ReadRange("", *span) for span in spans if span not in ready]
        self._is_read |= bool(ready)
        try:
            answers = self.store.get_ranges(absent)
        except VolumeChanged:
            facts = self._facts if self._is_read else self.store.facts("")
            if facts == self._facts or facts != self.store.facts(""):
                raise
            self._facts = facts
            self.store.expect("", facts)
            answers = self.store.get_ranges(absent)
        self._is_read = True
        new, pieces = iter(answers), list[Piece]()
        for start, stop in spans:
            span: Index = (start, stop)
            piece: Piece | None = ready[span] if span in ready else next(new)
            if piece is None:
                msg = f"there is nothing at {self.name} any more."
                raise VolumeNotFound(msg, do="Check the URL.")
            if len(piece) != stop - start:
                msg = f"{self.name} sent {len(piece)} of the {stop - start} bytes from {start} on."
                raise TruncatedVolume(msg, do="Read again, or check the store.")
            pieces.append(piece)
        return pieces

    def prefetch(self, spans: Sequence[Span]) -> Ticket | None:
        """Begin to fetch spans; close the ticket after their read."""
        if not spans:
            return None
        store = self.store

        async def fetch_chunks(
            chunks: Sequence[Index], later: RequestPriority
        ) -> dict[Index, memoryview | None]:
            ranges = [ReadRange("", *span) for span in chunks]
            answers = await store.get_ranges_async(ranges, ahead=later)
            pieces = (None if piece is None else memoryview(piece) for piece in answers)
            return dict(zip(chunks, pieces, strict=True))

        return self._ahead.begin(self._token, spans, lambda s: s[1] - s[0], store, fetch_chunks)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file to read it from beginning to end."""
        with io.BufferedReader(_RemoteStream(self), _PIECE_BYTES) as stream:
            yield stream


class Seekable(io.RawIOBase):
    """File of ``size`` bytes for one thread at a time; a subclass implements :meth:`piece`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def piece(self, start: int, stop: int) -> bytes | memoryview:
        """Return the bytes from ``start`` to ``stop``, at least one of them."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set and return the offset of the next read."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer up to the end of a piece or of the file; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        stop = min(self._at + len(view), self._size)
        if self._at >= stop:
            return 0
        piece = self.piece(self._at, stop)
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _RemoteStream(Seekable):
    """Remote file that is read in order, a few pieces at a time."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file.size)
        self._file = file
        # Consecutive pieces with their offsets.
        self._pieces: list[tuple[int, memoryview]] = []

    def piece(self, start: int, stop: int) -> memoryview:
        """Return bytes up to the end of the piece of the first byte."""
        while self._pieces and self._pieces[0][0] + len(self._pieces[0][1]) <= start:
            del self._pieces[0]
        if not self._pieces or start < self._pieces[0][0]:
            self._pieces.clear()  # frees the memory before the new pieces arrive
            starts = range(start, self._file.size, _PIECE_BYTES)[:_PIECES]
            spans = [(at, min(at + _PIECE_BYTES, self._file.size)) for at in starts]
            pieces = self._file.ranges(spans)
            self._pieces = [(at, memoryview(p)) for at, p in zip(starts, pieces, strict=True)]
        first, piece = self._pieces[0]
        return piece[start - first : stop - first]


# Tables of a few hundred bytes are scattered over a file. A request of a page reads neighbours too,
# and takes a millisecond longer at 60 MB/s.
_PAGE_BYTES = 64 * 1024
# The tables of a file with ten thousand chunks.
_MOST_PAGES = 64


class RangeFile(Seekable):
    """Remote file for one thread at a time: small reads use cached pages, large ones do not."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file.size)
        self._file = file
        self._pages: LRUCache[bytes] = LRUCache(_MOST_PAGES)

    def piece(self, start: int, stop: int) -> Piece:
        """Return bytes, from cached pages if they are few."""
        if stop - start > _PAGE_BYTES:
            return self._fetch([(start, stop)])[0]
        numbers = range(start // _PAGE_BYTES, (stop - 1) // _PAGE_BYTES + 1)
        pages = b"".join(self._pages.get_or(n, partial(self._page, n)) for n in numbers)
        return pages[start - numbers[0] * _PAGE_BYTES : stop - numbers[0] * _PAGE_BYTES]

    def _page(self, number: int) -> bytes:
        start = number * _PAGE_BYTES
        span = (start, min(start + _PAGE_BYTES, self._file.size))
        return bytes(self._fetch([span])[0])

    def _fetch(self, spans: Sequence[Span]) -> list[Piece]:
        return self._file.ranges(spans)
