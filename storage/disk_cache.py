"""The local folder of decoded volumes and statistics, with its entries, locks and checksums.

A trusted entry belongs to this user or root, and no other user can write to it. In a folder that
other users can write to, each user has a subfolder with a random name, found by its owner.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import secrets
import stat
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ..core.call_site import WarnOnce
from ..core.errors import BadSetting, CacheBusy, CacheUnused, VoxpipeError
from ..core.locks import renew_after_fork
from ..core.settings import CACHE, CACHE_BYTES, read_setting
from .location import is_url, local_path, public_name

T = TypeVar("T")

# A few dozen decoded CT scans (512³ int16 are 0.27 GB); leaves room on a 100 GB disk.
DEFAULT_BUDGET = 32 * 1024**3
# For each kind of result (statistics, histograms, boxes, tables): the results of 100 000 volumes.
MOST_KEPT_BYTES = 1024**3
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors without room: of the disk, the quota of the user, or the process (``ulimit -f``)."""
FAILING = FULL | {errno.EIO}  # errors of a disk that is full or broken
# Seconds for a pass over 120 GB at 200 MB/s; later each process makes its own entry.
LONGEST_PASS = 600.0
# Opening a pipe does not wait for a writer.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)
_BLOCK = 4096
# The first line of an entry holds this, the length in bytes and the digest.
_MAGIC = b"voxpipe-entry-1"
_ONCE = WarnOnce()
_BETWEEN_REMOVALS = 64
_WRITE_NUMBERS = itertools.count(1)
# Short compared with decoding a volume, long compared with one attempt at a lock.
POLL_SECONDS = 0.02
# Attempts to open a lock while other processes may remove a link in its place.
_LOOKS = 10
READ_ONLY_ERRORS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ELOOP})
"""Errors of a folder without write access, or with a link in the place of a file."""
# Refuses to follow a link that another user may have created.
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$VOXPIPE_CACHE``, else ``voxpipe`` in the user's cache directory (XDG)."""
    if place := read_setting(CACHE, "", environment):
        if is_url(place):
            msg = f"{CACHE} is {public_name(place)}, and the cache is on a local disk."
            raise BadSetting(msg, do="Set it to a folder, or unset it.")
        return own_folder(Path(local_path(place)))
    root = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return own_folder(Path(root) / "voxpipe")


RESULTS = ("boxes", "digests", "histograms", "index", "items", "sampling", "statistics", "sums")
"""Folders of small results in the cache directory. Other files there are not of voxpipe."""


def results_folder(kind: str) -> Path:
    """Return the folder of results of one kind, which ``voxpipe cache`` lists and clears."""
    if kind not in RESULTS:
        raise ValueError(f"{kind!r} is none of RESULTS, which voxpipe cache lists")
    return cache_directory() / kind


def own_folder(place: Path) -> Path:
    """Return a trusted folder as it is, or this user's own subfolder of one open to others.

    The subfolder is ``user-UID-...`` with a random end, so that no other user can create it, or an
    entry in it, beforehand. Return the folder itself if no subfolder can be made.
    """
    with suppress(OSError):
        if is_trusted(os.stat(place)):
            return place
        mine = f"user-{os.geteuid()}-"
        for is_made in (False, True):
            if is_made:
                name = f"{mine}{time.time_ns():020}-{secrets.token_hex(8)}"
                (place / name).mkdir(mode=0o700)
            # Two processes may have made one each: both use the oldest by name.
            for own in sorted(place.glob(f"{mine}*")):
                status = own.lstat()
                private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
                if private and stat.S_ISDIR(status.st_mode):
                    return own
    return place


def is_trusted(status: os.stat_result) -> bool:
    """Whether only this user or root can write to a file or folder."""
    if not hasattr(os, "geteuid"):  # no POSIX owners
        return True
    writable = stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid in (os.geteuid(), 0) and not writable


def cache_budget(environment: Mapping[str, str] = os.environ) -> int:
    """Return the most bytes of decoded volumes: ``$VOXPIPE_CACHE_BYTES``, else 32 GiB."""
    budget: int = read_setting(CACHE_BYTES, DEFAULT_BUDGET, environment)
    return budget


def make_directory(directory: Path) -> Path:
    """Make a directory that only the user can read, because it will hold patient scans."""
    # ``parents=True`` would make the parents readable by all users.
    for place in (*reversed(directory.parents), directory):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)
    return directory


