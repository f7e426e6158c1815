"""How much memory this process holds, and how much an item takes: for profiles."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
    return pages * os.sysconf("SC_PAGE_SIZE")


class MemorySampler:
    """Reads what is held from time to time.

    Parameters
    ----------
    every
        Seconds between two readings.
    """

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


MEMORY_SAMPLER = MemorySampler()
"""That of this process."""


def array_bytes(item: Any) -> int:
    """Return the bytes of the arrays and tensors that an item holds; of descriptions none.

    Examples
    --------
    >>> import numpy as np
    >>> array_bytes({"image": np.zeros((2, 3), np.float32), "case": "a"})
    24
    """
    if isinstance(item, Mapping):
        return sum(array_bytes(value) for value in item.values())
    if isinstance(item, (list, tuple)):
        return sum(array_bytes(value) for value in item)
    if isinstance(item, (str, int, float)) or item is None:
        return 0
    # Voxels that are not a tensor yet are in a wrapper of ours.
    size = getattr(getattr(item, "array", item), "nbytes", 0)
    return size if isinstance(size, int) else 0
