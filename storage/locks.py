"""One writer at a time: locks of local files, and leases in buckets, which have no locks."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..core.errors import CacheBusy, VoxpipeError
from ..core.sample import parse_json
from .location import remote_errors
from .remote_answers import is_conflict

# Short beside what is waited for, a decoded or converted volume; long beside a look.
POLL_SECONDS = 0.02
# At a lock, while others may take a link away from there: each sees one more change at most.
_LOOKS = 10
CLOSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ELOOP})
"""What a folder says that may not be written to, or where somebody put a link in our way."""
# Opens nothing that somebody put in our way.
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def pause(deadline: float, busy: Callable[[], VoxpipeError]) -> None:
    """Wait before the next look."""
    if time.monotonic() >= deadline:
        raise busy()
    time.sleep(POLL_SECONDS)


def open_lock(path: Path) -> BinaryIO:
    """Open the file of a lock, made where there is none.

    A link in its place is replaced, and not followed. In a folder that may not be written to, a
    lock that is there can be taken all the same.
    """
    for _ in range(_LOOKS):
        try:
            return _open_lock(path)
        except OSError as error:
            # Of a link that another process is just taking away the system says either.
            is_going = error.errno == errno.ENOENT and path.parent.is_dir()
            if error.errno != errno.ELOOP and not is_going:
                raise
        _remove_link(path)
    return _open_lock(path)


def _open_lock(path: Path) -> BinaryIO:
    try:
        return open(os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o600), "r+b", buffering=0)
    except OSError as error:
        if error.errno not in CLOSED:
            raise
        return open(os.open(path, os.O_RDONLY | NO_LINK), "rb", buffering=0)


def _remove_link(path: Path) -> None:
    """Take away a link, one process at a time: by then a lock of another may be there."""
    import fcntl

    fd = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # held for no longer than this
        if stat.S_ISLNK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
    finally:
        os.close(fd)


def lock(file: BinaryIO, deadline: float, busy: Callable[[], VoxpipeError]) -> None:
    """Take the kernel's lock of a file, until that is closed; polled, or it had no timeout."""
    import fcntl

    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause(deadline, busy)
        else:
            return


