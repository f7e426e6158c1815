"""Files of web servers as streams."""

from __future__ import annotations

import io
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from email.message import Message
from functools import partial
from itertools import islice
from threading import Event
from typing import Any
from urllib.error import HTTPError

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ...core.call_site import warn
from ...core.errors import AccessDenied, NotOffered, StreamError, VolumeNotFound, add_location
from ...core.settings import REMOTE_DEADLINE
from ...core.validate import validate_int
from ...datapipes.tensors import BUFFER_BYTES
from ...graph import Pipe, Traits
from ...storage.location import Secrets, public_name, remote_errors
from ...storage.remote import Seekable
from ...storage.remote_answers import check_encoding
from ...storage.retry import Attempts, Retry, default_retry, retry_sync
from .daemon_threads import Threads
from .not_offered import DRIVE
from .streams import StoragePipe, T

OPTIONS = {"allow_redirects", "auth", "cert", "cookies", "headers", "params", "proxies", "verify"}
"""Options of ``requests`` that ``storage_options`` may hold for a web server."""
_PIECE_BYTES = 256 * 1024
_ABSENT = (404, 410)
_REFUSAL_CODES = (401, 403)
_BEYOND = 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


def http_stream(
    url: str,
    options: Mapping[str, Any],
    timeout: float | None = None,
    buffer: int = _PIECE_BYTES,
    stop: Event | None = None,
) -> Any:
    """Return the file at a URL as a buffered stream; by default tried as long as any store is.

    After ``stop`` is set, no attempt follows a failed one.
    """
    retry, setting = default_retry(), REMOTE_DEADLINE
    if timeout is not None:
        # A timeout of the user is for the whole wait, not for one attempt.
        retry, setting = replace(retry, attempt=timeout, deadline=timeout), "timeout"
    stream = _HttpStream(url, options, retry, setting, stop or Event())
    return io.BufferedReader(stream, buffer)


