"""What a worker frees stays with its process, for the next patch.

Stored chunks and decoded ones come and go, some hundred kilobytes each and thousands in a second,
allocated in one thread and freed in another. glibc gives such memory back to the system and asks
for it anew, and the system clears every page of it: a third of the processor time that receiving
a bucket's chunks takes, or nothing of it, as chance has laid out the heaps.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

# <malloc.h> of glibc.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
# The most that glibc takes from its heaps; larger blocks are mapped, and unmapped when freed.
_LARGEST = 32 * 1024**2
# What may lie free at the end of a heap: all of one, which has at most 64 MiB.
_MOST_FREE = 64 * 1024**2
# By how much a heap grows at a time; each step is a call of the system.
_STEP = 4 * 1024**2
# Variables with which users say such things themselves.
_OWN_WORDS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
_TUNABLES, _OF_MALLOC = "GLIBC_TUNABLES", "glibc.malloc."


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Let this process keep what it frees, within bounds; for processes of our own.

    Parameters
    ----------
    environment
        Where it says when memory is given back, that holds, and nothing is done here.

    Returns
    -------
    bool
        Whether anything was changed: only glibc knows how.
    """
    told = any(name in environment for name in _OWN_WORDS)
    if told or _OF_MALLOC in environment.get(_TUNABLES, ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    wanted = ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _MOST_FREE), (_TOP_PAD, _STEP))
    return all(mallopt(which, size) == 1 for which, size in wanted)
