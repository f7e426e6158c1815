"""Which array of a zarr node holds an image, which axes it has, and where it lies in the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import Affine
from ...core.errors import BadHeader, UnknownFormat, VoxpipeError
from ..header import IDENTITY, affine_entries, affine_matrix
from .nifti_header import parse_nifti
from .ome import Level, coarser, levels_of
from .zarr_array import NotOurs, ZarrArray, ZarrGroup, bytes_of
from .zarr_layout import Layout, named_layout, plain_layout
from .zarr_nodes import is_array

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
    if isinstance(node, (ZarrArray, ZarrGroup)):
        return isinstance(node, ZarrArray)
    return is_array(node)


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
