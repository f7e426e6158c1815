"""Uncompressed voxels of a local file, mapped or read by ``pread``.

An open volume has one descriptor without a shared offset, so that any thread and any forked child
may read. Only one block at a time keeps the bytes between its rows in memory.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..core.errors import TruncatedVolume, VolumeError
from ..core.locks import DeferredActs, ForkSafeLock, renew_after_fork
from .ranges import (
    LOCAL_GAP,
    LOCAL_RUN,
    NETWORK_GAP,
    NETWORK_RUN,
    CoalescePolicy,
    Span,
    coalesce_policy,
    row_of,
)

# Kinds of file systems, read from ``/proc/self/mountinfo`` once per device; unknown without it.

# A page fault on these is a request to another machine or process. mmap of 9p is not even coherent.
is_network = re.compile(
    r"9p|acfs|afs|beegfs|ceph|cifs|fhgfs|fuse(\..*)?|glusterfs|gpfs|lustre|nfs4?|orangefs|panfs|"
    r"prl_fs|pvfs2|smb3|smbfs|vboxsf|virtiofs|vmhgfs|wekafs"
).fullmatch
"""Match of the kind of a network file system; else None."""
RENUMBERING_KINDS = frozenset({"exfat", "fuseblk", "msdos", "vfat"})
"""Kinds of local disks that may change the inode number of an unchanged file.

