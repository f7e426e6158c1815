"""Backends of chunked arrays, and the layout of stored axes as (C, I, J, K)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.call_site import WarnOnce, shorten, warn
from ...core.context import values_here
from ...core.errors import BadHeader, EmptyVolume, LikelyMistake, SampleError, UnknownFormat
from ...core.lru_cache import cached_property
from ...core.validate import MILLIMETRES, plain_unit, unit_word
from ...storage.read_ahead import Closable
from ..backend import Channels
from ..chunks.chunked_array import NeededChunks
from ..header import IDENTITY, ONE_TIME, PLACEMENT, Header, Shape, Times, refuse_unreadable
from ..voxels import Voxels, plain
from .stored_file import FilesBackend, StoredFile

SPATIAL = ("x", "y", "z")
_SILENT = ("", "none", "null", "unknown")
NO_LENGTHS = (*_SILENT, "pixel", "px", "voxel", "arbitrary", "referenceframe")
"""Units of lengths in voxels or without a unit."""
PIXEL = "px"
"""Unit of the header of such a file: its lengths are numbers of pixels."""


def millimetres_in(unit: Any, name: str) -> float:
    """Return the millimetres in a unit of a file; 1 for pixels, and for an unknown unit."""
    word = "" if unit is None else unit_word(str(unit))
    if word not in MILLIMETRES and word not in NO_LENGTHS:
        warn(
            f"unknown-unit: {name} gives lengths in the unknown unit {shorten(unit)}; they "
            "count as pixels. Pass ⟦affine=⟧ to place the voxels.",
            LikelyMistake,
        )
    units = values_here().get(PLACEMENT, PLACEMENT.default).units
    if units is not None and word not in _SILENT:
        units.add(plain_unit(word) if word in MILLIMETRES else PIXEL)
    return MILLIMETRES.get(word, 1.0)


def factors_in(units: Mapping[str, str], name: str) -> dict[str, float]:
    """Return the millimetres in the unit of each axis; refuse lengths along some axes only."""
    if len({unit_word(unit) in MILLIMETRES for unit in units.values()}) > 1:
        every = ", ".join(f"{axis}: {unit!r}" for axis, unit in units.items())
        msg = f"{name} gives lengths along some axes only, by units of {every}."
        raise BadHeader(msg, do="Pass ⟦affine=⟧ to say where the voxels lie.")
    factors = {unit: millimetres_in(unit, name) for unit in {*units.values()}}
    return {axis: factors[unit] for axis, unit in units.items()}


@dataclass(frozen=True)
class Layout:
    """The stored axes that are folded into C, in stored order, and those of I, J, K."""

    sizes: tuple[int, ...]  # shape of the stored array
    c_axes: tuple[int, ...]  # stored axes of C, slowest first
    spatial: tuple[int | None, int | None, int | None]
    """Stored axes of I, J and K; None for an axis of length 1 that is not stored."""
    is_named: bool = True  # whether the file or axes= names the axes
    channel_names: tuple[str, ...] = field(default=(), repr=False)
    """Name of each channel; empty where the file has none."""
    times: Times = field(default=ONE_TIME, repr=False)

    @cached_property
    def shape(self) -> Shape:
        """(C, I, J, K)."""
        i, j, k = (1 if axis is None else int(self.sizes[axis]) for axis in self.spatial)
        return math.prod(self.sizes[axis] for axis in self.c_axes), i, j, k

    def index(self, region: Region, channels: Channels | None = None) -> tuple[Region, Channels]:
        """Return the region of the stored array, and the place of the channels in that region.

        The slowest folded axis is cut, and the second of two within one entry of it. Others are
        read whole. The region keeps the result.
        """
        if channels is None and not self.c_axes and self.spatial == (0, 1, 2):  # as stored
            return region, (0, 1)
        memo = region.storage_region
        if memo is not None and memo[0] is self and memo[1] == channels:
            result: tuple[Region, Channels] = memo[2]
            return result
        start, stop = [0] * len(self.sizes), list(self.sizes)
        for n, axis in enumerate(self.spatial):
            if axis is not None:
                start[axis], stop[axis] = region.start[n], region.stop[n]
        part = channels or (0, self.shape[0])
        if channels is not None and self.c_axes:
            inner = math.prod(self.sizes[axis] for axis in self.c_axes[1:])
            first = channels[0] // inner
            start[self.c_axes[0]], stop[self.c_axes[0]] = first, -(-channels[1] // inner)
            part = channels[0] - first * inner, channels[1] - first * inner
            if len(self.c_axes) == 2 and part[1] <= inner:  # of one entry of the slowest axis
                (start[self.c_axes[1]], stop[self.c_axes[1]]), part = part, (0, part[1] - part[0])
        i, j, k = self.spatial
        box = region.box
        if box is not None:
            is_flat = i is None or j is None or k is None
            box = None if is_flat else replace(box, axes=(i, j, k))  # type: ignore[arg-type]
        result = Region(start, stop, box), part
        vars(region)["storage_region"] = self, channels, result
        return result

    def fold(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a stored array, or a part of it, as a view (C, I, J, K)."""
        if not self.c_axes and None not in self.spatial:  # most volumes
            return array.transpose(self.spatial)[None]  # type: ignore[arg-type]
        axes = [axis for axis in self.spatial if axis is not None]
        view = array.transpose((*self.c_axes, *axes))
        lengths = [1 if axis is None else array.shape[axis] for axis in self.spatial]
        return view.reshape((math.prod(array.shape[axis] for axis in self.c_axes), *lengths))


