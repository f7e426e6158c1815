"""Where decoded volumes and statistics are kept on this machine."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ...core.errors import VolumeReadError
from ..stores.location import is_url, local_path, public_name

DIRECTORY_VARIABLE = "VOXPIPE_CACHE"
BUDGET_VARIABLE = "VOXPIPE_CACHE_BYTES"
# A few dozen decoded CT scans (512³ int16 are 0.27 GB); leaves room on a 100 GB disk.
DEFAULT_BUDGET = 32 * 1024**3
# Of each kind of number (statistics, histograms, boxes, tables): those of 100 000 volumes.
MOST_KEPT_BYTES = 1024**3
_BLOCK = 4096
_BETWEEN_REMOVALS = 64
_until_removal = _BETWEEN_REMOVALS


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$VOXPIPE_CACHE``, else ``voxpipe`` in the user's cache directory (XDG).

    Examples
    --------
    >>> str(cache_directory({"XDG_CACHE_HOME": "/scratch/me"}))
    '/scratch/me/voxpipe'
    """
    if environment.get(DIRECTORY_VARIABLE):
        place = environment[DIRECTORY_VARIABLE]
        if is_url(place):
            raise VolumeReadError(
                f"{DIRECTORY_VARIABLE} is {public_name(place)}, and the cache is on a local disk.",
                do="Set it to a folder, or unset it.",
            )
        return Path(local_path(place))
    root = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "voxpipe"


def cache_budget(environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes that decoded volumes may take: ``$VOXPIPE_CACHE_BYTES``, else 32 GiB.

    Examples
    --------
    >>> cache_budget({"VOXPIPE_CACHE_BYTES": "1000000"})
    1000000
    """
    text = environment.get(BUDGET_VARIABLE)
    if not text:
        return DEFAULT_BUDGET
    try:
        return int(text)
    except ValueError:
        raise VolumeReadError(
            f"{BUDGET_VARIABLE} is {text!r}, which is no number of bytes.",
            do="Set it to an integer, or unset it for 32 GiB.",
        ) from None


def make_directory(directory: Path) -> Path:
    """Make a directory that only the user can look into: it will hold scans of people."""
    # ``parents=True`` would make the parents readable by everyone.
    for place in (*reversed(directory.parents), directory):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)
    return directory


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that others see all of it or nothing."""
    make_directory(path.parent)
    write_beside(path, content)


def write_kept(path: Path, content: bytes) -> None:
    """Write a small file that only saves time; now and then the oldest beside it are removed."""
    global _until_removal
    write_whole(path, content)
    _until_removal -= 1
    if _until_removal <= 0:
        _until_removal = _BETWEEN_REMOVALS
        remove_oldest(path.parent, MOST_KEPT_BYTES)


def remove_oldest(folder: Path, most: int) -> None:
    """Remove the files of a folder that were written first, until the rest takes ``most`` bytes."""
    held = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat()
                # A file of one byte takes a block of the disk.
                held.append((status.st_mtime_ns, max(status.st_size, _BLOCK), entry.path))
    used = sum(size for _, size, _ in held)
    for _, size, path in sorted(held):
        if used <= most:
            return
        with suppress(OSError):
            os.unlink(path)
            used -= size


def write_beside(path: Path, content: bytes) -> None:
    """Write a file in a directory that is there; several may, and the last one stays.

    Each has a partial file of its own: of two that share one, the first gives its name to what
    the second has not finished.
    """
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
