"""Counters of the reads, bytes and interpolations of a process, in total and by pipe."""

from __future__ import annotations

import threading
from copy import copy
from dataclasses import astuple, dataclass, field, fields

from .context import ContextKey, holding, values_here
from .locks import ForkSafeLock, at_fork

# Several threads may realize patches of one batch. Reentrant, because finalizers count too.
_LOCK = threading.RLock()
at_fork(after=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]


@dataclass
class IOCounters:
    """Running totals since the process started."""

    reads: int = 0  # regions read from a volume
    bytes_read: int = 0  # bytes of stored voxels that these reads touched, in whole chunks
    bytes_decoded: int = 0
    """Bytes of decoded voxels; a cached chunk does not count again."""
    interpolations: int = 0  # calls of the resampler that interpolated
    copies: int = 0  # calls of the resampler that only copied (integer plans)
    headers: int = 0  # headers parsed
    value_passes: int = 0
    """Passes of value ops over a patch; epilogues of the resampler are not counted."""

    def __sub__(self, other: IOCounters) -> IOCounters:
        return IOCounters(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __add__(self, other: IOCounters) -> IOCounters:
        return IOCounters(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def count(self, **counts: int) -> None:
        """Add to the named counts; safe from several threads."""
        tally: IOCounters | None = values_here().get(_TALLY)
        with _LOCK:
            for totals in (vars(self),) if tally is None else (vars(self), vars(tally)):
                for name, number in counts.items():
                    totals[name] += number

    def snapshot(self) -> IOCounters:
        """Return a copy that stays as it is."""
        return copy(self)

    def to_json(self) -> dict[str, int]:
        """Return the counts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


IO_COUNTERS = IOCounters()
"""The counts of this process."""
# Threads that make batches at the same time count apart.
_TALLY: ContextKey[IOCounters | None] = ContextKey(None)


def count_apart() -> holding[IOCounters | None]:
    """Restrict :func:`counts_here` to the work done inside the ``with`` block."""
    return holding(_TALLY, IOCounters())


def counts_here() -> IOCounters:
    """Return the counts of the block of :func:`count_apart`, else of this process."""
    return (_TALLY.get() or IO_COUNTERS).snapshot()


# Each worker sends its pipes' counts since the last batch with the next batch. The consumer's
# process adds them to its own, and ``Profile`` reads the sum.

Key = tuple[str, str]  # (id of the profile, the pipe as the user wrote it)


@dataclass
class PipeCounts:
    """Counts of one pipe."""

    items: int = 0  # items it yielded
    seconds: float = 0.0  # wall time spent in the pipe itself, its parents' time taken off
    tally: IOCounters = field(default_factory=IOCounters)
    """Reads, bytes and interpolations of the pipe itself."""
    wait: float = 0.0  # wall time spent waiting for its parents
    bytes_out: int = 0  # bytes of the arrays that it yielded
    resident: dict[int, int] = field(default_factory=dict)
    """Largest resident memory measured right after the pipe, by process id."""

    def add(self, other: PipeCounts) -> None:
        """Add the counts of another process."""
        self.items += other.items
        self.seconds += other.seconds
        self.tally = self.tally + other.tally
        self.wait += other.wait
        self.bytes_out += other.bytes_out
        for pid, size in other.resident.items():
            self.resident[pid] = max(size, self.resident.get(pid, 0))


class PipeStats:
    """Entries by pipe; safe to add to from several threads."""

    def __init__(self) -> None:
        self._entries: dict[Key, PipeCounts] = {}
        self._lock = ForkSafeLock()

    def add(self, key: Key, entry: PipeCounts) -> None:
        """Add to the counts of one pipe."""
        with self._lock:
            self._entries.setdefault(key, PipeCounts()).add(entry)

    def merge(self, entries: dict[Key, PipeCounts]) -> None:
        """Add the counts that another process took."""
        for key, entry in entries.items():
            self.add(key, entry)

    def take(self) -> dict[Key, PipeCounts]:
        """Return everything and start again from nothing."""
        with self._lock:
            entries, self._entries = self._entries, {}
        return entries

    def of(self, profile: str) -> dict[str, PipeCounts]:
        """Return the entries of one profile by pipe."""
        with self._lock:
            return {pipe: e for (name, pipe), e in self._entries.items() if name == profile}

    def forget(self, profile: str) -> None:
        """Drop the entries of one profile."""
        with self._lock:
            self._entries = {k: e for k, e in self._entries.items() if k[0] != profile}


PIPE_STATS = PipeStats()  # of this process
