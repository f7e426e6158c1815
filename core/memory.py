"""The memory and cores that this process may use, and the memory it holds."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from .errors import BudgetExceeded

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# Control groups of version 2, and of version 1, which has a separate tree for memory.
_TREES = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
_CORE_TREES = {"": ("", "cpu.max"), "cpu": ("cpu", "cpu.cfs_quota_us")}


def private_pages(size: int) -> mmap.mmap:
    """Return zeros in private pages, which return to the system when they are released.

    Long-lived arrays between short-lived ones would keep the heap at its largest size.
    """
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@cache
def usable_memory() -> int:
    """Return the main memory in bytes, or a lower limit of a container or of ``ulimit -v``.

    0 if unknown.
    """
    limits = [size for size in (memory_of(_GROUPS, _OWN), _address_space()) if size > 0]
    return min(limits, default=0)


def _address_space() -> int:
    """Return the limit of this process's address space; 0 for no limit."""
    try:
        import resource
    except ImportError:  # not Unix
        return 0
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit


def beyond_memory(shape: Sequence[int], dtype: np.dtype[Any], of: object) -> BudgetExceeded:
    """Return the error of an array of more than :func:`usable_memory`."""
    size, limit = math.prod(shape) * dtype.itemsize, usable_memory()
    array = f"{of} of shape {tuple(shape)} in {dtype}"
    msg = f"reading would take {size} bytes of memory and may take {limit}: {array}"
    return BudgetExceeded(msg, do="Make patches or batches smaller.")


def memory_of(groups: Path, own: Path) -> int:
    """Return the smallest of the machine's memory and the control groups' limits, in bytes."""
    sizes = list(_limits(groups, own))
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(sizes, default=0)


def _limits(groups: Path, own: Path) -> Iterator[int]:
    """Yield the limits of this process's group and of its parents."""
    for folder, name in sorted(set(_files(groups, own, _TREES))):
        try:
            yield int((folder / name).read_text())
        except (OSError, ValueError):  # no such file; or "max": no limit
            continue


def core_quota(groups: Path = _GROUPS, own: Path = _OWN) -> float:
    """Return the cores that control groups allow, possibly a fraction; infinite for all."""
    quotas = [math.inf]
    for folder, name in set(_files(groups, own, _CORE_TREES)):
        with contextlib.suppress(OSError, ValueError):  # no such file; or "max": no limit
            words = (folder / name).read_text().split()
            if len(words) == 1:  # version 1 has the period in a second file
                words += (folder / "cpu.cfs_period_us").read_text().split()
            quota, period = map(int, words)
            if quota > 0 and period > 0:  # -1 is no limit
                quotas.append(quota / period)
    return min(quotas)


def _files(
    groups: Path, own: Path, trees: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[Path, str]]:
    # In a container, the root of the mount is the container's own group.
    for tree, name in trees.values():
        yield groups / tree, name
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        for kind in kinds.split(","):
            if kind in trees and ".." not in path:
                tree, name = trees[kind]
                place = PurePosixPath(path.lstrip("/"))
                yield from ((groups / tree / above, name) for above in (place, *place.parents))


_STATM = Path("/proc/self/statm")
# A read takes 5 us, an item of a planner 20: limit the rate.
EVERY_SECONDS = 0.01
# Other systems than Linux report only the peak: in KiB, or in bytes on macOS.
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, shared pages included."""
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
    return pages * os.sysconf("SC_PAGE_SIZE")


class MemorySampler:
    """Resident memory, read at a limited rate."""

    def __init__(self, every: float = EVERY_SECONDS) -> None:
        self._every = every
        self._next = 0.0

    def read(self) -> dict[int, int]:
        """Return ``{pid: bytes}``; empty if the last read was just before."""
        now = time.monotonic()
        if now < self._next:
            return {}
        self._next = now + self._every
        return {os.getpid(): resident_bytes()}


MEMORY_SAMPLER = MemorySampler()  # of this process


def array_bytes(item: Any) -> int:
    """Return the bytes of the arrays and tensors in an item; 0 for lazy patches."""
    if isinstance(item, Mapping):
        return sum(array_bytes(value) for value in item.values())
    if isinstance(item, (list, tuple)):
        return sum(array_bytes(value) for value in item)
    if isinstance(item, (str, int, float)) or item is None:
        return 0
    # ``Voxels`` wrap their array.
    size = getattr(getattr(item, "array", item), "nbytes", 0)
    return size if isinstance(size, int) else 0


# The kernel counts disk reads in these blocks, independent of the disk.
_BLOCK_BYTES = 512


def disk_bytes() -> int:
    """Return the bytes that this process read from local disks; 0 if unknown."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * _BLOCK_BYTES
