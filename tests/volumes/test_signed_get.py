"""GETs signed here: the signature that botocore makes, and s3fs wherever anything is unusual."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core.errors import AccessDenied, StoreUnavailable, VolumeReadError
from voxpipe.testing.s3 import Fault
from voxpipe.volumes.stores import signed_get
from voxpipe.volumes.stores.ranges import ReadRange
from voxpipe.volumes.stores.remote import open_remote
from voxpipe.volumes.stores.retry import Retry
from voxpipe.volumes.stores.signed_get import can_sign
from voxpipe.volumes.stores.signed_pattern import Credentials, Pattern, range_header

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
        signed_get._KNOWN.clear()  # fsspec returns the same file system again
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


def known(bucket):
    """Return what the one client that there is knows of a bucket."""
    (buckets,) = signed_get._KNOWN.values()
    return buckets[bucket]


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
    pattern = known("bucket").pattern

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
    assert known("bucket").pattern.region is None


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
    pattern = known("bucket").pattern
    secrets = Credentials(*SECRETS)
    sent = signed_get._Get(*pattern.request("a", "", secrets, NOW))

    told = f"{known('bucket')!r} {secrets!r} {sent!r} {found!r}"
    assert not any(secret in told for secret in SECRETS)
    assert SECRETS[1] not in str(vars(pattern))


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("https://h/b/key?partNumber=1", {}),
        ("https://h/b/another", {}),
        ("https://h/b/val/key", {}),
        ("https://h/other/key", {}),
        ("https://h/key", {}),
        ("https://b.elsewhere/key", {}),
        ("https://elsewhere/b/key", {}),
        ("http://h/b/key", {}),
        ("https://h:444/b/key", {}),
        ("https://h/b/key", {"If-None-Match": '"v1"'}),
        ("https://h/b/key", {"X-Amzn-Trace-Id": "Root=1"}),
        ("https://h/b/key", {"Authorization": "AWS AKIA:signature"}),
        ("https://h/b/key", {"x-amz-s3session-token": "t"}),
    ],
)
def test_what_is_unusual_has_no_pattern(url, headers):
    """Queries, other keys, buckets and hosts, version 2, what may be of one request only."""
    assert Pattern.of(url, headers, "b", "key", "https://h") is None


def concurrent(calls):
    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result() for each in [threads.submit(call) for call in calls]]


@pytest.mark.parametrize(
    "urls",
    [
        ("s3://bucket/c1.zarr", "s3://labels/c1.zarr"),
        ("s3://bucket/c1.zarr", "s3://bucket/val/c1.zarr"),
    ],
)
def test_who_reads_at_the_same_time_reads_its_own(server, monkeypatch, urls):
    """Two stores under one client, whose keys end alike: neither learns from the other's."""
    monkeypatch.setenv("VOXPIPE_REMOTE", "fsspec")
    signed_get._KNOWN.clear()
    root = server.bucket.parent
    for url in urls:
        folder = root / url.removeprefix("s3://")
        folder.mkdir(parents=True)
        (folder / "zarr.json").write_bytes(url.encode())
        (folder / "0").write_bytes(url.encode())
    stores = [open_remote(url, server.storage_options, QUICK) for url in urls]
    assert stores[0]._system is stores[1]._system
    server.latency = 0.2  # both are under way before either is answered

    first = concurrent([lambda each=each: each.get("zarr.json") for each in stores])
    server.latency = 0.0
    later = [[each.get("0") for each in stores] for _ in range(2)]

    mine = [url.encode() for url in urls]
    assert [first, *later] == [mine] * 3


def test_a_bucket_itself_is_not_an_object(server, store):
    """Asked for without a key, s3fs refuses; its listing is not taken for bytes."""
    found = store()
    found.get("a")

    with pytest.raises(VolumeReadError):
        found.get("")


@pytest.mark.parametrize("key", ["a/../b", "a//b", "./a", "a/."])
def test_odd_paths_are_left_to_s3fs(store, by_s3fs, key):
    """Segments that something on the way may take out."""
    found = store()
    found.get("a")
    by_s3fs.clear()

    with contextlib.suppress(VolumeReadError):  # this server refuses some of them
        found.get(key)
    assert by_s3fs == [f"bucket/{key}"]


