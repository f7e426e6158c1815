"""From what a user gives to a source: looks at the object, never at a disk."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from ..core.errors import SampleError, UnknownFormat
from .formats.zarr_nodes import ZarrSource
from .header import IDENTITY
from .source import LocatedSource, Options, Source, from_array


def source_of(thing: Any, options: Options) -> Source:
    """Return the source of a path, URL, array, tensor, image of a library, or zarr object."""
    if isinstance(thing, (str, os.PathLike)):
        return LocatedSource(os.fsdecode(thing), options)
    if _is_instance(thing, "nibabel.spatialimages", "SpatialImage"):
        from .formats.nibabel_image import source_of_image

        return source_of_image(thing, options)
    if _is_zarr(thing):
        return ZarrSource(thing, options)
    if _is_instance(thing, "SimpleITK", "Image"):
        from .formats.itk import from_itk

        _refuse_options(options)
        return from_itk(thing, options.affine)
    if isinstance(thing, np.ndarray) or _is_instance(thing, "torch", "Tensor"):
        _refuse_options(options)
        return from_array(thing, options.affine or IDENTITY)
    raise UnknownFormat(
        f"a volume cannot be made from a {type(thing).__name__}.",
        do="Give a path, a URL, an array, a tensor, an image of nibabel or SimpleITK, a zarr "
        "object, or a list of these.",
    )


def _refuse_options(options: Options) -> None:
    if options.reader or options.reader_kwargs or options.storage_options:
        named = [*options.reader_kwargs, *(["reader"] if options.reader else [])]
        named = named or ["storage_options"]
        raise SampleError(
            f"voxels in memory need no reader and no options, and were given {named[0]}=",
            do=f"Leave {named[0]}= out.",
        )


def _is_instance(thing: Any, module: str, *classes: str) -> bool:
    """Whether ``thing`` is of a class whose module is, then, already imported."""
    loaded = sys.modules.get(module)
    found = tuple(getattr(loaded, name) for name in classes if hasattr(loaded, name))
    return isinstance(thing, found)


def _is_zarr(thing: Any) -> bool:
    return _is_instance(thing, "zarr", "Array", "Group") or _is_instance(
        thing, "zarr.abc.store", "Store"
    )
