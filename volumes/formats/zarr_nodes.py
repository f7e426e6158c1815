"""Images in zarr nodes, nodes of zarr-python, and zarr objects of users.

OME-Zarr metadata, versions 0.1 to 0.6, name the axes of an array and place each level of a pyramid.
Arrays and groups of users are pickled as their store and path. The voxels of stores in memory are
sent through a temporary file instead.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core import Affine, Region
from ...core.call_site import warn
from ...core.context import holding
from ...core.errors import (
    BadHeader,
    ForkUnsafe,
    LikelyMistake,
    UnknownFormat,
    VolumeNotFound,
)
from ...core.locks import renew_after_fork
from ...core.sample import parse_json
from ...core.validate import MILLIMETRES, unit_word
from ...storage.ranges import RangeStore
from ..array_source import INLINE_BYTES, original, remember, share_array
from ..backend import Backend
from ..header import IDENTITY, PLACEMENT, affine_entries, affine_matrix
from ..registry import registered_names
from ..session import SESSION
from ..source import LocatedSource, Options, placed_backend
from .chunked_backend import (
    AXES_BY_NAME,
    NO_LENGTHS,
    SPATIAL,
    Layout,
    axes_of_names,
    check_number,
    millimetres_in,
    named_layout,
    plain_layout,
    refuse_other_axes,
    refuse_other_names,
)
from .nifti import parse_nifti
from .raw import RawHeader
from .stored_file import import_package, library_errors
from .zarr_array import ZarrArray, completeness, dimension_names
from .zarr_chunks import NotOurs

# A NIfTI header has 540 bytes and extensions, each of which may hold a DICOM header.
_MOST_HEADER_BYTES = 16 * 1024**2
_MOST_NAMES = 5  # of images in an error
# The axes of every image before version 0.3; the last of them without OME-Zarr metadata.
_OLD_AXES = ("t", "c", "z", "y", "x")
_VERSION = re.compile(r"0\.([1-6])(?![0-9])")  # of OME-Zarr; drafts are called 0.5-dev2
# Minor version from which coordinate systems hold the axes.
_SYSTEMS = 6
# Anatomical orientations of an axis (RFC 4), first those of RAS+.
_ORIENTATIONS = {
    "x": ("left-to-right", "right-to-left"),
    "y": ("posterior-to-anterior", "anterior-to-posterior"),
    "z": ("inferior-to-superior", "superior-to-inferior"),
}


@dataclass(frozen=True)
class Level:
    """One resolution of a multiscale image."""

    path: str  # of the array in the group
    axes: tuple[str, ...]  # names as stored, lower case
    scale: tuple[float, float, float]  # spacing along x, y, z in mm
    translation: tuple[float, float, float]  # position of voxel (0, 0, 0) in mm
    silent_axes: tuple[str, ...] = ()  # spatial axes without a unit
    has_place: bool = True  # whether its metadata hold a transformation.
    time: tuple[float, float, str] = (1.0, 0.0, "")  # Step, start and unit of the axis t

    @property
    def affine(self) -> Affine:
        """4x4, index (x, y, z) to millimetres."""
        matrix = np.diag([*self.scale, 1.0])
        matrix[:3, 3] = self.translation
        return matrix


def levels_of(attributes: Mapping[str, Any], name: str) -> tuple[Level, ...]:
    """Return the levels of the first multiscale image of a group, empty without one.

    Examples
    --------
    >>> scale = {"type": "scale", "scale": [2.0, 0.5, 0.5]}
    >>> axes = [{"name": n, "unit": "micrometer"} for n in "zyx"]
    >>> image = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": [scale]}]}
    >>> levels_of({"multiscales": [image]}, "a.zarr")[0].scale
    (0.0005, 0.0005, 0.002)
    """
    ome = attributes.get("ome", attributes)
    images = ome.get("multiscales") if isinstance(ome, Mapping) else None
    if images is None:
        return ()
    do = "Write them again, or pass ⟦affine=⟧ to place the voxels."
    with library_errors(f"the OME-Zarr metadata of {name} make no sense", do):
        if not images or not images[0]["datasets"]:
            raise ValueError("their multiscales list no array")
        version = _version(ome.get("version") or images[0].get("version"), name)
        levels = tuple(_level(dataset, images[0], version) for dataset in images[0]["datasets"])
    if len(images) > 1:
        msg = f"several-images: {name} has {len(images)} multiscale images, and the first is read"
        warn(f"{msg}. For another, give the path of its array and ⟦axes=⟧.", LikelyMistake)
    return levels


def _version(text: Any, name: str) -> int:
    match = _VERSION.match(str(text))
    if text is None or match:
        return int(match[1]) if match else 0
    what = f"{name} holds OME-Zarr {text}, and versions 0.1 to 0.6 are read."
    raise BadHeader(what, do="Write it as 0.5, or open the array inside the group by its path.")


def coarser(levels: Sequence[Level], level: int) -> tuple[Affine, ...]:
    """Return the affines of the levels after ``level``: 4x4, from their index to its index.

    Those up to the first that is no coarser: its scale is not known.

    Examples
    --------
    >>> fine, coarse = (Level(n, ("x", "y"), (s, s, 1), (0, 0, 0)) for n, s in (("0", 1), ("1", 2)))
    >>> [matrix.diagonal().tolist() for matrix in coarser([fine, coarse], 0)]
    [[2.0, 2.0, 1.0, 1.0]]
    """
    if not levels or 0 in levels[level].scale:
        return ()
    back = np.linalg.inv(levels[level].affine)
    affines: list[Affine] = []
    for finer, other in itertools.pairwise(levels[level:]):
        if np.allclose(np.abs(finer.scale), np.abs(other.scale)):
            break
        affines.append(back @ other.affine)
    return tuple(affines)


def _place_level(level: Level, finest: Level, shapes: Sequence[Sequence[int]], name: str) -> Level:
    """Return a level, placed by its shape if its metadata do not; ``BadHeader`` if they differ.

    ``shapes`` are those of the level and of the finest, along x, y, z. OME-Zarr before 0.4 has no
    transformations: all levels cover the same box.
    """
    shape, whole = np.array(shapes, np.float64)
    if not (finest.has_place or level.has_place):
        scale = np.multiply(finest.scale, whole / shape)
        start = np.add(finest.translation, (scale - finest.scale) / 2)
        return replace(level, scale=(*scale.tolist(),), translation=(*start.tolist(),))
    factor = np.abs(np.divide(level.scale, finest.scale))
    # Writers round the length of each level up or down.
    if (np.abs(factor * shape - whole) > factor + 0.05 * whole).any():
        texts = ["x".join(f"{n:.4g}" for n in row) for row in (*shapes, factor)]
        msg = f"level {level.path} of {name} has the shape {texts[0]}, the finest level {texts[1]}"
        do = "Correct the scale in the metadata, or pass ⟦affine=⟧ to place the voxels."
        raise BadHeader(f"{msg}, and the scales differ by {texts[2]}.", do=do)
    return level


def _level(dataset: Mapping[str, Any], image: Mapping[str, Any], version: int) -> Level:
    if version >= _SYSTEMS:
        entries, steps = _in_system(dataset, image)
    elif "coordinateSystems" in image:
        raise ValueError(f"coordinateSystems came with version 0.6, and it says 0.{version}")
    else:
        entries = image.get("axes", _OLD_AXES)
        # First those of the level, then those of the image.
        parts = (part.get("coordinateTransformations", ()) for part in (dataset, image))
        steps = [step for part in parts for step in part]
    records = [entry if isinstance(entry, Mapping) else {"name": entry} for entry in entries]
    if not any(part.get("coordinateTransformations") for part in (image, *image["datasets"])):
        records = [{**entry, "unit": ""} for entry in records]  # a unit alone is no size
    axes = tuple(map(_letter, records))
    if not {"x", "y"} <= set(axes) or len(set(axes)) < len(axes):
        raise ValueError(f"axes are {axes}")
    scale, shift = np.ones(len(axes)), np.zeros(len(axes))
    for step in steps:
        try:
            factor, offset = _transformation(step, len(axes))
        except ValueError:
            if not PLACEMENT.get().has_affine:
                raise
            continue
        scale, shift = scale * factor, shift * factor + offset
    sizes = {axis: float(n) for axis, n in zip(axes, scale, strict=True) if axis in SPATIAL}
    if min(sizes.values()) <= 0 and not PLACEMENT.get().has_affine:
        raise ValueError(f"scales are {sizes}, and each has to be above 0")
    units = [_unit(axis, entry) for axis, entry in zip(axes, records, strict=True)]
    place = dict(zip(axes, zip(units * scale, units * shift, strict=True), strict=True))
    x, y, z = (tuple(map(float, place.get(axis, (1.0, 0.0)))) for axis in SPATIAL)
    pairs = zip(axes, records, strict=True)
    silent = tuple(a for a, entry in pairs if a in SPATIAL and _word(entry) in NO_LENGTHS)
    where = (x[0], y[0], z[0]), (x[1], y[1], z[1])
    time = (1.0, 0.0, "")
    if "t" in axes:
        at = axes.index("t")
        time = float(scale[at]), float(shift[at]), str(records[at].get("unit") or "")
    return Level(str(dataset["path"]), axes, *where, silent, bool(steps), time)


def _letter(entry: Mapping[str, Any]) -> str:
    """Return the name of an axis; x, y or z for each axis of space."""
    name, kind = str(entry["name"].lower()), entry.get("type")
    letter = AXES_BY_NAME.get(name, name) if kind == "space" else name
    if kind and (kind == "space") != (letter in SPATIAL):
        raise ValueError(f"the axis {name!r} has the type {kind!r}; axes of space are x, y and z")
    return letter


def _in_system(dataset: Any, image: Any) -> tuple[Any, list[Any]]:
    (step,) = dataset["coordinateTransformations"]
    name = step["output"]
    name = name["name"] if isinstance(name, Mapping) else name
    systems = {system["name"]: system for system in image["coordinateSystems"]}
    if name not in systems:
        raise ValueError(f"no coordinate system is called {name!r}, only {', '.join(systems)}")
    for other in image.get("coordinateTransformations", ()):
        if other["type"] != "identity":
            raise ValueError(f"a further {other['type']!r} of the whole image is not supported")
    steps, waiting = [], [step]
    while waiting:
        step = waiting.pop()
        if step["type"] == "sequence":
            waiting += reversed(step["transformations"])
        else:
            steps.append(step)
    return systems[name]["axes"], steps


def _word(entry: Mapping[str, Any]) -> str:
    """Return the unit of an axis as a word of the table; empty for none."""
    return unit_word(str(entry.get("unit") or ""))


def _unit(axis: str, entry: Mapping[str, Any]) -> float:
    """Return the millimetres along RAS+ in the unit of an axis."""
    unit = _word(entry)
    if axis not in SPATIAL:
        return 1.0
    if unit not in NO_LENGTHS and unit not in MILLIMETRES:
        raise ValueError(f"{entry['unit']!r} of axis {axis} is no unit of length that is known")
    size = millimetres_in("pixel" if unit in NO_LENGTHS else unit, "")
    orientation = entry.get("orientation")
    if not orientation:
        return size
    value = orientation["value"]
    if value not in _ORIENTATIONS[axis]:
        raise ValueError(f"axis {axis} with the orientation {value!r} is not supported")
    return -size if value == _ORIENTATIONS[axis][1] else size


def _transformation(step: Mapping[str, Any], axes: int) -> tuple[Any, Any]:
    kind = step["type"]
    if kind == "identity":
        return 1.0, 0.0
    if kind not in ("scale", "translation"):
        raise ValueError(f"a coordinate transformation of type {kind!r} is not supported")
    if kind not in step:
        raise ValueError(f"a {kind} without numbers in the metadata is not supported")
    numbers = np.array(step[kind], dtype=np.float64)
    if numbers.shape != (axes,) or not np.isfinite(numbers).all():
        raise ValueError(f"{step[kind]} are not {axes} numbers")
    return (numbers, 0.0) if kind == "scale" else (1.0, numbers)


NIFTI = "nifti"
"""The array that holds the bytes of the NIfTI header."""


@dataclass(frozen=True)
class ZarrImage:
    """One array of a node, with its metadata."""

    array: Any  # of voxpipe or zarr-python
    layout: Layout
    affine: tuple[float, ...] = IDENTITY  # voxels to millimetres
    scale: tuple[float, float] = (1.0, 0.0)  # slope and intercept
    coarser: tuple[Affine, ...] = ()  # affines of coarser levels


def _is_array(node: Any) -> bool:
    return hasattr(node, "chunks")  # of voxpipe or zarr-python


def image_of(node: Any, level: int, name: str, axes: Any = None) -> ZarrImage:
    """Return the image in an array or group of voxpipe or zarr-python.

    A NIfTI header in the array ``nifti`` of a group has precedence for the affine over OME-Zarr
    metadata, which name the axes and levels. Raise ``UnknownFormat`` for a group of several arrays
    without metadata of an image.
    """
    do = "Write them again, or install the codec that they ask for."
    with library_errors(f"the metadata of {name} make no sense", do, but=(NotOurs, OSError)):
        return (_of_array if _is_array(node) else _of_group)(node, level, name, axes)


def _of_array(array: Any, level: int, name: str, axes: Any) -> ZarrImage:
    check_number(level, 1, "level", name)
    names = dimension_names(array)
    refuse_other_axes(axes, names, array.shape, name)
    if axes is None and len(names) == len(array.shape):
        axes = axes_of_names(names, name)
    return ZarrImage(array, plain_layout(tuple(array.shape), name, axes))


def _of_group(group: Any, level: int, name: str, axes: Any) -> ZarrImage:
    attributes, nifti = dict(group.attrs), group.get(NIFTI)
    levels, is_ours = levels_of(attributes, name), "voxpipe" in attributes
    if nifti is None and (is_ours or name.lower().endswith((".nii.zarr", ".nii.zarr.zip"))):
        raise _part_is_lost(f"{NIFTI}/zarr.json", "the affine and the scale", name)
    if nifti is None and not levels:
        arrays = dict(group.arrays())
        if len(arrays) == 1:
            (array,) = arrays.values()
            if completeness(array) is not None:
                raise _part_is_lost(f"{NIFTI} and the attributes of zarr.json", "the affine", name)
            return _of_array(array, level, name, axes)
        if below := [*itertools.islice(images_in(group), _MOST_NAMES)]:
            more = ", ..." if len(below) == _MOST_NAMES else ""
            what = f"{name} is no image. Images in it: {', '.join(below)}{more}."
            do = f"Give the path of one, for instance {name}/{below[0]}, or unpack an archive."
            raise UnknownFormat(what, do=do)
        have = ", ".join(sorted(arrays)) or "none"
        what = f"{name} is a zarr group without NIfTI or OME-Zarr metadata; its arrays: {have}."
        raise UnknownFormat(what, do="Give the path of one array in it.")
    fields = None if nifti is None else _nifti_fields(nifti, name)
    check_number(level, len(levels) or 1, "level", name)
    path = levels[level].path if levels else "0"
    array = group.get(path)
    if array is None or not _is_array(array):
        raise BadHeader(f"{name} has no array {path!r}, to which its metadata refer.")
    if is_ours and completeness(array) is None:
        part = f"the attributes of {path}/zarr.json"
        raise _part_is_lost(part, "whether every shard was written", name)
    own = levels[level].axes if levels else _OLD_AXES[-array.ndim :]
    names = labels_of_channels(attributes)
    refuse_other_axes(axes, own, array.shape, name, f"{name}/{path}")
    layout = named_layout(tuple(array.shape), own, name, names)
    if levels:
        layout = replace(layout, times=layout.times.at(*levels[level].time))
    finest = group.get(levels[0].path) if level and not PLACEMENT.get().has_affine else None
    if finest is not None:  # it may be left out of a copy
        whole = named_layout(tuple(finest.shape), own, name).shape[1:]
        place = _place_level(levels[level], levels[0], (layout.shape[1:], whole), name)
        levels = (*levels[:level], place, *levels[level + 1 :])
    refuse_other_names(dimension_names(array), own, name)
    if fields is None:
        _refuse_mixed_units(levels[level], array.shape, name)
        affine, scale = levels[level].affine, (1.0, 0.0)
    else:
        affine, scale = affine_matrix(fields.affine), (fields.slope, fields.intercept)
        header_shape = fields.layout.shape[1:]
        if not level and header_shape != layout.shape[1:]:
            what = f"the NIfTI header of {name} has the shape {header_shape}"
            raise BadHeader(f"{what}, and its array {path!r} has {layout.shape[1:]}.")
        if levels:
            _report_other_spacing(levels[0], affine, name)
        # The header places the finest level, exactly; the pyramid places the others relative to it.
        if level:
            affine = affine @ np.linalg.inv(levels[0].affine) @ levels[level].affine
    return ZarrImage(array, layout, affine_entries(affine, name), scale, coarser(levels, level))


def labels_of_channels(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels of channels in OMERO metadata; empty without them, or of another form.

    Examples
    --------
    >>> labels_of_channels({"ome": {"omero": {"channels": [{"label": "DAPI"}, {"color": "FF"}]}}})
    ('DAPI', '')
    """
    ome = attributes.get("ome", attributes)
    omero = ome.get("omero") if isinstance(ome, Mapping) else None
    channels = omero.get("channels") if isinstance(omero, Mapping) else None
    records = channels if isinstance(channels, (list, tuple)) else ()
    labels = [one.get("label") if isinstance(one, Mapping) else None for one in records]
    return tuple("" if label is None else str(label) for label in labels)


