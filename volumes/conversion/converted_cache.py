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
from typing import Any, BinaryIO

from ...core.errors import CacheBusy, CacheTooSmall, DestinationBusy
from ..cache.cache_directory import BUDGET_VARIABLE, make_directory
from ..cache.cache_room import LOCKS, converted_held, decoded_held, make_room, size_of
from ..cache.decoded_cache import LOCK_TIMEOUT
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

    def open(self, key: str, volume: Any, plan: ConvertPlan) -> tuple[Path, BinaryIO]:
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

        make_directory(self.directory / LOCKS)
        path = self.directory / f"{key}{_SUFFIX}"
        held = open(self.directory / LOCKS / key, "ab")  # noqa: SIM115  the caller closes it
        try:
            # From here on nobody evicts it, whether it is there yet or not.
            fcntl.flock(held, fcntl.LOCK_SH)
            if not path.exists():
                self._make_room(volume, plan)
                target = LocalDestination(path)
                try:
                    with target.locked(self.timeout):
                        write_planned(volume, plan, target)
                except DestinationBusy as error:  # whoever asked for voxels does not write
                    raise CacheBusy(error.what, do=error.do) from error
                size = size_of(path)
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

    def _make_room(self, volume: Any, plan: ConvertPlan) -> None:
        """Refuse early what the disk cannot hold, uncompressed."""
        header = plan.header
        need = plan.dtype.itemsize
        for n in header.shape:
            need *= n
        if shutil.disk_usage(self.directory).free < need // _BEST_RATIO:
            raise self._too_small(volume, need // _BEST_RATIO)

    def _too_small(self, volume: Any, size: int) -> CacheTooSmall:
        return CacheTooSmall(
            f"{volume.name} converts to {size} bytes, and the cache at {self.directory} may hold "
            f"{self.budget}, or its disk is full.",
            do=f"Raise {BUDGET_VARIABLE}, or point recache(directory=) to a larger disk.",
        )

    def _trim(self, keep: str) -> None:
        """Remove the least recently used entries that nobody reads, until the budget is met."""
        held = list(converted_held(self.directory, keep))
        if self.decoded is not None:
            held += decoded_held(self.decoded)
        make_room(held, self.budget)


# Compressed scans take a third to a half; less than a quarter of the voxels' bytes free means
# that the disk will be full.
_BEST_RATIO = 4