``fuseblk`` is FUSE on a block device of this machine, e.g. NTFS.
"""
_MOUNTS = "/proc/self/mountinfo"
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


_KINDS: dict[int, str] = {}  # of file systems, by device number


def file_system_at(path: str, device: int = -1) -> str:
    """Return the kind of the file system of an existing path, e.g. ``"ext4"``; empty if unknown.

    ``device`` saves a ``stat``.
    """
    device = os.stat(path).st_dev if device < 0 else device
    if device not in _KINDS:
        _KINDS[device] = ""
        with contextlib.suppress(OSError):
            text = Path(_MOUNTS).read_text("utf-8", "surrogateescape")
            _KINDS[device] = file_system_kind(os.path.realpath(path), text)
    return _KINDS[device]


def file_system_kind(path: str, mounts: str) -> str:
    r"""Return the kind of the file system that holds ``path`` from the text of a mountinfo file.

    The last mount at the longest mount point counts, because it covers earlier ones. The device
    number is no key: files of overlays and btrfs have another one than their mount.
    """
    longest, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]).rstrip("/")
        if (path == point or path.startswith(f"{point}/")) and len(point) >= longest:
            longest, kind = len(point), after.split(" ")[0]
    return kind


IoMode = Literal["mmap", "pread"]
IO_MODES = ("auto", "mmap", "pread")  # values of ``io=``


@dataclass(frozen=True)
class IoChoice:
    """How a file is read, and why."""

    mode: IoMode
    reason: str  # the end of a sentence
    network: bool = False  # whether the file system is a network file system

    def __str__(self) -> str:
        return f"{self.mode}: {self.reason}"


def choose_io(io: str, kind: str) -> IoChoice:
    """Return how a file of uncompressed voxels is read on a file system of this kind.

    Each page of a map on a network file system is a request, so such files are read in long runs.
    In nibabel #1371 a map took 37 to 91 s, and reads 3.6 s.
    """
    network = is_network(kind) is not None
    if io != "auto":
        return IoChoice(io, f"io={io!r} was asked for", network)  # type: ignore[arg-type]
    if network:
        reason = f"{kind} is reached through a network, or another process"
        return IoChoice("pread", reason, network)
    if not kind:
        return IoChoice("mmap", "the file system is not known")
    return IoChoice("mmap", f"{kind} is on a disk of this machine")


def check_io(io: str) -> str:
    """Return ``io``; ``ValueError`` for an unknown mode."""
    if io not in IO_MODES:
        raise ValueError(f"io is one of {', '.join(map(repr, IO_MODES))}, got {io!r}")
    return io


# Blocks of bytes that hold the rows of a box of an array in C order.
#
# The rows of a box form a lattice, so they are joined axis by axis. The 9216 rows of a patch of 96
# cubed become 96 blocks with strides.

# Steps of the golden ratio avoid any lattice.
_GOLDEN = (1 + 5**0.5) / 2


@dataclass(frozen=True)
class RowBlock:
    """Bytes of one read."""

    start: int  # first byte from the beginning of the array
    size: int  # bytes, including those between rows
    target: tuple[Any, ...]  # index of the rows in ``RowBlocks.shape``
    shape: tuple[int, ...]  # of the rows: the last axis is the bytes of a row
    strides: tuple[int, ...]  # between rows, in bytes

    @property
    def is_whole(self) -> bool:
        """Whether the block has no bytes between its rows."""
        return math.prod(self.shape) == self.size


class RowBlocks:
    """Blocks that read a box."""

    def __init__(
        self, lengths: Sequence[int], box: Sequence[Span], itemsize: int, *, gap: int, most: int
    ) -> None:
        strides = [math.prod(lengths[axis + 1 :]) * itemsize for axis in range(len(lengths))]
        row, run = row_of(lengths, box, itemsize)
        self._start = sum(a * s for (a, _), s in zip(box[: row + 1], strides, strict=False))
        self._counts = [b - a for a, b in box[:row]]
        self._strides = strides[:row]
        self.shape = (*self._counts, run)  # of all rows; the last axis is the bytes of a row
        # The slowest axis along which rows are joined, their number, and their bytes.
        self._axis, self._rows_each, self._span = row, 1, run
        while self._axis > 0 and self._rows_each == 1:
            count, stride = self._counts[self._axis - 1], self._strides[self._axis - 1]
            if count > 1 and (stride - self._span > gap or stride + self._span > most):
                break
            self._axis -= 1
            rows = min(count, 1 + max(0, most - self._span) // stride)
            if rows < count:
                self._rows_each = rows
            else:
                self._span += (count - 1) * stride

    def places(self, count: int) -> list[int]:
        """Return offsets of ``count`` bytes spread over the box, from the start of the array."""
        offsets = []
        for n in range(count):
            along, at = (n + 0.5) / count, self._start
            for length, stride in zip(self.shape, (*self._strides, 1), strict=True):
                at += int(along % 1 * length) * stride
                # Shift along the next axis, so that no two samples share a plane of it.
                along = along * _GOLDEN + 0.5
            offsets.append(at)
        return offsets

    def __iter__(self) -> Iterator[RowBlock]:
        """Yield the blocks in the order of the file."""
        axis, counts, strides = self._axis, self._counts, self._strides
        inner = tuple(strides[axis:]), tuple(self.shape[axis:])
        whole = self._rows_each == 1
        # The outer axes include the axis that is cut, in steps.
        steps = [range(n) for n in counts[:axis]]
        if not whole:
            steps.append(range(0, counts[axis], self._rows_each))
        for place in itertools.product(*steps):
            start = self._start + sum(n * s for n, s in zip(place, strides, strict=False))
            if whole:
                yield RowBlock(start, self._span, place, inner[1], (*inner[0], 1))
                continue
            n = min(self._rows_each, counts[axis] - place[-1])
            target = (*place[:-1], slice(place[-1], place[-1] + n))
            shape = (n, *self.shape[axis + 1 :])
            size = self._span + (n - 1) * strides[axis]
            yield RowBlock(start, size, target, shape, (*inner[0], 1))


LOCAL = CoalescePolicy(LOCAL_GAP, LOCAL_RUN)
NETWORK = CoalescePolicy(NETWORK_GAP, NETWORK_RUN)


class FileReader:
    """Reader of one open file by ``pread``."""

    def __init__(self, file: BinaryIO, choice: IoChoice, name: str) -> None:
        self.choice, self.name = choice, name
        self.usual = NETWORK if choice.network else LOCAL
        self._fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._fd)

    def read(
        self, lengths: Sequence[int], box: Sequence[Span], itemsize: int, offset: int
    ) -> NDArray[np.uint8]:
        """Return the bytes of a box of an array in C order, with the last axis along a row."""
        gap, most = coalesce_policy(self.usual)
        blocks = RowBlocks(lengths, box, itemsize, gap=gap, most=most)
        out = np.empty(blocks.shape, np.uint8)
        scratch: NDArray[np.uint8] | None = None
        for block in blocks:
            start, target = offset + block.start, out[block.target]
            if block.is_whole and target.flags.c_contiguous:
                self._fill(target.reshape(-1), start)
                continue
            if scratch is None or scratch.size < block.size:
                scratch = np.empty(block.size, np.uint8)
            self._fill(scratch[: block.size], start)
            target[...] = as_strided(scratch, block.shape, block.strides)
        return out

    def will_need(
        self, lengths: Sequence[int], box: Sequence[Span], itemsize: int, offset: int
    ) -> contextlib.ExitStack | None:
        """Hint the kernel to read the bytes of a box."""
        gap, most = coalesce_policy(self.usual)
        blocks = RowBlocks(lengths, box, itemsize, gap=gap, most=most)
        return HINTS.tell(self._fd, offset, blocks)

    def _fill(self, target: NDArray[np.uint8], start: int) -> None:
        """Read the bytes of the file from ``start`` on until the target is full."""
        end = 0
        while end < target.size:
            view, offset = target.data[end:], start + end
            try:
                count = os.preadv(self._fd, [view], offset)
            except OSError as error:
                size, why = len(view), error.strerror
                msg = f"reading {size} bytes at {offset} of {self.name} failed: {why}."
                do = "Check the disk, or the connection to the file server."
                raise VolumeError(msg, do=do) from error
            if not count:
                raise TruncatedVolume(
                    f"{self.name} became shorter since it was opened: it ends "
                    f"{target.size - end} bytes before byte {start + target.size}.",
                    do="Do not write into a volume that is read; copy it again.",
                )
            end += count


# Hints to the kernel to read bytes of local files ahead. A hint never changes the bytes.
#
# A box in the page cache needs no hint. So a few bytes of a box are sampled first: ``preadv`` with
# ``RWF_NOWAIT`` returns within microseconds whether they are cached. After a row of cached boxes
# only some boxes are sampled, because planning their reads costs more than the samples.

MOST_BYTES = 128 * 1024**2
"""Bytes of all open hints; more could evict bytes that are read first."""
# A hint costs a system call. The kernel reads most bytes of smaller pieces by itself.
_MOST_HINTS = 256
# Sampled bytes of a box: a half cached box passes for cached once in 256 times.
_SAMPLES = 8
# After so many cached boxes in a row, one of so many boxes is sampled.
_WARM_ROW, _WARM_STEP = 16, 8


class KernelHints:
    """Open hints of one process, within a bound of bytes. Safe to use from several threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.lock = ForkSafeLock()
        self.acts = DeferredActs(self.lock)
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Start without hints in a forked child."""
        self.hinted_bytes = self._warm = 0
        self._turns = itertools.count(1)
        self.is_warm = False
        """Whether all recent samples were in the page cache."""

    def worth_asking(self) -> bool:
        """Whether to plan the reads of the next box; only for some boxes of a cached file."""
        if not hasattr(os, "posix_fadvise"):
            return False
        return not self.is_warm or next(self._turns) % _WARM_STEP == 0

    def is_here(self, fd: int, places: list[int]) -> bool:
        """Whether the page cache has all these bytes; updates :attr:`is_warm`."""
        warm = is_cached(fd, places)
        with self.acts, self.lock:
            self._warm = self._warm + 1 if warm else 0
            self.is_warm = self._warm >= _WARM_ROW
        return warm

    def add(self, size: int) -> None:
        """Add hinted bytes; the caller holds the lock."""
        self.hinted_bytes += size

    def tell(self, fd: int, offset: int, blocks: RowBlocks) -> contextlib.ExitStack | None:
        """Hint the read of a box; return None if it is in the page cache, or without room.

        The hint takes room until it is closed, after the read.
        """
        if not hasattr(os, "posix_fadvise"):
            return None
        if self.is_here(fd, [offset + place for place in blocks.places(_SAMPLES)]):
            return None
        spans = [(offset + b.start, b.size) for b in islice(blocks, _MOST_HINTS)]
        size = sum(size for _, size in spans)
        with self.acts, self.lock:
            if self.hinted_bytes and self.hinted_bytes + size > self.most_bytes:
                return None
            self.add(size)
        room = self.most_bytes
        # Some file systems refuse hints; the read reports errors of the file.
        with contextlib.suppress(OSError):
            for start, length in spans:
                # A hint for a box above the bound covers only its beginning.
                if room <= 0:
                    break
                os.posix_fadvise(fd, start, min(length, room), os.POSIX_FADV_WILLNEED)
                room -= length
        hint = contextlib.ExitStack()
        hint.callback(self.acts.defer, partial(self.add, -size))
        return hint


def is_cached(fd: int, places: list[int]) -> bool:
    """Whether all these bytes are in the page cache; False if unknown."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    room = bytearray(1)
    try:
        return all(os.preadv(fd, [room], place, os.RWF_NOWAIT) == 1 for place in places)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        raise


HINTS = KernelHints()
"""Hints of this process."""
