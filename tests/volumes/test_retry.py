"""Requests are tried again until a deadline, with a clock that the test turns."""

import asyncio
import contextlib
import errno
import gc
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.core.errors import StoreUnavailable
from voxpipe.storage import retry
from voxpipe.storage.location import Secrets
from voxpipe.storage.remote_answers import FaultAdvice, NoRanges, WrongAnswer, advice_on
from voxpipe.storage.retry import (
    Attempts,
    Health,
    Retry,
    default_retry,
    hedge_request,
    retry_async,
    retry_sync,
)


class Time:
    """A clock that moves only when somebody waits."""

    def __init__(self):
        self.now = 0.0
        self.pauses = []

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds

    async def sleep_later(self, seconds):
        self.sleep(seconds)


class Answers:
    """Fails as told, then answers."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def attempts(policy, time, draw=lambda: 1.0):
    describe = Secrets({"secret": "hidden-key"}).describe
    return Attempts(policy, "reading s3://b/a", describe, lambda: time.now, draw)


def test_pauses_grow_until_the_answer():
    """Pauses double up to the longest, and the answer comes through."""
    time, answers = Time(), Answers(*[ConnectionResetError()] * 5)
    policy = Retry(deadline=100, first=1, most=4)

    assert retry_sync(answers, attempts(policy, time), time.sleep) == "answer"

    assert time.pauses == [1, 2, 4, 4, 4]
    assert answers.calls == 6


def test_the_deadline_ends_it():
    """A store that is down for good is given up at the deadline, in one error that says so."""
    time, answers = Time(), Answers(*[ConnectionResetError("of hidden-key")] * 99)
    policy = Retry(deadline=10, first=1, most=4)

    with pytest.raises(StoreUnavailable) as caught:
        retry_sync(answers, attempts(policy, time), time.sleep)

    assert str(caught.value).startswith("reading s3://b/a failed 4 times in 7.0 s, at last with")
    assert "ConnectionResetError: of ***" in str(caught.value)
    assert "VOXPIPE_REMOTE_DEADLINE" in str(caught.value)
    assert caught.value.__cause__ is None
    assert sum(time.pauses) <= 10


@pytest.mark.parametrize(("answered", "calls"), [(False, 5), (True, 10)])
def test_a_server_that_never_answered_and_refuses_is_a_wrong_address(answered, calls):
    """It has a sixth of the deadline; one that restarts, after answers, has all of it."""
    time, health = Time(), Health()
    answers = Answers(*[ConnectionRefusedError(errno.ECONNREFUSED, "refused")] * 99)
    if answered:
        health.note_answer()
    policy = Retry(deadline=60, first=1, most=20)
    tries = Attempts(policy, "reading s3://b/a", repr, lambda: time.now, lambda: 0.0, health=health)

    with pytest.raises(StoreUnavailable, match=f"failed {calls} times"):
        retry_sync(answers, tries, time.sleep)


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
@pytest.mark.parametrize("kind", ["http", "s3", "unknown host"])
def test_an_unreachable_server_is_named_with_the_cause(client, kind, started_clients, monkeypatch):
    """Clients hide the refusal in a cause, an appendix or a missing file."""
    monkeypatch.setenv("VOXPIPE_REMOTE", client)
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.5")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    host = "no-such-host.invalid" if kind == "unknown host" else host
    is_s3 = kind == "s3"
    options = {"key": "key1", "secret": "word", "endpoint_url": f"http://{host}"} if is_s3 else {}
    volume = vp.Volume(f"s3://b-{client}/a.nii" if is_s3 else f"http://{host}/a.nii",
                       storage_options=options)  # fmt: skip

    cause = "no host has this name" if kind == "unknown host" else "the host refuses"
    with pytest.raises(StoreUnavailable, match=rf"{host}(.|\n)*: {cause}"):
        _ = volume.shape


@pytest.mark.parametrize("error", [FileNotFoundError(), PermissionError(), ValueError()])
def test_what_would_fail_again_is_not_tried(error):
    """An answer that will not change is raised at once."""
    time, answers = Time(), Answers(error)

    with pytest.raises(type(error)):
        retry_sync(answers, attempts(Retry(), time), time.sleep)

    assert (answers.calls, time.pauses) == (1, [])


def test_an_attempt_without_an_answer_is_one_that_failed():
    """A request that hangs is cut off, and sent again."""
    time, calls = Time(), []

    async def call():
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "answer"

    found = asyncio.run(retry_async(call, attempts(Retry(attempt=0.01), time), time.sleep_later))

    assert found == "answer"
    assert len(calls) == 2


@given(st.integers(1, 2000), st.floats(0, 1))
def test_pauses_stay_within_their_bounds(failures, draw):
    """However often it failed, a pause is between half of the longest and the longest."""
    policy = Retry(first=0.5, most=8.0)
    longest = min(8.0, 0.5 * 2 ** min(failures - 1, 60))

    assert longest / 2 <= policy.pause(failures, draw) <= longest


def test_settings(monkeypatch):
    """The deadline may be set from outside; nonsense is refused."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "7.5")

    assert default_retry().deadline == 7.5
    with pytest.raises(ValueError, match="deadline is a positive number"):
        Retry(deadline=0)


