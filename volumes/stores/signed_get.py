"""GETs of objects in S3, signed and sent here: a sixth of the processor time of s3fs's.

s3fs takes 1 ms of Python for a GET, and botocore nearly all of it: it resolves the endpoint,
checks parameters, signs, and parses answers anew each time. Of the GETs of one bucket only key,
range, date and signature differ. So the first is sent by s3fs, and what botocore made of it is
the pattern of those that follow, with the same credentials and certificates. They go over
connections of our own (:mod:`.http_get`), or where there is a proxy or a bound that the user
set, over those of s3fs.

A pattern is believed only where nothing is left to guess: the request was that of this very call
(a client is shared by all buckets, and many calls are under way), its URL is the bucket's and the
key's to the last character, it holds no header that is not known to stay the same, and what we
sign for it is what botocore signed. Where anything is unusual (another signature than version 4,
a query, versions, access points, directory buckets, acceleration, keys with empty segments, an
answer that is neither the bytes asked for nor a plain failure), s3fs sends the request. Answers
that only it gets make us look again, a few times; then it sends all later ones.
"""

from __future__ import annotations

import re
import ssl
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from inspect import isawaitable
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from .http_get import Connections, UnusualAnswer
from .in_flight import MOST_REQUESTS
from .signed_pattern import PORTS, Credentials, Pattern, range_header, split_url

_EVENT = "before-send.s3.GetObject"
_CODE = re.compile(rb"<Code>(\w{1,64})</Code>")
_ABSENT = ("NoSuchKey", "NoSuchBucket")
# Neither an ARN nor a directory bucket, which have ways of their own.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?<!--x-s3)")
_ODD_SEGMENT = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)")
# How often a request of s3fs is looked at, per bucket: what is refused again and again is its.
_LOOKS = 3


@dataclass
class _Get:
    """A prepared request, as what sends it for botocore looks at one; hooks may change it."""

    url: str
    headers: dict[str, str]
    method: str = "GET"
    body: None = None
    stream_output: bool = True

    def __repr__(self) -> str:
        return "_Get(***)"


class PlainFailure(OSError):
    """An answer that carries no object and means the same to every client."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"the store answered {status} {code}".rstrip())
        self.status = status


@dataclass
class _Bucket:
    """What is known of the GETs of one bucket, through one client."""

    pattern: Pattern | None = None
    """None where s3fs sends."""
    looks: int = _LOOKS
    """How often one of its requests may still be looked at."""
    looking: bool = False
    """Whether somebody does; one at a time."""


# What was learnt, by client of botocore: a new one may have other credentials and another region.
_KNOWN: WeakKeyDictionary[Any, dict[str, _Bucket]] = WeakKeyDictionary()
# Requests that were sent for the call that looks at them. Every call runs in a context of its own.
_SEEN: ContextVar[list[tuple[str, dict[str, Any]]] | None] = ContextVar("_SEEN", default=None)


def can_sign(system: Any) -> bool:
    """Whether a file system is s3fs's own: what others change would be passed by."""
    kind = type(system)
    return (kind.__module__, kind.__name__) == ("s3fs.core", "S3FileSystem")


async def signed_get(
    system: Any, path: str, start: int, stop: int | None, etag: str = ""
) -> bytes | memoryview:
    """Return bytes of an object; raises what s3fs would, or :class:`PlainFailure`.

    Parameters
    ----------
    system
        For which :func:`can_sign` holds.
    path
        Bucket and key.
    start, stop
        In bytes, as in a ``ReadRange``.
    etag
        Of the only version that will do: another is a failure with status 412. Any, if empty.
    """

    async def by_s3fs() -> bytes:
        if etag:
            return await _by_s3fs_if(system, path, range_header(start, stop), etag)
        found: bytes = await system._cat_file(path, start=start or None, end=stop)
        return found

    bucket, _, key = path.partition("/")
    odd = "?versionId=" in key or not _is_plain(bucket, key)
    if odd or (stop is not None and not 0 <= start < stop):
        return await by_s3fs()
    await system.set_session()
    client = await system.get_s3(bucket)
    known = _known(client, bucket)
    pattern = known.pattern
    if pattern is None:
        return await _learnt(client, bucket, key, known, by_s3fs)
    credentials = await _credentials(client) if pattern.region is not None else None
    if pattern.region is not None and credentials is None:
        return await by_s3fs()
    answer = await _sent(client, pattern, key, range_header(start, stop), credentials)
    if answer is None:
        return await by_s3fs()
    if answer.is_for(start, stop):
        if etag and answer.etag not in ("", etag):
            raise PlainFailure(412, "PreconditionFailed")
        return answer.body
    failure = PlainFailure(answer.status, answer.code)
    if answer.status == 404 and answer.code in _ABSENT:
        raise FileNotFoundError(str(failure))
    if answer.status in (416, 429) or answer.status >= 500:
        raise failure
    # Redirected, refused or strange: s3fs knows regions, clocks and words for it.
    found = await by_s3fs()
    # Credentials that ended in the meantime say nothing against the pattern.
    expired = credentials is not None and credentials != await _credentials(client)
    if known.pattern is pattern and not expired:
        known.pattern = None
    return found


