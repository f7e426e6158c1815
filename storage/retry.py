"""Retries of requests to a remote store: until a deadline, with growing pauses.

One policy for every client; those that retry by themselves are told not to, or counts multiply.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from ..core import errors
from ..core.settings import REMOTE_DEADLINE, REMOTE_HEDGE, read_setting
from .remote_answers import FaultAdvice, Gone, OtherVersion, advice_on, wants_pause

T = TypeVar("T")
Clock = Callable[[], float]

# A bucket that scales up answers SlowDown for seconds, not minutes.
_DEADLINE = 30.0
# What an attempt is given at least: to find a server and to connect takes a part of it.
LEAST_ATTEMPT = 1.0
# Attempts, one after the other, before the deadline, whether a server is silent or sends drop by
# drop: one that went away in between answers the next.
TRIES = 3
# A connection in bytes per second that is slow and not broken.
_SLOWEST = 0.8e6
# A proxy that spoils a fifth of the answers gives a wrong one to all of these in three of a million
# requests; a store that means it gives no other. An object that was there and is missing is told
# sooner: nobody hides many.
MOST_WRONG = 8
MOST_MISSING = 3
# So often in a row a request is sent again without a pause: a fifth of bad answers makes three in
# a row rare.
AT_ONCE = 2
# Each answer pays for so many of these, and so many can be saved up: where a third of the requests
# or more fails, or all at once, there are pauses.
_AT_ONCE_SHARE, _AT_ONCE_SAVINGS = 0.5, 16.0
# A second request beside the first: after so many times what the slow ones of the recent requests
# took, or the usual ones where those vary a lot; at least, and before anything is known. Less is
# what a busy machine takes to look at an answer.
HEDGE_SLOW = 1.5
HEDGE_USUAL = 4.0
HEDGE_LEAST = 0.05
HEDGE_UNKNOWN = 0.5
# The slow ones: one of sixteen is slower still.
_RECENT, _ENOUGH, _SLOWER = 32, 3, 16
# Of a hundred requests so many may be sent twice: a store that is slow for all is not asked more.
_HEDGE_SHARE, _HEDGES_AT_ONCE = 0.1, 8.0
# One that waits so many times as long, seven times in sum, while others are answered hangs: it is
# sent once more whatever was spent. Else it waits for the limit of its attempt.
_HANGS = 4
# A clock that nobody sets is off by half a second or a second a day: by this in a month. An object
# that is written later still, by its clock, is another one.
MOST_AHEAD = 30.0
# How often bytes are read that make no sense, before the file is called damaged.
LOOKS = 3
# What is told of bytes that make no sense.
DAMAGE = errors.BadHeader, errors.CorruptVolume, errors.TruncatedVolume
# How long a store that kept failing gets short attempts only, in seconds, or until it answers: what
# a loader takes to be opened and to begin an epoch.
OUTAGE = 60.0
# How long nobody looks again whether a store is back that kept failing, in seconds.
OUTAGE_PAUSE = 1.0


@dataclass(frozen=True)
class Retry:
    """When a failed request is sent again."""

    deadline: float = _DEADLINE  # seconds after which a request that keeps failing is given up
    first: float = 0.1  # longest first pause, in seconds; it doubles each time
    most: float = 5.0  # longest pause of all, in seconds
    attempt: float = 20.0  # most seconds that one attempt may take: 16 MiB at 0.8 MB/s

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} is a positive number of seconds, got {value!r}")

    def pause(self, pauses: int, draw: float) -> float:
        """Return how long the first, second, ... pause is; ``draw`` in 0..1 spreads the crowd."""
        # At least half of the longest, because a store that asks for less gets none otherwise.
        longest = min(self.most, self.first * 2.0 ** min(pauses - 1, 60))
        return longest * (1 + draw) / 2

    def limit(self, size: int) -> float:
        """Return how long one attempt at so many bytes may take, in seconds."""
        share = max(self.deadline / TRIES, LEAST_ATTEMPT)
        return min(self.attempt, max(share, size / _SLOWEST))


def default_retry() -> Retry:
    """Return the policy of this process: the deadline may be set in the environment."""
    return Retry(deadline=read_setting(REMOTE_DEADLINE, _DEADLINE))


class Attempts:
    """The attempts at one request so far; says how long to wait, or raises.

    A store that kept failing until a deadline gets one short attempt from then on, and none within
    a second of a failed one: the error comes after one deadline, however many files are read. The
    same holds for one object of a store that answers others, and for one kind of request. Other
    objects have an eighth of the deadline until the one that kept failing is answered.
    """

    def __init__(
        self,
        policy: Retry,
        what: str,
        describe: Callable[[BaseException], str],
        clock: Clock = time.monotonic,
        draw: Callable[[], float] = random.random,
        setting: str = REMOTE_DEADLINE,
        health: Health | None = None,
        size: int = 0,
        kind: str = "",
    ) -> None:
        self._policy, self._what, self._describe = policy, what, describe
        self._size = size
        self._clock, self._draw = clock, draw
        self._begin = clock()
        self._failures = self._wrong = self._pauses = 0
        self._version: tuple[str, int | None, float] | None = None
        self.health = Health(clock) if health is None else health
        # All requests of the kind, and those of the kind for this object.
        self.targets = (kind, f"{kind} {what}")
        self._deadline = self.health.deadline(kind, policy.deadline)
        # Whether one attempt has to do: it looks whether the store is back.
        self._advice = (
            f"Check the store, or give it more time: {setting}=seconds, now {policy.deadline:g}."
        )
        self._looks = self.health.check_out(what, self.targets, self._advice)

    def note_answer(self) -> None:
        """Note that the store answers requests of this kind, also for this object."""
        self.health.note_answer(targets=self.targets)

    @property
    def limit(self) -> float:
        """Seconds that the next attempt may take."""
        if self._looks:
            return LEAST_ATTEMPT
        most = self._deadline if self._failures else self._policy.deadline  # others may be slow
        rest = self._begin + most - self._clock()
        return min(self._policy.limit(self._size), max(rest, LEAST_ATTEMPT))

    @property
    def rest(self) -> float | None:
        """Seconds until the deadline once an attempt has failed, for what takes many requests."""
        if not self._failures and not self._looks:
            return None
        return max(self._begin + self._deadline - self._clock(), LEAST_ATTEMPT)

    def note_failure(self, error: BaseException) -> float:
        """Return the pause before the next attempt; or raise the error, or ``StoreUnavailable``."""
        try:
            failure = advice_on(error)
            if failure not in (FaultAdvice.TRANSIENT, FaultAdvice.WRONG):
                self.note_answer()
                raise error
            self._failures += 1
            self._wrong = self._wrong + 1 if failure is FaultAdvice.WRONG else 0
            pause = 0.0
            # None where the store answers others, and does not ask for fewer requests.
            if (
                self._failures > AT_ONCE
                or wants_pause(error)
                or not (failure is FaultAdvice.WRONG or self.health.may_go_on_at_once())
            ):
                self._pauses += 1
                pause = self._policy.pause(self._pauses, self._draw())
            if isinstance(error, OtherVersion) and error.version is not None:
                if error.version == self._version:  # found by two attempts: then there is one
                    raise error
                self._version = error.version
            total = self._clock() - self._begin
            if self._wrong >= (MOST_MISSING if isinstance(error, Gone) else MOST_WRONG):
                if isinstance(error, OtherVersion):
                    raise error
                do = "Look for a proxy or a cache on the way to the store that changes answers."
                raise self._unavailable(total, error, do) from None
            is_out = self._looks or self.health.is_out(self.targets)
            if total + pause < self._deadline and not is_out:
                return pause
            most, message = self._policy.deadline, self._describe(error)
            self.health.gave_up(self.targets, self._begin, most, message, is_probe=self._looks)
            raise self._unavailable(total, error, self._advice) from None
        finally:
            # Its traceback holds this call, which shall not hold it: all that was read
            # on the way here would wait for a collection of garbage.
            del error

    def _unavailable(self, total: float, error: BaseException, do: str) -> errors.StoreUnavailable:
        times = "once" if self._failures == 1 else f"{self._failures} times"
        # Not chained: the text of the original may hold a signed URL or a key.
        return errors.StoreUnavailable(
            f"{self._what} failed {times} in {total:.1f} s, at last with {self._describe(error)}.",
            do=do,
        )


Targets = tuple[str, ...]
"""The kind of a request, and the kind with its object."""
# The part of the deadline that requests have while another object of the kind keeps failing.
_SHORT_SHARE = 0.125
# Most outages that are remembered.
_MOST_OUTAGES = 4096


@dataclass
class _Outage:
    """A kind of request, or an object, that failed until its deadline."""

    until: float  # clock time until which each request has one attempt
    quiet_until: float = -float("inf")  # clock time until which no request is sent
    message: str = ""  # the error of the last attempt


class Health:
    """How one store answers: how long it takes, and whether it kept failing until a deadline."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._new, self._slow = 0, 0.0
        self.answers = 0  # how many requests were answered
        self._hedges = _HEDGES_AT_ONCE
        self._at_once = 0.0
        # When each kind of request was answered last, and what kept failing since, of objects too.
        self._answer_times: dict[str, float] = {}
        self._outages: dict[str, _Outage] = {}
        self._short_until: dict[str, float] = {}  # by kind of request, while an object fails
        self.ahead = 0.0  # seconds by which its clock is ahead of ours, at least

    @property
    def hedge_after(self) -> float:
        """Seconds after which a request is sent once more."""
        if len(self._recent) < _ENOUGH:
            return HEDGE_UNKNOWN
        if 4 * self._new >= len(self._recent):  # sorted again for each fourth, not for each
            slow = sorted(self._recent)[-1 - len(self._recent) // _SLOWER]
            self._slow = min(HEDGE_SLOW * slow, HEDGE_USUAL * median(self._recent))
            self._new = 0
        return max(HEDGE_LEAST, self._slow)

    def wrote(self, mtime: float, now: float) -> None:
        """Learn how far its clock is ahead of ours, at least, from a time of writing."""
        ahead = mtime - now
        if self.ahead < ahead <= MOST_AHEAD:
            self.ahead = ahead

    def may_hedge(self, *, hangs: bool = False) -> bool:
        """Whether one more request may be sent a second time; counts it unless the first hangs."""
        if read_setting(REMOTE_HEDGE, "1") == "0":
            return False
        if self._hedges < 1:
            return hangs
        self._hedges -= 1
        return True

    def may_go_on_at_once(self) -> bool:
        """Whether one more request may be sent again without a pause; counts it."""
        if self._at_once < 1:
            return False
        self._at_once -= 1
        return True

    def note_answer(self, seconds: float | None = None, targets: Targets = ("",)) -> None:
        """Note that the store answers targets, or how long a request of no target took."""
        if targets:
            self._at_once = min(_AT_ONCE_SAVINGS, self._at_once + _AT_ONCE_SHARE)
        for target in targets:
            if self._outages.pop(target, None) is not None and target != targets[0]:
                self._short_until.pop(targets[0], None)  # the object is back
        for kind in targets[:1]:
            self._answer_times[kind] = self._clock()
        if seconds is not None:
            self._recent.append(seconds)
            self._new += 1
            self.answers += 1
            self._hedges = min(_HEDGES_AT_ONCE, self._hedges + _HEDGE_SHARE)

    def deadline(self, kind: str, deadline: float) -> float:
        """Return the deadline of a new request of a kind, in seconds."""
        if self._clock() >= self._short_until.get(kind, -float("inf")):
            return deadline
        return min(deadline, max(LEAST_ATTEMPT, _SHORT_SHARE * deadline))

    def is_out(self, targets: Targets = ("",)) -> bool:
        """Whether a target kept failing and has not answered since: one attempt has to do."""
        now = self._clock()
        return any(now < outage.until for outage in self._outages_of(targets))

    def gave_up(
        self, targets: Targets, begin: float, deadline: float, message: str, *, is_probe: bool
    ) -> None:
        """Note that a request of a kind, for an object, was given up after its deadline.

        The kind counts as failing, too, unless the store answered others since ``begin``. A probe
        is one attempt, and those that follow within a second are not tried.
        """
        now = self._clock()
        if is_probe:
            for outage in self._outages_of(targets):
                outage.quiet_until, outage.message = now + OUTAGE_PAUSE, message
            return
        kind, one = targets
        answers_others = self._answer_times.get(kind, -float("inf")) >= begin
        self._short_until[kind] = until = now + max(OUTAGE, deadline)
        for target in (one,) if answers_others else (kind, one):
            self._outages[target] = _Outage(until)
        while len(self._outages) > _MOST_OUTAGES:
            del self._outages[next(iter(self._outages))]

    def check_out(self, what: str, targets: Targets, do: str) -> bool:
        """Return :meth:`is_out`; ``StoreUnavailable`` where a probe failed a moment ago."""
        if not self._outages:
            return False
        now = self._clock()
        for outage in self._outages_of(targets):
            if now < min(outage.until, outage.quiet_until):
                msg = f"{what} was not tried: the store failed a moment ago, with {outage.message}."
                raise errors.StoreUnavailable(msg, do=do)
        return self.is_out(targets)

    def _outages_of(self, targets: Targets) -> list[_Outage]:
        return [self._outages[target] for target in targets if target in self._outages]


async def retry_async(
    call: Callable[[], Awaitable[T]],
    attempts: Attempts,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    *,
    has_limit: bool | None = True,
    hedges: bool = False,
) -> T:
    """Return what ``call`` returns, trying again as ``attempts`` says.

    Where requests have limits of their own an attempt has none (``has_limit``), and those after
    the first end at the deadline; None where nobody can cut one off. With ``hedges`` each attempt
    is :func:`hedge_request`, within its limit.
    """
    while True:
        try:
            if hedges:
                result = await hedge_request(call, attempts.health, attempts.limit)
            else:
                limit = attempts.limit if has_limit else attempts.rest
                async with asyncio.timeout(None if has_limit is None else limit):
                    result = await call()
            attempts.note_answer()
            return result
        except Exception as error:
            pause = attempts.note_failure(error)
        if pause:
            await sleep(pause)


async def hedge_request(
    call: Callable[[], Awaitable[T]], health: Health, limit: float = float("inf")
) -> T:
    """Return what ``call`` returns, called once more beside itself where that takes long.

    The first that succeeds counts, and the others are given up; where all fail, the first error
    counts. After ``limit`` seconds there is a ``TimeoutError``. A timer begins what is beside the
    first, because nearly none is needed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    beside: asyncio.Task[T] | None = None
    others: set[asyncio.Task[T]] = set()
    pause, answers, end = health.hedge_after, health.answers, loop.time() + limit

    def look() -> None:
        # It begins a turn of the loop later: one that was busy finds the answer first.
        nonlocal beside
        beside = loop.create_task(_beside(others, call, health, pause, answers, end))
        beside.add_done_callback(take)

    def take(future: asyncio.Task[T]) -> None:
        if not future.cancelled():
            future.exception()  # taken: by the task, or nobody has to
            if task is not None:
                task.cancel()

    timer = loop.call_later(min(pause, limit), look)
    try:
        return await _time(call, health)
    except asyncio.CancelledError:
        if beside is None or not beside.done() or task is None or task.uncancel():
            raise
        return beside.result()
    except Exception:
        task = None
        with suppress(Exception):  # as long as it had; then the error of the first counts
            if beside is not None and others:
                return await asyncio.wait_for(beside, health.hedge_after)
        raise
    finally:
        timer.cancel()
        if beside is not None:
            beside.cancel()
        # What was raised holds this call, and they would hold what was raised.
        task = beside = None


async def _beside(
    others: set[asyncio.Task[T]],
    call: Callable[[], Awaitable[T]],
    health: Health,
    pause: float,
    answers: int,
    end: float,
) -> T:
    """Return the first answer to requests beside one that takes long; ``TimeoutError`` at the end.

    Another is sent each time after twice the pause, and at once in the place of the first that
    fails; of one that hangs while others are answered, whatever was spent.
    """
    loop, hangs, had_failure = asyncio.get_running_loop(), _HANGS * pause, False
    try:
        while loop.time() < end:
            if health.may_hedge(hangs=pause >= hangs and health.answers > answers):
                others.add(each := loop.create_task(_time(call, health)))
                # Whether or not anybody looks at it: another may answer in the same moment.
                each.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
            pause *= 2
            due = min(loop.time() + pause, end)
            timeout = min(pause, end - loop.time())
            while timeout > 0:
                if not others:
                    await asyncio.sleep(timeout)
                    break
                ready, _ = await asyncio.wait(
                    others, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                others -= ready
                for each in ready:
                    if not each.cancelled() and each.exception() is None:
                        return each.result()
                if ready and not had_failure:
                    had_failure = True
                    pause /= 2
                    break
                timeout = due - loop.time()
        raise TimeoutError
    finally:
        for each in others:
            each.cancel()


async def _time(call: Callable[[], Awaitable[T]], health: Health) -> T:
    begin = time.monotonic()
    result = await call()
    # The attempt notes the answer.
    health.note_answer(time.monotonic() - begin, targets=())
    return result


def read_anew(read: Callable[[], T]) -> T:
    """Return what ``read`` makes of remote bytes; again, if they may be damaged on their way."""
    for _ in range(LOOKS - 1):
        try:
            return read()
        except errors.VolumeChanged:  # nobody brings the version back that is gone
            raise
        except DAMAGE:
            continue
    return read()


def retry_sync(
    call: Callable[[], T], attempts: Attempts, sleep: Callable[[float], None] = time.sleep
) -> T:
    """Return what ``call`` returns, trying again in this thread; it cannot be interrupted."""
    while True:
        try:
            result = call()
            attempts.note_answer()
            return result
        except Exception as error:
            pause = attempts.note_failure(error)
        if pause:
            sleep(pause)
