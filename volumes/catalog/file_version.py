"""Which version of a stored volume is there now: cheap to ask, compared with what was there.

A file has a size and a time of writing, an object in a bucket an ETag, a zarr folder the sizes
and times of all its files, or, of very many, of its metadata
alone. Only :func:`content_hash` looks at the bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...core.errors import VolumeNotFound
from ...storage.content import content_key
from ...storage.location import file_system, remote_errors
from ...storage.remote import open_for_versions, open_remote
from ...storage.remote_ranges import Entry, RemoteRanges
from ..formats.stored_file import file_stamp
from ..formats.zarr_backend import metadata_stamp
from ..formats.zarr_nodes import METADATA_FILES
from ..source import LocatedSource

# A sharded volume has dozens of objects, and listing a thousand takes one request. Of more,
# only the metadata are compared when the volume is opened.
MOST_LISTED = 1000
_PIECE_BYTES = 1024**2
METADATA = (*METADATA_FILES, ".zattrs")
"""Of a zarr folder, what is rewritten with it."""


@dataclass(frozen=True)
class Stamp:
    """One version of what is stored at one place."""

    how: str
    """What was looked at: ``"file"``, ``"listing"`` of a folder, or its ``"metadata"`` alone."""
    size: int
    """Bytes of it."""
    objects: int
    """Files of it."""
    version: str
    """Time of writing, ETag, or a digest of those of all files; empty where nobody tells."""

    def change(self, now: Stamp) -> str:
        """Say in words how ``now`` differs; empty if it does not.

        Examples
        --------
        >>> Stamp("file", 10, 1, "a").change(Stamp("file", 12, 1, "b"))
        'it had 10 bytes and has 12'
        """
        if self == now:
            return ""
        if self.size != now.size:
            return f"it had {self.size} bytes and has {now.size}"
        if self.objects != now.objects:
            return f"it had {self.objects} files and has {now.objects}"
        return "it was written again, with as many bytes"


def stamp_at(source: LocatedSource) -> Stamp:
    """Return the version of what is stored at a path or URL."""
    begun = begin_stamp(source, "")
    if begun is not None:
        return begun.result()
    if not os.path.isdir(source.path):
        size, modified = file_stamp(source.path)
        return Stamp("file", size, 1, str(modified))
    entries: list[tuple[str, int, str]] = []
    for path in _files(source.path):
        status = os.stat(path)
        entries.append((path[len(source.path) :], status.st_size, str(status.st_mtime_ns)))
        if len(entries) > MOST_LISTED:
            stamp = metadata_stamp(source.path)
            return Stamp("metadata", sum(stamp[::2]), len(stamp) // 2, content_key("", stamp))
    return _listed(entries)


def content_hash(source: LocatedSource) -> str:
    """Return a digest over every stored byte, e.g. ``"blake2b:1f..."``; the same at any place."""
    digest = hashlib.blake2b(digest_size=16)
    for name, pieces in _contents(source):
        digest.update(f"{name}\0".encode())
        for piece in pieces:
            digest.update(piece)
    return f"blake2b:{digest.hexdigest()}"


def _files(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders.sort()
        yield from (os.path.join(place, file) for file in sorted(files))


def _listed(entries: list[tuple[str, int, str]]) -> Stamp:
    version = content_key("", tuple(sorted(entries)))
    return Stamp("listing", sum(size for _, size, _ in entries), len(entries), version)


def begin_stamp(source: LocatedSource, how: str) -> Future[Stamp] | None:
    """Begin to ask for the version of what is stored behind a URL, beside everything else.

    What an earlier stamp looked at is asked for first. None for local paths.
    """
    if source.path:
        return None
    store = open_for_versions(source.location, source.options.storage_options)
    return store.begin(_asked(store, source.name, how))


async def _asked(store: RemoteRanges, name: str, how: str) -> Stamp:
    """Return a stamp with as few requests as there can be: one, of what is a folder or a file."""
    folder_first = how != "file" if how else ".zarr" in name
    for folder in (folder_first, not folder_first):
        if not folder:
            entry = await store.entry_async("")
            if entry is not None:
                return Stamp("file", entry.size, 1, entry.version)
            continue
        found = await store.entries_async(MOST_LISTED)
        if len(found) > MOST_LISTED:
            return _metadata(await asyncio.gather(*map(store.entry_async, METADATA)))
        if found:
            return _listed([(f"/{key}", size, version) for key, size, version in found])
    raise VolumeNotFound(f"there is nothing at {name}.", do="Check the URL.")


def _metadata(entries: Sequence[Entry | None]) -> Stamp:
    """Return the stamp of the metadata of a remote zarr folder."""
    found = [tuple(entry) for entry in entries if entry is not None]
    size = sum(entry.size for entry in entries if entry is not None)
    return Stamp("metadata", size, len(found), content_key("", tuple(found)))


def _contents(source: LocatedSource) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield name and bytes of every file, sorted."""
    if source.path:
        folder = os.path.isdir(source.path)
        for path in _files(source.path) if folder else [source.path]:
            name = os.path.relpath(path, source.path).replace(os.sep, "/") if folder else ""
            yield name, _pieces(open, path)
        return
    system, path = file_system(source.location, source.options.storage_options)
    with remote_errors(source.location, source.options.storage_options):
        if not system.isdir(path):
            yield "", _pieces(system.open, path)
            return
        store = open_remote(source.location, source.options.storage_options)
        for key in sorted(store.list()):
            yield key, _pieces(system.open, f"{path.rstrip('/')}/{key}")


def _pieces(opener: Any, path: str) -> Iterator[bytes]:
    with opener(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
