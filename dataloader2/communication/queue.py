"""Queues between the two sides: first in, first out, with waits that end."""

from __future__ import annotations

import queue
from multiprocessing.connection import Connection, wait
from typing import Any

from ...core.errors import WorkerDied

_REAPED = 5.0


class ThreadingQueue(queue.Queue[Any]):
    """A queue between threads. ``get`` waits without polling.

    Parameters
    ----------
    name
        For messages.
    most
        Items that it holds; ``put`` waits for room. 0 for any number.

    Examples
    --------
    >>> letters = ThreadingQueue("letters")
    >>> for letter in "ab":
    ...     letters.put(letter)
    >>> letters.get(timeout=1), letters.get(timeout=1)
    ('a', 'b')
    """

    def __init__(self, name: str = "unnamed", most: int = 0) -> None:
        super().__init__(most)
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class LocalQueue(ThreadingQueue):
    """A queue inside one thread, where nobody could put while ``get`` waits: it never does.

    Examples
    --------
    >>> letters = LocalQueue("letters")
    >>> letters.put("a")
    >>> letters.get()
    'a'
    """

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the oldest item; ``queue.Empty`` at once if there is none."""
        return super().get(block=False)


class ProcessQueue:
    """A queue from one process to one other.

    ``put`` pickles in the thread that calls it, so that what cannot be pickled is told there;
    multiprocessing's own queue loses it in a thread of its own. ``get`` tells when the other
    process has died.

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
