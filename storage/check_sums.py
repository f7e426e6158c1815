"""Length and check sum of what is kept: an entry that was cut or changed is noticed, and made anew.

Looking through whole volumes each time they are opened would cost as much as decoding them. What
can cut an entry behind our back is a machine that loses its power. So check sums are looked at
once after each start of the machine, and whenever a file has another size or time of writing than
it was left with.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from .cache_directory import is_trusted, open_trusted, read_kept, sealed, sync_folder, write_whole

SUMS = "sums"
"""Folder of the check sums, in that of the entries."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIECE_BYTES = 4 * 1024**2
# Of entries in folders that cannot be written to: looked through once by each process.
_LOOKED_THROUGH: set[tuple[Any, ...]] = set()

Sums = dict[str, tuple[int, int, int]]
"""By name in the entry, empty for a file: bytes, CRC-32, and time of writing in nanoseconds."""


@cache
def boot() -> str:
    """Return what tells this start of the machine from others; empty where nobody tells."""
    with suppress(OSError):
        return _BOOT.read_text("ascii").strip()
    return ""


def seal(entry: Path, sums: Path) -> None:
    """Bring an entry to the disk, a file or a folder, and note its check sums.

    The entry gets its name only then.
    """
    found: Sums = {}
    for name, path in _paths(entry):
        status = os.lstat(path)
        if stat.S_IMODE(status.st_mode) & 0o022:
            os.chmod(path, stat.S_IMODE(status.st_mode) & ~0o022)
        if stat.S_ISDIR(status.st_mode):
            continue
        with open(path, "rb", opener=open_trusted) as file:
            os.fsync(file.fileno())
            found[name] = (status.st_size, check_sum(file), status.st_mtime_ns)
    _note(sums, found)


def sync_files(entry: Path) -> None:
    """Bring a folder and all that is in it to the disk."""
    for _, path in reversed(list(_paths(entry))):
        if os.path.isdir(path):
            sync_folder(Path(path))
            continue
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def is_sound(entry: Path, sums: Path, size: int | None = None) -> bool:
    """Whether an entry is whole, as it was sealed, and of nobody else.

    Parameters
    ----------
    entry, sums
        As of :func:`seal`.
    size
        Bytes that it must have.
    """
    noted = read_kept(sums)
    if noted is None:
        return False
    with suppress(OSError, ValueError, TypeError, KeyError):
        document = json.loads(noted)
        expected: Sums = {str(name): tuple(sum_) for name, sum_ in document["files"].items()}
        found = _statuses(entry)
        if {name: status.st_size for name, status in found.items()} != {
            name: length for name, (length, _, _) in expected.items()
        }:
            return False
        if size is not None and sum(length for length, _, _ in expected.values()) != size:
            return False
        as_left = all(found[name].st_mtime_ns == noted for name, (_, _, noted) in expected.items())
        if as_left and document["boot"] == boot() != "":
            return True
        return _is_unchanged(entry, sums, expected, found)
    return False


def remove_sums(sums: Path) -> None:
    """Forget the check sums of an entry that is gone."""
    with suppress(OSError):
        sums.unlink()


def check_sum(file: Any) -> int:
    """Return the CRC-32 of the rest of an open file."""
    crc32 = _fastest_crc32()
    total = 0
    while piece := file.read(_PIECE_BYTES):
        total = crc32(piece, total)
    return total


def _is_unchanged(
    entry: Path, sums: Path, expected: Sums, found: dict[str, os.stat_result]
) -> bool:
    """Look through all files; note that it was done, for everybody where that can be written."""
    seen = tuple(
        (name, status.st_dev, status.st_ino, status.st_mtime_ns, expected[name])
        for name, status in sorted(found.items())
    )
    if seen in _LOOKED_THROUGH:
        return True
    for name in expected:
        with open(entry / name if name else entry, "rb", opener=open_trusted) as file:
            if check_sum(file) != expected[name][1]:
                return False
    _LOOKED_THROUGH.add(seen)
    with suppress(OSError):
        _note(sums, {n: (*expected[n][:2], found[n].st_mtime_ns) for n in expected})
    return True


def _note(sums: Path, files: Sums) -> None:
    content = json.dumps({"boot": boot(), "files": files}).encode()
    # Where they are cut the entry is made again; that takes no wait for the disk.
    write_whole(sums, sealed(content), synced=False)


def _statuses(entry: Path) -> dict[str, os.stat_result]:
    """Return the status of each file; ``PermissionError`` where somebody else may have put it."""
    found = {}
    for name, path in _paths(entry):
        status = os.lstat(path)
        regular = stat.S_ISREG(status.st_mode)
        if not is_trusted(status) or not (regular or stat.S_ISDIR(status.st_mode)):
            raise PermissionError(path)
        if regular:
            found[name] = status
    return found


def _paths(entry: Path) -> Iterator[tuple[str, str]]:
    """Yield name and path of an entry, or of all files and folders in one, outer ones first."""
    yield "", str(entry)
    if not stat.S_ISDIR(os.lstat(entry).st_mode):
        return
    for place, folders, files in os.walk(entry):
        for name in sorted([*folders, *files]):
            path = os.path.join(place, name)
            yield os.path.relpath(path, entry), path


def _fastest_crc32() -> Any:
    """Return isal's, four times as fast, or Python's; they give the same number."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    return isal_zlib.crc32
