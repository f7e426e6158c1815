"""What the socket under a channel can do and multiprocessing does not say: limits, descriptors.

A Python socket made over a descriptor makes it non-blocking when the script has set
``socket.setdefaulttimeout()``, and with it the channel, of which it is another name: a
message that the other side has not read yet would then fail at once. The sockets here leave
the descriptor as it is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.connection import Connection

from ...core.locks import timeout_or_none

# Asked for this type Python takes the descriptor to be non-blocking already and does not touch
# it. Linux has it; elsewhere the default is undone below, which no other thread may notice:
# there are no slots there, so nobody else is using the channel.
_AS_IT_IS = getattr(socket, "SOCK_NONBLOCK", 0)


def limit_waits(channel: Connection, seconds: float) -> None:
    """Let sending and receiving on ``channel`` end with BlockingIOError after ``seconds``.

    A message is taken at once by a worker that lives, whatever it is doing: a thread of its
    own listens. Only one that was stopped would keep the consumer waiting for ever.
    """
    if sys.platform == "win32":
        return  # pipes of another kind, without such limits
    wait = timeout_or_none(seconds) or 0.0  # the system's word for no limit
    limit = struct.pack("ll", int(wait), int(wait % 1 * 1e6))
    with _socket_of(channel) as twin:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def send_descriptor(channel: Connection, fd: int) -> None:
    """Give the process at the other end a copy of a descriptor."""
    with _socket_of(channel) as twin:
        reduction.sendfds(twin, [fd])


def receive_descriptor(channel: Connection) -> int:
    """Return the descriptor that :func:`send_descriptor` sent."""
    with _socket_of(channel) as twin:
        fd: int = reduction.recvfds(twin, 1)[0]
        return fd


@contextlib.contextmanager
def _socket_of(channel: Connection) -> Iterator[socket.socket]:
    kind = socket.SOCK_STREAM | _AS_IT_IS
    with socket.socket(socket.AF_UNIX, kind, 0, os.dup(channel.fileno())) as twin:
        if not _AS_IT_IS:
            os.set_blocking(channel.fileno(), True)
        yield twin