def write_whole(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a private file so that other processes see all of it or nothing."""
    make_directory(path.parent)
    write_beside(path, [content], mode=0o600, sync=sync)


def write_entry(path: Path, content: bytes) -> None:
    """Write a small entry with a checksum; sometimes remove the oldest entries of its folder."""
    write_whole(path, with_check_sum(content))
    if next(_WRITE_NUMBERS) % _BETWEEN_REMOVALS:
        return
    entries = []
    for entry in path.parent.iterdir():
        with suppress(OSError):
            status = entry.stat()
            # A file of one byte takes a block of the disk.
            entries.append((status.st_mtime_ns, max(status.st_size, _BLOCK), entry))
    make_room(entries, MOST_KEPT_BYTES)


def remove_file(path: Path) -> bool:
    """Remove an entry that is a file, and its checksums; return whether it is gone."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        (path.parent / SUMS / path.stem).unlink()
    return not path.exists()


def make_room(
    files: Sequence[tuple[float, int, Any]], most: int, remove: Callable[[Any], bool] = remove_file
) -> int:
    """Remove files, the least recently used first, until at most ``most`` bytes are left.

    A file is (time of last use, bytes, path), and ``remove`` returns whether a path is gone. Return
    the bytes that are left.
    """
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total > most and remove(path):
            total -= size
    return total


def with_check_sum(content: bytes) -> bytes:
    """Return an entry: a line with its length and checksum, then the content."""
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return b"%s %d %s\n%s" % (_MAGIC, len(content), digest.encode(), content)


def read_entry(path: Path) -> bytes | None:
    """Return the content of an entry; None if it was cut, changed, or is not trusted."""
    with suppress(OSError), open(path, "rb", opener=open_trusted) as file:
        entry = file.read()
        content = entry.partition(b"\n")[2]
        return content if entry == with_check_sum(content) else None
    return None


def load_entry(path: Path, decode: Callable[[bytes], T | None]) -> T | None:
    """Return the decoded content of an entry; None for a missing or unreadable one."""
    with suppress(ValueError, TypeError, LookupError, AttributeError, EOFError, OSError):
        content = read_entry(path)
        return None if content is None else decode(content)
    return None


def get_or_make(
    file: Path | None,
    decode: Callable[[bytes], T | None],
    make: Callable[[], T],
    encode: Callable[[T], bytes],
    *,
    is_current: Callable[[], bool] = lambda: True,
    patience: float = LONGEST_PASS,
) -> T:
    """Return the value of an entry; make it if the entry is missing or damaged, or has no ``file``.

    One process makes the value, and the others wait for its file. Each process makes its own value
    without a lock (a read-only disk, a system without ``flock``), or after ``patience`` seconds.
    The entry is written only while the source that names the file ``is_current``.
    """
    if file is None:
        return make()
    if (value := load_entry(file, decode)) is not None:
        return value
    with _alone(file, time.monotonic() + patience) as has_lock:
        value = load_entry(file, decode) if has_lock else None
        if value is None:
            value = make()
            content = encode(value) if is_current() else None
            try:
                if content is not None:
                    write_entry(file, content)
            except OSError as error:  # the entry only saves time, so a full disk is no error
                if error.errno in FAILING:
                    warn_unused(file.parent, 0, f"the {file.parent.name}", error, MOST_KEPT_BYTES)
        return value


@contextmanager
def _alone(file: Path, deadline: float) -> Iterator[bool]:
    """Lock an entry against other writers; yield whether the lock was taken."""
    with ExitStack() as stack:
        lock: FileLock | None = None
        with suppress(OSError, ImportError, CacheBusy):  # busy: another process held it too long
            make_directory(file.parent)
            busy = partial(CacheBusy, "waited too long.", do="")
            lock = stack.enter_context(hold_lock(Path(f"{file}.lock"), deadline, busy))
            stack.callback(lock.remove)
        yield lock is not None


def pause(deadline: float, busy: Callable[[], VoxpipeError]) -> None:
    """Wait before the next attempt; raise the error of ``busy`` after the deadline."""
    if time.monotonic() >= deadline:
        raise busy()
    time.sleep(POLL_SECONDS)


def open_lock(path: Path) -> BinaryIO:
    """Open the file of a lock, creating it if needed.

    A link in its place is replaced and not followed. An existing lock in a folder without write
    access is opened for reading.
    """
    for _ in range(_LOOKS):
        try:
            return _open_lock(path)
        except OSError as error:
            # ELOOP or ENOENT: another process may be removing a link at this moment.
            is_link_removal = error.errno == errno.ENOENT and path.parent.is_dir()
            if error.errno != errno.ELOOP and not is_link_removal:
                raise
        _remove_link(path)
    return _open_lock(path)


def _open_lock(path: Path) -> BinaryIO:
    try:
        return open(os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o600), "r+b", buffering=0)
    except OSError as error:
        if error.errno not in READ_ONLY_ERRORS:
            raise
        return open(os.open(path, os.O_RDONLY | NO_LINK), "rb", buffering=0)


