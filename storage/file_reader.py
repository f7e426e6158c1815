"""Local files: ranges below a folder, and uncompressed voxels, mapped or read by ``pread``.

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
import stat
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..core.errors import (
    AccessDenied,
    BadHeader,
    LeadsOutside,
    TruncatedVolume,
    VolumeError,
    VolumeReadError,
)
from ..core.locks import DeferredActs, ForkSafeLock, renew_after_fork
from .ranges import (
    LOCAL_GAP,
    LOCAL_RUN,
    MOST_DOCUMENT_BYTES,
    NETWORK_GAP,
    NETWORK_RUN,
    CoalescedRanges,
    CoalescePolicy,
    ObjectRanges,
    ReadRange,
    StoredBox,
    check_document,
    check_whole,
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
        kind = ""
        with contextlib.suppress(OSError):
            text = Path(_MOUNTS).read_text("utf-8", "surrogateescape")
            kind = file_system_kind(os.path.realpath(path), text)
        _KINDS[device] = kind  # once it is known: other threads read it
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


IoMode = Literal["mmap", "pread", "direct"]
IO_MODES = ("auto", "mmap", "pread", "direct")  # values of ``io=``


@dataclass(frozen=True)
class IoChoice:
    """How a file is read, and why."""

    mode: IoMode
    reason: str  # the end of a sentence
    network: bool = False  # whether the file system is a network file system

    def __str__(self) -> str:
        return f"{self.mode}: {self.reason}"


@cache
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


# Files below a folder, in ranges.

# ``pread`` allocates the requested bytes, and a damaged index may request terabytes.
_UNCHECKED_BYTES = 4 * 1024**2


class LocalRanges:
    """Files below a folder, read by ``pread`` without open handles or shared offsets.

    With ``strict``, a key or link that leads out of the folder raises ``LeadsOutside``.
    """

    gap, most = LOCAL_GAP, LOCAL_RUN

    def __init__(self, root: str, *, strict: bool = False) -> None:
        self.name = root
        """The folder."""
        self.real = Folder(root).real if strict else ""
        """The resolved folder that paths may not leave; empty without ``strict``."""
        self.newest = 0
        """Last change of files that were read, or of folders with missing files: nanoseconds since
        1970, by the clock of the file system."""
        self.absences = 0
        """Number of reads of missing files."""
        self._noting = ForkSafeLock()

    def get(self, key: str) -> bytes | None:
        """Return a small file such as metadata; None if missing, ``BadHeader`` if too large."""
        try:
            with os.fdopen(self._open(key), "rb", buffering=0) as file:
                check_document(os.fstat(file.fileno()).st_size, self.path_of(key))
                # The file may still grow.
                return file.read(MOST_DOCUMENT_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def get_ranges(self, ranges: Sequence[ReadRange], most: int = 0) -> list[bytes | None]:
        """Return the bytes of each range; open each file once.

        Raise ``CorruptVolume`` for a whole file above ``most`` bytes, unless ``most`` is 0.
        """
        answers: list[bytes | None] = [None] * len(ranges)
        by_object: dict[str, list[int]] = {}
        missing: set[str] = set()
        for place, part in enumerate(ranges):
            by_object.setdefault(part.object, []).append(place)
        for key, places in by_object.items():
            try:
                fd = self._open(key)
            except (FileNotFoundError, NotADirectoryError):
                missing.add(os.path.dirname(key))
                self.absences += 1
                continue
            try:
                for place in places:
                    _, start, stop = ranges[place]
                    if start < 0 or stop is None or stop - start > _UNCHECKED_BYTES:
                        size = os.fstat(fd).st_size
                        if start == 0 and stop is None:
                            check_whole(size, most, self.path_of(key))
                        start = max(0, size + start) if start < 0 else start
                        stop = size if stop is None else min(stop, size)
                    pieces = []
                    while start < stop and (piece := os.pread(fd, stop - start, start)):
                        pieces.append(piece)
                        start += len(piece)
                    answers[place] = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                self.note_change(changed_at(os.fstat(fd)))
            finally:
                os.close(fd)
        for folder in missing:
            self.note_change(self._change_time(folder))
        return answers

    def note_change(self, moment: int) -> None:
        """Raise :attr:`newest` to the time of a change; safe with other threads."""
        with self._noting:
            self.newest = max(self.newest, moment)

    def _change_time(self, folder: str) -> int:
        """Return the change time of a folder, or of the nearest parent of a removed one."""
        while True:
            try:
                return changed_at(os.stat(self.path_of(folder)))
            except (FileNotFoundError, NotADirectoryError):
                if not folder:
                    return 0
                folder = os.path.dirname(folder)

    def will_need(
        self,
        ranges: Sequence[ReadRange] | ObjectRanges,
        is_here: Callable[[int, list[int]], bool] | None = None,
    ) -> None:
        """Hint the kernel to read these ranges in the background.

        ``is_here`` gets the descriptor of a file and offsets; a cached file needs no hint.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        by_object: dict[str, list[tuple[int, int]]] = {}
        for key, start, stop in CoalescedRanges(ranges, self.gap, self.most).requests:
            length = 0 if stop is None else stop - start  # 0 is everything
            by_object.setdefault(key, []).append((max(start, 0), length))
        for key, spans in by_object.items():
            # The read reports a file that cannot be opened.
            with contextlib.suppress(OSError, VolumeError):
                fd = self._open(key)
                try:
                    places = [place for start, n in spans for place in (start, start + n // 2)]
                    if is_here is not None and is_here(fd, places):
                        continue
                    for start, length in spans:
                        os.posix_fadvise(fd, start, length, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(fd)

    def stamp_of(self, key: str) -> tuple[int, int] | None:
        """Return the change time and the size of a file; None if it is missing."""
        with contextlib.suppress(OSError):
            status = os.stat(self.path_of(key))
            return status.st_ctime_ns, status.st_size
        return None

    def size(self, key: str) -> int:
        """Return the size of a file in bytes."""
        return os.stat(self.path_of(key)).st_size

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the files below a folder, as keys."""
        for folder, _, files in os.walk(os.path.join(self.name, prefix)):
            inside = os.path.relpath(folder, self.name)
            for file in files:
                yield file if inside == "." else f"{inside}/{file}".replace(os.sep, "/")

    def path_of(self, key: str) -> str:
        """Return the path of a file."""
        return os.path.join(self.name, key) if key else self.name

    def _open(self, key: str) -> int:
        path = self.path_of(key)
        fd = open_regular(path)
        if self.real:
            try:
                # Links of an open file cannot change. Takes 2 microseconds; ``realpath`` takes 30.
                target = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:  # not Linux
                target = os.path.realpath(path)
            # The folder may have been moved, or its link may have a new target.
            if not target.startswith(self.real) and not target.startswith(Folder(self.name).real):
                os.close(fd)
                raise leads_outside(path, target)
        return fd


def changed_at(status: os.stat_result) -> int:
    """Return the last change of a file in nanoseconds since 1970, ignoring future times.

    A copy (``rsync -a``, ``cp -p``, ``tar x``) may set back the write time, but not the change time
    of the inode. That time changes with links and permissions too.
    """
    now, write_time, change_time = time.time_ns(), status.st_mtime_ns, status.st_ctime_ns
    return max(write_time if write_time <= now else 0, change_time if change_time <= now else 0)


FOLLOW = ("same_folder", "anywhere")
"""Values of ``follow=``: a header may name files in its own folder and below, or anywhere."""


class Folder:
    """Folder whose files and links must stay inside it."""

    def __init__(self, path: str) -> None:
        self.real = os.path.join(os.path.realpath(path or "."), "")
        """The resolved path, with a slash at its end."""

    def holds(self, path: str) -> bool:
        """Whether a path is inside the folder after its links are resolved."""
        return os.path.join(os.path.realpath(path), "").startswith(self.real)

    def check(self, path: str, name: str) -> None:
        """Raise ``LeadsOutside``, which names the target, unless a path is inside the folder."""
        if not self.holds(path):
            raise leads_outside(name, os.path.realpath(path))


def leads_outside(name: str, target: str) -> LeadsOutside:
    """Return the error for a path or link to a target outside its folder."""
    msg = f"{name} leads out of its folder, to {target}."
    return LeadsOutside(msg, do='If you trust who made it: ⟦open_volume(follow="anywhere")⟧.')


def open_regular(path: str | os.PathLike[str], _flags: int = 0) -> int:
    """Open a regular local file and return its descriptor; also an ``opener`` of ``open()``.

    All files of volumes are opened here, because a pipe would wait for a writer for ever, and a
    device may be endless.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    # O_NONBLOCK opens a pipe without waiting, and changes no read of a regular file.
    try:
        fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise cannot_open(path, error) from error
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    kind = "no regular file, but a pipe, a socket or a device"
    msg = f"{os.fspath(path)} is {'a folder' if stat.S_ISDIR(mode) else kind}."
    raise BadHeader(msg, do="Put a file in its place.")


def cannot_open(path: str | os.PathLike[str], error: OSError) -> VolumeReadError:
    """Return the error for an existing local file that cannot be opened."""
    msg = f"{os.fspath(path)} cannot be opened: {error.strerror}."
    if isinstance(error, PermissionError):
        return AccessDenied(msg, do="Check who may read it.")
    return VolumeReadError(msg, do="Check the file, and the targets of its links.")


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

    def __init__(self, box: StoredBox, *, gap: int, most: int) -> None:
        row, run = row_of(box)
        firsts, self._strides = [a for a, _ in box.ends[: row + 1]], box.strides[:row]
        self._start = sum(a * s for a, s in zip(firsts, box.strides, strict=False))
        self._counts = [b - a for a, b in box.ends[:row]]
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
        self._fd = self._duplicate(file)
        weakref.finalize(self, os.close, self._fd)

    def _duplicate(self, file: BinaryIO) -> int:
        return os.dup(file.fileno())

    def read(self, box: StoredBox) -> NDArray[np.uint8]:
        """Return the bytes of a box of an array in C order, with the last axis along a row."""
        gap, most = coalesce_policy(self.usual)
        blocks = RowBlocks(box, gap=gap, most=most)
        out = np.empty(blocks.shape, np.uint8)
        scratch: NDArray[np.uint8] | None = None
        for block in blocks:
            start, target = box.offset + block.start, out[block.target]
            if block.is_whole and target.flags.c_contiguous:
                self._fill(target.reshape(-1), start)
                continue
            if scratch is None or scratch.size < block.size:
                scratch = np.empty(block.size, np.uint8)
            self._fill(scratch[: block.size], start)
            target[...] = as_strided(scratch, block.shape, block.strides)
        return out

    def will_need(self, box: StoredBox) -> contextlib.ExitStack | None:
        """Hint the kernel to read the bytes of a box."""
        gap, most = coalesce_policy(self.usual)
        return HINTS.tell(self._fd, box.offset, RowBlocks(box, gap=gap, most=most))

    def _fill(self, target: NDArray[np.uint8], start: int, least: int = 0) -> None:
        """Read the file from ``start`` on until the target, or its ``least`` bytes, are full."""
        end, least = 0, least or target.size
        while end < least:
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
                    f"{least - end} bytes before byte {start + least}.",
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
        self.is_warm = False
        """Whether all recent samples were in the page cache."""
        self.turns = itertools.cycle([*[False] * (_WARM_STEP - 1), True])
        """For each next box of a cached file, whether to plan its reads: for some boxes."""

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