async def _by_s3fs_if(system: Any, path: str, asked: str, etag: str) -> bytes:
    """Let s3fs send a request for one version of an object."""
    bucket, key, _ = system.split_path(path)
    more = {"Range": asked} if asked else {}
    answer = await system._call_s3("get_object", Bucket=bucket, Key=key, IfMatch=etag, **more)
    async with answer["Body"] as body:
        found: bytes = await body.read()
    return found


def _known(client: Any, bucket: str) -> _Bucket:
    buckets = _KNOWN.get(client)
    if buckets is None:
        buckets = _KNOWN[client] = {}
    if bucket not in buckets:
        buckets[bucket] = _Bucket()
    return buckets[bucket]


async def _learnt(
    client: Any, bucket: str, key: str, known: _Bucket, by_s3fs: Callable[[], Awaitable[bytes]]
) -> bytes:
    """Let s3fs send a request, and look at it on its way."""
    if known.looks == 0 or known.looking:
        return await by_s3fs()
    client.meta.events.register(_EVENT, _look, unique_id="voxpipe")
    seen: list[tuple[str, dict[str, Any]]] = []
    known.looking = True
    _SEEN.set(seen)
    try:
        found = await by_s3fs()
    finally:
        _SEEN.set(None)
        known.looking = False
    known.looks -= 1
    # The last one: s3fs may have been sent to another region first.
    known.pattern = await _pattern(client, bucket, key, *seen[-1]) if seen else None
    return found


def _look(request: Any, **_: Any) -> None:
    """Note a request of the call in whose context it is sent; for the events of botocore."""
    seen = _SEEN.get()
    if seen is not None:
        seen.append((request.url, dict(request.headers.items())))


async def _pattern(
    client: Any, bucket: str, key: str, url: str, headers: Mapping[str, Any]
) -> Pattern | None:
    """Return the pattern of a request that was sent; None where anything is unclear."""
    found = Pattern.of(url, headers, bucket, key, client.meta.endpoint_url)
    if found is None or _http(client) is None:
        return None
    if found.region is None:
        return found
    credentials = await _credentials(client)
    proven = credentials is not None and found.signs(url, headers, credentials)
    return found if proven else None


class _Answer(NamedTuple):
    """What a store answered."""

    status: int
    body: bytes | memoryview
    range: str
    """Its Content-Range header."""
    etag: str = ""
    """Its ETag header."""

    @property
    def code(self) -> str:
        """What S3 calls a failure; empty where it does not say."""
        found = _CODE.search(self.body[:1024])
        return found[1].decode() if found else ""

    def is_for(self, start: int, stop: int | None) -> bool:
        """Whether it holds the bytes that were asked for, and not others.

        Examples
        --------
        >>> part = _Answer(206, b"abc", "bytes 4-6/9")
        >>> part.is_for(4, 7), part.is_for(0, 3), part.is_for(0, None)
        (True, False, False)
        >>> _Answer(200, b"whole", "").is_for(0, None), _Answer(200, b"whole", "").is_for(1, 3)
        (True, False)
        """
        if not range_header(start, stop):
            return self.status == 200
        begins = start < 0 or self.range.startswith(f"bytes {start}-")
        return self.status == 206 and bool(self.range) and begins


