"""GETs signed here: the signature that botocore makes, and s3fs wherever anything is unusual."""

import asyncio
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core.errors import AccessDenied, StoreUnavailable
from voxpipe.testing.s3 import Fault
from voxpipe.volumes import signed_get
from voxpipe.volumes.ranges import ReadRange
from voxpipe.volumes.remote import open_remote
from voxpipe.volumes.retry import Retry
from voxpipe.volumes.signed_get import Credentials, Pattern, can_sign, range_header

botocore_auth = pytest.importorskip("botocore.auth")
pytest.importorskip("s3fs")
from botocore.awsrequest import AWSRequest  # noqa: E402
from botocore.credentials import Credentials as Theirs  # noqa: E402

CONTENT = bytes(range(256)) * 8
SECRETS = ("AKIAVERYSECRET", "secret-secret-secret", "token-token-token")
QUICK = Retry(deadline=60.0, first=0.001, most=0.002, attempt=10.0)
NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
# As s3 sends it: over plain http the empty body is signed.
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def store(server, monkeypatch):
    """Return a function that opens the bucket through s3fs, with secrets."""
    monkeypatch.setenv("VOXPIPE_REMOTE", "fsspec")
    (server.bucket / "a").write_bytes(CONTENT)
    (server.bucket / "b c+d~é").write_bytes(CONTENT[::-1])
    options = dict(zip(("key", "secret", "token"), SECRETS, strict=True))

    def open_it(**more):
        found = open_remote("s3://bucket", {**options, "endpoint_url": server.url, **more}, QUICK)
        signed_get._KNOWN.pop(found._system, None)  # fsspec returns the same file system again
        return found

    return open_it


