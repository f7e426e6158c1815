"""Queues between the two sides: first in, first out, with waits that end."""

from __future__ import annotations

import queue
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar

from ...core.errors import WorkerDied
from ...core.whole import whole
from ...datapipes.iter.stack.footprint import BUFFER_BYTES, WAITING_BYTES, bytes_of

_REAPED = 5.0


class ThreadingQueue(queue.Queue[Any]):
    """A queue between threads. ``get`` waits without polling.

    Parameters
    ----------
    name
        For messages.
    most
        Items that it holds; ``put`` waits for room. 0 for any number.
    most_bytes
        Bytes that they may take, with the data of arrays and tensors; ``put`` waits for room for
        them too. A single one may take more. None for 256 MiB.

    Examples
    --------
    >>> letters = ThreadingQueue("letters")
    >>> for letter in "ab":
    ...     letters.put(letter)
    >>> letters.get(timeout=1), letters.get(timeout=1)
    ('a', 'b')
    """

    _usual_bytes: ClassVar[int] = BUFFER_BYTES

    def __init__(
        self, name: str = "unnamed", most: int = 0, *, most_bytes: int | None = None
    ) -> None:
        super().__init__(most)
        self.name = name
        self.most_bytes = (
            self._usual_bytes
            if most_bytes is None
            else whole("most_bytes", most_bytes, least=1, unit="bytes")
        )
        self._bytes = 0

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, once there is room for it.

        Raises
        ------
        queue.Full
            There is none, after ``timeout`` seconds if ``block``; None waits as long as it takes.
        """
        size = bytes_of(item)
        with self.not_full:
            if not self.not_full.wait_for(lambda: self._has_room(size), timeout if block else 0):
                raise self._full(size)
            self._bytes += size
            self._put((item, size))
            self.unfinished_tasks += 1
            self.not_empty.notify()

    def _get(self) -> Any:
        item, size = super()._get()
        self._bytes -= size
        self.not_full.notify_all()  # the first that waits may be the one that still does not fit
        return item

    def _has_room(self, size: int) -> bool:
        count = self._qsize()
        fits = not count or self._bytes + size <= self.most_bytes
        return fits and not 0 < self.maxsize <= count

    def _full(self, size: int) -> queue.Full:
        held = f"{self!r} holds {self._qsize()} items of {self._bytes} bytes"
        more = f"most is {self.maxsize or 'any number'} and most_bytes {self.most_bytes}"
        return queue.Full(
            f"{held}, and there is no room for one of {size}: {more}. Take what it holds "
            "first, or give it a larger most= or most_bytes=."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class LocalQueue(ThreadingQueue):
    """A queue inside one thread, where nobody could act while ``put`` or ``get`` waits: none does.

    So it holds more, 1 GiB unless told otherwise, before ``put`` is an error.

    Examples
    --------
    >>> letters = LocalQueue("letters")
    >>> letters.put("a")
    >>> letters.get()
    'a'
    """

    _usual_bytes: ClassVar[int] = WAITING_BYTES

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; ``queue.Full`` at once if there is no room for it."""
        super().put(item, block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the oldest item; ``queue.Empty`` at once if there is none."""
        return super().get(block=False)


class ProcessQueue:
    """A queue from one process to one other.

    ``put`` pickles in the thread that calls it, so that what cannot be pickled is told there;
    multiprocessing's own queue loses it in a thread of its own. ``get`` tells when the other
    process has died. What lies in it lies in the system's pipe, which holds 64 KiB or less:
    beyond that ``put`` waits until it is taken, so that no number of messages fills the memory.

    Parameters
    ----------
    context
        Of multiprocessing.
    """

    def __init__(self, context: Any) -> None:
        self._reader: Connection
        self._writer: Connection
        self._reader, self._writer = context.Pipe(duplex=False)
        self.process: Any = None
        """The process that puts, once there is one; known to the one that created it."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "process": None}

    def put(self, item: Any) -> None:
        """Send an item."""
        self._writer.send(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the oldest item.

        Raises
        ------
        queue.Empty
            There is none, after ``timeout`` seconds if ``block``; None waits as long as it takes.
        WorkerDied
            There is none, and the process that should put it has ended.
        """
        source: list[Any] = [self._reader]
        alive = self.process is not None and self.process.pid is not None
        watched = [*source, self.process.sentinel] if alive else source
        ready = wait(watched, timeout if block else 0)
        if self._reader in ready or self._reader.poll():
            return self._reader.recv()
        if ready:
            self.process.join(_REAPED)  # its status is known a moment after its end
            raise WorkerDied(
                f"process {self.process.name} ended with exit status {self.process.exitcode} and "
                "left a request without a response",
                do="See what it wrote to the terminal.",
            )
        raise queue.Empty

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()
