"""Decoded and converted volumes on the local disk, within one budget of bytes.

A compressed file that can only be read from its beginning is decoded once, by one process, into a
raw file that all processes of the machine then map; a volume may be converted once, into a folder.
The directory may be used by many processes at once, and each may be killed at any time:

- an entry appears by renaming, so it is whole or absent;
- locks are those of the kernel (``flock``), so a dead writer holds none;
- a partial file whose writer is dead is removed by whoever needs room or the entry;
- a decoded entry in use may be evicted: its bytes stay until the last map of it is gone. A folder
  is opened again with every read: who reads from it holds a shared lock, and it stays;
- an entry that was cut, or changed, or is of another user, is made anew;
- where none can be written, the volume is decoded into memory, or read as it is.

Sizes are counted, and room is made, under one lock for the directory, the least recently used
first, whichever kind it is of. A partial file is set to its full length at once, so that two
writers see each other's needs.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ..core.errors import CacheBusy, CacheTooSmall, VolumeReadError, VoxpipeError
from ..core.memory import usable_memory
from ..core.settings import CACHE, CACHE_BYTES
from . import disk_cache
from .disk_cache import CacheEntry

WHOLE, PARTIAL = ".nii", ".part"
GROUP, TRASH = ".zarr", ".gone"
CONVERSIONS = "converted"  # folder of the converted volumes, in the folder of the decoded ones
LOCKS = "locks"
# A volume of the default budget's size decodes in this time at 50 MB/s.
LOCK_TIMEOUT = 600.0
# Of the memory, for one volume that the disk has no room for; the rest have batches and others.
_MEMORY_PART = 4
# Locks of files are shared by keys that begin alike, so that lock files do not pile up.
_LOCK_LETTERS = 2
# Compressed scans take a third to a half; less than a quarter of the voxels' bytes free means
# that the disk will be full.
_BEST_RATIO = 4


def decoded_entries(directory: Path) -> Iterator[CacheEntry]:
    """Yield the decoded volumes; those that are being written stay."""
    for path in directory.glob("*"):
        if path.suffix in (WHOLE, PARTIAL):
            with suppress(FileNotFoundError):
                # The time of last use; that of writing tells that it is as it was left.
                status, remove = path.stat(), partial(disk_cache.remove_file, path)
                stays = _stay if path.suffix == PARTIAL else remove
                yield CacheEntry(status.st_atime_ns, status.st_size, stays)


def converted_entries(directory: Path, keep: str = "") -> Iterator[CacheEntry]:
    """Yield the converted volumes but ``keep``, and first what killed processes left of others.

    Other files are nobody's entries: the directory may be one that a user has named.
    """
    for path in directory.glob("*"):
        with suppress(FileNotFoundError):
            name = path.name
            if name.startswith(".") and name.endswith((GROUP + PARTIAL, TRASH)):
                key = name[1:].removesuffix(PARTIAL).removesuffix(TRASH).removesuffix(GROUP)
                yield CacheEntry(0, size_of(path), partial(_remove_folder, path, key))
            elif path.suffix == GROUP and not name.startswith("."):
                remove = partial(_remove_folder, path, path.stem)
                last_use = path.stat().st_mtime_ns
                yield CacheEntry(last_use, size_of(path), _stay if path.stem == keep else remove)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, file)).st_size
    return total


def discard(path: Path, key: str) -> None:
    """Remove an entry, or what lies in its place, whose lock the caller holds."""
    # Renamed first: a kill in the middle leaves no half entry under its name. What one before
    # left is in the way of that.
    trash = path.with_name(f".{key}{TRASH}")
    shutil.rmtree(trash, ignore_errors=True)
    with suppress(FileNotFoundError):
        os.rename(path, trash)
    if trash.is_dir() and not trash.is_symlink():
        shutil.rmtree(trash, ignore_errors=True)
    else:
        trash.unlink(missing_ok=True)


def _stay() -> bool:
    return False


def _remove_folder(path: Path, key: str) -> bool:
    """Remove a folder, if nobody reads or writes the entry of this key."""
    with disk_cache.open_lock(path.parent / LOCKS / key) as lock:
        if not disk_cache.try_lock(lock):
            return False
        if path.suffix == GROUP:
            with suppress(OSError):
                discard(path, key)
                (path.parent / disk_cache.SUMS / key).unlink()
            return not (path.exists() or path.with_name(f".{key}{TRASH}").exists())
        shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


@dataclass(frozen=True)
class VolumeCache:
    """A directory of decoded volumes, which are files, or of converted ones, which are folders."""

    directory: Path  # made when first needed
    budget: int = sys.maxsize  # most bytes of all entries, with those that share it
    timeout: float = LOCK_TIMEOUT  # longest wait for who makes the same entry, in seconds
    decoded_directory: Path | None = None  # that of decoded volumes with which it shares the budget

    def open(self, key: str, size: int, write: Callable[[BinaryIO], None], name: str) -> BinaryIO:
        """Return a decoded entry, open for reading; write it first if it is not there."""
        if size > self.budget:
            do = "or store the volume uncompressed or as zarr"
            raise self._too_small(f"{name} decodes to {size} bytes", do)
        file = self._open_file(key, size)
        if file is not None:
            return file
        try:
            self._make_directory()
            deadline = time.monotonic() + self.timeout
            with self._hold_lock(f"entry-{key[:_LOCK_LETTERS]}", deadline, name):
                file = self._open_file(key, size)
                return file or self._make_file(key, size, write, name, deadline)
        except OSError as error:
            refusal = None if isinstance(error, VoxpipeError) else self._refusal(error)
            if refusal is None:
                raise
            return self._in_memory(size, write, name, refusal)

    def open_folder(
        self, key: str, size: int, write: Callable[[Path], None], name: str
    ) -> tuple[Path, BinaryIO | None] | None:
        """Return the folder of a converted entry, and the file that keeps it while it is open.

        There is no such file in a directory that may not be written to, where nothing is removed
        either. None, and a warning, where there is no entry and none can be written.
        """
        path, sums = self.directory / f"{key}{GROUP}", self.directory / disk_cache.SUMS / key
        lock: BinaryIO | None = None
        try:
            self._make_directory()
            # While it is open nobody evicts the entry, there or not yet.
            lock = disk_cache.open_lock(self.directory / LOCKS / key)
            disk_cache.try_lock(lock, is_shared=True)
            if not disk_cache.is_sound(path, sums):
                self._make_folder(key, path, size, write, name)
            # The time of writing is the time of last use; a read-only directory keeps no order.
            with suppress(OSError):
                os.utime(path)
            return path, lock
        except BaseException as error:
            if lock is not None:
                lock.close()
            refusal = self._refusal(error)
            if refusal is None:
                raise
            if lock is None and disk_cache.is_sound(path, sums):
                return path, None
            self._warn(size, f"a copy of {name}, before compression", refusal)
            return None

    def drop(self, key: str) -> None:
        """Remove a decoded entry whose content makes no sense; open maps of it stay."""
        disk_cache.remove_file(self.directory / f"{key}{WHOLE}")

    def _make_directory(self) -> None:
        try:
            disk_cache.make_directory(self.directory / LOCKS)
        except OSError as error:
            if (
                error.errno in disk_cache.FAILING | disk_cache.READ_ONLY_ERRORS
            ):  # of a folder above it, maybe
                raise OSError(error.errno, error.strerror, str(self.directory)) from error
            what = f"the cache directory {self.directory} cannot be made: {error.strerror}."
            do = f"Point {CACHE} to a directory that you may write to."
            raise VolumeReadError(what, do=do) from error

    def _refusal(self, error: BaseException) -> OSError | None:
        """Return what a full or closed disk said; None where it is not the cache that refuses."""
        for each in (error, error.__cause__):
            # A voxpipe error may be an OSError, too: of what it wraps, the disk's word counts.
            if isinstance(each, OSError) and not isinstance(each, VoxpipeError):
                inside = str(each.filename or "").startswith(str(self.directory))
                unsaid = not each.filename  # of a file that is open
                failing = each.errno == errno.EIO and (inside or unsaid)
                refuses = each.errno in disk_cache.FULL or failing
                return (
                    each
                    if refuses or (each.errno in disk_cache.READ_ONLY_ERRORS and inside)
                    else None
                )
        return None

    def _warn(self, size: int, what: str, error: OSError) -> None:
        limit = None if self.budget == sys.maxsize else self.budget
        disk_cache.warn_unused(self.directory, size, what, error, limit)

    def _too_small(self, what: str, do: str) -> CacheTooSmall:
        what = f"{what}, and the cache at {self.directory} may hold {self.budget}."
        return CacheTooSmall(what, do=f"Raise {CACHE_BYTES}, {do}.")

    def _in_memory(
        self, size: int, write: Callable[[BinaryIO], None], name: str, error: OSError
    ) -> BinaryIO:
        """Decode into memory, where the cache has no room or may not be written to."""
        self._warn(size, name, error)
        most = usable_memory() // _MEMORY_PART
        if most and size > most:
            raise CacheTooSmall(
                f"{name} decodes to {size} bytes, and the cache {self.directory} cannot take "
                f"them: {error.strerror}.",
                do=f"Make room there, or point {CACHE} to another disk.",
            ) from error
        return _memory_file(size, write)

    def _open_file(self, key: str, size: int) -> BinaryIO | None:
        path = self.directory / f"{key}{WHOLE}"
        if not disk_cache.is_sound(path, self.directory / disk_cache.SUMS / key, size):
            return None
        try:
            file = open(path, "rb", opener=disk_cache.open_trusted)  # noqa: SIM115  the caller closes it
        except OSError:
            return None
        # The time of last use; a read-only directory keeps no order.
        with suppress(OSError):
            os.utime(path, ns=(time.time_ns(), os.fstat(file.fileno()).st_mtime_ns))
        return file

    def _make_file(
        self, key: str, size: int, write: Callable[[BinaryIO], None], name: str, deadline: float
    ) -> BinaryIO:
        """Write a decoded entry; the caller holds its lock."""
        for leftover in self.directory.glob(f"{key}.*{PARTIAL}"):
            leftover.unlink(missing_ok=True)  # its writer is dead, or it would hold the lock
        partial = self.directory / f"{key}.{uuid.uuid4().hex}{PARTIAL}"
        with ExitStack() as stack:
            stack.callback(partial.unlink, missing_ok=True)
            self._reserve(partial, size, name, deadline)
            with open(partial, "r+b") as writing:
                write(writing)
            disk_cache.seal(partial, self.directory / disk_cache.SUMS / key)
            # Opened before it gets its name: the next process may evict it at once.
            file = stack.enter_context(open(partial, "rb"))
            os.replace(partial, self.directory / f"{key}{WHOLE}")
            stack.pop_all()
        return file

    def _reserve(self, partial: Path, size: int, name: str, deadline: float) -> None:
        """Make room and put a file of the full length there, to be filled."""
        while True:
            with self._hold_lock("directory", deadline, name):
                # Partial files whose writers are dead: nobody holds their lock.
                for path in self.directory.glob(f"*{PARTIAL}"):
                    of_entry = f"entry-{path.name[:_LOCK_LETTERS]}"
                    with disk_cache.open_lock(self.directory / LOCKS / of_entry) as file:
                        if disk_cache.try_lock(file):
                            path.unlink(missing_ok=True)
                folders = converted_entries(self.directory / CONVERSIONS)
                entries = [*decoded_entries(self.directory), *folders]
                if disk_cache.make_room(entries, self.budget - size) + size <= self.budget:
                    self._refuse_full(partial, size)
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | disk_cache.NO_LINK
                    with open(os.open(partial, flags, 0o600), "wb") as file:
                        file.truncate(size)
                    return
            # Everything else is being written right now; it can be evicted when it is done.
            disk_cache.pause(deadline, lambda: _busy(f"room for {name} in {self.directory}"))

    def _make_folder(
        self, key: str, path: Path, size: int, write: Callable[[Path], None], name: str
    ) -> None:
        # Find out early what the disk cannot hold.
        self._refuse_full(self.directory, size // _BEST_RATIO)
        write(path)
        total = size_of(path)
        if total > self.budget:
            shutil.rmtree(path)
            do = "or point recache(directory=) to a larger disk"
            raise self._too_small(f"{name} converts to {total} bytes", do)
        self._trim(keep=key)

    def _trim(self, keep: str) -> None:
        """Remove the least recently used entries that nobody reads, until the budget is met."""
        files = decoded_entries(self.decoded_directory) if self.decoded_directory else ()
        disk_cache.make_room([*converted_entries(self.directory, keep), *files], self.budget)

    def _refuse_full(self, place: Path, size: int) -> None:
        if shutil.disk_usage(self.directory).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))

    def _hold_lock(
        self, lock: str, deadline: float, name: str
    ) -> AbstractContextManager[disk_cache.FileLock]:
        busy = partial(_busy, f"another process to decode {name} into {self.directory}")
        return disk_cache.hold_lock(self.directory / LOCKS / lock, deadline, busy)


def _memory_file(size: int, write: Callable[[BinaryIO], None]) -> BinaryIO:
    """Return a file without a name in memory, filled, and open for reading."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("voxpipe-decoded", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            with open(os.dup(fd), "wb") as writing:
                write(writing)
            os.lseek(fd, 0, os.SEEK_SET)
            # Its name is asked for the kind of its file system, and by libraries that open names.
            return open(f"/proc/self/fd/{fd}", "rb", opener=lambda path, flags: fd)
        except BaseException as error:
            os.close(fd)
            # ``ulimit -f`` counts for files in memory as well.
            if getattr(error, "errno", None) != errno.EFBIG:
                raise
    # What has no descriptor either: only a reader that knows of it can use it.
    file = io.BytesIO()
    write(file)
    file.seek(0)
    return file


def is_in_memory(file: BinaryIO) -> bool:
    """Whether an open entry is one that no directory holds."""
    return isinstance(file, io.BytesIO) or os.fstat(file.fileno()).st_nlink == 0


def _busy(what: str) -> CacheBusy:
    do = "See whether a process hangs there; its lock goes when it does."
    return CacheBusy(f"waited too long for {what}.", do=do)