def _remove_link(path: Path) -> None:
    """Remove a link, one process at a time: another process may have put a lock there."""
    import fcntl

    fd = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # held only during this removal
        if stat.S_ISLNK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
    finally:
        os.close(fd)


class FileLock(AbstractContextManager["FileLock"]):
    """Lock of the kernel on a file, held until the file is closed. A forked child holds none."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._path, self.file = path, file
        renew_after_fork(self)

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def after_fork(self) -> None:
        """Close the file in a forked child, because any open copy would keep the lock."""
        self.file.close()

    @property
    def is_named(self) -> bool:
        """Whether the lock is held and its path still names its file, so that others wait."""
        with suppress(FileNotFoundError):
            if not self.file.closed:
                return os.path.samestat(os.fstat(self.file.fileno()), os.stat(self._path))
        return False

    def remove(self) -> None:
        """Remove the file while it is locked; a process that waited for it makes a new one."""
        with suppress(OSError):
            if not self.file.closed:
                self._path.unlink()


def take_lock(path: Path) -> FileLock | None:
    """Return the lock of a file, creating the file; None if another process holds the lock.

    The last owner may have removed the file and its folder.
    """
    import fcntl

    while True:
        try:
            lock = FileLock(open_lock(path), path)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            continue
        with ExitStack() as stack:
            stack.enter_context(lock)
            try:
                fcntl.flock(lock.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if lock.is_named:
                stack.pop_all()
                return lock


@contextmanager
def hold_lock(path: Path, deadline: float, busy: Callable[[], VoxpipeError]) -> Iterator[FileLock]:
    """Hold the lock of a file; poll for it until the deadline, because ``flock`` has no timeout."""
    while (lock := take_lock(path)) is None:
        pause(deadline, busy)
    with lock:
        yield lock


def open_trusted(path: str | os.PathLike[str], _flags: int = 0) -> int:
    """Open an entry for reading: a regular file without a link that no other user can write."""
    fd = os.open(path, os.O_RDONLY | NO_LINK | _AT_ONCE)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and is_trusted(status):
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "another user can write to this entry", os.fspath(path))


def open_no_link(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file for writing, without following links; an ``opener`` of ``open()``."""
    fd = os.open(path, flags | NO_LINK | _AT_ONCE | getattr(os, "O_BINARY", 0), 0o666)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "it is no regular file", os.fspath(path))


def write_beside(
    path: Path, pieces: Iterable[bytes], mode: int = 0o666, *, sync: bool = True, key: str = ""
) -> None:
    """Write a file in an existing directory through a partial file; the last writer wins.

    With ``sync`` the bytes reach the disk before the rename, so that a power failure leaves all or
    nothing. Files with a checksum need no ``sync``. A ``key`` has one writer at a time, which
    removes the partial file of a killed writer.
    """
    # Each writer needs its own partial file: a shared one could be renamed before it is complete.
    part = path.with_name(f"{path.name}.{key or uuid.uuid4().hex}.part")
    if key:
        part.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK
    try:
        with open(os.open(part, flags, mode), "wb") as file:
            file.writelines(pieces)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the file system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | NO_LINK)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def warn_unused(
    folder: Path,
    size: int,
    content: str,
    error: OSError,
    limit: int | None,
    variable: str = CACHE,
) -> None:
    """Warn once per folder that reading continues without the cache."""
    free = ""
    with suppress(OSError, AttributeError):
        status = os.statvfs(folder)
        free = f"{status.f_bavail * status.f_frsize} bytes are free there, and "
    budget = "it has no limit" if limit is None else f"{CACHE_BYTES} allows {limit}"
    bytes_of = f"the {size} bytes of {content}" if size else content
    _ONCE.warn(
        str(folder),
        f"the cache {folder} cannot take {bytes_of}: {error.strerror or error} ({free}{budget}). "
        f"Reading goes on without it, more slowly: make room, or point {variable} to a directory "
        "that you may write to.",
        CacheUnused,
    )


