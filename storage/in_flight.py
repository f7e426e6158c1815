"""A bound on what is under way to remote stores at once: requests, and the bytes they bring."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from ..core.locks import renew_after_fork

# More than the connections that hide 50 ms at 60 MB/s for patches of 10 MB; less than what a
# store calls a flood, times eight workers.
MOST_REQUESTS = 48
# What is fetched waits in memory until it is decoded.
MOST_BYTES = 96 * 1024**2


class RequestPriority:
    """Requests that are sent together and that nobody waits for, until somebody does."""

    def __init__(self) -> None:
        self.urgent = False
        self.is_over = False  # whether nobody will ever wait for them
        self.needs: list[RequestPriority] = []  # requests of others that these wait for, too


_Turn = tuple["asyncio.Future[None]", int, "RequestPriority | None"]
"""Somebody who waits, the bytes of the request, and what it belongs to."""


class InFlight:
    """Lets requests of one event loop begin while there is room, first what a read waits for."""

    def __init__(self, most_requests: int = MOST_REQUESTS, most_bytes: int = MOST_BYTES) -> None:
        self.most_requests, self.most_bytes = most_requests, most_bytes
        self.requests = 0
        self.bytes = 0
        self._waiting: deque[_Turn] = deque()
        self._ahead: deque[_Turn] = deque()

    async def enter(self, size: int, *, ahead: RequestPriority | None = None) -> None:
        """Wait for room for one request of ``size`` bytes, and take it; :meth:`leave` follows."""
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
            if turn.cancelled():  # it was still waiting, and may have kept others from it
                (self._waiting if own in self._waiting else self._ahead).remove(own)
                self._wake()
            else:
                self.leave(size)
            raise

    def hurry(self, ahead: RequestPriority) -> None:
        """Let requests go before all that nobody waits for: now somebody waits for these."""
        urgent = [ahead, *ahead.needs]
        for each in urgent:
            each.urgent = True
        turns = [turn for turn in self._ahead if turn[2] in urgent]
        if turns:
            self._ahead = deque(turn for turn in self._ahead if turn[2] not in urgent)
            self._waiting.extend(turns)
            self._wake()

    def leave(self, size: int) -> None:
        """Give back the room of one request."""
        self.requests -= 1
        self.bytes -= size
        if self._waiting or self._ahead:
            self._wake()

    def _fits(self, size: int) -> bool:
        if self.requests == 0:
            return True
        return self.requests < self.most_requests and self.bytes + size <= self.most_bytes

    def _wake(self) -> None:
        while line := self._waiting or self._ahead:
            turn, size, _ = line[0]
            # One that was cancelled takes itself out, and then wakes the next.
            if turn.cancelled() or not self._fits(size):
                return
            line.popleft()
            self.requests += 1
            self.bytes += size
            turn.set_result(None)


# Calls that wait, for an event loop: in threads that nobody waits for at the end of the process.
#
# A call that is given up goes on until its own limit, and what it returns is dropped. A thread that
# waits in foreign code must not come back while the interpreter ends, so the exit waits a moment
# for those that are under way.

T = TypeVar("T")

# As many as may be under way, and those that hang, given up, until their limit.
MOST_THREADS = 192
# For answers that are on their way at the exit, in seconds. One that hangs stays away.
_EXIT_GRACE = 0.25


class CallThreads:
    """Threads that make calls for the event loop; started as they are needed, and kept."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._most = most
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Begin anew in a forked child, which has none of them."""
        self._lock = threading.Lock()
        # A call, and its future, taken out when the answer is handed over: it is the loop's then.
        self._jobs: SimpleQueue[tuple[Callable[[], Any], list[asyncio.Future[Any]]]] = SimpleQueue()
        # A future, what was found for it, and what was raised.
        self._outcomes: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._threads = self._free = self._under_way = 0
        self._is_over = False
        self._woken = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Begin a call; the future of the running loop gets what it returns or raises."""
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
        """Begin no call any more, and wait a moment for those that are under way."""
        self._is_over = True
        pause = threading.Event()
        seconds = 0.0
        while self._under_way and seconds < _EXIT_GRACE:
            pause.wait(_EXIT_GRACE / 50)
            seconds += _EXIT_GRACE / 50

    def _work(self) -> None:
        while True:
            call, future = self._jobs.get()
            with self._lock:
                self._under_way += 1
            if not (self._is_over or future[0].cancelled()):
                loop = future[0].get_loop()
                # No variable of this thread, which may be kept waiting for long right after this,
                # holds the answer or the future that gets it.
                self._outcomes.append((future.pop(), *_answer(call)))
                if not self._woken:  # one wake for all that come meanwhile
                    self._woken = True
                    try:
                        loop.call_soon_threadsafe(self._deliver)
                    except RuntimeError:  # the loop has ended, and another may come
                        self._woken = False
            del call, future
            with self._lock:
                self._under_way -= 1
                self._free += 1

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


def _answer(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return what a call returns, and what it raises, without the frames of this module."""
    try:
        return call(), None
    except BaseException as error:
        trace = error.__traceback__
        error.__traceback__ = None if trace is None else trace.tb_next
        del trace  # it holds this call, and would hold itself
        return None, error


THREADS = CallThreads()  # those of this process
atexit.register(THREADS.finish)
