"""Which array of a zarr node holds an image, which axes it has, and where it lies in the world.

OME-Zarr metadata: which axes an array has, and where each level of a pyramid lies. Versions 0.1 to
0.5. Pure functions of the attributes; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import Affine
from ...core.errors import BadHeader, UnknownFormat, VoxpipeError
from ..header import IDENTITY, affine_entries, affine_matrix
from .chunked_backend import SPATIAL, Layout, named_layout, plain_layout
from .nifti import parse_nifti
from .zarr_array import bytes_of
from .zarr_metadata import NotOurs

# Before version 0.3 every image had these axes.
_OLD_AXES = ("t", "c", "z", "y", "x")
# UDUNITS-2 names, as the specification asks for, in millimetres.
_MILLIMETRES = {
    "angstrom": 1e-7,
    "picometer": 1e-9,
    "nanometer": 1e-6,
    "micrometer": 1e-3,
    "millimeter": 1.0,
    "centimeter": 10.0,
    "decimeter": 100.0,
    "meter": 1e3,
    "kilometer": 1e6,
    "inch": 25.4,
    "foot": 304.8,
}


@dataclass(frozen=True)
class Level:
    """One resolution of a multiscale image."""

    path: str
    """Name of the array in the group."""
    axes: tuple[str, ...]
    """Names of its axes as stored, lower case."""
    scale: tuple[float, float, float]
    """Spacing along x, y, z, in millimetres."""
    translation: tuple[float, float, float]
    """Place of voxel (0, 0, 0), in millimetres."""

    @property
    def affine(self) -> Affine:
        """4x4, index (x, y, z) to millimetres."""
        matrix = np.diag([*self.scale, 1.0])
        matrix[:3, 3] = self.translation
        return matrix


def levels_of(attributes: Mapping[str, Any], name: str) -> tuple[Level, ...]:
    """Return the levels of the first multiscale image, none if the group is no such image.

    Raises
    ------
    BadHeader
        The metadata are there and make no sense.

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
    if not images:
        return ()
    try:
        return tuple(_level(dataset, images[0]) for dataset in images[0]["datasets"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise BadHeader(
            f"the OME-Zarr metadata of {name} make no sense: {type(error).__name__}: {error}.",
            do="Write them again, or open the array inside the group by its path.",
        ) from error


def coarser(levels: Sequence[Level], level: int) -> tuple[Affine, ...]:
    """Return where each level after ``level`` lies: 4x4, its index to the index in that one.

    Examples
    --------
    >>> fine, coarse = (Level(n, ("x", "y"), (s, s, 1), (0, 0, 0)) for n, s in (("0", 1), ("1", 2)))
    >>> [matrix.diagonal().tolist() for matrix in coarser([fine, coarse], 0)]
    [[2.0, 2.0, 1.0, 1.0]]
    """
    if not levels or 0 in levels[level].scale:
        return ()
    back = np.linalg.inv(levels[level].affine)
    return tuple(back @ other.affine for other in levels[level + 1 :])


def _level(dataset: Mapping[str, Any], image: Mapping[str, Any]) -> Level:
    entries = image.get("axes", _OLD_AXES)
    axes = tuple(_axis_name(entry) for entry in entries)
    if not {"x", "y"} <= set(axes) or len(set(axes)) < len(axes):
        msg = f"axes are {axes}"
        raise ValueError(msg)
    # Those of the image act after those of the level.
    steps = [
        *dataset.get("coordinateTransformations", ()),
        *image.get("coordinateTransformations", ()),
    ]
    scale, shift = np.ones(len(axes)), np.zeros(len(axes))
    for step in steps:
        factor, offset = _transformation(step, len(axes))
        scale, shift = scale * factor, shift * factor + offset
    units = {_axis_name(entry): _millimetres(entry) for entry in entries}
    place = {axis: (units[axis] * scale[n], units[axis] * shift[n]) for n, axis in enumerate(axes)}
    spatial = [place.get(axis, (1.0, 0.0)) for axis in SPATIAL]
    x, y, z = ((float(a), float(b)) for a, b in spatial)
    return Level(str(dataset["path"]), axes, (x[0], y[0], z[0]), (x[1], y[1], z[1]))


def _axis_name(entry: Any) -> str:
    name: str = entry["name"] if isinstance(entry, Mapping) else entry
    return name.lower()


def _millimetres(entry: Any) -> float:
    # An axis without a unit is taken for millimetres, like NIfTI's unknown unit.
    unit = entry.get("unit") if isinstance(entry, Mapping) else None
    return _MILLIMETRES.get(str(unit).lower(), 1.0)


def _transformation(step: Mapping[str, Any], axes: int) -> tuple[Any, Any]:
    """Return factor and offset per axis of one coordinate transformation."""
    kind = step["type"]
    if kind == "identity":
        return 1.0, 0.0
    if kind not in ("scale", "translation"):
        msg = f"a coordinate transformation of type {kind!r} is not supported"
        raise ValueError(msg)
    values = _numbers(step[kind], axes)
    return (values, 0.0) if kind == "scale" else (1.0, values)


def _numbers(values: Sequence[float], axes: int) -> Any:
    numbers = np.array(values, dtype=np.float64)
    if numbers.shape != (axes,) or not np.isfinite(numbers).all():
        msg = f"{values} are not {axes} numbers"
        raise ValueError(msg)
    return numbers


NIFTI = "nifti"
"""The array that holds the bytes of the NIfTI header."""
# NIfTI-Zarr without OME-Zarr metadata: the last axes in this order.
_NIFTI_AXES = ("t", "c", "z", "y", "x")


@dataclass(frozen=True)
class ZarrImage:
    """One array of a node, and what the metadata say about it."""

    array: Any
    """Ours or zarr-python's."""
    layout: Layout
    """Which of its axes are spatial."""
    affine: tuple[float, ...] = IDENTITY
    """16 entries, voxels to millimetres."""
    slope: float = 1.0
    """Of the NIfTI header."""
    intercept: float = 0.0
    """Of the NIfTI header."""
    coarser: tuple[Affine, ...] = ()
    """Affines of the levels that are coarser than this one."""


def _is_array(node: Any) -> bool:
    return hasattr(node, "chunks")  # of ours and of zarr-python's; no group has any


def image_of(node: Any, level: int, name: str) -> ZarrImage:
    """Return the image in an array or group, ours or zarr-python's.

    A group may say where its voxels lie twice: the NIfTI header in its array ``nifti`` has the
    word, the OME-Zarr metadata name the axes and the levels.

    Raises
    ------
    BadHeader
        The metadata make no sense, or there is no such level.
    UnknownFormat
        A group of several arrays says of none that it is the image.
    """
    try:
        return (_of_array if _is_array(node) else _of_group)(node, level, name)
    except (VoxpipeError, NotOurs, MemoryError, OSError):
        raise
    except Exception as error:  # what zarr-python says of damaged metadata
        raise BadHeader(
            f"the metadata of {name} make no sense: {type(error).__name__}: {error}.",
            do="Write them again, or install the codec that they ask for.",
        ) from error


def _of_array(array: Any, level: int, name: str) -> ZarrImage:
    _check_level(level, 1, name)
    return ZarrImage(array, plain_layout(tuple(array.shape), name))


def _of_group(group: Any, level: int, name: str) -> ZarrImage:
    levels = levels_of(dict(group.attrs), name)
    nifti = _found(group, NIFTI)
    if nifti is None and _is_there(group, NIFTI):
        raise BadHeader(
            f"{NIFTI!r} in {name} is no array of bytes, so its slope and affine cannot be read.",
            do="Write the image again.",
        )
    if nifti is not None:
        return _of_nifti(group, bytes_of(nifti, name), levels, level, name)
    if levels:
        _check_level(level, len(levels), name)
        chosen = levels[level]
        array = _member(group, chosen.path, name)
        layout = named_layout(tuple(array.shape), chosen.axes, name)
        affine = affine_entries(chosen.affine, name)
        return ZarrImage(array, layout, affine, coarser=coarser(levels, level))
    return _of_array(_only_array(group, name), level, name)


def _of_nifti(
    group: Any, raw: bytes, levels: tuple[Level, ...], level: int, name: str
) -> ZarrImage:
    fields = parse_nifti(raw, f"the NIfTI header of {name}", single_file=False)
    affine: Affine = affine_matrix(fields.affine)
    if levels:
        _check_level(level, len(levels), name)
        array = _member(group, levels[level].path, name)
        axes = levels[level].axes
        # The header speaks of the finest level; the pyramid says how the others lie to it.
        if level:  # that of the finest is kept to the last bit
            affine = affine @ np.linalg.inv(levels[0].affine) @ levels[level].affine
    else:
        _check_level(level, 1, name)
        array = _member(group, "0", name)
        axes = _NIFTI_AXES[-array.ndim :]
    layout = named_layout(tuple(array.shape), axes, name)
    placed, lower = affine_entries(affine, name), coarser(levels, level)
    return ZarrImage(array, layout, placed, fields.slope, fields.intercept, lower)


def _check_level(level: Any, count: int, name: str) -> None:
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level < count:
        raise BadHeader(
            f"{name} has no level {level!r}, but 0 to {count - 1}.",
            do="Give level=, 0 is the finest.",
        )


def _member(group: Any, path: str, name: str) -> Any:
    array = _found(group, path)
    if array is not None:
        return array
    raise BadHeader(
        f"{name} has no array {path!r}, of which its metadata speak.", do="Write the image again."
    )


def _found(group: Any, path: str) -> Any:
    """Return an array of a group, None if it has no array of this name."""
    try:
        node = group[path]
    except KeyError:
        return None
    return node if _is_array(node) else None


def _is_there(group: Any, path: str) -> bool:
    try:
        group[path]
    except KeyError:
        return False
    return True


def _only_array(group: Any, name: str) -> Any:
    arrays = dict(group.arrays())
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    have = ", ".join(sorted(arrays)) or "none"
    raise UnknownFormat(
        f"{name} is a zarr group without NIfTI or OME-Zarr metadata; its arrays: {have}.",
        do="Give the path of one array in it.",
    )
