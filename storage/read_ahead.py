"""Stored bytes that were asked for before they are needed, until the read that needs them.

Whoever knows what will be read takes a ticket for it: requests begin as soon as there is room. A
read finds the bytes here, or waits for them; closing the ticket lets them go, needed or not.
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

# Small stored chunks, kept as they were sent: to ask for one costs more than to keep a hundred.
#
# A chunk of a label map is a few hundred bytes behind a URL, and one of background is none at all.
# Each is a request nevertheless, as long as one for a chunk of the image, and its voxels take so
# much memory that they are soon given up. So such answers stay, "there is none" among them.

K = TypeVar("K", bound=tuple[Any, ...])
"""A chunk of numbers, or the key of an object that holds many."""

SMALL_BYTES = 16 * 1024
"""A connection of 60 MB/s sends this in 0.3 ms, after a round trip of 30."""
ENTRY_BYTES = 512
"""What an entry takes besides the bytes: its key and its place in the table."""


class SmallObjectCache:
    """Stored bytes by array and chunk, of several threads; the oldest not asked for goes first."""

    def __init__(self, most_bytes: int, most_each: int = SMALL_BYTES) -> None:
        self.most_bytes, self.most_each = most_bytes, most_each
        self.held_bytes = 0
        self._answers: OrderedDict[tuple[str, tuple[Any, ...]], memoryview | None] = OrderedDict()
        self._lock = ForkSafeLock()
        self._acts = DeferredActs(self._lock)

    def find(self, token: str, chunks: Sequence[K]) -> dict[K, memoryview | None]:
        """Return those of the chunks that are here; None for one that is not stored."""
        with self._acts, self._lock:
            here = [index for index in chunks if (token, index) in self._answers]
            for index in here:
                self._answers.move_to_end((token, index))
            return {index: self._answers[token, index] for index in here}

    def keep(self, token: str, answers: Mapping[K, memoryview | None]) -> None:
        """Keep the small ones, as copies: a piece may be one of a large answer."""
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
        """Return all that is here of one array."""
        with self._acts, self._lock:
            return {key[1]: piece for key, piece in self._answers.items() if key[0] == token}

    def forget(self, token: str, index: tuple[Any, ...] | None = None) -> None:
        """Drop all of one array, or one that turned out to be damaged: it is asked for again."""
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


# The documents of some ten thousand arrays, of a kilobyte each.
_DOCUMENT_BYTES = 32 * 1024**2
# Metadata of a pyramid with many channels; a NIfTI header with extensions.
_LONGEST_DOCUMENT = 256 * 1024

# Answers that several deliveries take their chunks from: asked for once, here for the next.
#
# The patches of a visit touch the same shards, each in other places. Whoever asks first asks for
# all of the shard; those that come while it is on its way wait for the same request, and later ones
# find it here until its room is needed. So with the index of a shard, for which four patches of a
# batch would ask at the same time.

Key = tuple[str, ReadRange]
"""An array, and what is asked for."""
Answer = bytes | None
Ask = Callable[[RequestPriority], Coroutine[Any, Any, Answer]]


class _SharedAnswer:
    """One answer, on its way or here."""

    def __init__(self, key: Key, size: int, stays: bool) -> None:
        self.key, self.size, self.stays = key, size, stays
        self.later = RequestPriority()
        self.users: set[RequestPriority] = set()
        self.task: asyncio.Future[Answer]


class SharedRequests:
    """Answers by array and range, while somebody uses them and then as long as there is room.

    :meth:`begin` belongs to the event loop of the requests; the rest is called from any thread.
    """

    def __init__(self, lock: AbstractContextManager[Any], room: Callable[[], int]) -> None:
        self.held_bytes = 0
        self._lock = lock
        self._room = room
        # What was used last comes last.
        self._answers: OrderedDict[Key, _SharedAnswer] = OrderedDict()
        self._by_user: dict[RequestPriority, list[_SharedAnswer]] = {}

    def begin(
        self, key: Key, size: int, ask: Ask, later: RequestPriority, *, stays: bool = True
    ) -> asyncio.Future[Answer] | None:
        """Return what to wait for, asking only if nobody has; None where there is no room."""
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
        # Whoever stops waiting does not take it from the others.
        return asyncio.shield(answer.task)

    def holds(self, key: Key) -> bool:
        """Whether an answer is here or on its way."""
        with self._lock:
            return key in self._answers

    def used_by(self, later: RequestPriority) -> set[int]:
        """Return the ``id`` of each answer that is counted here and used by one delivery."""
        with self._lock:
            tasks = [each.task for each in self._by_user.get(later, ()) if each.task.done()]
            good = [task for task in tasks if not task.cancelled() and task.exception() is None]
            return {id(memoryview(task.result() or b"").obj) for task in good}

    def release(self, later: RequestPriority) -> None:
        """Note that one delivery uses its answers no more; drop what nobody waits for."""
        with self._lock:
            later.is_over = True
            for answer in self._by_user.pop(later, ()):
                answer.users.discard(later)
                if not answer.users and not (answer.stays and answer.task.done()):
                    self._drop(answer)
                    if not answer.task.done():
                        # The loop may have ended with its process.
                        with contextlib.suppress(RuntimeError):
                            answer.task.get_loop().call_soon_threadsafe(answer.task.cancel)

    def spare(self, size: int) -> bool:
        """Drop what nobody uses, the oldest first, until ``size`` bytes more have room."""
        with self._lock:
            over = self.held_bytes + size - self._room()
            if over <= 0:
                return True
            idle = [each for each in self._answers.values() if not each.users]
            if sum(each.size for each in idle) < over:
                return False  # nothing is given up where that would not do
            for answer in idle:
                self._drop(answer)
                over -= answer.size
                if over <= 0:
                    break
            return True

    @property
    def in_use(self) -> bool:
        """Whether a delivery uses any."""
        return bool(self._by_user)

    def forget(self, token: str) -> None:
        """Drop what is here of one array: something of it is damaged, or no longer wanted."""
        with self._lock:
            for answer in [each for each in self._answers.values() if each.key[0] == token]:
                self._drop(answer)

    def clear_idle(self) -> None:
        """Drop all that nobody uses."""
        with self._lock:
            for answer in [each for each in self._answers.values() if not each.users]:
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
                self._drop(answer)  # the next one asks again
            elif self._answers.get(answer.key) is answer:
                size = memoryview(future.result() or b"").nbytes
                self.held_bytes += size - answer.size
                answer.size = size


Index = tuple[int, ...]
Payloads = dict[Index, memoryview | None]
"""Stored bytes by chunk; None for one that is not stored. May lack what did not come whole."""
FetchChunks = Callable[[Sequence[Index], RequestPriority], Coroutine[Any, Any, Payloads]]

T = TypeVar("T")


class AheadStore(Protocol):
    """A store whose requests run beside everything else."""

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine that awaits :meth:`get_ranges_async`."""

    async def get_ranges_async(
        self, ranges: Sequence[ReadRange], *, ahead: RequestPriority | None = None, whole: int = 0
    ) -> list[bytes | None]:
        """Return the bytes of each range; ``ahead`` where nobody waits for them yet."""

    def get_ranges(self, ranges: Sequence[ReadRange], whole: int = 0) -> list[bytes | None]:
        """Wait for the bytes of each range."""

    def hurry(self, ahead: RequestPriority) -> None:
        """Let what was asked for ahead go first: somebody waits for it."""


