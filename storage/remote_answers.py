"""Requests to a remote store, and the check whether an answer fits: the same for every client.

A proxy, a cache or a cut connection gives other bytes under a status that says that all is well:
so span, version and length are compared, before the body where the client tells, and after it.
"""

from __future__ import annotations

import errno
import re
from enum import Enum
from typing import Any, NamedTuple

# Whole objects of which nothing is known: a chunk of 1024 x 1024 x 256 floats, and no film.
MOST_WHOLE = 1024**3
# Stored chunks may be larger than decoded ones: noise that is compressed, and headers.
_SLACK, _LEAST_WHOLE = 2, 1024**2
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


class WrongAnswer(OSError):
    """An answer that holds other bytes than those that were asked for."""


class OtherVersion(WrongAnswer):
    """An answer of another version than the one that was asked for."""

    def __init__(self, message: str, version: tuple[str, int | None, float] | None = None) -> None:
        super().__init__(message)
        self.version = version


class TooLong(OSError):
    """An object of more bytes than anybody needs of what it is."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"it is of {size} bytes, {most} at most")
        self.size, self.most = size, most


class Gone(OtherVersion):
    """No object where there was one before: removed, or hidden by what is on the way."""


class NoRanges(OSError):
    """A server that sends all of an object when asked for a part of it."""


class CompressedAnswer(NoRanges):
    """An answer in a ``Content-Encoding``, of which no byte has its own offset."""


def check_encoding(encoding: str | None, path: str) -> None:
    """Raise ``CompressedAnswer`` for a ``Content-Encoding`` that is not of the file itself.

    Servers announce ``a.nii.gz`` as ``gzip``: the stored bytes are the bytes of that file.
    """
    codings = [coding.strip().lower() for coding in (encoding or "").split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if codings and not (codings in (["gzip"], ["x-gzip"]) and is_gzip_file(path)):
        raise CompressedAnswer(f"it sends {encoding}")


def is_gzip_file(path: str) -> bool:
    """Whether the name of an object says that gzip is its format."""
    return path.partition("?")[0].lower().endswith((".gz", ".mgz", ".tgz"))


class Head(NamedTuple):
    """What an answer says to hold."""

    start: int  # first byte
    stop: int  # one past the last byte
    total: int | None  # bytes of the whole object; None where the answer does not say
    etag: str = ""  # version of the object; empty where the answer does not say
    mtime: float = 0.0
    """When the object was written, in seconds since 1970 by the clock of the store; 0.0 where the
    answer does not say."""

    @classmethod
    def parse(cls, content_range: str, length: int, etag: str, mtime: float = 0.0) -> Head:
        """Return what headers of HTTP say; ``WrongAnswer`` where they make no sense."""
        if not content_range:
            return cls(0, length, length, etag, mtime)
        match = _CONTENT_RANGE.fullmatch(content_range.strip())
        if match is None:
            raise WrongAnswer("the range of an answer makes no sense")
        total = None if match[3] == "*" else int(match[3])
        return cls(int(match[1]), int(match[2]) + 1, total, etag, mtime)


class Answer(NamedTuple):
    """The bytes that a store sent."""

    body: Any  # Bytes-like
    head: Head | None = None  # what it says to hold; None where the client hides it


class RangeRequest(NamedTuple):
    """Bytes of one object, and what is known of it."""

    key: str  # below the root of the store
    start: int = 0  # first byte; counted from the end if it is negative
    stop: int | None = None  # one past the last byte; None for the end
    etag: str = ""  # the only version that will do; any if it is empty
    mtime: float = 0.0
    """When that was written, in seconds since 1970: what tells it where there are no ETags. 0.0 for
    any."""
    size: int | None = None  # bytes of the whole object, where that is known
    most: int = 0  # bytes that a whole object has at most, about; 0 where that is not known
    limit: int = 0  # bytes of which a whole object must not have more; 0 for no such limit

    @property
    def end(self) -> int | None:
        """One past the last byte to ask for of a client that tells nothing before the body."""
        return self.limit + 1 if self.limit and self.is_whole else self.stop

    @property
    def is_whole(self) -> bool:
        """Whether the whole object is asked for, and no range of it."""
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
        """Whether the version that is asked for is the one of which a store tells these facts."""
        return self.size in (None, facts.size) and not self._is_other(facts.etag, facts.mtime)

    def _is_other(self, etag: str, mtime: float) -> bool:
        if self.etag and etag:
            return etag != self.etag
        # Headers of HTTP tell whole seconds.
        return bool(self.mtime and mtime) and int(mtime) != int(self.mtime)

    def check(self, head: Head) -> None:
        """Raise ``WrongAnswer`` or ``TooLong`` unless an answer says to hold what is asked for."""
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
        if last is None:  # neither the object nor the answer says where it ends
            fits = head.start == self.start >= 0 and head.stop > head.start
        else:
            fits = (head.start, head.stop) == (first, last)
        if not fits:
            whole = "" if total is None else f" of {total}"
            raise WrongAnswer(
                f"it sent bytes {head.start} to {head.stop}{whole}, not {first} to {last}"
            )
        most = max(_SLACK * self.most, _LEAST_WHOLE) if self.most else MOST_WHOLE
        if self.stop is None and self.size is None and head.stop - head.start > most:
            raise WrongAnswer(f"it says to be of {head.stop - head.start} bytes, {most} at most")

    def check_body(self, answer: Answer) -> None:
        """Raise ``WrongAnswer`` unless an answer holds what it says, and is what is asked for."""
        length = len(answer.body)
        if answer.head is not None:
            self.check(answer.head)
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
        """Return first byte and end of the answer; None for an end that nobody knows."""
        if total is None:
            return max(0, self.start), self.stop if self.start >= 0 else None
        first = max(0, total + self.start) if self.start < 0 else min(self.start, total)
        last = total if self.stop is None else min(self.stop, total)
        return first, max(first, last)


# What an error of a remote store means: absent, denied, to be tried again, or final.
#
# Clients word the same answer in different ways, and none of them need be installed. So this
# looks at the status of the answer wherever it is written, then at what kind of error it is, by
# name.


class FaultAdvice(Enum):
    """What to do about an error."""

    ABSENT = "there is no such object"
    BEYOND = "the range begins behind the end of the object"
    REFUSAL = "the store refuses"
    BAD_CERTIFICATE = "the certificate of the server is not believed"
    OTHER_VERSION = "the object is another version by now"
    NO_RANGES = "the server sends all of an object when asked for a part"
    WRONG = "the answer is not what was asked for"
    TRANSIENT = "trying again may help"
    FINAL = "trying again would not help"


_ADVICE = "voxpipe_advice"  # where an error keeps what was found
_BY_STATUS = dict.fromkeys((408, 425, 429, 500, 502, 503, 504), FaultAdvice.TRANSIENT)
_BY_STATUS |= {401: FaultAdvice.REFUSAL, 403: FaultAdvice.REFUSAL}
_BY_STATUS |= {412: FaultAdvice.OTHER_VERSION, 416: FaultAdvice.BEYOND}
# 409: S3's word for two that begin at once. 412: the condition does not hold.
_CONFLICT = {409, 412}
# Not EIO: that is s3fs's word for answers that it does not know, whose status was looked at.
_TRANSIENT_ERRNO = {
    getattr(errno, name)
    for name in (
        *("EBUSY", "EREMOTEIO", "EAGAIN", "ETIMEDOUT", "EPIPE", "ECONNRESET", "ECONNABORTED"),
        *("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "ENETRESET"),
    )
    if hasattr(errno, name)
}
# Of aiohttp, botocore, urllib3, requests and azure: the connection failed, or the body was cut.
_TRANSIENT_NAMES = {
    *("ClientPayloadError", "ClientConnectionError", "ContentLengthError"),
    *("HTTPClientError", "EndpointConnectionError", "ConnectionClosedError", "IncompleteRead"),
    *("IncompleteReadError", "ResponseStreamingError", "ProtocolError", "ChunkedEncodingError"),
    *("ServiceRequestError", "ServiceResponseError", "TransportError", "Timeout"),
}
_DENIED_NAMES = {"PermissionDeniedError", "UnauthenticatedError", "NoCredentialsError"}
# The store asks for fewer requests.
_BUSY = {429, 503}
# Nobody listens: of the system, aiohttp, botocore and obstore.
_NOT_REACHED_NAMES = {"ClientConnectorError", "EndpointConnectionError"}
_NO_CONNECTION = re.compile(r"connection ?refused|connect ?error", re.IGNORECASE)
# obstore's: the answer's status is in the text, and where there was none, no answer came.
_STATUS_TEXT = re.compile(r"status code: (\d{3})")
_NO_ANSWER = re.compile(r"HTTP error|error sending request|timed out|connection", re.IGNORECASE)
# obstore's, of an answer whose head is not for the range that was asked for.
_WRONG_HEAD = re.compile(r"Requested \d+\.\.\d+, got|content[-_](range|length)", re.IGNORECASE)
_NO_RANGES = re.compile(r"non-partial response|Range request not supported")
# S3's and STS's words for credentials that were good before, by 400 or 403.
_EXPIRY = re.compile(r"\b(ExpiredToken(Exception)?|TokenRefreshRequired|RequestExpired)\b")
# Of Python's ssl, and rustls'.
_BAD_CERTIFICATE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|InvalidCertificate"
)
_PAGE = re.compile(r"<(!doctype )?html\b", re.IGNORECASE)
# A date that neither obstore nor botocore can read: of a proxy, because stores know how to.
_UNREADABLE_DATE = re.compile(r"^Invalid timestamp |Invalid last modified ")
# S3 answers 400 to a request that came too slowly, and calls it so.
_SLOW_REQUEST = "RequestTimeout"
# An answer to HEAD has no body: 400 may be that of a slow request or of an expired token.
_BARE_400 = re.compile(r"performing HEAD .* 400 Bad Request:? *$|'Code': '400'", re.MULTILINE)


def advice_on(error: BaseException) -> FaultAdvice:
    """Return what an error of a remote store means; looked for once, as eight callers ask."""
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
    if "PreconditionError" in names:  # obstore's
        return FaultAdvice.OTHER_VERSION
    if isinstance(error, PermissionError) or names & _DENIED_NAMES:
        return FaultAdvice.REFUSAL
    # asyncio has a TimeoutError of its own before Python 3.11.
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
    """Whether an error answer of an object store is somebody else's: stores do not send pages."""
    if advice_on(error) is FaultAdvice.TRANSIENT:  # of what stands before a store that is busy
        return False
    if _PAGE.search(_text(error)):
        return True
    # What botocore makes of a body that is not S3's, where there is one.
    response = getattr(cause_of(error).__cause__ or error, "response", None)
    details = response.get("Error", {}) if isinstance(response, dict) else {}
    return details.get("Code") == "" and not details.get("Message")


