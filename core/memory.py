"""The memory that this process may use, and what it holds."""

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
# Version 2 of control groups, and version 1, which keeps memory in a tree of its own.
_TREES = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
_CORE_TREES = {"": ("", "cpu.max"), "cpu": ("cpu", "cpu.cfs_quota_us")}


def private_pages(size: int) -> mmap.mmap:
    """Return zeros in pages of their own, which go back to the system when they are let go of.

    Among short-lived arrays, long-lived ones would hold the heap at its largest.
    """
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@cache
def usable_memory() -> int:
    """Return the main memory in bytes, or the least limit of a container or of ``ulimit -v``."""
    # 0 if nobody tells.
    limits = [size for size in (memory_of(_GROUPS, _OWN), _address_space()) if size > 0]
    return min(limits, default=0)


def _address_space() -> int:
    """Return the limit of what this process may address; 0 where there is none."""
    try:
        import resource
    except ImportError:  # not Unix
        return 0
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit


def refuse_beyond_memory(
    shape: Sequence[int], dtype: np.dtype[Any], of: object, most: int | None = None
) -> None:
    """Raise before an array is made that no memory of this process can hold."""
    size = math.prod(map(int, shape)) * dtype.itemsize
    limit = usable_memory() if most is None else most
    if limit and size > limit:
        what = f"{of} of shape {tuple(map(int, shape))} in {dtype}"
        msg = f"reading would take {size} bytes of memory and may take {limit}: {what}"
        raise BudgetExceeded(msg, do="Make patches or batches smaller.")


def memory_of(groups: Path, own: Path) -> int:
    """Return the least of the machine's memory and the limits of control groups, in bytes."""
    sizes = list(_limits(groups, own))
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(sizes, default=0)


def _limits(groups: Path, own: Path) -> Iterator[int]:
    """Yield the limits of every group around this process, from its own up to the root."""
    for folder, name in sorted(set(_files(groups, own, _TREES))):
        try:
            yield int((folder / name).read_text())
        except (OSError, ValueError):  # no such file; or "max": no limit
            continue


def core_quota(groups: Path = _GROUPS, own: Path = _OWN) -> float:
    """Return the cores that control groups let this process use, a fraction perhaps; inf: all."""
    quotas = [math.inf]
    for folder, name in set(_files(groups, own, _CORE_TREES)):
        with contextlib.suppress(OSError, ValueError):  # no such file; or "max": no limit
            words = (folder / name).read_text().split()
            if len(words) == 1:  # version 1 has a file for each
                words += (folder / "cpu.cfs_period_us").read_text().split()
            quota, period = map(int, words)
            if quota > 0 and period > 0:  # -1 is no limit
                quotas.append(quota / period)
    return min(quotas)


def _files(
    groups: Path, own: Path, trees: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[Path, str]]:
    # In a container the root of what is mounted is its own group, whatever path it is told.
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
# Reading it takes some 5 us, an item of a planner 20: so it is read no more often than this.
EVERY_SECONDS = 0.01
# Elsewhere than on Linux the most that was ever held is all that is told: in KiB, or in bytes.
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def resident_bytes() -> int:
    """Return the bytes of main memory that this process holds, shared pages included."""
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
    return pages * os.sysconf("SC_PAGE_SIZE")


class MemorySampler:
    """Reads what is held from time to time."""

    def __init__(self, every: float = EVERY_SECONDS) -> None:
        self._every = every
        self._next = 0.0

    def read(self) -> dict[int, int]:
        """Return ``{pid: bytes}``; nothing if it was read just now."""
        now = time.monotonic()
        if now < self._next:
            return {}
        self._next = now + self._every
        return {os.getpid(): resident_bytes()}


MEMORY_SAMPLER = MemorySampler()  # that of this process


def array_bytes(item: Any) -> int:
    """Return the bytes of the arrays and tensors that an item holds; of descriptions none."""
    if isinstance(item, Mapping):
        return sum(array_bytes(value) for value in item.values())
    if isinstance(item, (list, tuple)):
        return sum(array_bytes(value) for value in item)
    if isinstance(item, (str, int, float)) or item is None:
        return 0
    # Voxels that are not a tensor yet are in a wrapper of ours.
    size = getattr(getattr(item, "array", item), "nbytes", 0)
    return size if isinstance(size, int) else 0


# What the kernel counts reads of disks in, whatever the disk has.
_BLOCK_BYTES = 512


def disk_bytes() -> int:
    """Return the bytes that disks have brought for this process; none of a network file system.

    0 where the system does not tell.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * _BLOCK_BYTES