def works_ahead(store: Any) -> TypeGuard[AheadStore]:
    """Whether a store can begin requests that nobody waits for."""
    return hasattr(store, "begin") and hasattr(store, "get_ranges_async")


MOST_BYTES = 64 * 1024**2
"""What two visits to a CT of 320x320x256 and its label take as shards; a batch of four patches of
96 cubed, in chunks of 64 cubed, as if they were not compressed. Twice as much took 60 to 100 MB
more in two workers."""
# Of these: what small answers may take that stay after their tickets are closed.
_SMALL_SHARE = 1 / 32


@dataclass(eq=False)
class _Delivery:
    """Chunks of one array that are fetched together."""

    token: str  # names the array
    chunks: Sequence[Index]
    store: AheadStore
    fetch_chunks: FetchChunks
    size: int  # bytes: at most, and what they hold in memory once they are here
    later: RequestPriority = field(default_factory=RequestPriority)  # what its requests belong to
    tickets: int = 0  # how many wait for it
    future: Future[Payloads] | None = None  # what comes; None before it was asked for


Ticket = contextlib.ExitStack
"""Keeps bytes that were asked for; closed when they were read, or never will be, it drops what
nobody else waits for."""


class Closable(Protocol):
    """What is kept until somebody says that it is not needed any more."""

    def close(self) -> None:
        """Let go; any number of times."""


def joint_ticket(tickets: Iterable[Closable | None]) -> Closable | None:
    """Return what closes all tickets that there are; None where there is none."""
    present = [ticket for ticket in tickets if ticket is not None]
    together = contextlib.ExitStack()
    for ticket in reversed(present):  # it closes the last one first
        together.callback(ticket.close)
    return together if present else None


