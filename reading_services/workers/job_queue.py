"""Jobs that wait in a worker, and what they will read: fetched while the job before is made.

Each is unpickled once, by a thread that looks ahead or when its turn comes.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from ...batching.job import tickets_of
from ..transport.messages import END_OF_ITEMS, Deal, DoJob, SourceFailed


class QueuedJob:
    """One job that has arrived, as a ``message`` perhaps."""

    def __init__(self, load: Callable[[], Any], message: Any = None) -> None:
        self.message = message
        self._load = load
        self._lock = threading.Lock()
        self._looked_at = False
        self._job: Any = None
        self._error: BaseException | None = None
        self._tickets: list[Any] = []

    def job(self) -> Any:
        """Return the job, what it reads being fetched; raise what unpickling it raised."""
        self.look()
        if self._error is not None:
            raise self._error
        return self._job

    def look(self) -> None:
        """Unpickle the job and begin to fetch what it reads, unless that was done."""
        with self._lock:
            if self._looked_at:
                return
            self._looked_at = True
            try:
                self._job = self._load()
            except BaseException as error:  # told to the consumer when its turn comes
                self._error = error
                return
            self._tickets = tickets_of(self._job)

    def close(self) -> None:
        """Let go of what was fetched, used or not."""
        with self._lock:
            self._looked_at = True
            tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            ticket.close()


class JobQueue:
    """Jobs in the order of their arrival, looked at by a thread while they wait."""

    def __init__(self, load: Callable[[bytes], Any]) -> None:
        self._load = load
        self._waiting: queue.SimpleQueue[QueuedJob] = queue.SimpleQueue()
        self._dealt: queue.SimpleQueue[Deal] = queue.SimpleQueue()
        self._ahead: queue.SimpleQueue[QueuedJob] = queue.SimpleQueue()

    def look_ahead(self) -> None:
        """Begin to look at jobs that wait; before, nobody knows the backends of the user."""

        # In a copy of the context: the read scheme holds for what is read ahead too.
        def look() -> None:
            while True:
                self._ahead.get().look()

        run = partial(copy_context().run, look)
        threading.Thread(target=run, name="voxpipe-read-ahead", daemon=True).start()

    def put(self, data: bytes) -> None:
        """Take a message, which is a job or what it works on; never waits."""
        message: DoJob | Deal = pickle.loads(data)
        if isinstance(message, Deal):
            self._dealt.put(message)
            return
        job = QueuedJob(partial(self._load, message.job), message)
        self._waiting.put(job)
        self._ahead.put(job)

    def get(self) -> QueuedJob:
        """Wait for the next job."""
        return self._waiting.get()

    def dealt(self) -> Any:
        """Wait for the next item that is dealt out to this worker, or the end of them."""
        deal = self._dealt.get()
        if deal.ends:
            return END_OF_ITEMS
        if deal.fails:
            raise SourceFailed("what makes the items that are dealt out has failed")
        return self._load(deal.item)
