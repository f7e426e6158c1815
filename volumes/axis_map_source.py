"""Views of opened stores through an axis map or as labels, and masks of stored sections."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Region
from ..core.errors import BadHeader, VolumeError
from ..core.validate import count_text
from ..storage.content import content_key
from .axis_map import AxisMap, Table, mapped_names
from .backend import Backend, Channels, read_counted
from .chunks.chunked_array import NeededChunks
from .header import Header, Shape, Times
from .scheme import StoreLayout
from .session import Source, opening_session
from .source import LocatedSource
from .stack_source import OwnSource, Read, ViewedBackend
from .voxels import Voxels, label_numbers


class SectionRun(NamedTuple):
    """Stored sections that are read at once, and their places in the result."""

    start: int  # first stored section
    stop: int  # one past the last
    places: Any  # places in the virtual range, a slice or an array of indices
    sections: Any  # section of the run at each place, likewise
    shift: int | None  # stored minus virtual index; None where that differs


def section_runs(table: Table, start: int, stop: int, chunk: int = 1) -> list[SectionRun]:
    """Return the runs of the stored sections at virtual sections ``start`` to ``stop``.

    Each stored section is in one run at most. Two runs have an unneeded chunk between them, as
    sections in one or adjacent chunks are read at once.

    Examples
    --------
    >>> runs = section_runs(np.array([0, 1, -1, 9, 8]), 0, 5)
    >>> [(r.start, r.stop, r.places, r.sections) for r in runs]
    [(0, 2, slice(0, 2, 1), slice(0, 2, 1)), (8, 10, slice(3, 5, 1), slice(1, None, -1))]
    """
    part = table[start:stop]
    indices = np.unique(part[part >= 0])
    if not len(indices):
        return []
    # A run may skip sections within a chunk or to the next one: that reads no further chunk.
    ends = np.flatnonzero(np.diff(indices // chunk) > 1)
    firsts = indices[np.concatenate([[0], ends + 1])]
    lasts = indices[np.concatenate([ends, [len(indices) - 1]])]
    runs = []
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        places = np.flatnonzero((part >= first) & (part <= last))
        sections = part[places] - first
        shift = part[places] - (places + start)
        same = int(shift[0]) if (shift == shift[0]).all() else None
        runs.append(SectionRun(first, last + 1, _as_slice(places), _as_slice(sections), same))
    return runs


def _as_slice(places: NDArray[np.int64]) -> Any:
    """Return places of step 1 or -1 as a slice, which needs no gathering."""
    first, count = int(places[0]), len(places)
    step = int(places[1]) - first if count > 1 else 1
    if abs(step) != 1 or not (np.diff(places) == step).all():
        return places
    stop = first + step * count
    return slice(first, stop if stop >= 0 else None, step)


class AxisMappedSource:
    """A source seen through an axis map; pickled as that source and the map."""

    def __init__(self, source: Source, axis_map: AxisMap) -> None:
        self.source = source
        self.axis_map = axis_map
        self.name = source.name
        self.token = content_key(source.token, ("axis map", axis_map.fingerprint()))
        before = getattr(source, "axis_map_key", "")
        self.axis_map_key = content_key(before, ("axis map", axis_map.fingerprint()))
        self._backend: Backend | None = None

    @property
    def located_source(self) -> LocatedSource | None:
        """Path or URL of the stored volume."""
        inner = getattr(self.source, "located_source", self.source)
        return inner if isinstance(inner, LocatedSource) else None

    @property
    def backend(self) -> Backend | None:
        """Backend of a source in memory; None for others."""
        inner: Backend | None = getattr(self.source, "backend", None)
        if self._backend is None and inner is not None:
            self._backend = AxisMappedBackend(inner, self.axis_map)
        return self._backend

    def known_header(self) -> Header:
        """Return the header seen through the map; may read that of the source."""
        header = _header_of(self.source)
        tables = self.axis_map.tables(header.shape, self.name, *_channels_of(header))
        return mapped_header(header, tables)

    def opened_anew(self, by: str) -> AxisMappedSource:
        """Return the source for a pass, with the source below opened again."""
        renew = getattr(self.source, "opened_anew", None)
        source = self.source if renew is None else renew(by)
        # A new object makes the volume read the header of a file again.
        in_memory = source is self.source and getattr(source, "backend", None) is not None
        return self if in_memory else AxisMappedSource(source, self.axis_map)

    def open(self) -> Backend:
        """Open the source, and return it seen through the map."""
        # From the handles: volumes without the map share the open file.
        inner = opening_session().handles.acquire(self.source, verify=True)
        return AxisMappedBackend(inner, self.axis_map)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_backend": None}


def _header_of(source: Any) -> Header:
    if hasattr(source, "known_header"):
        header: Header = source.known_header()
        return header
    return opening_session().handles.acquire(source, verify=True).header


def _channels_of(header: Header) -> tuple[tuple[str, ...], Times]:
    return header.channel_names, header.times


def names_below_numbers(source: Any) -> tuple[str, ...]:
    """Return the names of all stored channels of a source that chooses some by number."""
    if isinstance(source, AxisMappedSource) and source.axis_map.has_numbers:
        return _header_of(source.source).channel_names
    return ()


def mapped_header(header: Header, tables: Sequence[Table | None]) -> Header:
    """Return a header seen through the tables of the four axes."""
    sizes = zip(header.shape, tables, strict=True)
    c, i, j, k = (length if table is None else len(table) for length, table in sizes)
    names = mapped_names(header.channel_names, tables[0])
    times = header.times.after(tables[0], header.shape[0])
    return replace(header, shape=(c, i, j, k), channel_names=names, times=times)


class AxisMappedBackend(ViewedBackend):
    """An opened store seen through an axis map; hidden sections are not read."""

    def __init__(self, inner: Backend, axis_map: AxisMap) -> None:
        self._tables = axis_map.tables(inner.shape, inner.name, *_channels_of(inner.header))
        header = mapped_header(inner.header, self._tables)
        super().__init__(inner, header, "axis map", axis_map.fingerprint())
        self._units = (inner.channels_at_once, *(inner.chunks or (1, 1, 1)))
        self._fill = stored_fill(axis_map, self._tables, inner.header, inner.name)
        self.counts_below, self.levels = inner.counts_below, inner.levels

    def layout(self, volumes: int = 1) -> StoreLayout:
        whole = replace(self._inner.header, shape=self.header.shape)
        itemsize = StoreLayout.of(whole, volumes).itemsize
        inner = self._inner.layout(volumes)
        return replace(inner, shape=self.header.shape[1:], itemsize=itemsize)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        first, last = channels or (0, self.shape[0])
        i, j, k = region.shape
        shape = (last - first, i, j, k)
        out: NDArray[Any] | None = None
        slope, intercept = self.header.slope, self.header.intercept
        for runs in self._runs(region, channels):
            voxels = self._inner.read(*_box_of(runs, region))
            slope, intercept = voxels.slope, voxels.intercept
            if out is None and _shows_all(runs, shape):
                # One run, perhaps backwards: a view of the store's array.
                index = tuple(run.sections for run in runs)
                return Voxels(voxels.array[index], slope, intercept)
            if out is None:
                out = np.full_like(voxels.array, self._fill, shape=shape)
            _put(voxels.array, runs, out)
        if out is None:
            dtype = self.header.value_type or self.header.disk_dtype
            out = np.full(shape, self._fill, np.uint8 if dtype.kind == "b" else dtype)
        return Voxels(out, slope, intercept)

    def reads(self, region: Region, channels: Channels | None) -> Iterator[Read]:
        for runs in self._runs(region, channels):
            yield self._inner, *_box_of(runs, region)

    def needed_chunks(
        self, region: Region, channels: Channels | None = None
    ) -> NeededChunks | None:
        reads = self.reads(region, channels)
        answers = [inner.needed_chunks(box, own) for inner, box, own in reads]
        parts = [chunks for chunks in answers if chunks is not None]
        if self.chunks is None or not parts:
            return super().needed_chunks(Region((0, 0, 0), (0, 0, 0)), channels)
        chunks = np.unique(np.concatenate([part.chunks for part in parts]), axis=0)
        return NeededChunks(chunks, sum(part.voxels for part in parts), parts[0].chunk_bytes)

    def _runs(self, region: Region, channels: Channels | None) -> Iterator[tuple[SectionRun, ...]]:
        """Yield one run per axis, for every box of stored voxels that is needed."""
        ends = (channels or (0, self.shape[0]), *region)
        per_axis = []
        for (start, stop), table, unit in zip(ends, self._tables, self._units, strict=True):
            every = slice(0, stop - start)
            whole = [SectionRun(start, stop, every, every, 0)]
            per_axis.append(whole if table is None else section_runs(table, start, stop, unit))
        return product(*per_axis)


def stored_fill(
    axis_map: AxisMap, tables: Sequence[Table | None], header: Header, name: str
) -> Any:
    """Return the stored number of the fill value of a map."""
    if all(table is None or (table >= 0).all() for table in tables):
        return 0  # no section is missing
    dtype = header.value_type or header.disk_dtype
    number = (axis_map.fill - header.intercept) / header.slope
    if dtype.kind in "fc":
        return number
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not limits[0] <= number <= limits[1]:
        low, high = (header.slope * limit + header.intercept for limit in limits)
        raise VolumeError(
            f"missing sections of {name} cannot show {axis_map.fill:g}: its voxels are "
            f"{dtype}, values from {min(low, high):g} to {max(low, high):g}.",
            do="Give the axis map another fill=.",
        )
    return round(number)


def _shows_all(runs: tuple[SectionRun, ...], shape: Shape) -> bool:
    """Whether one read returns the whole region, without gathering."""
    return all(
        isinstance(run.sections, slice)
        and isinstance(run.places, slice)
        and (run.places.start, run.places.stop) == (0, length)
        for run, length in zip(runs, shape, strict=True)
    )


def _put(block: NDArray[Any], runs: tuple[SectionRun, ...], out: NDArray[Any]) -> None:
    """Write a block of stored sections to its places in the result."""
    for axis, run in enumerate(runs):
        if isinstance(run.sections, slice):
            block = block[(slice(None),) * axis + (run.sections,)]
        else:
            block = block.take(run.sections, axis)
    index = [run.places for run in runs]
    if sum(not isinstance(places, slice) for places in index) > 1:
        lengths = zip(index, out.shape, strict=True)
        index = list(np.ix_(*(np.arange(n)[places] for places, n in lengths)))
    out[tuple(index)] = block


def _box_of(runs: tuple[SectionRun, ...], region: Region) -> tuple[Region, Channels]:
    """Return the stored region and channels of runs.

    The region loses its ``box`` where sections are reordered, so that all of its chunks are read.
    """
    box = region.box
    shifts = [run.shift for run in runs[1:] if run.shift is not None]
    if box is not None and len(shifts) == 3:
        matrix = box.matrix.copy()
        matrix[:3, 3] += shifts
        clamp = None if box.clamp is None else box.clamp.shift(shifts)
        box = replace(box, matrix=matrix, clamp=clamp)
    else:
        box = None
    start, stop = [run.start for run in runs[1:]], [run.stop for run in runs[1:]]
    return Region(start, stop, box), (runs[0].start, runs[0].stop)


class LabelBackend(ViewedBackend):
    """A store of labels as real numbers; a read rounds them and refuses other values."""

    counts_below = True

    def __init__(self, inner: Backend) -> None:
        header = inner.header.of_labels
        if header is None:
            raise BadHeader(
                f"the label {inner.name} is stored as {inner.disk_dtype} with the scale "
                f"{inner.header.slope:g} and the offset {inner.header.intercept:g}, which leaves "
                "no whole numbers.",
                do=_WRITE_LABELS,
            )
        super().__init__(inner, header, "labels")
        self.levels = inner.levels

    @property
    def version(self) -> Hashable:
        return self._inner.version

    @property
    def grid(self) -> Grid:
        return self._inner.grid

    def layout(self, volumes: int = 1) -> StoreLayout:
        return self._inner.layout(volumes)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        # All of its chunks: the values of skipped chunks are no labels.
        return self.round_labels(self.read_stored(region.pad(0), channels), region)

    def read_stored(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return the stored numbers of a region, for `round_labels`."""
        return read_counted(self._inner, region, channels)

    def round_labels(self, voxels: Voxels, region: Region) -> Voxels:
        """Return some stored numbers of a region as labels."""
        numbers, flags = label_numbers(voxels)
        if flags is not None:
            scale = f", by the scale {voxels.slope:g}," if voxels.is_scaled else ""
            example = voxels.values()[flags][0]
            raise VolumeError(
                f"the label {self.name} holds {example:.9g}{scale} where labels are whole numbers; "
                f"{count_text(int(flags.sum()), 'voxel', 'voxels')} of {region} are none.",
                do=_WRITE_LABELS,
            )
        return Voxels(numbers.astype(self.disk_dtype, copy=False))

    def reads(self, region: Region, channels: Channels | None) -> list[Read]:
        return [(self._inner, region, channels)]

    def needed_chunks(
        self, region: Region, channels: Channels | None = None
    ) -> NeededChunks | None:
        return self._inner.needed_chunks(region, channels)