def test_who_is_refused_often_is_left_to_s3fs(server, store, by_s3fs):
    """The pattern is learnt anew a few times, and then no more."""
    found = store()
    found.get("a")
    for _ in range(signed_get._LOOKS - 1):
        server.fail(Fault("deny", times=1))
        assert [found.get("a") for _ in range(2)] == [CONTENT] * 2
    assert known("bucket").pattern is not None
    server.fail(Fault("deny", times=1))
    found.get("a")
    by_s3fs.clear()
    server.forget()

    assert [found.get("a") for _ in range(3)] == [CONTENT] * 3
    assert (len(by_s3fs), len(server.requests)) == (3, 3)


def test_credentials_that_ended_do_not_end_the_pattern(server, store, monkeypatch):
    """Refused under old ones, answered under new ones: the pattern stays."""
    found = store()
    found.get("a")
    pattern = known("bucket").pattern
    true, calls = signed_get._credentials, []

    async def renewed(client):
        calls.append(1)
        now = await true(client)
        return now._replace(token="ended") if len(calls) == 1 else now

    monkeypatch.setattr(signed_get, "_credentials", renewed)
    server.fail(Fault("deny", times=1))

    assert found.get("a") == CONTENT
    assert known("bucket").pattern is pattern


@pytest.fixture
def hooked(store):
    """Return a store and a function that adds a hook on what leaves, to the end of the test."""
    found = store()
    found._system.connect()
    events, hooks = found._system.s3.meta.events, []

    def add(hook):
        hooks.append(hook)
        events.register("before-send.s3", hook)

    yield found, add
    for hook in hooks:
        events.unregister("before-send.s3", hook)


def test_who_watches_sees_every_request(hooked, by_s3fs):
    """Hooks are called for what is signed here as for what s3fs sends."""
    found, add = hooked
    seen = []

    def hook(request, **_):
        seen.append((request.method, request.url.rpartition("/")[2]))

    add(hook)
    assert [found.get("a") for _ in range(3)] == [CONTENT] * 3
    assert (seen, len(by_s3fs)) == ([("GET", "a")] * 3, 1)


def test_a_stub_of_s3_answers(server, hooked):
    """Where a hook takes the place of S3, nothing goes past it."""
    awsrequest = pytest.importorskip("aiobotocore.awsrequest")
    found, add = hooked
    found.get("a")
    server.forget()

    class Raw:
        async def read(self, *_):
            return b"of the stub"

    def stub(request, **_):
        answer = awsrequest.AioAWSResponse(request.url, 200, {}, Raw())
        answer._content = b"of the stub"
        return answer

    add(stub)
    with contextlib.suppress(VolumeReadError):
        found.get("a")
    assert server.requests == []


def test_another_signature_is_not_believed(server, store, by_s3fs, monkeypatch):
    """Where botocore signs with something else than the client's credentials, s3fs sends."""
    found = store()
    true = signed_get._credentials

    async def other(client):
        return (await true(client))._replace(secret_key="of somebody else")

    monkeypatch.setattr(signed_get, "_credentials", other)

    assert [found.get("a") for _ in range(2)] == [CONTENT] * 2
    assert len(by_s3fs) == 2


@pytest.mark.parametrize(
    ("url", "endpoint", "region"),
    [
        ("https://b.s3.amazonaws.com/key", "https://s3.amazonaws.com", "us-east-1"),
        ("https://b.s3.eu-west-1.amazonaws.com/key", "https://s3.amazonaws.com", "eu-west-1"),
        ("https://s3.eu-west-1.amazonaws.com/b/key", "https://s3.amazonaws.com", "eu-west-1"),
        ("http://h:9000/pre/b/key", "http://h:9000/pre/", "us-east-1"),
    ],
)
def test_where_a_bucket_may_be(url, endpoint, region):
    """As a host or in the path, below an endpoint, and where S3 redirects to."""
    signature = f"AWS4-HMAC-SHA256 Credential=AK/20260101/{region}/s3/aws4_request, "
    signature += "SignedHeaders=host;x-amz-content-sha256, Signature=0"
    headers = {"Authorization": signature, "X-Amz-Content-SHA256": EMPTY}

    found = Pattern.of(url, headers, "b", "key", endpoint)

    assert (found.base, found.region) == (url.removesuffix("key"), region)
    assert Pattern.of(url, headers, "c", "key", endpoint) is None
    assert Pattern.of(url, headers, "b", "ey", endpoint) is None


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
