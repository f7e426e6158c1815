"""Retries of requests to a remote store: until a deadline, with growing pauses.

All clients share one policy, and their own retries are off, because they would multiply.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ..core import errors
from ..core.settings import REMOTE_DEADLINE, REMOTE_HEDGE, read_setting
from .remote_answers import (
    FaultAdvice,
    Gone,
    OtherVersion,
    advice_on,
    connection_fault,
    wants_pause,
)

T = TypeVar("T")
Clock = Callable[[], float]

# Seconds; a bucket that scales up answers SlowDown for seconds, not minutes.
_DEADLINE = 30.0
# Least seconds of an attempt, which has to find a server and connect.
LEAST_ATTEMPT = 1.0
# Attempts before the deadline at a silent or slow server, because a restarted one answers the next.
TRIES = 3
# Bytes per second of a connection that is slow and not broken.
_SLOWEST = 0.8e6
# Wrong answers in a row that end the attempts. A proxy that spoils a fifth of the answers reaches
# this in three of a million requests. Fewer for a missing object that existed: proxies hide few.
MOST_WRONG = 8
MOST_MISSING = 3
# Failures in a row that are repeated without a pause; more are rare, even with a bad proxy.
AT_ONCE = 2
# Each answer earns so many repetitions without a pause, up to the second number. If a third of the
# requests fails, or all fail at once, attempts pause.
_AT_ONCE_SHARE, _AT_ONCE_SAVINGS = 0.5, 16.0
# A second, hedged request starts after so many times the slow recent answers, or the median ones if
# answers vary a lot. The third number is the least delay in seconds, which a busy machine may need
# to read an answer. The fourth one is the delay before enough answers are known.
HEDGE_SLOW = 1.5
HEDGE_USUAL = 4.0
HEDGE_LEAST = 0.05
HEDGE_UNKNOWN = 0.5
# Recent answers, enough of them, and the slow one: one of sixteen is slower.
_RECENT, _ENOUGH, _SLOWER = 32, 3, 16
# Share of requests that may be hedged, and most at once: a slow store gets few more requests.
_HEDGE_SHARE, _HEDGES_AT_ONCE = 0.1, 8.0
# A request hangs if its pause is so many times the first one, while others are answered. It is
# hedged beyond the share.
_HANGS = 4
# Seconds by which an unset clock drifts in a month. A later write time means another version.
MOST_AHEAD = 30.0
# Reads of damaged bytes before the file counts as damaged.
LOOKS = 3
# Errors about damaged bytes.
DAMAGE = errors.BadHeader, errors.CorruptVolume, errors.TruncatedVolume
# Seconds for which a failing store gets only short attempts, unless it answers: the time to open a
# loader and to begin an epoch.
OUTAGE = 60.0
# Seconds without requests after a failed probe of a failing store.
OUTAGE_PAUSE = 1.0


@dataclass(frozen=True)
class Retry:
    """Limits of the attempts at a request."""

    deadline: float = _DEADLINE  # seconds after which no attempt follows a failed one
    first: float = 0.1  # longest first pause in seconds, which doubles each time
    most: float = 5.0  # longest pause in seconds
    attempt: float = 20.0  # most seconds of one attempt: 16 MiB at 0.8 MB/s

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} is a positive number of seconds, got {value!r}")

    def pause(self, pauses: int, draw: float) -> float:
        """Return the seconds of pause number ``pauses``; ``draw`` in 0..1 spreads requests."""
        # At least half of the longest pause, or a busy store would get no relief.
        longest = min(self.most, self.first * 2.0 ** min(pauses - 1, 60))
        return longest * (1 + draw) / 2

    def limit(self, size: int) -> float:
        """Return the most seconds of one attempt at ``size`` bytes."""
        share = max(self.deadline / TRIES, LEAST_ATTEMPT)
        return min(self.attempt, max(share, size / _SLOWEST))


def default_retry() -> Retry:
    """Return the policy of this process, with the deadline of the environment."""
    return Retry(deadline=read_setting(REMOTE_DEADLINE, _DEADLINE))


class Attempts:
    """Attempts at one request.

    After a deadline without an answer, a request to the same target has one short attempt, and none
    within a second of a failed one. So reading many files fails after one deadline. A target is a
    kind of request, or one object of a store that answers for others. In the latter case, requests
    for other objects have an eighth of the deadline until the failing object is answered.
    """

    def __init__(
        self,
        policy: Retry,
        action: str,
        describe: Callable[[BaseException], str],
        clock: Clock = time.monotonic,
        draw: Callable[[], float] = random.random,
        setting: str = REMOTE_DEADLINE,
        health: Health | None = None,
        size: int = 0,
        kind: str = "",
    ) -> None:
        self._policy, self._action, self._describe = policy, action, describe
        self._size = size
        self._clock, self._draw = clock, draw
        self._begin = clock()
        self._failures = self._wrong = self._pauses = 0
        self._version: tuple[str, int | None, float] | None = None
        self.health = Health(clock) if health is None else health
        self.targets = (kind, f"{kind} {action}")
        seconds = f"{setting}=seconds, now {policy.deadline:g}"
        self._advice = f"Check the store, or give it more time: {seconds}."
        self._deadline, self._is_probe = policy.deadline, False
        if self.health.outages:
            self._deadline = self.health.deadline(kind, policy.deadline)
            # Whether this is one probe of a failing store.
            self._is_probe = self.health.check_out(action, self.targets, self._advice)

    def note_answer(self) -> None:
        """Record that the store answers requests of this kind and for this object."""
        self.health.note_answer(targets=self.targets)

    @property
    def limit(self) -> float:
        """Most seconds of the next attempt."""
        if self._is_probe:
            return LEAST_ATTEMPT
        most = self._deadline if self._failures else self._policy.deadline  # others may be slow
        rest = self._begin + most - self._clock()
        return min(self._policy.limit(self._size), max(rest, LEAST_ATTEMPT))

    @property
    def rest(self) -> float | None:
        """Seconds until the deadline, for attempts with many requests; None for the first one."""
        if not self._failures and not self._is_probe:
            return None
        return max(self._begin + self._deadline - self._clock(), LEAST_ATTEMPT)

    def note_failure(self, error: BaseException) -> float:
        """Return the pause before the next attempt, or raise a final error."""
        try:
            failure = advice_on(error)
            if failure not in (FaultAdvice.TRANSIENT, FaultAdvice.WRONG):
                self.note_answer()
                raise error
            self._failures += 1
            self._wrong = self._wrong + 1 if failure is FaultAdvice.WRONG else 0
            pause = 0.0
            # No pause if the store answers other requests and is not busy.
            if (
                self._failures > AT_ONCE
                or wants_pause(error)
                or not (failure is FaultAdvice.WRONG or self.health.may_go_on_at_once())
            ):
                self._pauses += 1
                pause = self._policy.pause(self._pauses, self._draw())
            if isinstance(error, OtherVersion) and error.version is not None:
                if error.version == self._version:  # two attempts prove a new version
                    raise error
                self._version = error.version
            total = self._clock() - self._begin
            if self._wrong >= (MOST_MISSING if isinstance(error, Gone) else MOST_WRONG):
                if isinstance(error, OtherVersion):
                    raise error
                do = "Look for a proxy or a cache on the way to the store that changes answers."
                raise self._unavailable(total, error, do) from None
            is_out = self._is_probe or self.health.is_out(self.targets)
            never = connection_fault(error) and not self.health.has_answered
            if total + pause < self._deadline * (_NEVER_SHARE if never else 1) and not is_out:
                return pause
            most, message = self._policy.deadline, self._describe(error)
            self.health.gave_up(self.targets, self._begin, most, message, is_probe=self._is_probe)
            raise self._unavailable(total, error, self._advice) from None
        finally:
            # The traceback keeps this frame alive: drop the error, or the cycle would keep all
            # bytes read so far until a garbage collection.
            del error

    def _unavailable(self, total: float, error: BaseException, do: str) -> errors.StoreUnavailable:
        times = "once" if self._failures == 1 else f"{self._failures} times"
        # Not chained: the text of the original may hold a signed URL or a key.
        last = self._describe(error)
        msg = f"{self._action} failed {times} in {total:.1f} s, at last with {last}."
        return errors.StoreUnavailable(msg, do=do)


# Share of the deadline for a server that refuses connections and never answered: a wrong address.
_NEVER_SHARE = 1 / 6
Targets = tuple[str, ...]
"""The kind of a request, and the kind with its object."""
# Share of the deadline for requests while another object of their kind keeps failing.
_SHORT_SHARE = 0.125
# Most remembered outages.
_MOST_OUTAGES = 4096


@dataclass
class _Outage:
    """Outage of a kind of request or of an object, after failures until a deadline."""

    until: float  # clock time until which each request has one attempt
    quiet_until: float = -float("inf")  # clock time until which no request is sent
    message: str = ""  # the error of the last attempt


class Health:
    """Response times and outages of one store."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self.answers = 0  # number of answers
        self._hedges = _HEDGES_AT_ONCE
        self._at_once = 0.0
        # Last answers by kind of request, outages by target, and ends of short deadlines by kind.
        self._answer_times: dict[str, float] = {}
        self.outages: dict[str, _Outage] = {}
        self._short_until: dict[str, float] = {}
        self.ahead = 0.0  # least seconds by which its clock is ahead of the local one

    @property
    def has_answered(self) -> bool:
        """Whether the store ever answered."""
        return self.answers > 0 or bool(self._answer_times)

    @property
    def hedge_after(self) -> float:
        """Seconds after which a second request is sent."""
        if len(self._recent) < _ENOUGH:
            return HEDGE_UNKNOWN
        recent, count = sorted(self._recent), len(self._recent)
        median = (recent[(count - 1) // 2] + recent[count // 2]) / 2
        slow = recent[-1 - count // _SLOWER]
        return max(HEDGE_LEAST, min(HEDGE_SLOW * slow, HEDGE_USUAL * median))

    def may_hedge(self, *, hangs: bool = False) -> bool:
        """Whether one more request may be hedged, and count it; one that hangs always may."""
        if read_setting(REMOTE_HEDGE, "1") == "0":
            return False
        if self._hedges < 1:
            return hangs
        self._hedges -= 1
        return True

    def may_go_on_at_once(self) -> bool:
        """Whether one more attempt may follow without a pause, and count it."""
        if self._at_once < 1:
            return False
        self._at_once -= 1
        return True

    def note_answer(self, seconds: float | None = None, targets: Targets = ("",)) -> None:
        """Record an answer to requests of the targets, or the time of a request without targets."""
        if targets:
            self._at_once = min(_AT_ONCE_SAVINGS, self._at_once + _AT_ONCE_SHARE)
        for target in targets:
            if self.outages.pop(target, None) is not None and target != targets[0]:
                self._short_until.pop(targets[0], None)  # the object is back
        for kind in targets[:1]:
            self._answer_times[kind] = self._clock()
        if seconds is not None:
            self._recent.append(seconds)
            self.answers += 1
            self._hedges = min(_HEDGES_AT_ONCE, self._hedges + _HEDGE_SHARE)

    def deadline(self, kind: str, deadline: float) -> float:
        """Return the deadline in seconds of a new request of a kind."""
        if self._clock() >= self._short_until.get(kind, -float("inf")):
            return deadline
        return min(deadline, max(LEAST_ATTEMPT, _SHORT_SHARE * deadline))

    def is_out(self, targets: Targets = ("",)) -> bool:
        """Whether a target has an outage, so that requests have one attempt."""
        now = self._clock()
        return any(now < outage.until for outage in self._outages_of(targets))

    def gave_up(
        self, targets: Targets, begin: float, deadline: float, message: str, *, is_probe: bool
    ) -> None:
        """Record the outage of an object after its deadline, or the failure of a probe.

        The kind of request has an outage too, unless the store answered others since ``begin``. A
        failed probe blocks requests for a second.
        """
        now = self._clock()
        if is_probe:
            for outage in self._outages_of(targets):
                outage.quiet_until, outage.message = now + OUTAGE_PAUSE, message
            return
        kind, own = targets
        answers_others = self._answer_times.get(kind, -float("inf")) >= begin
        self._short_until[kind] = until = now + max(OUTAGE, deadline)
        for target in (own,) if answers_others else (kind, own):
            self.outages[target] = _Outage(until)
        while len(self.outages) > _MOST_OUTAGES:
            del self.outages[next(iter(self.outages))]

    def check_out(self, action: str, targets: Targets, do: str) -> bool:
        """Return :meth:`is_out`; raise ``StoreUnavailable`` right after a failed probe."""
        now = self._clock()
        for outage in self._outages_of(targets):
            if now < min(outage.until, outage.quiet_until):
                why = f"the store failed a moment ago, with {outage.message}"
                raise errors.StoreUnavailable(f"{action} was not tried: {why}.", do=do)
        return self.is_out(targets)

    def _outages_of(self, targets: Targets) -> list[_Outage]:
        return [self.outages[target] for target in targets if target in self.outages]


async def retry_async(
    call: Callable[[], Awaitable[T]],
    attempts: Attempts,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    *,
    has_limit: bool | None = True,
    hedges: bool = False,
) -> T:
    """Return the result of ``call`` after the retries of ``attempts``.

    ``has_limit`` is False if the requests of an attempt have their own timeouts; attempts after the
    first then end at the deadline. It is None if attempts cannot be cancelled. ``hedges`` makes
    each attempt a :func:`hedge_request`.
    """
    while True:
        try:
            if hedges:
                result = await hedge_request(call, attempts.health, attempts.limit)
            else:
                limit = attempts.limit if has_limit else attempts.rest
                async with asyncio.timeout(None if has_limit is None else limit):
                    result = await call()
            attempts.health.note_answer(targets=attempts.targets)
            return result
        except Exception as error:
            pause = attempts.note_failure(error)
        if pause:
            await sleep(pause)


async def hedge_request(
    call: Callable[[], Awaitable[T]], health: Health, limit: float = float("inf")
) -> T:
    """Return the result of ``call``; call it again concurrently if it takes long.

    The first success counts, and the other calls are cancelled. If all fail, the first error
    counts; after ``limit`` seconds it is a ``TimeoutError``. A timer starts the task of the other
    calls, because few requests need it.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    hedge: asyncio.Task[T] | None = None
    others: set[asyncio.Task[T]] = set()
    pause, answers, end = health.hedge_after, health.answers, loop.time() + limit

    def start_hedge() -> None:
        # The task begins a turn of the loop later, so that a busy loop finds the answer first.
        nonlocal hedge
        hedge = loop.create_task(_hedge(others, call, health, pause, answers, end))
        hedge.add_done_callback(end_first)

    def end_first(future: asyncio.Task[T]) -> None:
        if not future.cancelled():
            future.exception()  # marks it as retrieved
            if task is not None:
                task.cancel()

    timer = loop.call_later(min(pause, limit), start_hedge)
    try:
        return await _time(call, health)
    except asyncio.CancelledError:
        if hedge is None or not hedge.done() or task is None or task.uncancel():
            raise
        return hedge.result()
    except Exception:
        task = None
        with suppress(Exception):  # after this time the first error counts
            if hedge is not None and others:
                return await asyncio.wait_for(hedge, health.hedge_after)
        raise
    finally:
        timer.cancel()
        if hedge is not None:
            hedge.cancel()
        # An exception keeps this frame alive, and the tasks would keep the exception.
        task = hedge = None


async def _hedge(
    others: set[asyncio.Task[T]],
    call: Callable[[], Awaitable[T]],
    health: Health,
    pause: float,
    answers: int,
    end: float,
) -> T:
    """Return the first result of hedged calls; ``TimeoutError`` at ``end``.

    Each call follows after twice the last pause, or at once after the first failure. A call that
    hangs, while the store answers other requests, is hedged beyond the share.
    """
    loop, hangs, had_failure = asyncio.get_running_loop(), _HANGS * pause, False
    try:
        while loop.time() < end:
            if health.may_hedge(hangs=pause >= hangs and health.answers > answers):
                others.add(task := loop.create_task(_time(call, health)))
                # Marks the error as retrieved, even if another call answers at the same time.
                task.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
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
                for task in ready:
                    if not task.cancelled() and task.exception() is None:
                        return task.result()
                if ready and not had_failure:
                    had_failure = True
                    pause /= 2
                    break
                timeout = due - loop.time()
        raise TimeoutError
    finally:
        for task in others:
            task.cancel()


async def _time(call: Callable[[], Awaitable[T]], health: Health) -> T:
    begin = time.monotonic()
    result = await call()
    # The attempt records the answer to its targets.
    health.note_answer(time.monotonic() - begin, targets=())
    return result


def read_anew(read: Callable[[], T]) -> T:
    """Return the result of ``read``; repeat it if remote bytes may be damaged on their way."""
    for _ in range(LOOKS - 1):
        try:
            return read()
        except errors.VolumeChanged:  # a replaced version does not come back
            raise
        except DAMAGE:
            continue
    return read()


def retry_sync(
    call: Callable[[], T], attempts: Attempts, sleep: Callable[[float], object] = time.sleep
) -> T:
    """Return the result of ``call`` after retries in this thread, without a timeout."""
    while True:
        try:
            result = call()
            attempts.note_answer()
            return result
        except Exception as error:
            pause = attempts.note_failure(error)
        if pause:
            sleep(pause)
