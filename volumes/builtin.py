"""The formats that voxpipe reads by itself, in the order in which they are asked.

Imported once by the package. A format's module is imported when it is needed.
"""

from __future__ import annotations

import os
from typing import Any

from ..core.errors import UnknownFormat
from .backend import no_options
from .location import public_name
from .registry import BackendRequest, register_backend


def register_builtin_backends() -> None:
    """Register the formats of this package behind those already registered."""
    table = (
        ("nifti", _has_suffix(".nii"), _open_nifti),
        ("nifti-gz", _has_suffix(".nii.gz"), _open_nifti_gz),
        # Not "npy": that name is for users, who may register it and take it back.
        ("numpy", _has_suffix(".npy"), _open_npy),
    )
    for name, matcher, factory in table:
        register_backend(name, matcher, factory, prepend=False)


def _has_suffix(suffix: str) -> Any:
    return lambda request: _place(request).lower().endswith(suffix)


def _place(request: BackendRequest) -> str:
    """Return the path, or the URL without its query."""
    return os.fspath(request.path) if request.path else public_name(request.uri or "")


def _name(request: BackendRequest) -> str:
    return public_name(str(request.source or _place(request)))


def _open_nifti(request: BackendRequest) -> Any:
    no_options(request.reader_kwargs, _name(request))
    if request.path is None:
        from .nifti_remote import RemoteNifti

        return RemoteNifti(request.uri or "", request.storage_options, _name(request))
    from .nifti import NiftiBackend

    return NiftiBackend(_place(request), _name(request))


def _open_nifti_gz(request: BackendRequest) -> Any:
    no_options(request.reader_kwargs, _name(request))
    from .nifti_gz import LocalNiftiGz, RemoteNiftiGz

    if request.path is None:
        return RemoteNiftiGz(request.uri or "", request.storage_options, _name(request))
    return LocalNiftiGz(_place(request), _name(request))


def _open_npy(request: BackendRequest) -> Any:
    no_options(request.reader_kwargs, _name(request))
    if request.path is None:
        raise UnknownFormat(
            f".npy is read from local disks only, not from {_name(request)}.",
            do="Store it as zarr, or copy it first.",
        )
    from .npy import NpyBackend

    return NpyBackend(os.fspath(request.path), _name(request))