def plain_layout(shape: tuple[int, ...], name: str, axes: Any = None) -> Layout:
    """Return the layout of an array without metadata: (I, J), (I, J, K) or (C, I, J, K).

    ``axes`` names its axes instead, ``"zyx"`` for instance; c and t are folded into C.

    Examples
    --------
    >>> plain_layout((3, 8, 9, 10), "a.zarr").shape, plain_layout((8, 9), "b.zarr").shape
    ((3, 8, 9, 10), (1, 8, 9, 1))
    >>> plain_layout((8, 9, 10), "c.npy", "zyx").shape
    (1, 10, 9, 8)
    """
    if axes is not None:
        return named_layout(shape, check_axes(axes, shape, name), name)
    spatial = {2: (0, 1, None), 3: (0, 1, 2), 4: (1, 2, 3)}.get(len(shape))
    if spatial is None:
        msg = f"the array of {name} has {len(shape)} axes without names."
        do = "Store (I, J, K) or (C, I, J, K)"
        do += ', or name the axes, ⟦axes="tzyx"⟧ for instance.' if len(shape) > 4 else "."
        raise BadHeader(msg, do=do)
    return Layout(shape, (0,) * (len(shape) == 4), spatial, is_named=False)


_LETTERS = "xyzct"
# Letters by names of axes in xarray, netCDF, zarr and HDF5.
AXES_BY_NAME = {letter: letter for letter in _LETTERS} | {
    **dict.fromkeys(("channel", "channels"), "c"),
    **dict.fromkeys(("time", "frame", "frames"), "t"),
    **dict.fromkeys(("depth", "plane", "planes", "slice", "slices"), "z"),
    **dict.fromkeys(("height", "row", "rows"), "y"),
    **dict.fromkeys(("width", "column", "columns", "col"), "x"),
}
_LEAST_AXES = 2
_AXES_ONCE = WarnOnce()


def axes_of_names(names: Sequence[Any], name: str) -> str | None:
    """Return the letters of named axes; None for unknown names, with one warning.

    Default names of xarray and netCDF, such as ``dim_0``, are ignored.

    Examples
    --------
    >>> axes_of_names(["Time", "depth", "y", "x"], "a.zarr")
    'tzyx'
    """
    words = [str(axis or "").lower() for axis in names]
    letters = [AXES_BY_NAME.get(word, "") for word in words]
    is_known = all(letters) and len(set(letters)) == len(letters)
    if is_known and len({*letters} & {*SPATIAL}) >= _LEAST_AXES:
        return "".join(letters)
    if any(word and not word.startswith(("dim_", "phony_dim_")) for word in words):
        _AXES_ONCE.warn(
            tuple(words),
            f"unknown-axes: {name} names its axes {', '.join(map(str, names))}, and x, y, z, c and "
            "t are known; they are read in stored order. Pass ⟦axes=⟧ to name them.",
            LikelyMistake,
        )
    return None


def refuse_other_names(names: Sequence[Any], axes: Sequence[str], name: str) -> None:
    """Raise ``BadHeader`` if an array names an axis in another way than its metadata."""
    letters = [AXES_BY_NAME.get(str(axis or "").lower(), "") for axis in names]
    own = [AXES_BY_NAME.get(axis, axis) for axis in axes]
    if any(letter not in ("", axis) for letter, axis in zip(letters, own, strict=False)):
        msg = f"the metadata of {name} name its axes {', '.join(axes)}, and its array "
        do = "Correct one of them, or open the array itself with ⟦axes=⟧ and ⟦affine=⟧."
        raise BadHeader(f"{msg}{', '.join(map(str, names))}.", do=do)


