"""Daemon threads for calls of the user's functions.

The interpreter joins threads of ``ThreadPoolExecutor`` at its end, however long their calls take.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.thread import BrokenThreadPool
from itertools import islice
from typing import Any, ClassVar

from ...batching.collate import usable_cores
from ...core.errors import WorkerDied, add_location
from ...core.validate import validate_int
from ...datapipes.background_iterator import (
    join_threads,
    note_progress,
    start_thread,
    warn_still_running,
)
from ...datapipes.datapipe import SameLength, length_of
from ...datapipes.tensors import BUFFER_BYTES, WAITING_BYTES, bytes_of
from ...graph import Pipe, Traits
from .functions import Columns


class Threads:
    """Runs calls in threads, in the order in which they are given."""

    def __init__(
        self,
        most: int,
        *,
        thread_name_prefix: str = "voxpipe",
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._most, self._name = most, thread_name_prefix
        self._initializer, self._initargs = initializer, initargs
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._futures: set[Future[Any]] = set()

    @property
    def busy(self) -> int:
        """Number of calls that have not ended."""
        return sum(not future.done() for future in [*self._futures])

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Queue a call; return its future."""
        note_progress()
        new_future: Future[Any] = Future()
        self._futures.add(new_future)
        new_future.add_done_callback(self._futures.discard)
        self._calls.put((new_future, lambda: call(*arguments)))
        if len(self._threads) < min(self._most, self.busy):
            self._start()
        return new_future

    def _start(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        # Before it starts: Ctrl-C within may leave it running.
        self._threads.append(thread)
        try:
            start_thread(thread)
        except WorkerDied:
            self._threads.remove(thread)
            raise

    def stop(self) -> None:
        """Make no call that has not begun, and wait for the others, but not for ever."""
        for future in [*self._futures]:
            future.cancel()
        self.end()

    def end(self, last: Callable[[], None] | None = None) -> None:
        """Let the threads end after the calls that were given, and wait, but not for ever."""
        # ``last`` is called by one of them before it ends; its errors are lost.
        if last is not None:
            self._calls.put((Future(), last))
            if not self._threads:
                self._start()
        for _ in self._threads:
            self._calls.put(None)
        late = join_threads(*self._threads)
        if late is not None:
            warn_still_running(late.name)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            if self._initializer is not None:
                self._initializer(*self._initargs)
        except BaseException as error:
            failure = error
        while (task := self._calls.get()) is not None:
            future, call = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if failure is not None:
                    raise BrokenThreadPool("the initializer of the threads failed") from failure
                result = call()
            except BaseException as error:  # raised where the result is read
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del task, future, call


def _at_once(most: int, busy: int, most_bytes: int, largest: int) -> int:
    """Return how many calls there may be, if the largest result had that many bytes."""
    # While nothing is known of results there are as many as keep threads or tasks busy.
    return max(1, min(most, most_bytes // largest)) if largest else min(most, busy)


# The defaults of ThreadPoolExecutor.
_EXTRA_THREADS, _MOST_THREADS = 4, 32


class ThreadPoolMapper(SameLength, form="threadpool_map"):
    """Apply a function to each item in a pool of threads; the order of the items is kept.

    Draws of the function from the global generators of ``random``, NumPy or torch depend on the
    order of the threads. An error is raised when it is the turn of its item. When the pass ends,
    fails or is abandoned, calls that have not begun are cancelled and the others awaited. They have
    2 s, or the ``Timeout(stop=...)`` of a loader. All such pipes of a chain together wait half as
    long again. Then a warning names the thread.

    - ``fn``: should release Python's lock, as reading, NumPy and torch do, for threads to pay.
    - ``input_col``: as of :class:`FlatMapper`.
    - ``output_col``: place of the result; by default that of the (first) input, whose others are
      removed. -1 is the end of a list or tuple.
    - ``scheduled_tasks``: calls that are under way or waiting for their turn, at most.
    - ``buffer_bytes``: bytes that results may take: there are as many calls at once as results of
      the largest size seen so far fit, at least one.
    - ``max_workers``, and other keywords: as of ``ThreadPoolExecutor``.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, -2, 3]).threadpool_map(abs, max_workers=2))
    [1, 2, 3]
    """

    traits: ClassVar[Traits] = Traits(per_item=True, runs_user_code=True, ahead=True)

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
        super().__init__(source_datapipe)
        self.fn = fn
        self.columns = Columns.check(fn, input_col, output_col)
        self.scheduled_tasks = validate_int("scheduled_tasks", scheduled_tasks, least=1)
        self.max_workers = (
            None if max_workers is None else validate_int("max_workers", max_workers, least=1)
        )
        self.buffer_bytes = validate_int("buffer_bytes", buffer_bytes, least=1, unit="bytes")
        self.threadpool_kwargs = threadpool_kwargs

    def __iter__(self) -> Iterator[Any]:
        threads = self.max_workers or min(_MOST_THREADS, usable_cores() + _EXTRA_THREADS)
        pool = Threads(threads, **self.threadpool_kwargs)
        futures: deque[Future[Any]] = deque()
        items = iter(self.parent)
        largest = 0
        try:
            while True:
                most = _at_once(self.scheduled_tasks, threads, self.buffer_bytes, largest)
                for item in islice(items, max(0, most - len(futures))):
                    futures.append(pool.submit(self._apply, item))
                if not futures:
                    return
                result, size = futures.popleft().result()
                largest = max(largest, size)
                yield result
        finally:
            pool.stop()

    def _apply(self, item: Any) -> tuple[Any, int]:
        result = self.columns.place(item, self.fn(*self.columns.arguments(item)))
        return result, bytes_of(result)


class BatchAsyncMapper(SameLength, form="async_map_batches"):
    """Apply a coroutine function to the items of a group concurrently; their order is kept.

    The event loop runs in a thread of its own, so this works in a notebook too, and lives as
    long as a pass. When one call fails, or the pass is left, the others of its group are cancelled.
    A call that blocks (``time.sleep``) cannot be; it is waited for as in ``threadpool_map``.

    - ``async_fn``: an ``async def`` function.
    - ``batch_size``: items in a group; the last may be smaller.
    - ``input_col``, ``output_col``: as of :class:`ThreadPoolMapper`.
    - ``max_concurrency``: calls that are under way at once.
    - ``flatten``: whether items are yielded, or lists of them.
    - ``buffer_bytes``: bytes that the results of a group may take, with the data of arrays and
      tensors. With ``flatten`` (None for 256 MiB) a group has as many items as results of the
      largest size seen so far fit, at least one. Else (None for 1 GiB) a list that takes more is a
      ``BufferError``.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> async def tenfold(number):
    ...     return 10 * number
    >>> list(IterableWrapper(range(4)).async_map_batches(tenfold, 3))
    [0, 10, 20, 30]
    """

    traits: ClassVar[Traits] = Traits(runs_user_code=True)

    def __init__(
        self,
        source_datapipe: Pipe,
        async_fn: Callable[..., Awaitable[Any]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
        *,
        buffer_bytes: int | None = None,
    ) -> None:
        super().__init__(source_datapipe)
        if not inspect.iscoroutinefunction(async_fn):
            msg = f"Expected a corotine function with an async def syntax, but got {async_fn!r}"
            raise ValueError(msg)
        self.async_fn = async_fn
        self.batch_size = validate_int("batch_size", batch_size, least=1)
        self.columns = Columns.check(async_fn, input_col, output_col)
        self.max_concurrency = validate_int("max_concurrency", max_concurrency, least=1)
        self.flat = flatten
        usual = BUFFER_BYTES if flatten else WAITING_BYTES
        most = usual if buffer_bytes is None else buffer_bytes
        self.buffer_bytes = validate_int("buffer_bytes", most, least=1, unit="bytes")

    def __iter__(self) -> Iterator[Any]:
        loop = asyncio.new_event_loop()
        thread = Threads(1, thread_name_prefix="async_map_batches")
        under_way: list[asyncio.Task[list[Any]]] = []
        largest = 0

        def make(group: list[Any]) -> list[Any]:
            under_way[:] = [loop.create_task(self._all_of(group))]
            return loop.run_until_complete(under_way[0])

        def cancel() -> None:
            for task in under_way:
                task.cancel()

        try:
            items = iter(self.parent)
            most, busy, room = self.batch_size, self.max_concurrency, self.buffer_bytes
            if not self.flat:  # lists of that size were asked for
                busy, room = most, sys.maxsize
            while group := [*islice(items, _at_once(most, busy, room, largest))]:
                results = thread.submit(make, group).result()
                sizes = [bytes_of(result) for result in results]
                largest = max(largest, *sizes)
                del group
                if self.flat:
                    yield from results
                else:
                    if sum(sizes) > self.buffer_bytes and len(results) > 1:
                        text = f"async_map_batches() gathered {len(results)} results of "
                        text += f"{sum(sizes)} bytes for one list, and buffer_bytes is "
                        text += f"{self.buffer_bytes}. Give a smaller batch_size=, a larger "
                        text += "buffer_bytes=, or flatten=True, which makes fewer at once."
                        raise add_location(BufferError(text), self.origin)
                    yield results
        finally:
            loop.call_soon_threadsafe(cancel)  # of no effect if nothing is under way
            thread.end(lambda: _close(loop))

    async def _all_of(self, group: list[Any]) -> list[Any]:
        turn = asyncio.Semaphore(self.max_concurrency)

        async def one_of(item: Any) -> Any:
            async with turn:
                result = await self.async_fn(*self.columns.arguments(item))
            return self.columns.place(item, result)

        calls = [asyncio.ensure_future(one_of(item)) for item in group]
        try:
            return list(await asyncio.gather(*calls))
        except BaseException:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            raise

    def __len__(self) -> int:
        """Return the parent's length, or the number of groups of it."""
        items = length_of(self, self.parent)
        return items if self.flat else -(-items // self.batch_size)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
