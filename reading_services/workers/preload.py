"""Imported last by the fork server: what workers share with it, and what it takes away at its end.

It freezes what was imported: a collection in a child would copy every page of it. The folder in
which the server listens is left by a consumer that is killed; the server ends after it. An import
in any other process changes nothing there.
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

# The consumer's descriptors are closed, by which the server ends, a moment before it is gone.
_SECONDS = 2.0
_DESCRIPTORS = "/dev/fd"
# struct ucred of Linux: process, user and group.
_CREDENTIALS = struct.Struct("3i")


def _own_addresses() -> list[tuple[str, int]]:
    """Return where this process listens below a folder of multiprocessing, and who began to."""
    addresses = []
    for number in os.listdir(_DESCRIPTORS):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            copy = os.dup(int(number))
            stack.callback(os.close, copy)
            one = socket.socket(fileno=copy)
            stack.callback(one.detach)
            address = one.getsockname() if one.family == socket.AF_UNIX else ""
            if isinstance(address, str) and f"{os.sep}{FOLDERS}" in address:
                addresses.append((address, _maker(one)))
    return addresses


def _maker(listener: socket.socket) -> int:
    """Return which process began to listen; it may be gone by now, and this one another's child."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getppid()
    credentials = listener.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def _remove_folder(address: str, consumer: int) -> None:
    """Take away where the server listened, once the consumer is gone that should have done so."""
    end = time.monotonic() + _SECONDS
    while os.getppid() == consumer and time.monotonic() < end:
        time.sleep(0.01)
    if os.getppid() != consumer:  # else it goes on with another server, and needs its folder
        # Workers that were starting write a note there, and end without their consumer.
        end = time.monotonic() + _SECONDS
        with contextlib.suppress(ChildProcessError):  # none is left
            while time.monotonic() < end:
                os.waitpid(-1, os.WNOHANG)
                time.sleep(0.01)
        with contextlib.suppress(OSError):  # the consumer has taken it away
            os.unlink(address)
            remove_notes(os.path.dirname(address), consumer)
            os.rmdir(os.path.dirname(address))


# The command line of the process, which multiprocessing writes.
if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
    import_code()
    gc.collect()
    gc.freeze()
    begin_with_signals_blocked()
    survive_refusals()
    # At exit, the server has closed these addresses.
    for _where, _whose in _own_addresses():
        atexit.register(_remove_folder, _where, _whose)
