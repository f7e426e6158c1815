"""One writer at a time in a bucket, which has no locks: an object that its owner keeps renewing.

The lease is an object that is made only where there is none (``If-None-Match``). While it is held,
a thread writes it again and again; one that stays the same for as long as a lease lasts belongs
to a writer that is dead, and whoever waits takes it over. Only this waiting is measured: the
clocks of two machines never meet. Who takes a lease over first makes an object that is named by
its last owner, so that of several that wait one succeeds.

A store that knows no conditional requests is written to and read again, which finds all but two
writers that begin within the same moment.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..core.errors import CacheBusy
from .location import remote_errors

# Three beats may fail in a row. A killed writer makes the next one wait this long.
LEASE_SECONDS = 60.0
_BEATS = 4
# While a lease lasts; each costs two requests.
_LOOKS = 60


class RemoteLease:
    """The right to write at one place.

    Parameters
    ----------
    system, path
        An fsspec file system, and the object that stands for the right.
    name
        What errors call the place.
    seconds
        How long a lease lasts that is not renewed.
    """

    def __init__(self, system: Any, path: str, name: str, seconds: float = LEASE_SECONDS) -> None:
        self._system, self._path, self._name = system, path, name
        self._seconds = seconds
        self._owner = uuid.uuid4().hex
        self._beat = 0

    @contextmanager
    def held(self, timeout: float) -> Iterator[None]:
        """Take the lease, waiting for another writer if need be, and renew it meanwhile.

        Raises
        ------
        CacheBusy
            Another writer kept it for longer than ``timeout`` seconds.
        """
        with remote_errors(self._name):
            self._take(time.monotonic() + timeout)
        ended = threading.Event()
        beating = threading.Thread(target=self._renew, args=(ended,), daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()
            with remote_errors(self._name):
                if self._is_ours(self._read()):
                    with suppress(FileNotFoundError):
                        self._system.rm_file(self._path)

    def check(self) -> None:
        """Raise ``CacheBusy`` where the lease is not ours any more: another writer goes on."""
        if not self._is_ours(self._read()):
            raise CacheBusy(
                f"another process took over writing {self._name}, because this one had not said "
                f"for {self._seconds:g} s that it is alive.",
                do="Let the other one finish; what was written here is continued there.",
            )

    def _take(self, deadline: float) -> None:
        seen: bytes | None = None
        unchanged = 0
        while not self._create(self._path, self._content()):
            found, now = self._read(), time.monotonic()
            unchanged = unchanged + 1 if found == seen else 0
            seen = found
            # Looks are counted, not seconds: a machine that slept would find every lease old.
            if found is not None and unchanged >= _LOOKS and self._take_over(found):
                return
            if now >= deadline:
                raise CacheBusy(
                    f"another process is writing {self._name}.",
                    do=f"Wait for it. If it was killed, wait {self._seconds:g} s, or remove "
                    f"{self._path} yourself; what it has written will be continued.",
                )
            time.sleep(min(self._seconds / _LOOKS, max(0.0, deadline - now)))

    def _take_over(self, found: bytes) -> bool:
        """Put our lease in the place of a dead one, unless somebody else does."""
        claim = f"{self._path}.{_owner_of(found)}"
        if not self._create(claim, self._owner.encode()):
            return False
        try:
            # Who was faster may have finished taking it over before the claim was made.
            if self._read() != found:
                return False
            self._system.pipe_file(self._path, self._content())
        finally:
            self._system.rm_file(claim)
        return True

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(self._seconds / _BEATS):
            # One that fails is followed by others; ``check`` tells if all of them did.
            with suppress(Exception):
                if not self._is_ours(self._read()):
                    return
                self._beat += 1
                self._system.pipe_file(self._path, self._content())

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, "beat": self._beat}).encode()

    def _is_ours(self, content: bytes | None) -> bool:
        return content is not None and _owner_of(content) == self._owner

    def _create(self, path: str, content: bytes) -> bool:
        """Make an object where there is none; say whether it is ours."""
        try:
            self._system.pipe_file(path, content, mode="create")
        except OSError:  # FileExistsError, or whatever a client makes of status 412
            found = self._get(path)
            if found is None:
                raise
            # Ours if the answer to the first attempt was lost.
            return found == content
        # A store may not know the condition.
        return self._get(path) == content

    def _read(self) -> bytes | None:
        return self._get(self._path)

    def _get(self, path: str) -> bytes | None:
        try:
            found: bytes = self._system.cat_file(path)
        except FileNotFoundError:
            return None
        return found


def _owner_of(content: bytes) -> str:
    """Return who holds a lease; an object that is none belongs to nobody."""
    with suppress(ValueError, TypeError, KeyError):
        return str(uuid.UUID(json.loads(content)["owner"]).hex)
    return "nobody"
