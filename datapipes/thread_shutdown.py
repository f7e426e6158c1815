"""How long a pass waits for its threads when it is left: Python can stop none that runs.

The contract: whoever leaves a pass tells every thread to end, and waits for what it is at, an item
or a call of the user's function, ``STOP_SECONDS`` at most. A thread that takes longer is told of in
a warning, takes nothing more, and holds up neither the next pass nor the end of the program.

Several pipes with threads are left one after the other, as an error or Ctrl-C goes up the chain, or
when their iterators are dropped: what one of them was waited for is taken from what the others
have. So however many they are, they end within the 5 s that Ctrl-C may take. Only waits count,
not what lies between them, and an item that goes through a pipe with threads begins a new account:
the pass goes on.

A loader sets one limit for all threads behind it (:func:`leaving`), from its ``Timeout(stop=...)``,
and says what else has to be told, so that a thread that waits for a batch of workers is woken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic

from ..core.call_site import warn

STOP_SECONDS = 2.0
"""For how long one thread is waited for, unless told otherwise."""
# The first may have two thirds of what all may have, the next two thirds of the rest, and so on:
# nobody is left without a moment, in which an idle thread ends, and together they stay below this.
_OF_THE_REST = 2 / 3


class _Limit:
    """For how long the first thread is waited for, and what else has to be told before."""

    def __init__(self, seconds: float, tell: Callable[[], None] | None = None) -> None:
        self.seconds = seconds
        self._tell = tell

    def tell(self) -> None:
        """Tell it, once."""
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()


class _Account(threading.local):
    """For how long this thread has waited for others since a pass went on here, in seconds."""

    waited: float = 0.0


_USUAL = _Limit(STOP_SECONDS)
_NOW: ContextVar[_Limit] = ContextVar("voxpipe-leaving", default=_USUAL)
_ACCOUNT = _Account()


@contextmanager
def leaving(
    seconds: float = STOP_SECONDS, tell: Callable[[], None] | None = None
) -> Iterator[None]:
    """Let the first thread stopped inside take so long, and all together half as long again.

    Parameters
    ----------
    seconds
        For which the first is waited for, at most.
    tell
        Called once, before the first is waited for.
    """
    token = _NOW.set(_Limit(seconds, tell))
    try:
        yield
    finally:
        _NOW.reset(token)


def going_on() -> None:
    """Note that a pass goes on here: what is left after this is another one, with all its time."""
    _ACCOUNT.waited = 0.0


def wait_for(*threads: threading.Thread, most: float = float("inf")) -> threading.Thread | None:
    """Wait for threads that were told to end, but not for ever; return one that goes on, if any.

    Not for the thread that calls: garbage is collected in any thread, so what is dropped may be
    its own.

    Parameters
    ----------
    threads
        That were told.
    most
        Seconds that this may take, whatever there is left.
    """
    others = [thread for thread in threads if thread is not threading.current_thread()]
    if not any(thread.is_alive() for thread in others):
        return None
    limit = _NOW.get()
    limit.tell()
    begun = monotonic()
    left = max(0.0, limit.seconds / _OF_THE_REST - _ACCOUNT.waited)
    end = begun + min(most, left * _OF_THE_REST)
    try:
        for thread in others:
            thread.join(max(0.0, end - monotonic()))
    finally:
        _ACCOUNT.waited += monotonic() - begun
    return next((thread for thread in others if thread.is_alive()), None)


def warn_of(name: str) -> None:
    """Warn of a thread that goes on."""
    text = f"the thread {name!r} is still at one item, which Python cannot interrupt; it ends when "
    warn(text + "that is done", RuntimeWarning)
