"""A cache of computed values that evicts the least recently used.

Threads that need the same value wait for the first of them, so that a pass over a whole volume
runs once. Other values are not delayed meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from .locks import DeferredActs, ForkSafeLock, renew_after_fork

V = TypeVar("V")

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801  the name of the class that it replaces
        """``functools.cached_property`` as in Python 3.12: without a lock.

        Older ones hold one lock for all instances of a class: a child forked meanwhile waits for
        ever. If two threads compute a value, both get the value of the first.
        """

        def __init__(self, make):
            self._make = make
            self.__doc__ = make.__doc__
            self.__module__ = make.__module__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return vars(instance).setdefault(self._name, self._make(instance))


# Entries of a few hundred bytes each.
MAX_WEIGHT = 4096


class LRUCache(Generic[V]):
    """Values by key; the least recently used are dropped.

    Examples
    --------
    >>> squares = LRUCache(most=2)
    >>> squares.get_or(3, lambda: 9), squares.get_or(3, lambda: 1 / 0)
    (9, 9)
    >>> [squares.get_or(n, lambda: n * n) for n in (4, 5)], squares.get(3)
    ([16, 25], None)
    """

    def __init__(self, most: int = MAX_WEIGHT, weigh: Callable[[V], int] = lambda value: 1) -> None:
        self.most = most  # largest total weight; a single value may be heavier
        self._weigh = weigh
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self.weight = 0  # total weight of all values
        self._lock = ForkSafeLock()
        self._acts = DeferredActs(self._lock)
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Drop the locks of the parent's threads, which do not exist here."""
        self._being_made: dict[Hashable, tuple[threading.RLock, list[None]]] = {}

    def get(self, key: Hashable) -> V | None:
        """Return the cached value, or None."""
        with self._acts, self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def get_or(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the cached value, else that of ``make``, called by one thread at a time.

        None is not cached. If ``make`` raises, one of the waiting threads calls its own.
        """
        if (value := self.get(key)) is not None:
            return value
        with self._alone(key):
            value = self.get(key)
            if value is None:
                value = make()
                if value is not None:
                    with self._acts, self._lock:
                        self._values[key] = value
                        self.weight += self._weigh(value)
                        while len(self._values) > 1 and self.weight > self.most:
                            self.weight -= self._weigh(self._values.popitem(last=False)[1])
            return value

    @contextmanager
    def _alone(self, key: Hashable) -> Iterator[None]:
        """Exclude other threads that compute the same value."""
        with self._acts, self._lock:
            lock, users = self._being_made.setdefault(key, (threading.RLock(), []))
            users.append(None)
        try:
            with lock:
                yield
        finally:
            with self._acts, self._lock:
                users.pop()
                if not users:
                    self._being_made.pop(key, None)

    def clear(self) -> None:
        """Drop all values; a finalizer inside the lock drops them right after it."""
        self._acts.defer(self._clear)

    def _clear(self) -> None:
        self._values.clear()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._values)
