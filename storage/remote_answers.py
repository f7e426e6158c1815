"""Requests to remote stores, checks of their answers, and meanings of their errors.

A proxy, a cache or a cut connection may send wrong bytes with a good status. So span, version and
length are compared for all clients, after the body, and before it if the client reports headers.
"""

from __future__ import annotations

import errno
import re
from enum import Enum
from typing import Any, NamedTuple

# Most bytes of a whole object of unknown size: a chunk of 1024 x 1024 x 256 floats.
MOST_WHOLE = 1024**3
# Stored chunks may be larger than decoded ones: compressed noise, and headers.
_SLACK, _LEAST_WHOLE = 2, 1024**2
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


class WrongAnswer(OSError):
    """Answer with other bytes than the requested ones."""


class OtherVersion(WrongAnswer):
    """Answer with another version than the requested one."""

    def __init__(self, message: str, version: tuple[str, int | None, float] | None = None) -> None:
        super().__init__(message)
        self.version = version


class TooLong(OSError):
    """Object with more bytes than its limit."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"it is of {size} bytes, {most} at most")
        self.size, self.most = size, most


class Gone(OtherVersion):
    """Missing object that existed before: removed, or hidden by a proxy."""


class NoRanges(OSError):
    """Whole object from a server that was asked for a part."""


class CompressedAnswer(NoRanges):
    """Answer in a ``Content-Encoding``, where ranges do not count bytes of the object."""


def check_encoding(encoding: str | None, path: str) -> None:
    """Raise ``CompressedAnswer`` for a ``Content-Encoding`` other than the format of the file.

    Servers announce ``a.nii.gz`` as ``gzip``, although they send the stored bytes.
    """
    codings = [coding.strip().lower() for coding in (encoding or "").split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if codings and not (codings in (["gzip"], ["x-gzip"]) and is_gzip_file(path)):
        raise CompressedAnswer(f"it sends {encoding}")


def is_gzip_file(path: str) -> bool:
    """Whether the name of an object has a suffix of gzip."""
    return path.partition("?")[0].lower().endswith((".gz", ".mgz", ".tgz"))


class Head(NamedTuple):
    """Range and version in the headers of an answer."""

    start: int  # first byte
    stop: int  # one past the last byte
    total: int | None  # bytes of the whole object; None if unknown
    etag: str = ""  # version of the object; empty if unknown
    mtime: float = 0.0
    """Write time in seconds since 1970 by the clock of the store; 0.0 if unknown."""

    @classmethod
    def parse(cls, content_range: str, length: int, etag: str, mtime: float = 0.0) -> Head:
        """Return the head of an HTTP answer; ``WrongAnswer`` for an invalid range."""
        if not content_range:
            return cls(0, length, length, etag, mtime)
        match = _CONTENT_RANGE.fullmatch(content_range.strip())
        if match is None:
            raise WrongAnswer("the range of an answer is invalid")
        total = None if match[3] == "*" else int(match[3])
        return cls(int(match[1]), int(match[2]) + 1, total, etag, mtime)


class Answer(NamedTuple):
    """Answer of a store."""

    body: Any  # bytes-like
    head: Head | None = None  # None if the client hides it


class RangeRequest(NamedTuple):
    """Range of one object, and the known facts about the object."""

    key: str  # below the root of the store
    start: int = 0  # first byte; a negative one counts from the end
    stop: int | None = None  # one past the last byte; None for the end
    etag: str = ""  # required version; empty for any
    mtime: float = 0.0
    """Required write time in seconds since 1970, for stores without ETags; 0.0 for any."""
    size: int | None = None  # bytes of the whole object; None if unknown
    most: int = 0  # approximate most bytes of a whole object; 0 if unknown
    limit: int = 0  # most bytes of a whole object; 0 for no limit

    @property
    def end(self) -> int | None:
        """One past the last byte to request from a client that hides the head."""
        return self.limit + 1 if self.limit and self.is_whole else self.stop

    @property
    def is_whole(self) -> bool:
        """Whether the request is for the whole object."""
        return self.start == 0 and self.stop is None

    @property
    def condition(self) -> str:
        """The ETag for ``If-Match``; a weak one never matches."""
        return "" if self.etag.startswith("W/") else self.etag

    @property
    def range_header(self) -> str:
        """The ``Range`` header of HTTP; empty for everything."""
        if self.is_whole:
            return ""
        if self.start < 0:
            return f"bytes={self.start}"
        return f"bytes={self.start}-{'' if self.stop is None else self.stop - 1}"

    def is_of(self, facts: Any) -> bool:
        """Whether the required version may be the one with these facts."""
        return self.size in (None, facts.size) and not self._is_other(facts.etag, facts.mtime)

    def _is_other(self, etag: str, mtime: float) -> bool:
        if self.etag and etag:
            return etag != self.etag
        # Headers of HTTP have whole seconds.
        return bool(self.mtime and mtime) and int(mtime) != int(self.mtime)

    def check(self, head: Head) -> None:
        """Raise ``WrongAnswer`` or ``TooLong`` unless the head of an answer fits the request."""
        if self.limit and head.stop - head.start > self.limit:
            raise TooLong(head.stop - head.start, self.limit)
        version = (head.etag, head.total, head.mtime)
        if self._is_other(head.etag, head.mtime):
            raise OtherVersion("it is of another version", version)
        if self.size is not None and head.total not in (None, self.size):
            size = f"{head.total} bytes in all, not {self.size}"
            raise OtherVersion(f"it is of {size}", version)
        total = self.size if head.total is None else head.total
        first, last = self._span(total)
        if last is None:  # the size of the object is unknown
            fits = head.start == self.start >= 0 and head.stop > head.start
        else:
            fits = (head.start, head.stop) == (first, last)
        if not fits:
            whole = "" if total is None else f" of {total}"
            span = f"bytes {head.start} to {head.stop}{whole}"
            raise WrongAnswer(f"it sent {span}, not {first} to {last}")
        most = max(_SLACK * self.most, _LEAST_WHOLE) if self.most else MOST_WHOLE
        if self.stop is None and self.size is None and head.stop - head.start > most:
            raise WrongAnswer(f"it reports {head.stop - head.start} bytes, {most} at most")

    def check_length(self, answer: Answer) -> None:
        """Raise an error unless the length of an answer fits its checked head or the request."""
        length = len(answer.body)
        if answer.head is not None:
            size: int | None = answer.head.stop - answer.head.start
        else:
            first, last = self._span(self.size)
            if 0 < self.limit < length:
                raise TooLong(length, self.limit)
            size = None if self.size is None or last is None else last - first
            room = -self.start if self.start < 0 else None
            room = room if self.stop is None else self.stop - self.start
            if room is not None and length > room:
                raise NoRanges(f"{length} bytes instead of {room}")
        if size is not None and length != size:
            raise WrongAnswer(f"it holds {length} of {size} bytes")

    def _span(self, total: int | None) -> tuple[int, int | None]:
        """Return first byte and end of the answer; the end is None if unknown."""
        if total is None:
            return max(0, self.start), self.stop if self.start >= 0 else None
        first = max(0, total + self.start) if self.start < 0 else min(self.start, total)
        last = total if self.stop is None else min(self.stop, total)
        return first, max(first, last)


# Meaning of an error of a remote store: absent, denied, transient, or final.
#
# Clients report the same answer in different ways, and none needs to be installed. So the status of
# the answer counts first, then the name of the class.


class FaultAdvice(Enum):
    """Meaning of an error."""

    ABSENT = "there is no such object"
    BEYOND = "the range begins after the end of the object"
    REFUSAL = "the store refuses"
    BAD_CERTIFICATE = "the certificate of the server is not trusted"
    OTHER_VERSION = "the object is another version by now"
    NO_RANGES = "the server sends all of an object instead of a part"
    WRONG = "the answer does not fit the request"
    TRANSIENT = "trying again may help"
    FINAL = "trying again would not help"


_ADVICE = "voxpipe_advice"  # attribute of errors
_BY_STATUS = dict.fromkeys((408, 425, 429, 500, 502, 503, 504), FaultAdvice.TRANSIENT)
_BY_STATUS |= {401: FaultAdvice.REFUSAL, 403: FaultAdvice.REFUSAL}
_BY_STATUS |= {412: FaultAdvice.OTHER_VERSION, 416: FaultAdvice.BEYOND}
# 409: two writes began at once on S3. 412: the condition does not hold.
_CONFLICT = {409, 412}
# Without EIO, which s3fs raises for unknown answers, whose status counts.
_TRANSIENT_ERRNO = {
    getattr(errno, name)
    for name in (
        *("EBUSY", "EREMOTEIO", "EAGAIN", "ETIMEDOUT", "EPIPE", "ECONNRESET", "ECONNABORTED"),
        *("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "ENETRESET"),
    )
    if hasattr(errno, name)
}
# From aiohttp, botocore, urllib3, requests and azure: the connection failed, or the body was cut.
_TRANSIENT_NAMES = {
    *("ClientPayloadError", "ClientConnectionError", "ContentLengthError"),
    *("HTTPClientError", "EndpointConnectionError", "ConnectionClosedError", "IncompleteRead"),
    *("IncompleteReadError", "ResponseStreamingError", "ProtocolError", "ChunkedEncodingError"),
    *("ServiceRequestError", "ServiceResponseError", "TransportError", "Timeout"),
}
_DENIED_NAMES = {"PermissionDeniedError", "UnauthenticatedError", "NoCredentialsError"}
# The store asks for fewer requests.
_BUSY = {429, 503}
# No server listens: errors of aiohttp and botocore, and texts of obstore.
_NOT_REACHED_NAMES = {"ClientConnectorError", "EndpointConnectionError"}
_NO_CONNECTION = re.compile(r"connection ?refused|connect ?error", re.IGNORECASE)
_REFUSAL = re.compile(r"refused|connect call failed", re.IGNORECASE)
_NO_HOST = re.compile(r"dns error|name or service|getaddrinfo|resolution", re.IGNORECASE)
# obstore writes the status into the text; without a status there was no answer.
_STATUS_TEXT = re.compile(r"status code: (\d{3})")
_NO_ANSWER = re.compile(r"HTTP error|error sending request|timed out|connection", re.IGNORECASE)
# obstore: the head of the answer is for another range.
_WRONG_HEAD = re.compile(r"Requested \d+\.\.\d+, got|content[-_](range|length)", re.IGNORECASE)
_NO_RANGES = re.compile(r"non-partial response|Range request not supported")
# Codes of S3 and STS for expired credentials, with status 400 or 403.
_EXPIRY = re.compile(r"\b(ExpiredToken(Exception)?|TokenRefreshRequired|RequestExpired)\b")
# From Python's ssl and from rustls.
_BAD_CERTIFICATE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|InvalidCertificate"
)
_PAGE = re.compile(r"<(!doctype )?html\b", re.IGNORECASE)
# obstore and botocore read all dates of stores, so an unreadable one is from a proxy.
_UNREADABLE_DATE = re.compile(r"^Invalid timestamp |Invalid last modified ")
# Code of S3, with status 400, for a request that arrived too slowly.
_SLOW_REQUEST = "RequestTimeout"
# An answer to HEAD has no body: 400 may be that of a slow request or of an expired token.
_BARE_400 = re.compile(r"performing HEAD .* 400 Bad Request:? *$|'Code': '400'", re.MULTILINE)


def advice_on(error: BaseException) -> FaultAdvice:
    """Return the meaning of an error of a remote store, kept as an attribute of the error."""
    notes: dict[str, FaultAdvice] = vars(error)
    return notes.get(_ADVICE) or notes.setdefault(_ADVICE, _advice_on(error))


def _advice_on(error: BaseException) -> FaultAdvice:
    if isinstance(error, NoRanges):
        return FaultAdvice.NO_RANGES
    if isinstance(error, WrongAnswer):
        return FaultAdvice.WRONG
    error = cause_of(error)
    if _BARE_400.search(_text(error)):
        return FaultAdvice.WRONG
    if has_expired(error):
        return FaultAdvice.REFUSAL
    if _BAD_CERTIFICATE.search(_text(error)):
        return FaultAdvice.BAD_CERTIFICATE
    if _UNREADABLE_DATE.search(str(error)):
        return FaultAdvice.WRONG
    status = _status(error)
    if status is not None and status >= 300:
        return _of_status(status, error)
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return _of_status(404, error)
    if "PreconditionError" in names:  # from obstore
        return FaultAdvice.OTHER_VERSION
    if isinstance(error, PermissionError) or names & _DENIED_NAMES:
        return FaultAdvice.REFUSAL
    if isinstance(error, (ConnectionError, TimeoutError)) or "TimeoutError" in names:
        return FaultAdvice.TRANSIENT
    if names & _TRANSIENT_NAMES or getattr(error, "errno", None) in _TRANSIENT_ERRNO:
        return FaultAdvice.TRANSIENT
    if "obstore" in type(error).__module__:
        text = str(error)
        if _NO_RANGES.search(text):
            return FaultAdvice.NO_RANGES
        if _WRONG_HEAD.search(text):
            return FaultAdvice.WRONG
        return FaultAdvice.TRANSIENT if _NO_ANSWER.search(text) else FaultAdvice.FINAL
    return FaultAdvice.FINAL


def is_of_page(error: BaseException) -> bool:
    """Whether an error answer is a web page, which object stores do not send."""
    if advice_on(error) is FaultAdvice.TRANSIENT:  # the proxy of a busy store may send pages
        return False
    if _PAGE.search(_text(error)):
        return True
    # botocore's reading of a body from another server than S3.
    response = getattr(cause_of(error).__cause__ or error, "response", None)
    details = response.get("Error", {}) if isinstance(response, dict) else {}
    return details.get("Code") == "" and not details.get("Message")


def wants_pause(error: BaseException) -> bool:
    """Whether the next attempt has to wait: the store is busy, or no server listens."""
    is_busy = _status(error) in _BUSY or getattr(error, "errno", None) == errno.EBUSY
    return is_busy or bool(connection_fault(error))


def connection_fault(error: BaseException) -> str:
    """Return the reason why no server was reached; empty for other errors."""
    error = cause_of(error)
    text = f"{error} {getattr(error, 'kwargs', '')}"  # botocore keeps the original in kwargs
    names = {kind.__name__ for kind in type(error).__mro__}
    is_obstore = "obstore" in type(error).__module__
    is_refused = getattr(error, "errno", None) == errno.ECONNREFUSED
    is_refused = is_refused or isinstance(error, ConnectionRefusedError)
    if not (_NO_CONNECTION.search(text) if is_obstore else names & _NOT_REACHED_NAMES):
        return "the host refuses the connection" if is_refused else ""
    if _NO_HOST.search(text):
        return "no host has this name"
    is_refused = is_refused or _REFUSAL.search(text) is not None
    return f"the host {'refuses the connection' if is_refused else 'cannot be reached'}"


def cause_of(error: BaseException) -> BaseException:
    """Return the real error: fsspec reports a failing web server as a missing file."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp"):
        return cause or error
    return error


