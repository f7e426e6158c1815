"""What answers byte ranges, as a file in which another library reads here and there."""

from __future__ import annotations

import io
import os
from typing import Any


class Seekable(io.RawIOBase):
    """A file of ``size`` bytes for one thread at a time; a subclass says what brings them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def piece(self, start: int, stop: int) -> bytes | memoryview:
        """Return the bytes from ``start`` to ``stop``; there is at least one."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read anywhere."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to where the next read begins."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the file goes; return how many bytes."""
        view = memoryview(buffer).cast("B")
        stop = min(self._at + len(view), self._size)
        if self._at >= stop:
            return 0
        found = self.piece(self._at, stop)
        view[: len(found)] = found
        self._at += len(found)
        return len(found)
