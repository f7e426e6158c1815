"""The files of a format, local or behind a URL, how they are mapped, and what a format is."""

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
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from ...core.call_site import shorten
from ...core.errors import (
    BadHeader,
    LeadsOutside,
    MissingDependency,
    TruncatedVolume,
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
from ...storage.file_reader import HINTS, RENUMBERING_KINDS, RowBlocks, file_system_at
from ...storage.location import is_url, public_name
from ...storage.ranges import (
    LOCAL_GAP,
    LOCAL_RUN,
    CoalescePolicy,
    Folder,
    LocalRanges,
    cannot_open,
    changed_at,
    coalesce_policy,
    leads_outside,
    open_regular,
)
from ...storage.remote import RemoteFile
from ..backend import Backend, no_options
from ..header import Header
from ..registry import BackendRequest
from ..session import opening_session

# Files on a local disk: opening them, and mapping them within a bound.
#
# A page of a mapped file that was touched once stays part of the process: its resident size grows
# towards the size of the data set, although the pages belong to the kernel's cache and cost nothing
# while memory is free. Limits on containers and whoever looks at ``top`` count them all the same.
# So what a process has touched is counted as it reads, and let go of when it becomes too much: of
# the file at hand what lies beside the present read, then the files that were read longest ago. The
# pages stay in the cache; those that are touched again are mapped again, 16 in two microseconds.


def open_local(path: str) -> BinaryIO:
    """Open a local file for reading; ``VolumeNotFound`` where there is none, ``BadHeader`` else."""
    try:
        return open(path, "rb", opener=open_regular)
    except (FileNotFoundError, NotADirectoryError):
        raise VolumeNotFound(f"there is no file {path}.", do=path_hint(path)) from None


def file_stamp(path: str) -> tuple[int, int]:
    """Return size and modification time (ns) of a local file; ``VolumeNotFound`` without one."""
    try:
        return stamp_of(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        raise VolumeNotFound(f"there is no file {path}.", do=path_hint(path)) from None
    except OSError as error:
        raise cannot_open(path, error) from error


def stamp_of(status: os.stat_result) -> tuple[int, int]:
    """Return what tells one version of a file from another."""
    return status.st_size, status.st_mtime_ns


# What the next patch shares with this one stays, whatever the limit: of image and label of 96^3 up
# to 34 MB. So it can be small, as it must, because each worker has its own.
MOST_MAPPED_BYTES = 24 * 1024**2
# For each further thread: what one reads, the others else let go of. Two with 24 MiB together took
# 5.43 ms of processors a patch, with 32 MiB 5.12, with 40 MiB 5.0.
_MORE_MAPPED_BYTES = 8 * 1024**2
# What the kernel maps with a page that is touched: up to 64 KiB (fault_around_bytes) around it, or
# all of the piece in which the file is cached, at most 2 MiB.
MAPPED_AROUND = 64 * 1024
_LARGEST_PIECE = 2 * 1024**2
# What is let go of while another thread reads it is mapped again, and nobody counts that: so it is
# let go of at several later reads, too. A read of another thread ends within a few of this one's.
_TIMES = 4
_SIZE, _READER = operator.attrgetter("size"), operator.attrgetter("reader")


class Place(NamedTuple):
    """Where a mapped array lies."""

    path: str
    offset: int  # of its first byte in the file
    order: tuple[int, ...]  # its axes, the slowest first

    def prefetch(self, array: NDArray[Any], index: tuple[slice, ...]) -> ExitStack | None:
        """Tell the system that a part of the array is going to be read."""
        # By the name of the file, not through the map: Python holds its lock while ``madvise``
        # waits for the disk, and both fill the same page cache. Keeping a descriptor for this
        # would double what an open volume takes.
        lengths = [array.shape[axis] for axis in self.order]
        box = [index[axis].indices(array.shape[axis])[:2] for axis in self.order]
        gap, most = coalesce_policy(CoalescePolicy(LOCAL_GAP, LOCAL_RUN))
        blocks = RowBlocks(lengths, box, array.itemsize, gap=gap, most=most)
        # Whoever reads will find out what is wrong with the file.
        with contextlib.suppress(OSError, VolumeError):
            fd = open_regular(self.path)
            try:
                return HINTS.tell(fd, self.offset, blocks)
            finally:
                os.close(fd)
        return None


@dataclass(eq=False)
class _MappedPages:
    """What of a mapped file was touched since it was let go of."""

    file_map: weakref.ref[MappedFile]
    path: str
    start: int  # of the map in the file
    first: int = 0  # bytes of the map, half open
    last: int = 0
    size: float = 0.0  # how many of these are resident, about
    times: int = 0  # how often it was let go of since it was read last
    reader: int = 0  # the thread that read it last

    def let_go(self, first: int, last: int) -> None:
        """Let go of the pages that lie between two places of the map, or beyond its ends."""
        file_map, step = self.file_map(), mmap.PAGESIZE
        if file_map is not None:
            begin, end = max(0, -(-first // step) * step), min(len(file_map), last // step * step)
            if begin < end:
                file_map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class MappedFile(mmap.mmap):
    """A map of a file, and what of it was touched."""

    pages: _MappedPages


class Maps:
    """The mapped files of one process, of which about ``most`` bytes stay resident.

    By default some more, where several threads read them.
    """

    def __init__(self, most: int | None = None) -> None:
        if most is not None:
            self.__dict__["most"], self.__dict__["_more"] = most, 0
        # Those of which something is resident; what was read last comes last.
        self._resident: dict[_MappedPages, None] = {}
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Start with a new lock in a forked child; the maps are its own as well."""
        self._lock = threading.Lock()

    @cached_property
    def most(self) -> int:
        """Bytes that may stay: ``$VOXPIPE_MAPPED_BYTES``, else 24 MiB."""
        most: int = read_setting(MAPPED_BYTES, MOST_MAPPED_BYTES)
        return most

    @cached_property
    def _more(self) -> int:
        return _MORE_MAPPED_BYTES if read_setting(MAPPED_BYTES, None) is None else 0

    def add(self, file: BinaryIO, start: int = 0, length: int = 0) -> MappedFile:
        """Map a file for reading, or a part of it, which starts at a multiple of a page.

        The file may then be closed.
        """
        file_map = MappedFile(file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
        try:
            path = os.readlink(f"/proc/self/fd/{file.fileno()}")  # the file may have a new name
        except OSError:
            path = os.path.abspath(str(file.name))
        file_map.pages = _MappedPages(weakref.ref(file_map), path, start)
        return file_map

    def place_of(self, array: NDArray[Any]) -> Place | None:
        """Return where an array lies in a file; None for one that no map holds in one piece."""
        order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
        dense = array.transpose(order)
        owner: Any = array
        while owner is not None and not isinstance(owner, MappedFile):
            owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if owner is None or not dense.flags.c_contiguous:
            return None
        first = np.frombuffer(owner, np.uint8, 1).ctypes.data
        place = owner.pages.start + array.ctypes.data - first
        return Place(owner.pages.path, place, tuple(order))

    def touch(self, file_map: MappedFile, size: float, first: int = 0, last: int = 0) -> None:
        """Count bytes of a map that are going to be read; what is too much is let go of.

        ``size`` bytes between two places, or anywhere in the map. Views stay valid: what they touch
        again is mapped again.
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
            # What two reads share is counted twice: of that nobody keeps account.
            now.size = min(now.last - now.first, before + size)
            # Of whom all was let go of just now reads on, too.
            total, readers = sum(map(_SIZE, self._resident)), set(map(_READER, self._resident))
            most = self.most + self._more * (len(readers) - 1)
            if total <= most:
                return
            if was_read:
                now.let_go(start - _LARGEST_PIECE, first if last else stop)
                now.let_go(end, stop + _LARGEST_PIECE)
            total += size - now.size
            now.first, now.last, now.size = first, end, size
            for other in [*self._resident][:-1]:
                if other.size and total <= most:
                    continue
                other.let_go(other.first - _LARGEST_PIECE, other.last + _LARGEST_PIECE)
                total, other.size, other.times = total - other.size, 0.0, other.times + 1
                if other.times == _TIMES:
                    del self._resident[other]


MAPS = Maps()
"""The maps of this process."""


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
        self.seen_as: tuple[str, ...] = ()  # what an image says of it, if not what its header does
        self.stamp: tuple[int, ...] = _MISSING
        self._identity = (0, 0)
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if optional:
                return
            raise VolumeNotFound(f"there is no file {path}.", do=path_hint(path)) from None
        except (OSError, ValueError) as error:  # too long, not ours, a NUL in it
            raise VolumeReadError(f"{path!r} cannot be opened: {error}.", do="Check it.") from None
        # A pipe would block, and a device has no end.
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "no plain file"
            raise BadHeader(f"{path} is {what}.", do="Give the path of a file.")
        self.stamp, self._identity = stamp_of(status), (status.st_dev, status.st_ino)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stamp[0]

    @property
    def is_current(self) -> bool:
        """Whether it is the file that was opened, of the same size and time of writing."""
        return self.is_as_of(None)

    def is_as_of(self, moment: int | None) -> bool:
        """Whether it is current, and was not changed since, in nanoseconds from 1970 on."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            if self._optional:
                return self.stamp == _MISSING
            if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                raise VolumeNotFound(f"there is no file {self.path}.") from None
            raise cannot_open(self.path, error) from error
        if stamp_of(status) != self.stamp:
            return False
        # Linux stamps files by a clock that ticks every few milliseconds: a copy put in place of a
        # file, with its time of writing, may seem to be from before the moment, here to who opened
        # the one before.
        is_same = self._identity == (status.st_dev, status.st_ino)
        is_new = moment is not None and changed_at(status) > moment
        if is_same and not is_new:
            return True
        # File servers have clocks of their own: there size and time of writing are all that tells.
        system = file_system_at(self.path)
        return system.network or (system.kind in RENUMBERING_KINDS and not is_new)

    @property
    def content_key(self) -> str:
        """Path, size and time of writing, digested."""
        return content_key(self.path, (*self.stamp, *self.seen_as))

    cache_key = content_key  # behind a URL the two differ

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
                raise VolumeChanged(f"{self.name} was written again since its header was read.")
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

    def with_suffix(self, old: str, new: str) -> LocalStoredFile:
        """Return the file whose name ends otherwise; letters keep their case."""
        path = _with_suffix(self.path, old, new)
        if self.follow != "anywhere":
            self._refuse_link(path, f"{self.name}, beside which lies {shorten(path)},")
        return self._other(path, "beside")

    def _other(self, path: str, relation: str) -> LocalStoredFile:
        with _named_by(self.name):
            return LocalStoredFile(path, f"{path} ({relation} {self.name})", self.io, self.follow)

    def _refuse_link(self, path: str, name: str) -> None:
        """Raise ``LeadsOutside`` for a link that does not lead beside this file."""
        # Folders of links hold this file as a link, too: beside what it leads to is allowed as
        # well.
        places = (os.path.abspath(self.path), os.path.realpath(self.path))
        if not any(Folder(os.path.dirname(place)).holds(path) for place in places):
            raise leads_outside(name, os.path.realpath(path))


class RemoteStoredFile(RemoteFile):
    """A file behind a URL, with what a local one answers."""

    stamp: tuple[int, ...] = ()
    io = "auto"
    key = ""

    def __init__(self, url: str, options: Mapping[str, Any], name: str = "") -> None:
        super().__init__(url, options, name or public_name(url), opening_session().ahead)

    def beside(self, reference: str) -> RemoteStoredFile:
        # A store may take "..", its escapes and a backslash for a folder above.
        parts = unquote(reference).replace("\\", "/").split("/")
        if is_url(reference) or not parts[0] or ".." in parts:
            what = f"{self.name} says that its voxels are at {public_name(reference)!r}."
            raise LeadsOutside(what, do="A header behind a URL can only name files beside it.")
        return self._other(posixpath.join(posixpath.dirname(self._url), reference))

    def with_suffix(self, old: str, new: str) -> RemoteStoredFile:
        return self._other(_with_suffix(self._url, old, new))

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
        name = public_name(str(request.source or location_of(request)))
        options = request.reader_kwargs
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
        return all(file.is_current for file in self.files)

    def is_as_of(self, moment: int) -> bool:
        """Whether no local one was replaced since by another of its size and time of writing."""
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
    """Return one key for several files; empty if one of them has none."""
    if len(keys) == 1 or not all(keys):
        return keys[0] if all(keys) else ""
    return content_key("+".join(keys), ())


def check_size(name: str, size: int, minimum: int) -> None:
    """Raise ``TruncatedVolume`` for a file of fewer bytes than its header speaks of."""
    if size < minimum:
        raise TruncatedVolume(f"{name} holds {size} bytes, and its header speaks of {minimum}.")


@contextmanager
def _named_by(header: str) -> Iterator[None]:
    """Say which header it is whose other file is missing or unusable."""
    try:
        yield
    except VolumeError as error:
        if header not in error.what:
            error.what = f"{error.what.rstrip('.')}, of which {header} speaks."
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
    """Return a module without which a file cannot be read; ``MissingDependency`` without it."""
    try:
        return import_module(package)
    except ImportError:
        what = f"reading {name} needs {package}, which is not installed."
        raise MissingDependency(what, do=f"pip install {package}") from None


@contextmanager
def library_errors(
    what: str, do: str = "", kind: type[VolumeError] = BadHeader, but: tuple[Any, ...] = ()
) -> Iterator[None]:
    """Turn whatever a library raises on a file that is damaged into an error that names it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (VoxpipeError, MemoryError, *but)):
            raise
        raise kind(f"{what}: {type(error).__name__}: {error}.", do=do) from error


# The first line that the specification of Git LFS demands; git-annex writes a path instead.
_LFS = b"version https://git-lfs"
_ANNEX = (b"/annex/objects/", b"../.git/annex/")
_PAGE = (b"<!doctype", b"<html", b"<?xml")
_ARCHIVES = {b"(\xb5/\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}


def what_to_do(head: bytes, otherwise: str = "") -> str:
    """Return the advice for a file that is no volume, from its first bytes.

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
