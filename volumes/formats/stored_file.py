"""One stored file, local or behind a URL: its size, its beginning, the files beside it."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote

from ...core.call_site import shorten
from ...core.errors import (
    BadHeader,
    LeadsOutside,
    VolumeChanged,
    VolumeError,
    VolumeNotFound,
    VolumeReadError,
)
from ...core.lru_cache import cached_property
from ...storage.content import content_key
from ...storage.location import is_url, public_name
from ...storage.ranges import Folder, leads_outside
from ...storage.remote import RemoteFile
from ..backend import Backend
from ..registry import BackendRequest
from .local_file import file_stamp, is_changed_since, open_local, stamp_of


class StoredFile(Protocol):
    """What formats ask of a file. It holds no handle."""

    @property
    def name(self) -> str:
        """What errors call it; no credentials."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def io(self) -> str:
        """How its bare voxels are to be read, as the user said."""

    @property
    def stamp(self) -> tuple[int, ...]:
        """What tells one version of a local file from another; empty for others."""

    @property
    def is_current(self) -> bool:
        """Whether the file is still the one whose header was read."""

    @property
    def cache_key(self) -> str:
        """A name for this file, and for this version of it as far as the store tells."""

    @property
    def content_key(self) -> str:
        """The same, but empty if the store does not tell versions apart."""

    def head(self, length: int) -> bytes:
        """Return the first bytes, at most ``length``."""

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Open the file to read it from beginning to end."""

    def beside(self, reference: str) -> StoredFile:
        """Return the file that this one names, relative to its folder."""

    def renamed(self, old: str, new: str) -> StoredFile:
        """Return the file whose name ends otherwise; letters keep their case."""


class LocalStoredFile:
    """A plain file on a local disk, in the version that it had when this was made."""

    def __init__(self, path: str, name: str = "", io: str = "auto", follow: str = "beside") -> None:
        self.path, self.name, self.io, self.follow = path, name or path, io, follow
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise VolumeNotFound(f"there is no file {path}.", do="Check the path.") from None
        except (OSError, ValueError) as error:  # too long, not ours, a NUL in it
            raise VolumeReadError(f"{path!r} cannot be opened: {error}.", do="Check it.") from None
        # A pipe would block, and a device has no end.
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "no plain file"
            raise BadHeader(f"{path} is {what}.", do="Give the path of a file.")
        self.stamp: tuple[int, ...] = stamp_of(status)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stamp[0]

    @property
    def is_current(self) -> bool:
        """Whether the file has the size and the time of writing that it had when opened."""
        return file_stamp(self.path) == self.stamp

    @property
    def content_key(self) -> str:
        """Path, size and time of writing, digested."""
        return content_key(self.path, self.stamp)

    @property
    def cache_key(self) -> str:
        """Path, size and time of writing, digested."""
        return self.content_key

    def head(self, length: int) -> bytes:
        """Return the first bytes, at most ``length``."""
        with self.open() as file:
            return file.read(length)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file, if it is still the one that was found."""
        with open_local(self.path) as file:
            if stamp_of(os.fstat(file.fileno())) != self.stamp:
                raise VolumeChanged(
                    f"{self.name} was written again since its header was read.",
                    do="Make a new Volume once the file is written.",
                )
            yield file

    def beside(self, reference: str) -> LocalStoredFile:
        """Return the file that this one names, relative to its folder."""
        path = self._beside(reference)
        with _named_by(self.name):
            return LocalStoredFile(path, f"{path} (voxels of {self.name})", self.io, self.follow)

    def _beside(self, reference: str) -> str:
        folder = os.path.dirname(os.path.abspath(self.path))
        path = os.path.join(folder, reference)
        if self.follow == "anywhere" or "\0" in path:
            return path
        name = f"{self.name}, which names {shorten(reference)},"
        # By its words first: what does not exist leads nowhere.
        if not os.path.normpath(path).startswith(os.path.join(folder, "")):
            raise leads_outside(name, os.path.normpath(path))
        self._refuse_link(path, name)
        return path

    def _refuse_link(self, path: str, name: str) -> None:
        """Raise ``LeadsOutside`` for a link that does not lead beside this file.

        Folders of links hold this file as a link, too: beside what it leads to is allowed as well.
        """
        places = (os.path.abspath(self.path), os.path.realpath(self.path))
        if not any(Folder(os.path.dirname(place)).holds(path) for place in places):
            raise leads_outside(name, os.path.realpath(path))

    def renamed(self, old: str, new: str) -> LocalStoredFile:
        """Return the file whose name ends otherwise; letters keep their case."""
        path = _renamed(self.path, old, new)
        if self.follow != "anywhere":
            self._refuse_link(path, f"{self.name}, beside which lies {shorten(path)},")
        with _named_by(self.name):
            return LocalStoredFile(path, f"{path} (beside {self.name})", self.io, self.follow)