class Answered(Exception):
    def __init__(self, status):
        super().__init__("something")
        self.status = status


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (Answered(503), FaultAdvice.TRANSIENT),
        (Answered(429), FaultAdvice.TRANSIENT),
        (Answered(500), FaultAdvice.TRANSIENT),
        (Answered(501), FaultAdvice.FINAL),
        (Answered(400), FaultAdvice.FINAL),
        (Answered(403), FaultAdvice.REFUSAL),
        (Answered(404), FaultAdvice.ABSENT),
        (Answered(416), FaultAdvice.BEYOND),
        (TimeoutError(), FaultAdvice.TRANSIENT),
        (WrongAnswer(), FaultAdvice.WRONG),
        (NoRanges(), FaultAdvice.NO_RANGES),
        (OSError(errno.EBUSY, "SlowDown"), FaultAdvice.TRANSIENT),
        (OSError(errno.EINVAL, "InvalidRequest"), FaultAdvice.FINAL),
        (FileNotFoundError("The specified bucket does not exist"), FaultAdvice.FINAL),
    ],
)
def test_what_errors_mean(error, failure):
    """Errors are sorted by the status of the answer, or by their kind; asked again, alike."""
    assert [advice_on(error), advice_on(error)] == [failure, failure]


@pytest.fixture(autouse=True)
def hedges(monkeypatch):
    """Send requests twice, as users do."""
    monkeypatch.delenv("VOXPIPE_REMOTE_HEDGE")


@pytest.fixture
def soon(monkeypatch):
    """Send a request once more at once."""
    monkeypatch.setattr(retry, "HEDGE_UNKNOWN", 0.001)
    return Health()


def test_nothing_is_sent_twice_where_the_user_says_so(monkeypatch):
    """Requests of a bucket cost money."""
    monkeypatch.setenv("VOXPIPE_REMOTE_HEDGE", "0")
    health = Health()

    assert not health.may_hedge()
    monkeypatch.delenv("VOXPIPE_REMOTE_HEDGE")
    assert health.may_hedge()


class Calls:
    """Requests that end as told: with an answer, an error, or not at all."""

    def __init__(self, *ends):
        self.ends, self.given_up = list(ends), 0
        self.came = asyncio.Event()

    async def __call__(self):
        end = self.ends.pop(0)
        if not self.ends:
            self.came.set()
        try:
            if end == "hangs":
                await asyncio.Event().wait()
            if isinstance(end, Exception):
                await self.came.wait()
                raise end
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return end


def test_a_slow_request_is_sent_once_more(soon):
    """The answer of the second counts, and the first is given up."""

    async def run():
        calls = Calls("hangs", "answer")
        found = await hedge_request(calls, soon)
        await asyncio.sleep(0)
        return found, calls.given_up, asyncio.current_task().cancelling()

    assert asyncio.run(run()) == ("answer", 1, 0)


