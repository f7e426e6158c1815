"""The last import of the fork server: it freezes the imported objects, and cleans up at exit.

A garbage collection in a child would copy every page of objects that are not frozen. A killed
consumer leaves the folder of the server's socket, which the server removes when it ends. An import
in any other process has no effect.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import socket
import struct
import sys
import time

from .script import FOLDERS, begin_with_signals_blocked, import_code, remove_notes, survive_refusals

# The server ends when the descriptors of the consumer close, shortly before the consumer is gone.
_SECONDS = 2.0
_DESCRIPTORS = "/dev/fd"
# struct ucred of Linux: process, user and group.
_CREDENTIALS = struct.Struct("3i")


def _own_addresses() -> list[tuple[str, int]]:
    """Return the socket paths of this process below multiprocessing's folders, and their makers."""
    addresses = []
    for number in os.listdir(_DESCRIPTORS):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            copy = os.dup(int(number))
            stack.callback(os.close, copy)
            listener = socket.socket(fileno=copy)
            stack.callback(listener.detach)
            address = listener.getsockname() if listener.family == socket.AF_UNIX else ""
            if isinstance(address, str) and f"{os.sep}{FOLDERS}" in address:
                addresses.append((address, _maker(listener)))
    return addresses


def _maker(listener: socket.socket) -> int:
    """Return the process that began to listen; it may be gone, and no longer our parent."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getppid()
    credentials = listener.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def _remove_folder(address: str, consumer: int) -> None:
    """Remove the socket and its folder if the consumer, whose task it is, is gone."""
    end = time.monotonic() + _SECONDS
    while os.getppid() == consumer and time.monotonic() < end:
        time.sleep(0.01)
    if os.getppid() != consumer:  # a live consumer needs the folder for its next server
        # Workers that were starting write a note there, and end without their consumer.
        end = time.monotonic() + _SECONDS
        with contextlib.suppress(ChildProcessError):  # none is left
            while time.monotonic() < end:
                os.waitpid(-1, os.WNOHANG)
                time.sleep(0.01)
        with contextlib.suppress(OSError):  # the consumer has removed it
            os.unlink(address)
            remove_notes(os.path.dirname(address), consumer)
            os.rmdir(os.path.dirname(address))


# multiprocessing writes the command line of its fork server.
if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
    import_code()
    gc.collect()
    gc.freeze()
    begin_with_signals_blocked()
    survive_refusals()
    # At exit, the server has closed these addresses.
    for _where, _whose in _own_addresses():
        atexit.register(_remove_folder, _where, _whose)
