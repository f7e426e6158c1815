"""Where a batch is put together.

``batch_patches`` asks for memory here. By default that is the process's own; a
worker puts a shared-memory slot in its place, so that a batch is written where the
consumer will read it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

ArraySpec: TypeAlias = "tuple[tuple[int, ...], np.dtype[np.generic]]"
"""Shape and type of one array of a batch."""


class BatchMemory(Protocol):
    """Something that hands out memory for all arrays of a batch at once."""

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
        """Return one C-ordered, uninitialised array per spec."""


class OwnMemory:
    """The process's own memory."""

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
        """Return one C-ordered, uninitialised array per spec."""
        return [np.empty(shape, dtype) for shape, dtype in specs]


_OWN = OwnMemory()
_CURRENT: ContextVar[BatchMemory] = ContextVar("batch_memory")


def batch_memory() -> BatchMemory:
    """Return the memory in which batches are made now."""
    return _CURRENT.get(_OWN)


@contextlib.contextmanager
def using(memory: BatchMemory) -> Iterator[None]:
    """Make batches in ``memory`` inside the ``with`` block."""
    token = _CURRENT.set(memory)
    try:
        yield
    finally:
        _CURRENT.reset(token)
