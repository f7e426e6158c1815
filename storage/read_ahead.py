"""Prefetch of stored bytes.

:meth:`ReadAhead.begin` returns a ticket for chunks; their requests start as soon as there is room.
A read takes the bytes, or waits for them. Closing the ticket releases them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeGuard, TypeVar
from weakref import ref

from ..core.locks import DeferredActs, ForkSafeLock, renew_after_fork
from .in_flight import RequestPriority
from .ranges import ReadRange

# Cache of small stored chunks: a request costs more than keeping a hundred of them.
#
# A chunk of a label map takes a few hundred stored bytes, and a chunk of background none. Its
# request takes as long as the request of an image chunk, and its voxels are evicted soon. So stored
# bytes stay, and the absence of a chunk too.

K = TypeVar("K", bound=tuple[Any, ...])
"""Index of a chunk, or key of an object."""

SMALL_BYTES = 16 * 1024
"""Largest kept chunk: at 60 MB/s it takes 0.3 ms, after a round trip of 30 ms."""
ENTRY_BYTES = 512
"""Memory of an entry without its bytes: the key and the table."""


class SmallObjectCache:
    """Thread-safe LRU cache of stored bytes by array and chunk."""

    def __init__(self, most_bytes: int, most_each: int = SMALL_BYTES) -> None:
        self.most_bytes, self.most_each = most_bytes, most_each
        self.held_bytes = 0
        self._answers: OrderedDict[tuple[str, tuple[Any, ...]], memoryview | None] = OrderedDict()
        self._lock = ForkSafeLock()
        self._acts = DeferredActs(self._lock)

    def find(self, token: str, chunks: Sequence[K]) -> dict[K, memoryview | None]:
        """Return the cached chunks; None for one that is not stored."""
        with self._acts, self._lock:
            here = [index for index in chunks if (token, index) in self._answers]
            for index in here:
                self._answers.move_to_end((token, index))
            return {index: self._answers[token, index] for index in here}

    def keep(self, token: str, answers: Mapping[K, memoryview | None]) -> None:
        """Keep copies of the small pieces, because a piece may keep a large answer alive."""
        small = {
            index: None if piece is None else memoryview(bytes(piece))
            for index, piece in answers.items()
            if piece is None or len(piece) <= self.most_each
        }
        with self._acts, self._lock:
            for index, piece in small.items():
                self._drop((token, index))
                self._answers[token, index] = piece
                self.held_bytes += _size(piece)
            while self.held_bytes > self.most_bytes:
                self._drop(next(iter(self._answers)))

    def all_of(self, token: str) -> dict[tuple[Any, ...], memoryview | None]:
        """Return all cached chunks of one array."""
        with self._acts, self._lock:
            return {key[1]: piece for key, piece in self._answers.items() if key[0] == token}

    def forget(self, token: str, index: tuple[Any, ...] | None = None) -> None:
        """Drop all chunks of an array, or one damaged chunk, so that it is requested again."""
        with self._acts, self._lock:
            for key in [key for key in self._answers if key[0] == token]:
                if index in (None, key[1]):
                    self._drop(key)

    def clear(self) -> None:
        """Drop everything."""
        self._acts.defer(self._clear)

    def _clear(self) -> None:
        self._answers.clear()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def _drop(self, key: tuple[str, tuple[Any, ...]]) -> None:
        if key in self._answers:
            self.held_bytes -= _size(self._answers.pop(key))


def _size(piece: memoryview | None) -> int:
    return ENTRY_BYTES + (0 if piece is None else len(piece))


# Documents of ten thousand arrays, with a kilobyte each.
_DOCUMENT_BYTES = 32 * 1024**2
# Metadata of a pyramid with many channels; a NIfTI header with extensions.
_LONGEST_DOCUMENT = 256 * 1024

# Requests that several deliveries share.
#
# The patches of a visit read different chunks of the same shards. The first one requests the whole
# shard; later ones wait for the same request, or use its answer until its room is needed. The index
# of a shard is shared in the same way.

Key = tuple[str, ReadRange]
"""The token of an array, and a range."""
Answer = bytes | None
Ask = Callable[[RequestPriority], Coroutine[Any, Any, Answer]]


class _SharedAnswer:
    """Answer of one shared request, under way or complete."""

    def __init__(self, key: Key, size: int, stays: bool) -> None:
        self.key, self.size, self.stays = key, size, stays
        self.later = RequestPriority()
        self.users: set[RequestPriority] = set()
        self.task: asyncio.Future[Answer]


class SharedRequests:
    """Answers by array and range, kept while deliveries use them, and then while there is room.

    Call :meth:`begin` in the event loop of the requests, and the other methods in any thread.
    """

    def __init__(self, lock: AbstractContextManager[Any], room: Callable[[], int]) -> None:
        self.held_bytes = 0
        self._lock = lock
        self._room = room
        # In order of last use.
        self._answers: OrderedDict[Key, _SharedAnswer] = OrderedDict()
        self._by_user: dict[RequestPriority, list[_SharedAnswer]] = {}

    def begin(
        self, key: Key, size: int, ask: Ask, later: RequestPriority, *, stays: bool = True
    ) -> asyncio.Future[Answer] | None:
        """Return the future of an answer, requested once; None without room."""
        with self._lock:
            if later.is_over:
                raise asyncio.CancelledError
            answer = self._answers.get(key)
            if answer is None:
                if not self.spare(size):
                    return None
                answer = self._answers[key] = _SharedAnswer(key, size, stays)
                self.held_bytes += size
                answer.task = asyncio.ensure_future(ask(answer.later))
                answer.task.add_done_callback(partial(self._deliver, answer))
            self._answers.move_to_end(key)
            if later not in answer.users:
                answer.users.add(later)
                self._by_user.setdefault(later, []).append(answer)
                later.needs.append(answer.later)
        # The cancellation of one user must not cancel the request of the others.
        return asyncio.shield(answer.task)

    def holds(self, key: Key) -> bool:
        """Whether an answer is under way or complete."""
        with self._lock:
            return key in self._answers

    def used_by(self, later: RequestPriority) -> set[int]:
        """Return the ``id`` of each complete answer that one delivery uses."""
        with self._lock:
            tasks = [answer.task for answer in self._by_user.get(later, ()) if answer.task.done()]
            good = [task for task in tasks if not task.cancelled() and task.exception() is None]
            return {id(memoryview(task.result() or b"").obj) for task in good}

    def release(self, later: RequestPriority) -> None:
        """Release the answers of one delivery; drop those without users that need not stay."""
        with self._lock:
            later.is_over = True
            for answer in self._by_user.pop(later, ()):
                answer.users.discard(later)
                if not answer.users and not (answer.stays and answer.task.done()):
                    self._drop(answer)
                    if not answer.task.done():
                        # In a forked child the loop has ended.
                        with contextlib.suppress(RuntimeError):
                            answer.task.get_loop().call_soon_threadsafe(answer.task.cancel)

    def spare(self, size: int) -> bool:
        """Drop idle answers, oldest first, until ``size`` more bytes have room."""
        with self._lock:
            over = self.held_bytes + size - self._room()
            if over <= 0:
                return True
            idle = [answer for answer in self._answers.values() if not answer.users]
            if sum(answer.size for answer in idle) < over:
                return False  # dropping all would not make enough room
            for answer in idle:
                self._drop(answer)
                over -= answer.size
                if over <= 0:
                    break
            return True

    @property
    def in_use(self) -> bool:
        """Whether a delivery uses an answer."""
        return bool(self._by_user)

    def forget(self, token: str) -> None:
        """Drop the answers of one array, because it is damaged or no longer needed."""
        with self._lock:
            for answer in [*self._answers.values()]:
                if answer.key[0] == token:
                    self._drop(answer)

    def clear_idle(self) -> None:
        """Drop all answers without users."""
        with self._lock:
            for answer in [*self._answers.values()]:
                if not answer.users:
                    self._drop(answer)

    def __len__(self) -> int:
        return len(self._answers)

    def _drop(self, answer: _SharedAnswer) -> None:
        if self._answers.get(answer.key) is answer:
            del self._answers[answer.key]
            self.held_bytes -= answer.size

    def _deliver(self, answer: _SharedAnswer, future: asyncio.Future[Answer]) -> None:
        with self._lock:
            if future.cancelled() or future.exception() is not None or future.result() is None:
                self._drop(answer)  # the next delivery requests it again
            elif self._answers.get(answer.key) is answer:
                size = memoryview(future.result() or b"").nbytes
                self.held_bytes += size - answer.size
                answer.size = size


Index = tuple[int, ...]
Payloads = dict[Index, memoryview | None]
"""Stored bytes by chunk; None for one that is not stored. A truncated chunk has no entry."""
FetchChunks = Callable[[Sequence[Index], RequestPriority], Coroutine[Any, Any, Payloads]]

T = TypeVar("T")


class AheadStore(Protocol):
    """Store whose requests run in the background."""

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine that awaits :meth:`get_ranges_async`."""

    async def get_ranges_async(
        self, ranges: Sequence[ReadRange], *, ahead: RequestPriority | None = None, whole: int = 0
    ) -> list[bytes | None]:
        """Return the bytes of each range; ``ahead`` is the priority of a prefetch."""

    def hurry(self, ahead: RequestPriority) -> None:
        """Move requests of a prefetch before others, because a read waits for them."""


