"""GETs over HTTP/1.1 with bodies received in place: 0.15 ms for 150 kB, 0.25 through aiohttp.

A store of objects answers a GET with a length and as many bytes, over a connection that stays.
For that a general client does much: it builds objects for request, answer, stream and timers,
and takes the body in pieces of what one look at the socket brought, to be joined afterwards.
Here the socket writes into the memory that is returned. What is not of this shape raises
:class:`UnusualAnswer`, and the caller asks the general client.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_END = b"\r\n\r\n"
# All that anybody here asks of a head.
_HEADERS = re.compile(
    rb"^(connection|content-length|content-range|etag|transfer-encoding):[ \t]*([^\r\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
# Longer heads are not of a store. Also what of a body may arrive with its head, and is copied.
_HEAD_BYTES = 16 * 1024
# Below this a copy costs less than anybody's surprise at bytes that can be written to.
_SMALL_BYTES = 64 * 1024
# Of a body that comes in chunks of unknown number: errors, a few hundred bytes.
_MOST_CHUNKED = 1024 * 1024
# Stores close what was idle for 20 s (S3) or longer; botocore keeps a connection for 12 s.
_MOST_IDLE = 12.0


class UnusualAnswer(Exception):
    """An answer that only a general client reads."""


class HttpAnswer(NamedTuple):
    """What a server answered."""

    status: int
    body: bytes | memoryview
    headers: Mapping[bytes, bytes]
    """By lower-case name: those of connection, length, range and version."""

    def header(self, name: str) -> str:
        """Return a header; empty where there is none."""
        return self.headers.get(name.encode(), b"").decode("latin-1")


class Connections:
    """Connections to one server, each used by one request at a time. Belongs to one event loop.

    Parameters
    ----------
    host, port
        Of the server.
    limits
        Seconds until there is a connection, and without a byte of an answer.
    context
        For TLS; None without.
    """

    def __init__(
        self,
        host: str,
        port: int,
        limits: tuple[float, float],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._host, self._port, self._context = host, port, context
        self._connecting, self._silence = limits
        self._idle: list[_Connection] = []
        self._loop = asyncio.get_running_loop()
        self._owner = os.getpid()

    async def get(self, target: str, headers: Mapping[str, str]) -> HttpAnswer:
        """Return the answer to a GET.

        Parameters
        ----------
        target
            Path and query, as they are sent.
        headers
            Host included.

        Raises
        ------
        OSError
            The server cannot be reached, went away before the end of its answer, or is silent.
        UnusualAnswer
            The body has no length, or is in many chunks; nothing is known but that.
        """
        lines = [f"{name}: {value}" for name, value in headers.items()]
        text = "\r\n".join([f"GET {target} HTTP/1.1", *lines, "", ""])
        if not text.count("\r") == text.count("\n") == len(lines) + 2:
            msg = "a header of a request has more than one line"
            raise ValueError(msg)
        head = text.encode("latin-1")
        while (used := self._free()) is not None:
            try:
                return await self._asked(used, head)
            except _Stale:
                continue  # closed by the server while it was idle: it has not seen the request
        try:
            return await self._asked(await self._opened(), head)
        except _Stale as ended:
            why = ended.args[0] or ConnectionResetError("the server closed a new connection")
            raise why from None

    def close(self) -> None:
        """Close what is idle, from any thread; what is in use goes when it is answered."""
        if self._owner == os.getpid() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _asked(self, connection: _Connection, head: bytes) -> HttpAnswer:
        try:
            answer = await connection.ask(head)
        except BaseException:
            connection.close()  # the rest of its answer may still come
            raise
        if connection.stays:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _free(self) -> _Connection | None:
        """Return the connection that was used last, if it can be used again."""
        while self._idle:
            connection = self._idle.pop()
            if connection.stays and self._loop.time() - connection.idle_since < _MOST_IDLE:
                return connection
            connection.close()
        return None

    async def _opened(self) -> _Connection:
        opening = self._loop.create_connection(
            lambda: _Connection(self._loop, self._silence),
            self._host,
            self._port,
            ssl=self._context,
        )
        _, connection = await asyncio.wait_for(opening, self._connecting)
        return connection


class _Stale(Exception):
    """The connection ended before the first byte of an answer; with the error, or None."""


class _Connection(asyncio.BufferedProtocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence: float) -> None:
        self._loop, self._silence = loop, silence
        self._heard = 0.0
        self.stays = True
        """Whether it can be used again."""
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._head = memoryview(bytearray(_HEAD_BYTES))
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        self._got = 0
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._body: memoryview | None = None
        self._chunked: bytearray | None = None

    async def ask(self, head: bytes) -> HttpAnswer:
        """Send a request and return its answer."""
        if self._transport is None or self._transport.is_closing():
            raise _Stale(None)
        self._begin()
        awaited: asyncio.Future[HttpAnswer] = self._loop.create_future()
        self._answer = awaited
        self._heard = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._heard + self._silence, self._listen)
        self._transport.write(head)
        try:
            return await awaited
        finally:
            # What it raised holds this call, and so what was received of a body.
            del awaited

    def _listen(self) -> None:
        """End the wait of a request whose server has said nothing for too long.

        One timer does for all requests of a connection: it looks when the last one began.
        """
        self._timer = None
        if self._answer is None or self._answer.done():
            return
        due = self._heard + self._silence
        if due <= self._loop.time():
            self._fail(TimeoutError(f"the server sent nothing for {self._silence:g} s"))
        else:
            self._timer = self._loop.call_at(due, self._listen)

    def close(self) -> None:
        """End it at once."""
        self.stays = False
        self._answer = None
        self._begin()  # lets go of what was received
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.stays = False
        if self._timer is not None:
            self._timer.cancel()
        if self._got:
            lost = error or ConnectionResetError("the server closed the connection in an answer")
            self._fail(lost)
        else:
            self._fail(_Stale(error))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return self._body[self._got :]
        return self._head if self._chunked is not None else self._head[self._got :]

    def buffer_updated(self, count: int) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody asked
            return
        try:
            self._received(count)
        except Exception as error:
            self._fail(error)

    def _received(self, count: int) -> None:
        self._got += count
        self._heard = self._loop.time()
        if self._chunked is not None:
            self._chunked += self._head[:count]
            self._end_chunked()
        elif self._body is None:
            self._end_head()
        elif self._got == len(self._body):
            self._end_body()

    def _end_head(self) -> None:
        held = bytes(self._head[: self._got])
        end = held.find(_END)
        if end < 0:
            if self._got == _HEAD_BYTES:
                raise UnusualAnswer
            return
        self._status, headers = parse_head(held[:end])
        self._headers = headers
        rest = held[end + len(_END) :]
        if headers.get(b"connection", b"").lower() == b"close":
            self.stays = False
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._chunked = bytearray(rest)
            self._end_chunked()
            return
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"transfer-encoding" in headers:
            raise UnusualAnswer
        # Not cleared first: every byte is received, or nobody sees it.
        self._body, self._got = np.empty(int(length), np.uint8).data, len(rest)
        if len(rest) > len(self._body):
            raise UnusualAnswer
        self._body[: len(rest)] = rest
        if self._got == len(self._body):
            self._end_body()

    def _end_chunked(self) -> None:
        assert self._chunked is not None
        if len(self._chunked) > _MOST_CHUNKED:
            raise UnusualAnswer
        body = unchunked(bytes(self._chunked))
        if body is not None:
            self._succeed(body)

    def _end_body(self) -> None:
        assert self._body is not None
        whole, self._body = self._body, None
        self._succeed(bytes(whole) if len(whole) < _SMALL_BYTES else whole)

    def _succeed(self, body: bytes | memoryview) -> None:
        # Not kept until the next request: it is as large as its body.
        awaited, self._answer = self._answer, None
        if awaited is not None and not awaited.done():
            awaited.set_result(HttpAnswer(self._status, body, self._headers))
        # TLS asks for a buffer between answers too, and takes an empty one for the end.
        self._begin()

    def _fail(self, error: Exception) -> None:
        awaited, self._answer = self._answer, None
        if awaited is not None and not awaited.done():
            awaited.set_exception(error)


def parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    r"""Return status and headers of an answer, by lower-case name; only those that are used.

    Examples
    --------
    >>> parse_head(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 12 \r\nServer: a")
    (206, {b'content-length': b'12'})
    """
    if not head.startswith(b"HTTP/1.1 ") or not head[9:12].isdigit():
        raise UnusualAnswer
    status = int(head[9:12])
    # Without a body, whatever their headers say; and not what a GET of an object gets.
    if status < 200 or status in (204, 304):
        raise UnusualAnswer
    found = _HEADERS.findall(head)
    return status, {name.lower(): value.rstrip() for name, value in found}


def unchunked(data: bytes) -> bytes | None:
    r"""Return the body of chunks of ``length CRLF data CRLF``; None before their end.

    Examples
    --------
    >>> unchunked(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"), unchunked(b"3\r\nab")
    (b'abcde', None)
    """
    whole: list[bytes] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        try:
            length = int(data[at:end].partition(b";")[0], 16)
        except ValueError:
            raise UnusualAnswer from None
        start = end + 2
        if length == 0:
            if data[start:].startswith(b"\r\n"):
                if len(data) > start + 2:
                    raise UnusualAnswer
                return b"".join(whole)
            if len(data) >= start + 2:
                raise UnusualAnswer  # trailers
            return None
        at = start + length + 2
        if at > len(data):
            return None
        whole.append(data[start : start + length])
    return None
