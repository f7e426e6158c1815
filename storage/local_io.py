"""How bare voxels of a local file are read: mapped, by ``pread``, or past the page cache.

A decision, and the reason for it; nothing is opened here. All three give the same voxels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .file_system import FileSystem

IoMode = Literal["mmap", "pread", "direct"]
IO_MODES = ("auto", "mmap", "pread", "direct")
"""What ``io=`` may be."""

# Where O_DIRECT is known to be worth a try without being asked for it.
_DIRECT_KINDS = ("ext4", "xfs")
# By how much one file must exceed the memory before the page cache is left alone: at 4, three of
# four pages that are read again are gone from it anyway.
_FAR_BIGGER = 4


@dataclass(frozen=True)
class IoChoice:
    """How a file is read, and why."""

    mode: IoMode
    """How."""
    reason: str
    """Why, as the end of a sentence."""
    network: bool = False
    """Whether the file lies on a network file system."""

    def __str__(self) -> str:
        return f"{self.mode}: {self.reason}"


def choose_io(wanted: str, place: FileSystem, size: int, memory: int) -> IoChoice:
    """Return how a file of bare voxels is read.

    A map of a network file system turns each page that is touched into a request (nibabel #1371:
    37 to 91 s where reads take 3.6 s), so those are read in long runs. The page cache is left out
    only where it can hardly ever help.

    Parameters
    ----------
    wanted
        What the user said, one of ``IO_MODES``.
    place
        The file system of the file.
    size
        Bytes of the file.
    memory
        Bytes of memory that this process may use; 0 where unknown.

    Examples
    --------
    >>> print(choose_io("auto", FileSystem("ext4"), 10**9, 10**10))
    mmap: ext4 is on a disk of this machine
    >>> print(choose_io("auto", FileSystem("nfs4"), 10**9, 10**10))
    pread: nfs4 is reached through a network, or another process
    """
    if wanted != "auto":
        return IoChoice(wanted, f"io={wanted!r} was asked for", place.network)  # type: ignore[arg-type]
    if place.network:
        return IoChoice("pread", f"{place.kind} is reached through a network, or another process",
                        network=True)  # fmt: skip
    if place.nvme and place.kind in _DIRECT_KINDS and memory and size > _FAR_BIGGER * memory:
        return IoChoice("direct", f"the file has more than {_FAR_BIGGER} times this memory")
    if not place.kind:
        return IoChoice("mmap", "the file system is not known")
    return IoChoice("mmap", f"{place.kind} is on a disk of this machine")


def check_io(io: str) -> str:
    """Return ``io``; ``ValueError`` for what is no mode."""
    if io not in IO_MODES:
        msg = f"io is one of {', '.join(map(repr, IO_MODES))}, got {io!r}"
        raise ValueError(msg)
    return io
