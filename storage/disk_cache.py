"""The folder of decoded volumes and statistics on this machine, and how one process fills it.

An entry is trusted if this user wrote it, or root, and nobody else can write to it. In a folder
that others may write to as well each user has a folder of their own, of a name that nobody can
guess; it is found again by its owner.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
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
# Of each kind of number (statistics, histograms, boxes, tables): those of 100 000 volumes.
MOST_KEPT_BYTES = 1024**3
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a disk says that has no more room: for anybody, this user, or this process (ulimit -f)."""
FAILING = FULL | {errno.EIO}  # what a disk says that takes nothing more, be it full or broken
# A pass over a volume of 100 GB takes it at 200 MB/s; after that each process makes its own.
LONGEST_PASS = 600.0
# Waits for nobody: a pipe would.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)
_BLOCK = 4096
# The first line of an entry: its kind, its length in bytes and their digest.
_MAGIC = b"voxpipe-entry-1"
_ONCE = WarnOnce()
_BETWEEN_REMOVALS = 64
_WRITE_NUMBERS = itertools.count(1)


# Short beside what is waited for, a decoded or converted volume; long beside a look.
POLL_SECONDS = 0.02
# At a lock, while others may take a link away from there: each sees one more change at most.
_LOOKS = 10
READ_ONLY_ERRORS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ELOOP})
"""What a folder says that may not be written to, or where somebody put a link in our way."""
# Opens nothing that somebody put in our way.
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


def own_folder(place: Path) -> Path:
    """Return a folder, or, where others may write to it too, this user's own one in it.

    That is called ``user-UID-...`` with a random end, so that nobody else can make it, or an entry
    in it, beforehand. Where none can be made, the folder itself is returned.
    """
    with suppress(OSError):
        if is_trusted(os.stat(place)):
            return place
        mine = f"user-{os.geteuid()}-"
        for is_made in (False, True):
            if is_made:
                name = f"{mine}{time.time_ns():020}-{secrets.token_hex(8)}"
                (place / name).mkdir(mode=0o700)
            # The oldest, by name, where two were made at once.
            for own in sorted(place.glob(f"{mine}*")):
                status = own.lstat()
                private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
                if private and stat.S_ISDIR(status.st_mode):
                    return own
    return place


def is_trusted(status: os.stat_result) -> bool:
    """Whether what a file or folder holds can only come from this user, or from root."""
    if not hasattr(os, "geteuid"):  # a system without owners of this kind
        return True
    writable = stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid in (os.geteuid(), 0) and not writable


