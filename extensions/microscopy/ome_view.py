"""Parts of OME images as volumes: one label group, or one time point."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...core.context import holding
from ...core.errors import SampleError, VolumeError, VolumeNotFound
from ...storage.location import public_name
from ...volumes.backend import Backend
from ...volumes.formats.stored_file import Format
from ...volumes.registry import BackendRequest, resolve_backend
from ..formats.hdf5 import FORMATS as HDF5
from ..formats.tiff_metadata import MAY_MISS_PLANES
from .ome_metadata import LABELS, OmeNode, join
from .tiff_sequence import SUFFIXES, is_pattern
from .time_points import at_time
from .zipped_zarr import split_zip


def open_view(
    request: BackendRequest,
    name: str,
    label: str | None = None,
    time: int | str | None = None,
    **options: Any,
) -> Any:
    """Return the backend of a label group or a time point of an image.

    Raises
    ------
    VolumeNotFound
        The image has no such label group; the error lists them.
    SampleError
        The image has no such time point.
    """
    inner = _without_view(request, options)
    if label is not None:
        inner = _at_label(inner, name, label)
    with holding(MAY_MISS_PLANES, isinstance(time, int)):
        backend = resolve_backend(inner)
    if backend is None:
        raise VolumeError(f"{name} is no image of OME-Zarr or TIFF.", do="Check the path.")
    if time is None or not isinstance(backend, Backend):
        return backend
    return at_time(backend, time, name)


def _without_view(request: BackendRequest, options: Mapping[str, Any]) -> BackendRequest:
    # Not by replace(), which reads the affine as a tensor.
    return BackendRequest(**{**vars(request), "reader_kwargs": options})


def request_of_file(request: BackendRequest) -> BackendRequest:
    """Return the request for the whole image, of which another request is for a part."""
    rest = {name: one for name, one in request.reader_kwargs.items() if name not in _PARTS}
    return _without_view(request, rest)


def _at_label(request: BackendRequest, name: str, label: Any) -> BackendRequest:
    """Return the request for a label group of the image of a request."""
    if not isinstance(label, str):
        msg = f"label= of {name} is {label!r}"
        raise SampleError(msg, do="Give the name of one label group, 'nuclei' for instance.")
    path = f"{LABELS}/{label}"
    if request.zarr_store is not None:
        group = request.zarr_store
        if not hasattr(group, "groups") or path not in group:
            msg = f"{name} has no label group {label!r}"
            raise VolumeNotFound(msg, do="Give the group at labels/NAME, or a path with ⟦label=⟧.")
        return BackendRequest(**{**vars(request), "zarr_store": group[path]})
    place = os.fspath(request.path) if request.path else request.uri or ""
    OmeNode.at(place, request.storage_options).label(label)
    there = join(place, path)
    own: dict[str, Any] = {"uri": there, "remote_zarr_uri": there}
    if request.path is not None:
        own = {"path": type(request.path)(there)}
    return BackendRequest(**{**vars(request), **own})


def _is_view(request: BackendRequest) -> bool:
    """Whether a request is for a part of an image: a label group or a time point."""
    if not request.reader_kwargs.keys() & _PARTS:
        return False
    if request.zarr_store is not None:
        return True
    place = os.fspath(request.path) if request.path else request.uri or ""
    if is_pattern(place) or "pattern" in request.reader_kwargs:
        return False
    if request.path is not None and os.path.isdir(place):
        return bool(OmeNode.at(place).version)
    name = public_name(place).lower()
    is_file = name.endswith((*SUFFIXES, *HDF5.suffixes))
    return is_file or ".zarr" in name or split_zip(name) is not None


_PARTS = {"label", "time"}
_OPTIONS = ("label", "time", "level", "axes", "series", "dataset")
FORMATS = Format("ome-part", (), open_view, _OPTIONS, matches=_is_view, rank=-2)
