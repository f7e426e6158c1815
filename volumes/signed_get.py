"""GETs of objects in S3, signed and sent here: a sixth of the processor time of s3fs's.

s3fs takes 1 ms of Python for a GET, and botocore nearly all of it: it resolves the endpoint,
checks parameters, signs, and parses answers anew each time. Of the GETs of one bucket only key,
range, date and signature differ. So the first is sent by s3fs, and what botocore made of it is
the pattern of those that follow, with the same credentials and certificates. They go over
connections of their own (:mod:`.http_get`), or where there is a proxy or a limit that the user
set, over those of s3fs.

Where anything is unusual (another signature than version 4, a query, versions, an answer that is
neither bytes nor a plain failure), s3fs sends the request. Answers that only it gets make it
send all later ones.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from inspect import isawaitable
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from .http_get import Connections, UnusualAnswer
from .in_flight import MOST_REQUESTS

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^,]+/\d{8}/(?P<region>[^/]+)/s3/aws4_request, *"
    r"SignedHeaders=(?P<signed>[^,]+), *Signature=\w+"
)
# Said anew for each request, or to retries, or to the check of a sum that is not made here.
_OWN = {"authorization", "range", "x-amz-date", "x-amz-security-token", "x-amz-checksum-mode"}
_OF_RETRIES = "amz-sdk-"
_EVENT = "before-send.s3.GetObject"
_PORTS = {"http": 80, "https": 443}
_CODE = re.compile(rb"<Code>(\w{1,64})</Code>")


class Credentials(NamedTuple):
    """What a request is signed with. Says nothing of itself."""

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return "Credentials(***)"


@dataclass(frozen=True)
class Pattern:
    """What the GETs of one bucket have in common. Holds no credentials."""

    base: str
    """URL up to the key."""
    headers: Mapping[str, str] = field(repr=False)
    """Sent each time, by lower-case name. Not shown: one may be the key of encrypted objects."""
    signed: tuple[str, ...]
    """Which of them are signed."""
    region: str | None
    """Where the requests go; None where they are not signed."""

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], key: str) -> Pattern | None:
        """Return the pattern of a request for ``key``; None where it is unusual.

        Examples
        --------
        >>> Pattern.of("https://b.host/an/a%20key", {"User-Agent": "x"}, "an/a key")
        Pattern(base='https://b.host/', signed=(), region=None)
        >>> Pattern.of("https://b.host/key?versionId=1", {}, "key") is None
        True
        """
        named = {name.lower(): _text(value) for name, value in headers.items()}
        if not url.endswith("/" + quoted(key)) or "x-amz-s3session-token" in named:
            return None
        kept = {
            name: value
            for name, value in named.items()
            if name not in _OWN and not name.startswith(_OF_RETRIES)
        }
        base = url[: len(url) - len(quoted(key))]
        if "authorization" not in named:
            return cls(base, kept, (), None)
        found = _AUTHORIZATION.fullmatch(named["authorization"])
        if found is None or "x-amz-content-sha256" not in kept:
            return None
        signed = tuple(name for name in found["signed"].split(";") if name in kept)
        return cls(base, kept, signed, found["region"])

    def request(
        self, key: str, asked: str, credentials: Credentials | None, now: datetime
    ) -> tuple[str, dict[str, str]]:
        """Return URL and headers of a GET.

        Parameters
        ----------
        key
            Of the object, in its bucket.
        asked
            The Range header; empty for everything.
        credentials
            None where the pattern is not signed.
        now
            In UTC.
        """
        url, headers = self.base + quoted(key), dict(self.headers)
        if asked:
            headers["range"] = asked
        if self.region is not None and credentials is not None:
            headers["x-amz-date"] = now.strftime("%Y%m%dT%H%M%SZ")
            if credentials.token:
                headers["x-amz-security-token"] = credentials.token
            headers["authorization"] = self._authorization(url, headers, credentials)
        return url, headers

    def _authorization(self, url: str, headers: Mapping[str, str], credentials: Credentials) -> str:
        """Return what proves that whoever holds the credentials sends this: SigV4."""
        server, path = split_url(url)
        told = {"host": server}
        told.update((name, " ".join(headers[name].split())) for name in self.signed)
        own = (name for name in _OWN if name in headers)
        told.update((name, headers[name]) for name in own)
        names = sorted(told)
        listed = ";".join(names)
        lines = "".join(f"{name}:{told[name]}\n" for name in names)
        canonical = f"GET\n{path}\n\n{lines}\n{listed}\n{headers['x-amz-content-sha256']}"
        moment = headers["x-amz-date"]
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        signing = _signing_key(credentials, scope)
        to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}".encode()
        return (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={listed}, Signature={hmac.digest(signing, to_sign, 'sha256').hex()}"
        )


@lru_cache(maxsize=8)
def _signing_key(credentials: Credentials, scope: str) -> bytes:
    """Return what everything in a scope (day, region, service) is signed with."""
    signing = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    return signing


def split_url(url: str) -> tuple[str, str]:
    """Return what a request for a URL says of its server, and the path.

    Examples
    --------
    >>> split_url("https://host:443/b/a%20key"), split_url("http://host:90/k")
    (('host', '/b/a%20key'), ('host:90', '/k'))
    """
    scheme, _, rest = url.partition("://")
    netloc, _, path = rest.partition("/")
    return netloc.removesuffix(f":{_PORTS.get(scheme, '')}"), f"/{path}"


class _Get(NamedTuple):
    """A prepared request, as what sends it for botocore looks at one."""

    url: str
    headers: Mapping[str, str]
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


def quoted(key: str) -> str:
    """Return a key as botocore writes it into a URL."""
    return quote(key, safe="/~")


def range_header(start: int, stop: int | None) -> str:
    """Return the Range header of bytes ``start`` to ``stop``; empty for everything.

    Examples
    --------
    >>> range_header(0, None), range_header(-20, None), range_header(4, 10), range_header(4, None)
    ('', 'bytes=-20', 'bytes=4-9', 'bytes=4-')
    """
    if start < 0:
        return f"bytes={start}"
    if stop is None:
        return f"bytes={start}-" if start else ""
    return f"bytes={start}-{stop - 1}"


# What was learnt, by file system and bucket; None where s3fs has to send everything.
_KNOWN: WeakKeyDictionary[Any, dict[str, Pattern | None]] = WeakKeyDictionary()


def can_sign(system: Any) -> bool:
    """Whether a file system is s3fs's own: what others change would be passed by."""
    kind = type(system)
    return (kind.__module__, kind.__name__) == ("s3fs.core", "S3FileSystem")


