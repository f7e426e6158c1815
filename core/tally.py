"""Counts of what one process has done to voxels.

Tests assert these counts and the ``Profile`` adapter reports them; nothing else
reads them. One object per process, added to by whoever does the work.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from .turns import ForkSafeLock

# Adding is a read and a write; patches of one batch may be realized in several threads.
_LOCK = ForkSafeLock()


@dataclass
class IOCounters:
    """Running totals since the process started.

    Examples
    --------
    >>> before = IOCounters(reads=2, bytes_read=100)
    >>> (IOCounters(reads=5, bytes_read=160) - before).bytes_read
    60
    """

    reads: int = 0
    """Regions read from a volume."""
    bytes_read: int = 0
    """Bytes of stored voxels that these reads touched, in whole chunks."""
    bytes_decoded: int = 0
    """Bytes of voxels that chunks were decoded to; a chunk that was kept is not decoded again."""
    interpolations: int = 0
    """Calls of the resampler that interpolated."""
    copies: int = 0
    """Calls of the resampler that only copied (integer plans)."""
    headers: int = 0
    """Headers parsed."""
    value_passes: int = 0
    """Times that a value op went over a patch; what the resampler does in passing is none."""

    def __sub__(self, other: IOCounters) -> IOCounters:
        return IOCounters(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __add__(self, other: IOCounters) -> IOCounters:
        return IOCounters(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def count(self, **counts: int) -> None:
        """Add to the named counts; safe from several threads."""
        with _LOCK:
            for name, number in counts.items():
                setattr(self, name, getattr(self, name) + number)

    def snapshot(self) -> IOCounters:
        """Return a copy that stays as it is."""
        return IOCounters(*astuple(self))

    def to_json(self) -> dict[str, int]:
        """Return the counts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


IO_COUNTERS = IOCounters()
"""The counts of this process."""