def refuse_other_axes(
    axes: Any, file_axes: Sequence[Any], shape: Sequence[int], name: str, array: str = ""
) -> None:
    """Raise ``SampleError`` if ``axes=`` gives an axis another letter than its file does.

    Axes without a known name may get any letter. With ``affine=`` the letters replace the names,
    but not those of a group, whose ``array`` is a file of its own.

    Examples
    --------
    >>> refuse_other_axes("zyx", ["depth", None, "x"], (4, 5, 6), "a.zarr")
    """
    letters = [AXES_BY_NAME.get(str(axis or "").lower(), "") for axis in file_axes]
    own_letters = [letter for letter in letters if letter]
    if axes is None or len(letters) < len(check_axes(axes, shape, name)):
        return
    if len({*own_letters}) < len(own_letters) or (PLACEMENT.get().has_affine and not array):
        return
    if any(letter not in ("", axis) for letter, axis in zip(letters, axes, strict=True)):
        own, where = ", ".join(map(str, file_axes)), f"open {array} with" if array else "give"
        msg = f"axes={axes!r} was given for {name}, which names its axes {own}"
        do = f"Leave ⟦axes=⟧ out. If the names are wrong, {where} both ⟦axes=⟧ and ⟦affine=⟧."
        raise SampleError(msg, do=do)


def warn_of_coordinates(keys: Sequence[Any], name: str, what: str = "coordinates along") -> None:
    """Warn of places or sizes of voxels, along some axes or in some tags, which are not read."""
    if keys and not PLACEMENT.get().has_affine:
        msg = f"{what.split()[0]}: {name} has {what} {', '.join(map(str, keys))}, which are "
        do = "Pass ⟦affine=⟧ to place the voxels."
        warn(f"{msg}not read: without other sizes, voxels are 1 mm wide. {do}", LikelyMistake)


def check_axes(axes: Any, shape: Sequence[int], name: str) -> str:
    """Return ``axes``; raise ``SampleError`` unless its letters name the axes of the array."""
    is_text = isinstance(axes, str)
    if not is_text or not set(axes) <= set(_LETTERS) or len(set(axes)) < len(axes):
        msg = f"axes= of {name} is {shorten(axes)}, and takes the letters x, y, z, c, t, each once"
        raise SampleError(msg, do='Write them in the order of the array, such as ⟦axes="czyx"⟧.')
    if len(axes) != len(shape):
        msg = f"axes={axes!r} names {len(axes)} axes, and {name} has {len(shape)}: {tuple(shape)}"
        raise SampleError(msg, do="Give one letter for each axis.")
    if len(set(axes) & set(SPATIAL)) < _LEAST_AXES:
        msg = f"axes={axes!r} of {name} names fewer than two of x, y and z"
        raise SampleError(msg, do="Name two or three spatial axes.")
    return str(axes)


def names_of_channels(
    labels: Sequence[str], axes: Sequence[str], shape: Sequence[int]
) -> tuple[str, ...]:
    """Return the name of each channel from those along the axis c; empty if their number differs.

    Examples
    --------
    >>> names_of_channels(["DAPI", "GFP"], "tczyx", (2, 2, 5, 8, 8))
    ('DAPI', 'GFP', 'DAPI', 'GFP')
    >>> names_of_channels(["DAPI", "DAPI"], "czyx", (2, 5, 8, 8))  # a name chooses one channel
    ('DAPI (0)', 'DAPI (1)')
    """
    c_axes = [n for n, axis in enumerate(axes) if axis not in SPATIAL]
    place = next((place for place, n in enumerate(c_axes) if axes[n] == "c"), None)
    lengths = [int(shape[n]) for n in c_axes]
    if place is None:
        return tuple(labels) * math.prod(lengths) if len(labels) == 1 else ()
    if len(labels) != lengths[place]:
        return ()
    several = {label for label in labels if label and list(labels).count(label) > 1}
    labels = [f"{name} ({n})" if name in several else name for n, name in enumerate(labels)]
    return tuple(labels[n] for n in np.indices(lengths)[place].ravel().tolist())


