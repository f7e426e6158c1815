"""What the GETs of one bucket in S3 have in common, and their signature: pure functions.

A pattern is taken from one request that botocore made. Whatever is not known to be the same for
each GET of that bucket makes it unusual, and there is no pattern then.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^,]+/\d{8}/(?P<region>[^/]+)/s3/aws4_request, *"
    r"SignedHeaders=(?P<signed>[^,]+), *Signature=\w+"
)
# Said anew for each request, or to retries, or to the check of a sum that is not made here.
_OWN = {
    *("authorization", "range", "if-match"),
    *("x-amz-date", "x-amz-security-token", "x-amz-checksum-mode"),
}
_OWN_SIGNED = tuple(sorted(_OWN - {"authorization"}))
_OF_RETRIES = "amz-sdk-"
# The same for every GET of a bucket. Another may belong to one request only, and s3fs knows which.
_CONSTANT = {
    *("user-agent", "accept-encoding", "x-amz-content-sha256", "x-amz-request-payer"),
    *("x-amz-expected-bucket-owner", "x-amz-server-side-encryption-customer-algorithm"),
    *("x-amz-server-side-encryption-customer-key", "x-amz-server-side-encryption-customer-key-md5"),
}
# Letters that stay as they are in a URL.
_SPOKEN = re.compile(r"[A-Za-z0-9/~._-]*")
PORTS = {"http": 80, "https": 443}
_AMAZON = re.compile(r"s3\.([a-z0-9-]+\.)?amazonaws\.com")


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
    def of(
        cls, url: str, headers: Mapping[str, Any], bucket: str, key: str, endpoint: str
    ) -> Pattern | None:
        """Return the pattern of a request for an object; None where it is unusual.

        Parameters
        ----------
        url, headers
            As botocore sends them.
        bucket, key
            What was asked for.
        endpoint
            URL that the client was made for.

        Examples
        --------
        >>> Pattern.of("https://b.h/an/a%20key", {"User-Agent": "x"}, "b", "an/a key", "https://h")
        Pattern(base='https://b.h/', signed=(), region=None)
        >>> Pattern.of("https://h/b/key?versionId=1", {}, "b", "key", "https://h") is None
        True
        """
        named = _named(headers)
        kept = {
            name: value
            for name, value in named.items()
            if name not in _OWN and not name.startswith(_OF_RETRIES)
        }
        region: str | None = None
        signed: tuple[str, ...] = ()
        if "authorization" in named:
            found = _AUTHORIZATION.fullmatch(named["authorization"])
            if found is None or "x-amz-content-sha256" not in kept:
                return None
            region = found["region"]
            signed = tuple(name for name in found["signed"].split(";") if name in kept)
        known = _bases(endpoint, bucket, region)
        base = next((each for each in known if url == each + quoted(key)), None)
        if base is None or not set(kept) <= _CONSTANT:
            return None
        return cls(base, kept, signed, region)

    def signs(self, url: str, headers: Mapping[str, Any], credentials: Credentials) -> bool:
        """Whether what we sign for a request that botocore signed is what it signed."""
        named = _named(headers)
        told = named.pop("authorization", "")
        return self._authorization(url, named, credentials) == told

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
        # The text of a header that we send is put in order once, for each set of our own.
        told = _told(self.signed, tuple(map(headers.get, self.signed)))
        own = [name for name in _OWN_SIGNED if name in headers]
        names, listed = _listed(("host", *own, *self.signed))
        said = {"host": server, **headers, **told}
        lines = "".join([f"{name}:{said[name]}\n" for name in names])
        canonical = f"GET\n{path}\n\n{lines}\n{listed}\n{headers['x-amz-content-sha256']}"
        moment = headers["x-amz-date"]
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        # A copy of what has begun with the key: unlike ``hmac.digest`` it does not let other
        # threads have the interpreter, for which this one would then wait.
        signing = _signing(credentials, scope).copy()
        signing.update(f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}".encode())
        return (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={listed}, Signature={signing.hexdigest()}"
        )


@lru_cache(maxsize=32)
def _told(names: tuple[str, ...], values: tuple[str, ...]) -> dict[str, str]:
    """Return headers as they are signed."""
    return {name: " ".join(value.split()) for name, value in zip(names, values, strict=True)}


@lru_cache(maxsize=32)
def _listed(names: tuple[str, ...]) -> tuple[list[str], str]:
    """Return the names of headers in order, and in one text."""
    ordered = sorted(set(names))
    return ordered, ";".join(ordered)


@lru_cache(maxsize=8)
def _signing(credentials: Credentials, scope: str) -> hmac.HMAC:
    """Return what signs everything in a scope (day, region, service), with nothing signed yet."""
    signing = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    return hmac.new(signing, digestmod="sha256")


def split_url(url: str) -> tuple[str, str]:
    """Return what a request for a URL says of its server, and the path.

    Examples
    --------
    >>> split_url("https://host:443/b/a%20key"), split_url("http://host:90/k")
    (('host', '/b/a%20key'), ('host:90', '/k'))
    """
    scheme, _, rest = url.partition("://")
    netloc, _, path = rest.partition("/")
    return netloc.removesuffix(f":{PORTS.get(scheme, '')}"), f"/{path}"


def quoted(key: str) -> str:
    """Return a key as botocore writes it into a URL."""
    return key if _SPOKEN.fullmatch(key) else quote(key, safe="/~")


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


def _bases(endpoint: str, bucket: str, region: str | None) -> list[str]:
    """Return the URLs below which the objects of a bucket may lie.

    Examples
    --------
    >>> _bases("http://host:9000/s3/", "b", None)
    ['http://host:9000/s3/b/', 'http://b.host:9000/s3/']
    """
    parts = urlsplit(endpoint)
    if parts.query or parts.fragment or "@" in parts.netloc:
        return []
    places = [parts.netloc]
    if region is not None and _AMAZON.fullmatch(parts.netloc):
        places.append(f"s3.{region}.amazonaws.com")  # where S3 redirects to
    begin = parts.path.rstrip("/")
    found = []
    for place in places:
        found.append(f"{parts.scheme}://{place}{begin}/{bucket}/")
        found.append(f"{parts.scheme}://{bucket}.{place}{begin}/")
    return found


def _named(headers: Mapping[str, Any]) -> dict[str, str]:
    return {name.lower(): _text(value) for name, value in headers.items()}


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