def _refuse_mixed_units(level: Level, shape: Sequence[int], name: str) -> None:
    """Raise ``BadHeader`` if a long axis has no unit of length, and another axis has one."""
    sizes = dict(zip(level.axes, shape, strict=True))
    is_mixed = {*level.silent_axes} != {*level.axes} & {*SPATIAL}
    silent = [axis for axis in level.silent_axes if is_mixed and sizes[axis] > 1]
    if silent and not PLACEMENT.get().has_affine:
        what = f"the OME-Zarr metadata of {name} give no unit for the axis {', '.join(silent)}"
        do = "Pass ⟦affine=⟧ to place the voxels, or write the unit."
        raise BadHeader(f"{what}, and units for others.", do=do)


def _report_other_spacing(level: Level, affine: Affine, name: str) -> None:
    """Warn of OME-Zarr metadata with another spacing than the NIfTI header, which is used."""
    own = np.linalg.norm(affine[:3, :3], axis=0)
    # Writers without a spacing write 1 of some unit along each axis.
    is_default = len({*level.scale}) == 1 and math.log10(abs(level.scale[0]) or 2).is_integer()
    if not is_default and not np.allclose(np.abs(level.scale), own, rtol=1e-3):
        texts = ["x".join(f"{n:.4g}" for n in numbers) for numbers in (own, level.scale)]
        what = f"{name} has the spacing {texts[0]} mm in its NIfTI header, {texts[1]} in OME-Zarr's"
        do = "The NIfTI header is used; convert the volume again, or pass ⟦affine=⟧."
        warn(f"two-spacings: {what}. {do}", LikelyMistake)


