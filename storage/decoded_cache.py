"""Decoded volumes on the local disk, within a budget of bytes.

A compressed file that can only be read from its beginning is decoded once, by one
process, into a raw file that all processes of the machine then map. The directory
may be used by many processes at once, and each of them may be killed at any time:

- an entry appears by renaming, so it is whole or absent;
- locks are those of the kernel (``flock``), so a dead writer holds none;
- a partial file whose writer is dead is removed by whoever needs room or the entry;
- an entry in use may be evicted: its bytes stay until the last map of it is gone;
- an entry that was cut, or changed, or is of another user, is made anew;
- where none can be written, the volume is decoded into memory, by each process.

Sizes are counted, and room is made, under one lock for the directory. A partial
file is set to its full length at once, so that two writers see each other's needs.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..core.errors import CacheBusy, CacheTooSmall, VolumeReadError, VoxpipeError
from ..core.memory import usable_memory
from .disk_cache import (
    BUDGET_VARIABLE,
    DIRECTORY_VARIABLE,
    FAILING,
    FULL,
    SUMS,
    is_sound,
    make_directory,
    open_trusted,
    seal,
    warn_unused,
)
from .locks import CLOSED, NO_LINK, lock, open_lock, pause

# What the caches on the disk hold, decoded and converted volumes alike, and how room is made.
#
# One budget is for both: each cache counts what the other holds, and the least recently used goes
# first, whichever cache it lies in.

WHOLE = ".nii"
PARTIAL = ".part"
CONVERTED = "converted"
"""Folder of the converted volumes, in the folder of the decoded ones."""
_GROUP = ".zarr"
LOCKS = "locks"


@dataclass(frozen=True)
class CacheEntry:
    """Something that takes room."""

    last_used: int
    """In nanoseconds since 1970."""
    size: int
    """Bytes."""
    remove: Callable[[], bool] = lambda: False
    """Removes it; False where somebody uses it, or the system refuses."""


def decoded_entries(directory: Path) -> Iterator[CacheEntry]:
    """Yield the decoded volumes; those that are being written stay."""
    for path in directory.glob("*"):
        if path.suffix not in (WHOLE, PARTIAL):
            continue
        with suppress(FileNotFoundError):
            status = path.stat()
            # The time of last use; that of writing tells that it is as it was left.
            held = CacheEntry(status.st_atime_ns, status.st_size)
            is_whole = path.suffix == WHOLE
            yield replace(held, remove=partial(_remove_file, path)) if is_whole else held


def converted_entries(directory: Path, keep: str = "") -> Iterator[CacheEntry]:
    """Yield the converted volumes but ``keep``, and first what killed processes left of others."""
    for left in directory.glob(f".*{_GROUP}{PARTIAL}"):
        key = left.name[1 : -len(_GROUP + PARTIAL)]
        yield CacheEntry(0, size_of(left), partial(_remove_folder, directory, key, left))
    for left in directory.glob(".*.gone"):
        key = left.name[1 : -len(".gone")]
        yield CacheEntry(0, size_of(left), partial(_remove_folder, directory, key, left))
    for path in directory.glob(f"[!.]*{_GROUP}"):
        with suppress(FileNotFoundError):
            held = CacheEntry(path.stat().st_mtime_ns, size_of(path))
            remove = partial(_remove_folder, directory, path.stem, path)
            yield held if path.stem == keep else replace(held, remove=remove)


def make_room(held: list[CacheEntry], most: int) -> int:
    """Remove the least recently used until the rest takes at most ``most``; return the rest."""
    used = sum(each.size for each in held)
    for each in sorted(held, key=lambda each: each.last_used):
        if used <= most:
            break
        if each.remove():
            used -= each.size
    return used


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, file)).st_size
    return total


def _remove_file(path: Path) -> bool:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        (path.parent / SUMS / path.stem).unlink()
    return not path.exists()


def _remove_folder(directory: Path, key: str, path: Path) -> bool:
    """Remove a folder, if nobody reads or writes the entry of this key."""
    import fcntl

    with open_lock(directory / LOCKS / key) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        gone = path
        if not path.name.startswith("."):
            # Renamed first: a kill in the middle leaves no half entry under its name. What
            # one before left is in the way of that.
            gone = directory / f".{key}.gone"
            shutil.rmtree(gone, ignore_errors=True)
            with suppress(OSError):
                os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)
        if path.suffix == _GROUP and not path.exists():
            with suppress(OSError):
                (directory / SUMS / key).unlink()
    return not (path.exists() or gone.exists())


# A volume of the default budget's size decodes in this time at 50 MB/s.
LOCK_TIMEOUT = 600.0
# Of the memory, for one volume that the disk has no room for; the rest have batches and others.
_MEMORY_PART = 4
# Locks are shared by entries whose keys begin alike, so that lock files do not pile up.
_LOCK_LETTERS = 2


@dataclass(frozen=True)
class DecodedCache:
    """A directory of decoded volumes."""

    directory: Path
    """Made when first needed."""
    budget: int
    """Most bytes that the entries may take together, with the converted volumes beside them."""
    timeout: float = LOCK_TIMEOUT
    """Longest wait for another process that decodes the same volume, in seconds."""

    def open(self, key: str, size: int, write: Callable[[BinaryIO], None], name: str) -> BinaryIO:
        """Return an entry, open for reading; write it first if it is not there."""
        if size > self.budget:
            raise CacheTooSmall(
                f"{name} decodes to {size} bytes, and the cache at {self.directory} may hold "
                f"{self.budget}.",
                do=f"Raise {BUDGET_VARIABLE}, or store the volume uncompressed or as zarr.",
            )
        found = self._open_entry(key, size)
        if found is not None:
            return found
        try:
            self._make()
            deadline = time.monotonic() + self.timeout
            with self._locked(f"entry-{key[:_LOCK_LETTERS]}", deadline, name):
                found = self._open_entry(key, size)
                return found or self._make_entry(key, size, write, name, deadline)
        except OSError as error:
            if isinstance(error, VoxpipeError) or not self._refuses(error):
                raise
            return self._in_memory(size, write, name, error)

    def drop(self, key: str) -> None:
        """Remove an entry whose content turned out to make no sense; open maps of it stay."""
        _remove_file(self.directory / f"{key}{WHOLE}")

    def _make(self) -> None:
        try:
            make_directory(self.directory)
            make_directory(self.directory / LOCKS)
        except OSError as error:
            if error.errno in FAILING | CLOSED:  # of a folder above it, maybe
                raise OSError(error.errno, error.strerror, str(self.directory)) from error
            raise VolumeReadError(
                f"the cache directory {self.directory} cannot be made: {error.strerror}.",
                do=f"Point {DIRECTORY_VARIABLE} to a directory that you may write to.",
            ) from error

    def _refuses(self, error: OSError) -> bool:
        """Whether it is the cache that cannot be written, not the volume that cannot be read."""
        inside = str(error.filename or "").startswith(str(self.directory))
        unsaid = not error.filename  # of a file that is open
        failing = error.errno == errno.EIO and (inside or unsaid)
        return error.errno in FULL or failing or (error.errno in CLOSED and inside)

    def _in_memory(
        self, size: int, write: Callable[[BinaryIO], None], name: str, error: OSError
    ) -> BinaryIO:
        """Decode into memory, where the cache has no room or may not be written to."""
        warn_unused(self.directory, size, name, error, self.budget)
        most = usable_memory() // _MEMORY_PART
        if most and size > most:
            raise CacheTooSmall(
                f"{name} decodes to {size} bytes, and the cache {self.directory} cannot take "
                f"them: {error.strerror}.",
                do=f"Make room there, or point {DIRECTORY_VARIABLE} to another disk.",
            ) from error
        return _memory_file(size, write)

    def _open_entry(self, key: str, size: int) -> BinaryIO | None:
        path = self.directory / f"{key}{WHOLE}"
        if not is_sound(path, self.directory / SUMS / key, size):
            return None
        try:
            file = open(path, "rb", opener=open_trusted)  # noqa: SIM115  the caller closes it
        except OSError:
            return None
        # The time of last use; a read-only directory keeps no order.
        with suppress(OSError):
            os.utime(path, ns=(time.time_ns(), os.fstat(file.fileno()).st_mtime_ns))
        return file

    def _make_entry(
        self, key: str, size: int, write: Callable[[BinaryIO], None], name: str, deadline: float
    ) -> BinaryIO:
        """Write an entry; the caller holds its lock."""
        for left in self.directory.glob(f"{key}.*{PARTIAL}"):
            left.unlink(missing_ok=True)  # its writer is dead, or it would hold the lock
        partial = self.directory / f"{key}.{uuid.uuid4().hex}{PARTIAL}"
        with ExitStack() as stack:
            stack.callback(partial.unlink, missing_ok=True)
            self._reserve(partial, size, name, deadline)
            with open(partial, "r+b") as writing:
                write(writing)
            seal(partial, self.directory / SUMS / key)
            # Opened before it gets its name: the next process may evict it at once.
            file = stack.enter_context(open(partial, "rb"))
            os.replace(partial, self.directory / f"{key}{WHOLE}")
            stack.pop_all()
        return file

    def _reserve(self, partial: Path, size: int, name: str, deadline: float) -> None:
        """Make room and put a file of the full length there, to be filled."""
        while True:
            with self._locked("directory", deadline, name):
                self._remove_orphans()
                decoded = decoded_entries(self.directory)
                held = [*decoded, *converted_entries(self.directory / CONVERTED)]
                if make_room(held, self.budget - size) + size <= self.budget:
                    free = shutil.disk_usage(self.directory).free
                    if free < size:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(partial))
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK
                    with open(os.open(partial, flags, 0o600), "wb") as file:
                        file.truncate(size)
                    return
            # Everything else is being written right now; it can be evicted when it is done.
            pause(deadline, lambda: _busy(f"room for {name} in {self.directory}"))

    def _remove_orphans(self) -> None:
        """Remove partial files whose writers are dead: nobody holds their lock."""
        import fcntl

        for path in self.directory.glob(f"*{PARTIAL}"):
            of_entry = f"entry-{path.name[:_LOCK_LETTERS]}"
            with open_lock(self.directory / LOCKS / of_entry) as file, suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, name_of_lock: str, deadline: float, name: str) -> Iterator[None]:
        what = f"another process to decode {name} into {self.directory}"
        with open_lock(self.directory / LOCKS / name_of_lock) as file:
            lock(file, deadline, lambda: _busy(what))
            yield  # closing the file releases the lock


def _memory_file(size: int, write: Callable[[BinaryIO], None]) -> BinaryIO:
    """Return a file without a name in memory, filled, and open for reading."""
    if not hasattr(os, "memfd_create"):
        file: Any = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
        write(file)
        file.flush()
        file.seek(0)
        return cast("BinaryIO", file)
    fd = os.memfd_create("voxpipe-decoded", os.MFD_CLOEXEC)
    try:
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            found = _bytes_file(write)  # ``ulimit -f`` counts for files in memory as well
            os.close(fd)
            return found
        with open(os.dup(fd), "wb") as writing:
            write(writing)
        os.lseek(fd, 0, os.SEEK_SET)
        # Its name is asked for the kind of its file system, and by libraries that open names.
        return open(f"/proc/self/fd/{fd}", "rb", opener=lambda path, flags: fd)
    except BaseException:
        os.close(fd)
        raise


def _bytes_file(write: Callable[[BinaryIO], None]) -> BinaryIO:
    """Return what has no descriptor either: only a reader that knows of it can use it."""
    file = io.BytesIO()
    write(file)
    file.seek(0)
    return file


def is_in_memory(file: BinaryIO) -> bool:
    """Whether an open entry is one that no directory holds."""
    return isinstance(file, io.BytesIO) or os.fstat(file.fileno()).st_nlink == 0


def _busy(what: str) -> CacheBusy:
    return CacheBusy(
        f"waited too long for {what}.",
        do="See whether a process hangs there; its lock goes when it does.",
    )