def has_expired(error: BaseException) -> bool:
    """Whether credentials may have expired since they were accepted; there may be newer ones."""
    text = _text(error)
    return bool(_EXPIRY.search(text) or _BARE_400.search(text))


def _text(error: BaseException) -> str:
    """Return the texts of an error and its cause, with the answers of S3 that they keep."""
    codes = [str(getattr(e, "response", None) or "") for e in (error, error.__cause__) if e]
    return " ".join([str(error), str(error.__cause__ or ""), *codes])


def is_of_no_bucket(error: BaseException) -> bool:
    """Whether the bucket does not exist."""
    text = _text(error)
    return "NoSuchBucket" in text or "bucket does not exist" in text.lower()


def is_conflict(error: BaseException) -> bool:
    """Whether an object was not written because it exists, or another write is under way."""
    return isinstance(error, FileExistsError) or _status(error) in _CONFLICT


def _of_status(status: int, error: BaseException) -> FaultAdvice:
    if status in (404, 410):
        # A missing bucket is a mistake; a missing object may be fill.
        return FaultAdvice.FINAL if is_of_no_bucket(error) else FaultAdvice.ABSENT
    if status == 400 and _SLOW_REQUEST in f"{error} {error.__cause__}":
        return FaultAdvice.TRANSIENT
    return _BY_STATUS.get(status, FaultAdvice.FINAL)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of the answer that caused an error; None without an answer."""
    for part in (error, error.__cause__):
        response = getattr(part, "response", None)  # of botocore
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
    for name in ("status", "status_code", "code"):  # of aiohttp, azure, gcsfs
        status = getattr(error, name, None)
        if isinstance(status, int) and "ContentLengthError" not in type(error).__name__:
            return status
    # Only for obstore: a 503 in the text of other errors may mean anything.
    match = _STATUS_TEXT.search(str(error)) if "obstore" in type(error).__module__ else None
    return int(match[1]) if match else None
