"""Converted volumes on the local disk, within a budget of bytes: the decoded cache, for folders.

The rules are those of :mod:`.decoded_cache`: an entry appears by renaming, one process writes
it, locks are the kernel's, the least recently used go first. But a folder is opened again with
every read, so an entry in use must stay: whoever reads from it holds a shared lock on it, and
only entries that nobody holds are evicted.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...core.errors import CacheBusy, CacheTooSmall, DestinationBusy, VolumeError, VoxpipeError
from ...storage.decoded_cache import (
    LOCK_TIMEOUT,
    LOCKS,
    converted_held,
    decoded_held,
    make_room,
    size_of,
)
from ...storage.disk_cache import (
    BUDGET_VARIABLE,
    CLOSED,
    FAILING,
    SUMS,
    is_sound,
    make_directory,
    own_folder,
    seal,
    warn_unused,
)
from ...storage.locks import open_lock
from .convert import write_planned
from .convert_plan import ConvertPlan
from .destination import LocalDestination

_SUFFIX = ".zarr"


@dataclass(frozen=True)
class ConvertedCache:
    """A directory of converted volumes."""

    directory: Path
    """Made when first needed."""
    budget: int
    """Most bytes that the entries may take together, with those of ``decoded``."""
    timeout: float = LOCK_TIMEOUT
    """Longest wait for another process that converts the same volume, in seconds."""
    decoded: Path | None = None
    """Directory of decoded volumes that share the budget, if there is one."""

    def __post_init__(self) -> None:
        # A folder of this user's own, in one that others may write to.
        object.__setattr__(self, "directory", own_folder(self.directory))

    def open(self, key: str, volume: Any, plan: ConvertPlan) -> tuple[Path, BinaryIO | None] | None:
        """Return the folder of an entry, and the file that keeps it there while it is open.

        There is no such file in a directory that may not be written to, where nothing is removed
        either. None, and a warning, where there is no entry and none can be written.

        Parameters
        ----------
        key
            Letters and digits that stand for the content and the plan.
        volume
            What is converted if the entry is not there.
        plan
            How.

        Raises
        ------
        CacheTooSmall
            The entry is larger than the budget.
        CacheBusy
            Another process kept converting for longer than the timeout.
        """
        path = self.directory / f"{key}{_SUFFIX}"
        sums = self.directory / SUMS / key
        try:
            held = self._hold(key)
        except OSError as error:
            if error.errno not in FAILING | CLOSED:
                raise
            if is_sound(path, sums):
                return path, None
            self._warn(volume, plan, error)
            return None
        try:
            if not is_sound(path, sums):
                self._make(key, path, volume, plan)
            # The time of writing is the time of last use; a read-only directory keeps no order.
            with suppress(OSError):
                os.utime(path)
        except (OSError, VolumeError) as error:
            held.close()
            refusal = self._refusal(error)
            if refusal is None:
                raise
            self._warn(volume, plan, refusal)
            return None
        except BaseException:
            held.close()
            raise
        return path, held

    def _hold(self, key: str) -> BinaryIO:
        """Return the lock of an entry: while it is open nobody evicts it, there or not yet."""
        import fcntl

        make_directory(self.directory / LOCKS)
        held = open_lock(self.directory / LOCKS / key)
        fcntl.flock(held, fcntl.LOCK_SH)
        return held

    def _make(self, key: str, path: Path, volume: Any, plan: ConvertPlan) -> None:
        """Write an entry, unless another process does; what lies there unsound goes first."""
        self._look_for_room(plan)
        sums = self.directory / SUMS / key
        target = LocalDestination(path, sealed=lambda group: seal(group, sums))
        try:
            with target.locked(self.timeout):
                if is_sound(path, sums):
                    return
                _remove(path, self.directory / f".{key}.gone")
                try:
                    write_planned(volume, plan, target)
                except OSError as error:
                    if error.errno in FAILING | CLOSED:
                        target.drop()  # what it takes is needed for other things
                    raise
        except DestinationBusy as error:  # whoever asked for voxels does not write
            raise CacheBusy(error.what, do=error.do) from error
        size = size_of(path)
        if size > self.budget:
            shutil.rmtree(path)
            raise CacheTooSmall(
                f"{volume.name} converts to {size} bytes, and the cache at {self.directory} may "
                f"hold {self.budget}.",
                do=f"Raise {BUDGET_VARIABLE}, or point recache(directory=) to a larger disk.",
            )
        self._trim(keep=key)

    def _look_for_room(self, plan: ConvertPlan) -> None:
        """Find out early what the disk cannot hold."""
        if shutil.disk_usage(self.directory).free < _bytes_of(plan) // _BEST_RATIO:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))

    def _refusal(self, error: Exception) -> OSError | None:
        """Return what a full or closed disk said; None for an error of the volume that is read."""
        for each in (error, error.__cause__):
            # A voxpipe error may be an OSError, too: of what it wraps, the disk's word counts.
            if isinstance(each, OSError) and not isinstance(each, VoxpipeError):
                inside = str(each.filename or "").startswith(str(self.directory))
                refuses = each.errno in FAILING or (each.errno in CLOSED and inside)
                return each if refuses else None
        return None

    def _warn(self, volume: Any, plan: ConvertPlan, error: OSError) -> None:
        limit = None if self.budget == sys.maxsize else self.budget
        what = f"a copy of {volume.name}, before compression"
        warn_unused(self.directory, _bytes_of(plan), what, error, limit)

    def _trim(self, keep: str) -> None:
        """Remove the least recently used entries that nobody reads, until the budget is met."""
        held = list(converted_held(self.directory, keep))
        if self.decoded is not None:
            held += decoded_held(self.decoded)
        make_room(held, self.budget)


def _bytes_of(plan: ConvertPlan) -> int:
    return math.prod(plan.header.shape) * plan.dtype.itemsize


def _remove(path: Path, gone: Path) -> None:
    """Remove an entry that is not sound; renamed first, so that a kill leaves no half of it."""
    if not os.path.lexists(path):
        return
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    if gone.is_dir() and not gone.is_symlink():
        shutil.rmtree(gone, ignore_errors=True)
    else:
        gone.unlink()


# Compressed scans take a third to a half; less than a quarter of the voxels' bytes free means
# that the disk will be full.
_BEST_RATIO = 4