class RemoteStoredFile(RemoteFile):
    """A file behind a URL."""

    stamp: tuple[int, ...] = ()
    io = "auto"

    def __init__(self, url: str, options: Mapping[str, Any], name: str = "") -> None:
        super().__init__(url, options, name or public_name(url))
        self._options = options

    def beside(self, reference: str) -> RemoteStoredFile:
        """Return the file that this one names, relative to its folder."""
        # A store may take "..", its escapes and a backslash for a folder above.
        parts = unquote(reference).replace("\\", "/").split("/")
        if is_url(reference) or not parts[0] or ".." in parts:
            raise LeadsOutside(
                f"{self.name} says that its voxels are at {public_name(reference)!r}.",
                do="A header behind a URL can only name files beside it.",
            )
        with _named_by(self.name):
            return self._other(posixpath.join(posixpath.dirname(self._url), reference))

    def renamed(self, old: str, new: str) -> RemoteStoredFile:
        """Return the file whose name ends otherwise; letters keep their case."""
        with _named_by(self.name):
            return self._other(_renamed(self._url, old, new))

    def _other(self, url: str) -> RemoteStoredFile:
        return RemoteStoredFile(url, self._options, f"{public_name(url)} (beside {self.name})")


def file_of(request: BackendRequest, name: str) -> StoredFile:
    """Return the file that a request speaks of."""
    if request.path is not None:
        return LocalStoredFile(os.fspath(request.path), name, request.io, request.follow)
    return RemoteStoredFile(request.uri or "", request.storage_options, name)


class FilesBackend(Backend):
    """A backend of one or more files, mixed in with how its voxels are read."""

    files: Sequence[StoredFile]

    @property
    def is_current(self) -> bool:
        """Whether every file is still the one that was opened."""
        return all(file.is_current for file in self.files)

    def is_as_of(self, moment: int) -> bool:
        """Whether no local one was replaced since by another of its size and time of writing."""
        local = [file.path for file in self.files if isinstance(file, LocalStoredFile)]
        return self.is_current and not any(is_changed_since(path, moment) for path in local)

    @cached_property
    def version(self) -> Hashable:
        """Return sizes and times of writing, or what a store says instead."""
        return self.header.stamp or self.content_key

    @property
    def content_key(self) -> str:
        """A name for these files in these versions; empty where nobody can tell."""
        return joined_key([file.content_key for file in self.files])


def joined_key(keys: Sequence[str]) -> str:
    """Return one key for several files; empty if one of them has none."""
    if len(keys) == 1 or not all(keys):
        return keys[0] if all(keys) else ""
    return content_key("+".join(keys), ())


def stamps_of(files: Sequence[StoredFile]) -> tuple[int, ...]:
    """Return the stamps of all files as one."""
    return tuple(number for file in files for number in file.stamp)


@contextmanager
def _named_by(header: str) -> Iterator[None]:
    """Say which header it is whose other file is missing or unusable."""
    try:
        yield
    except VolumeError as error:
        if header not in error.what:
            error.what = f"{error.what.rstrip('.')}, of which {header} speaks."
        raise


def _renamed(location: str, old: str, new: str) -> str:
    """Return a location with another suffix.

    Examples
    --------
    >>> _renamed("s3://b/a.IMG.gz?x=1", ".img", ".hdr")
    's3://b/a.HDR.gz?x=1'
    """
    at = location.lower().rfind(old)
    cased = new.upper() if location[at : at + len(old)].isupper() else new
    return location[:at] + cased + location[at + len(old) :]


# The first line that the specification of Git LFS demands; git-annex writes a path instead.
_LFS = b"version https://git-lfs"
_ANNEX = (b"/annex/objects/", b"../.git/annex/")
_PAGE = (b"<!doctype", b"<html", b"<?xml")


def what_to_do(head: bytes, otherwise: str) -> str:
    """Return the advice for a file that is no volume, from its first bytes.

    Examples
    --------
    >>> what_to_do(b"version https://git-lfs.github.com/spec/v1", "Check the file.")
    'It is a pointer of Git LFS: fetch the file itself with "git lfs pull".'
    >>> what_to_do(b"<html><body>404", "Check the file.")
    'It is a web page, an error or a log-in perhaps: download the file again.'
    >>> what_to_do(b"n+1", "Check the file.")
    'Check the file.'
    """
    if head.startswith(_LFS):
        return 'It is a pointer of Git LFS: fetch the file itself with "git lfs pull".'
    if head.startswith(_ANNEX):
        return 'It is a pointer of git-annex: fetch the file itself with "git annex get".'
    if head.lstrip().lower().startswith(_PAGE):
        return "It is a web page, an error or a log-in perhaps: download the file again."
    return otherwise
