"""The body of an HTTP answer as a stream that survives broken connections.

One request brings the whole file, as it is read. Where the connection breaks, the rest is asked
for again from where it broke; the answer must then be of the same version. Where the server
knows ranges the stream can go anywhere, which is another request.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakSet

from ....core.errors import AccessDenied, StreamError, VolumeNotFound
from ....volumes.stores.location import public_name, remote_errors
from ....volumes.stores.redaction import Secrets
from ....volumes.stores.retry import (
    DEADLINE_VARIABLE,
    Attempts,
    Retry,
    default_retry,
    retried_here,
)
from .http_settings import HttpSettings, http_settings

T = TypeVar("T")

_PIECE_BYTES = 256 * 1024
_ABSENT = (404, 410)
_DENIED = (401, 403)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


def http_stream(url: str, options: Mapping[str, Any], timeout: float | None = None) -> Any:
    """Return the file at a URL as a buffered stream.

    Parameters
    ----------
    url
        Of http or https.
    options
        As of :func:`~.http_settings.http_settings`.
    timeout
        Seconds after which a server that does not answer, or keeps failing, is given up: at the
        beginning, and each time that more is read. By default 20 for one attempt, and 30 for
        all; see ``$VOXPIPE_REMOTE_DEADLINE``.

    Raises
    ------
    VolumeNotFound
        There is nothing there.
    AccessDenied
        The server refuses.
    StoreUnavailable
        The server kept failing.
    VolumeReadError
        Any other answer, without credentials.
    """
    if timeout is None:
        stream = HttpStream(url, options, default_retry())
    else:
        # Whoever says how long to wait means the whole wait, and not that of one attempt.
        own = replace(default_retry(), attempt=timeout, deadline=timeout)
        stream = HttpStream(url, options, own, setting="timeout")
    return io.BufferedReader(stream, _PIECE_BYTES)


_OPEN: WeakSet[HttpStream] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the connections of streams that a program leaves open, while somebody can."""
    for stream in list(_OPEN):
        stream.close()


class HttpStream(io.RawIOBase):
    """Reads a URL; one request at a time, and one connection, closed with it."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        retry: Retry,
        setting: str = DEADLINE_VARIABLE,
    ) -> None:
        self.name = public_name(url)
        self._url, self._options, self._retry = url, options, retry
        self._setting = setting
        self._settings: HttpSettings = http_settings(url, options)
        self._owner = os.getpid()
        self._at = 0
        self._size = -1
        self._ranges = False
        self._version = ""
        self._inherited: list[Any] = []
        self._session: Any = None
        self._response: Any = None
        self._tried(self._connect)
        _OPEN.add(self)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say whether the server knows ranges."""
        return self._ranges

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to where the next read begins."""
        if not self._ranges:
            msg = f"the server of {self.name} knows no ranges"
            raise io.UnsupportedOperation(msg)
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        wanted = max(0, base + offset)
        if wanted != self._at:
            self._at = wanted
            self._after_fork()
            self._run(self._disconnect)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the file goes."""
        if self._ranges and self._at >= self._size:
            return 0

        async def piece() -> bytes:
            if self._response is None:
                await self._connect()
            found: bytes = await self._response.content.read(len(buffer))
            return found

        found = self._tried(piece)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def close(self) -> None:
        """Close the connection."""
        # A forked child has neither the loop nor the right to say goodbye; and once the
        # interpreter ends, the loop's thread does not run any more.
        ours = self._owner == os.getpid() and not sys.is_finalizing()
        if not self.closed and self._session is not None and ours:
            self._run(self._disconnect)
        super().close()

    def _after_fork(self) -> None:
        """Leave the connection to the parent process, in a child of it."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._inherited.append((self._session, self._response))
            self._session = self._response = None

    def _tried(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._after_fork()

        def once() -> T:
            try:
                return self._run(call)
            except BaseException:
                # What is left of a broken answer is of no use.
                self._run(self._disconnect)
                raise

        with remote_errors(self._url, self._options):
            describe = Secrets(self._options, self._url).describe
            what = f"reading {self.name}"
            attempts = Attempts(self._retry, what, describe, setting=self._setting)
            return retried_here(once, attempts)

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        import asyncio

        import fsspec.asyn

        loop = fsspec.asyn.get_loop()
        if fsspec.asyn.running_async():
            # The garbage collector runs in any thread, that of the loop too; it cannot wait there.
            asyncio.run_coroutine_threadsafe(call(), loop)
            return None  # type: ignore[return-value]
        done: T = fsspec.asyn.sync(loop, call)
        return done

    async def _connect(self) -> None:
        import aiohttp

        wait = self._retry.attempt
        limits = aiohttp.ClientTimeout(total=None, sock_connect=wait, sock_read=wait)
        session = {"trust_env": True, "timeout": limits, **self._settings.session}
        self._session = aiohttp.ClientSession(auto_decompress=False, **session)
        request = self._settings.request
        # Compressed on the way, it could not go on in the middle.
        headers = {"Accept-Encoding": "identity", **request.get("headers", {})}
        headers["Range"] = f"bytes={self._at}-"
        response = await self._session.get(self._url, **{**request, "headers": headers})
        self._response = response
        if response.status == 416 and self._at == 0:
            self._size, self._ranges = 0, True  # of an empty file there is no range
            return
        if response.status in _ABSENT:
            raise VolumeNotFound(
                f"the server answered {response.status} for {self.name}: there is nothing.",
                do="Check the URL and the storage_options.",
            )
        if response.status in _DENIED:
            raise AccessDenied(
                f"reading {self.name} was refused with status {response.status}.",
                do="Check the credentials: auth=, headers=, or those in the URL.",
            )
        response.raise_for_status()
        await self._begin(response)

    async def _begin(self, response: Any) -> None:
        """Look at an answer, and get to where the next read begins."""
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if self._version and version != self._version:
            do = "Read it again from its beginning."
            raise StreamError(f"{self.name} changed while it was being read.", do=do)
        self._version = version
        told = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        start = 0
        if response.status == 206:
            if told is None or int(told[1]) != self._at:
                msg = f"the server of {self.name} sent another range than it was asked for"
                raise StreamError(msg, do="Copy the file to a local disk.")
            start, self._size, self._ranges = int(told[1]), int(told[2]), True
        while start < self._at:
            passed = await response.content.read(min(_PIECE_BYTES, self._at - start))
            if not passed:
                msg = f"{self.name} became shorter while it was being read"
                raise StreamError(msg, do="Read it again from its beginning.")
            start += len(passed)

    async def _disconnect(self) -> None:
        response, session = self._response, self._session
        self._response = self._session = None
        if response is not None:
            response.close()
        if session is not None:
            await session.close()
