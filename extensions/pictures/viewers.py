"""Layers of napari with lazy voxels, and viewers of them, also of ipyniivue in notebooks."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...core import Region, Sample
from ...core.context import holding
from ...core.errors import MissingDependency
from ...core.grid import numbers_of_axes
from ...core.progress import in_notebook
from ...core.validate import MILLIMETRES, plain_unit
from ...spatial import LazyPatch
from ...spatial.lazy.patch_facts import channel_names
from ...volumes import Volume, save
from ...volumes.backend import read_counted
from ...volumes.catalog.whole_pass import at_level, coarser_levels
from ...volumes.formats.chunked_backend import PIXEL
from ...volumes.header import ONE_TIME, TIMES_STAY
from .planes import has_directions
from .scenes import first_volume, stored_affine, with_three_axes

Layer = tuple[Any, dict[str, Any], str]
"""``(data, arguments, type)``, the layer data of napari."""
# World axes of napari grow to the right, down and into the screen: left, posterior, superior.
_UNITS = {PIXEL: "pixel"}
_TIMES = ("second", "millisecond", "microsecond", "minute", "hour", "day")
_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
_ZYX = [2, 1, 0]  # Napari shows the last two axes: rows are y, columns are x.
_RANKS = (0.5, 99.5)  # Percentiles in a manifest that become black and white.
_MOST_VOXELS = 256**3  # Limit of a level that a browser gets.
_READ_BY_NIIVUE = (".nii", ".nii.gz", ".nrrd", ".mha", ".mgz")


class LazyArray:
    """Voxels (K, J, I) of one channel, or (T, K, J, I), which are read when they are indexed.

    It has the members of an array that napari uses.

    Parameters
    ----------
    read
        ``read(region, channel)`` gives (i, j, k).
    shape
        (I, J, K).
    dtype
        Type of voxels.
    channels
        Numbers by time.
    has_time
        Whether there is T.
    """

    def __init__(
        self,
        read: Callable[[Region, int], NDArray[Any]],
        shape: tuple[int, int, int],
        dtype: DTypeLike,
        channels: Sequence[int] = (0,),
        *,
        has_time: bool = False,
    ) -> None:
        self._read, self._channels = read, tuple(channels)
        self.shape = (*(len(channels) for _ in range(has_time)), *shape[::-1])
        self.dtype = np.dtype(dtype)
        self.ndim = len(self.shape)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Return the voxels of integers, slices, lists and an ellipsis over (T, K, J, I)."""
        whole = _complete(index if isinstance(index, tuple) else (index,), self.ndim)
        boxes, rest = zip(*map(_box_and_rest, whole, self.shape), strict=True)
        if any(start >= stop for start, stop in boxes):
            shape = [max(0, stop - start) for start, stop in boxes]
            empty: NDArray[Any] = np.empty(shape, self.dtype)[rest]
            return empty
        starts, stops = zip(*reversed(boxes[-3:]), strict=True)
        region = Region(starts, stops)
        channels = self._channels[slice(*boxes[0]) if self.ndim > 3 else slice(None)]
        times = [self._read(region, channel).transpose(_ZYX) for channel in channels]
        voxels = np.stack(times) if self.ndim > 3 else times[0]
        part: NDArray[Any] = voxels.astype(self.dtype, copy=False)[rest]
        return part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(
                "these voxels have to be read into new memory; copy=False forbids that"
            )
        return self[...] if dtype is None else self[...].astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"LazyArray{self.shape} {self.dtype}"


