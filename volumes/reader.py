"""A reader that the user brings: a callable that returns voxels and affine."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backend import ViewBackend, as_array
from .formats.nifti_header import is_colour, millimetres
from .header import IDENTITY, affine_entries, array_header, channels_first
from .registry import BackendRequest
from .stores.location import public_name


class ReaderBackend(ViewBackend):
    """The voxels that ``reader(path)`` returned, kept in memory as long as the handle is."""

    def __init__(self, reader: Any, request: BackendRequest) -> None:
        where = request.path or request.uri or request.source
        name = public_name(str(where))
        answer = reader(where, **request.reader_kwargs)
        values, affine = answer if isinstance(answer, tuple) else (answer, None)
        array = channels_first(as_array(values), name)
        entries = IDENTITY if affine is None else affine_entries(as_array(affine), name)
        super().__init__(array, array_header(array, entries, name), name)
        self.resident_bytes = array.nbytes


def read_with_nibabel(path: Any) -> tuple[Any, Any]:
    """Return voxels, channels first, and affine of any image that nibabel reads."""
    import nibabel

    image: Any = nibabel.load(path)
    return nibabel_voxels(image), nibabel_affine(image)


def nibabel_voxels(image: Any) -> NDArray[Any]:
    """Return the voxels of a nibabel image as (C, I, J, K), further axes folded into C.

    Colours are channels as well, and run fastest among them.
    """
    array = np.asanyarray(image.dataobj)
    if not is_colour(array.dtype):
        return _folded(array)
    colours = np.stack([_folded(array[name]) for name in array.dtype.names or ()], axis=1)
    return colours.reshape(-1, *colours.shape[2:])


def _folded(array: NDArray[Any]) -> NDArray[Any]:
    i, j, k, *rest = (*array.shape, 1, 1)[: max(3, array.ndim)]
    folded = array.reshape((i, j, k, math.prod(rest)), order="F")
    return np.moveaxis(folded, -1, 0)


def nibabel_affine(image: Any) -> NDArray[np.float64]:
    """Return the affine of a nibabel image in millimetres."""
    affine = np.array(np.eye(4) if image.affine is None else image.affine, dtype=np.float64)
    with suppress(KeyError, TypeError, ValueError, IndexError):  # formats without the field
        affine[:3] *= millimetres(int(image.header["xyzt_units"]))
    return affine
