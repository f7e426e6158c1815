"""What the caches on the disk hold, decoded and converted volumes alike, and how room is made.

One budget is for both: each cache counts what the other holds, and the least recently used goes
first, whichever cache it lies in.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .check_sums import SUMS, remove_sums
from .waiting import open_lock

WHOLE = ".nii"
PARTIAL = ".part"
CONVERTED = "converted"
"""Folder of the converted volumes, in the folder of the decoded ones."""
_GROUP = ".zarr"
LOCKS = "locks"


@dataclass(frozen=True)
class Held:
    """Something that takes room."""

    last_used: int
    """In nanoseconds since 1970."""
    size: int
    """Bytes."""
    remove: Callable[[], bool]
    """Removes it; False where somebody uses it, or the system refuses."""


def decoded_held(directory: Path) -> Iterator[Held]:
    """Yield the decoded volumes; those that are being written stay."""
    for path in directory.glob("*"):
        if path.suffix not in (WHOLE, PARTIAL):
            continue
        with suppress(FileNotFoundError):
            status = path.stat()
            remove = _unlinked(path) if path.suffix == WHOLE else _stays
            # The time of last use; that of writing tells that it is as it was left.
            yield Held(status.st_atime_ns, status.st_size, remove)


def converted_held(directory: Path, keep: str = "") -> Iterator[Held]:
    """Yield the converted volumes, and first what killed processes left of others.

    An unfinished conversion goes on where it was, if nobody needs its room. Entry ``keep`` stays.
    """
    for left in directory.glob(f".*{_GROUP}{PARTIAL}"):
        key = left.name[1 : -len(_GROUP + PARTIAL)]
        yield Held(0, size_of(left), _removed(directory, key, left))
    for left in directory.glob(".*.gone"):
        yield Held(0, size_of(left), _removed(directory, left.name[1 : -len(".gone")], left))
    for path in directory.glob(f"[!.]*{_GROUP}"):
        with suppress(FileNotFoundError):
            remove = _stays if path.stem == keep else _removed(directory, path.stem, path)
            yield Held(path.stat().st_mtime_ns, size_of(path), remove)


def make_room(held: list[Held], most: int) -> int:
    """Remove the least recently used until the rest takes at most ``most``; return the rest."""
    used = sum(each.size for each in held)
    for each in sorted(held, key=lambda each: each.last_used):
        if used <= most:
            break
        if each.remove():
            used -= each.size
    return used


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, file)).st_size
    return total


def _stays() -> bool:
    return False


def _unlinked(path: Path) -> Callable[[], bool]:
    def remove() -> bool:
        with suppress(OSError):
            path.unlink(missing_ok=True)
            remove_sums(path.parent / SUMS / path.stem)
        return not path.exists()

    return remove


def _removed(directory: Path, key: str, path: Path) -> Callable[[], bool]:
    """Return what removes a folder, if nobody reads or writes the entry of this key."""

    def remove() -> bool:
        import fcntl

        with open_lock(directory / LOCKS / key) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            gone = path
            if not path.name.startswith("."):
                # Renamed first: a kill in the middle leaves no half entry under its name. What
                # one before left is in the way of that.
                gone = directory / f".{key}.gone"
                shutil.rmtree(gone, ignore_errors=True)
                with suppress(OSError):
                    os.rename(path, gone)
            shutil.rmtree(gone, ignore_errors=True)
            if path.suffix == _GROUP and not path.exists():
                remove_sums(directory / SUMS / key)
        return not (path.exists() or gone.exists())

    return remove