def _part_is_lost(part: str, holds: str, name: str) -> BadHeader:
    """Return the error for a missing part of an image that was written with it."""
    do = "Copy or convert it again. The path of the array inside reads voxels without a place."
    return BadHeader(f"{name} lost {part}, with {holds}.", do=do)


def images_in(group: Any) -> Iterator[str]:
    """Yield the paths of the images in a plate, a well, labels, or a group of bioformats2raw."""
    attrs = dict(group.attrs)
    ome = attrs.get("ome", attrs)
    wells = [well["path"] for well in ome.get("plate", {}).get("wells", ())]
    for path in wells:
        if (well := group.get(path)) is not None:
            yield from (f"{path}/{image}" for image in images_in(well))
    yield from (image["path"] for image in ome.get("well", {}).get("images", ()))
    yield from ome.get("labels", ())
    if "bioformats2raw.layout" in ome and not wells:
        series = group.get("OME")
        record = {} if series is None else dict(series.attrs)
        numbers = map(str, itertools.count())
        there = itertools.takewhile(lambda n: group.get(n) is not None, numbers)
        yield from record.get("ome", record).get("series") or there


def _nifti_fields(array: Any, name: str) -> RawHeader:
    if not _is_array(array):
        raise BadHeader(f"{NIFTI!r} in {name} is no array of bytes with its slope and affine.")
    size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
    if size > _MOST_HEADER_BYTES:
        raise BadHeader(f"the header in {name} takes {size} bytes, as its metadata say.")
    is_ours = isinstance(array, ZarrArray)
    buffer = array.read(Region.of_shape(array.shape)) if is_ours else np.asarray(array[...])
    place = PLACEMENT.get()
    # The unit of the OME-Zarr metadata has precedence: NIfTI headers of ours are in millimetres.
    with holding(PLACEMENT, place._replace(units=None if place.units else place.units)):
        return parse_nifti(buffer.tobytes(), f"the NIfTI header of {name}", single_file=False)