_WRITE_LABELS = (
    "Write labels as integers, without a scale; if these are no classes, give other keys in "
    "open_volume(labels=)."
)


class StoredMaskSource(OwnSource):
    """Mask of stored voxels, computed from the tables without reading voxels."""

    def __init__(self, source: AxisMappedSource) -> None:
        self.source = source
        self.name = f"{source.name} (mask of stored voxels)"
        self.token = content_key(source.token, ("stored mask",))

    def known_header(self) -> Header:
        """Return the header; may read that of the volume."""
        return self._facts()[0]

    def opened_anew(self, by: str) -> StoredMaskSource:
        """Return the source for a pass, of the volume opened again."""
        source = self.source.opened_anew(by)
        return self if source is self.source else StoredMaskSource(source)

    def _make(self) -> Backend:
        return StoredMask(*self._facts(), self.name)

    def _facts(self) -> tuple[Header, tuple[NDArray[np.bool_], ...]]:
        header = _header_of(self.source.source)
        axis_map = self.source.axis_map
        tables = axis_map.tables(header.shape, self.source.name, *_channels_of(header))
        flags = tuple(
            np.ones(length, bool) if table is None else table >= 0
            for table, length in zip(tables, header.shape, strict=True)
        )
        # One channel is enough, unless channels are missing.
        whole = flags if not flags[0].all() else (np.ones(1, bool), *flags[1:])
        c, i, j, k = map(len, whole)
        return Header((c, i, j, k), header.affine, np.dtype(np.uint8), stamp=header.stamp), whole


class StoredMask(Backend):
    """Mask with 1 where all four indices of a voxel show stored sections, else 0."""

    def __init__(self, header: Header, flags: tuple[NDArray[np.bool_], ...], name: str) -> None:
        super().__init__(header, name)
        self._flags = flags

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        parts = [slice(*(channels or (0, self.shape[0]))), *region.slices]
        flags = [each[part] for each, part in zip(self._flags, parts, strict=True)]
        c, i, j, k = flags
        mask = c[:, None, None, None] & i[:, None, None] & j[:, None] & k
        return Voxels(mask.view(np.uint8))

    def touched_bytes(self, region: Region, channels: Channels | None = None) -> int:
        return 0

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        return 0
