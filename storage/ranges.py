"""Ranges of bytes of objects, as chunked formats read them from disks and buckets."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.context import ContextKey, values_here
from ..core.errors import (
    AccessDenied,
    BadHeader,
    CorruptVolume,
    LeadsOutside,
    VolumeError,
    VolumeReadError,
)
from ..core.locks import ForkSafeLock

Span = tuple[int, int]
"""Half-open range of bytes."""
# Ranges closer than the gap are read as one, up to the longest run. The local gap is the read-ahead
# of the kernel. The other gaps are the bytes of a round trip at 100 MB/s and at 10 Gb/s.
LOCAL_GAP, LOCAL_RUN = 64 * 1024, 4 * 1024**2
REMOTE_GAP, REMOTE_RUN = 1024**2, 16 * 1024**2
NETWORK_GAP, NETWORK_RUN = 512 * 1024, 16 * 1024**2


def coalesce(spans: Sequence[Span] | NDArray[np.int64], gap: int, most: int) -> list[Span]:
    """Join sorted spans at most ``gap`` bytes apart into runs of at most ``most`` bytes."""
    start, stop = np.asarray(spans, np.int64).reshape(-1, 2).T
    runs: list[Span] = []
    first, count = 0, len(start)
    while first < count:
        begin, last = first, np.maximum.accumulate(stop[first:])
        ends = first + 1 + (start[first + 1 :] - last[:-1] > gap).nonzero()[0]
        for end in [*ends.tolist(), count]:
            fitting = begin + int(last.searchsorted(start[first] + most, "right"))
            after = min(end, max(first + 1, fitting))
            runs.append((int(start[first]), int(last[after - 1 - begin])))
            first = after
            if after < end:
                break  # ends before the new first span no longer count
    return runs


def rows_of_box(
    lengths: Sequence[int], box: Sequence[Span], itemsize: int, offset: int, most: int | None = None
) -> list[Span]:
    """Return the runs of bytes that hold a box of an array, in the order of the file."""
    row, run = row_of(lengths, box, itemsize, most)
    starts: NDArray[np.int64] = np.zeros(1, np.int64)
    for length, (first, last) in zip(lengths[:row], box[:row], strict=True):
        starts = (starts[:, None] * length + np.arange(first, last, dtype=np.int64)).ravel()
    stride = math.prod(lengths[row + 1 :]) * itemsize
    starts = (starts * lengths[row] + box[row][0]) * stride + offset
    return [(start, start + run) for start in starts.tolist()]


def row_of(
    lengths: Sequence[int], box: Sequence[Span], itemsize: int, most: int | None = None
) -> tuple[int, int]:
    """Return the axis of the rows of a box, and the bytes of a row."""
    counts = [last - first for first, last in box]
    axis = len(lengths) - 1
    run = counts[axis] * itemsize
    # Axes that are read whole lengthen the row along the one before them.
    while axis > 0 and tuple(box[axis]) == (0, lengths[axis]):
        longer = run * counts[axis - 1]
        if most is not None and longer > most:
            break
        axis, run = axis - 1, longer
    return axis, run


# ``pread`` allocates the requested bytes, and a damaged index may request terabytes.
_UNCHECKED_BYTES = 4 * 1024**2
MOST_DOCUMENT_BYTES = 8 * 1024**2
"""Most bytes of metadata: as for ten thousand arrays. Python objects take up to 20 times that."""


def check_document(size: int, name: str, most: int = MOST_DOCUMENT_BYTES) -> None:
    """Raise ``BadHeader`` for metadata above ``most`` bytes."""
    if size > most:
        msg = f"{name} takes {size} bytes, and metadata take {most} at most."
        raise BadHeader(msg, do="Write the volume again, or open the array in it by its path.")


class ReadRange(NamedTuple):
    """Bytes ``start`` to ``stop`` of one object; ``start < 0`` counts from its end."""

    object: str  # key below the root of the store
    start: int = 0  # first byte; a negative one counts from the end
    stop: int | None = None  # one past the last byte; None for the end

    @property
    def length(self) -> int | None:
        """Number of bytes; None if it depends on the size of the object."""
        return None if self.stop is None or self.start < 0 else self.stop - self.start


class RangeStore(Protocol):
    """Objects under one root, read in ranges. Safe to use from several threads."""

    @property
    def name(self) -> str:
        """Root, without credentials."""

    def get(self, key: str) -> bytes | None:
        """Return a whole object; None for a missing one."""

    def get_ranges(self, ranges: Sequence[ReadRange]) -> list[bytes | None]:
        """Return the bytes of each range; None for a missing object.

        A range beyond the end of its object comes back short.
        """

    def size(self, key: str) -> int:
        """Return the size of an object in bytes; ``FileNotFoundError`` for a missing one."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys below ``prefix``, in any order."""


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
            with suppress(OSError, VolumeError):
                fd = self._open(key)
                try:
                    places = [place for start, n in spans for place in (start, start + n // 2)]
                    if is_here is not None and is_here(fd, places):
                        continue
                    for start, length in spans:
                        os.posix_fadvise(fd, start, length, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(fd)

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
    do = 'If you trust who made it: open_volume(follow="anywhere"), or Volume(...) likewise.'
    return LeadsOutside(msg, do=do)


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


def check_whole(size: int, most: int, name: str) -> None:
    """Raise ``CorruptVolume`` for an object above ``most`` bytes, unless ``most`` is 0."""
    if 0 < most < size:
        msg = f"{name} takes {size} bytes, and a chunk that is stored in it at most {most}."
        raise CorruptVolume(msg, do="Copy or write this file again.")


class ObjectRanges(NamedTuple):
    """Ranges of bytes of a few objects, as arrays (N,) int64."""

    objects: Sequence[str]  # keys, each once
    which: NDArray[np.int64]  # number of the object of each range; -1 for none
    start: NDArray[np.int64]  # first byte; a negative one counts from the end
    stop: NDArray[np.int64]  # one past the last byte; -1 for the end

    @classmethod
    def of(cls, ranges: Sequence[ReadRange | None]) -> ObjectRanges:
        """Return the ranges of a list."""
        objects = {part.object: 0 for part in ranges if part is not None}
        objects.update(zip(objects, range(len(objects)), strict=True))
        rows = [
            (-1, 0, 0)
            if part is None
            else (objects[part[0]], part[1], -1 if part[2] is None else part[2])
            for part in ranges
        ]
        return cls([*objects], *np.array(rows, np.int64).reshape(-1, 3).T)

    def range(self, number: int) -> ReadRange | None:
        """Return one range; None for none."""
        which, start, stop = (int(column[number]) for column in self[1:])
        if which < 0:
            return None
        return ReadRange(self.objects[which], start, None if stop < 0 else stop)

    def ranges(self) -> list[ReadRange | None]:
        """Return all ranges as a list."""
        return [
            None if which < 0 else ReadRange(self.objects[which], start, None if stop < 0 else stop)
            for which, start, stop in zip(*(column.tolist() for column in self[1:]), strict=True)
        ]


class CoalescedRanges:
    """Ranges joined into requests; a range with a negative start or open end stays alone."""

    def __init__(self, ranges: Sequence[ReadRange] | ObjectRanges, gap: int, most: int) -> None:
        ranges = ranges if isinstance(ranges, ObjectRanges) else ObjectRanges.of(ranges)
        objects, which, start, stop = ranges
        self.requests: list[ReadRange] = []
        self.request = np.zeros(len(which), np.int64) - 1
        """Number of the request of each range; -1 for none."""
        self.offset = np.zeros(len(which), np.int64)
        """Offset of each range in the answer to its request."""
        self.length = stop - start
        """Bytes of each range; -1 for all of the answer."""
        is_whole = (start < 0) | (stop < 0)
        self.length[is_whole] = -1
        (alone,) = (is_whole & (which >= 0)).nonzero()
        self.request[alone] = np.arange(len(alone))
        self.requests += [
            ReadRange(objects[n], a, None if b < 0 else b)
            for n, a, b in zip(*(c[alone].tolist() for c in (which, start, stop)), strict=True)
        ]
        (members,) = (~is_whole & (which >= 0)).nonzero()
        if not len(members):
            return
        # Objects get consecutive offsets, further apart than the gap. Offsets of a damaged index
        # may overflow an int64 then, so objects are joined one by one.
        which, start, stop = which[members], start[members], stop[members]
        pitch = int(np.maximum.reduce(stop)) + gap + 1
        if pitch * len(objects) < 2**62:
            self._join(members, objects, start + which * pitch, stop - start, pitch, gap, most)
            return
        for number in dict.fromkeys(which.tolist()):
            own = which == number
            names, size = [objects[number]], (stop - start)[own]
            self._join(members[own], names, start[own], size, 1 << 63, gap, most)

    def _join(
        self,
        members: NDArray[np.int64],
        objects: Sequence[str],
        start: NDArray[np.int64],
        length: NDArray[np.int64],
        pitch: int,
        gap: int,
        most: int,
    ) -> None:
        """Join ranges of objects that begin ``pitch`` bytes apart."""
        stop = start + length
        order = np.lexsort((stop, start))
        members, start = members[order], start[order]
        runs = coalesce(np.array([start, stop[order]]).T, gap, most)
        firsts = np.array([first for first, _ in runs])
        run = firsts.searchsorted(start, "right") - 1
        self.request[members] = run + len(self.requests)
        self.offset[members] = start - firsts[run]
        for first, last in runs:
            number = first // pitch
            self.requests.append(
                ReadRange(objects[number], first - number * pitch, last - number * pitch)
            )

    def split(self, answers: Sequence[bytes | None]) -> list[memoryview | None]:
        """Return the bytes of each range, cut out of the answers to the requests."""
        whole = [None if answer is None else memoryview(answer) for answer in answers]
        columns = (column.tolist() for column in (self.request, self.offset, self.length))
        return [
            None
            if request < 0 or (body := whole[request]) is None
            else body[first : None if length < 0 else first + length]
            for request, first, length in zip(*columns, strict=True)
        ]


def read_coalesced(
    store: RangeStore, ranges: Sequence[ReadRange], gap: int, most: int
) -> list[memoryview | None]:
    """Return the bytes of each range, with joined requests; see :class:`CoalescedRanges`."""
    plan = CoalescedRanges(ranges, gap, most)
    return plan.split(store.get_ranges(plan.requests))


# Policies of read schemes for joining ranges, by key of a sample.
#
# Reading services set the policies of all keys, and batching sets the key of the next reads.
# Without them, a read uses the default of its store.


class CoalescePolicy(NamedTuple):
    """Limits for joining ranges into requests. A policy never changes voxels."""

    gap: int  # most bytes between two joined ranges, which are read in vain
    longest: int  # most bytes of one request; a longer range stays whole


PoliciesByKey = Mapping[str, CoalescePolicy]
COALESCING: ContextKey[tuple[PoliciesByKey, str]] = ContextKey(({}, ""))
"""Policies by key of a sample, and the key that is being read."""


def coalesce_policy(usual: CoalescePolicy) -> CoalescePolicy:
    """Return the policy of a read in this context, by default ``usual``."""
    policies: PoliciesByKey
    policies, key = values_here().get(COALESCING, COALESCING.default)
    return policies.get(key, usual)