METADATA_FILES = ("zarr.json", ".zarray", ".zgroup")
"""Files that mark a folder as a zarr node."""


def open_ranges_node(ranges: RangeStore, name: str) -> Any:
    """Return the zarr Array or Group at the root of a store of ranges, read by zarr-python."""
    # The store checks all bytes; the metadata document saves the round trips of zarr-python.
    zarr = import_package("zarr", name)
    from ._zarr_python import RangesStore

    do = "Write the array again, or install its codec."
    with library_errors(f"zarr-python cannot open {name}", do, but=(OSError,)):
        document = ranges.get("zarr.json")
        if document is None:
            version, is_array = 2, ranges.get(".zarray") is not None
        else:
            version, is_array = 3, parse_json(document).get("node_type") == "array"
        how: Any = {"store": RangesStore(ranges), "path": "", "mode": "r", "zarr_format": version}
        if is_array:
            return zarr.open_array(**how)
        # The limits come from the document of each array; a consolidated copy may be outdated.
        return zarr.open_group(**how, use_consolidated=False)


def open_store_node(store: Any, path: str = "") -> Any:
    """Return the zarr Array or Group in a store object."""
    import zarr

    # With mode "r" zarr would copy a writable store instead of using that of the user.
    mode: Any = "r" if store.read_only else "r+"
    # The newer format has precedence.
    for version in (3, 2):
        with suppress(FileNotFoundError):
            return zarr.open(store, mode=mode, path=path, zarr_format=version)
    what = f"the zarr {type(store).__name__} holds no array or group at {path or '/'!r}."
    raise VolumeNotFound(what, do="Write it first, or check the store.")


