"""Decoded volumes on the local disk, within a budget of bytes.

One process decodes a compressed file without random access into a raw file, which all processes
of the machine map. Processes share the directory, and each may be killed at any time:

- An entry appears by a rename, so it is complete or absent.
- Locks belong to the kernel (``flock``), so a dead writer holds none.
- A process that needs room or the entry removes the partial file of a dead writer.
- An entry in use may be evicted: its bytes stay until its last map is closed.
- An entry that was cut or changed, or belongs to another user, is made again.
- Without write access, the volume is decoded into memory.

One lock of the directory guards the count of bytes and the eviction, least recently used first. A
partial file has its full length at once, so that two writers see each other's needs.
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
# At 50 MB/s a volume of 30 GB decodes in this time.
LOCK_TIMEOUT = 600.0
# A quarter of the memory may hold one volume without room on the disk.
_MEMORY_PART = 4
# Keys with the same first letters share a lock, so that lock files stay few.
_LOCK_LETTERS = 2


def files_in(directory: Path, suffix: str) -> list[tuple[int, int, Path]]:
    """Return time of last use, bytes and path of the files of a directory with this suffix."""
    files = []
    for path in directory.glob(f"*{suffix}"):
        with suppress(FileNotFoundError):
            # The access time is the last use: the write time shows that a file is unchanged.
            status = path.stat()
            files.append((status.st_atime_ns, status.st_size, path))
    return files


def refusal_of(error: BaseException, folder: Path) -> OSError | None:
    """Return the error of a full or read-only disk; None if the folder is not the cause."""
    for cause in (error, error.__cause__):
        # A voxpipe error may be an OSError too, but the number is in the error that it wraps.
        if isinstance(cause, OSError) and not isinstance(cause, VoxpipeError):
            inside = str(cause.filename or "").startswith(str(folder))
            # An error of an open file has no name.
            failing = cause.errno == errno.EIO and (inside or not cause.filename)
            read_only = cause.errno in disk_cache.READ_ONLY_ERRORS and inside
            return cause if cause.errno in disk_cache.FULL or failing or read_only else None
    return None


def refuse_full(folder: Path, size: int, place: Path | None = None) -> None:
    """Raise ENOSPC if the disk of a folder has fewer than ``size`` free bytes."""
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place or folder))


@dataclass(frozen=True)
class VolumeCache:
    """Directory of decoded volumes, each a file."""

    directory: Path  # made when first needed
    budget: int = sys.maxsize  # most bytes of all entries
    timeout: float = LOCK_TIMEOUT  # longest wait for another writer of an entry, in seconds

    def open(self, key: str, size: int, write: Callable[[BinaryIO], None], name: str) -> BinaryIO:
        """Return a decoded entry, open for reading; write a missing one first."""
        if size > self.budget:
            limit = f"the cache at {self.directory} may hold {self.budget}"
            do = f"Raise {CACHE_BYTES}, or store the volume uncompressed or as zarr."
            raise CacheTooSmall(f"{name} decodes to {size} bytes, and {limit}.", do=do)
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
        """Remove a decoded entry with bad content; its open maps stay."""
        disk_cache.remove_file(self.directory / f"{key}{WHOLE}")

    def _make_directory(self) -> None:
        try:
            disk_cache.make_directory(self.directory / LOCKS)
        except OSError as error:
            # The error may name a parent of the directory.
            if error.errno in disk_cache.FAILING | disk_cache.READ_ONLY_ERRORS:
                raise OSError(error.errno, error.strerror, str(self.directory)) from error
            msg = f"the cache directory {self.directory} cannot be made: {error.strerror}."
            do = f"Point {CACHE} to a directory that you may write to."
            raise VolumeReadError(msg, do=do) from error

    def _in_memory(
        self, size: int, write: Callable[[BinaryIO], None], name: str, error: OSError
    ) -> BinaryIO:
        """Decode into memory, because the cache has no room or no write access."""
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
        # Set the time of last use; a read-only directory cannot keep it.
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
            # Open it before the rename: the next process may evict it at once.
            file = stack.enter_context(open(partial, "rb"))
            os.replace(partial, self.directory / f"{key}{WHOLE}")
            stack.pop_all()
        return file

    def _reserve(self, partial: Path, size: int, name: str, deadline: float) -> None:
        """Make room and create a partial file of the full length."""
        while True:
            with self._hold_lock("directory", deadline, name):
                # A free lock means that the writer of a partial file is dead.
                for path in self.directory.glob(f"*{PARTIAL}"):
                    of_entry = f"entry-{path.name[:_LOCK_LETTERS]}"
                    if lock := disk_cache.take_lock(self.directory / LOCKS / of_entry):
                        with lock:
                            path.unlink(missing_ok=True)
                # The other partial files are being written, so they stay.
                room = self.budget - size - sum(n for _, n, _ in files_in(self.directory, PARTIAL))
                if disk_cache.make_room(files_in(self.directory, WHOLE), room) <= room:
                    refuse_full(self.directory, size, partial)
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | disk_cache.NO_LINK
                    with open(os.open(partial, flags, 0o600), "wb") as file:
                        file.truncate(size)
                    return
            # The other entries are being written, and can be evicted once they are complete.
            disk_cache.pause(deadline, lambda: _busy(f"room for {name} in {self.directory}"))

    def _hold_lock(
        self, lock: str, deadline: float, name: str
    ) -> AbstractContextManager[disk_cache.FileLock]:
        busy = partial(_busy, f"another process to decode {name} into {self.directory}")
        return disk_cache.hold_lock(self.directory / LOCKS / lock, deadline, busy)


def _memory_file(size: int, write: Callable[[BinaryIO], None]) -> BinaryIO:
    """Return an anonymous file in memory, written and open for reading."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("voxpipe-decoded", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            with open(os.dup(fd), "wb") as writing:
                write(writing)
            os.lseek(fd, 0, os.SEEK_SET)
            # Callers look up its file system by name, and libraries open it by name.
            return open(f"/proc/self/fd/{fd}", "rb", opener=lambda path, flags: fd)
        except BaseException as error:
            os.close(fd)
            # ``ulimit -f`` counts for files in memory as well.
            if getattr(error, "errno", None) != errno.EFBIG:
                raise
    # A buffer has no descriptor: only readers that expect it can use it.
    file = io.BytesIO()
    write(file)
    file.seek(0)
    return file


def is_in_memory(file: BinaryIO) -> bool:
    """Whether no directory holds an open entry."""
    return isinstance(file, io.BytesIO) or os.fstat(file.fileno()).st_nlink == 0


def _busy(event: str) -> CacheBusy:
    do = "Check for a process that hangs there; its end releases the lock."
    return CacheBusy(f"waited too long for {event}.", do=do)
