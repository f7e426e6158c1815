"""Context variables that have a value inside a ``with`` block, in this thread or task alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Let a variable have a value inside the ``with`` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