def test_the_second_stands_in_for_one_that_fails(soon):
    """And the first error counts where both fail."""

    async def run():
        found = await hedge_request(Calls(ValueError("first"), "answer"), soon)
        with pytest.raises(ValueError, match="first"):
            await hedge_request(Calls(ValueError("first"), ValueError("second")), soon)
        return found

    assert asyncio.run(run()) == "answer"


def test_a_second_that_fails_is_followed_by_another(soon):
    """Else the slow first one would be waited for to its limit."""

    async def run():
        calls = Calls("hangs", ValueError("second"), "answer")
        calls.came.set()
        found = await hedge_request(calls, soon)
        await asyncio.sleep(0)
        return found, calls.given_up

    assert asyncio.run(run()) == ("answer", 1)


def test_a_second_that_fails_is_followed_at_once(soon, monkeypatch):
    """Not after twice the time: once, and the next ones when it is their time."""

    async def run():
        begun = []
        calls = Calls("hangs", ValueError("second"), "answer")
        calls.came.set()
        true = asyncio.get_running_loop().call_later
        monkeypatch.setattr(
            asyncio.get_running_loop(),
            "call_later",
            lambda pause, *rest: begun.append(pause) or true(0.0 if len(begun) == 1 else 60, *rest),
        )
        return await hedge_request(calls, soon), begun

    found, begun = asyncio.run(run())

    assert found == "answer"
    assert begun[:3] == [0.001, 0.002, 0.002]


def test_after_its_limit_a_request_is_given_up_with_those_beside_it(soon):
    """An attempt that failed, as if there were no others."""

    async def run():
        calls = Calls(*["hangs"] * 20)
        with pytest.raises(TimeoutError):
            await hedge_request(calls, soon, 0.05)
        await asyncio.sleep(0)
        return calls.given_up, 20 - len(calls.ends), asyncio.current_task().cancelling()

    given_up, begun, cancelling = asyncio.run(asyncio.wait_for(run(), 30))

    assert given_up == begun >= 2
    assert cancelling == 0


def test_the_second_is_not_waited_for_for_ever_when_the_first_fails(soon):
    """It gets as long as it had; then the error of the first counts, and the next attempt."""

    async def run():
        calls = Calls(ValueError("first"), "hangs")
        with pytest.raises(ValueError, match="first"):
            await hedge_request(calls, soon)
        await asyncio.sleep(0)
        return calls.given_up

    assert asyncio.run(asyncio.wait_for(run(), 30)) == 1


def test_an_answer_that_is_here_goes_before_the_second(soon):
    """A loop that was busy finds both at once, and sends nothing twice."""
    calls = []

    async def run():
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        async def call():
            calls.append(1)
            return await future

        task = asyncio.ensure_future(hedge_request(call, soon))
        await asyncio.sleep(0)
        due = loop.time() + 0.01
        while loop.time() < due:  # the timer is due, and this keeps the loop
            pass
        loop.call_soon(future.set_result, "answer")
        return await task

    assert asyncio.run(run()) == "answer"
    assert calls == [1]


def test_a_second_that_is_slow_too_is_followed_by_another(soon):
    """Each after twice the time."""

    async def run():
        calls = Calls("hangs", "hangs", "hangs", "answer")
        found = await hedge_request(calls, soon)
        await asyncio.sleep(0)
        return found, calls.given_up

    assert asyncio.run(run()) == ("answer", 3)


def test_the_errors_of_those_that_fail_beside_the_answer_are_taken(soon):
    """Else the loop tells that nobody took them, whenever they are collected."""
    told = []

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: told.append(what))
        for _ in range(8):  # in whatever order they are looked at
            calls = Calls("hangs", *(ValueError(str(n)) for n in range(3)), "answer")
            assert await hedge_request(calls, Health()) == "answer"
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(run())
    gc.collect()

    assert told == []


def test_who_is_cancelled_gives_up_both(soon, monkeypatch):
    """Nothing goes on behind a read that nobody waits for."""
    monkeypatch.setattr(retry, "_HEDGES_AT_ONCE", 1.0)

    async def run():
        calls = Calls("hangs", "hangs")
        task = asyncio.ensure_future(hedge_request(calls, Health()))
        await calls.came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        return calls.given_up

    assert asyncio.run(run()) == 2


