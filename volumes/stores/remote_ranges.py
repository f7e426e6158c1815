"""Ranges of remote objects, many at once: what every client of an object store shares.

A client says how one range is asked for, once. Here are the bound on what is under way, the
time limit of an attempt, the retries, and errors that name the object and no secret. Requests
run in the event loop that fsspec keeps in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ...core.errors import (
    AccessDenied,
    CorruptVolume,
    VolumeNotFound,
    VolumeReadError,
    VoxpipeError,
)
from .in_flight import InFlight, Later
from .ranges import ReadRange
from .remote_failure import Failure, failure_of
from .remote_objects import Entry, ObjectFacts, RemoteObjects
from .retry import Attempts, Retry, retried

T = TypeVar("T")

# A whole object of which nothing is known: what a chunk of 64 cubed voxels takes.
_USUAL_BYTES = 512 * 1024


class RemoteRanges(RemoteObjects):
    """Objects below a URL. Safe to use from several threads, and in a forked child.

    Parameters
    ----------
    url
        Of the root.
    options
        Storage options, as the user wrote them.
    retry
        When a failed request is sent again; by default that of the process.
    """

    def __init__(self, url: str, options: Mapping[str, Any], retry: Retry | None = None) -> None:
        super().__init__(url, options, retry)
        self._owner = os.getpid()
        self._expected: dict[str, str] = {}
        self.rewritten: set[str] = set()
        """Objects of which another version was found than the expected one."""

    def expect(self, key: str, etag: str) -> None:
        """Read only this version of an object from now on; ``CorruptVolume`` for another one.

        Nothing is checked where the ETag is empty, or the client cannot tell that of an answer.
        """
        if etag:
            self._expected[key] = etag

    @abstractmethod
    async def ask(self, key: str, start: int, stop: int | None) -> Any:
        """Send one request and return the bytes-like answer; negative ``start`` from the end."""

    @abstractmethod
    async def ask_facts(self, key: str) -> ObjectFacts:
        """Ask once what the store knows of an object."""

    @abstractmethod
    async def ask_keys(self, prefix: str) -> list[str]:
        """Ask once for all keys below a prefix."""

    async def ask_entries(self, most: int | None) -> list[Entry]:
        """Ask once for all objects; of more than ``most`` at least one more."""
        return [Entry(key, 0, "") for key in await self.ask_keys("")]

    @property
    def listing(self) -> float | None:
        """Seconds that one listing may take; None where its requests have limits of their own."""
        return self._retry.attempt

    def after_fork(self) -> None:
        """Prepare for use in a forked child, or raise ``ForkUnsafe``."""

    def get_ranges(self, ranges: Sequence[ReadRange], whole: int = 0) -> list[bytes | None]:
        """Return the bytes of each range; all requests are sent at once, within the bounds.

        ``whole`` is what a whole object has at most, if that is known.
        """
        if not ranges:
            return []
        if self._documents:
            return self._documented(ranges, lambda r: self._wait(self.get_ranges_async(r)))
        return self._wait(self.get_ranges_async(ranges, whole=whole))

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine that awaits :meth:`get_ranges_async`, beside everything else."""
        self._check_owner()
        return asyncio.run_coroutine_threadsafe(work, _loop())

    async def get_ranges_async(
        self, ranges: Sequence[ReadRange], *, ahead: Later | None = None, whole: int = 0
    ) -> list[bytes | None]:
        """Return the bytes of each range; for coroutines given to :meth:`begin`.

        Parameters
        ----------
        ranges
            All are asked for at once, within the bounds.
        ahead
            What they belong to where nobody waits for them yet; whoever waits goes first.
        whole
            Bytes that a range without an end has at most; 0 if that is not known.
        """
        if len(ranges) == 1:
            return [await self._one(ranges[0], ahead, whole)]
        tasks = [asyncio.ensure_future(self._one(wanted, ahead, whole)) for wanted in ranges]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            await _ended(tasks)
            raise
        finally:
            # What one of them raised holds this call, which shall not hold what others brought.
            del tasks

    def hurry(self, ahead: Later) -> None:
        """Let what was asked for ahead go first: somebody waits for it. From any thread."""
        _loop().call_soon_threadsafe(lambda: _in_flight().hurry(ahead))

    def facts(self, key: str) -> ObjectFacts:
        """Return size and version of an object; ``VolumeNotFound`` where there is none."""
        found = self._wait(
            self._tried(key, lambda: self.ask_facts(key), 0, limit=self._retry.attempt)
        )
        if found is None:
            raise VolumeNotFound(
                f"there is nothing at {self._place(key)}.",
                do="Check the URL and the storage_options.",
            )
        return found

    def entries(self, most: int | None = None) -> list[Entry]:
        """Return what lies below the root; of more than ``most`` objects at least one more."""
        return self._wait(self.entries_async(most))

    async def entries_async(self, most: int | None = None) -> list[Entry]:
        """Return the same; for coroutines given to :meth:`begin`."""
        asked = self._tried("", lambda: self.ask_entries(most), 0, limit=self.listing)
        return await asked or []

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the objects below a prefix, as keys."""
        asked = self._tried(prefix, lambda: self.ask_keys(prefix), 0, limit=self.listing)
        yield from self._wait(asked) or ()

    async def _one(self, wanted: ReadRange, ahead: Later | None, whole: int) -> bytes | None:
        key, start, stop = wanted
        unknown = max(0, (whole or _USUAL_BYTES) - start)
        size = -start if start < 0 else unknown if stop is None else stop - start
        found: bytes | None = await self._tried(
            key,
            lambda: self.ask(key, start, stop),
            size,
            ahead=ahead,
            limit=self._retry.attempt,
        )
        if found is None or stop is None:
            return found
        if len(found) > size:
            raise VolumeReadError(
                f"the server of {self._place(key)} sent {len(found)} bytes instead of {size}: "
                "it does not know ranges.",
                do="Copy the file to a local disk or to an object store.",
            )
        return found

    async def _tried(
        self,
        key: str,
        call: Callable[[], Awaitable[T]],
        size: int,
        *,
        ahead: Later | None = None,
        limit: float | None,
    ) -> T | Any:
        """Return what ``call`` returns after as many attempts as allowed; None if absent."""
        room = _in_flight()
        await room.enter(size, ahead=ahead)
        # The time begins here: what waits for others has not failed.
        attempts = Attempts(self._retry, f"reading {self._place(key)}", self._secrets.describe)
        try:
            return await retried(call, attempts, limit)
        except (VoxpipeError, MemoryError):
            raise
        except Exception as error:
            return self._answer_to(error, key)
        finally:
            room.leave(size)

    def _answer_to(self, error: Exception, key: str) -> bytes | None:
        failure, place = failure_of(error), self._place(key)
        if failure is Failure.ABSENT:
            return None
        if failure is Failure.BEYOND:
            return b""
        if failure is Failure.CHANGED:
            self.rewritten.add(key)
            raise CorruptVolume(
                f"{place} was written again since its header was read.",
                do="Make a new Volume once the file is written.",
            ) from None
        if failure is Failure.DENIED:
            raise AccessDenied(
                f"reading {place} was refused: {self._secrets.describe(error)}.",
                do="Check the credentials in storage_options or in the environment.",
            ) from None
        kind = VolumeNotFound if "bucket" in str(error).lower() else VolumeReadError
        # Not chained: the text of the original may hold a signed URL or a key.
        raise kind(
            f"reading {place} failed: {self._secrets.describe(error)}.",
            do="Check the URL, the storage_options and the connection.",
        ) from None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = self.begin(work)
        except BaseException:
            work.close()  # or it warns that nobody awaited it
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C ends the wait; the requests go too
            raise
        finally:
            # What it raised holds this call and its callers, with the voxels that they have.
            del future

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            self.after_fork()
            self._owner = os.getpid()


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _loop() -> asyncio.AbstractEventLoop:
    import fsspec.asyn

    loop: asyncio.AbstractEventLoop = fsspec.asyn.get_loop()
    return loop


_IN_FLIGHT: WeakKeyDictionary[asyncio.AbstractEventLoop, InFlight] = WeakKeyDictionary()


def _in_flight() -> InFlight:
    """Return the bound of this process: a forked child has another loop."""
    loop = asyncio.get_running_loop()
    found = _IN_FLIGHT.get(loop)
    if found is None:
        found = _IN_FLIGHT[loop] = InFlight()
    return found
