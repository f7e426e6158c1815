"""Places of the windows that cover a volume, and the cells between their faces.

The faces of all windows cut each axis into intervals, and the volume into cells. A window covers a
whole cell or none of it. A cell is finished after its last window, in any order. The place of a
window comes from its provenance.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Region
from ..core.affine3x4 import IDENTITY, Affine3x4
from ..core.errors import PatchSizeError, SampleError, VoxpipeError
from ..core.lru_cache import cached_property
from ..spatial.lazy.read_plan import recorded_plan
from ..spatial.placing.patch import positions
from ..spatial.plans.plan import SpatialPlan
from ..spatial.plans.pull_back import COPY_TOLERANCE, extremes
from ..storage.location import is_url
from ..volumes import Volume
from ..volumes.conversion.convert import known_version, refuse_itself

Triple = tuple[int, int, int]
Cell = Triple
"""Index of the interval on each axis."""


@dataclass(frozen=True)
class _Axis:
    """The windows along one axis of a grid of windows."""

    starts: tuple[int, ...]  # first voxel of each window; may be negative
    spans: tuple[tuple[int, int], ...]  # voxels that each window fills, (start, stop)

    @classmethod
    def of(cls, extent: int, size: int, overlap: int, cuts: bool) -> _Axis:
        """Return the windows of one axis; ``cuts`` assigns each voxel to one of them."""
        starts = tuple(start for (start,) in positions((extent,), (size,), (overlap,)))
        ends = [(max(start, 0), min(start + size, extent)) for start in starts]
        if cuts:
            # Neighbours share the overlap in halves; the later of two windows fills a voxel.
            firsts = [0, *(start + overlap - overlap // 2 for start in starts[1:])]
            ends = list(itertools.pairwise([*firsts, extent]))
        return cls(starts, tuple(ends))

    @cached_property
    def faces(self) -> tuple[int, ...]:
        """Return the starts of the intervals, and the end of the last."""
        return tuple(sorted({face for span in self.spans for face in span}))

    @cached_property
    def intervals(self) -> tuple[tuple[int, int], ...]:
        """Return the first interval of each window, and the one after its last."""
        at = {face: number for number, face in enumerate(self.faces)}
        return tuple((at[start], at[stop]) for start, stop in self.spans)

    @cached_property
    def touching(self) -> tuple[tuple[int, int], ...]:
        """Return the first window that touches each interval, and the one after the last."""
        # Spans are ordered, so those that touch an interval are consecutive.
        return tuple(
            (
                next(n for n, (_, stop) in enumerate(self.intervals) if stop > number),
                sum(first <= number for first, _ in self.intervals),
            )
            for number in range(len(self.faces) - 1)
        )


@dataclass(frozen=True)
class Windows:
    """Windows of one size that cover a volume, numbered in C order.

    Examples
    --------
    >>> windows = Windows((9, 4, 4), (4, 4, 4), (2, 0, 0))
    >>> len(windows), windows.start(3)
    (4, (5, 0, 0))
    >>> [windows.region(cell) for cell in windows.cells(3)]
    [Region(5:6, 0:4, 0:4), Region(6:8, 0:4, 0:4), Region(8:9, 0:4, 0:4)]
    """

    shape: Triple
    """Shape of the volume."""
    size: Triple
    """Voxels of a window along each axis."""
    overlap: Triple
    """Voxels that neighbours share, the last two of an axis more."""
    cuts: bool = False
    """Whether each voxel is filled by one window alone, the one with the nearest middle."""

    @cached_property
    def axes(self) -> tuple[_Axis, ...]:
        """Return the windows along each axis."""
        every = zip(self.shape, self.size, self.overlap, strict=True)
        return tuple(_Axis.of(*numbers, self.cuts) for numbers in every)

    @cached_property
    def counts(self) -> Triple:
        """Windows along each axis."""
        i, j, k = (len(axis.starts) for axis in self.axes)
        return (i, j, k)

    def __len__(self) -> int:
        return math.prod(self.counts)

    def place(self, number: int) -> Triple:
        """Return the index of a window along each axis."""
        _, j, k = self.counts
        return (number // (j * k), number // k % j, number % k)

    def number(self, start: Sequence[int]) -> int:
        """Return the number of the window with a start; ValueError without one."""
        i, j, k = (axis.starts.index(at) for axis, at in zip(self.axes, start, strict=True))
        return (i * self.counts[1] + j) * self.counts[2] + k

    def start(self, number: int) -> Triple:
        """Return the first voxel of a window; may be outside the volume."""
        i, j, k = (a.starts[n] for a, n in zip(self.axes, self.place(number), strict=True))
        return (i, j, k)

    def cells(self, number: int) -> Iterator[Cell]:
        """Yield the cells that a window fills."""
        pairs = zip(self.axes, self.place(number), strict=True)
        i, j, k = (range(*axis.intervals[n]) for axis, n in pairs)
        return itertools.product(i, j, k)

    def windows(self, cell: Cell) -> Iterator[int]:
        """Yield the numbers of the windows that fill a cell."""
        _, j, k = self.counts
        pairs = zip(self.axes, cell, strict=True)
        for a, b, c in itertools.product(*(range(*axis.touching[n]) for axis, n in pairs)):
            yield (a * j + b) * k + c

    def region(self, cell: Cell) -> Region:
        """Return the box of a cell in the volume."""
        pairs = list(zip(self.axes, cell, strict=True))
        return Region([a.faces[n] for a, n in pairs], [a.faces[n + 1] for a, n in pairs])

    def slices(self, cell: Cell, number: int) -> tuple[slice, slice, slice]:
        """Return the slices of a cell in one of its windows."""
        every = zip(self.axes, cell, self.place(number), strict=True)
        i, j, k = (
            slice(axis.faces[n] - axis.starts[at], axis.faces[n + 1] - axis.starts[at])
            for axis, n, at in every
        )
        return (i, j, k)

    def touch_counts(self) -> NDArray[np.int64]:
        """Return the number of windows that fill each cell."""
        i, j, k = (np.array([b - a for a, b in axis.touching]) for axis in self.axes)
        counts: NDArray[np.int64] = i[:, None, None] * j[:, None] * k
        return counts

    def scale_to(self, size: Sequence[int], noun: str) -> Windows:
        """Return the windows in voxels of an output that has ``size`` voxels for each.

        Raises PatchSizeError unless these divide the windows, their starts and the volume.
        """
        if tuple(size) == self.size:
            return self
        scales = list(zip(size, self.size, strict=True))
        shape, overlap = (
            _triple(v * n // s for v, (n, s) in zip(values, scales, strict=True))
            for values in (self.shape, self.overlap)
        )
        other = Windows(shape, _triple(size), overlap, self.cuts)
        ends = [[n, *axis.starts] for n, axis in zip(self.shape, self.axes, strict=True)]
        theirs = [[n, *axis.starts] for n, axis in zip(other.shape, other.axes, strict=True)]
        for (n, s), own, its in zip(scales, ends, theirs, strict=True):
            if (n % s and s % n) or [v * n for v in own] != [v * s for v in its]:
                a, b, c = ("x".join(map(str, sizes)) for sizes in (size, self.size, self.shape))
                msg = f"{noun} has {a} voxels for a window of {b}. This scale does not divide it, "
                msg += f"the volume of {c} voxels, or the starts of its windows"
                do = "Pad the volume, and choose window and overlap, to multiples of the scale."
                raise PatchSizeError(msg, do=do)
        return other

    @property
    def band_bytes(self) -> int:
        """Most bytes of open sums of one channel, for windows in the order of a chain."""
        # One layer of windows stays open until its neighbours came; float32.
        shares = (self.touch_counts() > 1).any()
        return 4 * min(self.size[0], self.shape[0]) * math.prod(self.shape[1:]) if shares else 0

    @cached_property
    def slow_axis(self) -> int:
        """Return the axis of the outermost loop over windows, for the least open sums."""
        # The later one of equal axes, along which files are contiguous.
        return max(range(3), key=lambda axis: (self.shape[axis], axis))

    def sort(self, numbers: Iterable[int]) -> list[int]:
        """Return windows in the order with the least open sums: the slow axis outermost.

        Within a layer the first axis is fastest, as in files. So finished voxels are neighbours in
        the file, and are written to the same pages.
        """

        def key(number: int) -> tuple[int, ...]:
            place = self.place(number)
            return (place[self.slow_axis], *reversed(place))

        return sorted(numbers, key=key)


_DO = (
    'Cut windows with lazy_patch(sampling="grid"), gather them with batch_patches(), and keep '
    "the entry meta of the batch."
)


@dataclass(frozen=True)
class WindowPlace:
    """The place of one window."""

    case: str
    identity: tuple[int, ...]
    """Identity of the case: that of the window without its last entry."""
    files: Mapping[str, tuple[str, ...]]
    """Names of the stored files by key, first those of the volume with the stored grid."""
    start: Triple
    """First voxel in the grid that windows cover."""
    size: Triple
    overlap: Triple
    plan: SpatialPlan
    """Plan of the windows' whole grid, from the stored volume."""
    skips: tuple[int, int] = (0, 0)
    """Windows that a mask left out right before it, and after it if it is the last."""
    given_volumes: Mapping[str, Any] = field(default_factory=dict)
    """Stored volumes by key, if they are more than a name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of fsspec, for URLs."""

    @classmethod
    def of(
        cls,
        meta: Mapping[str, Any],
        key: str | None = None,
        volumes: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> WindowPlace:
        """Return the place from one entry of ``meta``; SampleError without a place.

        ``key`` names the volume with the stored grid; by default the first.
        """
        sources = meta.get("sources", {})
        if not sources or (key is not None and key not in sources):
            have = ", ".join(map(repr, sources)) or "none"
            raise SampleError(f"meta has the volumes {have}, and not {key or 'any'!r}", do=_DO)
        name = next(iter(sources)) if key is None else key
        source = sources[name]
        draws = [one for one in meta["draws"].values() if isinstance(one, Mapping)]
        if (draw := next((one for one in draws if "window" in one), None)) is None:
            raise SampleError("a patch is no window of a grid", do=_DO)
        start, size, window = draw["start"], draw["size"], draw["window"]
        # A window is a soft crop, so its plan extends to the whole grid.
        plan = recorded_plan(source)
        if plan.shape != tuple(size):
            msg = f"windows of {size} voxels became patches of {plan.shape}"
            raise SampleError(msg, do="Put pipes that move voxels before lazy_patch().")
        whole = plan.crop([-at for at in start], window["grid"])
        return cls(
            str(meta["case"]),
            tuple(meta["identity"][:-1]),
            {one: _files_of(sources[one]) for one in (name, *sources)},
            _triple(start),
            _triple(size),
            _triple(window["overlap"]),
            whole,
            tuple(window.get("skips", (0, 0))),
            volumes or {},
            options or {},
        )

    @property
    def file(self) -> str:
        """Name of the first file of the volume with the stored grid."""
        return next(iter(self.files.values()))[0]

    @cached_property
    def volume(self) -> Volume | None:
        """Return the volume of that file, if it is a local one; None for others."""
        is_there = not is_url(self.file) and os.path.exists(self.file)
        return Volume(self.file) if is_there else None

    @cached_property
    def version(self) -> str:
        """Return the versions of all volumes of the sample; empty if one has none."""
        volumes: list[Any] = [*self.given_volumes.values()]
        try:
            for key, names in self.files.items():
                volumes += [] if key in self.given_volumes else map(self._volume_of, names)
            versions = [known_version(volume) for volume in volumes]
        except VoxpipeError:  # no file, or other options are needed
            return ""
        return " ".join(versions) if all(versions) else ""

    def _volume_of(self, name: str) -> Volume:
        return Volume(name, storage_options=dict(self.options) if is_url(name) else None)

    def refuse_itself(self, destination: str) -> None:
        """Raise DestinationExists if a volume of the sample would be overwritten."""
        for volume in self.given_volumes.values():
            refuse_itself(volume, destination)
        for key, names in self.files.items():
            for name in names if key not in self.given_volumes else ():
                if is_url(name) or os.path.exists(name):
                    refuse_itself(self._volume_of(name), destination)

    @property
    def stored_grid(self) -> Grid:
        """The grid of the stored volume."""
        return self.plan.source

    @cached_property
    def is_stored(self) -> bool:
        """Whether windows cover the stored grid itself."""
        same = self.plan.shape == self.plan.source.shape and not self.plan.stages
        return same and _apart(self.plan.rows, IDENTITY, self.plan.shape) < COPY_TOLERANCE

    def windows(self, blend: str) -> Windows:
        """Return all windows of the grid."""
        return Windows(self.plan.shape, self.size, self.overlap, cuts=blend == "crop")

    def refuse_moved(self, first: WindowPlace) -> None:
        """Raise SampleError if this window has another grid than the first of its case."""
        plan, other = self.plan, first.plan
        # Stages are in source coordinates: equal for all windows.
        same = plan.shape == other.shape and plan.stages == other.stages
        if not same or _apart(plan.rows, other.rows, plan.shape) >= COPY_TOLERANCE:
            msg = "windows of one volume lie on different grids: a pipe behind lazy_patch() moves"
            raise SampleError(msg, do="Put pipes that move voxels before lazy_patch().")


def _apart(one: Affine3x4, other: Affine3x4, shape: Triple) -> float:
    """Return the largest difference of two plans, at a corner, in voxels."""
    low, high = extremes([a - b for a, b in zip(one, other, strict=True)], shape)
    return max(map(abs, low + high))


def _files_of(source: dict[str, Any]) -> tuple[str, ...]:
    # dict.get, because ``Provenance`` would write out the plan.
    channels = dict.get(source, "channels") or [source]
    return tuple(str(dict.__getitem__(one, "file")) for one in channels)


def _triple(values: Any) -> Triple:
    i, j, k = map(int, values)
    return (i, j, k)
