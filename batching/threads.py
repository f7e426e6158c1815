"""Threads for the patches of one batch.

Decoding and resampling release the interpreter lock, so a worker that has several cores to
itself realizes several patches at once. Who runs a recipe says how many; by default one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_EXECUTOR: ContextVar[Executor | None] = ContextVar("threads", default=None)


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Realize up to ``count`` patches at once inside the block; None leaves what holds outside."""
    if count is None:
        yield
        return
    name = "voxpipe-realize"
    pool = nullcontext() if count < 2 else ThreadPoolExecutor(count, thread_name_prefix=name)
    with pool as executor:
        token = _EXECUTOR.set(executor)
        try:
            yield
        finally:
            _EXECUTOR.reset(token)


@dataclass(frozen=True)
class InThreads:
    """What an instruction does, with so many threads."""

    threads: int
    instruction: Any

    @property
    def origin(self) -> Any:
        """Where the user wrote the pipe."""
        return getattr(self.instruction, "origin", None)

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        """Return what ``items`` become."""
        with using_threads(self.threads):
            made: list[Any] = self.instruction(items)
        return made


def in_threads(function: Callable[[T], R], things: Iterable[T]) -> list[R]:
    """Return ``function`` of each thing, in order; the first error, in order, is raised."""
    # It returns or raises when every call has ended: none still writes into memory that the caller
    # then gives away.
    executor, given = _EXECUTOR.get(), list(things)
    if executor is None or len(given) < 2:
        return [function(thing) for thing in given]
    # What holds for the caller's reads holds in the threads too.
    futures = [executor.submit(copy_context().run, function, thing) for thing in given]
    wait(futures)
    try:
        return list(map(Future.result, futures))
    finally:
        # What one of them raised holds this call, and all callers up to who takes the error; were
        # it held here, their voxels would wait for a collection of garbage.
        futures.clear()
