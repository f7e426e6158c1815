"""Locks for finalizers and forked children, where a plain lock would hang.

The garbage collector may run inside a lock and finalize an unfinished epoch, which frees objects
that the lock guards. A plain lock would make that thread wait for itself. A reentrant lock would
let it in while the data is inconsistent.

A forked child inherits the locks of its parent's threads, but not the threads that release them.
This includes Python's locks of modules that are being imported, so a fork waits for late imports.
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
"""Packages imported at first use, in any thread."""
LONGEST_IMPORT = 30.0
"""Seconds that a fork waits for an import. Importing torch from a cold disk takes ten."""
_POLL_SECONDS = 0.001


def renew_after_fork(thing: Any) -> None:
    """Call ``thing.after_fork()`` in each forked child, as long as ``thing`` exists."""
    _EVERY.add(thing)


class ForkSafeLock(RLock):  # type: ignore[misc]  # typeshed calls it final, and CPython does not
    """A reentrant lock that is free in a forked child.

    The parent may fork inside the lock, so the data must be consistent after each step or be
    dropped in the child. ``with`` acquires and releases in C. In a Python method, Ctrl-C before
    the first line would leave the lock taken.
    """

    def __init__(self) -> None:
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Release the parent's lock, like the locks of the standard library."""
        self._at_fork_reinit()  # type: ignore[attr-defined]

    is_mine: Callable[[], bool] = RLock._is_owned  # type: ignore[attr-defined]


class DeferredActs:
    """Functions that need a lock but never wait for it; ``with acts, lock:`` runs the due ones.

    Finalizers defer acts, in any thread, also inside the lock. An act must neither fail nor wait.
    """

    def __init__(self, lock: ForkSafeLock) -> None:
        self._lock = lock
        self.due: deque[Callable[[], object]] = deque()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Drop the acts of the parent."""
        self.due.clear()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self.due:
            self.defer()

    def defer(self, *acts: Callable[[], object]) -> None:
        """Run acts under the lock: now, or when the thread that holds it leaves it."""
        self.due.extend(acts)
        lock = self._lock
        # Repeat after each release: another thread may have deferred acts meanwhile.
        while self.due and not lock.is_mine():
            # Nested: Ctrl-C may interrupt one of the two blocks before it releases the lock.
            try:
                try:
                    if not lock.acquire(blocking=False):
                        return
                    while self.due:
                        self.due.popleft()()
                finally:
                    if lock.is_mine():
                        lock.release()
            finally:
                if lock.is_mine():
                    lock.release()


def await_imports() -> None:
    """Wait until no other thread imports one of ``IMPORTED_LATE``."""
    # Python releases the global import lock in a child, but not the locks of modules (3.11 to
    # 3.14).
    deadline = time.monotonic() + LONGEST_IMPORT
    while _is_importing() and time.monotonic() < deadline:
        _pause(_POLL_SECONDS)


def _is_importing() -> bool:
    """Whether another thread holds the import lock of such a module."""
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
    """Register a function to call before each fork, or in each child after ``after_fork()``."""
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


# ``poll()`` counts milliseconds in 32 bits, 24 days. A longer timeout than this means none.
LONGEST_SECONDS = 7 * 24 * 3600.0


def timeout_or_none(seconds: float) -> float | None:
    """Return a timeout for the standard library: None for no limit."""
    return None if seconds > LONGEST_SECONDS else max(0.0, seconds)
