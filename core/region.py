"""A half-open integer box in one volume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import ge


@dataclass(frozen=True)
class Region:
    """The voxels ``start <= index < stop``, axis by axis.

    Any number of axes; spatial regions have three, in array order (I, J, K). A
    region may lie partly or wholly outside the volume it speaks of.

    Examples
    --------
    >>> a = Region((0, 0), (4, 6))
    >>> a.intersect(Region((2, 3), (9, 9)))
    Region(2:4, 3:6)
    >>> a.shape, a.size
    ((4, 6), 24)
    """

    start: tuple[int, ...]
    """First index on each axis."""
    stop: tuple[int, ...]
    """One past the last index on each axis."""

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop):
            msg = f"start and stop need as many axes, got {self.start} and {self.stop}"
            raise ValueError(msg)
        # Plain ints: a region travels as JSON and as a slice.
        values = self.__dict__
        values["start"], values["stop"] = tuple(map(int, self.start)), tuple(map(int, self.stop))

    @classmethod
    def of_shape(cls, shape: Sequence[int]) -> Region:
        """Return the region that covers a whole array of ``shape``."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis, never negative."""
        return tuple(max(0, b - a) for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of voxels."""
        total = 1
        for length in self.shape:
            total *= length
        return total

    @property
    def is_empty(self) -> bool:
        """Whether no voxel is inside."""
        return any(map(ge, self.start, self.stop))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The region as an index of an array; it must not start below zero."""
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def shift(self, offset: Sequence[int]) -> Region:
        """Move by ``offset`` voxels."""
        return Region(
            tuple(a + o for a, o in zip(self.start, offset, strict=True)),
            tuple(b + o for b, o in zip(self.stop, offset, strict=True)),
        )

    def pad(self, halo: int | Sequence[int]) -> Region:
        """Grow by ``halo`` voxels on both sides of each axis."""
        halos = (halo,) * len(self.start) if isinstance(halo, int) else tuple(halo)
        return Region(
            tuple(a - h for a, h in zip(self.start, halos, strict=True)),
            tuple(b + h for b, h in zip(self.stop, halos, strict=True)),
        )

    def intersect(self, other: Region) -> Region:
        """Return the voxels in both; empty where they do not meet."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        return Region(start, tuple(max(a, b) for a, b in zip(start, stop, strict=True)))

    def contains(self, other: Region) -> bool:
        """Whether every voxel of ``other`` is in this region; an empty one always is."""
        return other.is_empty or self.intersect(other) == other

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield ``(start, stop)`` of each axis."""
        return iter(zip(self.start, self.stop, strict=True))

    def __repr__(self) -> str:
        return f"Region({', '.join(f'{a}:{b}' for a, b in self)})"