def _complete(index: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Return an index with an entry for each axis."""
    places = [number for number, one in enumerate(index) if one is Ellipsis]
    count = len(index) - len(places)
    if count > ndim or len(places) > 1:
        axes = ", ".join("TKJI"[-ndim:])
        raise IndexError(f"an index of ({axes}) has {ndim} entries, got {index!r}")
    fill = (slice(None),) * (ndim - count)
    at = places[0] if places else len(index)
    return (*index[:at], *fill, *index[at + len(places) :])


def _box_and_rest(index: Any, length: int) -> tuple[tuple[int, int], Any]:
    """Return the range that an index touches, and the index within that range."""
    if isinstance(index, slice):
        numbers = range(length)[index]
        if not len(numbers):
            return (0, 0), slice(None)
        low, high = min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])
        step = index.step or 1
        return (low, high + 1), slice(None, None, step)
    if np.ndim(index) == 0 and not isinstance(index, (bool, np.bool_)):
        number = range(length)[int(index)]
        return (number, number + 1), 0
    numbers_ = np.arange(length)[np.asarray(index)]
    if not numbers_.size:
        return (0, 0), numbers_
    low, high = int(numbers_.min()), int(numbers_.max())
    return (low, high + 1), numbers_ - low


def to_napari(thing: Volume | LazyPatch, **options: Any) -> list[Layer]:
    """Return the layers of a volume or patch, one for each channel; reads at most headers.

    The axes are (K, J, I), so that napari shows the planes along K. Several time points of a file
    are a leading axis T. Coarser levels are a pyramid. A layer has the name of its channel or label
    group. Those of a patch after ``to_axes()`` are (Z, Y, X) in any order of its own; Z is 1 of
    2-D data. Lengths are in the file's unit, by default millimetres. A volume with an affine of a
    body is in LPS+, so that anterior is at the top.

    Parameters
    ----------
    thing
        A ``Volume`` or ``LazyPatch``.
    **options
        Arguments of the layer, such as ``name=`` or ``colormap=``.
    """
    levels: list[Any] = [thing]
    statistics = None
    with holding(TIMES_STAY, True):  # several are an axis
        thing.dtype  # noqa: B018  reads the header of a volume
    if isinstance(thing, LazyPatch):
        source = getattr(thing.volume, "stored_volume", thing.volume)
        names, place = channel_names(thing), stored_affine(thing)
        unit = getattr(getattr(first_volume(thing), "header", None), "file_unit", "")
        affine = thing.affine[:, [*_order_of(thing), 3]]
    else:
        source, names = thing, thing.channel_names
        unit, place = thing.header.file_unit, thing.affine
        levels = [at_level(thing, number) for number in range(1 + len(coarser_levels(thing)))]
        affine, statistics = thing.affine, thing.recorded_statistics
    is_label = thing.kind == "label"
    rows = _rows_of(thing, source)
    arguments = _place(affine, unit or "mm", has_directions(place))
    if len(rows) > 1:
        arguments = _with_time(arguments, source)
    arguments["metadata"] = {"source": source.name}
    if statistics is not None and not is_label and all(map(statistics.keeps, _RANKS)):
        low, high = (statistics.percentile(rank) for rank in _RANKS)
        arguments |= {"contrast_limits": (low, high)} if high > low else {}
    layers = []
    for channels, name in zip(rows.T.tolist(), _names_of(source, names, rows), strict=True):
        arrays = [_lazy(level, channels, len(rows) > 1, is_label=is_label) for level in levels]
        own = {"name": name, **arguments}
        if len(arrays) > 1:
            own["multiscale"] = True
        data = arrays if len(arrays) > 1 else arrays[0]
        layers.append((data, {**own, **options}, "labels" if is_label else "image"))
    return layers


def _rows_of(thing: Volume | LazyPatch, source: Any) -> NDArray[np.int64]:
    """Return the channels of each time point (T, C)."""
    if not isinstance(source, Volume) or thing.shape[0] != source.shape[0]:
        return np.arange(thing.shape[0])[None]
    is_mixed = isinstance(thing, LazyPatch) and (thing.members or thing.values)
    times = ONE_TIME if is_mixed else source.header.times
    rows: NDArray[np.int64] = times.first(np.arange(thing.shape[0]))
    return rows


def _names_of(source: Any, names: Sequence[str], rows: NDArray[np.int64]) -> list[str]:
    """Return the name of each layer: of its channel, its label group, or its file with a number."""
    place = getattr(source, "located_source", None)
    label = place.options.reader_kwargs.get("label") if place is not None else None
    short = label or source.name.rstrip("/").rpartition("/")[2] or source.name
    count = rows.shape[1]
    own = [names[channel] for channel in rows[0]] if len(names) > rows[0].max() else []
    if len({*own}) == count and all(own):
        return own
    return [short] if count == 1 else [f"{short} [{number}]" for number in range(count)]


def _with_time(arguments: dict[str, Any], volume: Volume) -> dict[str, Any]:
    """Return the arguments of a layer with a leading axis of time."""
    times = volume.header.times
    affine = np.eye(5)
    affine[1:, 1:] = arguments["affine"]
    return arguments | {
        "scale": (times.step, *arguments["scale"]),
        "affine": affine,
        "units": (times.unit if times.unit in _TIMES else "pixel", *arguments["units"]),
        "axis_labels": ("t", *arguments["axis_labels"]),
    }


def _order_of(patch: LazyPatch) -> list[int]:
    """Return the axes of a patch in the order x, y, z; in their own if they have no names."""
    numbers = numbers_of_axes(patch.plan.axes)
    return [numbers.index(number) for number in range(3)]


def _lazy(level: Any, channels: Sequence[int], has_time: bool, *, is_label: bool) -> LazyArray:
    dtype = np.dtype(level.dtype)
    if dtype.kind == "b" or (is_label and dtype.kind == "f"):
        dtype = np.dtype("u1" if dtype.kind == "b" else "i4")
    dtype = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    if isinstance(level, LazyPatch):
        cache: list[NDArray[Any]] = []
        order = _order_of(level)
        i, j, k = (level.grid.shape[axis] for axis in order)

        def part(region: Region, channel: int) -> NDArray[Any]:
            if not cache:
                whole = with_three_axes(level.realize(), level)
                cache.append(whole.transpose(0, *(1 + axis for axis in order)))
            voxels: NDArray[Any] = cache[0][channel][region.slices]
            return voxels

        return LazyArray(part, (i, j, k), dtype, channels, has_time=has_time)

    def read(region: Region, channel: int) -> NDArray[Any]:
        voxels = read_counted(level.probe(), region, (channel, channel + 1))
        values: NDArray[Any] = voxels.values()[0]
        return np.abs(values) if values.dtype.kind == "c" else values

    return LazyArray(read, level.spatial_shape, dtype, channels, has_time=has_time)


def _place(affine: NDArray[np.float64], unit: str, directions: bool) -> dict[str, Any]:
    """Return scale, affine and units of a layer (K, J, I)."""
    factor = MILLIMETRES.get(unit, 1.0)
    world = _LPS @ affine if directions else affine.copy()
    world[:3] /= factor
    order = [*_ZYX, 3]
    matrix = world[np.ix_(order, order)]
    scale = np.linalg.norm(matrix[:3, :3], axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    rest = matrix @ np.diag([*(1 / scale), 1.0])
    return {
        "scale": tuple(scale.tolist()),
        "affine": rest,
        "units": (plain_unit(unit) if unit in MILLIMETRES else _UNITS.get(unit, "mm"),) * 3,
        "axis_labels": ("z", "y", "x"),
    }


def view(*volumes: Any, **options: Any) -> Any:
    """Open a viewer of volumes, patches or samples: of napari, or in a notebook of ipyniivue.

    Parameters
    ----------
    *volumes
        Volumes, lazy patches, samples of them, paths or URLs.
    **options
        Arguments of the layers of napari.

    Returns
    -------
    object
        The widget of ipyniivue in a notebook where it is installed. Else the viewer of napari. In a
        script, ``napari.run()`` waits until its window is closed.

    Raises
    ------
    MissingDependency
        No viewer is installed.
    TypeError
        A thing is no volume.
    """
    every = [one for thing in volumes for one in _volumes_of(thing)]
    if in_notebook():
        try:
            import ipyniivue  # noqa: F401  whether it is installed
        except ImportError:
            pass
        else:
            return widget_of(every)
    try:
        import napari
    except ImportError:
        msg = "view() needs a viewer, and neither napari nor, in notebooks, ipyniivue is installed."
        raise MissingDependency(msg, do="pip install 'napari[all]'") from None
    viewer = napari.Viewer()
    for volume in every:
        for layer in to_napari(volume, **options):
            viewer.add_layer(napari.layers.Layer.create(*layer))
    return viewer


def _volumes_of(thing: Any) -> list[Any]:
    if isinstance(thing, (Volume, LazyPatch)):
        return [thing]
    if isinstance(thing, Sample):
        return [one for one in thing.values() if isinstance(one, (Volume, LazyPatch))]
    if isinstance(thing, (str, os.PathLike)):
        return [Volume(os.fspath(thing))]
    msg = f"view() shows volumes, patches, samples and paths, got {type(thing).__name__}"
    raise TypeError(msg)


def widget_of(things: Sequence[Volume | LazyPatch]) -> Any:
    """Return a widget with the volumes, labels above images.

    Files that NiiVue reads are sent as they are. Others are written as NIfTI to a temporary
    folder, of the finest level with at most `_MOST_VOXELS` voxels.
    """
    from ipyniivue import NiiVue

    widget = NiiVue()
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for number, thing in enumerate(sorted(things, key=lambda one: one.kind == "label")):
            entry: dict[str, Any] = {"path": _file_of(thing, Path(folder), number)}
            if thing.kind == "label":
                entry |= {"colormap": "actc", "opacity": 0.5}
            entries.append(entry)
        widget.load_volumes(entries)  # reads the files
    return widget


def _file_of(thing: Volume | LazyPatch, folder: Path, number: int) -> Path:
    place = thing.located_source if isinstance(thing, Volume) else None
    path = place.path if place is not None else ""
    if path and path.lower().endswith(_READ_BY_NIIVUE):
        return Path(path)
    target = folder / f"{number}.nii"
    if isinstance(thing, LazyPatch):
        save(target, with_three_axes(thing.realize(), thing), affine=thing.affine)
    else:
        save(target, _level_of(thing))
    return target


def _level_of(volume: Volume) -> Volume:
    levels = range(1 + len(coarser_levels(volume)))
    for number in levels:
        level = at_level(volume, number)
        i, j, k = level.spatial_shape
        if i * j * k <= _MOST_VOXELS:
            return level
    return at_level(volume, levels[-1])
