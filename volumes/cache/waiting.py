"""Waiting for another process: look, pause, look again, until there is no more time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import BinaryIO

from ...core.errors import VoxpipeError

# Short beside what is waited for, a decoded or converted volume; long beside a look.
POLL_SECONDS = 0.02


def pause(deadline: float, busy: Callable[[], VoxpipeError]) -> None:
    """Wait before the next look.

    Parameters
    ----------
    deadline
        On the monotonic clock.
    busy
        Makes the error that is raised once that has passed.
    """
    if time.monotonic() >= deadline:
        raise busy()
    time.sleep(POLL_SECONDS)


def lock(file: BinaryIO, deadline: float, busy: Callable[[], VoxpipeError]) -> None:
    """Take the kernel's lock of an open file; closing the file gives it back.

    Polled, because waiting in the kernel has no timeout.
    """
    import fcntl

    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause(deadline, busy)
        else:
            return