def test_a_store_that_is_slow_for_all_is_not_asked_twice_as_often():
    """A few requests, then one for every ten that are answered."""
    health = Health()
    first = sum(health.may_hedge() for _ in range(100))
    for _ in range(20):
        health.note_answer(5.0)

    assert first == 8
    assert sum(health.may_hedge() for _ in range(100)) == 2
    assert health.hedge_after == 7.5


@pytest.mark.parametrize("answers_others", [True, False])
def test_a_request_that_hangs_is_sent_once_more_though_all_was_spent(soon, answers_others):
    """Where the store answers others meanwhile; else it is slow for all, and is not asked more."""
    while soon.may_hedge():
        pass

    async def run():
        calls = Calls("hangs", "answer")
        work = asyncio.ensure_future(hedge_request(calls, soon, limit=0.2))
        await asyncio.sleep(0)
        if answers_others:
            soon.note_answer(0.001)
        return await work

    if answers_others:
        assert asyncio.run(run()) == "answer"
    else:
        with pytest.raises(TimeoutError):
            asyncio.run(run())


def test_a_second_is_sent_when_slow_answers_would_be_here():
    """Half as long again as slow ones take; no later than four times the usual, where they vary."""
    health = Health()
    for seconds in [0.1] * 20 + [0.2] * 12:
        health.note_answer(seconds)
    assert health.hedge_after == pytest.approx(0.3)
    for _ in range(8):
        health.note_answer(9.0)
    assert health.hedge_after == pytest.approx(0.8)


def test_one_very_slow_answer_is_no_measure():
    """Of sixteen and more, it is left out."""
    health = Health()
    for seconds in [0.1] * 16 + [9.0]:
        health.note_answer(seconds)
    assert health.hedge_after == pytest.approx(0.15)


def of_a_store_that_answers(time, answers=10):
    health = Health(lambda: time.now)
    for _ in range(answers):
        health.note_answer()
    return health


def asked_again(errors, health, time):
    """Return the pauses of one request."""
    time.pauses.clear()
    policy = Retry(deadline=100, first=1, most=8)
    found = Attempts(policy, "reading", repr, lambda: time.now, lambda: 1.0, health=health)
    assert retry_sync(Answers(*errors), found, time.sleep) == "answer"
    return list(time.pauses)


@pytest.mark.parametrize(
    "error", [WrongAnswer(), Answered(500), ConnectionResetError(), TimeoutError()]
)
def test_a_store_that_answers_others_is_asked_again_at_once(error):
    """Twice; then there are pauses."""
    time = Time()

    assert asked_again([error] * 4, of_a_store_that_answers(time), time) == [1, 2]


@pytest.mark.parametrize(
    "error",
    [Answered(503), Answered(429), OSError(errno.EBUSY, "SlowDown"), ConnectionRefusedError()],
)
def test_a_store_that_asks_for_less_is_not_asked_at_once(error):
    """Neither is one that does not listen, however well it answered before."""
    time = Time()

    assert asked_again([error] * 2, of_a_store_that_answers(time), time) == [1, 2]


def test_a_bad_answer_is_one_too():
    """Of a store of which nothing is known yet; a cut connection may be that of a dead one."""
    time = Time()

    assert asked_again([WrongAnswer()] * 3, Health(lambda: time.now), time) == [1]
    assert asked_again([ConnectionResetError()], Health(lambda: time.now), time) == [1]


def test_a_store_that_fails_most_requests_gets_its_pauses():
    """Each good answer pays for half a request without a pause, and sixteen are saved up."""
    time = Time()
    health = of_a_store_that_answers(time, answers=1000)
    at_once = sum(health.may_go_on_at_once() for _ in range(100))
    requests = [asked_again([ConnectionResetError()], health, time) for _ in range(100)]

    assert at_once == 16
    assert requests.count([]) == 49
    assert requests.count([1]) == 51


