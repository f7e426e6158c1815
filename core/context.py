"""Values inside a ``with`` block: of a thread or task, and the running passes of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakMethod

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ContextKey(Generic[T]):
    """Key of a value that blocks of :class:`holding` set for their thread or task."""

    default: T

    def get(self) -> T:
        """Return the value of the innermost block around the call, else the default."""
        value: T = values_here().get(self, self.default)
        return value


Values = Mapping[ContextKey[Any], Any]
_NONE: Values = {}  # no mapping is ever changed
_VALUES = ContextVar("voxpipe", default=_NONE)  # the package has no other variable
values_here = _VALUES.get
"""Return the values by key, without the defaults: the fastest way for code of each patch."""


@dataclass(eq=False)
class holding(Generic[T]):  # noqa: N801  it is used as a verb
    """The value of a key, and those of ``more`` keys, inside a ``with`` block."""

    # ``contextmanager`` takes four times as long, and every patch enters a block. A block ends
    # before those around it: no generator yields inside one.

    key: ContextKey[T]
    value: T
    more: Values | None = None

    def __enter__(self) -> T:
        values = {**values_here(), self.key: self.value}
        if self.more:
            values.update(self.more)
        self._token = _VALUES.set(values)
        return self.value

    def __exit__(self, *_: object) -> None:
        _VALUES.reset(self._token)


_LENGTH_BYTES = 2


class RunningPass:
    """The passes over whole volumes that this process runs, in memory that others can read."""

    def __init__(self) -> None:
        self._memory: Any = np.zeros(_LENGTH_BYTES + 1000, np.uint8)
        self._running: dict[object, str] = {}
        self._workers: list[WeakMethod[Any]] = []

    def share(self, memory: Any) -> None:
        """Keep the text in ``memory``, an array of bytes, from now on."""
        self._memory, self._running = memory, {}
        self._write()

    @contextmanager
    def over(self, names: Iterable[str]) -> Iterator[None]:
        """Note a pass over these volumes inside the ``with`` block."""
        token = object()
        self._running[token] = ", ".join(names)
        self._write()
        try:
            yield
        finally:
            self._running.pop(token, None)
            self._write()

    def read(self) -> str:
        """Return the names of the volumes; empty while no pass is running."""
        return pass_noted_in(self._memory)

    def follow(self, status: Callable[[], Any]) -> None:
        """Also read the passes of a worker, from its method that returns a ``WorkerStatus``."""
        self._workers = [one for one in self._workers if one() is not None]
        self._workers.append(WeakMethod(status))

    def in_words(self) -> str:
        """Return which volumes this process and its workers read as a whole; empty if none."""
        statuses = [status() for one in self._workers if (status := one()) is not None]
        names = [self.read(), *(status.whole_pass for status in statuses)]
        names = [*dict.fromkeys(filter(None, names))]
        return f"reading all voxels of {', '.join(names)}" if names else ""

    def _write(self) -> None:
        memory, text = self._memory, ", ".join(list(self._running.values()))
        data = text.encode(errors="replace")[: len(memory) - _LENGTH_BYTES]
        length = memory[:_LENGTH_BYTES].view(np.uint16)
        length[0] = 0
        memory[_LENGTH_BYTES : _LENGTH_BYTES + len(data)] = np.frombuffer(data, np.uint8)
        length[0] = len(data)


def pass_noted_in(memory: Any) -> str:
    """Return the volumes of the pass that a process notes in ``memory``."""
    length = int(memory[:_LENGTH_BYTES].view(np.uint16)[0])
    return bytes(memory[_LENGTH_BYTES : _LENGTH_BYTES + length]).decode(errors="replace")


RUNNING_PASS = RunningPass()