def named_layout(
    shape: tuple[int, ...],
    axes: Sequence[str],
    name: str,
    labels: Sequence[str] = (),
) -> Layout:
    """Return the layout of an array whose axes have names; ``labels`` are those of channels.

    Examples
    --------
    >>> named_layout((2, 3, 10, 9, 8), "tczyx", "a.ome.zarr").shape
    (6, 8, 9, 10)
    """
    if len(shape) != len(axes):
        msg = f"the array of {name} has {len(shape)} axes, and its metadata name {len(axes)}: "
        raise BadHeader(f"{msg}{', '.join(axes)}.")
    numbers = {axis: n for n, axis in enumerate(axes)}
    if len(numbers) != len(axes):
        msg = f"{name} has several axes of one name ({', '.join(axes)}), shape {shape}."
        raise BadHeader(msg, do=f"Name each of the {len(shape)} axes in the file, or by ⟦axes=⟧.")
    x, y, z = (numbers.get(axis) for axis in SPATIAL)
    c_axes = tuple(n for n, axis in enumerate(axes) if axis not in SPATIAL)
    names = names_of_channels(labels, axes, shape) if labels else ()
    times = ONE_TIME
    if "t" in numbers and shape[numbers["t"]] > 1:
        inner = math.prod(shape[n] for n in c_axes if n > numbers["t"])
        times = Times(int(shape[numbers["t"]]), int(inner))
    return Layout(shape, c_axes, (x, y, z), channel_names=names, times=times)


