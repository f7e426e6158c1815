"""Where decoded volumes and statistics are kept on this machine."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from ...core.errors import VolumeReadError

DIRECTORY_VARIABLE = "VOXPIPE_CACHE"
BUDGET_VARIABLE = "VOXPIPE_CACHE_BYTES"
# A few dozen decoded CT scans (512³ int16 are 0.27 GB); leaves room on a 100 GB disk.
DEFAULT_BUDGET = 32 * 1024**3


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$VOXPIPE_CACHE``, else ``voxpipe`` in the user's cache directory (XDG).

    Examples
    --------
    >>> str(cache_directory({"XDG_CACHE_HOME": "/scratch/me"}))
    '/scratch/me/voxpipe'
    """
    if environment.get(DIRECTORY_VARIABLE):
        return Path(environment[DIRECTORY_VARIABLE]).expanduser()
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