def is_still(file: int, path: str | Path) -> bool:
    """Whether an open file is the one that has this path now."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), os.stat(path))
    return False


# Three beats may fail in a row. A killed writer makes the next one wait this long.
LEASE_SECONDS = 60.0
_BEATS = 4
# While a lease lasts; each costs a request, two where a claim is watched.
_LOOKS_AT_LEASE = 60
# Leases to wait for a killed writer and a killed taker, and for the requests meanwhile.
_PATIENCE = 3


class RemoteLease:
    """The right to write at one place of a bucket: an object that its owner keeps renewing.

    It is made only where there is none (``If-None-Match``). While it is held, a thread writes it
    again and again; one that stays the same for as long as a lease lasts belongs to a writer that
    is dead, and whoever waits takes it over. Only this waiting is measured: the clocks of two
    machines never meet. Who takes a lease over first makes an object that is named by its last
    owner, the claim, so that of several that wait one succeeds. A claim that stays belongs to a
    taker that is dead, and is taken over in the same way, by an object named by both.

    Whoever begins looks first and makes its object only where there is none, so a store that knows
    no conditional requests does not lose a lease that is held. What was made there is read again,
    which finds all but two writers that begin within the same moment.
    A lease that is not renewed lasts ``seconds``.
    """

    def __init__(
        self,
        system: Any,
        path: str,
        name: str,
        seconds: float = LEASE_SECONDS,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._system, self._path, self._name = system, path, name
        self._options = dict(options or {})
        self._seconds = seconds
        self._owner = uuid.uuid4().hex
        self._beat = 0

    @contextmanager
    def held(self, timeout: float) -> Iterator[None]:
        """Take the lease, waiting for another writer if need be, and renew it meanwhile."""
        with remote_errors(self._name, self._options):
            self._take(time.monotonic() + timeout)
        ended = threading.Event()
        beating = threading.Thread(target=self._renew, args=(ended,), daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()
            with remote_errors(self._name, self._options):
                if self._is_ours(self._get(self._path)):
                    with suppress(FileNotFoundError):
                        self._system.rm_file(self._path)

    def check(self) -> None:
        """Raise ``CacheBusy`` where the lease is not ours any more: another writer goes on."""
        if not self._is_ours(self._get(self._path)):
            raise CacheBusy(
                f"another process took over writing {self._name}, because this one had not said "
                f"for {self._seconds:g} s that it is alive.",
                do="Let the other one finish; what was written here is continued there.",
            )

    def _take(self, deadline: float) -> None:
        # The lease, and the claims of takers that did not finish; the last is being watched.
        chain: list[bytes] = []
        unchanged = 0
        while True:
            found, now = self._get(self._path), time.monotonic()
            if found is None and self._create(self._path):
                return
            if found is not None and self._stands(chain, found):
                unchanged += 1
            else:
                chain, unchanged = [] if found is None else [found], 0
            # Looks are counted, not seconds: a machine that slept would find every lease old.
            if unchanged >= _LOOKS_AT_LEASE:
                if self._take_over(chain):
                    return
                claim, unchanged = self._get(self._claim(chain)), 0
                chain = [*chain, claim] if claim is not None else []
            if now >= deadline:
                raise CacheBusy(
                    f"another process is writing {self._name}.",
                    do="Wait for it. If it was killed, give a timeout of more than "
                    f"{_PATIENCE * self._seconds:g} s, or remove {self._path} yourself; what it "
                    "has written will be continued.",
                )
            time.sleep(min(self._seconds / _LOOKS_AT_LEASE, max(0.0, deadline - now)))

    def _stands(self, chain: Sequence[bytes], found: bytes) -> bool:
        """Whether the lease, and the claim that is watched, are what they were."""
        if not chain or chain[0] != found:
            return False
        return len(chain) == 1 or self._get(self._claim(chain[:-1])) == chain[-1]

    def _take_over(self, chain: Sequence[bytes]) -> bool:
        """Put our lease in the place of a dead one, unless somebody else does."""
        claim = self._claim(chain)
        if not self._create(claim):
            return False
        # Who was faster may have finished taking it over before the claim was made.
        taken = self._get(self._path) == chain[0]
        if taken:
            self._system.pipe_file(self._path, self._content())
        # From the last: who finds the first one gone finds our lease.
        dead = [self._claim(chain[:end]) for end in range(len(chain) - 1, 0, -1)] if taken else []
        for path in (claim, *dead):
            with suppress(FileNotFoundError):
                self._system.rm_file(path)
        return taken

    def _claim(self, chain: Sequence[bytes]) -> str:
        """Return the object that succeeds a dead lease and dead claims of it."""
        return ".".join((self._path, *map(_owner_of, chain)))

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(self._seconds / _BEATS):
            # One that fails is followed by others; ``check`` tells if all of them did.
            with suppress(Exception):
                if not self._is_ours(self._get(self._path)):
                    return
                self._beat += 1
                self._system.pipe_file(self._path, self._content())

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, "beat": self._beat}).encode()

    def _is_ours(self, content: bytes | None) -> bool:
        return content is not None and _owner_of(content) == self._owner

    def _create(self, path: str) -> bool:
        """Make an object of ours where there is none; say whether it is there."""
        content = self._content()
        try:
            self._system.pipe_file(path, content, mode="create")
        except OSError as error:  # FileExistsError, or whatever a client makes of status 412
            found = self._get(path)
            # What was in the way may be gone by now; anything else is a failure.
            if found is None and not is_conflict(error):
                raise
            # Ours if the answer to the first attempt was lost.
            return found == content
        # A store may not know the condition.
        return self._get(path) == content

    def _get(self, path: str) -> bytes | None:
        try:
            found: bytes = self._system.cat_file(path)
        except FileNotFoundError:
            return None
        return found


def _owner_of(content: bytes) -> str:
    """Return who holds a lease; an object that is none belongs to nobody."""
    with suppress(ValueError, TypeError, KeyError):
        return str(uuid.UUID(parse_json(content)["owner"]).hex)
    return "nobody"