@pytest.fixture
def by_s3fs(monkeypatch):
    """Count the requests that s3fs sends itself."""
    s3fs = pytest.importorskip("s3fs")
    seen = []
    true = s3fs.S3FileSystem._cat_file

    async def counted(self, path, **options):
        seen.append(path)
        return await true(self, path, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_cat_file", counted)
    return seen


@given(
    key=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
    asked=st.sampled_from(["", "bytes=0-9", "bytes=-20"]),
    token=st.sampled_from([None, "a/token+of=some"]),
    host=st.sampled_from(["http://127.0.0.1:9000/b/", "https://b.s3.eu-west-1.amazonaws.com/"]),
    extra=st.dictionaries(
        st.sampled_from(["x-amz-request-payer", "x-amz-expected-bucket-owner"]),
        st.text("abc  1", min_size=1).map(str.strip).filter(bool),
    ),
)
def test_the_signature_is_that_of_botocore(key, asked, token, host, extra):
    """For any key, range, token, host and header, ours and botocore's are the same text."""
    secrets = (SECRETS[0], SECRETS[1], token)
    headers = {"x-amz-content-sha256": EMPTY, "user-agent": "us", **extra}
    signed = tuple(name for name in headers if name != "user-agent")
    pattern = Pattern(host, headers, signed, "eu-west-1")

    url, ours = pattern.request(key, asked, Credentials(*secrets), NOW)

    plain = {**headers, **({"range": asked} if asked else {})}
    request = AWSRequest("GET", url, headers={**plain, "X-Amz-Date": ours["x-amz-date"]})
    signer = botocore_auth.S3SigV4Auth(Theirs(*secrets), "s3", "eu-west-1")
    request.context["timestamp"] = ours["x-amz-date"]
    if token:
        request.headers["X-Amz-Security-Token"] = token
    text = signer.string_to_sign(request, signer.canonical_request(request))
    signer._inject_signature_to_request(request, signer.signature(text, request))
    assert ours["authorization"] == request.headers["Authorization"]


def test_only_the_first_is_sent_by_s3fs(server, store, by_s3fs):
    """Ranges, ends, whole objects and odd keys: one request each, the same bytes."""
    found = store()
    assert bytes(found.get("a")) == CONTENT
    by_s3fs.clear()
    server.forget()

    pieces = found.get_ranges(
        [
            ReadRange("a", 3, 20),
            ReadRange("a", -7),
            ReadRange("a", 2000),
            ReadRange("b c+d~é"),
            ReadRange("nothing"),
            ReadRange("a", 5000, 5001),
        ]
    )

    reverse = CONTENT[::-1]
    assert pieces == [CONTENT[3:20], CONTENT[-7:], CONTENT[2000:], reverse, None, b""]
    assert by_s3fs == []
    assert len(server.requests) == 6


def test_what_botocore_says_is_said(server, store):
    """The user agent, the payer and the token of the first request are those of the next."""
    found = store(requester_pays=True)
    found.get("a")
    (pattern,) = signed_get._KNOWN[found._system].values()

    assert pattern.headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in pattern.signed
    assert not set(pattern.headers) & {"authorization", "range", "x-amz-security-token"}


def test_without_credentials_nothing_is_signed(server, store, by_s3fs):
    """An anonymous bucket is read as it was asked for."""
    found = store(key=None, secret=None, token=None, anon=True)
    found.get("a")
    by_s3fs.clear()

    assert found.get("a") == CONTENT
    assert by_s3fs == []
    assert signed_get._KNOWN[found._system]["bucket"].region is None


def test_what_is_refused_is_left_to_s3fs(server, store, by_s3fs):
    """Where s3fs gets an answer that we did not, it sends everything from then on."""
    found = store()
    found.get("a")
    by_s3fs.clear()
    server.fail(Fault("deny", times=1))

    assert found.get("a") == CONTENT
    assert found.get("a") == CONTENT
    assert len(by_s3fs) == 2


def test_what_is_refused_for_good_is_told(server, store):
    """Both were refused: the error is that of s3fs, without secrets."""
    found = store()
    found.get("a")
    server.fail(Fault("deny"))

    with pytest.raises(AccessDenied) as caught:
        found.get("a")

    assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize("kind", ["slow_down", "error", "reset", "truncate"])
def test_what_passes_is_tried_again(server, store, kind, by_s3fs):
    """Failures that pass are retried by the policy, without s3fs."""
    found = store()
    found.get("a")
    by_s3fs.clear()
    server.forget()
    server.fail(Fault(kind, times=2))

    assert found.get_ranges([ReadRange("a", 0, 2000)]) == [CONTENT[:2000]]
    assert (len(server.requests), by_s3fs) == (3, [])


def test_what_stays_ends_at_the_deadline(server, store):
    """A store that is down is given up; the number of requests is that of the policy."""
    found = store()
    found.get("a")
    found._retry = Retry(deadline=0.5, first=0.2, most=0.2)
    server.forget()
    server.fail(Fault("slow_down"))

    with pytest.raises(StoreUnavailable, match="503 SlowDown"):
        found.get("a")

    assert 1 <= len(server.requests) <= 6


def test_credentials_that_change_are_asked_for_each_time(server, store, monkeypatch):
    """What is made anew by botocore signs the next request."""
    found = store()
    found.get("a")
    seen = []
    true = signed_get._credentials

    async def noted(client):
        seen.append(await true(client))
        return seen[-1]

    monkeypatch.setattr(signed_get, "_credentials", noted)
    found.get("a")

    assert [tuple(each) for each in seen] == [SECRETS]
    assert not any(secret in repr(seen) for secret in SECRETS)


def test_nothing_shows_a_secret(store):
    """Neither the pattern nor what is sent for it says what it was signed with."""
    found = store()
    found.get("a")
    known = dict(signed_get._KNOWN[found._system])
    secrets = Credentials(*SECRETS)
    sent = signed_get._Get(*known["bucket"].request("a", "", secrets, NOW))

    told = f"{known!r} {secrets!r} {sent!r} {found!r}"
    assert not any(secret in told for secret in SECRETS)
    assert SECRETS[1] not in str(vars(known["bucket"]))


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("https://h/b/key?partNumber=1", {}),
        ("https://h/b/another", {}),
        ("https://h/b/key", {"Authorization": "AWS AKIA:signature"}),
        ("https://h/b/key", {"x-amz-s3session-token": "t"}),
    ],
)
def test_what_is_unusual_has_no_pattern(url, headers):
    """Queries, other keys, version 2 and directory buckets are left to s3fs."""
    assert Pattern.of(url, headers, "key") is None


def test_only_s3fs_itself_is_passed_by():
    """A file system that changes s3fs is asked as it wants to be."""
    s3fs = pytest.importorskip("s3fs")

    class Changed(s3fs.S3FileSystem):
        pass

    assert not can_sign(Changed(anon=True, skip_instance_cache=True))
    assert not can_sign(asyncio)
    assert can_sign(s3fs.S3FileSystem(anon=True, skip_instance_cache=True))


@given(start=st.integers(0, 50), length=st.integers(1, 50))
def test_ranges_are_half_open(start, length):
    """The last byte of a Range header is read, that of a range is not."""
    assert range_header(start, start + length) == f"bytes={start}-{start + length - 1}"
