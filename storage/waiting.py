"""Waiting for another process: look, pause, look again, until there is no more time.

What takes a pass over a whole volume is worked out by one process; the others wait for its file.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from ..core.errors import CacheBusy, VoxpipeError
from .cache_directory import CLOSED, FAILING, MOST_KEPT_BYTES, NO_LINK, make_directory, warn_unused

# Short beside what is waited for, a decoded or converted volume; long beside a look.
POLL_SECONDS = 0.02
# At a lock, while others may take a link away from there: each sees one more change at most.
_LOOKS = 10
# A pass over a volume of 100 GB takes it at 200 MB/s; after that each process makes its own.
LONGEST_PASS = 600.0

T = TypeVar("T")


def pause(deadline: float, busy: Callable[[], VoxpipeError]) -> None:
    """Wait before the next look.

    Parameters
    ----------
    deadline
        On the monotonic clock.
    busy
        Makes the error that is raised once that has passed.
    """
    if time.monotonic() >= deadline:
        raise busy()
    time.sleep(POLL_SECONDS)


def open_lock(path: Path) -> BinaryIO:
    """Open the file of a lock, made where there is none.

    A link in its place is replaced, and not followed. In a folder that may not be written to, a
    lock that is there can be taken all the same.

    Raises
    ------
    OSError
        There is none, and none can be made.
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
    """Take the kernel's lock of an open file; closing the file gives it back.

    Polled, because waiting in the kernel has no timeout.
    """
    import fcntl

    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause(deadline, busy)
        else:
            return


def made_once(
    file: Path | None,
    load: Callable[[Path], T | None],
    make: Callable[[], T],
    save: Callable[[Path, T], None],
    *,
    unchanged: Callable[[], bool] = lambda: True,
    patience: float = LONGEST_PASS,
) -> T:
    """Return what a file holds; where there is nothing sound, make it, and write it there.

    Of several processes that ask, one makes it and the others wait for its file. Where the lock
    cannot be had (a read-only disk, a system without ``flock``), each makes its own.

    Parameters
    ----------
    file
        Named after the content that it is made of; None where nothing is kept.
    load
        Returns what the file holds, None if that is not sound.
    make
        Works it out: takes long.
    save
        Writes it.
    unchanged
        Whether the content is still what the file is named after, asked when it is made.
    patience
        Longest wait for another process, in seconds.
    """
    if file is None:
        return make()
    found = load(file)
    if found is not None:
        return found
    with _alone(file, time.monotonic() + patience) as waited:
        found = load(file) if waited else None
        if found is None:
            found = make()
            if unchanged():
                _saved(file, found, save)
        return found


def _saved(file: Path, found: T, save: Callable[[Path, T], None]) -> None:
    """Write what was found; it only saves time: a full or read-only disk must not stop anybody."""
    try:
        save(file, found)
    except OSError as error:
        if error.errno in FAILING:
            warn_unused(file.parent, 0, f"the {file.parent.name}", error, MOST_KEPT_BYTES)


@contextmanager
def _alone(file: Path, deadline: float) -> Iterator[bool]:
    """Keep other processes out that want to make the same; yield whether to look again."""
    lock_file = file.with_name(f"{file.name}.lock")
    held = None
    with suppress(OSError, ImportError):
        held = _locked(lock_file, deadline)
    try:
        yield held is not None
    finally:
        if held is not None:
            # Removed while it is held: who waited sees that it is gone, and makes a new one.
            with suppress(OSError):
                lock_file.unlink()
            held.close()


def _locked(path: Path, deadline: float) -> BinaryIO | None:
    """Return the lock, held; None where another process kept it too long."""
    make_directory(path.parent)
    while True:
        file = open_lock(path)  # whoever holds the lock closes it
        try:
            lock(file, deadline, lambda: CacheBusy("waited too long.", do=""))
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    return file
        except CacheBusy:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        file.close()
