"""The files of a format, local or behind a URL, and how a format says which files are its own."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, BinaryIO
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
from ...storage.file_reader import file_system_at
from ...storage.location import is_url, public_name
from ...storage.ranges import Folder, LocalRanges, changed_at, leads_outside
from ...storage.remote import RemoteFile
from ..backend import Backend, no_options
from ..header import Header
from ..registry import BackendRequest
from .local_file import file_stamp, open_local, stamp_of

# In the place of size and time of writing.
_MISSING = (-1, -1)


class LocalStoredFile:
    """A plain file on a local disk, in the version that it had when this was made.

    One that is ``optional`` may be missing, as long as it stays so.
    """

    def __init__(
        self,
        path: str,
        name: str = "",
        io: str = "auto",
        follow: str = "beside",
        *,
        optional: bool = False,
    ) -> None:
        self.path, self.name, self.io, self.follow = path, name or path, io, follow
        self._optional = optional
        self.stamp: tuple[int, ...] = _MISSING
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if optional:
                return
            raise VolumeNotFound(f"there is no file {path}.", do="Check the path.") from None
        except (OSError, ValueError) as error:  # too long, not ours, a NUL in it
            raise VolumeReadError(f"{path!r} cannot be opened: {error}.", do="Check it.") from None
        # A pipe would block, and a device has no end.
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "no plain file"
            raise BadHeader(f"{path} is {what}.", do="Give the path of a file.")
        self.stamp = stamp_of(status)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stamp[0]

    @property
    def is_current(self) -> bool:
        """Whether the file has the size and the time of writing that it had when opened."""
        if not self._optional:
            return file_stamp(self.path) == self.stamp
        with suppress(OSError):
            return stamp_of(os.stat(self.path)) == self.stamp
        return self.stamp == _MISSING

    def is_changed_since(self, moment: int) -> bool:
        """Whether it was changed after a moment, in nanoseconds since 1970.

        File servers have clocks of their own: there size and time of writing are all that tells.
        """
        with suppress(FileNotFoundError, NotADirectoryError):
            changed = changed_at(os.stat(self.path))
            return changed > moment and not file_system_at(self.path).network
        return False

    @property
    def content_key(self) -> str:
        """Path, size and time of writing, digested."""
        return content_key(self.path, self.stamp)

    @property
    def cache_key(self) -> str:
        """The same; behind a URL the two differ."""
        return self.content_key

    @property
    def store(self) -> LocalRanges:
        """What reads ranges of it, under its :attr:`key`."""
        return LocalRanges(os.path.dirname(self.path))

    @property
    def key(self) -> str:
        """What :attr:`store` calls it."""
        return os.path.basename(self.path)

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
        folder = os.path.dirname(os.path.abspath(self.path))
        path = os.path.join(folder, reference)
        if self.follow != "anywhere" and "\0" not in path:
            name = f"{self.name}, which names {shorten(reference)},"
            # By its words first: what does not exist leads nowhere.
            if not os.path.normpath(path).startswith(os.path.join(folder, "")):
                raise leads_outside(name, os.path.normpath(path))
            self._refuse_link(path, name)
        return self._other(path, "voxels of")

    def renamed(self, old: str, new: str) -> LocalStoredFile:
        """Return the file whose name ends otherwise; letters keep their case."""
        path = _renamed(self.path, old, new)
        if self.follow != "anywhere":
            self._refuse_link(path, f"{self.name}, beside which lies {shorten(path)},")
        return self._other(path, "beside")

    def _other(self, path: str, relation: str) -> LocalStoredFile:
        with _named_by(self.name):
            return LocalStoredFile(path, f"{path} ({relation} {self.name})", self.io, self.follow)

    def _refuse_link(self, path: str, name: str) -> None:
        """Raise ``LeadsOutside`` for a link that does not lead beside this file.

        Folders of links hold this file as a link, too: beside what it leads to is allowed as well.
        """
        places = (os.path.abspath(self.path), os.path.realpath(self.path))
        if not any(Folder(os.path.dirname(place)).holds(path) for place in places):
            raise leads_outside(name, os.path.realpath(path))


class RemoteStoredFile(RemoteFile):
    """A file behind a URL, with what a local one answers."""

    stamp: tuple[int, ...] = ()
    io = "auto"
    key = ""

    def __init__(self, url: str, options: Mapping[str, Any], name: str = "") -> None:
        super().__init__(url, options, name or public_name(url))

    def beside(self, reference: str) -> RemoteStoredFile:
        """Return the file that this one names, relative to its folder."""
        # A store may take "..", its escapes and a backslash for a folder above.
        parts = unquote(reference).replace("\\", "/").split("/")
        if is_url(reference) or not parts[0] or ".." in parts:
            raise LeadsOutside(
                f"{self.name} says that its voxels are at {public_name(reference)!r}.",
                do="A header behind a URL can only name files beside it.",
            )
        return self._other(posixpath.join(posixpath.dirname(self._url), reference))

    def renamed(self, old: str, new: str) -> RemoteStoredFile:
        """Return the file whose name ends otherwise; letters keep their case."""
        return self._other(_renamed(self._url, old, new))

    def _other(self, url: str) -> RemoteStoredFile:
        with _named_by(self.name):
            name = f"{public_name(url)} (beside {self.name})"
            return RemoteStoredFile(url, self._options, name)


StoredFile = LocalStoredFile | RemoteStoredFile
"""What formats are given: one version of a file. It holds no handle."""


@dataclass(frozen=True)
class Format:
    """A format of voxpipe's own. Its file in ``formats/`` lists it as one of its ``FORMATS``.

    Examples
    --------
    >>> xyz = Format("xyz", (".xyz",), lambda file: f"the backend of {file.name}")
    >>> xyz.recognises(BackendRequest(uri="s3://box/a.XYZ?token=1"))
    True
    """

    name: str
    """By which it is registered."""
    suffixes: tuple[str, ...]
    """How names of its files end, lower case; for messages only where it has ``matches``."""
    open: Callable[..., Any]
    """``open(file, **options)`` returns the backend of a :data:`StoredFile`; where it has
    ``matches``, ``open(request, name, **options)``."""
    options: tuple[str, ...] = ()
    """Keywords of ``Volume`` that it takes."""
    needs: str = ""
    """Package without which it reads nothing."""
    matches: Callable[[BackendRequest], bool] | None = None
    """Recognises a request, where the end of a name does not tell."""
    rank: int = 0
    """Those of a higher rank are asked later: they look into files."""

    def recognises(self, request: BackendRequest) -> bool:
        """Whether a request is for this format; opens nothing."""
        if self.matches is not None:
            return self.matches(request)
        return location_of(request).lower().endswith(self.suffixes)

    def backend(self, request: BackendRequest) -> Any:
        """Return the backend that a request asks for."""
        name, options = (
            public_name(str(request.source or location_of(request))),
            request.reader_kwargs,
        )
        no_options(options, name, self.options)
        if self.matches is not None:
            return self.open(request, name, **options)
        if request.path is None:
            file = RemoteStoredFile(request.uri or "", request.storage_options, name)
            return self.open(file, **options)
        path = os.fspath(request.path)
        return self.open(LocalStoredFile(path, name, request.io, request.follow), **options)


def location_of(request: BackendRequest) -> str:
    """Return the path, or the URL without its query."""
    return os.fspath(request.path) if request.path else public_name(request.uri or "")


class FilesBackend(Backend):
    """A backend of one or more files, that of the voxels last: in which version they are read."""

    def __init__(self, files: Sequence[StoredFile], header: Header, name: str) -> None:
        self.files = tuple(files)
        self.remote = bool(files) and isinstance(files[-1], RemoteFile)
        stamp = header.stamp or tuple(number for file in files for number in file.stamp)
        super().__init__(replace(header, stamp=stamp), name)

    @property
    def is_current(self) -> bool:
        """Whether every file is still the one that was opened."""
        return all(file.is_current for file in self.files)

    def is_as_of(self, moment: int) -> bool:
        """Whether no local one was replaced since by another of its size and time of writing."""
        local = [file for file in self.files if isinstance(file, LocalStoredFile)]
        return self.is_current and not any(file.is_changed_since(moment) for file in local)

    @cached_property
    def version(self) -> Hashable:
        """Return sizes and times of writing, or what a store says instead."""
        return self.header.stamp or (self.content_key if self.files else ())

    @property
    def content_key(self) -> str:
        """A name for these files in these versions; empty where nobody can tell."""
        return joined_key([file.content_key for file in self.files])


def joined_key(keys: Sequence[str]) -> str:
    """Return one key for several files; empty if one of them has none."""
    if len(keys) == 1 or not all(keys):
        return keys[0] if all(keys) else ""
    return content_key("+".join(keys), ())


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
