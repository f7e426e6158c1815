"""A cache of what was worked out once, of which the least lately used goes first.

Threads that ask for the same thing at once wait for the first of them: what takes a reading of a
whole volume is worked out once, and what another one asks for meanwhile is not held up.
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

    class cached_property:  # noqa: N801  the name of the one that it stands for
        """``functools.cached_property`` as it is from Python 3.12 on: without a lock.

        Before, one lock was held for all instances of a class: a child that was forked meanwhile
        waited for ever. Of two threads that make a value at once, both get that of the first.
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


# Of a few hundred bytes each.
MAX_WEIGHT = 4096


class LRUCache(Generic[V]):
    """Values by key, of which those asked for least lately are dropped.

    Examples
    --------
    >>> squares = LRUCache(most=2)
    >>> squares.get_or(3, lambda: 9), squares.get_or(3, lambda: 1 / 0)
    (9, 9)
    >>> [squares.get_or(n, lambda: n * n) for n in (4, 5)], squares.get(3)
    ([16, 25], None)
    """

    def __init__(self, most: int = MAX_WEIGHT, weigh: Callable[[V], int] = lambda value: 1) -> None:
        self.most = most  # how much all values may weigh together; one alone may weigh more
        self._weigh = weigh
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self.weight = 0  # how much all values weigh together
        self._lock = ForkSafeLock()
        self._acts = DeferredActs(self._lock)
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Leave behind the locks of a parent, whose threads are not here to give them back."""
        self._being_made: dict[Hashable, tuple[threading.RLock, list[None]]] = {}

    def get(self, key: Hashable) -> V | None:
        """Return what is remembered, or None."""
        with self._acts, self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def get_or(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return what is remembered, or what ``make`` returns: one thread at a time calls it."""
        # Where it raises, nothing is remembered, and one of those that waited calls its own. None
        # is not remembered either.
        with self._acts, self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
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
        """Keep other threads out that want to make the same."""
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
        """Forget everything; in the midst of something else, by a finalizer, right after it."""
        self._acts.defer(self._clear)

    def _clear(self) -> None:
        self._values.clear()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._values)
