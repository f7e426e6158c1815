"""Batches of this process, made ahead in a thread where the user wrote ``prefetch()`` last."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

from ...datapipes.background_iterator import BackgroundIterator, Exhausted
from ...datapipes.iter import Prefetcher
from ...graph import traits_of
from ..work import Planned, Work
from ..work.planning import draws_globally


def prefetcher_of(work: Work) -> Prefetcher | None:
    """Return the last ``prefetch()`` behind the cut, if batches may be made in a thread.

    They may not where a function of the user's is run: the global generators of ``random``,
    NumPy and torch are seeded around it, and the consumer draws from them at the same time.
    """
    if not isinstance(work, Planned):
        return None
    functions = any(traits_of(pipe).runs_user_code for pipe in work.cut.realizing)
    if functions or draws_globally(work.cut.planner):
        return None
    return next((p for p in reversed(work.cut.realizing) if type(p) is Prefetcher), None)


class MadeAhead:
    """Iterates over batches that a thread makes.

    Parameters
    ----------
    batches
        What makes them; it is closed by the thread.
    pipe
        Says how many, and how many bytes of them.
    """

    def __init__(self, batches: Iterator[Any], pipe: Prefetcher) -> None:
        self._batches = batches
        self._pipe = pipe
        self._ahead: BackgroundIterator | None = None
        self._closed = False

    def __iter__(self) -> MadeAhead:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        if self._ahead is None:
            most, most_bytes = self._pipe.buffer_size, self._pipe.buffer_bytes
            self._ahead = BackgroundIterator(self._batches, most=most, most_bytes=most_bytes)
        try:
            return self._ahead.take()
        except Exhausted:
            raise StopIteration from None

    def close(self) -> None:
        """End the thread; any number of times."""
        self._closed = True
        if self._ahead is not None:
            self._ahead.stop()

    def left(self) -> Thread | None:
        """Return the thread, if it is still at an item after :meth:`close`."""
        return None if self._ahead is None or not self._closed else self._ahead.left()
