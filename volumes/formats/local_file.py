"""Files on a local disk: opening them, and mapping them within a bound.

A page of a mapped file that was touched once stays part of the process: its resident size grows
towards the size of the data set, although the pages belong to the kernel's cache and cost nothing
while memory is free. Limits on containers and whoever looks at ``top`` count them all the same. So
before a read the maps are let go of when they have grown too large: the pages stay in the cache,
and one that is touched again is mapped again in a microsecond.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.errors import VolumeError, VolumeNotFound
from ...storage.file_reader import HINTS, Blocks, Hint
from ...storage.ranges import (
    LOCAL_GAP,
    LOCAL_RUN,
    CoalescePolicy,
    cannot_open,
    coalesce_policy,
    open_regular,
)


def open_local(path: str) -> BinaryIO:
    """Open a local file for reading; ``VolumeNotFound`` where there is none, ``BadHeader`` else."""
    try:
        return open(path, "rb", opener=open_regular)
    except (FileNotFoundError, NotADirectoryError):
        raise _not_found(path) from None


def file_stamp(path: str) -> tuple[int, int]:
    """Return size and modification time (ns) of a local file; ``VolumeNotFound`` without one."""
    try:
        return stamp_of(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        raise _not_found(path) from None
    except OSError as error:
        raise cannot_open(path, error) from error


def stamp_of(status: os.stat_result) -> tuple[int, int]:
    """Return what tells one version of a file from another."""
    return status.st_size, status.st_mtime_ns


def _not_found(path: str) -> VolumeNotFound:
    return VolumeNotFound(f"there is no file {path}.", do="Check the path.")


# About one patch of 96^3 with what lies between its rows. Small, because each worker has its own;
# mapping as much again takes 0.1 ms where the cache holds pieces of 2 MiB (measured), and 0.4 ms
# at 2 us for each 64 KiB that the kernel maps at once elsewhere: less than resampling a patch.
MOST_MAPPED_BYTES = 16 * 1024**2
_STATUS = "/proc/self/status"
_RESIDENT = b"RssFile:"


def resident_file_bytes() -> int:
    """Return how much of this process is pages of files; 0 where the system does not tell."""
    try:
        with open(_STATUS, "rb") as file:
            _, found, rest = file.read().partition(_RESIDENT)
    except OSError:
        return 0
    return int(rest.split(maxsplit=1)[0]) * 1024 if found else 0


def _name_of(file: BinaryIO) -> str:
    """Return the name that an open file has by now: it may have been renamed."""
    try:
        return os.readlink(f"/proc/self/fd/{file.fileno()}")
    except OSError:
        return os.path.abspath(str(file.name))


class Place(NamedTuple):
    """Where a mapped array lies."""

    path: str
    """Of the file."""
    offset: int
    """Of its first byte in the file."""
    order: tuple[int, ...]
    """Its axes, the slowest first."""

    def prefetch(self, array: NDArray[Any], index: tuple[slice, ...]) -> Hint | None:
        """Tell the system that a part of the array is going to be read.

        By the name of the file, not through the map: Python holds its lock while ``madvise``
        waits for the disk, and both fill the same page cache. Keeping a descriptor for this
        would double what an open volume takes.
        """
        lengths = [array.shape[axis] for axis in self.order]
        box = [index[axis].indices(array.shape[axis])[:2] for axis in self.order]
        gap, most = coalesce_policy(CoalescePolicy(LOCAL_GAP, LOCAL_RUN))
        blocks = Blocks(lengths, box, array.itemsize, gap=gap, most=most)
        # Whoever reads will find out what is wrong with the file.
        with contextlib.suppress(OSError, VolumeError):
            fd = open_regular(self.path)
            try:
                return HINTS.tell(fd, self.offset, blocks)
            finally:
                os.close(fd)
        return None


class Maps:
    """The mapped files of one process, of which ``most`` bytes may be resident between reads."""

    def __init__(
        self, most: int = MOST_MAPPED_BYTES, resident: Callable[[], int] = resident_file_bytes
    ) -> None:
        self._most = most
        self._resident = resident
        self._maps: weakref.WeakKeyDictionary[mmap.mmap, tuple[str, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._floor: int | None = None
        self._lock = threading.Lock()

    def add(self, file: BinaryIO, start: int = 0, length: int = 0) -> mmap.mmap:
        """Map a file for reading, or a part of it, which starts at a multiple of a page.

        The file may then be closed.
        """
        mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
        with self._lock:
            self._maps[mapped] = (_name_of(file), start)
        return mapped

    def place_of(self, array: NDArray[Any]) -> Place | None:
        """Return where an array lies in a file; None for one that no map holds in one piece."""
        order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
        dense = array.transpose(order)
        owner: Any = array
        while owner is not None and not isinstance(owner, mmap.mmap):
            owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if owner is None or not dense.flags.c_contiguous:
            return None
        with self._lock:
            path, start = self._maps.get(owner, ("", 0))
        first = np.frombuffer(owner, np.uint8, 1).ctypes.data
        return Place(path, start + array.ctypes.data - first, tuple(order)) if path else None

    def trim(self) -> None:
        """Let go of all pages if there are too many; views stay valid and map them again."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        with self._lock:
            now = self._resident()
            # Libraries that were loaded since count as well, once: the floor is taken anew
            # after each round.
            if self._floor is None or now < self._floor:
                self._floor = now
            if now - self._floor <= self._most:
                return
            for mapped in list(self._maps):
                mapped.madvise(mmap.MADV_DONTNEED)
            self._floor = self._resident()

    def forget_parent(self) -> None:
        """Start with a new lock in a forked child; the maps are its own as well."""
        self._lock = threading.Lock()
        self._floor = None


MAPS = Maps()
"""The maps of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=MAPS.forget_parent)