class _HttpStream(Seekable):
    """Reads a URL; one request at a time, and one connection, closed with it.

    One request brings the whole file, as it is read. Where the connection breaks, the rest is
    requested from there on; the answer must then be of the same version. Where the server knows
    ranges the stream can go anywhere, with another request.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any], retry: Retry, setting: str, stop: Event
    ) -> None:
        super().__init__(-1)  # the size of the file; -1 where the server gives none
        self._stop = stop
        self.name = public_name(url)
        self._url, self._options, self._retry, self._setting = url, options, retry, setting
        if unknown := sorted(set(options) - OPTIONS):
            names = ", ".join(sorted(OPTIONS))
            raise TypeError(f"HTTP has no option {unknown[0]!r}; it has {names}")
        self._owner = os.getpid()
        self._ranges = False
        self._version = ""
        self._response: Any = None
        self._try(self._connect)

    def seekable(self) -> bool:
        return self._ranges

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if not self._ranges:
            raise io.UnsupportedOperation(f"the server of {self.name} knows no ranges")
        before = self._at
        if super().seek(offset, whence) != before:
            self._disconnect()
        return self._at

    def readinto(self, buffer: Any) -> int:
        if 0 <= self._size <= self._at:
            return 0
        chunk = self._try(partial(self._piece, len(buffer)))
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)

    def close(self) -> None:
        self._disconnect()
        super().close()

    def _try(self, call: Callable[[], T]) -> T:
        from requests import ConnectionError as NoConnection

        def once() -> T:
            try:
                if self._stop.is_set():
                    raise StreamError(f"{self.name} is no longer needed.")
                return call()
            except BaseException as error:
                self._disconnect()  # the rest of a broken answer is of no use
                if isinstance(error, NoConnection):  # which is no ConnectionError of Python
                    raise ConnectionError(str(error)) from None
                raise

        with remote_errors(self._url, self._options):
            describe = Secrets(self._options, self._url).describe
            what = f"reading {self.name}"
            attempts = Attempts(self._retry, what, describe, setting=self._setting)
            return retry_sync(once, attempts, self._stop.wait)

    def _piece(self, size: int) -> bytes:
        if self._owner != os.getpid():  # a forked child has a connection of its own
            self._owner = os.getpid()
            self._disconnect()
        if self._response is None:
            self._connect()
        chunk: bytes = self._response.raw.read(size)
        if not chunk and self._at < self._size:
            raise ConnectionResetError("the connection ended early")
        return chunk

    def _connect(self) -> None:
        import requests

        # A compressed answer could not be continued in its middle.
        headers = {"Accept-Encoding": "identity", **(self._options.get("headers") or {})}
        options = {**self._options, "headers": {**headers, "Range": f"bytes={self._at}-"}}
        wait = self._retry.attempt
        self._response = requests.get(self._url, stream=True, timeout=wait, **options)
        status = self._response.status_code
        if status == _BEYOND and self._at == 0:
            self._size, self._ranges = 0, True  # an empty file has no range
            return
        if status in _ABSENT:
            msg = f"the server answered {status} for {self.name}: there is nothing."
            raise VolumeNotFound(msg, do="Check the URL and the ⟦storage_options⟧.")
        if status in _REFUSAL_CODES:
            msg = f"reading {self.name} was refused with status {status}."
            do = "Check the credentials: auth=, headers=, or those in the URL."
            raise AccessDenied(msg, do=do)
        if status >= 400:
            raise HTTPError(self.name, status, self._response.reason, Message(), None)
        self._begin(self._response)

    def _begin(self, response: Any) -> None:
        """Check an answer, and skip to the place of the next read."""
        check_encoding(response.headers.get("Content-Encoding"), self._url)
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        rest, before = self._at, (self._version, self._size)
        if response.status_code == 206:
            if match is None or int(match[1]) != self._at:
                msg = f"the server of {self.name} sent another range than it was asked for"
                raise StreamError(msg, do="Copy the file to a local disk.")
            rest, self._size, self._ranges = 0, int(match[2]), True
        elif length := response.headers.get("Content-Length"):
            self._size = int(length)
        self._version = version
        if (before[0] and version != before[0]) or 0 <= before[1] != self._size:
            do = "Read it again from its beginning."
            raise StreamError(f"{self.name} changed while it was being read.", do=do)
        while rest:
            chunk = response.raw.read(min(_PIECE_BYTES, rest))
            if not chunk:
                msg = f"{self.name} became shorter while it was being read"
                raise StreamError(msg, do="Read it again from its beginning.")
            rest -= len(chunk)

    def _disconnect(self) -> None:
        response, self._response = getattr(self, "_response", None), None
        if response is not None:
            response.close()


_DRIVE = re.compile(r"^https?://(drive|docs)[.]google[.]com(/|$)")


class HttpReader(StoragePipe, form="read_from_http"):
    """Yield ``(URL, stream of bytes)`` for each URL of a web server.

    The file arrives as it is read. Where the connection breaks, the rest is requested again from
    there on. Where the server knows ranges the stream can go back.

    - ``timeout``: seconds after which a server that does not answer, or keeps failing, is given up:
      at the beginning, and each time that more is read. By default 20 for one attempt, and 30 for
      all; see ``$VOXPIPE_REMOTE_DEADLINE``.
    - ``skip_on_error``: Whether a URL that cannot be opened is left out, with a warning.
    - ``max_concurrency``: Files that are requested at once, in threads; their order is kept. An
      error is raised, or left out, when it is the turn of its file. When the pass ends or is
      abandoned, requests end as calls of ``threadpool_map`` do.
    - ``buffer_bytes``: Bytes of all waiting files.
    - ``storage_options``, or plain keywords: ``headers``, ``params``, ``cookies``, ``auth`` (a
      pair), ``verify``, ``cert``, ``proxies``, ``allow_redirects``, as of requests. They are never
      written anywhere.

    Raises
    ------
    VolumeNotFound, StoreUnavailable, VolumeReadError
        There is nothing at a URL, the server kept failing for that long, or any other answer.
    StreamError
        While reading: the file changed in between.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> urls = IterableWrapper(["https://host/a.nii.gz?token=secret"])
    >>> urls.read_from_http(timeout=60, auth=("me", "secret"))
    read_from_http(timeout=60, storage_options={…})
    """

    plain_arguments = frozenset({"timeout", "skip_on_error", "max_concurrency", "buffer_bytes"})

    def __init__(
        self,
        parent: Pipe,
        timeout: float | None = None,
        skip_on_error: bool = False,
        *,
        max_concurrency: int = 1,
        buffer_bytes: int = BUFFER_BYTES,
        **options: Any,
    ) -> None:
        super().__init__(parent, options)
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout is a positive number of seconds, got {timeout!r}")
        self.timeout = timeout
        self.skip_on_error = skip_on_error
        self.max_concurrency = validate_int("max_concurrency", max_concurrency, least=1)
        self.buffer_bytes = validate_int("buffer_bytes", buffer_bytes, least=1, unit="bytes")

    @property
    def traits(self) -> Traits:
        ahead = self.max_concurrency > 1
        return Traits(per_item=not self.skip_on_error, voxels=True, ahead=ahead)

    def _requests(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield each URL with a function that returns its stream."""
        if self.max_concurrency == 1:
            yield from ((url, partial(self._open, url)) for url in self.parent)
            return
        pool = Threads(self.max_concurrency, thread_name_prefix=self.form_name)
        pending: deque[tuple[str, Future[Any], Event]] = deque()
        urls = iter(self.parent)
        try:
            while True:
                for url in islice(urls, self.max_concurrency - len(pending)):
                    stop = Event()
                    pending.append((url, pool.submit(self._open_ahead, url, stop), stop))
                if not pending:
                    return
                url, stream, _ = pending.popleft()
                yield url, stream.result
                del stream
        finally:
            for *_, stop in pending:
                stop.set()
            pool.stop()
            for _, stream, _ in pending:
                if stream.done() and not (stream.cancelled() or stream.exception()):
                    stream.result().close()

    def _open_ahead(self, url: str, stop: Event) -> Any:
        stream = self._open(url, stop)
        stream.peek()
        return stream

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for url, request in self._requests():
            try:
                stream = request()
            except Exception as error:
                if self.skip_on_error:
                    message = Secrets(self.storage_options, url).describe(error)
                    what, *more = message.splitlines()
                    text = f"{what}: {public_name(url)} is left out, skipping to the next"
                    warn("\n".join([text, *more]), UserWarning, self.origin)
                    continue
                raise add_location(error, self.origin)  # noqa: B904  the very same error
            yield url, StreamWrapper(stream, name=public_name(url))
            del stream, request

    def _open(self, url: str, stop: Event | None = None) -> Any:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a URL of http or https expected, got {public_name(url)!r}")
        most = self.max_concurrency
        buffer = _PIECE_BYTES if most == 1 else max(1, self.buffer_bytes // most)
        return http_stream(url, self.storage_options, self.timeout, buffer, stop)


class OnlineReader(HttpReader, form="read_from_remote"):
    """Yield ``(URL, stream of bytes)`` for each URL of a web server, as ``read_from_http``.

    Parameters are those of :class:`HttpReader`. Links of Google Drive, which torchdata read here
    too, are refused with ``NotOffered``.
    """

    def _open(self, url: str, stop: Event | None = None) -> Any:
        if _DRIVE.match(url):
            why, do = DRIVE
            raise NotOffered(why, do=do)
        return super()._open(url, stop)
