"""Ranges of the objects of a URL through fsspec."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from ..core.errors import VolumeNotFound
from .in_flight import MOST_REQUESTS, THREADS
from .location import Secrets, file_system, public_name, remote_errors
from .remote_answers import (
    MOST_WHOLE,
    Answer,
    FaultAdvice,
    Head,
    NoRanges,
    RangeRequest,
    TooLong,
    WrongAnswer,
    advice_on,
    check_encoding,
    has_expired,
    is_gzip_file,
    is_of_page,
)
from .remote_ranges import ObjectEntry, ObjectFacts, RemoteRanges, health_of
from .retry import LEAST_ATTEMPT, TRIES, Attempts, Retry, default_retry, retry_sync

_S3 = ("s3", "s3a")
# Status of HTTP for a whole object, and for a part.
_OK, _PART = 200, 206
_CODECS = ("gzip", "deflate")  # that aiohttp decodes in a whole object
_S3FS = ("s3fs.core", "S3FileSystem")
_HTTP = ("fsspec.implementations.http", "HTTPFileSystem")
# Fields in which file systems report the version of an object.
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created")
# Timeouts of s3fs in seconds: to connect, and between two pieces.
CONNECTING, _SILENCE = 5.0, 10.0


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of an object that a file system reports; empty for none."""
    return next((str(info[key]) for key in _VERSIONS if info.get(key)), "")


def _kind(system: Any) -> tuple[str, str]:
    return type(system).__module__, type(system).__name__