def wants_pause(error: BaseException) -> bool:
    """Whether the next attempt has to wait: fewer requests are asked for, or nobody listens."""
    if _status(error) in _BUSY or isinstance(error, ConnectionRefusedError):
        return True
    if getattr(error, "errno", None) in (errno.EBUSY, errno.ECONNREFUSED):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if "obstore" in type(error).__module__:
        return bool(_NO_CONNECTION.search(str(error)))
    return bool(names & _NOT_REACHED_NAMES)


def cause_of(error: BaseException) -> BaseException:
    """Return what went wrong: fsspec says of a web server that fails that there is no file."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp"):
        return cause or error
    return error


def has_expired(error: BaseException) -> bool:
    """Whether credentials may have expired since they were accepted; there may be newer ones."""
    text = _text(error)
    return bool(_EXPIRY.search(text) or _BARE_400.search(text))


def _text(error: BaseException) -> str:
    """Return what an error and its cause say, the code of an answer of S3 among it."""
    codes = [
        str(getattr(each, "response", None) or "") for each in (error, error.__cause__) if each
    ]
    return " ".join([str(error), str(error.__cause__ or ""), *codes])


def is_of_no_bucket(error: BaseException) -> bool:
    """Whether there is no such bucket."""
    text = _text(error)
    return "NoSuchBucket" in text or "bucket does not exist" in text.lower()


def is_conflict(error: BaseException) -> bool:
    """Whether an object was not made because there is one, or another is just being made."""
    return isinstance(error, FileExistsError) or _status(error) in _CONFLICT


def _of_status(status: int, error: BaseException) -> FaultAdvice:
    if status in (404, 410):
        # A bucket that is not there is a mistake; an object that is not there may be fill.
        return FaultAdvice.FINAL if is_of_no_bucket(error) else FaultAdvice.ABSENT
    if status == 400 and _SLOW_REQUEST in f"{error} {error.__cause__}":
        return FaultAdvice.TRANSIENT
    return _BY_STATUS.get(status, FaultAdvice.FINAL)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of the answer behind an error, None if there was none."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)  # of botocore
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
    for name in ("status", "status_code", "code"):  # of aiohttp, azure, gcsfs
        status = getattr(error, name, None)
        if isinstance(status, int) and "ContentLengthError" not in type(error).__name__:
            return status
    # Only obstore's errors: a 503 in the text of another may be anything.
    match = _STATUS_TEXT.search(str(error)) if "obstore" in type(error).__module__ else None
    return int(match[1]) if match else None
