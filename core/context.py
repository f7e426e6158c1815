"""Values inside a ``with`` block: of a thread or task, and the running passes of a process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")


class holding(Generic[T]):  # noqa: N801  it is used as a verb
    """A value of a context variable inside a ``with`` block."""

    # ``contextmanager`` takes four times as long, and every patch enters several blocks.

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


_LENGTH_BYTES = 2


class RunningPass:
    """The passes over whole volumes that this process runs, in memory that others can read."""

    def __init__(self) -> None:
        self._memory: Any = np.zeros(_LENGTH_BYTES + 1000, np.uint8)
        self._running: dict[object, str] = {}

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