def is_node(thing: Any) -> bool:
    """Whether an object is an array or a group, not a store."""
    import zarr

    return isinstance(thing, (zarr.Array, zarr.Group))


def place_of(thing: Any) -> tuple[Any, str]:
    """Return the store of an array, group or store, and the path in it."""
    return (thing.store, thing.path) if is_node(thing) else (thing, "")


class ZarrSource:
    """Source of a zarr object that a user opened."""

    def __init__(
        self, thing: Any, options: Options, *, path: str = "", name: str = "", token: str = ""
    ) -> None:
        self.thing = thing
        self.path = path
        self.options = options
        self.name = name or f"zarr {type(thing).__name__}"
        self.token = token or uuid.uuid4().hex
        self._born = os.getpid()

    def open(self) -> Backend:
        thing, path = self.thing, self.path
        payload = None if os.getpid() == self._born else self._pack()
        if payload is not None:  # connections do not survive a fork
            thing, path = pickle.loads(payload), self._path()  # noqa: S301  packed by this class
        _FORK.refuse(place_of(thing)[0], self.name)
        if path:
            thing = open_store_node(thing, path)
        backend = placed_backend(self.options.request(zarr_store=thing, source=thing), self.name)
        if backend is None:
            what = f"no backend opens a {self.name}. Backends: {', '.join(registered_names())}."
            raise UnknownFormat(what, do="Register one, or give a path.")
        return backend

    def part_of(self, content: str) -> str:
        return LocatedSource("", self.options, own_token=self.token).part_of(content)

    def _path(self) -> str:
        return self.path or place_of(self.thing)[1]

    def _pack(self) -> bytes | None:
        """Return the store as a small pickle; None if that is not possible."""
        store, _ = place_of(self.thing)
        if not _is_in_memory(store):
            # Stores of other packages may raise anything; the voxels are then sent instead.
            with suppress(Exception):
                payload = pickle.dumps(store)
                return payload if len(payload) <= INLINE_BYTES else None
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        payload = self._pack()
        if payload is not None:
            remember(self)
            return _arrive, (payload, self.options, self._path(), self.name, self.token)
        backend = SESSION.handles.acquire(self)
        whole = Region.of_shape(backend.shape[1:])
        return share_array(self, backend.header, lambda: np.asarray(backend.read(whole).array))


