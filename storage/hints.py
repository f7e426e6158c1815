"""Bytes of local files that are going to be read: the system is told, and brings them in.

What is in the page cache already needs no telling. So a few bytes of a box are asked for first,
which costs microseconds: ``preadv`` with ``RWF_NOWAIT`` answers at once whether they are there.
Where they were every time, only one patch in a few is asked about any more, because working out
what it is going to read takes longer than all the rest. A hint changes when bytes come, never
which.
"""

from __future__ import annotations

import contextlib
import errno
import os
from functools import partial
from itertools import islice

from ..core.locks import DeferredLock
from .box_blocks import Blocks

MOST_BYTES = 128 * 1024**2
"""As much as is fetched ahead of remote stores: more could push out what is read before it."""
# A hint costs a system call. Of smaller pieces than this makes, most are in the cache by then.
_MOST_HINTS = 256
# Bytes of a box that are looked for: of a box that is half there, all are found once in 256 times.
_SAMPLES = 8
# Boxes in a row that had nothing to be told, after which only each of so many is asked about.
_WARM_ROW, _WARM_STEP = 16, 8


class Hint:
    """What the system was told of one box; close it when it was read, or never will be."""

    def __init__(self, hints: Hints, size: int) -> None:
        self._hints, self._size = hints, size

    def close(self) -> None:
        """Make room for other hints; any number of times."""
        size, self._size = self._size, 0
        self._hints.release(size)


class Hints:
    """What one process has told the system, within a bound. Safe to use from several threads.

    Parameters
    ----------
    most_bytes
        Of all boxes that were told of and not read yet.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.told_bytes = 0
        self._lock = DeferredLock()
        self._warm = self._passed = 0

    def worth_asking(self) -> bool:
        """Whether to work out what is going to be read: not each time, where all is there."""
        if not hasattr(os, "posix_fadvise"):
            return False
        with self._lock:
            if self._warm < _WARM_ROW:
                return True
            self._passed = (self._passed + 1) % _WARM_STEP
            return self._passed == 0

    def tell(self, fd: int, offset: int, blocks: Blocks) -> Hint | None:
        """Tell that a box is going to be read; None where it is there, or there is no room.

        Parameters
        ----------
        fd
            Of the file, open for reading; it may be closed afterwards.
        offset
            Where the array begins in it, in bytes.
        blocks
            What is read of the array.
        """
        if not hasattr(os, "posix_fadvise"):
            return None
        warm = is_cached(fd, [offset + place for place in blocks.places(_SAMPLES)])
        with self._lock:
            self._warm = self._warm + 1 if warm else 0
        if warm:
            return None
        spans = [(offset + b.start, b.size) for b in islice(blocks, _MOST_HINTS)]
        size = sum(size for _, size in spans)
        with self._lock:
            if self.told_bytes and self.told_bytes + size > self.most_bytes:
                return None
            self.told_bytes += size
        room = self.most_bytes
        # Some file systems take no advice; what is read tells what is wrong with the file.
        with contextlib.suppress(OSError):
            for start, length in spans:
                # One box may be larger than the bound alone: its beginning is told.
                if room <= 0:
                    break
                os.posix_fadvise(fd, start, min(length, room), os.POSIX_FADV_WILLNEED)
                room -= length
        return Hint(self, size)

    def release(self, size: int) -> None:
        """Make room for ``size`` bytes."""
        self._lock.defer(partial(self._release, size))

    def _release(self, size: int) -> None:
        self.told_bytes -= size

    def forget_parent(self) -> None:
        """Start anew in a forked child, which has told nothing."""
        self._lock = DeferredLock()
        self.told_bytes = self._warm = self._passed = 0


def is_cached(fd: int, places: list[int]) -> bool:
    """Whether every one of these bytes is in the page cache; False where nobody can tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    room = bytearray(1)
    try:
        return all(os.preadv(fd, [room], place, os.RWF_NOWAIT) == 1 for place in places)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        raise


HINTS = Hints()
"""What this process has told."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HINTS.forget_parent)
