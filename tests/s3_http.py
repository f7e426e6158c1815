"""Requests and answers of the S3 test server: bytes in, values out, and back. No sockets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

_SCOPE = re.compile(r"Credential=[^,/\s]+/\d+/([^/,]+)/")
_CREDENTIAL = re.compile(r"Credential=([^,\s]+)")
# Of 18 digits at most: no file has more bytes.
_RANGE = re.compile(r"bytes=(?:-[0-9]{1,18}|([0-9]{1,18})-([0-9]{1,18})?)")
_PHRASES = {int(status): status.phrase for status in HTTPStatus}


@dataclass(frozen=True)
class Question:
    """One HTTP request."""

    method: str
    path: str
    """Decoded, with its leading slash."""
    query: dict[str, str]
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes = b""

    @property
    def length(self) -> int:
        """Bytes of the body; ``ValueError`` for what is no number of bytes."""
        length = int(self.headers.get("content-length", 0))
        if length < 0:
            msg = f"a body of {length} bytes"
            raise ValueError(msg)
        return length

    @property
    def waits(self) -> bool:
        """Whether the client sends its body only when asked to."""
        return self.headers.get("expect", "").lower() == "100-continue"

    @property
    def range(self) -> str:
        """The Range header; empty for everything."""
        return self.headers.get("range", "")

    def without_range(self) -> Question:
        """Return the same request, for everything."""
        return replace(self, headers={k: v for k, v in self.headers.items() if k != "range"})

    @property
    def access_key(self) -> str:
        """Who says to have signed it, in a header or in the URL; empty for nobody."""
        credential = self.query.get("X-Amz-Credential", "")
        found = _CREDENTIAL.search(self.headers.get("authorization", ""))
        return (found[1] if found else credential).split("/", 1)[0]

    @property
    def region(self) -> str:
        """For which region it is signed; empty for none."""
        scope = _SCOPE.search(f"{self.headers.get('authorization', '')}")
        return scope[1] if scope else ""

    def with_body(self, body: bytes) -> Question:
        """Return the request with its body, out of the chunks in which signed bodies come."""
        if "aws-chunked" in self.headers.get("content-encoding", ""):
            body = _joined(body)
        return replace(self, body=body) if body else self


@dataclass(frozen=True)
class Answer:
    """One HTTP response: a body, or a part of a file."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    file: str | None = None
    """Where the body is, instead of ``body``."""
    start: int = 0
    """Where in the file it begins."""
    length: int = 0
    """Bytes of the body, as its header says."""
    to_send: int = 0
    """Bytes of the body that are sent."""

    @classmethod
    def of_text(cls, text: str, status: int = 200, kind: str = "application/xml") -> Answer:
        """Return a whole text."""
        body = text.encode()
        headers = {"Content-Type": kind}
        return cls(status, body, headers, length=len(body), to_send=len(body))

    @classmethod
    def of_error(cls, status: int, code: str, message: str = "") -> Answer:
        """Return an error as S3 words it."""
        text = f"<Error><Code>{code}</Code><Message>{escape(message or code)}</Message></Error>"
        return cls.of_text(f'<?xml version="1.0" encoding="UTF-8"?>{text}', status)

    @classmethod
    def of_file(cls, file: str, size: int, etag: str, modified: float, asked: str) -> Answer:
        """Return a file, or the range of it that was asked for; what is no range asks for all."""
        headers = {
            "Content-Type": "binary/octet-stream",
            "Accept-Ranges": "bytes",
            "ETag": f'"{etag}"',
            "Last-Modified": _when(modified),
        }
        if not is_range(asked):
            return cls(200, b"", headers, file, 0, size, size)
        span = parse_range(asked, size)
        if span is None:
            return cls.of_error(416, "InvalidRange", "The requested range is not satisfiable")
        start, stop = span
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return cls(206, b"", headers, file, start, stop - start, stop - start)

    def cut(self, sent: int) -> Answer:
        """Return the same answer, of which only the first bytes are sent."""
        return replace(self, to_send=min(sent, self.length))

    def shortened(self, length: int) -> Answer:
        """Return the same answer with a shorter body whose length says so."""
        return replace(self, length=length, to_send=length)

    def shift(self) -> Answer:
        """Return as many bytes of another range; of a whole file, a range of it."""
        asked = self.headers.get("Content-Range")
        size = int(asked.rpartition("/")[2]) if asked else self.length
        start, count = self.start, self.length
        if start > 0:
            start -= 1
        elif count < size:
            start += 1
        else:
            start, count = 1, max(1, size - 1)
        stop = min(start + count, size)
        headers = {**self.headers, "Content-Range": f"bytes {start}-{max(start, stop - 1)}/{size}"}
        count = stop - start
        return replace(self, status=206, headers=headers, start=start, length=count, to_send=count)

    def content(self) -> bytes:
        """Return the body that is sent."""
        if self.file is None:
            return self.body[: self.to_send]
        with open(self.file, "rb") as file:
            file.seek(self.start)
            return file.read(self.to_send)

    def head(self) -> bytes:
        """Return status line and headers."""
        lines = [f"HTTP/1.1 {self.status} {_PHRASES[self.status]}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Content-Length: {self.length}", "x-amz-request-id: 0", "", ""]
        return "\r\n".join(lines).encode()


@lru_cache(maxsize=1024)
def _when(modified: float) -> str:
    """Return a moment as HTTP writes it."""
    return formatdate(modified, usegmt=True)


def parse_question(head: bytes) -> Question:
    r"""Return a request of its head, without the empty line at the end.

    Examples
    --------
    >>> asked = parse_question(b"GET /b/a%20key?list-type=2 HTTP/1.1\r\nRange: bytes=0-9")
    >>> asked.path, asked.query, asked.range
    ('/b/a key', {'list-type': '2'}, 'bytes=0-9')
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    path, _, query = target.partition("?")
    headers = {name.strip().lower(): v.strip() for name, _, v in (x.partition(":") for x in lines)}
    asked = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
    return Question(method, unquote(path), asked, headers)


def parse_range(asked: str, size: int) -> tuple[int, int] | None:
    """Return the half-open range that a Range header means; None where there is none of it.

    Examples
    --------
    >>> parse_range("bytes=-20", 100), parse_range("bytes=90-199", 100)
    ((80, 100), (90, 100))
    >>> parse_range("bytes=100-", 100) is None
    True
    """
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1 if last else size)
    return (start, stop) if start < stop else None


def is_range(asked: str) -> bool:
    """Whether a Range header asks for bytes as S3 understands it; what does not is for all.

    Examples
    --------
    >>> [is_range(f"bytes={each}") for each in ("0-9", "5-", "-5", "9-0", "a-b")]
    [True, True, True, False, False]
    """
    found = _RANGE.fullmatch(asked)
    return found is not None and (not found[2] or int(found[1]) <= int(found[2]))


def _joined(body: bytes) -> bytes:
    """Return what chunks of ``length;signature CRLF data CRLF`` hold."""
    whole: list[bytes] = []
    at = 0
    while True:
        line = body.index(b"\r\n", at)
        length = int(body[at:line].split(b";", 1)[0], 16)
        if length == 0:
            return b"".join(whole)
        whole.append(body[line + 2 : line + 2 + length])
        at = line + 2 + length + 2
