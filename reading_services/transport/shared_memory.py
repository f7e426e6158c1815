"""A memory file that is mapped without an open descriptor, as descriptors are scarce.

Python's ``mmap`` keeps one open (until ``trackfd=False`` of 3.13), so the C library is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.locks import timeout_or_none

_MAP_FAILURE = ctypes.c_void_p(-1).value
_LIBC = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
if _LIBC is not None:
    _LIBC.mmap.restype = ctypes.c_void_p
    _AREA = (ctypes.c_void_p, ctypes.c_size_t)
    _LIBC.mmap.argtypes = [*_AREA, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    _LIBC.munmap.argtypes = [*_AREA]
    _LIBC.madvise.argtypes = [*_AREA, ctypes.c_int]
# Not in Python's mmap: releases the pages of a shared mapping in all processes.
_MADV_REMOVE = 9


class SharedMemory:
    """``size`` bytes of a file, shared and writable; unmapped after its last array."""

    def __init__(self, fd: int, size: int) -> None:
        assert _LIBC is not None
        address = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILURE:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self.address = int(address)
        self.size = size
        self._memory: Any = (ctypes.c_uint8 * size).from_address(self.address)
        self.before_unmap: list[Callable[[], None]] = []
        """Functions to call first, in turn; the memory is unmapped even if they raise."""
        # Arrays hold the ctypes object, so the mapping lives as long as any of them.
        end = weakref.finalize(self._memory, _unmap, self.address, size, self.before_unmap)
        end.atexit = False

    def bytes(self) -> NDArray[np.uint8]:
        """Return the mapping as a new array, which keeps it mapped."""
        return np.frombuffer(self._memory, np.uint8)

    def discard(self) -> None:
        """Release the memory now, in all processes; the mapping then reads as zeros."""
        assert _LIBC is not None
        _LIBC.madvise(self.address, self.size, _MADV_REMOVE)


def _unmap(address: int, size: int, first: list[Callable[[], None]]) -> None:
    assert _LIBC is not None
    try:
        for call in first:
            call()
    finally:
        _LIBC.munmap(address, size)


# Timeouts and descriptors of the socket under a channel, which multiprocessing does not offer.
#
# If the script has called ``socket.setdefaulttimeout()``, a Python socket over a descriptor makes
# it non-blocking. The channel shares the descriptor, so a message that the other side has not read
# yet would fail at once. The sockets here leave the descriptor as it is.

# With this type Python assumes that the descriptor is non-blocking and does not change it. Linux
# has it. On other systems ``_socket_of`` makes the descriptor blocking again. No other thread uses
# the channel then, as those systems have no slots.
_AS_IT_IS = getattr(socket, "SOCK_NONBLOCK", 0)


def limit_waits(channel: Connection, seconds: float) -> None:
    """Make waits on ``channel`` end with BlockingIOError after ``seconds``: for stopped workers."""
    if sys.platform == "win32":
        return  # its pipes have no such limits
    wait = timeout_or_none(seconds) or 0.0  # the system reads 0 as no limit
    limit = struct.pack("ll", int(wait), int(wait % 1 * 1e6))
    with _socket_of(channel) as twin:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def has_message(channel: Connection) -> bool:
    """Whether a channel has a message; ``channel.poll()`` takes five times as long."""
    if not hasattr(select, "poll"):
        return channel.poll()
    look = select.poll()
    look.register(channel.fileno(), select.POLLIN)
    return bool(look.poll(0))


def send_descriptor(channel: Connection, fd: int) -> None:
    """Send a copy of a descriptor to the process at the other end."""
    # multiprocessing's function waits for an answer (Python 3.14), and would read a job as one.
    with _socket_of(channel) as twin:
        socket.send_fds(twin, [b"\0"], [fd])


def receive_descriptor(channel: Connection) -> int:
    """Return the descriptor that :func:`send_descriptor` sent."""
    with _socket_of(channel) as twin:
        _, descriptors, _, _ = socket.recv_fds(twin, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            raise EOFError("the process at the other end has gone without sending a descriptor")
        return descriptors[0]


def receive_memory(channel: Connection, size: int) -> SharedMemory:
    """Return the mapped memory file of a descriptor that was sent."""
    fd = receive_descriptor(channel)
    try:
        return SharedMemory(fd, size)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _socket_of(channel: Connection) -> Iterator[socket.socket]:
    kind = socket.SOCK_STREAM | _AS_IT_IS
    with socket.socket(socket.AF_UNIX, kind, 0, os.dup(channel.fileno())) as twin:
        if not _AS_IT_IS:
            os.set_blocking(channel.fileno(), True)
        yield twin
