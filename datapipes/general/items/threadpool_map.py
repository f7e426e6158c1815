"""Apply a function to items in several threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of
from ...forms import offered
from ...item_bytes import BUFFER_BYTES, bytes_of
from .columns import Columns
from .threads import Threads

# What ThreadPoolExecutor itself takes where it is not told.
_EXTRA_THREADS, _MOST_THREADS = 4, 32


@offered("threadpool_map")
class ThreadPoolMapper(DataPipe):
    """Apply a function to each item in a pool of threads; the order of the items is kept.

    Parameters
    ----------
    source_datapipe
        The parent.
    fn
        Should release Python's lock, as reading, NumPy and torch do, for threads to pay.
    input_col
        Index or key of what ``fn`` gets, or a list of them for several arguments; None for the
        item.
    output_col
        Where the result goes; by default in place of the (first) input, whose others are
        removed. -1 is the end of a list or tuple.
    scheduled_tasks
        Calls that are under way or waiting for their turn, at most.
    max_workers
        Threads; by default as many as ``ThreadPoolExecutor`` takes.
    buffer_bytes
        Bytes that results may take: there are as many calls at once as results of the
        largest size seen so far fit, at least one.
    **threadpool_kwargs
        ``thread_name_prefix``, ``initializer`` and ``initargs``, as of ``ThreadPoolExecutor``.

    Notes
    -----
    What the function draws from the global generators of ``random``, NumPy or torch depends on
    which thread comes first. An error is raised when it is the turn of its item. When the pass
    ends, fails or is abandoned, calls that have not begun are cancelled and the others awaited, for
    2 s at most (in a loader with ``Timeout(stop=...)`` so long; all such pipes of a chain together
    half as long again); then a warning names the thread.

    Raises
    ------
    ValueError
        If a number is below 1, or the columns make no sense.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, -2, 3]).threadpool_map(abs, max_workers=2))
    [1, 2, 3]
    """

    traits: ClassVar[Traits] = Traits(per_item=True, opaque=True, ahead=True)

    def __init__(
        self,
        source_datapipe: Pipe,
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        scheduled_tasks: int = 128,
        max_workers: int | None = None,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        **threadpool_kwargs: Any,
    ) -> None:
        super().__init__()
        self.parent = source_datapipe
        self.fn = fn
        self.columns = Columns.checked(fn, input_col, output_col)
        self.scheduled_tasks = whole("scheduled_tasks", scheduled_tasks, least=1)
        self.max_workers = (
            None if max_workers is None else whole("max_workers", max_workers, least=1)
        )
        self.buffer_bytes = whole("buffer_bytes", buffer_bytes, least=1, unit="bytes")
        self.threadpool_kwargs = threadpool_kwargs

    def __iter__(self) -> Iterator[Any]:
        """Yield the results."""
        pool = Threads(self._threads(), **self.threadpool_kwargs)
        scheduled: deque[Future[Any]] = deque()
        items = iter(self.parent)
        largest = 0
        try:
            while True:
                while len(scheduled) < self._at_once(largest):
                    try:
                        item = next(items)
                    except StopIteration:
                        break
                    scheduled.append(pool.submit(self._applied, item))
                if not scheduled:
                    return
                result, size = scheduled.popleft().result()
                largest = max(largest, size)
                yield result
        finally:
            pool.stop()

    def _at_once(self, largest: int) -> int:
        """Return how many calls there may be, if the largest result had that many bytes."""
        if largest:
            return max(1, min(self.scheduled_tasks, self.buffer_bytes // largest))
        # Nothing is known of the results yet: keep the threads busy and no more.
        return min(self.scheduled_tasks, self._threads())

    def _threads(self) -> int:
        return self.max_workers or min(_MOST_THREADS, (os.cpu_count() or 1) + _EXTRA_THREADS)

    def _applied(self, item: Any) -> tuple[Any, int]:
        result = self.columns.placed(item, self.fn(*self.columns.arguments(item)))
        return result, bytes_of(result)

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
