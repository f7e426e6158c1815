"""Ranges of bytes of named objects: all that a chunked format asks of a disk or a bucket."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

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
# Ranges closer than the gap are read as one, up to the longest run. The gap is what the kernel
# reads ahead, and what one round trip takes at 100 MB/s, as in zarr-python 3.3, and at 10 Gb/s.
LOCAL_GAP, LOCAL_RUN = 64 * 1024, 4 * 1024**2
REMOTE_GAP, REMOTE_RUN = 1024**2, 16 * 1024**2
NETWORK_GAP, NETWORK_RUN = 512 * 1024, 16 * 1024**2


def coalesce(spans: Sequence[Span] | NDArray[np.int64], gap: int, most: int) -> list[Span]:
    """Join sorted spans that lie at most ``gap`` bytes apart, to at most ``most`` bytes in one."""
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
                break  # what ended before this one counts no more
    return runs


# ``pread`` takes memory for all that it is asked for: a damaged index may ask for terabytes.
_UNCHECKED_BYTES = 4 * 1024**2


MOST_DOCUMENT_BYTES = 8 * 1024**2
"""Of metadata: ten thousand arrays take as much, and in Python up to twenty times that."""


def check_document(size: int, name: str, most: int = MOST_DOCUMENT_BYTES) -> None:
    """Raise ``BadHeader`` for metadata of a size that none have."""
    if size > most:
        msg = f"{name} takes {size} bytes, and metadata take {most} at most."
        raise BadHeader(msg, do="Write the volume again, or open the array in it by its path.")


class ReadRange(NamedTuple):
    """Bytes ``start`` to ``stop`` of one object; ``start < 0`` counts from its end."""

    object: str  # key below the root of the store
    start: int = 0  # first byte, or how many bytes before the end
    stop: int | None = None  # one past the last byte; None for the end

    @property
    def length(self) -> int | None:
        """How many bytes these are; None where only the object tells."""
        return None if self.stop is None or self.start < 0 else self.stop - self.start


class RangeStore(Protocol):
    """Objects under one root, read in ranges. Safe to use from several threads."""

    @property
    def name(self) -> str:
        """Root, without credentials."""

    def get(self, key: str) -> bytes | None:
        """Return a whole object; None where there is none."""

    def get_ranges(self, ranges: Sequence[ReadRange]) -> list[bytes | None]:
        """Return the bytes of each range, side by side where that is faster.

        None for an object that is not there. A range that goes on beyond the end of its
        object comes back short.
        """

    def size(self, key: str) -> int:
        """Return the size of an object in bytes; ``FileNotFoundError`` where there is none."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys below ``prefix``, in any order."""


