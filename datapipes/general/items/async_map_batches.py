"""Apply a coroutine function to several items at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, ClassVar

from ....core.errors import placed
from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of
from ...forms import offered
from ...item_bytes import BUFFER_BYTES, WAITING_BYTES, bytes_of
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
    buffer_bytes
        Bytes that the results of a group may take, with the data of arrays and tensors. Where items
        are yielded there are fewer of them in a group: as many as results of the largest size seen
        so far fit, at least one; None for 256 MiB. A list is what you asked for: one that takes
        more is an error; None for 1 GiB.

    Notes
    -----
    The event loop runs in a thread of its own, so this works in a notebook too, and lives as
    long as a pass. When one call fails, or the pass is left, the others of its group are cancelled.
    A call that blocks (``time.sleep``) cannot be; it is waited for as in ``threadpool_map``.

    Raises
    ------
    ValueError
        If ``async_fn`` is no coroutine function, or a number or the columns make no sense.
    BufferError
        While iterating: a list takes more than ``buffer_bytes``.

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
        *,
        buffer_bytes: int | None = None,
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
        usual = BUFFER_BYTES if flatten else WAITING_BYTES
        self.buffer_bytes = (
            usual
            if buffer_bytes is None
            else whole("buffer_bytes", buffer_bytes, least=1, unit="bytes")
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield the results, or lists of them."""
        loop = asyncio.new_event_loop()
        thread = Threads(1, thread_name_prefix="async_map_batches")
        under_way: list[asyncio.Task[list[Any]]] = []
        largest = 0

        def made(group: list[Any]) -> list[Any]:
            under_way[:] = [loop.create_task(self._all_of(group))]
            return loop.run_until_complete(under_way[0])

        def cancel() -> None:
            for task in under_way:
                task.cancel()

        try:
            items = iter(self.parent)
            while group := [*islice(items, self._at_once(largest))]:
                done = thread.submit(made, group).result()
                sizes = [bytes_of(result) for result in done]
                largest = max(largest, *sizes)
                del group
                if self.flat:
                    yield from done
                else:
                    self._refuse_too_large(sum(sizes), len(done))
                    yield done
        finally:
            loop.call_soon_threadsafe(cancel)  # of no effect if nothing is under way
            thread.end(lambda: _close(loop))

    def _at_once(self, largest: int) -> int:
        """Return how many items make a group, if the largest result had so many bytes."""
        if not self.flat:
            return self.batch_size
        if largest:
            return max(1, min(self.batch_size, self.buffer_bytes // largest))
        # Nothing is known of the results yet: as many as are under way at once, and no more.
        return min(self.batch_size, self.max_concurrency)

    def _refuse_too_large(self, size: int, count: int) -> None:
        if size > self.buffer_bytes and count > 1:
            error = BufferError(
                f"async_map_batches() gathered {count} results of {size} bytes for one list, and "
                f"buffer_bytes is {self.buffer_bytes}. Give a smaller batch_size=, a larger "
                "buffer_bytes=, or flatten=True, which makes fewer at once."
            )
            raise placed(error, self.origin)

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
