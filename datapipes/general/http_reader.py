"""Files of web servers as streams."""

from __future__ import annotations

import atexit
import base64
import io
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ...core.call_site import warn
from ...core.errors import AccessDenied, NotOffered, StreamError, VolumeNotFound, add_location
from ...core.settings import REMOTE_DEADLINE
from ...graph import Pipe, Traits
from ...storage.location import Secrets, public_name, remote_errors
from ...storage.retry import Attempts, Retry, default_retry, retry_sync
from .not_offered import DRIVE
from .streams import StoragePipe, T

_SAME = frozenset({"headers", "params", "cookies", "allow_redirects", "max_redirects", "ssl"})
_TRANSLATED_OPTIONS = frozenset({"auth", "verify", "proxies", "proxy", "client_kwargs"})


def http_settings(url: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what goes to the session of aiohttp, and what to each request for ``url``.

    Values of unknown options are not shown.

    Examples
    --------
    >>> http_settings("https://h/a", {"verify": False, "proxies": {"https": "http://p"}})
    ({}, {'proxy': 'http://p', 'ssl': False})
    """
    unknown = sorted(set(options) - _SAME - _TRANSLATED_OPTIONS)
    if unknown:
        names = ", ".join(sorted(_SAME | _TRANSLATED_OPTIONS))
        raise TypeError(f"HTTP has no option {unknown[0]!r}; it has {names}")
    request = {key: value for key, value in options.items() if key in _SAME}
    auth = options.get("auth")
    if isinstance(auth, tuple):
        # A header, because aiohttp has given up its own class; it stays behind on the way to
        # another host, too.
        user, password = auth
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        request["headers"] = {"Authorization": f"Basic {basic}", **(request.get("headers") or {})}
    elif auth is not None:
        request["auth"] = auth
    proxies = options.get("proxies") or {}
    proxy = options.get("proxy") or proxies.get(url.partition("://")[0])
    if proxy:
        request["proxy"] = proxy
    verify = options.get("verify", True)
    if verify is False:
        request["ssl"] = False
    elif isinstance(verify, str):
        import ssl

        request["ssl"] = ssl.create_default_context(cafile=verify)
    return dict(options.get("client_kwargs") or {}), request


# The body of an HTTP answer as a stream that survives broken connections.
#
# One request brings the whole file, as it is read. Where the connection breaks, the rest is asked
# for again from where it broke; the answer must then be of the same version. Where the server
# knows ranges the stream can go anywhere, which is another request.


_PIECE_BYTES = 256 * 1024
_ABSENT = (404, 410)
_REFUSAL_CODES = (401, 403)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


def http_stream(url: str, options: Mapping[str, Any], timeout: float | None = None) -> Any:
    """Return the file at a URL as a buffered stream; by default tried as long as any store is."""
    retry, setting = default_retry(), REMOTE_DEADLINE
    if timeout is not None:
        # Whoever says how long to wait means the whole wait, and not that of one attempt.
        retry, setting = replace(retry, attempt=timeout, deadline=timeout), "timeout"
    return io.BufferedReader(_HttpStream(url, options, retry, setting), _PIECE_BYTES)


_OPEN: WeakSet[_HttpStream] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the connections of streams that a program leaves open, while somebody can."""
    for stream in list(_OPEN):
        stream.close()


class _HttpStream(io.RawIOBase):
    """Reads a URL; one request at a time, and one connection, closed with it."""

    def __init__(self, url: str, options: Mapping[str, Any], retry: Retry, setting: str) -> None:
        self.name = public_name(url)
        self._url, self._options, self._retry = url, options, retry
        self._setting = setting
        self._session_settings, self._request = http_settings(url, options)
        self._owner = os.getpid()
        self._at = 0
        self._size = -1
        self._ranges = False
        self._version = ""
        self._parent_sessions: list[Any] = []
        self._session: Any = None
        self._response: Any = None
        self._try(self._connect)
        _OPEN.add(self)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._ranges

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if not self._ranges:
            raise io.UnsupportedOperation(f"the server of {self.name} knows no ranges")
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        position = max(0, base + offset)
        if position != self._at:
            self._at = position
            self._after_fork()
            self._run(self._disconnect)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._ranges and self._at >= self._size:
            return 0

        async def piece() -> bytes:
            if self._response is None:
                await self._connect()
            chunk: bytes = await self._response.content.read(len(buffer))
            return chunk

        chunk = self._try(piece)
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)

    def close(self) -> None:
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
            self._parent_sessions.append((self._session, self._response))
            self._session = self._response = None

    def _try(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
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
            return retry_sync(once, attempts)

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        import asyncio

        import fsspec.asyn

        loop = fsspec.asyn.get_loop()
        if fsspec.asyn.running_async():
            # The garbage collector runs in any thread, that of the loop too; it cannot wait there.
            asyncio.run_coroutine_threadsafe(call(), loop)
            return None  # type: ignore[return-value]
        result: T = fsspec.asyn.sync(loop, call)
        return result

    async def _connect(self) -> None:
        import aiohttp

        wait = self._retry.attempt
        limits = aiohttp.ClientTimeout(total=None, sock_connect=wait, sock_read=wait)
        session = {"trust_env": True, "timeout": limits, **self._session_settings}
        self._session = aiohttp.ClientSession(auto_decompress=False, **session)
        request = self._request
        # Compressed on the way, it could not go on in the middle.
        headers = {"Accept-Encoding": "identity", **request.get("headers", {})}
        headers["Range"] = f"bytes={self._at}-"
        response = await self._session.get(self._url, **{**request, "headers": headers})
        self._response = response
        if response.status == 416 and self._at == 0:
            self._size, self._ranges = 0, True  # of an empty file there is no range
            return
        if response.status in _ABSENT:
            msg = f"the server answered {response.status} for {self.name}: there is nothing."
            raise VolumeNotFound(msg, do="Check the URL and the storage_options.")
        if response.status in _REFUSAL_CODES:
            msg = f"reading {self.name} was refused with status {response.status}."
            do = "Check the credentials: auth=, headers=, or those in the URL."
            raise AccessDenied(msg, do=do)
        response.raise_for_status()
        await self._begin(response)

    async def _begin(self, response: Any) -> None:
        """Look at an answer, and get to where the next read begins."""
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if self._version and version != self._version:
            do = "Read it again from its beginning."
            raise StreamError(f"{self.name} changed while it was being read.", do=do)
        self._version = version
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        start = 0
        if response.status == 206:
            if match is None or int(match[1]) != self._at:
                msg = f"the server of {self.name} sent another range than it was asked for"
                raise StreamError(msg, do="Copy the file to a local disk.")
            start, self._size, self._ranges = int(match[1]), int(match[2]), True
        while start < self._at:
            chunk = await response.content.read(min(_PIECE_BYTES, self._at - start))
            if not chunk:
                msg = f"{self.name} became shorter while it was being read"
                raise StreamError(msg, do="Read it again from its beginning.")
            start += len(chunk)

    async def _disconnect(self) -> None:
        response, session = self._response, self._session
        self._response = self._session = None
        if response is not None:
            response.close()
        if session is not None:
            await session.close()


_DRIVE = re.compile(r"^https?://(drive|docs)[.]google[.]com(/|$)")


class HttpReader(StoragePipe, form="read_from_http"):
    """Yield ``(URL, stream of bytes)`` for each URL of a web server.

    The file arrives as it is read. Where the connection breaks, the rest is asked for again from
    where it broke. Where the server knows ranges the stream can go back.

    Parameters
    ----------
    parent
        Yields URLs of http or https.
    timeout
        Seconds after which a server that does not answer, or keeps failing, is given up: at the
        beginning, and each time that more is read. By default 20 for one attempt, and 30 for
        all; see ``$VOXPIPE_REMOTE_DEADLINE``.
    skip_on_error
        Whether a URL that cannot be opened is left out, with a warning.
    storage_options, **options
        ``headers``, ``params``, ``cookies``, ``auth`` (a pair), ``verify``, ``proxies``,
        ``allow_redirects``, as of requests. They are never written anywhere.

    Raises
    ------
    VolumeNotFound
        There is nothing at a URL.
    StoreUnavailable
        The server kept failing for that long.
    VolumeReadError
        Any other answer.
    StreamError
        While reading: the file changed in between.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> urls = IterableWrapper(["https://host/a.nii.gz?token=secret"])
    >>> urls.read_from_http(timeout=60, auth=("me", "secret"))
    read_from_http(timeout=60, storage_options={…})
    """

    plain_arguments = frozenset({"timeout", "skip_on_error"})

    def __init__(
        self,
        parent: Pipe,
        timeout: float | None = None,
        skip_on_error: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(parent, options)
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout is a positive number of seconds, got {timeout!r}")
        self.timeout = timeout
        self.skip_on_error = skip_on_error

    @property
    def traits(self) -> Traits:
        return Traits(per_item=not self.skip_on_error, voxels=True)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for url in self.parent:
            try:
                stream = self._open(url)
            except Exception as error:
                if self.skip_on_error:
                    message = Secrets(self.storage_options, url).describe(error)
                    what, *more = message.splitlines()
                    text = f"{what}: {public_name(url)} is left out, skipping to the next"
                    warn("\n".join([text, *more]), UserWarning, self.origin)
                    continue
                raise add_location(error, self.origin)  # noqa: B904  the very same error
            yield url, StreamWrapper(stream, name=public_name(url))
            del stream

    def _open(self, url: str) -> Any:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a URL of http or https expected, got {public_name(url)!r}")
        return http_stream(url, self.storage_options, self.timeout)


class OnlineReader(HttpReader, form="read_from_remote"):
    """Yield ``(URL, stream of bytes)`` for each URL of a web server, as ``read_from_http``.

    Parameters are those of :class:`HttpReader`. Links of Google Drive, which torchdata read here
    too, are refused.

    Raises
    ------
    NotOffered
        A link of Google Drive.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> IterableWrapper(["https://host/a.nii.gz"]).read_from_remote()
    read_from_remote()
    """

    def _open(self, url: str) -> Any:
        if _DRIVE.match(url):
            why, do = DRIVE
            raise NotOffered(why, do=do)
        return super()._open(url)
