"""How bare voxels of a local file are read: mapped, by ``pread``, or past the page cache.

A decision, and the reason for it; nothing is opened here. All three give the same voxels.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import BinaryIO, Literal

# What kind of file system a file lies on, and whether that is this machine's own disk.
#
# Asked of ``/proc/self/mountinfo`` once per device; where there is none, nothing is known.

# Those of which a page fault is a request to another machine or another process. mmap of 9p is
# not even coherent.
NETWORK_KINDS = frozenset(
    {"9p", "acfs", "afs", "beegfs", "ceph", "cifs", "fhgfs", "glusterfs", "gpfs", "lustre"}
    | {"nfs", "nfs4", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf"}
    | {"virtiofs", "vmhgfs", "wekafs"}
)
# A FUSE file system on a block device of this machine, e.g. NTFS.
_FUSE_ON_A_DISK = "fuseblk"
_MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class FileSystem:
    """Where a file lies."""

    kind: str = ""
    """As the kernel calls it, e.g. ``"ext4"``; empty where nobody tells."""
    nvme: bool = False
    """Whether it is on an NVMe disk of this machine."""

    @property
    def network(self) -> bool:
        """Whether each access asks another machine, or a process that may ask one."""
        fuse = self.kind == "fuse" or self.kind.startswith("fuse.")
        return self.kind in NETWORK_KINDS or (fuse and self.kind != _FUSE_ON_A_DISK)


_KNOWN: dict[int, FileSystem] = {}
"""By device number: one file system has one kind for as long as it is mounted."""


def file_system_of(file: BinaryIO) -> FileSystem:
    """Return the file system of an open file; one of no kind where nobody tells."""
    return _known(os.fstat(file.fileno()).st_dev, file.name)


def file_system_at(path: str) -> FileSystem:
    """Return the file system of a path that exists."""
    return _known(os.stat(path).st_dev, path)


def _known(device: int, path: str) -> FileSystem:
    if device not in _KNOWN:
        _KNOWN[device] = _asked(os.path.realpath(path), device)
    return _KNOWN[device]


def _asked(path: str, device: int) -> FileSystem:
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            kind = kind_of(path, file.read())
        disk = os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    except OSError:
        return FileSystem()
    return FileSystem(kind, "/nvme" in disk)


def kind_of(path: str, mounts: str) -> str:
    r"""Return the kind of the file system that holds ``path``, of the text of a mountinfo file.

    The last mount of the longest mount point counts: it covers those before it. The device
    number would not do: overlays and btrfs give files another one than their mount.
    """
    longest, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]).rstrip("/")
        if (path == point or path.startswith(f"{point}/")) and len(point) >= longest:
            longest, kind = len(point), after.split(" ")[0]
    return kind


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
