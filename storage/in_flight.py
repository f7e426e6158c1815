"""Bounds on concurrent requests to remote stores and on their bytes."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from ..core.locks import renew_after_fork

# Hides 50 ms of latency at 60 MB/s for patches of 10 MB. Eight workers with so many requests do
# not reach the rate limits of stores.
MOST_REQUESTS = 48
# Fetched bytes wait in memory until they are decoded.
MOST_BYTES = 96 * 1024**2


class RequestPriority:
    """Priority of prefetched requests that are sent together: low until a read waits for them."""

    def __init__(self) -> None:
        self.urgent = False
        self.is_over = False  # whether no read will wait for them any more
        self.needs: list[RequestPriority] = []  # priorities of shared requests that these wait for


_Turn = tuple["asyncio.Future[None]", int, "RequestPriority | None"]
"""A waiting request: the future that starts it, its bytes, and its priority."""


class InFlight:
    """Queue of the requests of one event loop, within bounds; requests of reads go first."""

    def __init__(self, most_requests: int = MOST_REQUESTS, most_bytes: int = MOST_BYTES) -> None:
        self.most_requests, self.most_bytes = most_requests, most_bytes
        self._of_parent: list[deque[_Turn]] = []
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self.requests = self.bytes = 0
        self._waiting: deque[_Turn] = deque()
        self._ahead: deque[_Turn] = deque()

    def after_fork(self) -> None:
        """Start without requests in a forked child, which has another loop."""
        # Kept, because the child must not destroy the pending tasks of its parent.
        self._of_parent += [self._waiting, self._ahead]
        self._start()

    async def enter(self, size: int, *, ahead: RequestPriority | None = None) -> None:
        """Wait for room for one request of ``size`` bytes; pair it with :meth:`leave`."""
        later = ahead is not None and not ahead.urgent
        if not self._waiting and not (later and self._ahead) and self._fits(size):
            self.requests += 1
            self.bytes += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        own = (turn, size, ahead)
        (self._ahead if later else self._waiting).append(own)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():  # it was still waiting, and may have blocked others
                (self._waiting if own in self._waiting else self._ahead).remove(own)
                self._wake()
            else:
                self.leave(size)
            raise

    def hurry(self, ahead: RequestPriority) -> None:
        """Move prefetched requests before others of the prefetch, because a read waits for them."""
        urgent = [ahead, *ahead.needs]
        for priority in urgent:
            priority.urgent = True
        turns = [turn for turn in self._ahead if turn[2] in urgent]
        if turns:
            self._ahead = deque(turn for turn in self._ahead if turn[2] not in urgent)
            self._waiting.extend(turns)
            self._wake()

    def leave(self, size: int) -> None:
        """Release the room of one request."""
        # A request of the parent may end in a forked child, whose counts it is not in.
        self.requests = max(0, self.requests - 1)
        self.bytes = max(0, self.bytes - size)
        if self._waiting or self._ahead:
            self._wake()

    def _fits(self, size: int) -> bool:
        if self.requests == 0:
            return True
        return self.requests < self.most_requests and self.bytes + size <= self.most_bytes

    def _wake(self) -> None:
        while line := self._waiting or self._ahead:
            turn, size, _ = line[0]
            # A cancelled request removes itself, and then wakes the next.
            if turn.cancelled() or not self._fits(size):
                return
            line.popleft()
            self.requests += 1
            self.bytes += size
            turn.set_result(None)


IN_FLIGHT = InFlight()
"""Requests of this process, in the event loop of fsspec."""

# Daemon threads for blocking calls of an event loop.
#
# An abandoned call continues until its own timeout, and its result is dropped. A thread in foreign
# code must not return while the interpreter ends, so the exit waits a moment for calls under way.

T = TypeVar("T")

# All concurrent requests, and abandoned calls until their timeout.
MOST_THREADS = 192
# Seconds that the exit waits for answers. A call that hangs does not return.
_EXIT_GRACE = 0.25


class CallThreads:
    """Threads that make calls for the event loop, started on demand and kept."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._most = most
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Start without threads in a forked child."""
        self._lock = threading.Lock()
        # A call, and a list with its future, which moves to the loop with the answer.
        self._jobs: SimpleQueue[tuple[Callable[[], Any], list[asyncio.Future[Any]]]] = SimpleQueue()
        # A future, its result, and its exception.
        self._outcomes: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._threads = self._free = 0
        self._is_over = False
        self._woken = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Begin a call; return a future of the running loop for its result or exception."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._free -= 1
            starts = self._free < 0 and self._threads < self._most
            if starts:
                self._threads += 1
                self._free += 1
        if starts:
            threading.Thread(target=self._work, name="voxpipe-get", daemon=True).start()
        self._jobs.put((call, [future]))
        return future

    def finish(self) -> None:
        """Stop to begin calls, and wait a moment for calls under way."""
        self._is_over = True
        pause = threading.Event()
        seconds = 0.0
        while self._free < self._threads and seconds < _EXIT_GRACE:
            pause.wait(_EXIT_GRACE / 50)
            seconds += _EXIT_GRACE / 50

    def _work(self) -> None:
        while True:
            call, future = self._jobs.get()
            answer = failure = None
            is_wanted = not (self._is_over or future[0].cancelled())
            if is_wanted:
                # An exception keeps the frames of the call, without this one.
                try:
                    answer = call()
                except BaseException as error:
                    trace = error.__traceback__
                    failure = error.with_traceback(trace and trace.tb_next)
                    del trace
            with self._lock:  # before the answer, or the next call would start another thread
                self._free += 1
            if is_wanted:
                loop = future[0].get_loop()
                # This thread may wait for long, so none of its variables keeps an answer.
                self._outcomes.append((future.pop(), answer, failure))
                answer = failure = None
                if not self._woken:  # one wake delivers all outcomes until then
                    self._woken = True
                    try:
                        loop.call_soon_threadsafe(self._deliver)
                    except RuntimeError:  # the loop has ended; another one may follow
                        self._woken = False
            del call, future

    def _deliver(self) -> None:
        self._woken = False
        while self._outcomes:
            future, answer, error = self._outcomes.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)
            del future, answer, error


THREADS = CallThreads()
"""Threads of this process."""
atexit.register(THREADS.finish)
