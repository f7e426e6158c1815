"""Apply a coroutine function to several items at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar

from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of, offered
from .columns import Columns
from .threads import Threads


@offered("async_map_batches")
class BatchAsyncMapper(DataPipe):
    """Apply a coroutine function to the items of a group concurrently; their order is kept.

    Parameters
    ----------
    source_datapipe
        The parent.
    async_fn
        An ``async def`` function.
    batch_size
        Items in a group; the last may be smaller.
    input_col
        Index or key of what ``async_fn`` gets, or a list of them for several arguments; None for
        the item.
    output_col
        Where the result goes; by default in place of the (first) input, whose others are
        removed. -1 is the end of a list or tuple.
    max_concurrency
        Calls that are under way at once.
    flatten
        Whether items are yielded, or lists of them.

    Notes
    -----
    The event loop runs in a thread of its own, so this works in a notebook too, and lives as
    long as a pass. When one call fails, or the pass is left, the others of its group are cancelled.
    A call that blocks (``time.sleep``) cannot be; it is waited for as in ``threadpool_map``.

    Raises
    ------
    ValueError
        If ``async_fn`` is no coroutine function, or a number or the columns make no sense.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> async def tenfold(number):
    ...     return 10 * number
    >>> list(IterableWrapper(range(4)).async_map_batches(tenfold, 3))
    [0, 10, 20, 30]
    """

    traits: ClassVar[Traits] = Traits(opaque=True)

    def __init__(
        self,
        source_datapipe: Pipe,
        async_fn: Callable[..., Awaitable[Any]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
    ) -> None:
        super().__init__()
        if not inspect.iscoroutinefunction(async_fn):
            msg = f"Expected a corotine function with an async def syntax, but got {async_fn!r}"
            raise ValueError(msg)
        self.parent = source_datapipe
        self.async_fn = async_fn
        self.batch_size = whole("batch_size", batch_size, least=1)
        self.columns = Columns.checked(async_fn, input_col, output_col)
        self.max_concurrency = whole("max_concurrency", max_concurrency, least=1)
        self.flat = flatten

    def __iter__(self) -> Iterator[Any]:
        """Yield the results, or lists of them."""
        loop = asyncio.new_event_loop()
        thread = Threads(1, thread_name_prefix="async_map_batches")
        under_way: list[asyncio.Task[list[Any]]] = []

        def made(group: list[Any]) -> list[Any]:
            under_way[:] = [loop.create_task(self._all_of(group))]
            return loop.run_until_complete(under_way[0])

        def cancel() -> None:
            for task in under_way:
                task.cancel()

        try:
            for group in self._groups():
                done = thread.submit(made, group).result()
                if self.flat:
                    yield from done
                else:
                    yield done
        finally:
            loop.call_soon_threadsafe(cancel)  # of no effect if nothing is under way
            thread.submit(_close, loop)
            thread.end()

    def _groups(self) -> Iterator[list[Any]]:
        group: list[Any] = []
        for item in self.parent:
            group.append(item)
            if len(group) == self.batch_size:
                yield group
                group = []
        if group:
            yield group

    async def _all_of(self, group: list[Any]) -> list[Any]:
        turn = asyncio.Semaphore(self.max_concurrency)

        async def one_of(item: Any) -> Any:
            async with turn:
                result = await self.async_fn(*self.columns.arguments(item))
            return self.columns.placed(item, result)

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
