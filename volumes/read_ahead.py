"""Stored bytes that were asked for before they are needed, until the read that needs them.

Whoever knows what will be read takes a ticket for it: the requests begin at once, beside
everything else. A read finds the bytes here, or waits for those that are on their way; what went
wrong with them is raised there. Closing the ticket lets them go, needed or not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Protocol

from .remote_ranges import RemoteRanges

Index = tuple[int, ...]
Bring = Callable[[Sequence[Index]], Coroutine[Any, Any, "dict[Index, memoryview | None]"]]

MOST_BYTES = 128 * 1024**2
"""Two batches of four image and label patches of 96 cubed, in chunks of 64 cubed."""


@dataclass(eq=False)
class _Delivery:
    """Chunks of one array that are fetched together."""

    future: Future[dict[Index, memoryview | None]]
    size: int
    """Bytes: at most, and what they are once they are here."""
    tickets: int = 0
    """How many wait for it."""


class Ticket:
    """Keeps bytes that were asked for; close it when they were read, or never will be."""

    def __init__(self, ahead: ReadAhead, deliveries: list[_Delivery]) -> None:
        self._ahead, self._deliveries = ahead, deliveries

    def close(self) -> None:
        """Let go; what nobody else waits for is dropped, and is not fetched any more."""
        deliveries, self._deliveries = self._deliveries, []
        self._ahead.release(deliveries)


class Closes(Protocol):
    """What is kept until somebody says that it is not needed any more."""

    def close(self) -> None:
        """Let go; any number of times."""


class Tickets:
    """Several things that are kept for one read."""

    def __init__(self, held: Sequence[Closes]) -> None:
        self._held = held

    def close(self) -> None:
        """Let all of them go."""
        held, self._held = self._held, ()
        for one in held:
            one.close()


class ReadAhead:
    """Bytes on their way or here, within a bound. Safe to use from several threads.

    Parameters
    ----------
    most_bytes
        Of all chunks together, each counted as if it were not compressed until it is here.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._lock = threading.RLock()
        self._chunks: dict[tuple[str, Index], _Delivery] = {}

    def begin(
        self, token: str, chunks: Sequence[Index], size: int, store: RemoteRanges, bring: Bring
    ) -> Ticket | None:
        """Begin to fetch what is not on its way yet; None where there is no room for it.

        Parameters
        ----------
        token
            Names the array.
        chunks
            Which of its chunks.
        size
            Bytes that one takes at most.
        store
            Runs the requests.
        bring
            Fetches chunks.
        """
        with self._lock:
            known = [self._chunks.get((token, index)) for index in chunks]
            wanted = [index for index, held in zip(chunks, known, strict=True) if held is None]
            if self.held_bytes and self.held_bytes + size * len(wanted) > self.most_bytes:
                return None
            deliveries = list({id(held): held for held in known if held is not None}.values())
            if wanted:
                deliveries.append(self._sent_for(token, wanted, size, store, bring))
            for delivery in deliveries:
                delivery.tickets += 1
        return Ticket(self, deliveries)

    def taken(self, token: str, chunks: Sequence[Index]) -> dict[Index, memoryview | None]:
        """Return the bytes of those chunks that are here or on their way; None: not stored.

        Raises
        ------
        Exception
            What went wrong while they were fetched.
        """
        with self._lock:
            held = {index: self._chunks.get((token, index)) for index in chunks}
        found: dict[Index, memoryview | None] = {}
        for index, delivery in held.items():
            if delivery is not None:
                try:
                    found[index] = delivery.future.result()[index]
                except CancelledError:
                    continue  # its ticket was closed meanwhile; it is read like any other
        return found

    def release(self, deliveries: Sequence[_Delivery]) -> None:
        """Let one ticket's deliveries go."""
        dropped = []
        with self._lock:
            for delivery in deliveries:
                delivery.tickets -= 1
                if delivery.tickets == 0:
                    dropped.append(delivery)
                    self.held_bytes -= delivery.size
            self._chunks = {key: held for key, held in self._chunks.items() if held not in dropped}
        for delivery in dropped:
            delivery.future.cancel()

    def clear(self) -> None:
        """Drop everything; tickets that are still open hold nothing any more."""
        with self._lock:
            deliveries = {id(held): held for held in self._chunks.values()}
            self._chunks = {}
            self.held_bytes = 0
            for delivery in deliveries.values():
                delivery.size = 0
        for delivery in deliveries.values():
            delivery.future.cancel()

    def forget_parent(self) -> None:
        """Start empty in a forked child, where nothing is on its way."""
        self._lock = threading.RLock()
        self._chunks = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def _sent_for(
        self, token: str, chunks: Sequence[Index], size: int, store: RemoteRanges, bring: Bring
    ) -> _Delivery:
        work = bring(chunks)
        try:
            future = store.begin(work)
        except BaseException:
            work.close()  # or it warns that nobody awaited it
            raise
        delivery = _Delivery(future, size * len(chunks))
        self.held_bytes += delivery.size
        self._chunks.update(((token, index), delivery) for index in chunks)
        future.add_done_callback(lambda done: self._arrived(delivery, done))
        return delivery

    def _arrived(self, delivery: _Delivery, done: Future[dict[Index, memoryview | None]]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        size = sum(len(piece) for piece in done.result().values() if piece is not None)
        with self._lock:
            if delivery.tickets and delivery.size:
                self.held_bytes += size - delivery.size
                delivery.size = size


AHEAD = ReadAhead()
"""What this process has asked for ahead."""
