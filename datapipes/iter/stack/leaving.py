"""How long a pass waits for its threads when it is left: Python can stop none that runs.

The contract: whoever leaves a pass tells every thread to end, and waits for what it is at, an item
or a call of the user's function, ``STOP_SECONDS`` at most. A thread that takes longer is told of in
a warning, takes nothing more, and holds up neither the next pass nor the end of the program.

A loader sets one limit for all threads behind it (:func:`leaving`), from its ``Timeout(stop=...)``,
and says what else has to be told, so that a thread that waits for a batch of workers is woken.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Two pipes with threads, one after the other, end within the 5 s that Ctrl-C may take.
STOP_SECONDS = 2.0


class _Leaving:
    """One limit for all that is stopped under it; its clock starts with the first."""

    def __init__(self, seconds: float, tell: Callable[[], None] | None) -> None:
        self._seconds = seconds
        self._tell = tell
        self._end: float | None = None

    def left(self) -> float:
        """Return the seconds that are left."""
        if self._end is None:
            self._end = time.monotonic() + self._seconds
            if self._tell is not None:
                self._tell()
        return max(0.0, self._end - time.monotonic())


_NOW: ContextVar[_Leaving | None] = ContextVar("voxpipe-leaving", default=None)


@contextmanager
def leaving(
    seconds: float = STOP_SECONDS, tell: Callable[[], None] | None = None
) -> Iterator[None]:
    """Let all threads that are stopped inside take so long together.

    Parameters
    ----------
    seconds
        From the first stop on.
    tell
        Called once, before the first is waited for.
    """
    token = _NOW.set(_Leaving(seconds, tell))
    try:
        yield
    finally:
        _NOW.reset(token)


def seconds_left() -> float:
    """Return for how long to wait for a thread that was told to end."""
    now = _NOW.get()
    return STOP_SECONDS if now is None else now.left()


def warn_of(name: str) -> None:
    """Warn of a thread that goes on."""
    text = f"the thread {name!r} is still at one item, which Python cannot interrupt; it ends when "
    warnings.warn(text + "that is done", RuntimeWarning, stacklevel=3)