def check_number(number: Any, count: int, noun: str, name: str) -> None:
    """Raise ``BadHeader`` unless ``number`` is that of one of ``count`` parts of a file."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
        have = f"only {noun} 0" if count == 1 else f"0 to {count - 1}"
        msg = f"{name} has no {noun} {number!r}, but {have}."
        raise BadHeader(msg, do=f"Write {noun}=0, for instance.")


# Bound of plausible chunks, checked before memory is allocated.
MOST_CHUNK_BYTES = 4 * 1024**3


def check_chunk_bytes(size: int, name: str) -> None:
    """Raise ``BadHeader`` for decoded chunks above the bound."""
    if size > MOST_CHUNK_BYTES:
        msg = f"one chunk of {name} has {size} bytes, and takes more than {MOST_CHUNK_BYTES}."
        raise BadHeader(msg, do="Store it in smaller chunks.")


# Attributes of netCDF that change the values of an array, with their neutral values.
_NEUTRAL = {"scale_factor": 1.0, "add_offset": 0.0, "_Unsigned": "false"}
# Those that mark numbers as missing, and NaN as text and as xarray writes it in zarr v3.
_MISSING, _NANS = ("_FillValue", "missing_value", "GDAL_NODATA"), ("nan", "aaaaaaaa+h8=")
# By which other programs place an array; their units are not named. In HDF5 this one is read.
_PLACES, _READ = "resolution voxel_size spacing pixelResolution offset transform", "element_size_um"


def refuse_conventions(
    attributes: Mapping[str, Any], name: str, neutral_values: Mapping[str, Any] = _NEUTRAL
) -> None:
    """Raise ``UnknownFormat`` for attributes that change values; warn of others that are unread."""
    is_plain = neutral_values is _NEUTRAL and _READ not in attributes
    places = [k for k in _PLACES.split() if is_plain and k in attributes]
    unread = [k for k in places if any(n not in (0, 1) for n in np.ravel(attributes[k]).tolist())]
    warn_of_coordinates(unread, name, "attributes")
    for key in filter(attributes.__contains__, neutral_values):
        value, neutral = np.asarray(attributes[key]), neutral_values[key]
        try:
            is_neutral = set(value.astype(type(neutral)).ravel().tolist()) == {neutral}
        except (TypeError, ValueError):
            is_neutral = False
        if not is_neutral:
            msg = f"{name} has the attribute {key} = {shorten(value.tolist())}"
            do = "Read it with xarray, rasterio or Fiji, for instance, and give the values."
            raise UnknownFormat(f"{msg}, which changes its values.", do=do)
    for key in filter(attributes.__contains__, _MISSING):
        numbers = np.ravel(attributes[key]).tolist()
        if neutral_values is _NEUTRAL and not {str(n).lower() for n in numbers} <= {*_NANS}:
            msg = f"missing-values: {name} has the attribute {key} = {shorten(attributes[key])}"
            do = "Give the values as an array, with NaN or without them, if that is wrong."
            warn(f"{msg}; such voxels are read as numbers. {do}", LikelyMistake)


def chunked_header(
    layout: Layout,
    chunks: Sequence[int],
    dtype: np.dtype[Any],
    name: str,
    affine: tuple[float, ...] = IDENTITY,
    scale: tuple[float, float] = (1.0, 0.0),
    stamp: tuple[int, ...] = (),
) -> Header:
    """Return the header of a chunked array; check its shape, type and chunks."""
    refuse_unreadable(dtype, name)
    if min(layout.sizes, default=0) < 1:
        raise BadHeader(f"{name} holds no voxels: shape {layout.sizes}.")
    check_chunk_bytes(math.prod(chunks) * dtype.itemsize, name)
    part = replace(layout, sizes=tuple(chunks)).shape[1:]
    header = Header(layout.shape, affine, dtype, part, "range", *scale, names_axes=layout.is_named)
    return replace(header, stamp=stamp, channel_names=layout.channel_names, times=layout.times)


def warn_of_empty(voxels: Voxels, stores_chunks: Callable[[], bool], name: str) -> None:
    """Warn of voxels of a single value from a volume without stored chunks."""
    first = voxels.array.flat[0]
    if not (voxels.array != first).any() and not stores_chunks():
        warn(
            f"{name} has metadata and not one chunk, so every voxel is its fill value {first!s}. "
            "If it should hold more, copy its chunks too.",
            EmptyVolume,
        )


class ChunkedBackend(FilesBackend):
    """Backend of one chunked array, as (C, I, J, K).

    ``array`` reads regions in stored axes, with the methods of :class:`ChunkedArray`.
    """

    keeps_chunks = True
    counts_itself = True
    _absences = 0  # missing objects of the store that were checked
    _in_doubt = True  # whether chunks exist is not known yet

    def __init__(
        self, array: Any, layout: Layout, files: Sequence[StoredFile], header: Header, name: str
    ) -> None:
        self._array: Any = array
        self._layout = layout
        self._store: Any = None  # set for stores of many objects, which may vanish one by one
        self._is_as_stored = not layout.c_axes and layout.spatial == (0, 1, 2)
        super().__init__(files, header, name)

    def read(
        self, region: Region, channels: Channels | None = None, *, counts: bool = False
    ) -> Voxels:
        header, layout = self.header, self._layout
        if self._is_as_stored and channels is None:
            array = self._array.read(region, counts=counts)[None]
        else:
            index, (first, last) = layout.index(region, channels)
            array = layout.fold(self._array.read(index, counts=counts))[first:last]
        array = plain(array) if array.dtype.kind == "b" else array
        voxels = Voxels(array, header.slope, header.intercept)
        store = self._store
        if self._in_doubt or (store is not None and store.absences != self._absences):
            self._look_into(voxels)
        return voxels

    def _look_into(self, voxels: Voxels) -> None:
        """Warn if the volume has no chunks; subclasses check missing ones."""
        if self._in_doubt and voxels.array.size:
            self._in_doubt = False
            warn_of_empty(voxels, self.stores_chunks, self.name)

    def stores_chunks(self) -> bool:
        """Return whether any chunk is stored; True if unknown."""
        return True

    @property
    def channels_at_once(self) -> int:  # type: ignore[override]
        """Number of neighbouring channels in one chunk: all of the folded axes but the slowest."""
        axes, sizes = self._layout.c_axes, self._layout.sizes
        if len(axes) == 2 and self._array.chunks[axes[1]] < sizes[axes[1]]:
            return int(self._array.chunks[axes[1]])
        inner = math.prod(sizes[axis] for axis in axes[1:])
        return int(self._array.chunks[axes[0]]) * inner if axes else 1

    def prefetch(self, region: Region, channels: Channels | None = None) -> Closable | None:
        if not self._is_as_stored or channels is not None:
            region = self._layout.index(region, channels)[0]
        ticket: Closable | None = self._array.prefetch(region)
        return ticket

    def needed_chunks(self, region: Region, channels: Channels | None = None) -> NeededChunks:
        index, array = self._layout.index(region, channels)[0], self._array
        return NeededChunks(
            array.needed_chunks(index), array.needed_voxels(index), array.chunk_bytes
        )

    def fetch(self, region: Region, channels: Channels | None = None) -> int | None:
        size: int | None = self._array.fetch(self._layout.index(region, channels)[0])
        return size