def with_defaults(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options with voxpipe's defaults for s3; options of the user stay.

    s3fs gets no own retries, timeouts of at most a third of the deadline, and one connection per
    concurrent request. It sends no HEAD before a GET of a whole object.
    """
    if url.partition("://")[0] not in _S3:
        return dict(options)
    patience = max(default_retry().deadline / TRIES, LEAST_ATTEMPT)
    config: dict[str, Any] = {
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": MOST_REQUESTS,
        "connect_timeout": min(CONNECTING, patience),
        "read_timeout": min(_SILENCE, patience),
    }
    config.update(options.get("config_kwargs") or {})
    return {"max_concurrency": 1, **options, "config_kwargs": config}


def open_fsspec(url: str, options: Mapping[str, Any], retry: Retry | None = None) -> FsspecRanges:
    """Return the objects below a URL."""
    system, root = file_system_of(url, options)
    return FsspecRanges(url, options, system, root, retry)


def file_system_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system of a path or URL, without own retries, and the path in it."""
    system, path = file_system(url, with_defaults(url, options))
    if hasattr(system, "retries"):
        system.retries = 1  # s3fs counts attempts
    return system, path


def list_with(
    system: Any, method: str, path: str, url: str, options: Mapping[str, Any], **arguments: Any
) -> Any:
    """Return the result of ``exists`` or ``find``; all attempts share one deadline."""
    action, describe = f"listing {public_name(url)}", Secrets(options, url).describe
    health = health_of(url, options)
    attempts = Attempts(default_retry(), action, describe, health=health, kind="LIST")

    def once() -> Any:
        if not getattr(system, "async_impl", False):
            return getattr(system, method)(path, **arguments)
        from fsspec.asyn import sync

        # Each request of s3fs has its own timeout, and a listing may take a thousand requests.
        limit = attempts.rest if _kind(system) == _S3FS else attempts.limit
        return sync(system.loop, getattr(system, f"_{method}"), path, timeout=limit, **arguments)

    with remote_errors(url, options, "listing"):
        return retry_sync(once, attempts)


class FsspecRanges(RemoteRanges):
    """Folder of an fsspec file system; without an event loop, requests run one after another."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        system: Any,
        root: str,
        retry: Retry | None = None,
    ) -> None:
        super().__init__(url, options, retry)
        # Keeps the file systems of the parent in a forked child, which must not close their
        # connections: it lacks their event loop.
        self._parent_systems: list[Any] = []
        self._root = root.rstrip("/")
        self._use(system)
        self._has_ranges = self._is_s3

    def _use(self, system: Any) -> None:
        self._system = system
        # Subclasses of s3fs are called through the interface of fsspec.
        self._is_s3 = _kind(system) == _S3FS
        # Each page of S3 has its own timeout, and a listing may have a thousand pages.
        self.limits_listing = not self._is_s3
        # Synchronous file systems (memory, zip, caches) cannot be interrupted.
        self.cuts_off = getattr(system, "async_impl", False)
        self._doubts *= self.cuts_off
        self._turn = asyncio.Lock()

    def enter_process(self, *, is_child: bool) -> None:
        """Open the file system again in a child, where objects of fsspec refuse to work."""
        if is_child:
            self._parent_systems.append(self._system)
            self._use(file_system_of(self._url, self._options)[0])

    def _path(self, key: str) -> str:
        # ``reference://`` may have keys directly at its root.
        return f"{self._root}/{key}" if key and self._root else key or self._root

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the file system, in this loop or in a thread."""
        if self.cuts_off:
            return await getattr(self._system, f"_{method}")(*args, **kwargs)
        async with self._turn:
            try:
                return await THREADS.run(partial(getattr(self._system, method), *args, **kwargs))
            except KeyError:  # from zip
                raise FileNotFoundError(*args) from None

    async def ask(self, request: RangeRequest) -> Answer:
        path = self._path(request.key)
        if self._is_s3:
            return await self._ask_s3(path, request)
        if _kind(self._system) == _HTTP:
            return await self._ask_http(path, request)
        start, stop = request.start or None, request.end
        return Answer(await self._call("cat_file", path, start=start, end=stop))

    async def _ask_http(self, path: str, request: RangeRequest) -> Answer:
        """Send one request in fsspec's HTTP session, because its file system hides headers."""
        system, defaults = self._system, {"Accept-Encoding": "identity"}
        if request.range_header:
            defaults["Range"] = request.range_header
        if request.condition:
            defaults["If-Match"] = request.condition
        kwargs = {**system.kwargs}
        headers = {**defaults, **(kwargs.pop("headers", None) or {})}
        session = await system.set_session()
        if is_stored := is_gzip_file(path):
            kwargs["auto_decompress"] = False
        async with session.get(system.encode_url(path), headers=headers, **kwargs) as reply:
            system._raise_not_found_for_status(reply, path)
            encoding = reply.headers.get("Content-Encoding", "")
            # Ranges and sizes may count encoded bytes.
            is_decoded = request.is_whole and request.size is None and encoding in _CODECS
            if is_stored or not is_decoded:
                check_encoding(encoding, path)
            if request.range_header:
                _refuse_odd(reply.status, reply.content_type, reply.headers.get("Content-Range"))
            head = _head_of(reply)
            if head is not None:
                if reply.status == _OK and head.stop > (request.stop or head.stop) - request.start:
                    raise NoRanges("all of it instead of a part")
                request.check(head)
            most = request.limit or MOST_WHOLE if head is None else head.stop - head.start
            return Answer(await _body_of(reply, most), head)

    async def _ask_s3(self, path: str, request: RangeRequest) -> Answer:
        """Send one request with s3fs's own call, because its file system hides headers."""
        bucket, key, version = self._system.split_path(path)
        # A range for whole objects too: only its answer reports first and last byte.
        span = request.range_header or "bytes=0-"
        fields = {"Range": span, "IfMatch": request.condition, "VersionId": version}
        kwargs = {name: value for name, value in fields.items() if value}
        reply = await self._call_s3("get_object", Bucket=bucket, Key=key, **kwargs)
        async with reply["Body"] as body:
            if encoding := reply.get("ContentEncoding"):
                check_encoding(encoding, key)
            status = reply["ResponseMetadata"]["HTTPStatusCode"]
            _refuse_odd(status, reply.get("ContentType") or "", reply.get("ContentRange"))
            length, etag = reply["ContentLength"], reply.get("ETag") or ""
            mtime = _seconds(reply.get("LastModified"))
            head = Head.parse(reply.get("ContentRange") or "", length, etag, mtime)
            request.check(head)
            return Answer(await body.read(), head)

    async def _call_s3(self, method: str, **kwargs: Any) -> Any:
        try:
            try:
                return await self._system._call_s3(method, **kwargs)
            except Exception as error:
                if not has_expired(error):
                    raise
            # The profile, role or service has newer credentials by now.
            await self._system.set_session(refresh=True)
            return await self._system._call_s3(method, **kwargs)
        except Exception as error:
            if is_of_page(error):
                raise WrongAnswer("it sent a web page") from None
            raise

    async def ask_facts(self, key: str) -> ObjectFacts:
        path = self._path(key)
        self._system.invalidate_cache(path)
        try:
            info = await self._call("info", path)
        except Exception as error:
            if not self._is_s3 or advice_on(error) is not FaultAdvice.REFUSAL:
                raise
            # The refusal of a HEAD has no body; the refusal of a GET names its reason.
            bucket, name, _ = self._system.split_path(path)
            reply = await self._call_s3("get_object", Bucket=bucket, Key=name, Range="bytes=0-0")
            reply["Body"].close()
            raise WrongAnswer("it refuses to describe the object that it sends") from None
        if info.get("type") == "directory":
            raise FileNotFoundError(key)
        if info.get("size") is None:
            msg = f"the server of {self._place(key)} does not report the size of the file."
            raise VolumeNotFound(msg, do="Copy the file to a local disk or to an object store.")
        date = info.get("LastModified") or info.get("Last-Modified")  # s3fs, HTTP
        version = version_of(info) or str(date or "")
        return ObjectFacts(int(info["size"]), version, str(info.get("ETag") or ""), _seconds(date))

    async def ask_entries(self, prefix: str, most: int | None) -> list[ObjectEntry]:
        """List everything; s3fs can stop, other clients list all or nothing."""
        path = self._path(prefix)
        # An earlier listing of this process may be of an older version.
        self._system.invalidate_cache(path)
        if self._is_s3 and most is not None:
            options = {"refresh": True, "max_items": most + 1, "delimiter": ""}
            listing = await self._system._lsdir(path, **options)
            entries = {e["name"]: e for e in listing if e.get("type") != "directory"}
        else:
            entries = await self._call("find", path, detail=True)
        return [
            ObjectEntry(name[len(self._root) :].lstrip("/"), int(i.get("size") or 0), version_of(i))
            for name, i in entries.items()
        ]


def _refuse_odd(status: int, kind: str, content_range: str | None) -> None:
    """Raise ``WrongAnswer`` for an answer that cannot belong to the request of a part."""
    if status == _PART and not content_range:
        raise WrongAnswer("it sent a part without its range")
    if status == _OK and kind.startswith("text/html"):
        raise WrongAnswer("it sent a web page")


def _head_of(reply: Any) -> Head | None:
    """Return the head of an answer of a web server; None if it reports no length or range."""
    headers = reply.headers
    length, span = reply.content_length, headers.get("Content-Range", "")
    is_encoded = headers.get("Content-Encoding", "identity") != "identity"
    if (is_encoded and not is_gzip_file(reply.url.path)) or (length is None and not span):
        return None
    mtime = _seconds(headers.get("Last-Modified"))
    return Head.parse(span, length or 0, headers.get("ETag", ""), mtime)


def _seconds(date: Any) -> float:
    """Return a date of HTTP or s3fs in seconds since 1970; 0.0 for none."""
    with suppress(AttributeError, TypeError, ValueError):
        moment = parsedate_to_datetime(date) if isinstance(date, str) else date
        return float(moment.timestamp())
    return 0.0


async def _body_of(reply: Any, most: int) -> bytes:
    """Return a body, read piece by piece; raise ``TooLong`` above ``most`` bytes."""
    pieces: list[bytes] = []
    length = 0
    async for piece in reply.content.iter_any():
        pieces.append(piece)
        length += len(piece)
        if length > most:
            raise TooLong(length, most)
    return b"".join(pieces)