def cache_budget(environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes that decoded volumes may take: ``$VOXPIPE_CACHE_BYTES``, else 32 GiB."""
    budget: int = read_setting(CACHE_BYTES, DEFAULT_BUDGET, environment)
    return budget


def make_directory(directory: Path) -> Path:
    """Make a directory that only the user can look into: it will hold scans of people."""
    # ``parents=True`` would make the parents readable by everyone.
    for place in (*reversed(directory.parents), directory):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)
    return directory


def write_whole(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file of this user's so that others see all of it or nothing."""
    make_directory(path.parent)
    write_beside(path, [content], mode=0o600, sync=sync)


def write_entry(path: Path, content: bytes) -> None:
    """Write a small entry with a check sum; now and then the oldest beside it are removed."""
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


def make_room(entries: Iterable[tuple[int, int, Path]], most: int) -> int:
    """Remove files, the least recently used first, until at most ``most`` bytes are left.

    An entry has the time of last use, the bytes and the path. Returns the bytes that are left.
    """
    by_age = sorted(entries)
    total = sum(size for _, size, _ in by_age)
    for _, size, path in by_age:
        if total <= most:
            break
        if remove_file(path):
            total -= size
    return total


def remove_file(path: Path) -> bool:
    """Remove an entry that is a file, and its check sums; say whether it is gone."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        (path.parent / SUMS / path.stem).unlink()
    return not path.exists()


def with_check_sum(content: bytes) -> bytes:
    """Return an entry: its length and a check sum in a line, and the content after it."""
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return b"%s %d %s\n%s" % (_MAGIC, len(content), digest.encode(), content)


def read_entry(path: Path) -> bytes | None:
    """Return what :func:`write_entry` wrote; None for what was cut, changed or is not ours."""
    with suppress(OSError), open(path, "rb", opener=open_trusted) as file:
        entry = file.read()
        content = entry.partition(b"\n")[2]
        return content if entry == with_check_sum(content) else None
    return None


def load_entry(path: Path, decode: Callable[[bytes], T | None]) -> T | None:
    """Return what ``decode`` makes of an entry; None where there is none, or it makes no sense."""
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
    """Return what an entry holds; where there is nothing sound, or no ``file``, make it.

    Of several processes that ask, one makes it and the others wait for its file. Where the lock
    cannot be had (a read-only disk, a system without ``flock``) or within ``patience`` seconds,
    each makes its own. It is written only if what names the file ``is_current``.
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
            except OSError as error:  # it only saves time: a disk that is full must stop nobody
                if error.errno in FAILING:
                    warn_unused(file.parent, 0, f"the {file.parent.name}", error, MOST_KEPT_BYTES)
        return value


@contextmanager
def _alone(file: Path, deadline: float) -> Iterator[bool]:
    """Keep other processes out that want to make the same; yield whether to look again."""
    with ExitStack() as stack:
        lock: FileLock | None = None
        with suppress(OSError, ImportError, CacheBusy):  # the last: another process kept it long
            make_directory(file.parent)
            busy = partial(CacheBusy, "waited too long.", do="")
            lock = stack.enter_context(hold_lock(Path(f"{file}.lock"), deadline, busy))
            stack.callback(lock.remove)
        yield lock is not None


def pause(deadline: float, busy: Callable[[], VoxpipeError]) -> None:
    """Wait before the next look."""
    if time.monotonic() >= deadline:
        raise busy()
    time.sleep(POLL_SECONDS)


def open_lock(path: Path) -> BinaryIO:
    """Open the file of a lock, made where there is none.

    A link in its place is replaced, and not followed. In a folder that may not be written to, a
    lock that is there can be taken all the same.
    """
    for _ in range(_LOOKS):
        try:
            return _open_lock(path)
        except OSError as error:
            # Of a link that another process is just taking away the system says either.
            is_going = error.errno == errno.ENOENT and path.parent.is_dir()
            if error.errno != errno.ELOOP and not is_going:
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
    """Take away a link, one process at a time: by then a lock of another may be there."""
    import fcntl

    fd = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # held for no longer than this
        if stat.S_ISLNK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
    finally:
        os.close(fd)


class FileLock:
    """The kernel's lock of a file, held until it is closed. A forked child holds none."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._path, self.file = path, file
        renew_after_fork(self)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def after_fork(self) -> None:
        """Close the file in a forked child: the lock goes with the last process that has it."""
        self.file.close()

    @property
    def is_named(self) -> bool:
        """Whether the lock is held, and its file has its name: others wait for it."""
        with suppress(FileNotFoundError):
            if not self.file.closed:
                return os.path.samestat(os.fstat(self.file.fileno()), os.stat(self._path))
        return False

    def remove(self) -> None:
        """Remove the file while it is locked: a process that waited for it makes a new one."""
        with suppress(OSError):
            if not self.file.closed:
                self._path.unlink()


def take_lock(path: Path) -> FileLock | None:
    """Return the lock of a file, made where there is none; None if another process holds it.

    The process that held it may have removed the file, and the folder that it is in.
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
    """Hold the lock of a file, waiting until the deadline; polled, or it had no timeout."""
    while (lock := take_lock(path)) is None:
        pause(deadline, busy)
    with lock:
        yield lock


def open_trusted(path: str | os.PathLike[str], _flags: int = 0) -> int:
    """Open an entry for reading: a regular file that nobody else can write, and no link."""
    fd = os.open(path, os.O_RDONLY | NO_LINK | _AT_ONCE)
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and is_trusted(status):
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "an entry of somebody else", os.fspath(path))


