"""Requests are tried again until a deadline, with a clock that the test turns."""

import asyncio
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core.errors import StoreUnavailable
from voxpipe.volumes.stores.redaction import Secrets
from voxpipe.volumes.stores.remote_answers import NoRanges, WrongAnswer
from voxpipe.volumes.stores.remote_failure import Failure, failure_of
from voxpipe.volumes.stores.retry import Attempts, Retry, default_retry, retried, retried_here


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

    assert retried_here(answers, attempts(policy, time), time.sleep) == "answer"

    assert time.pauses == [1, 2, 4, 4, 4]
    assert answers.calls == 6


def test_the_deadline_ends_it():
    """A store that is down for good is given up at the deadline, in one error that says so."""
    time, answers = Time(), Answers(*[ConnectionResetError("of hidden-key")] * 99)
    policy = Retry(deadline=10, first=1, most=4)

    with pytest.raises(StoreUnavailable) as caught:
        retried_here(answers, attempts(policy, time), time.sleep)

    assert str(caught.value).startswith("reading s3://b/a failed 4 times in 7.0 s, at last with")
    assert "ConnectionResetError: of ***" in str(caught.value)
    assert "VOXPIPE_REMOTE_DEADLINE" in str(caught.value)
    assert caught.value.__cause__ is None
    assert sum(time.pauses) <= 10


@pytest.mark.parametrize("error", [FileNotFoundError(), PermissionError(), ValueError()])
def test_what_would_fail_again_is_not_tried(error):
    """An answer that will not change is raised at once."""
    time, answers = Time(), Answers(error)

    with pytest.raises(type(error)):
        retried_here(answers, attempts(Retry(), time), time.sleep)

    assert (answers.calls, time.pauses) == (1, [])


def test_an_attempt_without_an_answer_is_one_that_failed():
    """A request that hangs is cut off, and sent again."""
    time, calls = Time(), []

    async def call():
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "answer"

    found = asyncio.run(retried(call, attempts(Retry(attempt=0.01), time), time.sleep_later))

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
        (Answered(503), Failure.TRANSIENT),
        (Answered(429), Failure.TRANSIENT),
        (Answered(500), Failure.TRANSIENT),
        (Answered(501), Failure.FINAL),
        (Answered(400), Failure.FINAL),
        (Answered(403), Failure.DENIED),
        (Answered(404), Failure.ABSENT),
        (Answered(416), Failure.BEYOND),
        (TimeoutError(), Failure.TRANSIENT),
        (WrongAnswer(), Failure.WRONG),
        (NoRanges(), Failure.NO_RANGES),
        (OSError(errno.EBUSY, "SlowDown"), Failure.TRANSIENT),
        (OSError(errno.EINVAL, "InvalidRequest"), Failure.FINAL),
        (FileNotFoundError("The specified bucket does not exist"), Failure.FINAL),
    ],
)
def test_what_errors_mean(error, failure):
    """Errors are sorted by the status of the answer, or by their kind."""
    assert failure_of(error) is failure