class LocalRanges:
    """Files below a folder, read with ``pread``: no handle is kept, no offset shared.

    Where it is ``strict``, a key or link that leads out of the folder is ``LeadsOutside``.
    """

    gap, most = LOCAL_GAP, LOCAL_RUN

    def __init__(self, root: str, *, strict: bool = False) -> None:
        self.name = root
        """The folder."""
        self.real = Folder(root).real if strict else ""
        """The folder that nothing may lead out of, all links followed; empty if anything may."""
        self.newest = 0
        """When the last change was made to files that were read in ranges, or to folders in which
        some were missing: nanoseconds since 1970, by the clock of the file system."""
        self.absences = 0
        """How often a file of which ranges were asked for was not there."""
        self._noting = ForkSafeLock()

    def get(self, key: str) -> bytes | None:
        """Return a small file such as metadata, None if there is none; ``BadHeader`` if long."""
        try:
            with os.fdopen(self._open(key), "rb", buffering=0) as file:
                check_document(os.fstat(file.fileno()).st_size, self.path_of(key))
                # One that grows has no end either.
                return file.read(MOST_DOCUMENT_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def get_ranges(self, ranges: Sequence[ReadRange], most: int = 0) -> list[bytes | None]:
        """Return the bytes of each range, opening each file once.

        ``CorruptVolume`` for a whole file of more than ``most`` bytes, unless that is 0.
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
        """Note when something that was read was changed, whatever other threads note."""
        with self._noting:
            self.newest = max(self.newest, moment)

    def _change_time(self, folder: str) -> int:
        """Return when something was added to a folder, or removed; of one that is gone, above."""
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
        """Tell the system to bring in these ranges; it does so beside everything else.

        Of a file none where ``is_here``, given its descriptor and where they begin, says so.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        by_object: dict[str, list[tuple[int, int]]] = {}
        for key, start, stop in CoalescedRanges(ranges, self.gap, self.most).requests:
            length = 0 if stop is None else stop - start  # 0 is everything
            by_object.setdefault(key, []).append((max(start, 0), length))
        for key, spans in by_object.items():
            # Whoever reads one that cannot be opened will say so.
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
                # Of an open file no link can change any more.
                target = os.readlink(f"/proc/self/fd/{fd}")  # 2 microseconds, where links take 30
            except OSError:  # not Linux
                target = os.path.realpath(path)
            # The folder itself may have been moved, or the link to it set anew.
            if not target.startswith(self.real) and not target.startswith(Folder(self.name).real):
                os.close(fd)
                raise leads_outside(path, target)
        return fd


def changed_at(status: os.stat_result) -> int:
    """Return when a file was changed last, in nanoseconds since 1970, no times to come.

    Who copies a file (``rsync -a``, ``cp -p``, ``tar x``) may set back its time of writing, but not
    the time at which the file system was told so, which links and permissions change as well.
    """
    now, write_time, change_time = time.time_ns(), status.st_mtime_ns, status.st_ctime_ns
    return max(write_time if write_time <= now else 0, change_time if change_time <= now else 0)


FOLLOW = ("beside", "anywhere")
"""How far what a header names is followed: to files beside it and below, or anywhere."""


class Folder:
    """A folder that what is stored in it must not lead out of."""

    def __init__(self, path: str) -> None:
        self.real = os.path.join(os.path.realpath(path or "."), "")
        """The folder itself, all links followed."""

    def holds(self, path: str) -> bool:
        """Whether a path leads to a place in the folder, all links followed."""
        return os.path.join(os.path.realpath(path), "").startswith(self.real)

    def check(self, path: str, name: str) -> None:
        """Raise ``LeadsOutside``, which names the target, unless a path leads into the folder."""
        if not self.holds(path):
            raise leads_outside(name, os.path.realpath(path))


def leads_outside(name: str, target: str) -> LeadsOutside:
    """Return the error for what names a target outside its folder."""
    msg = f"{name} leads out of its folder, to {target}."
    do = 'If you trust who made it: open_volume(follow="anywhere"), or Volume(...) likewise.'
    return LeadsOutside(msg, do=do)


def open_regular(path: str | os.PathLike[str], _flags: int = 0) -> int:
    """Open a local file for reading and return its descriptor; also an ``opener`` of ``open()``.

    Every file of a volume is opened here: a pipe in its place would wait for a writer for ever, and
    a device may give bytes without an end.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    # Without it, opening a pipe waits. Reading a regular file does not change.
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
    """Return the error for a local file that is there and that the system does not open."""
    what = f"{os.fspath(path)} cannot be opened: {error.strerror}."
    if isinstance(error, PermissionError):
        return AccessDenied(what, do="Check who may read it.")
    return VolumeReadError(what, do="Check the file, and what its links lead to.")


def check_whole(size: int, most: int, name: str) -> None:
    """Raise ``CorruptVolume`` for an object of more bytes than its content can need."""
    if 0 < most < size:
        msg = f"{name} takes {size} bytes, and a chunk that is stored in it at most {most}."
        raise CorruptVolume(msg, do="Copy or write this file again.")


class ObjectRanges(NamedTuple):
    """Ranges of bytes of a few objects, as arrays (N,) int64."""

    objects: Sequence[str]  # keys, each once
    which: NDArray[np.int64]  # of each range, the number of its object; -1 for none
    start: NDArray[np.int64]  # first byte, or how many bytes before the end
    stop: NDArray[np.int64]  # one past the last byte; -1 for the end

    @classmethod
    def of(cls, ranges: Sequence[ReadRange | None]) -> ObjectRanges:
        """Return what a list says."""
        objects = {one.object: 0 for one in ranges if one is not None}
        objects.update(zip(objects, range(len(objects)), strict=True))
        rows = [
            (-1, 0, 0)
            if one is None
            else (objects[one[0]], one[1], -1 if one[2] is None else one[2])
            for one in ranges
        ]
        return cls([*objects], *np.array(rows, np.int64).reshape(-1, 3).T)

    def range(self, number: int) -> ReadRange | None:
        """Return one of them; None for none."""
        which, start, stop = (int(column[number]) for column in self[1:])
        if which < 0:
            return None
        return ReadRange(self.objects[which], start, None if stop < 0 else stop)

    def ranges(self) -> list[ReadRange | None]:
        """Return all of them."""
        return [
            None if which < 0 else ReadRange(self.objects[which], start, None if stop < 0 else stop)
            for which, start, stop in zip(*(column.tolist() for column in self[1:]), strict=True)
        ]


class CoalescedRanges:
    """Ranges joined into requests, but for those with a negative start or an open end."""

    def __init__(self, ranges: Sequence[ReadRange] | ObjectRanges, gap: int, most: int) -> None:
        ranges = ranges if isinstance(ranges, ObjectRanges) else ObjectRanges.of(ranges)
        objects, which, start, stop = ranges
        self.requests: list[ReadRange] = []
        self.request = np.zeros(len(which), np.int64) - 1
        """Of each range, the number of its request; -1 for none."""
        self.offset = np.zeros(len(which), np.int64)
        """Where in the answer to that it begins."""
        self.length = stop - start
        """How many bytes it has; -1 for all."""
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
        # Objects are laid one behind another, further apart than what is joined; one by one where
        # a damaged index speaks of places for which numbers do not suffice.
        which, start, stop = which[members], start[members], stop[members]
        pitch = int(np.maximum.reduce(stop)) + gap + 1
        if pitch * len(objects) < 2**62:
            self._join(members, objects, start + which * pitch, stop - start, pitch, gap, most)
            return
        for number in dict.fromkeys(which.tolist()):
            its = which == number
            one, size = [objects[number]], (stop - start)[its]
            self._join(members[its], one, start[its], size, 1 << 63, gap, most)

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
        """Join ranges of objects of which one begins every ``pitch`` bytes."""
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
        """Return the bytes of each range, of those of each request."""
        whole = [None if answer is None else memoryview(answer) for answer in answers]
        columns = (each.tolist() for each in (self.request, self.offset, self.length))
        return [
            None
            if request < 0 or (body := whole[request]) is None
            else body[first : None if length < 0 else first + length]
            for request, first, length in zip(*columns, strict=True)
        ]


def read_coalesced(
    store: RangeStore, ranges: Sequence[ReadRange], gap: int, most: int
) -> list[memoryview | None]:
    """Return the bytes of each range, neighbours in one request; see :class:`CoalescedRanges`."""
    plan = CoalescedRanges(ranges, gap, most)
    return plan.split(store.get_ranges(plan.requests))


# How far apart ranges may lie to be read as one: what a read scheme says, where reads look for it.
#
# Schemes are agreed on per key. Whoever realizes patches lays out the table of all keys, and says
# of which key the next reads are; a read without either goes by the store's own figures.


class CoalescePolicy(NamedTuple):
    """When neighbouring ranges become one request. It changes requests, never voxels."""

    gap: int  # bytes between two ranges that are worth reading for nothing
    longest: int  # most bytes of one request; a range that is longer alone stays whole


PoliciesByKey = Mapping[str, CoalescePolicy]
COALESCE_POLICIES: ContextVar[PoliciesByKey | None] = ContextVar("coalesce_policies", default=None)
"""By key of a sample, what reads go by."""
READ_KEY: ContextVar[str] = ContextVar("read_key", default="")
"""Of which key of a sample the reads are."""


def coalesce_policy(usual: CoalescePolicy) -> CoalescePolicy:
    """Return what holds for a read that begins now, by default ``usual``."""
    return (COALESCE_POLICIES.get() or {}).get(READ_KEY.get(), usual)
