"""Concurrent ranges of remote objects: the base class of all clients of object stores.

A client implements one attempt at one range. Requests run in the event loop of fsspec, which has
its own thread.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from ..core.errors import AccessDenied, VolumeChanged, VolumeNotFound, VoxpipeError
from ..core.locks import at_fork
from ..core.redact import server_of
from .content import content_key
from .in_flight import IN_FLIGHT, RequestPriority
from .location import Secrets, public_name, redirect_of, remote_error, s3_address
from .ranges import MOST_DOCUMENT_BYTES, REMOTE_GAP, REMOTE_RUN, ReadRange, check_document
from .read_ahead import SmallObjectCache
from .remote_answers import (
    Answer,
    CompressedAnswer,
    FaultAdvice,
    Gone,
    Head,
    OtherVersion,
    RangeRequest,
    TooLong,
    WrongAnswer,
    advice_on,
    cause_of,
    has_expired,
)
from .retry import (
    MOST_AHEAD,
    MOST_MISSING,
    MOST_WRONG,
    Attempts,
    Health,
    Retry,
    default_retry,
    retry_async,
)

T = TypeVar("T")

MOST_BYTES = REMOTE_RUN
"""Most bytes of one request; several are under way at once."""
# Remembered versions, of 200 bytes each; writes to objects that were read earlier pass unnoticed.
_MOST_ANSWERS = 16_384
# Expected bytes of a whole object of unknown size: a chunk of 64 cubed voxels.
_USUAL_BYTES = 512 * 1024
# A missing object is requested again: so often at once, and then once per ten objects found. A full
# volume has no such answers, and a volume with few stored chunks is not requested twice.
DOUBTS_AT_ONCE, DOUBT_SHARE = 4, 0.1
# So often an answer that denies the version is ignored if the store still reports the version.
_MOST_DENIALS = 2
# An object that was written so many seconds before its read has one version with that write time.
_SETTLED_SECONDS = 60.0
# Bytes of a listed entry, and bytes of a listing that fits into one attempt.
_ENTRY_BYTES, _LISTED_BYTES = 1024, 16 * 1024**2


def _drop_loop() -> None:
    """Drop the event loop in a forked child, which has no thread that runs it."""
    # fsspec 2025.3 and earlier keep the loop, and requests of the child would wait for ever.
    if asyn := sys.modules.get("fsspec.asyn"):
        asyn.reset_lock()


at_fork(after=_drop_loop)


class ObjectEntry(NamedTuple):
    """One object of a listing."""

    key: str  # below the root
    size: int  # in bytes
    version: str  # ETag or write time; empty if unknown


@dataclass(frozen=True)
class ObjectFacts:
    """Size and version of one object, as its store reports them."""

    size: int  # in bytes
    version: str  # differs between versions of the content; empty if unknown
    etag: str = ""  # for requests of this version only; empty if unknown
    mtime: float = 0.0
    """Write time in seconds since 1970 by the clock of the store; 0.0 if unknown."""


class _LastAnswer(NamedTuple):
    """Version of an object in its last answer."""

    etag: str
    total: int | None
    mtime: float
    at: int  # time of the answer in nanoseconds since 1970
    required_mtime: float  # required write time of further parts; 0.0 for any
    once: bool = True  # whether no earlier answer had this ETag

    def agrees_with(self, head: Head) -> bool:
        """Whether an answer may be of the same version."""
        if None not in (self.total, head.total) and self.total != head.total:
            return False
        if self.mtime and head.mtime:
            return self.mtime == head.mtime
        return not (self.etag and head.etag) or self.etag == head.etag


_HEALTH: dict[str, Health] = {}  # by server or bucket and options


def health_of(url: str, options: Mapping[str, Any]) -> Health:
    """Return the health of the store of a URL, which this process shares."""
    # A digest, because options hold credentials.
    place = content_key(server_of(url), (sorted(map(repr, options.items())),))
    return _HEALTH.setdefault(place, Health())


class RemoteRanges(ABC):
    """Objects below a URL. Safe to use from several threads and in a forked child."""

    gap, most = REMOTE_GAP, MOST_BYTES
    limits_listing = True  # whether a listing has one timeout, and not each of its requests
    cuts_off = True  # whether attempts can be cancelled, and may be sent twice

    def __init__(self, url: str, options: Mapping[str, Any], retry: Retry | None = None) -> None:
        self._url, self._options = url, options
        self.name = public_name(url).rstrip("/")  # the URL, without credentials
        self._retry = retry or default_retry()
        self._secrets = Secrets(options, url)
        self.health = health_of(url, options)
        # Token of the cache of documents inside :meth:`documents`; otherwise empty.
        self.documents_token = ""
        self._documents: SmallObjectCache
        self.absences = 0  # answers without an object
        self._owner = os.getpid()
        # Process of the last request.
        self._user = 0
        self._address = s3_address(url, options, os.environ)
        self._pins: dict[str, ObjectFacts] = {}
        self.rewrites: set[str] = set()  # objects with another version than the expected one
        self._answers: dict[str, _LastAnswer] = {}
        # Whether an answer proved support of ranges; buckets always support them.
        self._has_ranges = False
        self._doubts = float(DOUBTS_AT_ONCE)
        self.newest = 0.0
        """Last write time of read objects: seconds since 1970 by the clock of the store."""
        # Set after two whole objects in a row for one request; later requests trust one.
        self._lacks_ranges = False
        self._missing_keys: set[str] = set()
        self.replaced_at = 0
        """Last read of an older version of an object that was read in two versions: nanoseconds
        since 1970 by the local clock; 0 for none."""

    @abstractmethod
    async def ask(self, request: RangeRequest) -> Answer:
        """Send one request; check the head of the answer before the body, if it has a head."""

    @abstractmethod
    async def ask_facts(self, key: str) -> ObjectFacts:
        """Request the facts of an object once; ``FileNotFoundError`` for a folder."""

    async def ask_entries(self, prefix: str, most: int | None) -> list[ObjectEntry]:
        """List all objects below a prefix once; a listing may stop after ``most + 1`` objects."""
        raise NotImplementedError

    def enter_process(self, *, is_child: bool) -> None:  # noqa: B027  most prepare nothing
        """Prepare for the first request of a process, or raise ``ForkUnsafe``."""

    def expect(self, key: str, facts: ObjectFacts) -> None:
        """Require this version of an object in all later reads; ``VolumeChanged`` for another one.

        The size and the ETag are compared, or the write time without an ETag, as far as the client
        reports them.
        """
        self._pins[key] = facts
        self.rewrites.discard(key)

    @contextmanager
    def documents(self, token: str, cache: SmallObjectCache) -> Iterator[None]:
        """Cache whole objects that the ``with`` block reads, unless the block fails."""
        self.documents_token, self._documents = token, cache
        try:
            yield
        except BaseException:
            cache.forget(token)
            raise
        finally:
            self.documents_token = ""

    def get(self, key: str, limit: int = MOST_DOCUMENT_BYTES) -> bytes | None:
        """Return a small object; None if missing, ``BadHeader`` above ``limit`` bytes."""
        return self.get_ranges([ReadRange(key)], limit=limit)[0]

    def get_ranges(
        self, ranges: Sequence[ReadRange], whole: int = 0, *, limit: int = 0
    ) -> list[bytes | None]:
        """Return the bytes of each range, with concurrent requests within the bounds.

        A whole object has at most about ``whole`` bytes; 0 if unknown. Above ``limit`` bytes it
        raises ``BadHeader``. Inside :meth:`documents` the default limit of objects of unknown size
        is :data:`.MOST_DOCUMENT_BYTES`.
        """
        if not ranges:
            return []
        if not (token := self.documents_token):
            return self._wait(self.get_ranges_async(ranges, whole=whole, limit=limit))
        limit = limit or (0 if whole else MOST_DOCUMENT_BYTES)
        keys = [(r.object,) for r in ranges if r == ReadRange(r.object)]
        ready = self._documents.find(token, keys)
        absent = [r for r in ranges if (r.object,) not in ready or r != ReadRange(r.object)]
        new = self._wait(self.get_ranges_async(absent, whole=whole, limit=limit)) if absent else ()
        answers = dict(zip(absent, new, strict=True))
        whole_objects = {(r.object,): a for r, a in answers.items() if r == ReadRange(r.object)}
        views = {k: None if a is None else memoryview(a) for k, a in whole_objects.items()}
        self._documents.keep(token, views)
        documents = {key: None if piece is None else bytes(piece) for key, piece in ready.items()}
        return [answers[r] if r in answers else documents[r.object,] for r in ranges]

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine that awaits :meth:`get_ranges_async` in the background."""
        if self._user != os.getpid():
            self.enter_process(is_child=self._owner != os.getpid())
            self._user = self._owner = os.getpid()
        from fsspec.asyn import get_loop

        return asyncio.run_coroutine_threadsafe(work, get_loop())

    async def get_ranges_async(
        self,
        ranges: Sequence[ReadRange],
        *,
        ahead: RequestPriority | None = None,
        whole: int = 0,
        limit: int = 0,
    ) -> list[bytes | None]:
        """Return the bytes of each range; ``ahead`` is the priority of a prefetch."""
        if len(ranges) == 1:
            return [await self._read(ranges[0], ahead, whole, limit)]
        tasks = [asyncio.ensure_future(self._read(part, ahead, whole, limit)) for part in ranges]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            # An exception keeps this frame alive: drop the other answers.
            del tasks

    def hurry(self, ahead: RequestPriority) -> None:
        """Move requests of a prefetch before others, from any thread, because a read waits."""
        from fsspec.asyn import get_loop

        get_loop().call_soon_threadsafe(IN_FLIGHT.hurry, ahead)

    def facts(self, key: str) -> ObjectFacts:
        """Return size and version of an object; ``VolumeNotFound`` for a missing one."""
        result = self._wait(self._facts_async(key))
        if result is None:
            msg = f"there is nothing at {self._place(key)}."
            raise VolumeNotFound(msg, do="Check the URL and the ⟦storage_options⟧.")
        return result

    async def _facts_async(self, key: str) -> ObjectFacts | None:
        """Return the facts of an object; without a version, two answers must agree."""

        async def agree() -> ObjectFacts:
            facts = await self.ask_facts(key)
            if self.cuts_off and not facts.version and facts != await self.ask_facts(key):
                raise WrongAnswer("two answers report different facts about the object")
            return facts

        return await self._try(key, agree, 0)

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""
        return self.facts(key).size

    def entries(self, most: int | None = None) -> list[ObjectEntry]:
        """Return the objects below the root; a listing may stop after ``most + 1`` objects."""
        return self._wait(self.entries_async(most))

    async def entries_async(self, most: int | None = None, prefix: str = "") -> list[ObjectEntry]:
        """Return the objects below a prefix, for :meth:`begin`; without a second request."""
        call = partial(self.ask_entries, prefix, most)
        size = (most or 0) * _ENTRY_BYTES
        has_limit = self.limits_listing or 0 < size <= _LISTED_BYTES
        limits: Any = {"hedges": False, "has_limit": has_limit, "kind": "LIST"}
        return await self._try(prefix, call, size if has_limit else 0, **limits) or []

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the objects below a prefix, as keys."""
        yield from (entry.key for entry in self._wait(self.entries_async(prefix=prefix)))

    async def entry_async(self, key: str) -> ObjectEntry | None:
        """Return the listing entry of one object, for :meth:`begin`; None for a missing one."""
        facts: ObjectFacts | None = await self._try(key, partial(self.ask_facts, key), 0)
        return None if facts is None else ObjectEntry(key, facts.size, facts.version)

    async def _read(
        self, part: ReadRange, ahead: RequestPriority | None, whole: int, limit: int
    ) -> bytes | None:
        """Return the bytes of one range of the expected or previously read version."""
        key, start, stop = part
        if start == stop:
            return b""
        denials, looks, odd = 0, 0, set[str]()
        while True:
            pin, last = self._pins.get(key), self._answers.get(key)
            request = RangeRequest(*part, most=whole, limit=limit)
            if pin is not None:
                request = RangeRequest(*part, pin.etag, pin.mtime, pin.size, limit=limit)
            elif last is not None and (start, stop) != (0, None):
                # Parts of an object need one version, because its index is valid for no other.
                request = request._replace(etag=last.etag, mtime=last.required_mtime)
            unknown = max(0, (request.size or whole or _USUAL_BYTES) - start)
            size = -start if start < 0 else unknown if stop is None else stop - start
            try:
                call = partial(self._check, request, odd)
                body: bytes | None = await self._try(key, call, size, ahead=ahead, kind="GET")
            except VolumeChanged:
                denials += 1
                if denials > _MOST_DENIALS or not await self._was_misled(request):
                    raise
                odd.clear()
                continue
            looks += 1
            # Missing documents are expected: they show the kind of a volume.
            may_doubt = looks < MOST_MISSING and not self.documents_token and self._doubts >= 1
            if body is None and may_doubt:
                self._doubts -= 1
                continue
            self.absences += body is None
            return body

    async def _check(self, request: RangeRequest, odd: set[str]) -> Any:
        """Send one request, check its answer and return the body.

        ``odd`` remembers the first answer without a range, which may be a page of a proxy. The
        second one proves that the server lacks ranges.
        """
        key = request.key
        try:
            answer = await self.ask(request)
            request.check_length(answer)
        except Exception as error:
            failure = advice_on(error)
            if failure is FaultAdvice.ABSENT and (key in self._pins or key in self._answers):
                raise Gone("it no longer exists") from None
            if failure is FaultAdvice.NO_RANGES and not isinstance(error, CompressedAnswer):
                if self._has_ranges or not (odd or self._lacks_ranges):
                    odd.add("no ranges")
                    raise WrongAnswer("it sent all of the object instead of a part") from None
                self._lacks_ranges = True
            raise
        if answer.head is not None:
            self._note(key, answer.head)
        self._doubts = min(DOUBTS_AT_ONCE, self._doubts + DOUBT_SHARE)
        return answer.body

    async def _was_misled(self, request: RangeRequest) -> bool:
        """Whether the store still has the required version, although an answer denied it.

        Two equal answers prove a change.
        """
        key = request.key
        now = None if key in self._missing_keys else await self._facts_async(key)
        if now is None:
            return False
        is_odd = request.is_of(now) or now != await self._facts_async(key)
        if not is_odd:
            # One answer may have had a wrong ETag and the right time. An object that was read long
            # after its write time has one version with that time.
            last = self._answers.get(key)
            if key in self._pins or last is None or not (last.mtime and last.once):
                return False
            if (last.total, int(last.mtime)) != (now.size, int(now.mtime)):
                return False
            if last.at / 1e9 - last.mtime < _SETTLED_SECONDS:
                return False
            self._answers[key] = last._replace(etag=now.etag)
        self.rewrites.discard(key)
        return True

    def _note(self, key: str, head: Head) -> None:
        """Record the version of an answer, and whether it differs from the previous one.

        Time and size are compared, because a good answer may have a wrong ETag. One version with
        two sizes raises ``WrongAnswer``; the next answer must confirm the new size.
        """
        before, (total, etag, mtime) = self._answers.pop(key, None), head[2:]
        if before is None:
            if len(self._answers) >= _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
        elif (before.etag, before.total, before.mtime) != (etag, total, mtime):
            two_sizes = None not in (before.total, total) and before.total != total
            if two_sizes and etag and etag == before.etag:
                self._answers[key] = before._replace(total=total)
                raise WrongAnswer("it reports another size of the same version")
            if not before.agrees_with(head):
                self.replaced_at = max(self.replaced_at, before.at)
        self._has_ranges |= total not in (None, head.stop - head.start)
        self.newest, now = max(self.newest, mtime), time.time_ns()
        if self.health.ahead < (ahead := mtime - now / 1e9) <= MOST_AHEAD:
            self.health.ahead = ahead
        once = before is None or before.etag != etag
        self._answers[key] = _LastAnswer(etag, total, mtime, now, mtime, once)

    def forget_versions(self) -> None:
        """Accept any version in later reads of objects that were read in part."""
        for key, last in list(self._answers.items()):
            self._answers[key] = last._replace(etag="", required_mtime=0.0)

    async def _try(
        self,
        key: str,
        call: Callable[[], Awaitable[T]],
        size: int,
        *,
        ahead: RequestPriority | None = None,
        hedges: bool = True,
        has_limit: bool = True,
        kind: str = "HEAD",
    ) -> T | Any:
        """Return the result of ``call`` within the allowed attempts; None for a missing object."""
        wrong, has_doubted = 0, False

        async def attempt() -> T:
            nonlocal wrong, has_doubted
            try:
                return await call()
            except Exception as error:
                wrong += advice_on(error) is FaultAdvice.WRONG
                if self._may_be_elsewhere(error) and not has_doubted:
                    has_doubted = True
                    raise WrongAnswer("it refused, maybe by another host") from None
                host = await self._redirect(key) if wrong == MOST_WRONG else ""
                if host:
                    why = "is the region or endpoint_url another?"
                    raise WrongAnswer(f"the store redirects to {host} ({why})") from None
                raise

        await IN_FLIGHT.enter(size, ahead=ahead)
        try:
            # The deadline begins here: waiting for other requests is no failure.
            action, describe = f"reading {self._place(key)}", self._secrets.describe
            attempts = Attempts(
                self._retry, action, describe, health=self.health, size=size, kind=kind
            )
            if self.cuts_off:
                return await retry_async(attempt, attempts, has_limit=has_limit, hedges=hedges)
            return await retry_async(attempt, attempts, has_limit=None)
        except (VoxpipeError, MemoryError):
            raise
        except Exception as error:
            host = await self._redirect(key) if self._may_be_elsewhere(error) else ""
            if host:
                msg = f"{action} was refused by {host}, to which the store redirects."
                raise AccessDenied(msg, do="Check the region and the endpoint_url.") from None
            return self._answer_to(error, key)
        finally:
            IN_FLIGHT.leave(size)

    def _may_be_elsewhere(self, error: Exception) -> bool:
        """Whether a refusal may be from a host to which S3 redirected the request."""
        is_refusal = advice_on(error) is FaultAdvice.REFUSAL and not has_expired(error)
        return bool(self._address) and is_refusal

    async def _redirect(self, key: str) -> str:
        """Return the host to which S3 redirects requests for an object; empty for none."""
        address = self._address and f"{self._address}/{quote(key)}".rstrip("/")
        return await asyncio.to_thread(redirect_of, address)

    def _answer_to(self, error: Exception, key: str) -> bytes | None:
        """Return None for a missing object and no bytes beyond its end; raise other errors."""
        failure, place = advice_on(error), self._place(key)
        if failure is FaultAdvice.ABSENT:
            return None
        if failure is FaultAdvice.BEYOND:
            return b""
        if isinstance(error, TooLong):
            check_document(error.size, place, error.most)
        if failure is FaultAdvice.OTHER_VERSION or isinstance(error, OtherVersion):
            self.rewrites.add(key)
            if isinstance(error, Gone):
                self._missing_keys.add(key)
            how = "removed" if isinstance(error, Gone) else "written again"
            msg = f"{place} was {how} since its header was read."
            raise VolumeChanged(msg, do="Make a new Volume once the file is written.") from None
        # Not chained: the text of the original may hold a signed URL or a key.
        message = self._secrets.describe(cause_of(error))
        raise remote_error(error, "reading", place, message) from None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = self.begin(work)
        except BaseException:
            work.close()  # avoids the warning of a coroutine without await
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C cancels the requests too
            raise
        finally:
            # An exception keeps this frame and its callers alive, with their voxels.
            del future

    def _place(self, key: str) -> str:
        return f"{self.name}/{key}" if key else self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
