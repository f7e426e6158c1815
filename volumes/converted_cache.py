"""Converted volumes on the local disk, within a budget of bytes: the decoded cache, for folders.

The rules are those of :mod:`.decoded_cache`: an entry appears by renaming, one process writes
it, locks are the kernel's, the least recently used go first. But a folder is opened again with
every read, so an entry in use must stay: whoever reads from it holds a shared lock on it, and
only entries that nobody holds are evicted.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..core.errors import CacheTooSmall
from .cache_directory import BUDGET_VARIABLE, make_directory
from .convert import write_planned
from .convert_plan import ConvertPlan
from .decoded_cache import LOCK_TIMEOUT
from .destination import LocalDestination
from .volume import Volume

_SUFFIX = ".zarr"
_LOCKS = "locks"


@dataclass(frozen=True)
class ConvertedCache:
    """A directory of converted volumes."""

    directory: Path
    """Made when first needed."""
    budget: int
    """Most bytes that the entries may take together."""
    timeout: float = LOCK_TIMEOUT
    """Longest wait for another process that converts the same volume, in seconds."""

    def open(self, key: str, volume: Volume, plan: ConvertPlan) -> tuple[Path, BinaryIO]:
        """Return the folder of an entry, and the file that keeps it there while it is open.

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
        import fcntl

        make_directory(self.directory / _LOCKS)
        path = self.directory / f"{key}{_SUFFIX}"
        held = open(self.directory / _LOCKS / key, "ab")  # noqa: SIM115  the caller closes it
        try:
            # From here on nobody evicts it, whether it is there yet or not.
            fcntl.flock(held, fcntl.LOCK_SH)
            if not path.exists():
                self._make_room(volume, plan)
                target = LocalDestination(path)
                with target.locked(self.timeout):
                    write_planned(volume, plan, target)
                size = _size_of(path)
                if size > self.budget:
                    shutil.rmtree(path)
                    raise self._too_small(volume, size)
                self._trim(keep=key)
            # The time of writing is the time of last use; a read-only directory keeps no order.
            with suppress(OSError):
                os.utime(path)
        except BaseException:
            held.close()
            raise
        return path, held

    def _make_room(self, volume: Volume, plan: ConvertPlan) -> None:
        """Refuse early what the disk cannot hold, uncompressed."""
        header = plan.header
        need = plan.dtype.itemsize
        for n in header.shape:
            need *= n
        if shutil.disk_usage(self.directory).free < need // _BEST_RATIO:
            raise self._too_small(volume, need // _BEST_RATIO)

    def _too_small(self, volume: Volume, size: int) -> CacheTooSmall:
        return CacheTooSmall(
            f"{volume.name} converts to {size} bytes, and the cache at {self.directory} may hold "
            f"{self.budget}, or its disk is full.",
            do=f"Raise {BUDGET_VARIABLE}, or point recache(directory=) to a larger disk.",
        )

    def _trim(self, keep: str) -> None:
        """Remove the least recently used entries that nobody reads, until the budget is met."""
        import fcntl

        entries: list[tuple[int, str, int]] = []
        for path in self.directory.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                entries.append((path.stat().st_mtime_ns, path.stem, _size_of(path)))
        used = sum(size for _, _, size in entries)
        for _, key, size in sorted(entries):
            if used <= self.budget:
                return
            if key == keep:
                continue
            with open(self.directory / _LOCKS / key, "ab") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                # Renamed first: a kill in the middle leaves no half entry under its name.
                gone = self.directory / f".{key}.gone"
                with suppress(OSError):
                    os.rename(self.directory / f"{key}{_SUFFIX}", gone)
                shutil.rmtree(gone, ignore_errors=True)
                used -= size


# Compressed scans take a third to a half; less than a quarter of the voxels' bytes free means
# that the disk will be full.
_BEST_RATIO = 4


def _size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, file)).st_size
    return total