async def _sent(
    client: Any, pattern: Pattern, key: str, asked: str, credentials: Credentials | None
) -> _Answer | None:
    """Send one request over the connections of s3fs; None where a hook of the client answers."""
    now = datetime.now(timezone.utc)
    url, headers = pattern.request(key, asked, credentials, now)
    request = _Get(url, headers)
    # As botocore does before it sends: some look, and a stub of S3 answers.
    replies = client.meta.events.emit(_EVENT, request=request)
    if isawaitable(replies):
        replies = await replies
    if any(reply is not None for _, reply in replies):
        return None
    lane = _lane_of(client, pattern.base) if request.url.startswith(pattern.base) else None
    if lane is not None:
        server, target = split_url(request.url)
        try:
            told = await lane.get(target, {"host": server, **request.headers, **_PLAIN})
        except UnusualAnswer:
            _LANES[client][pattern.base] = None
        else:
            return _Answer(told.status, told.body, *map(told.header, _TOLD))
    return await _sent_by_s3fs(client, request)


async def _sent_by_s3fs(client: Any, request: _Get) -> _Answer:
    """Send one request over the connections of s3fs."""
    answer = await _http(client).send(request)
    try:
        headers = [str(answer.headers.get(name, "")) for name in _TOLD]
        return _Answer(answer.status_code, await answer.content, *headers)
    finally:
        answer.raw.close()  # one that was not read to its end is not used again


# Connections of our own, by client and place; None where those of s3fs are used.
_LANES: WeakKeyDictionary[Any, dict[str, Connections | None]] = WeakKeyDictionary()
_TOLD = ("content-range", "etag")
_PLAIN = {"accept-encoding": "identity", "accept": "*/*"}


def _lane_of(client: Any, base: str) -> Connections | None:
    """Return the connections that a client's GETs below a URL go over; None for those of s3fs."""
    lanes = _LANES.get(client)
    if lanes is None:
        lanes = _LANES[client] = {}
    if base not in lanes:
        lane = lanes[base] = _lane(client, base)
        if lane is not None:
            weakref.finalize(client, lane.close)
    return lanes[base]


def _lane(client: Any, base: str) -> Connections | None:
    """Return connections of our own; None where there is a proxy or a bound."""
    http, config = _http(client), client.meta.config
    limited = config.max_pool_connections < MOST_REQUESTS
    try:
        proxied = http._proxy_config.proxy_url_for(base)
        context = http._sessions[None].connector._ssl
    except (AttributeError, KeyError, TypeError):
        return None
    parts = urlsplit(base)
    secure = parts.scheme == "https"
    # Nobody waits for ever here: who gives no limit has s3fs wait.
    endless = config.connect_timeout is None or config.read_timeout is None
    if endless or limited or proxied or parts.hostname is None or "@" in parts.netloc:
        return None
    if secure and not isinstance(context, ssl.SSLContext):
        return None
    port = parts.port or PORTS[parts.scheme]
    limits = config.connect_timeout, config.read_timeout
    return Connections(parts.hostname, port, limits, context if secure else None)


def _http(client: Any) -> Any:
    """Return what sends the requests of a client of aiobotocore; None if it is another kind."""
    found = getattr(getattr(client, "_endpoint", None), "http_session", None)
    holder = getattr(getattr(client, "_request_signer", None), "_credentials", None)
    usable = type(found).__name__ == "AIOHTTPSession"
    return (
        found if usable and (holder is None or hasattr(holder, "get_frozen_credentials")) else None
    )


async def _credentials(client: Any) -> Credentials | None:
    """Return the credentials that a client uses now; those that expire are made anew by it."""
    holder = client._request_signer._credentials
    if holder is None:
        return None
    frozen = holder.get_frozen_credentials()
    if isawaitable(frozen):
        frozen = await frozen
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def _is_plain(bucket: str, key: str) -> bool:
    """Whether a URL can say what is meant, and every client between here and there leaves it so.

    Examples
    --------
    >>> _is_plain("b", "a/c"), _is_plain("b", ""), _is_plain("b", "a/../c"), _is_plain("b", "a//c")
    (True, False, False, False)
    >>> _is_plain("arn:aws:s3:eu-west-1:1:accesspoint/a", "c"), _is_plain("b--use1--x-s3", "c")
    (False, False)
    """
    if not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
        return False
    return _BUCKET.fullmatch(bucket) is not None and _ODD_SEGMENT.search(key) is None
