"""Formats and their files: local, mapped or remote."""

from __future__ import annotations

import contextlib
import mmap
import operator
import os
import posixpath
import stat
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, BinaryIO
from urllib.parse import unquote

from ...core.call_site import shorten
from ...core.errors import (
    BadHeader,
    LeadsOutside,
    MissingDependency,
    SampleError,
    TruncatedVolume,
    UnknownName,
    VolumeChanged,
    VolumeError,
    VolumeNotFound,
    VolumeReadError,
    VoxpipeError,
)
from ...core.locks import renew_after_fork
from ...core.lru_cache import cached_property
from ...core.settings import MAPPED_BYTES, read_setting
from ...core.suggest import path_hint
from ...storage.content import content_key
from ...storage.file_reader import (
    HINTS,
    RENUMBERING_KINDS,
    Folder,
    LocalRanges,
    RowBlocks,
    cannot_open,
    changed_at,
    file_system_at,
    is_network,
    leads_outside,
    open_regular,
)
from ...storage.location import is_url, public_name
from ...storage.ranges import LOCAL_GAP, LOCAL_RUN, CoalescePolicy, StoredBox, coalesce_policy
from ...storage.remote import RemoteFile, open_remote
from ..backend import Backend
from ..header import Header
from ..registry import BackendRequest
from ..session import opening_session

# Local files: opening, and mapping within a bound.
#
# A touched page of a mapped file stays in the resident size of the process, which grows towards the
# size of the data set. The pages belong to the page cache and cost nothing while memory is free,
# but ``top`` and the limits of containers count them. So ``Maps`` counts the bytes of reads. Above
# a bound it releases pages: of the same file outside the present read, then of the least recently
# read files. These stay in the page cache; mapping 16 of them again takes two microseconds.


# Small, because each worker has its own bound. The pages of the present patch stay in any case. The
# next patch shares some of them: up to 34 MB of image and label of 96^3.
MOST_MAPPED_BYTES = 24 * 1024**2
# For each further thread, because threads release each other's pages. Two threads with 24 MiB took
# 5.43 ms of processors a patch, with 32 MiB 5.12, with 40 MiB 5.0.
_MORE_MAPPED_BYTES = 8 * 1024**2
# The kernel maps pages around a touched one: 64 KiB (fault_around_bytes), or the whole piece of the
# page cache, at most 2 MiB.
MAPPED_AROUND = 64 * 1024
_LARGEST_PIECE = 2 * 1024**2
# Pages released while another thread reads them are mapped again without being counted. So they are
# released at several later reads too, by which that read has ended.
_TIMES = 4
_SIZE, _READER = operator.attrgetter("size"), operator.attrgetter("reader")


