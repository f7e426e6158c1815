"""How often a request to a remote store is tried again: until a deadline, with growing pauses.

One policy for every client. Those that retry by themselves are told not to: where two layers
retry, their counts multiply, and a store that is down for good is noticed after 25 requests.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ...core.errors import StoreUnavailable
from .remote_failure import Failure, failure_of

T = TypeVar("T")
Clock = Callable[[], float]

# A timer and no task, which takes a third of the time. Python 3.10 has none.
_timeout: Any = getattr(asyncio, "timeout", None)

DEADLINE_VARIABLE = "VOXPIPE_REMOTE_DEADLINE"
"""Seconds that a request which keeps failing may take."""
# A bucket that scales up answers SlowDown for seconds, not minutes.
_DEADLINE = 30.0
# What an attempt is given at least: to find a server and to connect takes a part of it.
LEAST_ATTEMPT = 1.0


@dataclass(frozen=True)
class Retry:
    """When a failed request is sent again.

    Examples
    --------
    >>> policy = Retry(first=1.0, most=5.0)
    >>> [policy.pause(n, draw=1.0) for n in (1, 2, 3, 4)]
    [1.0, 2.0, 4.0, 5.0]
    """

    deadline: float = _DEADLINE
    """Seconds after the first attempt at which a request that keeps failing is given up."""
    first: float = 0.1
    """Longest pause after the first failure, in seconds; it doubles each time."""
    most: float = 5.0
    """Longest pause of all, in seconds."""
    attempt: float = 20.0
    """Seconds without an answer after which one attempt has failed: 16 MiB at 0.8 MB/s."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                msg = f"{name} is a positive number of seconds, got {value!r}"
                raise ValueError(msg)

    def pause(self, failures: int, draw: float) -> float:
        """Return how long to wait after so many failures; ``draw`` in 0..1 spreads the crowd.

        At least half of the longest, because a store that asks for less gets none otherwise.
        """
        longest = min(self.most, self.first * 2.0 ** min(failures - 1, 60))
        return longest * (1 + draw) / 2


def default_retry() -> Retry:
    """Return the policy of this process: the deadline may be set in the environment."""
    return Retry(deadline=float(os.environ.get(DEADLINE_VARIABLE) or _DEADLINE))


class Attempts:
    """The attempts at one request so far; says how long to wait, or raises.

    Parameters
    ----------
    policy
        When to try again.
    what
        What is asked for, for the message; no credentials.
    describe
        Returns the text of an error without secrets.
    clock, draw
        Return the time in seconds, and a random number in 0..1.
    setting
        What to set for another deadline, for the message.
    """

    def __init__(
        self,
        policy: Retry,
        what: str,
        describe: Callable[[BaseException], str],
        clock: Clock = time.monotonic,
        draw: Callable[[], float] = random.random,
        setting: str = DEADLINE_VARIABLE,
    ) -> None:
        self._policy, self._what, self._describe = policy, what, describe
        self._setting = setting
        self._clock, self._draw = clock, draw
        self._begin = clock()
        self._failures = 0

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._begin + self._policy.deadline - self._clock())

    def failed(self, error: BaseException) -> float:
        """Return the pause before the next attempt.

        Raises
        ------
        StoreUnavailable
            The next attempt would begin behind the deadline.
        Exception
            The error itself, where trying again would not help.
        """
        if failure_of(error) is not Failure.TRANSIENT:
            try:
                raise error
            finally:
                # Its traceback holds this call, which shall not hold it: all that was read
                # on the way here would wait for a collection of garbage.
                del error
        self._failures += 1
        pause = self._policy.pause(self._failures, self._draw())
        spent = self._clock() - self._begin
        if spent + pause >= self._policy.deadline:
            times = "once" if self._failures == 1 else f"{self._failures} times"
            # Not chained: the text of the original may hold a signed URL or a key.
            raise StoreUnavailable(
                f"{self._what} failed {times} in {spent:.1f} s, at last with "
                f"{self._describe(error)}.",
                do=f"Check the store, or give it more time: {self._setting}=seconds, now "
                f"{self._policy.deadline:g}.",
            ) from None
        return pause


async def retried(
    call: Callable[[], Awaitable[T]],
    attempts: Attempts,
    limit: float | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Return what ``call`` returns, trying again as ``attempts`` says.

    Parameters
    ----------
    call
        Begins one attempt.
    attempts
        Decides after each failure.
    limit
        Seconds that one attempt may take, as far as the deadline is not before; None where the
        requests of one attempt have limits of their own.
    sleep
        Waits.
    """
    while True:
        try:
            if limit is None:
                return await call()
            return await _within(min(limit, max(attempts.left, LEAST_ATTEMPT)), call)
        except Exception as error:
            pause = attempts.failed(error)
        await sleep(pause)


async def _within(limit: float, call: Callable[[], Awaitable[T]]) -> T:
    """Return what ``call`` returns, unless that takes too long."""
    if _timeout is not None:
        async with _timeout(limit):
            return await call()
    return await asyncio.wait_for(call(), limit)


def retried_here(
    call: Callable[[], T], attempts: Attempts, sleep: Callable[[float], None] = time.sleep
) -> T:
    """Return what ``call`` returns, trying again in this thread; it cannot be interrupted."""
    while True:
        try:
            return call()
        except Exception as error:
            pause = attempts.failed(error)
        sleep(pause)
