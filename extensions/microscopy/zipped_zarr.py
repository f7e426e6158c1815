"""Images, label groups and arrays inside of a zip archive of OME-Zarr."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.errors import VolumeNotFound
from ...storage.content import content_key
from ...storage.location import is_url, public_name
from ...storage.ranges import RangeStore, ReadRange
from ...storage.zip_ranges import ZipRanges
from ...volumes.backend import Backend
from ...volumes.formats.stored_file import Format, LocalStoredFile, RemoteStoredFile, StoredFile
from ...volumes.formats.zarr_backend import ZarrBackend, open_image
from ...volumes.formats.zarr_nodes import METADATA_FILES
from ...volumes.registry import BackendRequest

ZIP_SUFFIXES = (".zarr.zip", ".ozx")
_ARCHIVE = re.compile(r"(.+?(?:\.zarr\.zip|\.ozx))(?:/(.*?))?/*", re.IGNORECASE)


def split_zip(place: str) -> tuple[str, str] | None:
    """Return the archive of a path or URL, and the path inside of it; None for another place.

    Examples
    --------
    >>> split_zip("a/g.ozx/labels/nuclei"), split_zip("a/g.zarr.zip"), split_zip("a/g.zarr/0")
    (('a/g.ozx', 'labels/nuclei'), ('a/g.zarr.zip', ''), None)
    """
    match = _ARCHIVE.fullmatch(place.replace(os.sep, "/"))
    if match is None or (not is_url(place) and os.path.isdir(match[1])):
        return None
    return match[1], match[2] or ""


class ZippedFolder:
    """A folder in an archive as a store of its own."""

    def __init__(self, archive: RangeStore, folder: str) -> None:
        self._archive, self._folder = archive, folder
        self.name = posixpath.join(archive.name, folder)
        self.gap, self.most = getattr(archive, "gap", 0), getattr(archive, "most", 1 << 62)

    def _key(self, key: str) -> str:
        return posixpath.join(self._folder, key)

    def get(self, key: str) -> bytes | None:
        """Return a small member such as metadata; None if missing."""
        return self._archive.get(self._key(key))

    def get_ranges(self, ranges: Sequence[ReadRange], most: int = 0) -> list[bytes | None]:
        """Return bytes of ranges; ``CorruptVolume`` for a whole member above ``most`` bytes."""
        archive: Any = self._archive
        parts = [part._replace(object=self._key(part.object)) for part in ranges]
        answers: list[bytes | None] = archive.get_ranges(parts, most)
        return answers

    def size(self, key: str) -> int:
        """Return the inflated size of a member in bytes."""
        return self._archive.size(self._key(key))

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the members below a folder, as keys."""
        start = len(self._folder) + 1 if self._folder else 0
        yield from (key[start:] for key in self._archive.list(self._key(prefix)))


def store_in_zip(file: StoredFile, folder: str) -> RangeStore:
    """Return the store of a folder in an archive."""
    checks = isinstance(file, LocalStoredFile)
    roots = METADATA_FILES
    archive = ZipRanges(file.store, file.key, file.name, checks_parts=checks, roots=roots)
    return ZippedFolder(archive, folder) if folder else archive


def store_at(archive: str, options: Mapping[str, Any], folder: str = "") -> RangeStore:
    """Return the store of a folder in the archive at a path or URL."""
    name = public_name(archive)
    if is_url(archive):
        return store_in_zip(RemoteStoredFile(archive, options, name), folder)
    return store_in_zip(LocalStoredFile(archive, name), folder)


def open_part(request: BackendRequest, name: str, level: Any = 0, axes: Any = None) -> Backend:
    """Return the backend of an image, a label group or an array in an archive.

    Raises
    ------
    VolumeNotFound
        There is no archive, or it has no such group or array.
    """
    parts = split_zip(_place_of(request))
    if parts is None:
        raise VolumeNotFound(f"{name} is no part of {' or '.join(ZIP_SUFFIXES)}.")
    archive, folder = parts
    file: StoredFile
    if request.path is None:
        file = RemoteStoredFile(archive, request.storage_options, public_name(archive))
    else:
        file = LocalStoredFile(archive, archive, request.io, request.follow)
    store = store_in_zip(file, folder)
    if all(store.get(key) is None for key in METADATA_FILES):
        msg = f"{public_name(archive)} has no zarr group or array {folder!r}"
        raise VolumeNotFound(msg, do="Give ⟦label=NAME⟧ for a label group, ⟦level=⟧ for a level.")
    image = open_image(store, name, content_key(file.cache_key, ("in zip", folder)), level, axes)
    return ZarrBackend(image, name, [file])


def _is_part(request: BackendRequest) -> bool:
    """Whether a request names a part of an archive by its path or URL."""
    parts = split_zip(_place_of(request))
    return parts is not None and bool(parts[1])


def _place_of(request: BackendRequest) -> str:
    return os.fspath(request.path) if request.path else request.uri or ""


FORMATS = Format("zarr-zip-part", (), open_part, ("level", "axes"), matches=_is_part, rank=-2)