def works_ahead(store: Any) -> TypeGuard[AheadStore]:
    """Whether a store can prefetch."""
    return hasattr(store, "begin") and hasattr(store, "get_ranges_async")


MOST_BYTES = 64 * 1024**2
"""Room for the shards of two visits to a CT of 320x320x256 with its label, or for the uncompressed
chunks of 64 cubed of four patches of 96 cubed. Twice that took 60 to 100 MB more in two workers."""
# Share of these bytes for small answers, which stay after their tickets are closed.
_SMALL_SHARE = 1 / 32


@dataclass(eq=False)
class _Delivery:
    """Chunks of one array that are fetched together."""

    token: str  # of the array
    chunks: Sequence[Index]
    store: AheadStore
    fetch_chunks: FetchChunks
    size: int  # most bytes, and the memory of the answers once they are complete
    later: RequestPriority = field(default_factory=RequestPriority)  # of its requests
    tickets: int = 0  # open tickets
    future: Future[Payloads] | None = None  # None before the requests start


Ticket = contextlib.ExitStack
"""Owner of prefetched bytes. Close it after the read, or when no read will follow; it drops bytes
that no other ticket owns."""


class Closable(Protocol):
    """Resource that its owner closes."""

    def close(self) -> None:
        """Release the resource; repeated calls do nothing."""