def open_no_link(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file to be written, a regular one and no link; also an ``opener`` of ``open()``."""
    fd = os.open(path, flags | NO_LINK | _AT_ONCE | getattr(os, "O_BINARY", 0), 0o666)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "no regular file is there", os.fspath(path))


def write_beside(
    path: Path, pieces: Iterable[bytes], mode: int = 0o666, *, sync: bool = True, key: str = ""
) -> None:
    """Write a file in a directory that is there; several may, and the last one stays.

    It is on the disk before it gets its name, so that a machine that loses its power leaves all of
    it or nothing; unless ``sync`` is false, which is enough for what has a check sum. Who holds a
    ``key`` is the only one who writes under it, so what a killed writer left is written over.
    """
    # One of its own: of two that share one, the first gives its name to what is not finished.
    part = path.with_name(f"{path.name}.{key or uuid.uuid4().hex}.part")
    if key:
        part.unlink(missing_ok=True)
    # A new file of ours, whatever lies there: no link is followed.
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
    """Bring the names in a folder to the disk, where the file system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | NO_LINK)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def warn_unused(
    folder: Path,
    size: int,
    what: str,
    error: OSError,
    limit: int | None,
    variable: str = CACHE,
) -> None:
    """Warn, once for a folder, that reading goes on without it."""
    free = ""
    with suppress(OSError, AttributeError):
        status = os.statvfs(folder)
        free = f"{status.f_bavail * status.f_frsize} bytes are free there, and "
    budget = "it has no limit" if limit is None else f"{CACHE_BYTES} allows {limit}"
    bytes_of = f"the {size} bytes of {what}" if size else what
    _ONCE.warn(
        str(folder),
        f"the cache {folder} cannot take {bytes_of}: {error.strerror or error} ({free}{budget}). "
        f"Reading goes on without it, more slowly: make room, or point {variable} to a directory "
        "that you may write to.",
        CacheUnused,
    )


# Length and check sum of what is kept: an entry that was cut or changed is noticed, and made anew.
#
# Looking through whole volumes each time they are opened would cost as much as decoding them. What
# can cut an entry behind our back is a machine that loses its power. So check sums are looked at
# once after each start of the machine, and whenever a file has another size or time of writing than
# it was left with.

SUMS = "sums"  # folder of the check sums, in that of the entries
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIECE_BYTES = 4 * 1024**2
# Of entries in folders that cannot be written to: looked through once by each process.
_LOOKED_THROUGH: set[tuple[Any, ...]] = set()

Sums = dict[str, tuple[int, int, int]]
"""By name in the entry, empty for a file: bytes, CRC-32, and time of writing in nanoseconds."""


@cache
def boot() -> str:
    """Return what tells this start of the machine from others; empty where nobody tells."""
    with suppress(OSError):
        return _BOOT.read_text("ascii").strip()
    return ""


def seal(entry: Path, sums: Path | None = None) -> None:
    """Bring an entry without its name yet to the disk; note its check sums, where that is said."""
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
    """Whether an entry is whole, as it was sealed, and of nobody else."""
    note = read_entry(sums)
    if note is None:
        return False
    with suppress(OSError, ValueError, TypeError, KeyError):
        document = json.loads(note)
        records: Sums = {str(name): tuple(sum_) for name, sum_ in document["files"].items()}
        statuses: dict[str, os.stat_result] = {}
        for name, path in _paths(entry):
            status = os.lstat(path)
            regular = stat.S_ISREG(status.st_mode)
            if not is_trusted(status) or not (regular or stat.S_ISDIR(status.st_mode)):
                return False  # somebody else may have put it there
            if regular:
                statuses[name] = status
        if {name: status.st_size for name, status in statuses.items()} != {
            name: length for name, (length, _, _) in records.items()
        }:
            return False
        if size is not None and sum(length for length, _, _ in records.values()) != size:
            return False
        as_left = all(statuses[name].st_mtime_ns == note for name, (_, _, note) in records.items())
        if as_left and document["boot"] == boot() != "":
            return True
        return _is_unchanged(entry, sums, records, statuses)
    return False


def check_sum(file: Any) -> int:
    """Return the CRC-32 of the rest of an open file."""
    crc32, total = zlib.crc32, 0
    with suppress(ImportError):  # four times as fast, and the same number
        from isal.isal_zlib import crc32
    while piece := file.read(_PIECE_BYTES):
        total = crc32(piece, total)
    return total


def _is_unchanged(
    entry: Path, sums: Path, records: Sums, statuses: dict[str, os.stat_result]
) -> bool:
    """Look through all files; note that it was done, for everybody where that can be written."""
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
    # Where they are cut the entry is made again; that takes no wait for the disk.
    write_whole(sums, with_check_sum(content), sync=False)


def _paths(entry: Path) -> Iterator[tuple[str, str]]:
    """Yield name and path of an entry, or of all files and folders in one, outer ones first."""
    yield "", str(entry)
    if not stat.S_ISDIR(os.lstat(entry).st_mode):
        return
    for place, folders, files in os.walk(entry):
        for name in sorted([*folders, *files]):
            path = os.path.join(place, name)
            yield os.path.relpath(path, entry), path
