"""Decoded volumes on the local disk, within a budget of bytes.

A compressed file that can only be read from its beginning is decoded once, by one process, into a
raw file that all processes of the machine then map.
The directory may be used by many processes at once, and each may be killed at any time:

- an entry appears by renaming, so it is whole or absent;
- locks are those of the kernel (``flock``), so a dead writer holds none;
- a partial file whose writer is dead is removed by whoever needs room or the entry;
- an entry in use may be evicted: its bytes stay until the last map of it is gone;
- an entry that was cut, or changed, or is of another user, is made anew;
- where none can be written, the volume is decoded into memory.

Sizes are counted, and room is made, under one lock for the directory, the least recently used
first. A partial file is set to its full length at once, so that two
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
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ..core.errors import CacheBusy, CacheTooSmall, VolumeReadError, VoxpipeError
from ..core.memory import usable_memory
from ..core.settings import CACHE, CACHE_BYTES
from . import disk_cache

WHOLE, PARTIAL = ".nii", ".part"
LOCKS = "locks"
# A volume of the default budget's size decodes in this time at 50 MB/s.
LOCK_TIMEOUT = 600.0
# Of the memory, for one volume that the disk has no room for; the rest have batches and others.
_MEMORY_PART = 4
# Locks of files are shared by keys that begin alike, so that lock files do not pile up.
_LOCK_LETTERS = 2


def files_in(directory: Path, suffix: str) -> list[tuple[int, int, Path]]:
    """Return time of last use, bytes and path of the files of a directory with this suffix."""
    files = []
    for path in directory.glob(f"*{suffix}"):
        with suppress(FileNotFoundError):
            # The time of last use: the time of writing shows that a file is as it was left.
            status = path.stat()
            files.append((status.st_atime_ns, status.st_size, path))
    return files


def refusal_of(error: BaseException, folder: Path) -> OSError | None:
    """Return the error of a full or read-only disk; None where the folder is not the cause."""
    for each in (error, error.__cause__):
        # A voxpipe error may be an OSError, too: of the error that it wraps, the number counts.
        if isinstance(each, OSError) and not isinstance(each, VoxpipeError):
            inside = str(each.filename or "").startswith(str(folder))
            unsaid = not each.filename  # of a file that is open
            failing = each.errno == errno.EIO and (inside or unsaid)
            read_only = each.errno in disk_cache.READ_ONLY_ERRORS and inside
            return each if each.errno in disk_cache.FULL or failing or read_only else None
    return None


def refuse_full(folder: Path, size: int, place: Path | None = None) -> None:
    """Raise ENOSPC where the disk of a folder has fewer free bytes than that."""
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place or folder))


@dataclass(frozen=True)
class VolumeCache:
    """A directory of decoded volumes, which are files."""

    directory: Path  # made when first needed
    budget: int = sys.maxsize  # most bytes of all entries
    timeout: float = LOCK_TIMEOUT  # longest wait for who makes the same entry, in seconds

    def open(self, key: str, size: int, write: Callable[[BinaryIO], None], name: str) -> BinaryIO:
        """Return a decoded entry, open for reading; write it first if it is not there."""
        if size > self.budget:
            what = f"the cache at {self.directory} may hold {self.budget}."
            do = f"Raise {CACHE_BYTES}, or store the volume uncompressed or as zarr."
            raise CacheTooSmall(f"{name} decodes to {size} bytes, and {what}", do=do)
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
            refusal = refusal_of(error, self.directory)
            if refusal is None or isinstance(error, VoxpipeError):
                raise
            return self._in_memory(size, write, name, refusal)

    def drop(self, key: str) -> None:
        """Remove a decoded entry whose content makes no sense; open maps of it stay."""
        disk_cache.remove_file(self.directory / f"{key}{WHOLE}")

    def _make_directory(self) -> None:
        try:
            disk_cache.make_directory(self.directory / LOCKS)
        except OSError as error:
            # Of a folder above it, maybe.
            if error.errno in disk_cache.FAILING | disk_cache.READ_ONLY_ERRORS:
                raise OSError(error.errno, error.strerror, str(self.directory)) from error
            what = f"the cache directory {self.directory} cannot be made: {error.strerror}."
            do = f"Point {CACHE} to a directory that you may write to."
            raise VolumeReadError(what, do=do) from error

    def _in_memory(
        self, size: int, write: Callable[[BinaryIO], None], name: str, error: OSError
    ) -> BinaryIO:
        """Decode into memory, where the cache has no room or may not be written to."""
        limit = None if self.budget == sys.maxsize else self.budget
        disk_cache.warn_unused(self.directory, size, name, error, limit)
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
                    if lock := disk_cache.take_lock(self.directory / LOCKS / of_entry):
                        with lock:
                            path.unlink(missing_ok=True)
                # Partial files stay: they are being written.
                room = self.budget - size - sum(n for _, n, _ in files_in(self.directory, PARTIAL))
                if disk_cache.make_room(files_in(self.directory, WHOLE), room) <= room:
                    refuse_full(self.directory, size, partial)
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | disk_cache.NO_LINK
                    with open(os.open(partial, flags, 0o600), "wb") as file:
                        file.truncate(size)
                    return
            # Everything else is being written right now; it can be evicted when it is done.
            disk_cache.pause(deadline, lambda: _busy(f"room for {name} in {self.directory}"))

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
