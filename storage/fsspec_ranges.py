"""Objects behind a URL, in ranges, through fsspec."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from ..core.errors import VolumeNotFound
from .in_flight import MOST_REQUESTS
from .location import Secrets, file_system, public_name, remote_errors
from .ranges import ReadRange, check_document
from .remote_answers import (
    MOST_WHOLE,
    Answer,
    Asked,
    Failure,
    Head,
    NoRanges,
    TooLong,
    WrongAnswer,
    failure_of,
    has_expired,
    is_of_page,
)
from .remote_objects import VERSIONS, Entry, ObjectFacts, RemoteObjects, health_of, version_of
from .remote_ranges import RemoteRanges
from .retry import LEAST_ATTEMPT, TRIES, Attempts, Retry, default_retry, retry_sync

_S3 = ("s3", "s3a")
# Of HTTP: all of it, and a part.
_WHOLE, _PART = 200, 206
_S3FS = ("s3fs.core", "S3FileSystem")
_HTTP = ("fsspec.implementations.http", "HTTPFileSystem")
_ABSENT = (FileNotFoundError, IsADirectoryError, KeyError)  # KeyError: of zip
# What s3fs gives a server, in seconds: to accept a connection, and between two pieces.
CONNECTING, _SILENCE = 5.0, 10.0


def is_s3fs(system: Any) -> bool:
    """Whether a file system is s3fs's own: one that changes it is asked as it wants to be."""
    return _kind(system) == _S3FS


def _kind(system: Any) -> tuple[str, str]:
    return type(system).__module__, type(system).__name__


