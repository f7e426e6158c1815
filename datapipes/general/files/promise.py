"""The right to make one file, held by one process at a time.

A promise is a file beside the one that is promised. Its owner holds the kernel's lock on it and
has written into it who it is. A dead owner holds no lock, so what it left is simply taken over;
where a child that it forked still holds the lock for it, the number of the process tells.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType

from ....core.sample import parse_json

PROMISE = ".promise"
"""End of the name of a promise."""
_MOST_BYTES = 4096


@dataclass(frozen=True)
class Owner:
    """Who makes a file."""

    pid: int
    """Number of the process."""
    started: int
    """When the kernel started it, in its own ticks: a number may be given out again."""
    place: str
    """Machine, and space of process numbers on it; elsewhere the number says nothing."""
    thread: int
    """Thread in it."""

    def is_dead(self) -> bool:
        """Whether that process is known to be gone."""
        return self.place == _place() and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.place.partition(' ')[0]}"


def myself() -> Owner:
    """Return who asks."""
    pid = os.getpid()
    return Owner(pid, _started(pid), _place(), threading.get_ident())


class Promise:
    """A promise that is held; leaving the context gives it up."""

    def __init__(self, path: str, file: int) -> None:
        self._path = path
        self._file = file

    def __enter__(self) -> Promise:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Removed before it is unlocked: whoever gets the lock after that sees that it is gone.
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._file)


def claim(path: str) -> Promise | None:
    """Return the promise to make the file at ``path``; None if another process holds it.

    Examples
    --------
    >>> with claim("volume.nii") as promise:
    ...     print(claim("volume.nii"), owner_of("volume.nii") == myself())
    None True
    """
    import fcntl

    promise = f"{path}{PROMISE}"
    folder = os.path.dirname(promise)
    if folder:
        os.makedirs(folder, exist_ok=True)
    while True:
        file = os.open(promise, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            if _bury(promise):
                continue
            return None
        except BaseException:
            os.close(file)
            raise
        if not _is_still(file, promise):
            # Its owner gave it up in between.
            os.close(file)
            continue
        held = Promise(promise, file)
        try:
            os.ftruncate(file, 0)
            os.write(file, json.dumps(asdict(myself())).encode())
        except BaseException:
            # The disk is full, say: held without an owner it would keep everybody waiting.
            held.__exit__(None, None, None)
            raise
        return held


def owner_of(path: str) -> Owner | None:
    """Return who makes the file at ``path``; None if nobody does, or has not said so yet."""
    with suppress(OSError, ValueError, TypeError), open(f"{path}{PROMISE}", "rb") as file:
        return Owner(**parse_json(file.read(_MOST_BYTES)))
    return None


def _bury(promise: str) -> bool:
    """Remove a promise that only a child of its dead owner still holds; say whether it is gone.

    One process at a time does so: the next one would remove the new promise in its place.
    """
    import fcntl

    path = promise.removesuffix(PROMISE)
    owner = owner_of(path)
    if owner is None or not owner.is_dead():
        return not os.path.exists(promise)
    folder = os.open(os.path.dirname(promise) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        owner = owner_of(path)
        if owner is not None and owner.is_dead():
            os.unlink(promise)
            return True
        return not os.path.exists(promise)
    finally:
        os.close(folder)


def _is_still(file: int, path: str) -> bool:
    """Whether an open file is the one that has this path now."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), os.stat(path))
    return False


def _place() -> str:
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {space}"


def _started(pid: int) -> int:
    """Return when a process was started; -1 if there is none, 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field, the name, may hold anything, but only its own ) is the last.
            fields = file.read().rpartition(b")")[2].split()
        # Of one that nobody has waited for yet there is nothing left that could write.
        return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
    except FileNotFoundError:
        pass
    if os.path.exists("/proc/self/stat"):
        return -1
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return -1
    except OSError:
        return 0
    return 0
