"""Ranges of bytes of objects, as chunked formats read them from disks and buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.context import ContextKey, values_here
from ..core.errors import BadHeader, CorruptVolume

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


class StoredBox(NamedTuple):
    """A box of an array in C order, in a file."""

    ends: Sequence[Span]  # indices of the box along each axis, half open
    strides: Sequence[int]  # bytes from an entry of each axis to the next
    offset: int  # bytes before the array


def rows_of_box(box: StoredBox, most: int | None = None) -> list[Span]:
    """Return the runs of bytes that hold a box of an array, in the order of the file."""
    row, run = row_of(box, most)
    starts = np.array([box.offset + box.ends[row][0] * box.strides[row]], np.int64)
    for stride, (first, last) in zip(box.strides[:row], box.ends[:row], strict=True):
        starts = (starts[:, None] + np.arange(first, last, dtype=np.int64) * stride).ravel()
    return [(start, start + run) for start in starts.tolist()]


def row_of(box: StoredBox, most: int | None = None) -> tuple[int, int]:
    """Return the axis of the rows of a box, and the bytes of a row."""
    counts = [last - first for first, last in box.ends]
    axis = len(counts) - 1
    run = counts[axis] * box.strides[axis]
    # Axes that are read whole lengthen the row along the one before them.
    while axis > 0 and run == box.strides[axis - 1]:
        longer = run * counts[axis - 1]
        if most is not None and longer > most:
            break
        axis, run = axis - 1, longer
    return axis, run


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
            number, begin = divmod(first, pitch)
            self.requests.append(ReadRange(objects[number], begin, begin + last - first))

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
