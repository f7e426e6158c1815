"""A bound on what is under way to remote stores at once: requests, and the bytes they bring."""

from __future__ import annotations

import asyncio
from collections import deque

# More than the connections that hide 50 ms at 60 MB/s for patches of 10 MB; less than what a
# store calls a flood, times eight workers.
MOST_REQUESTS = 48
# What is fetched waits in memory until it is decoded.
MOST_BYTES = 96 * 1024**2


class Later:
    """Requests that are sent together and that nobody waits for, until somebody does."""

    def __init__(self) -> None:
        self.urgent = False
        self.ended = False
        """Whether nobody will ever wait for them."""
        self.needs: list[Later] = []
        """Requests of others whose answers these wait for too."""


_Turn = tuple["asyncio.Future[None]", int, "Later | None"]
"""Somebody who waits, the bytes of the request, and what it belongs to."""


class InFlight:
    """Lets requests begin, in order, while there is room. Belongs to one event loop.

    A read that waits is not kept from its bytes by those that are fetched for later.

    Parameters
    ----------
    most_requests, most_bytes
        Of all requests together; one that is larger than that goes alone.
    """

    def __init__(self, most_requests: int = MOST_REQUESTS, most_bytes: int = MOST_BYTES) -> None:
        self.most_requests, self.most_bytes = most_requests, most_bytes
        self.requests = 0
        self.bytes = 0
        self._waiting: deque[_Turn] = deque()
        self._ahead: deque[_Turn] = deque()

    async def enter(self, size: int, *, ahead: Later | None = None) -> None:
        """Wait for room for one request of ``size`` bytes, and take it; :meth:`leave` follows.

        Parameters
        ----------
        size
            Bytes that the answer has at most.
        ahead
            What the request belongs to where nobody waits for the answer yet: those that somebody
            waits for go first.
        """
        later = ahead is not None and not ahead.urgent
        if self._waiting or (later and self._ahead) or not self._fits(size):
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
        else:
            self._enter(size)

    def hurry(self, ahead: Later) -> None:
        """Let requests go before all that nobody waits for: now somebody waits for these."""
        urgent = [ahead, *ahead.needs]
        for each in urgent:
            each.urgent = True
        hurried = [turn for turn in self._ahead if turn[2] in urgent]
        if hurried:
            self._ahead = deque(turn for turn in self._ahead if turn[2] not in urgent)
            self._waiting.extend(hurried)
            self._wake()

    def leave(self, size: int) -> None:
        """Give back the room of one request."""
        self.requests -= 1
        self.bytes -= size
        self._wake()

    def _fits(self, size: int) -> bool:
        if self.requests == 0:
            return True
        return self.requests < self.most_requests and self.bytes + size <= self.most_bytes

    def _enter(self, size: int) -> None:
        self.requests += 1
        self.bytes += size

    def _wake(self) -> None:
        while line := self._waiting or self._ahead:
            turn, wanted, _ = line[0]
            # One that was cancelled takes itself out, and then wakes the next.
            if turn.cancelled() or not self._fits(wanted):
                return
            line.popleft()
            self._enter(wanted)
            turn.set_result(None)