def joint_ticket(tickets: Iterable[Closable | None]) -> Closable | None:
    """Return one ticket that closes all given tickets; None for none."""
    present = [ticket for ticket in tickets if ticket is not None]
    together = contextlib.ExitStack()
    for ticket in reversed(present):  # a stack closes its last entry first
        together.callback(ticket.close)
    return together if present else None


class ReadAhead:
    """Prefetched bytes, under way or complete, within a bound. Safe to use from several threads.

    A chunk counts with its decoded bytes until its answer is complete, and then with the whole
    answer. A small share is for small answers that stay; shards that stay use the rest.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.small = SmallObjectCache(0)  # small answers, also of closed tickets
        self.documents = SmallObjectCache(_DOCUMENT_BYTES, _LONGEST_DOCUMENT)
        """Documents of remote volumes, which outlive the open handles."""
        self.limit(most_bytes)
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._delivery_bytes = 0
        self.requests = SharedRequests(
            self._lock, lambda: self.most_bytes - self.small.most_bytes - self._delivery_bytes
        )
        """Requests that several deliveries share."""
        self._chunks: dict[tuple[str, Index], _Delivery] = {}
        self._waiting: deque[_Delivery] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes under way and complete, including answers that stay for others."""
        return self._delivery_bytes + self.requests.held_bytes

    def limit(self, most_bytes: int) -> None:
        """Set the most bytes that prefetches may take."""
        self.most_bytes = most_bytes
        self.small.most_bytes = int(most_bytes * _SMALL_SHARE)

    def begin(
        self,
        token: str,
        chunks: Sequence[Index],
        size: Callable[[Index], int],
        store: AheadStore,
        fetch_chunks: FetchChunks,
    ) -> Ticket:
        """Return a ticket for chunks; fetch new ones at once or when there is room."""
        with self._lock:
            current = {index: self._chunks.get((token, index)) for index in chunks}
            absent = [index for index in chunks if current[index] is None]
            deliveries = list(dict.fromkeys(filter(None, current.values())))
            if absent:
                fresh = _Delivery(token, absent, store, fetch_chunks, sum(map(size, absent)))
                self._chunks.update(((token, index), fresh) for index in absent)
                self._waiting.append(fresh)
                deliveries.append(fresh)
            for delivery in deliveries:
                delivery.tickets += 1
            ticket = Ticket()
            ticket.callback(self.release, deliveries)
            try:
                self._go_on()
            except BaseException:
                ticket.close()
                raise
        return ticket

    def take(self, token: str, chunks: Sequence[Index]) -> Payloads:
        """Return the bytes of chunks that are complete or under way; None for one not stored.

        The read itself fetches truncated chunks and chunks without a started request. Requests that
        the read waits for go before those of the prefetch.
        """
        if not self._chunks:
            return {}
        futures = self._on_their_way(token, chunks)
        pieces: Payloads = {}
        try:
            for index in futures:
                # Another thread may close the ticket; the read then fetches the chunk.
                with contextlib.suppress(CancelledError):
                    payloads = futures[index].result()
                    if index in payloads:
                        pieces[index] = payloads[index]
        finally:
            # An exception of a future keeps this frame alive, and with it the voxels of callers.
            # Drop the futures, or the cycle would wait for the garbage collector.
            futures.clear()
        return pieces

    def _on_their_way(self, token: str, chunks: Sequence[Index]) -> dict[Index, Future[Payloads]]:
        """Return the future of each chunk, hurried; forget deliveries that have not started."""
        with self._lock:
            current = {index: self._chunks.get((token, index)) for index in chunks}
            deliveries = {index: own for index, own in current.items() if own is not None}
            self._forget([own for own in deliveries.values() if own.future is None])
        for own in dict.fromkeys(deliveries.values()):
            if own.future is not None and not own.future.done():
                own.store.hurry(own.later)
        return {index: own.future for index, own in deliveries.items() if own.future is not None}

    def release(self, deliveries: Sequence[_Delivery]) -> None:
        """Release the deliveries of one ticket."""
        with self._lock:
            for delivery in deliveries:
                delivery.tickets -= 1
            self._forget([delivery for delivery in deliveries if delivery.tickets == 0])
            # The read reports the error of a delivery that cannot start.
            with contextlib.suppress(Exception):
                self._go_on()

    def forget(self, token: str) -> None:
        """Drop all chunks of one array, because it was written again."""
        with self._lock:
            self._forget({own for key, own in self._chunks.items() if key[0] == token})
        self.requests.forget(token)

    def clear(self) -> None:
        """Drop all bytes, including those of open tickets."""
        with self._lock:
            self._forget(set(self._chunks.values()))
        self.small.clear()
        self.documents.clear()
        self.requests.clear_idle()

    def after_fork(self) -> None:
        """Start empty in a forked child."""
        self._start()
        self.small = SmallObjectCache(self.small.most_bytes)

    def __len__(self) -> int:
        return len(self._chunks)

    def _go_on(self) -> None:
        """Start waiting deliveries in order while there is room; the caller holds the lock."""
        while self._waiting:
            delivery = self._waiting[0]
            if not self.requests.spare(delivery.size):
                if self._delivery_bytes or self.requests.in_use:
                    return
                self.requests.clear_idle()  # a delivery above the bound runs alone
            try:
                # The garbage collector may close a ticket at any point here.
                self._waiting.remove(delivery)
            except ValueError:
                continue
            self._delivery_bytes += delivery.size
            try:
                work = delivery.fetch_chunks(delivery.chunks, delivery.later)
                try:
                    delivery.future = delivery.store.begin(work)
                except BaseException:
                    work.close()  # avoids the warning of a coroutine without await
                    raise
            except BaseException:
                self._delivery_bytes -= delivery.size
                self._forget([delivery])
                raise
            delivery.future.add_done_callback(partial(self._deliver, ref(delivery)))
            if not delivery.tickets:
                self._forget([delivery])

    def _forget(self, deliveries: Iterable[_Delivery]) -> None:
        """Remove deliveries and cancel their requests; the caller holds the lock."""
        for delivery in deliveries:
            if delivery in self._waiting:
                self._waiting.remove(delivery)
            elif delivery.future is not None:
                self._delivery_bytes -= delivery.size
                delivery.size = 0
                delivery.future.cancel()
                self.requests.release(delivery.later)
            for index in delivery.chunks:
                if self._chunks.get((delivery.token, index)) is delivery:
                    del self._chunks[delivery.token, index]

    def _deliver(self, weak: ref[_Delivery], future: Future[Payloads]) -> None:
        # A future keeps its callbacks, so a strong reference to its delivery would be a cycle. The
        # answer would stay until a garbage collection, maybe for a whole epoch.
        delivery = weak()
        if delivery is None or future.cancelled() or future.exception() is not None:
            return
        with self._lock:
            elsewhere = self.requests.used_by(delivery.later)
            size = memory_of(future.result().values(), elsewhere)
            if delivery.size:
                self._delivery_bytes += size - delivery.size
                delivery.size = size
            # The read reports the error of a delivery that cannot start.
            with contextlib.suppress(Exception):
                self._go_on()


def memory_of(pieces: Iterable[memoryview | None], elsewhere: Container[int]) -> int:
    """Return the bytes of the answers that pieces keep, without those counted ``elsewhere``."""
    answers = {id(piece.obj): piece.obj for piece in pieces if piece is not None}
    return sum(memoryview(body).nbytes for key, body in answers.items() if key not in elsewhere)


def without_gaps(pieces: Sequence[memoryview | None]) -> list[memoryview | None]:
    """Return pieces that keep at most twice their bytes alive: copies, if most is gap."""
    sizes: Counter[int] = Counter()
    for piece in pieces:
        if piece is not None:
            sizes[id(piece.obj)] += len(piece)
    return [
        memoryview(bytes(piece))
        if piece is not None and 2 * sizes[id(piece.obj)] < memoryview(piece.obj).nbytes
        else piece
        for piece in pieces
    ]


AHEAD = ReadAhead()
"""Prefetches of this process."""
