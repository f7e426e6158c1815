"""Mapped files, and how much of them a process keeps in its own page tables.

A page of a mapped file that was touched once stays part of the process: its resident size
grows towards the size of the data set, although the pages belong to the kernel's cache and
cost nothing while memory is free. Limits on containers and whoever looks at ``top`` count
them all the same. So before a read the maps are let go of when they have grown too large:
the pages stay in the cache, and one that is touched again is mapped again in a microsecond.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import BinaryIO

from ...core import Region
from ..backend import Channels, ViewBackend
from ..voxels import Voxels

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


class Maps:
    """The mapped files of one process.

    Parameters
    ----------
    most
        Bytes of files that may become resident before the maps are let go of.
    resident
        Tells how much is resident now, libraries included.
    """

    def __init__(
        self, most: int = MOST_MAPPED_BYTES, resident: Callable[[], int] = resident_file_bytes
    ) -> None:
        self._most = most
        self._resident = resident
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._floor: int | None = None
        self._lock = threading.Lock()

    def add(self, file: BinaryIO, start: int = 0, length: int = 0) -> mmap.mmap:
        """Map a whole file for reading, or a part; the file may then be closed.

        Parameters
        ----------
        file
            Open for reading.
        start, length
            In bytes, ``start`` a multiple of ``mmap.ALLOCATIONGRANULARITY``; up to the end without
            a length.
        """
        mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
        with self._lock:
            self._maps.add(mapped)
        return mapped

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


class MappedBackend(ViewBackend):
    """Voxels of a mapped file: a region is a view, and old pages are let go of."""

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a view of the region."""
        MAPS.trim()
        return super().read(region, channels)
