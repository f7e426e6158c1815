"""A bucket that is slow, busy, broken or closed: right bytes, or an error that says so in time."""

import os

import pytest
from s3_server import Fault

from voxpipe.core.errors import AccessDenied, StoreUnavailable, VolumeNotFound
from voxpipe.storage.in_flight import MOST_REQUESTS
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.remote import open_remote
from voxpipe.storage.retry import Retry

CONTENT = os.urandom(300_000)
QUICK = Retry(deadline=60.0, first=0.001, most=0.002, attempt=10.0)
SECRETS = ("AKIAVERYSECRET", "secret-secret-secret", "token-token-token")


@pytest.fixture
def read(server, client):
    """Return a function that reads a range of a stored object."""
    (server.bucket / "a").write_bytes(CONTENT)
    options = dict(zip(("key", "secret", "token"), SECRETS, strict=True))

    def read(retry=QUICK, bucket="bucket"):
        url, endpoint = f"s3://{bucket}", {"endpoint_url": server.url}
        store = open_remote(url, {**options, **endpoint}, retry)
        server.forget()
        return bytes(store.get_ranges([ReadRange("a", 1000, 280_000)])[0])

    return read


@pytest.mark.parametrize("kind", ["slow_down", "error", "reset", "truncate"])
def test_what_passes_is_not_noticed(server, read, kind):
    """Two failures, and the third answer is right."""
    server.fail(Fault(kind, times=2))

    assert read() == CONTENT[1000:280_000]
    assert len(server.requests) == 3


def test_an_answer_that_never_comes(server, read):
    """A request that hangs is cut off, and sent again."""
    server.fail(Fault("hang", times=1))

    assert read(Retry(first=0.001, attempt=0.5)) == CONTENT[1000:280_000]
    assert len(server.requests) == 2


@pytest.mark.parametrize("kind", ["slow_down", "reset", "truncate"])
def test_what_stays_is_told_at_the_deadline(server, read, kind):
    """The error says what, how often and how long; requests do not multiply."""
    read()  # to make a client takes longer than the deadline on a busy machine
    server.fail(Fault(kind))

    with pytest.raises(StoreUnavailable, match="reading s3://bucket/a failed") as caught:
        read(Retry(deadline=1.0, first=0.2, most=0.2))

    # Pauses last at least half of 0.2 s.
    assert 1 <= len(server.requests) <= 11
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_what_is_refused_is_told_at_once(server, read):
    """An error that is a PermissionError, after two answers; a third looks for a redirect."""
    server.fail(Fault("deny"))

    with pytest.raises(AccessDenied, match="reading s3://bucket/a was refused"):
        read()

    assert len(server.requests) == 3


def test_a_bucket_that_is_not_there_is_told_at_once(server, read):
    """A wrong bucket is no chunk that is only fill."""
    with pytest.raises(VolumeNotFound, match="s3://elsewhere"):
        read(bucket="elsewhere")

    assert len(server.requests) == 1


def test_no_flood(server, client):
    """However many ranges are asked for, so many requests are under way."""
    (server.bucket / "a").write_bytes(CONTENT)
    server.latency = 0.01
    store = open_remote("s3://bucket", server.storage_options, QUICK)

    found = store.get_ranges([ReadRange("a", n, n + 10) for n in range(3 * MOST_REQUESTS)])

    assert [bytes(each) for each in found[:2]] == [CONTENT[:10], CONTENT[1:11]]
    assert 2 < server.most_in_flight <= MOST_REQUESTS


def test_secrets_are_nowhere(server, read, caplog, monkeypatch):
    """Neither reprs nor logs nor the errors of a server that quotes them show credentials."""
    caplog.set_level("DEBUG", "voxpipe")
    server.fail(Fault("deny"))
    options = {"key": SECRETS[0], "secret": SECRETS[1], "endpoint_url": server.url}
    with pytest.raises(AccessDenied) as caught:
        read()
    monkeypatch.delenv("VOXPIPE_REMOTE")  # a user in the URL is fsspec's
    store = open_remote("s3://user:password1@bucket", options)

    told = (
        f"{store!r} {store.name} {caught.value} {caught.value!r} {vars(caught.value)} {caplog.text}"
    )
    assert not any(secret in told for secret in (*SECRETS, "password1"))