class ReadAhead:
    """Bytes on their way or here, within a bound. Safe to use from several threads.

    Each chunk counts as if it were not compressed until it is here, and then with all of the answer
    that it came in. A small part is for small answers that stay; shards that stay take the rest.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.small = SmallObjectCache(0)  # small answers, also of tickets that are closed
        self.documents = SmallObjectCache(_DOCUMENT_BYTES, _LONGEST_DOCUMENT)
        """What was read to open volumes behind URLs: it outlives their handles."""
        self.limit(most_bytes)
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._delivery_bytes = 0
        self.requests = SharedRequests(
            self._lock, lambda: self.most_bytes - self.small.most_bytes - self._delivery_bytes
        )
        """Answers that several deliveries take their chunks from."""
        self._chunks: dict[tuple[str, Index], _Delivery] = {}
        self._waiting: deque[_Delivery] = deque()

    @property
    def held_bytes(self) -> int:
        """What is here and on its way, answers included that stay for others."""
        return self._delivery_bytes + self.requests.held_bytes

    def limit(self, most_bytes: int) -> None:
        """Let what is fetched take so many bytes from now on."""
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
        """Begin to fetch what is not on its way yet, now or once there is room for it."""
        with self._lock:
            current = [self._chunks.get((token, index)) for index in chunks]
            absent = [index for index, each in zip(chunks, current, strict=True) if each is None]
            deliveries = list(dict.fromkeys(each for each in current if each is not None))
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
        """Return the bytes of those chunks that are here or on their way; None: not stored.

        What was to be fetched and has not begun is left to the read, and so is what did not come
        whole; what waits for requests that nobody waits for goes before them.
        """
        if not self._chunks:
            return {}
        futures = self._on_their_way(token, chunks)
        pieces: Payloads = {}
        try:
            for index in futures:
                # Its ticket may be closed meanwhile: it is read like any other then.
                with contextlib.suppress(CancelledError):
                    came = futures[index].result()
                    if index in came:
                        pieces[index] = came[index]
        finally:
            # What one of them raised holds this call and its callers, with the voxels that they
            # have; were it held here, all would wait for a collection of garbage.
            futures.clear()
        return pieces

    def _on_their_way(self, token: str, chunks: Sequence[Index]) -> dict[Index, Future[Payloads]]:
        """Return what brings each chunk, hurried; make as if others had never been asked for."""
        with self._lock:
            current = {index: self._chunks.get((token, index)) for index in chunks}
            deliveries = {index: each for index, each in current.items() if each is not None}
            self._forget([each for each in deliveries.values() if each.future is None])
        for each in dict.fromkeys(deliveries.values()):
            if each.future is not None and not each.future.done():
                each.store.hurry(each.later)
        return {index: each.future for index, each in deliveries.items() if each.future is not None}

    def release(self, deliveries: Sequence[_Delivery]) -> None:
        """Let one ticket's deliveries go."""
        with self._lock:
            for delivery in deliveries:
                delivery.tickets -= 1
            self._forget([delivery for delivery in deliveries if delivery.tickets == 0])
            # Where what waited for this room cannot even be asked for, the read of that says so.
            with contextlib.suppress(Exception):
                self._go_on()

    def forget(self, token: str) -> None:
        """Drop what is here or on its way of one array: it was written anew."""
        with self._lock:
            self._forget({each for key, each in self._chunks.items() if key[0] == token})
        self.requests.forget(token)

    def clear(self) -> None:
        """Drop everything; tickets that are still open hold nothing any more."""
        with self._lock:
            self._forget(set(self._chunks.values()))
        self.small.clear()
        self.documents.clear()
        self.requests.clear_idle()

    def after_fork(self) -> None:
        """Start empty in a forked child, where nothing is on its way."""
        self._start()
        self.small = SmallObjectCache(self.small.most_bytes)

    def __len__(self) -> int:
        return len(self._chunks)

    def _go_on(self) -> None:
        """Send for what waits, in order, while there is room; the lock is held."""
        while self._waiting:
            delivery = self._waiting[0]
            if not self.requests.spare(delivery.size):
                if self._delivery_bytes or self.requests.in_use:
                    return
                self.requests.clear_idle()  # it is larger than all the room there is: it goes alone
            try:
                # Garbage may be collected anywhere here, with a ticket in it that closes.
                self._waiting.remove(delivery)
            except ValueError:
                continue
            self._delivery_bytes += delivery.size
            try:
                work = delivery.fetch_chunks(delivery.chunks, delivery.later)
                try:
                    delivery.future = delivery.store.begin(work)
                except BaseException:
                    work.close()  # or it warns that nobody awaited it
                    raise
            except BaseException:
                self._delivery_bytes -= delivery.size
                self._forget([delivery])
                raise
            delivery.future.add_done_callback(partial(self._deliver, ref(delivery)))
            if not delivery.tickets:
                self._forget([delivery])

    def _forget(self, deliveries: Iterable[_Delivery]) -> None:
        """Make as if these had never been asked for, and give up what is; the lock is held."""
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
        # A future keeps its callbacks. One that held the delivery, which holds the future, would
        # keep the answer until garbage is collected, which may be never in an epoch.
        delivery = weak()
        if delivery is None or future.cancelled() or future.exception() is not None:
            return
        with self._lock:
            elsewhere = self.requests.used_by(delivery.later)
            size = memory_of(future.result().values(), elsewhere)
            if delivery.size:
                self._delivery_bytes += size - delivery.size
                delivery.size = size
            # What waits for room begins at the next job; where the store cannot even be asked,
            # the read says so.
            with contextlib.suppress(Exception):
                self._go_on()


def memory_of(pieces: Iterable[memoryview | None], elsewhere: Container[int]) -> int:
    """Return the memory that pieces keep: all of each answer whose ``id`` is not ``elsewhere``."""
    answers = {id(piece.obj): piece.obj for piece in pieces if piece is not None}
    return sum(memoryview(body).nbytes for key, body in answers.items() if key not in elsewhere)


def without_gaps(pieces: Sequence[memoryview | None]) -> list[memoryview | None]:
    """Return pieces that keep at most twice their bytes: copies out of what is mostly gap."""
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
"""What this process has asked for ahead."""