async def signed_get(system: Any, path: str, start: int, stop: int | None) -> bytes | bytearray:
    """Return bytes of an object; raises what s3fs would, or :class:`PlainFailure`.

    Parameters
    ----------
    system
        For which :func:`can_sign` holds.
    path
        Bucket and key.
    start, stop
        In bytes, as in a ``ReadRange``.
    """

    async def by_s3fs() -> bytes:
        found: bytes = await system._cat_file(path, start=start or None, end=stop)
        return found

    bucket, key, version = system.split_path(path)
    known = _KNOWN.setdefault(system, {})
    if version is not None or (stop is not None and not 0 <= start < stop):
        return await by_s3fs()
    if bucket not in known:
        return await _learnt(system, bucket, key, known, by_s3fs)
    pattern = known[bucket]
    if pattern is None:
        return await by_s3fs()
    status, body = await _sent(system, bucket, pattern, key, range_header(start, stop))
    if status in (200, 206):
        return body
    code = _CODE.search(body[:1024])
    failure = PlainFailure(status, code[1].decode() if code else "")
    if status == 404:
        raise FileNotFoundError(str(failure))
    if status in (416, 429) or status >= 500:
        raise failure
    # Redirected or refused: s3fs knows regions, clocks and words for it.
    found = await by_s3fs()
    known[bucket] = None
    return found


async def _learnt(
    system: Any,
    bucket: str,
    key: str,
    known: dict[str, Pattern | None],
    by_s3fs: Callable[[], Any],
) -> bytes:
    """Let s3fs send a request, and look at it on its way."""
    await system.set_session()
    client = await system.get_s3(bucket)
    seen: list[Pattern | None] = []

    def look(request: Any, **_: Any) -> None:
        if request.url.partition("?")[0].endswith("/" + quoted(key)):
            seen.append(Pattern.of(request.url, request.headers, key))

    client.meta.events.register(_EVENT, look)
    try:
        found: bytes = await by_s3fs()
    finally:
        client.meta.events.unregister(_EVENT, look)
    known.setdefault(bucket, seen[-1] if seen and _http(client) is not None else None)
    return found


async def _sent(
    system: Any, bucket: str, pattern: Pattern, key: str, asked: str
) -> tuple[int, bytes | bytearray]:
    """Send one request and return status and body."""
    client = await system.get_s3(bucket)
    credentials = await _credentials(client) if pattern.region is not None else None
    now = datetime.now(timezone.utc)
    url, headers = pattern.request(key, asked, credentials, now)
    lanes = _LANES.setdefault(system, {})
    if pattern.base not in lanes:
        lanes[pattern.base] = _lane(client, pattern.base)
        weakref.finalize(system, _close, lanes[pattern.base])
    lane = lanes[pattern.base]
    if lane is not None:
        server, target = split_url(url)
        try:
            return await lane.get(target, {"host": server, **headers, **_PLAIN})
        except UnusualAnswer:
            lanes[pattern.base] = None
    return await _sent_by_s3fs(client, url, headers)


async def _sent_by_s3fs(client: Any, url: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Send one request over the connections of s3fs."""
    answer = await _http(client).send(_Get(url, headers))
    try:
        return answer.status_code, await answer.content
    finally:
        answer.raw.close()  # one that was not read to its end is not used again


# Connections of our own, by file system and server; None where those of s3fs are used.
_LANES: WeakKeyDictionary[Any, dict[str, Connections | None]] = WeakKeyDictionary()
_PLAIN = {"accept-encoding": "identity", "accept": "*/*"}


def _close(lane: Connections | None) -> None:
    if lane is not None:
        lane.close()


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
    if limited or proxied or parts.hostname is None or "@" in parts.netloc:
        return None
    if secure and not isinstance(context, ssl.SSLContext):
        return None
    port = parts.port or _PORTS[parts.scheme]
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


async def _credentials(client: Any) -> Credentials:
    """Return the credentials that a client uses now; those that expire are made anew by it."""
    frozen = client._request_signer._credentials.get_frozen_credentials()
    if isawaitable(frozen):
        frozen = await frozen
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