@dataclass(eq=False)
class _MappedPages:
    """The touched pages of a mapped file."""

    file_map: weakref.ref[MappedFile]
    path: str
    start: int  # of the map in the file
    first: int = 0  # touched bytes of the map, half open
    last: int = 0
    size: float = 0.0  # estimate of resident bytes
    times: int = 0  # releases since the last read
    reader: int = 0  # thread of the last read

    def release(self, first: int, last: int) -> None:
        """Release the pages between two offsets in the map, which may exceed its ends."""
        file_map, step = self.file_map(), mmap.PAGESIZE
        if file_map is not None:
            begin, end = max(0, -(-first // step) * step), min(len(file_map), last // step * step)
            if begin < end:
                file_map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class MappedFile(mmap.mmap):
    """A map of a file, with its touched pages."""

    pages: _MappedPages

    def prefetch(self, box: StoredBox) -> ExitStack | None:
        """Send a hint to the system that a box of an array in C order will be read."""
        # Through the path, not the map: Python holds its lock while ``madvise`` waits for the disk,
        # and both fill the same page cache. A kept descriptor would double those of a volume.
        gap, most = coalesce_policy(CoalescePolicy(LOCAL_GAP, LOCAL_RUN))
        blocks = RowBlocks(box, gap=gap, most=most)
        # The read reports errors of the file.
        with contextlib.suppress(OSError, VolumeError):
            fd = open_regular(self.pages.path)
            try:
                return HINTS.tell(fd, self.pages.start + box.offset, blocks)
            finally:
                os.close(fd)
        return None


class Maps:
    """The mapped files of one process, of which about ``most`` bytes stay resident.

    The default bound grows with the number of reading threads.
    """

    def __init__(self, most: int | None = None) -> None:
        if most is not None:
            self.__dict__["most"], self.__dict__["_more"] = most, 0
        # Files with resident pages, the most recently read last.
        self._resident: dict[_MappedPages, None] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Start with a new lock in a forked child, which has the maps too."""
        self._lock = threading.Lock()

    @cached_property
    def most(self) -> int:
        """Bound of resident bytes: ``$VOXPIPE_MAPPED_BYTES``, else 24 MiB."""
        most: int = read_setting(MAPPED_BYTES, MOST_MAPPED_BYTES)
        return most

    @cached_property
    def _more(self) -> int:
        return _MORE_MAPPED_BYTES if read_setting(MAPPED_BYTES, None) is None else 0

    def add(self, file: BinaryIO, start: int = 0, length: int = 0) -> MappedFile:
        """Map a file for reading, or a part that starts at a page; the file may then be closed."""
        file_map = MappedFile(file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
        try:
            path = os.readlink(f"/proc/self/fd/{file.fileno()}")  # the file may have a new name
        except OSError:
            path = os.path.abspath(str(file.name))
        file_map.pages = _MappedPages(weakref.ref(file_map), path, start)
        return file_map

    def touch(self, file_map: MappedFile, size: float, first: int = 0, last: int = 0) -> None:
        """Count bytes of a map before their read, and release pages above the bound.

        Counts ``size`` bytes between two offsets, or anywhere in the map. Views stay valid: the
        system maps their pages again.
        """
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        with self._lock:
            now, end = file_map.pages, last or len(file_map)
            self._resident.pop(now, None)
            self._resident[now] = None
            now.times, now.reader = 0, threading.get_ident()
            before, start, stop = now.size, now.first, now.last
            was_read = stop > start
            now.first, now.last = (min(first, start), max(end, stop)) if was_read else (first, end)
            # An upper bound: bytes that two reads share count twice.
            now.size = min(now.last - now.first, before + size)
            # Threads whose files were just released are still readers.
            total, readers = sum(map(_SIZE, self._resident)), set(map(_READER, self._resident))
            most = self.most + self._more * (len(readers) - 1)
            if total <= most:
                return
            if was_read:
                now.release(start - _LARGEST_PIECE, first if last else stop)
                now.release(end, stop + _LARGEST_PIECE)
            total += size - now.size
            now.first, now.last, now.size = first, end, size
            for other in [*self._resident][:-1]:
                if other.size and total <= most:
                    continue
                other.release(other.first - _LARGEST_PIECE, other.last + _LARGEST_PIECE)
                total, other.size, other.times = total - other.size, 0.0, other.times + 1
                if other.times == _TIMES:
                    del self._resident[other]


MAPS = Maps()
"""The maps of this process."""


# Size and modification time (ns), which identify a version of a file.
_stamp_of = operator.attrgetter("st_size", "st_mtime_ns")
_MISSING = (-1, -1)


class LocalStoredFile:
    """A regular local file, in its version at construction.

    An ``optional`` file may be missing, and must then stay missing.
    """

    def __init__(
        self,
        path: str,
        name: str = "",
        io: str = "auto",
        follow: str = "same_folder",
        *,
        optional: bool = False,
    ) -> None:
        self.path, self.name, self.io, self.follow = path, name or path, io, follow
        self._optional = optional
        self.seen_as: tuple[str, ...] = ()  # how it is read, if not as its header says
        self.stamp: tuple[int, ...] = _MISSING
        self.size = -1  # in bytes
        self._identity = (0, 0)
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if optional:
                return
            raise VolumeNotFound(f"there is no file {path}.", do=path_hint(path)) from None
        except (OSError, ValueError) as error:  # too long, no access, a NUL in it
            raise VolumeReadError(f"{path!r} cannot be opened: {error}.", do="Check it.") from None
        # A pipe would block, and a device has no end.
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise BadHeader(f"{path} is {kind}.", do="Give the path of a file.")
        self.stamp, self.size = _stamp_of(status), status.st_size
        self._identity = status.st_dev, status.st_ino

    @property
    def is_current(self) -> bool:
        """Whether the path has the file of construction, with its size and modification time."""
        return self.is_as_of(None)

    def is_as_of(self, moment: int | None) -> bool:
        """Whether it is current and unchanged since ``moment``, in nanoseconds since 1970."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            if self._optional:
                return self.stamp == _MISSING
            if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise VolumeNotFound(f"there is no file {self.path}.") from None
            raise cannot_open(self.path, error) from error
        if _stamp_of(status) != self.stamp:
            return False
        # Linux stamps files by a clock that ticks every few milliseconds. A copy that replaces a
        # file and its modification time may seem older than the moment: compare inodes too.
        is_same = self._identity == (status.st_dev, status.st_ino)
        latest = max(status.st_mtime_ns, status.st_ctime_ns)
        is_new = moment is not None and latest > moment and changed_at(status) > moment
        if is_same and not is_new:
            return True
        # File servers have clocks of their own: compare only size and modification time there.
        kind = file_system_at(self.path)
        return bool(is_network(kind)) or (kind in RENUMBERING_KINDS and not is_new)

    @property
    def content_key(self) -> str:
        """Digest of path, size and modification time."""
        return content_key(self.path, (*self.stamp, *self.seen_as))

    cache_key = content_key  # the two differ for remote files

    @property
    def store(self) -> LocalRanges:
        """Store that reads ranges of :attr:`key`."""
        return LocalRanges(os.path.dirname(self.path))

    @property
    def key(self) -> str:
        """Key in :attr:`store`."""
        return os.path.basename(self.path)

    def head(self, length: int) -> bytes:
        """Return the first bytes, at most ``length``."""
        with self.open() as file:
            return file.read(length)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file; raise ``VolumeChanged``, ``VolumeNotFound`` or ``BadHeader`` if not."""
        try:
            file = open(self.path, "rb", opener=open_regular)  # noqa: SIM115  closed below
        except (FileNotFoundError, NotADirectoryError):
            msg = f"there is no file {self.path}."
            raise VolumeNotFound(msg, do=path_hint(self.path)) from None
        with file:
            if _stamp_of(os.fstat(file.fileno())) != self.stamp:
                raise VolumeChanged(f"{self.name} was written again since its header was read.")
            yield file

    def beside(self, reference: str) -> LocalStoredFile:
        """Return the file of a reference in this one, relative to its folder."""
        folder = os.path.dirname(os.path.abspath(self.path))
        path = os.path.join(folder, reference)
        if self.follow != "anywhere" and "\0" not in path:
            name = f"{self.name}, which names {shorten(reference)},"
            # Check the text first, because links of missing files cannot be resolved.
            if not os.path.normpath(path).startswith(os.path.join(folder, "")):
                raise leads_outside(name, os.path.normpath(path))
            self._refuse_link(path, name)
        return self._other(path, "voxels of")

    def with_suffix(self, old: str, new: str) -> LocalStoredFile:
        """Return the file with another suffix, in upper or lower case as before."""
        path = _with_suffix(self.path, old, new)
        if self.follow != "anywhere":
            self._refuse_link(path, f"{self.name}, in whose folder is {shorten(path)},")
        return self._other(path, "in the folder of")

    def _other(self, path: str, relation: str) -> LocalStoredFile:
        with _named_by(self.name):
            return LocalStoredFile(path, f"{path} ({relation} {self.name})", self.io, self.follow)

    def _refuse_link(self, path: str, name: str) -> None:
        # This file may be a link itself, in a folder of links: allow its target's folder too.
        places = (os.path.abspath(self.path), os.path.realpath(self.path))
        if not any(Folder(os.path.dirname(place)).holds(path) for place in places):
            raise leads_outside(name, os.path.realpath(path))


class RemoteStoredFile(RemoteFile):
    """A file at a URL, with the methods of a local one."""

    stamp: tuple[int, ...] = ()
    io = "auto"
    key = ""

    def __init__(self, url: str, options: Mapping[str, Any], name: str = "") -> None:
        super().__init__(url, options, name or public_name(url), opening_session().ahead)

    def beside(self, reference: str) -> RemoteStoredFile:
        # A store may treat "..", its escapes and a backslash as a folder above.
        parts = unquote(reference).replace("\\", "/").split("/")
        if is_url(reference) or not parts[0] or ".." in parts:
            msg = f"{self.name} refers to voxels at {public_name(reference)!r}."
            raise LeadsOutside(msg, do="Put them into the folder of the header, or below it.")
        return self._other(posixpath.join(posixpath.dirname(self._url), reference))

    def with_suffix(self, old: str, new: str) -> RemoteStoredFile:
        return self._other(_with_suffix(self._url, old, new))

    def _other(self, url: str) -> RemoteStoredFile:
        with _named_by(self.name):
            name = f"{public_name(url)} (in the folder of {self.name})"
            return RemoteStoredFile(url, self._options, name)


StoredFile = LocalStoredFile | RemoteStoredFile
"""One version of a file, as formats open it; holds no handle."""


def common_store(files: Sequence[StoredFile]) -> tuple[Any, list[str]]:
    """Return one store of several files, and their keys in it."""
    local = [file.path for file in files if isinstance(file, LocalStoredFile)]
    if local and len(local) == len(files):
        return LocalRanges(os.sep), [os.path.abspath(path)[1:] for path in local]
    remote = [file for file in files if isinstance(file, RemoteStoredFile)]
    if len(files) == len(remote) == 1:
        return remote[0].store, [""]
    folders = {posixpath.dirname(file._url) for file in remote}
    if len(remote) != len(files) or len(folders) != 1:
        msg = f"{files[0].name} is one of {len(files)} files in several places"
        raise SampleError(msg, do="Put remote files of one volume into one folder.")
    store, keys = open_remote(folders.pop(), remote[0]._options), list[str]()
    for file in remote:
        keys.append(posixpath.basename(file._url))
        store.expect(keys[-1], file._facts)
    return store, keys


def place_in_archive(name: str) -> str:
    """Return the path in the archive of ``zip://a.nii.gz::s3://b/c.zip``; other names unchanged."""
    inside = name.partition("::")[0]
    return inside if inside.partition("://")[2] else name


@dataclass(frozen=True)
class Format:
    """A format of voxpipe, listed in ``FORMATS`` of its module in ``formats/``.

    Examples
    --------
    >>> xyz = Format("xyz", (".xyz",), lambda file: f"the backend of {file.name}")
    >>> xyz.recognises(BackendRequest(uri="s3://box/a.XYZ?token=1"))
    True
    """

    name: str
    """Name for the registry."""
    suffixes: tuple[str, ...]
    """Suffixes of file names, lower case; only for messages if it has ``matches``."""
    open: Callable[..., Any]
    """``open(file, **options)`` returns the backend of a :data:`StoredFile`. With ``matches`` the
    call is ``open(request, name, **options)``."""
    options: tuple[str, ...] = ()
    """Keywords of ``Volume`` for ``open``."""
    needs: str = ""
    """Package that it requires."""
    matches: Callable[[BackendRequest], bool] | None = None
    """Recognises a request, for formats without a suffix."""
    rank: int = 0
    """Order of the formats; those that open files to recognise them have a higher rank."""

    def recognises(self, request: BackendRequest) -> bool:
        """Whether a request is for this format; does not open it."""
        if self.matches is not None:
            return self.matches(request)
        place = os.fspath(request.path) if request.path else public_name(request.uri or "")
        place = place_in_archive(place) if "::" in place else place
        return place.lower().endswith(self.suffixes)

    def backend(self, request: BackendRequest) -> Any:
        """Return the backend of a request; ``UnknownName``, a ``TypeError``, for other options."""
        name = public_name(str(request.source or request.path or request.uri or ""))
        options = request.reader_kwargs
        unknown = [key for key in options if key not in self.options]
        if unknown:
            have = ", ".join(self.options) or "none"
            msg = f"{name} was opened with unknown option {unknown[0]!r}; its format has: {have}"
            do = f"Leave ⟦{unknown[0]}=⟧ out, or write one that the format has."
            raise UnknownName(msg, do=do, argument=unknown[0])
        if self.matches is not None:
            return self.open(request, name, **options)
        if request.path is None:
            file = RemoteStoredFile(request.uri or "", request.storage_options, name)
            return self.open(file, **options)
        path = os.fspath(request.path)
        return self.open(LocalStoredFile(path, name, request.io, request.follow), **options)


class FilesBackend(Backend):
    """Backend of one or more file versions, the file of the voxels last."""

    def __init__(self, files: Sequence[StoredFile], header: Header, name: str) -> None:
        self.files = tuple(files)
        self.remote = bool(files) and isinstance(files[-1], RemoteFile)
        stamp = header.stamp or tuple(number for file in files for number in file.stamp)
        super().__init__(replace(header, stamp=stamp), name)

    folder: Any = None
    """Version of the folder in which the files were found, if they were."""

    @property
    def is_current(self) -> bool:
        same_folder = self.folder is None or self.folder.is_current
        return same_folder and all(file.is_current for file in self.files)

    def is_as_of(self, moment: int) -> bool:
        """Whether no file has changed; of local ones, also since ``moment``."""
        return all(
            file.is_as_of(moment) if isinstance(file, LocalStoredFile) else file.is_current
            for file in self.files
        )

    @cached_property
    def version(self) -> Hashable:
        return self.header.stamp or (self.content_key if self.files else ())

    @property
    def content_key(self) -> str:
        return joined_key([file.content_key for file in self.files])


def joined_key(keys: Sequence[str]) -> str:
    """Return one key for several files; empty if a file has none."""
    if len(keys) == 1 or not all(keys):
        return keys[0] if all(keys) else ""
    return content_key("+".join(keys), ())


def check_size(name: str, size: int, minimum: int) -> None:
    """Raise ``TruncatedVolume`` for a file that is shorter than its header claims."""
    if size < minimum:
        raise TruncatedVolume(f"{name} holds {size} bytes, and its header claims {minimum}.")


@contextmanager
def _named_by(header: str) -> Iterator[None]:
    """Add the name of the header to errors of a file that it refers to."""
    try:
        yield
    except VolumeError as error:
        if header not in error.message:
            error.message = f"{error.message.rstrip('.')}, to which {header} refers."
        raise


def _with_suffix(location: str, old: str, new: str) -> str:
    """Return a location with another suffix.

    Examples
    --------
    >>> _with_suffix("s3://b/a.IMG.gz?x=1", ".img", ".hdr")
    's3://b/a.HDR.gz?x=1'
    """
    at = location.lower().rfind(old)
    suffix = new.upper() if location[at : at + len(old)].isupper() else new
    return location[:at] + suffix + location[at + len(old) :]


def import_package(package: str, name: str) -> Any:
    """Return the module that a format requires; raise ``MissingDependency`` without it."""
    try:
        return import_module(package)
    except ImportError:
        what = f"reading {name} needs {package}, which is not installed."
        raise MissingDependency(what, do=f"pip install {package}") from None


@contextmanager
def library_errors(
    what: str, do: str = "", kind: type[VolumeError] = BadHeader, but: tuple[Any, ...] = ()
) -> Iterator[None]:
    """Raise the exceptions of a library as errors of the file, except ``but``."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (VoxpipeError, MemoryError, *but)):
            raise
        raise kind(f"{what}: {type(error).__name__}: {error}.", do=do) from error


# Git LFS specifies this first line; git-annex writes a path.
_LFS = b"version https://git-lfs"
_ANNEX = (b"/annex/objects/", b"../.git/annex/")
_PAGE = (b"<!doctype", b"<html", b"<?xml")
_ARCHIVES = {b"(\xb5/\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}


def what_to_do(head: bytes, otherwise: str = "") -> str:
    """Return the advice for a file that is not a volume, by its first bytes.

    Examples
    --------
    >>> what_to_do(b"version https://git-lfs.github.com/spec/v1")
    'It is a pointer of Git LFS: fetch the file itself with "git lfs pull".'
    >>> what_to_do(b"<html><body>404")
    'It is a web page, an error or a log-in perhaps: download the file again.'
    >>> what_to_do(b"n+1", "Check it.")
    'Check it.'
    """
    if kinds := [kind for magic, kind in _ARCHIVES.items() if head.startswith(magic)]:
        return f"It is compressed with {kinds[0]}: decompress it, or compress it with gzip."
    if head.startswith(_LFS):
        return 'It is a pointer of Git LFS: fetch the file itself with "git lfs pull".'
    if head.startswith(_ANNEX):
        return 'It is a pointer of git-annex: fetch the file itself with "git annex get".'
    if head.lstrip().lower().startswith(_PAGE):
        return "It is a web page, an error or a log-in perhaps: download the file again."
    return otherwise
