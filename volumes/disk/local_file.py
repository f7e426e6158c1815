"""Files on a local disk: opening them, and noticing that they were written again."""

from __future__ import annotations

import os
from typing import BinaryIO

from ...core.errors import VolumeNotFound
from ..backend import Backend
from ..content import content_key
from ..stores.ranges import cannot_open, changed_at, open_regular
from .file_system import file_system_at


class LocalFile(Backend):
    """A backend of one local file, mixed in with how its voxels are read."""

    path: str

    @property
    def is_current(self) -> bool:
        """Whether the file has the size and the time of writing that it had when opened."""
        return file_stamp(self.path) == self.header.stamp

    def is_as_of(self, moment: int) -> bool:
        """Whether it also was not replaced since by a file of the same size and time of writing."""
        return self.is_current and not is_changed_since(self.path, moment)

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