def test_a_store_that_is_down_is_told_after_one_deadline():
    """Who asks next tries once, and those right behind do not: until it answers, or a minute."""
    time = Time()
    health = Health(lambda: time.now)

    def ask(*errors):
        answers = Answers(*errors)
        begin = time.now
        policy = Retry(deadline=10, first=1, most=4)
        found = Attempts(policy, "reading", repr, lambda: time.now, lambda: 1.0, health=health)
        try:
            retry_sync(answers, found, time.sleep)
        except StoreUnavailable as error:
            return answers.calls, time.now - begin, str(error)
        return answers.calls, time.now - begin, ""

    down = [ConnectionResetError()] * 99
    assert ask(*down)[:2] == (4, 7.0)
    assert ask(*down)[:2] == (1, 0.0)
    with pytest.raises(StoreUnavailable, match="was not tried: the store failed a moment ago"):
        ask(*down)
    time.now += retry.OUTAGE_PAUSE
    assert ask() == (1, 0.0, "")
    assert ask(*down[:2])[:2] == (3, 3.0)


def test_one_object_that_fails_is_no_store_that_is_down():
    """Others are answered meanwhile."""
    time = Time()
    health = Health(lambda: time.now)
    policy = Retry(deadline=10, first=1, most=4)
    first = Attempts(policy, "reading", repr, lambda: time.now, lambda: 1.0, health=health)

    def sleep(seconds):
        time.sleep(seconds)
        health.note_answer()

    with pytest.raises(StoreUnavailable):
        retry_sync(Answers(*[ConnectionResetError()] * 99), first, sleep)
    assert not health.is_out()
    others = Answers(ConnectionResetError())
    second = Attempts(policy, "other", repr, lambda: time.now, lambda: 1.0, health=health)
    retry_sync(others, second, sleep)
    assert others.calls == 2
    again = Answers(*[ConnectionResetError()] * 99)
    third = Attempts(policy, "reading", repr, lambda: time.now, lambda: 1.0, health=health)
    with pytest.raises(StoreUnavailable):
        retry_sync(again, third, sleep)
    assert again.calls == 1


def test_many_objects_that_fail_cost_little_more_than_one():
    """Each has an eighth of the deadline after the first; all of it once that one is answered."""
    time = Time()
    health = Health(lambda: time.now)
    policy = Retry(deadline=16, first=0.5, most=0.5)

    def seconds(name, *errors):
        begin = time.now
        tries = Attempts(policy, name, repr, lambda: time.now, lambda: 1.0, health=health)
        with contextlib.suppress(StoreUnavailable):
            retry_sync(Answers(*errors), tries, time.sleep)
        health.note_answer()  # of other objects
        return time.now - begin

    down = [ConnectionResetError()] * 99
    assert seconds("a", *down) == 15.5
    assert [seconds(name, *down) for name in "bcd"] == [1.5, 1.5, 1.5]
    assert seconds("e", *down[:3]) == 1.0  # it is answered: a few tries remain
    assert seconds("a") == 0.0
    assert seconds("f", *down) == 15.5
    time.now += retry.OUTAGE
    assert seconds("g", *down) == 15.5


def test_an_object_that_fails_leaves_the_first_attempts_of_others_their_time():
    """A large object that is healthy takes seconds."""
    time, policy = Time(), Retry(deadline=16, first=0.5, most=0.5)
    health = Health(lambda: time.now)
    clock = (lambda: time.now, lambda: 1.0)
    tries = Attempts(policy, "a", repr, *clock, health=health)
    with contextlib.suppress(StoreUnavailable):
        retry_sync(Answers(*[ConnectionResetError()] * 99), tries, time.sleep)
    health.note_answer()

    other = Attempts(policy, "b", repr, *clock, health=health, size=32 * 2**20)

    assert other.limit == 16


def test_a_server_that_drips_gets_as_many_attempts_as_a_silent_one():
    """The limit of an attempt is what it takes in all, and not silence; large ones get more."""
    policy = Retry(deadline=9.0)

    assert policy.limit(0) * retry.TRIES == 9.0
    assert policy.limit(4_000_000) == 5.0
