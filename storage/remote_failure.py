"""What an error of a remote store means: absent, denied, to be tried again, or final.

Clients word the same answer in different ways, and none of them need be installed. So this
looks at the status of the answer wherever it is written, then at what kind of error it is, by
name.
"""

from __future__ import annotations

import errno
import re
from enum import Enum

from .remote_answers import NoRanges, WrongAnswer


class Failure(Enum):
    """What to do about an error."""

    ABSENT = "there is no such object"
    BEYOND = "the range begins behind the end of the object"
    DENIED = "the store refuses"
    UNTRUSTED = "the certificate of the server is not believed"
    CHANGED = "the object is another version by now"
    NO_RANGES = "the server sends all of an object when asked for a part"
    WRONG = "the answer is not what was asked for"
    TRANSIENT = "trying again may help"
    FINAL = "trying again would not help"


_DENIED = {401, 403}
# 409: S3's word for two that begin at once. 412: the condition does not hold.
_CONFLICT = {409, 412}
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
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
_NOT_REACHED = re.compile(r"connection ?refused|connect ?error", re.IGNORECASE)
# obstore's: the answer's status is in the text, and where there was none, no answer came.
_STATUS_TEXT = re.compile(r"status code: (\d{3})")
_NO_ANSWER = re.compile(r"HTTP error|error sending request|timed out|connection", re.IGNORECASE)
# obstore's, of an answer whose head is not for the range that was asked for.
_WRONG_HEAD = re.compile(r"Requested \d+\.\.\d+, got|content[-_](range|length)", re.IGNORECASE)
_NO_RANGES = re.compile(r"non-partial response|Range request not supported")
# S3's and STS's words for credentials that were good before, by 400 or 403.
_EXPIRED = re.compile(r"\b(ExpiredToken(Exception)?|TokenRefreshRequired|RequestExpired)\b")
# Of Python's ssl, and rustls'.
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|InvalidCertificate")
_PAGE = re.compile(r"<(!doctype )?html\b", re.IGNORECASE)
# A date that neither obstore nor botocore can read: of a proxy, because stores know how to.
_UNREADABLE_DATE = re.compile(r"^Invalid timestamp |Invalid last modified ")
# S3 answers 400 to a request that came too slowly, and calls it so.
_SLOW_REQUEST = "RequestTimeout"


def failure_of(error: BaseException) -> Failure:
    """Return what an error of a remote store means.

    Examples
    --------
    >>> failure_of(ConnectionResetError()), failure_of(FileNotFoundError())
    (<Failure.TRANSIENT: 'trying again may help'>, <Failure.ABSENT: 'there is no such object'>)
    >>> failure_of(ValueError("no such option"))
    <Failure.FINAL: 'trying again would not help'>
    """
    if isinstance(error, NoRanges):
        return Failure.NO_RANGES
    if isinstance(error, WrongAnswer):
        return Failure.WRONG
    error = told_of(error)
    if has_expired(error):
        return Failure.DENIED
    if _UNTRUSTED.search(_text(error)):
        return Failure.UNTRUSTED
    if _UNREADABLE_DATE.search(str(error)):
        return Failure.WRONG
    status = _status(error)
    if status is not None and status >= 300:
        return _of_status(status, error)
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return _of_status(404, error)
    if "PreconditionError" in names:  # obstore's
        return Failure.CHANGED
    if isinstance(error, PermissionError) or names & _DENIED_NAMES:
        return Failure.DENIED
    # asyncio has a TimeoutError of its own before Python 3.11.
    if isinstance(error, (ConnectionError, TimeoutError)) or "TimeoutError" in names:
        return Failure.TRANSIENT
    if names & _TRANSIENT_NAMES or getattr(error, "errno", None) in _TRANSIENT_ERRNO:
        return Failure.TRANSIENT
    if "obstore" in type(error).__module__:
        return _of_obstore(str(error))
    return Failure.FINAL


def is_of_page(error: BaseException) -> bool:
    """Whether an error answer of an object store is somebody else's: stores do not send pages.

    Examples
    --------
    >>> is_of_page(PermissionError("403 Forbidden: <Error><Code>AccessDenied</Code></Error>"))
    False
    >>> is_of_page(PermissionError("403 Forbidden: <!DOCTYPE html><html>Please log in"))
    True
    """
    if failure_of(error) is Failure.TRANSIENT:  # of what stands before a store that is busy
        return False
    if _PAGE.search(_text(error)):
        return True
    # What botocore makes of a body that is not S3's, where there is one.
    response = getattr(told_of(error).__cause__ or error, "response", None)
    found = response.get("Error", {}) if isinstance(response, dict) else {}
    return found.get("Code") == "" and not found.get("Message")


def wants_pause(error: BaseException) -> bool:
    """Whether the next attempt has to wait: fewer requests are asked for, or nobody listens.

    Examples
    --------
    >>> wants_pause(OSError(errno.EBUSY, "SlowDown")), wants_pause(ConnectionResetError())
    (True, False)
    """
    if _status(error) in _BUSY or isinstance(error, ConnectionRefusedError):
        return True
    if getattr(error, "errno", None) in (errno.EBUSY, errno.ECONNREFUSED):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if "obstore" in type(error).__module__:
        return bool(_NOT_REACHED.search(str(error)))
    return bool(names & _NOT_REACHED_NAMES)


def _of_obstore(text: str) -> Failure:
    """Return what a failure without a status means."""
    if _NO_RANGES.search(text):
        return Failure.NO_RANGES
    if _WRONG_HEAD.search(text):
        return Failure.WRONG
    return Failure.TRANSIENT if _NO_ANSWER.search(text) else Failure.FINAL


def told_of(error: BaseException) -> BaseException:
    """Return what went wrong: fsspec says of a web server that fails that there is no file."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp"):
        return cause or error
    return error


def has_expired(error: BaseException) -> bool:
    """Whether credentials were refused that were good before; there may be newer ones.

    Examples
    --------
    >>> has_expired(PermissionError("AccessDenied")), has_expired(OSError("... ExpiredToken ..."))
    (False, True)
    """
    return bool(_EXPIRED.search(_text(error)))


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
    """Whether an object was not made because there is one, or another is just being made.

    Examples
    --------
    >>> is_conflict(FileExistsError()), is_conflict(PermissionError())
    (True, False)
    """
    return isinstance(error, FileExistsError) or _status(error) in _CONFLICT


def _of_status(status: int, error: BaseException) -> Failure:
    if status in (404, 410):
        # A bucket that is not there is a mistake; an object that is not there may be fill.
        return Failure.FINAL if is_of_no_bucket(error) else Failure.ABSENT
    if status == 412:
        return Failure.CHANGED
    if status == 416:
        return Failure.BEYOND
    if status in _DENIED:
        return Failure.DENIED
    if status == 400 and _SLOW_REQUEST in f"{error} {error.__cause__}":
        return Failure.TRANSIENT
    return Failure.TRANSIENT if status in _TRANSIENT else Failure.FINAL


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of the answer behind an error, None if there was none."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)  # of botocore
        if isinstance(response, dict):
            told = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(told, int):
                return told
    for name in ("status", "status_code", "code"):  # of aiohttp, azure, gcsfs
        told = getattr(error, name, None)
        if isinstance(told, int) and "ContentLengthError" not in type(error).__name__:
            return told
    # Only obstore's errors: a 503 in the text of another may be anything.
    found = _STATUS_TEXT.search(str(error)) if "obstore" in type(error).__module__ else None
    return int(found[1]) if found else None
