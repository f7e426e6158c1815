"""A memory file mapped without keeping its descriptor.

Python's ``mmap`` duplicates the descriptor and holds it as long as the mapping (until 3.13,
which has ``trackfd=False``). A user who keeps a thousand batches would run out of
descriptors, so the C library is called instead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FAILED = ctypes.c_void_p(-1).value
_LIBC = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
if _LIBC is not None:
    _LIBC.mmap.restype = ctypes.c_void_p
    _LIBC.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    _LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
# Not in Python's mmap: gives the pages of a shared mapping back, for everyone who has it.
_MADV_REMOVE = 9


class Mapping:
    """``size`` bytes of a file, shared and writable; unmapped when nothing looks into it."""

    def __init__(self, fd: int, size: int) -> None:
        assert _LIBC is not None
        address = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self.address = int(address)
        self.size = size
        self._memory: Any = (ctypes.c_uint8 * size).from_address(self.address)
        self.before_unmap: list[Callable[[], None]] = []
        """Called first, in turn; the memory is unmapped whatever they raise."""
        # Arrays hold the ctypes object, so the mapping lives as long as any of them.
        end = weakref.finalize(self._memory, _unmap, self.address, size, self.before_unmap)
        end.atexit = False

    def bytes(self) -> NDArray[np.uint8]:
        """Return the mapping as an array of its own, which keeps it mapped."""
        return np.frombuffer(self._memory, np.uint8)

    def discard(self) -> None:
        """Give the memory back to the system now, whoever has it mapped; it reads as zeros."""
        assert _LIBC is not None
        _LIBC.madvise(self.address, self.size, _MADV_REMOVE)


def _unmap(address: int, size: int, first: list[Callable[[], None]]) -> None:
    assert _LIBC is not None
    try:
        for call in first:
            call()
    finally:
        _LIBC.munmap(address, size)