class _Fork:
    """Check for stores whose threads do not survive a fork."""

    has_lost = False

    def after_fork(self) -> None:
        self.has_lost = "obstore" in sys.modules

    def refuse(self, store: Any, name: str) -> None:
        """Raise ``ForkUnsafe`` for a store of obstore, wrapped or not, in a forked child."""
        while store is not None and self.has_lost:
            if type(store).__module__.startswith("zarr.storage._obstore"):
                msg = f"{name} reads through obstore, whose threads a forked process does not have."
                do = "Give a URL and ⟦storage_options=⟧ in place of the store, or start workers by "
                raise ForkUnsafe(msg, do=f"{do}multiprocessing_context='forkserver'.")
            store = getattr(store, "_store", None)


_FORK = _Fork()
renew_after_fork(_FORK)


def _arrive(payload: bytes, options: Options, path: str, name: str, token: str) -> Any:
    if (source := original(token)) is not None:
        return source
    store = pickle.loads(payload)  # noqa: S301  packed by ZarrSource
    return ZarrSource(store, options, path=path, name=name, token=token)


def _is_in_memory(store: Any) -> bool:
    names = {kind.__name__ for kind in type(store).__mro__}
    if names & {"MemoryStore", "KVStore", "GpuMemoryStore"} or isinstance(store, dict):
        return True
    system = getattr(store, "fs", None)
    system = getattr(system, "sync_fs", system)  # zarr 3 wraps systems that are not async
    if type(system).__name__ == "MemoryFileSystem":
        return True
    inner = getattr(store, "_store", None)
    return inner is not None and _is_in_memory(inner)