def with_defaults(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options, completed where a file system's own defaults are in the way.

    What the user says stays. For s3: no retries below ours, no silence beyond a third of our
    deadline, as many connections as requests under way, and no HEAD before a GET of a whole object.
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


def open_fsspec(
    url: str, options: Mapping[str, Any], retry: Retry | None = None
) -> FsspecRanges | SerialFsspecRanges:
    """Return the objects below a URL, side by side where the file system can."""
    completed = with_defaults(url, options)
    system, root = file_system(url, completed)
    if not getattr(system, "async_impl", False):
        return SerialFsspecRanges(url, options, system, root, retry)
    return FsspecRanges(url, options, system, root, retry)


def reached(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system of a path or URL, which tries nothing again, and the path in it."""
    system, path = file_system(url, with_defaults(url, options))
    _leave_retries_to_us(system)
    return system, path


def _leave_retries_to_us(system: Any) -> None:
    if hasattr(system, "retries"):
        system.retries = 1  # s3fs counts attempts; ours are enough


def list_with(
    system: Any, method: str, path: str, url: str, options: Mapping[str, Any], **how: Any
) -> Any:
    """Return what ``glob`` or ``find`` of a file system lists; all attempts have one deadline."""
    attempts = Attempts(
        default_retry(),
        f"listing {public_name(url)}",
        Secrets(options, url).describe,
        health=health_of(url, options),
    )

    def once() -> Any:
        if not getattr(system, "async_impl", False):
            return getattr(system, method)(path, **how)
        from fsspec.asyn import sync

        # Each request of s3fs has a limit of its own, and there may be a thousand of them.
        limit = attempts.rest if is_s3fs(system) else attempts.limit
        return sync(system.loop, getattr(system, f"_{method}"), path, timeout=limit, **how)

    with remote_errors(url, options, "listing"):
        return retry_sync(once, attempts)


class _Folder:
    """Keys below a folder of a file system, and its paths."""

    _root: str

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _entries(self, found: Mapping[str, Any]) -> list[Entry]:
        return [
            Entry(key, int(info.get("size") or 0), version_of(info))
            for key, info in zip(self._keys(found), found.values(), strict=True)
        ]

    def _keys(self, paths: Iterable[str]) -> list[str]:
        return [path[len(self._root) :].lstrip("/") for path in paths]


class FsspecRanges(_Folder, RemoteRanges):
    """A folder of a file system that fsspec reaches through an event loop."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        system: Any,
        root: str,
        retry: Retry | None = None,
    ) -> None:
        super().__init__(url, options, retry)
        self._url, self._options = url, options
        # What a forked child found of its parent. It must not be the one that closes its
        # connections, in an event loop that it does not have.
        self._inherited: list[Any] = []
        self._root = root.rstrip("/")
        self._use(system)
        self._has_ranges = self._is_s3

    def _use(self, system: Any) -> None:
        self._system, self._is_s3 = system, is_s3fs(system)
        _leave_retries_to_us(system)

    def after_fork(self) -> None:
        """Open the file system again: fsspec's own objects refuse to work in a child."""
        self._inherited.append(self._system)
        system, _ = file_system(self._url, with_defaults(self._url, self._options))
        self._use(system)

    async def ask(self, asked: Asked) -> Answer:
        """Send one request."""
        path = self._path(asked.key)
        if self._is_s3:
            return await self._ask_s3(path, asked)
        if _kind(self._system) == _HTTP:
            return await self._ask_http(path, asked)
        start = asked.start or None
        return Answer(await self._system._cat_file(path, start=start, end=asked.end))

    async def _ask_http(self, path: str, asked: Asked) -> Answer:
        """Send one request in the session of fsspec's client, which hides what an answer says."""
        system, wanted = self._system, {"Accept-Encoding": "identity"}
        if asked.range_header:
            wanted["Range"] = asked.range_header
        if asked.condition:
            wanted["If-Match"] = asked.condition
        given = {**system.kwargs}
        headers = {**wanted, **(given.pop("headers", None) or {})}
        session = await system.set_session()
        async with session.get(system.encode_url(path), headers=headers, **given) as found:
            system._raise_not_found_for_status(found, path)
            if asked.range_header:
                _refuse_odd(found.status, found.content_type, found.headers.get("Content-Range"))
            head = _head_of(found)
            if head is not None:
                if found.status == _WHOLE and head.stop > (asked.stop or head.stop) - asked.start:
                    raise NoRanges("all of it instead of a part")
                asked.check(head)
            most = asked.limit or MOST_WHOLE if head is None else head.stop - head.start
            return Answer(await _body_of(found, most), head)

    async def _ask_s3(self, path: str, asked: Asked) -> Answer:
        """Send one request through s3fs, which hides what an answer says of itself."""
        bucket, key, version = self._system.split_path(path)
        # Whole objects as a range, too: only answers to that say where they begin and end.
        span = asked.range_header or "bytes=0-"
        wanted = {"Range": span, "IfMatch": asked.condition, "VersionId": version}
        given = {name: value for name, value in wanted.items() if value}
        found = await self._call_s3("get_object", Bucket=bucket, Key=key, **given)
        async with found["Body"] as body:
            status = found["ResponseMetadata"]["HTTPStatusCode"]
            _refuse_odd(status, found.get("ContentType") or "", found.get("ContentRange"))
            length, etag = found["ContentLength"], found.get("ETag") or ""
            written = _seconds(found.get("LastModified"))
            head = Head.parse(found.get("ContentRange") or "", length, etag, written)
            asked.check(head)
            return Answer(await body.read(), head)

    async def _call_s3(self, method: str, **given: Any) -> Any:
        try:
            try:
                return await self._system._call_s3(method, **given)
            except Exception as error:
                if not has_expired(error):
                    raise
            # Whatever profile, role or service it came from has another one by now.
            await self._system.set_session(refresh=True)
            return await self._system._call_s3(method, **given)
        except Exception as error:
            if is_of_page(error):
                raise WrongAnswer("it sent a web page") from None
            raise

    async def ask_facts(self, key: str) -> ObjectFacts:
        """Ask for size and version."""
        path = self._path(key)
        try:
            return _facts(await self._system._info(path), self._place(key))
        except Exception as error:
            if not self._is_s3 or failure_of(error) is not Failure.DENIED:
                raise
        # A refusal of HEAD has no body, which would say whose it is: that of GET has.
        bucket, name, _ = self._system.split_path(path)
        found = await self._call_s3("get_object", Bucket=bucket, Key=name, Range="bytes=0-0")
        found["Body"].close()
        raise WrongAnswer("it refuses to say what it sends")

    @property
    def limits_listing(self) -> bool:
        """Not of S3: each page has its own limit, and there may be a thousand of them."""
        return not self._is_s3

    async def ask_keys(self, prefix: str) -> list[str]:
        """List everything below."""
        found = await self._system._find(self._path(prefix))
        return self._keys(found)

    async def ask_entry(self, key: str) -> Entry:
        """Ask for one object, in the words of a listing."""
        self._system.invalidate_cache(self._path(key))
        info = await self._system._info(self._path(key))
        if info.get("type") == "directory":
            raise FileNotFoundError(key)
        return Entry(key, int(info.get("size") or 0), version_of(info))

    async def ask_entries(self, most: int | None) -> list[Entry]:
        """List everything; s3fs can stop, other clients list all or nothing."""
        # A listing that somebody made earlier in this process may be of an earlier version.
        self._system.invalidate_cache(self._root)
        if not self._is_s3:
            return self._entries(await self._system._find(self._root, detail=True))
        limit = None if most is None else most + 1
        listed = await self._system._lsdir(self._root, refresh=True, max_items=limit, delimiter="")
        return self._entries({e["name"]: e for e in listed if e.get("type") != "directory"})


class SerialFsspecRanges(_Folder, RemoteObjects):
    """A folder of a file system without an event loop: memory, zip, caches. One after another.

    Failures that pass are tried again as elsewhere, but an attempt without an answer cannot be
    cut off: how long it may take is up to the file system.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        system: Any,
        root: str,
        retry: Retry | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(url, options, retry)
        self._url, self._options, self._sleep = url, options, sleep
        # Held like the handle that uses it: a forked child that inherits both must not be the
        # one that closes its connections.
        self._system, self._root = system, root.rstrip("/")

    def get_ranges(
        self, ranges: Sequence[ReadRange], whole: int = 0, *, limit: int = 0
    ) -> list[bytes | None]:
        """Return the bytes of each range."""

        def read(wanted: Sequence[ReadRange], limit: int) -> list[bytes | None]:
            return [self._piece(*each, limit) for each in wanted]

        if self._documents:
            return self._documented(ranges, read, whole, limit)
        return read(ranges, limit)

    def _piece(self, key: str, start: int, stop: int | None, limit: int) -> bytes | None:
        path = self._path(key)
        with remote_errors(self._name, self._options, url=self._url), suppress(*_ABSENT):
            asked = Asked(key, start, stop, limit=limit)
            found: bytes = self._tried(
                key, lambda: self._system.cat_file(path, start=start or None, end=asked.end)
            )
            if limit and asked.is_whole:
                check_document(len(found), self._place(key), limit)
            return found
        self.absences += 1
        return None

    def facts(self, key: str) -> ObjectFacts:
        """Return size and version of an object; ``VolumeNotFound`` where there is none."""
        with remote_errors(self._place(key), self._options, url=self._url):
            info = self._tried(key, lambda: self._system.info(self._path(key)))
            return _facts(info, self._name)

    def entries(self, most: int | None = None) -> list[Entry]:
        """Return what lies below the root."""
        with remote_errors(self._name, self._options, url=self._url):
            self._system.invalidate_cache(self._root)
            return self._entries(
                self._tried("", lambda: self._system.find(self._root, detail=True))
            )

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the objects below a prefix, as keys."""
        with remote_errors(self._name, self._options, url=self._url):
            found = self._tried(prefix, lambda: self._system.find(self._path(prefix)))
        yield from self._keys(found)

    def _tried(self, key: str, call: Callable[[], Any]) -> Any:
        what = f"reading {self._place(key)}"
        attempts = Attempts(self._retry, what, self._secrets.describe, health=self._health)
        return retry_sync(call, attempts, self._sleep)


def _refuse_odd(status: int, kind: str, content_range: str | None) -> None:
    """Raise ``WrongAnswer`` for what is no answer to who asks for a part."""
    if status == _PART and not content_range:
        raise WrongAnswer("it sent a part and does not say which")
    if status == _WHOLE and kind.startswith("text/html"):
        raise WrongAnswer("it sent a web page")


def _head_of(found: Any) -> Head | None:
    """Return what an answer of a web server says to hold; None where it does not say."""
    headers = found.headers
    length, span = found.content_length, headers.get("Content-Range", "")
    if headers.get("Content-Encoding", "identity") != "identity" or (length is None and not span):
        return None
    written = _seconds(headers.get("Last-Modified"))
    return Head.parse(span, length or 0, headers.get("ETag", ""), written)


def _seconds(written: Any) -> float:
    """Return a moment, as HTTP or s3fs tells it, in seconds since 1970; 0.0 for none."""
    with suppress(AttributeError, TypeError, ValueError):
        moment = parsedate_to_datetime(written) if isinstance(written, str) else written
        return float(moment.timestamp())
    return 0.0


async def _body_of(found: Any, most: int) -> bytes:
    """Return a body piece by piece: one that goes on is not taken in."""
    pieces: list[bytes] = []
    length = 0
    async for piece in found.content.iter_any():
        pieces.append(piece)
        length += len(piece)
        if length > most:
            raise TooLong(length, most)
    return b"".join(pieces)


def _facts(info: Mapping[str, Any], name: str) -> ObjectFacts:
    size = info.get("size")
    if size is None:
        raise VolumeNotFound(
            f"the server of {name} does not say how large the file is.",
            do="Copy the file to a local disk or to an object store.",
        )
    version = " ".join(str(info[key]) for key in VERSIONS if info.get(key))
    written = info.get("LastModified") or info.get("Last-Modified")  # s3fs, HTTP
    etag = str(info.get("ETag") or "")
    return ObjectFacts(int(size), version or str(written or ""), etag, _seconds(written))
