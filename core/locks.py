"""Locks where a plain one hangs: around what finalizers call too, and in forked children.

Garbage may be collected whenever memory is taken, so also inside a lock; and what is collected may
be an epoch that nobody finished, whose end frees what the lock guards. With a plain lock that
thread would wait for itself, for ever; a reentrant one would let it in while things are half done.

A forked child inherits locks that threads of its parent hold, and not the threads: nobody would
ever release them there. Python's own locks of modules that are just being imported are such, too:
a fork waits until late imports of ours are done.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from _thread import RLock
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

_EVERY: WeakSet[Any] = WeakSet()

IMPORTED_LATE = frozenset(
    (
        *("torch", "torchdata", "numpy", "numcodecs", "zarr", "nibabel", "scipy", "isal", "numba"),
        *("fsspec", "s3fs", "aiobotocore", "botocore", "aiohttp", "obstore", "gcsfs", "adlfs"),
        *("h5py", "hdf5plugin", "tifffile", "imagecodecs", "pydicom", "blosc2", "PIL", "itk"),
        *("voxpipe", "monai", "torchio", "matplotlib", "rich", "ray", "lightning"),
    )
)
"""Packages that are imported where they are needed first, by whichever thread that is."""
LONGEST_IMPORT = 30.0
"""Seconds that a fork waits for an import. To import torch from a cold disk takes ten."""
_LOOK = 0.001


def renew_after_fork(thing: Any) -> None:
    """Call ``thing.after_fork()`` in each forked child, while there is such a thing."""
    _EVERY.add(thing)


class ForkSafeLock(RLock):  # type: ignore[misc]  # typeshed calls it final, and CPython does not
    """A reentrant lock that is free in a forked child.

    For data that is whole after each step, or forgotten in a child: the parent may fork within it.
    ``with`` enters and leaves the lock in C. A method in Python could be interrupted by Ctrl-C
    before its first line, and the lock would stay taken.
    """

    def __init__(self) -> None:
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Release the lock of the parent, as the standard library's own locks do."""
        self._at_fork_reinit()  # type: ignore[attr-defined]

    is_mine: Callable[[], bool] = RLock._is_owned  # type: ignore[attr-defined]


class DeferredActs:
    """Acts that need a lock and never wait for it: ``with acts, lock:`` runs those that are due.

    Finalizers defer acts, in any thread, also within the lock. An act must neither fail nor wait.
    """

    def __init__(self, lock: ForkSafeLock) -> None:
        self._lock = lock
        self._due: deque[Callable[[], object]] = deque()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Drop the acts of the parent."""
        self._due.clear()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._due:
            self.defer()

    def defer(self, *acts: Callable[[], object]) -> None:
        """Run acts under the lock: now, or as soon as the thread that holds it has left."""
        self._due.extend(acts)
        lock = self._lock
        # Repeated after each release: another thread may have been refused meanwhile.
        while self._due and not lock.is_mine():
            # Twice: Ctrl-C may interrupt one of the two blocks before it releases the lock.
            try:
                try:
                    if not lock.acquire(blocking=False):
                        return
                    while self._due:
                        self._due.popleft()()
                finally:
                    if lock.is_mine():
                        lock.release()
            finally:
                if lock.is_mine():
                    lock.release()


def await_imports() -> None:
    """Wait until no other thread is in an import of what is imported late."""
    # Python releases the lock of all imports in a child, and not those of each module (3.11 to
    # 3.14).
    deadline = time.monotonic() + LONGEST_IMPORT
    while _is_importing() and time.monotonic() < deadline:
        _pause(_LOOK)


def _is_importing() -> bool:
    """Whether another thread holds the lock of such a module."""
    locks: dict[str, Any] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    here = threading.get_ident()
    for name, reference in list(locks.items()):
        if name.partition(".")[0] in IMPORTED_LATE:
            lock = reference()
            if getattr(lock, "owner", None) not in (None, here):
                return True
    return False


_pause = time.sleep


_BEFORE: list[Callable[[], None]] = []
_AFTER: list[Callable[[], None]] = []


def at_fork(
    before: Callable[[], None] | None = None, after: Callable[[], None] | None = None
) -> None:
    """Call a function before each fork, or in each forked child after what was renewed."""
    _BEFORE.extend(filter(None, [before]))
    _AFTER.extend(filter(None, [after]))


def _before_fork() -> None:
    for act in _BEFORE:
        act()
    await_imports()


def _after_fork() -> None:
    for lock in list(_EVERY):
        lock.after_fork()
    for act in _AFTER:
        act()


if hasattr(os, "register_at_fork"):  # the only one of voxpipe
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


# Polls count milliseconds in 32 bits, which is 24 days; who allows more than this sets no limit.
LONGEST_SECONDS = 7 * 24 * 3600.0


def timeout_or_none(seconds: float) -> float | None:
    """Return how long to wait at most, as the standard library wants it: None without a limit."""
    return None if seconds > LONGEST_SECONDS else max(0.0, seconds)
