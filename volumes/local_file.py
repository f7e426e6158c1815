"""Files on a local disk: opening them, and noticing that they were written again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

from ..core.errors import VolumeNotFound
from ..storage.content import content_key
from ..storage.local_io import file_system_at
from ..storage.ranges import cannot_open, changed_at, open_regular
from .backend import Backend

# In the place of size and time of writing.
_MISSING = (-1, -1)


class LocalFile(Backend):
    """A backend of one local file, mixed in with how its voxels are read."""

    path: str
    others: tuple[str, ...] = ()
    """Further files in which it lies, or that say where; the stamp in the header speaks of all."""

    @property
    def is_current(self) -> bool:
        """Whether the file has the size and the time of writing that it had when opened."""
        return stamp_of_all(self.path, self.others) == self.header.stamp

    def is_as_of(self, moment: int) -> bool:
        """Whether it also was not replaced since by a file of the same size and time of writing."""
        if not self.is_current or is_changed_since(self.path, moment):
            return False
        # One that is still missing has not changed.
        there = filter(os.path.exists, self.others)
        return not any(is_changed_since(other, moment) for other in there)

    @property
    def content_key(self) -> str:
        """A name for this file in this version."""
        return content_key(self.path, self.header.stamp)


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


def stamp_of_all(path: str, others: Sequence[str]) -> tuple[int, ...]:
    """Return size and modification time of a file, and of others of which some may be missing."""
    stamp: tuple[int, ...] = file_stamp(path)
    for other in others:
        try:
            stamp += stamp_of(os.stat(other))
        except OSError:
            stamp += _MISSING
    return stamp


def stamp_of(status: os.stat_result) -> tuple[int, int]:
    """Return what tells one version of a file from another."""
    return status.st_size, status.st_mtime_ns


def is_changed_since(path: str, moment: int) -> bool:
    """Whether a local file was changed after a moment, in nanoseconds since 1970.

    File servers have clocks of their own: there size and time of writing are all that tells.
    """
    try:
        changed = changed_at(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        raise _not_found(path) from None
    return changed > moment and not file_system_at(path).network


def _not_found(path: str) -> VolumeNotFound:
    return VolumeNotFound(f"there is no file {path}.", do="Check the path.")