# Length and checksum of entries, to make cut or changed ones again.
#
# Reading whole volumes at each open would cost as much as decoding them. A power failure can cut an
# entry unnoticed. So checksums are verified once after each boot, and when the size or write time
# of a file has changed.

SUMS = "sums"  # folder of the checksums, in the folder of the entries
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIECE_BYTES = 4 * 1024**2
# States that this process has verified, for folders without write access.
_LOOKED_THROUGH: set[tuple[Any, ...]] = set()

Sums = dict[str, tuple[int, int, int]]
"""Bytes, CRC-32 and write time in nanoseconds by name in the entry; the name of a file is empty."""


@cache
def boot() -> str:
    """Return the identifier of this boot of the machine; empty if unknown."""
    with suppress(OSError):
        return _BOOT.read_text("ascii").strip()
    return ""


def seal(entry: Path, sums: Path | None = None) -> None:
    """Flush an entry to the disk before its rename; write its checksums to ``sums``, if given."""
    files: Sums = {}
    for name, path in reversed(list(_paths(entry))):
        status = os.lstat(path)
        if sums is not None and stat.S_IMODE(status.st_mode) & 0o022:
            os.chmod(path, stat.S_IMODE(status.st_mode) & ~0o022)
        if stat.S_ISDIR(status.st_mode):
            sync_folder(Path(path))
            continue
        with open(path, "rb", opener=open_trusted if sums is not None else None) as file:
            os.fsync(file.fileno())
            if sums is not None:
                files[name] = (status.st_size, check_sum(file), status.st_mtime_ns)
    if sums is not None:
        _note(sums, files)


def is_sound(entry: Path, sums: Path, size: int | None = None) -> bool:
    """Whether an entry is complete, unchanged since :func:`seal`, and trusted."""
    if (note := read_entry(sums)) is None:
        return False
    with suppress(OSError, ValueError, TypeError, KeyError):
        document = json.loads(note)
        records: Sums = {str(name): tuple(sum_) for name, sum_ in document["files"].items()}
        statuses: dict[str, os.stat_result] = {}
        for name, path in _paths(entry):
            status = os.lstat(path)
            regular = stat.S_ISREG(status.st_mode)
            if not is_trusted(status) or not (regular or stat.S_ISDIR(status.st_mode)):
                return False  # another user may have written it
            if regular:
                statuses[name] = status
        if {name: status.st_size for name, status in statuses.items()} != {
            name: length for name, (length, _, _) in records.items()
        }:
            return False
        if size is not None and sum(length for length, _, _ in records.values()) != size:
            return False
        same_times = all(statuses[name].st_mtime_ns == at for name, (_, _, at) in records.items())
        if same_times and document["boot"] == boot() != "":
            return True
        return _is_unchanged(entry, sums, records, statuses)
    return False


def check_sum(file: Any) -> int:
    """Return the CRC-32 of the rest of an open file."""
    crc32, total = zlib.crc32, 0
    with suppress(ImportError):  # same result, four times as fast
        from isal.isal_zlib import crc32
    while piece := file.read(_PIECE_BYTES):
        total = crc32(piece, total)
    return total


def _is_unchanged(
    entry: Path, sums: Path, records: Sums, statuses: dict[str, os.stat_result]
) -> bool:
    """Verify the checksums of all files; record the result, for all processes if possible."""
    state = tuple(
        (name, status.st_dev, status.st_ino, status.st_mtime_ns, records[name])
        for name, status in sorted(statuses.items())
    )
    if state in _LOOKED_THROUGH:
        return True
    for name in records:
        with open(entry / name if name else entry, "rb", opener=open_trusted) as file:
            if check_sum(file) != records[name][1]:
                return False
    _LOOKED_THROUGH.add(state)
    with suppress(OSError):
        _note(sums, {n: (*records[n][:2], statuses[n].st_mtime_ns) for n in records})
    return True


def _note(sums: Path, files: Sums) -> None:
    content = json.dumps({"boot": boot(), "files": files}).encode()
    # No sync: a cut file of checksums only makes the entry again.
    write_whole(sums, with_check_sum(content), sync=False)


def _paths(entry: Path) -> Iterator[tuple[str, str]]:
    """Yield name and path of an entry and of all files and folders in it, outer ones first."""
    yield "", str(entry)
    if not stat.S_ISDIR(os.lstat(entry).st_mode):
        return
    for place, folders, files in os.walk(entry):
        for name in sorted([*folders, *files]):
            path = os.path.join(place, name)
            yield os.path.relpath(path, entry), path
