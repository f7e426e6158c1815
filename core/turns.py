"""A lock around what finalizers call too.

Garbage may be collected whenever memory is taken, so also inside a lock; and what is collected may
be an epoch that nobody finished, whose end frees what the lock guards. With a plain lock that
thread would wait for itself, for ever; a reentrant one would let it in while things are half done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


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
