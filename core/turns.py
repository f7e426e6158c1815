"""Locks where a plain one hangs: around what finalizers call too, and in forked children.

Garbage may be collected whenever memory is taken, so also inside a lock; and what is collected may
be an epoch that nobody finished, whose end frees what the lock guards. With a plain lock that
thread would wait for itself, for ever; a reentrant one would let it in while things are half done.

A forked child inherits locks that threads of its parent hold, and not the threads: nobody would
ever release them there.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from weakref import WeakSet

_EVERY: WeakSet[ForkSafeLock] = WeakSet()


class ForkSafeLock:
    """A reentrant lock that is free in a forked child, whoever held it in the parent.

    For what is whole after each step, or forgotten in a child: a thread may have been in its midst.

    Examples
    --------
    >>> lock = ForkSafeLock()
    >>> with lock, lock:
    ...     pass
    """

    def __init__(self) -> None:
        self.after_fork()
        _EVERY.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Leave the lock of the parent behind."""
        self._lock = threading.RLock()


class Turns:
    """A lock, and acts that wait for it without keeping anybody waiting.

    Examples
    --------
    >>> turns, done = Turns(), []
    >>> with turns:
    ...     turns.soon(lambda: done.append("act"))
    ...     done.append("inside")
    >>> turns.soon(lambda: done.append("at once"))
    >>> done
    ['inside', 'act', 'at once']
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: deque[Callable[[], object]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._settle()

    def soon(self, act: Callable[[], object]) -> None:
        """Do something that needs the lock: now, or as soon as whoever has it leaves.

        ``act`` must not fail, and must not enter by itself.
        """
        self._due.append(act)
        self._settle()

    def _settle(self) -> None:
        # Looked at again each time after leaving: somebody may have been refused meanwhile.
        while self._due and self._lock.acquire(blocking=False):
            try:
                while self._due:
                    self._due.popleft()()
            finally:
                self._lock.release()


def _after_fork() -> None:
    for lock in list(_EVERY):
        lock.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
