"""The formats that voxpipe reads by itself, in the order in which they are asked.

Imported once by the package. A format's module is imported when it is needed.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from ..storage.location import public_name
from .backend import no_options
from .formats.zarr_nodes import METADATA_FILES
from .registry import BackendRequest, register_backend

_PAIR = (".hdr", ".img", ".hdr.gz", ".img.gz")


def register_builtin_backends() -> None:
    """Register the formats of this package behind those already registered."""
    table = (
        ("zarr-store", lambda request: request.zarr_store is not None, _open_zarr_store),
        # Before "zarr", which takes every URL with .zarr in it.
        ("zarr-zip", _has_suffix(".zarr.zip"), _open_zarr_zip),
        ("zarr", _is_zarr, _open_zarr),
        ("nifti", _has_suffix(".nii"), _opener("nifti", "open_nifti")),
        ("nifti-gz", _has_suffix(".nii.gz"), _opener("nifti", "open_nifti_gz")),
        ("mgh", _has_suffix(".mgh", ".mgz", ".mgh.gz"), _opener("mgh", "open_mgh")),
        ("tiff", _has_suffix(".tif", ".tiff", ".tf8", ".btf"), _open_tiff),
        ("hdf5", _has_suffix(".h5", ".hdf5", ".hdf", ".he5"), _open_hdf5),
        ("blosc2", _has_suffix(".b2nd"), _open_blosc2),
        # Not "npy": that name is for users, who may register it and take it back.
        ("numpy", _has_suffix(".npy"), _opener("npy", "open_npy")),
        (
            "nifti-pair",
            _has_suffix(".hdr", ".img", ".hdr.gz", ".img.gz"),
            _opener("nifti", "open_pair"),
        ),
        ("nrrd", _has_suffix(".nrrd", ".nhdr"), _opener("nrrd", "open_nrrd")),
        ("metaimage", _has_suffix(".mha", ".mhd"), _opener("metaimage", "open_metaimage")),
        ("dicom", _is_dicom, _open_dicom),
        # The last: it looks into the file, and imports SimpleITK for it.
        ("simpleitk", _is_for_itk, _open_itk),
    )
    for name, matcher, factory in table:
        register_backend(name, matcher, factory, prepend=False)


def _has_suffix(*suffixes: str) -> Any:
    return lambda request: _place(request).lower().endswith(suffixes)


def _opener(module: str, function: str) -> Any:
    """Return the factory of a format without options: ``function(file)`` of a module of formats/.

    The module is imported when the first file is opened.
    """

    def opened(request: BackendRequest) -> Any:
        no_options(request.reader_kwargs, _name(request))
        from .formats.stored_file import file_of

        found = import_module(f".formats.{module}", __package__)
        return getattr(found, function)(file_of(request, _name(request)))

    return opened


def _place(request: BackendRequest) -> str:
    """Return the path, or the URL without its query."""
    return os.fspath(request.path) if request.path else public_name(request.uri or "")


def _name(request: BackendRequest) -> str:
    return public_name(str(request.source or _place(request)))


def _is_zarr(request: BackendRequest) -> bool:
    place = _place(request)
    if request.path is None:
        # A URL without a suffix may be a folder; only reading its metadata tells.
        folder = "." not in place.rstrip("/").rpartition("/")[2]
        return request.remote_zarr_uri is not None or (bool(request.uri) and folder)
    if os.path.isdir(place):
        return any(os.path.exists(os.path.join(place, name)) for name in METADATA_FILES)
    return place.lower().endswith(".zarr")


def _open_zarr(request: BackendRequest) -> Any:
    from .formats.zarr_backend import LocalZarr, RemoteZarr

    name, options = _name(request), request.reader_kwargs
    if request.path is None:
        url = request.remote_zarr_uri or request.uri or ""
        return RemoteZarr(url, request.storage_options, name, options)
    return LocalZarr(_place(request), name, options, request.follow)


def _open_zarr_zip(request: BackendRequest) -> Any:
    from .formats.zarr_backend import LocalZipZarr, RemoteZipZarr

    name, options = _name(request), request.reader_kwargs
    if request.path is None:
        return RemoteZipZarr(request.uri or "", request.storage_options, name, options)
    return LocalZipZarr(_place(request), name, options)


def _open_zarr_store(request: BackendRequest) -> Any:
    from .formats.zarr_backend import StoreZarr
    from .formats.zarr_nodes import is_node, open_store_node

    thing = request.zarr_store
    node = thing if is_node(thing) else open_store_node(thing)
    return StoreZarr(node, thing, f"zarr {type(thing).__name__}", request.reader_kwargs)


def _is_dicom(request: BackendRequest) -> bool:
    if request.path is None or not os.path.isdir(request.path):
        return False
    from .formats.dicom import has_dicom

    return has_dicom(os.fspath(request.path))


def _open_dicom(request: BackendRequest) -> Any:
    no_options(request.reader_kwargs, _name(request), ("series",))
    from .formats.dicom import open_series

    return open_series(os.fspath(request.path or ""), _name(request), **request.reader_kwargs)


def _is_for_itk(request: BackendRequest) -> bool:
    if request.path is None or not os.path.exists(request.path):
        return False
    from .formats.itk import itk_reads

    return itk_reads(os.fspath(request.path), request.follow)


def _open_itk(request: BackendRequest) -> Any:
    no_options(request.reader_kwargs, _name(request))
    from .formats.itk import open_itk

    return open_itk(os.fspath(request.path or ""), _name(request), request.follow)


def _open_tiff(request: BackendRequest) -> Any:
    from .formats.tiff import RemoteTiff, open_tiff

    name, options = _name(request), request.reader_kwargs
    if request.path is None:
        return RemoteTiff(request.uri or "", request.storage_options, name, options)
    return open_tiff(_place(request), name, options, request.io, request.follow)


def _open_hdf5(request: BackendRequest) -> Any:
    name, options = _name(request), request.reader_kwargs
    if request.path is None:
        from .formats.hdf5 import open_remote_hdf5

        return open_remote_hdf5(request.uri or "", request.storage_options, name, options)
    from .formats.hdf5 import open_hdf5

    return open_hdf5(_place(request), name, options, request.io, request.follow)


def _open_blosc2(request: BackendRequest) -> Any:
    name, options = _name(request), request.reader_kwargs
    if request.path is None:
        from .formats.blosc2 import RemoteBlosc2

        return RemoteBlosc2(request.uri or "", request.storage_options, name, options)
    from .formats.blosc2 import Blosc2Backend

    return Blosc2Backend(_place(request), name, options)
