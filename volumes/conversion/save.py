"""Save volumes as files that viewers read: NIfTI, NRRD, MetaImage; zarr through ``convert``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ...core.errors import BadHeader, SampleError, VolumeError
from ...core.validate import as_dtype
from ...storage.content import content_key
from ...storage.location import is_url
from ..backend import Backend, as_array
from ..header import Header
from ..stack_source import OwnSource
from ..volume import Volume
from .convert import RetypedBackend, convert
from .ome_group import image_above
from .volume_file import file_dtype, file_header, refuse_unwritable, writer_of
from .whole_file import write_file

LIKE = "like"  # dtype= of the stored type of ``like``


def save(
    destination: str | os.PathLike[str],
    array: Any,
    *,
    like: Volume | str | os.PathLike[str] | None = None,
    affine: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    levels: int | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Volume:
    """Write voxels as NIfTI, NRRD, MetaImage, OME-TIFF or zarr, on the grid of a scan.

    Parameters
    ----------
    destination
        Path or URL; it ends in ``.nii``, ``.nii.gz``, ``.nrrd``, ``.mha``, ``.ome.tif`` or
        ``.zarr``. Pyramids are ``.ome.zarr`` and ``.ome.tif``. Label groups of a written image
        are ``img.zarr/labels/NAME``.
    array
        Array or tensor, (I, J, K) or (C, I, J, K). A ``Volume`` is written box by box.
    like
        The volume (or its path) with the grid of these voxels. It gives the affine, and from NIfTI
        to NIfTI the header with the codes and units of qform and sform.
    affine
        4x4, voxel index to world millimetres, RAS+, in place of that of ``like``.
    dtype
        Stored type; by default that of the array, booleans as uint8 and float16 as float32.
        ``"like"``: the stored type of ``like`` with its slope and intercept.
    levels
        Number of resolutions, as in :func:`convert`. Other formats have one.
    overwrite
        Whether to replace an existing file.
    storage_options
        For fsspec, where ``destination`` is a URL.

    Returns
    -------
    The written volume.

    Raises
    ------
    BadHeader
        ``like`` has another shape.
    DestinationBusy
        This process is writing that file, or another one is for a long time.
    DestinationExists
        The file exists; this is a ``FileExistsError``.
    UnknownFormat
        The suffix is none of the above, or the format lacks the type.

    Examples
    --------
    >>> import tempfile
    >>> scan = Volume(np.zeros((4, 5, 6), np.int16), affine=np.diag([1.0, 1.0, 3.0, 1.0]))
    >>> labels = np.ones((4, 5, 6), np.uint8)
    >>> folder = tempfile.TemporaryDirectory()
    >>> volume = save(f"{folder.name}/labels.nii.gz", labels, like=scan)
    >>> volume.spacing, volume.dtype
    ((1.0, 1.0, 3.0), dtype('uint8'))
    >>> folder.cleanup()
    """
    first: Any = destination
    if not isinstance(first, (str, os.PathLike)):
        msg = (
            f"save takes the destination first, then the array; got a {type(first).__name__} first"
        )
        raise TypeError(f"{msg}: write vp.save(destination, array, like=scan)")
    place = os.fspath(destination)
    suffix = refuse_unwritable(place)
    model = like if like is None or isinstance(like, Volume) else Volume(like)
    volume = _volume_at(array, affine if model is None or affine is not None else model.affine)
    if model is not None and model.shape[1:] != volume.shape[1:]:
        text = f"the array has {volume.shape[1:]} voxels and the grid of {model.name}, given as "
        text += f"like=, has {model.shape[1:]}."
        raise BadHeader(text, do="Bring it to that grid first, or give affine= instead.")
    if not suffix:
        if image_above(place) is not None and not isinstance(array, Volume):
            volume = volume.of_kind("label")
        if dtype is not None:
            source = _TypedSource(volume, _header_for(volume, dtype, model))
            volume = Volume.of_source(source, volume.kind)
        how: Any = {"overwrite": overwrite, "storage_options": storage_options}
        convert(volume, place, levels=levels, **how)
        options = storage_options if is_url(place) else None
        return Volume(place, kind=volume.kind, storage_options=options)
    header = _header_for(volume, dtype, model)
    if writer_of(place) is not None:
        header = file_header(replace(header, file_unit=(model or volume).header.file_unit))
    elif levels is not None:
        msg = f"levels= is given for {suffix}, which has one resolution"
        raise SampleError(msg, do="Write .ome.zarr or .ome.tif, or leave levels= out.")
    options = storage_options or {}
    write_file(place, volume, header, model, overwrite=overwrite, levels=levels, options=options)
    return Volume(place, kind=volume.kind, storage_options=options if is_url(place) else None)


def _volume_at(array: Any, affine: ArrayLike | None) -> Volume:
    """Return an array or a volume as a volume with this affine."""
    if not isinstance(array, Volume):
        return Volume(array, affine=affine)
    if affine is None or np.array_equal(as_array(affine), array.affine):
        return array
    return Volume([array], affine=affine, kind=array.kind)


def _header_for(volume: Volume, dtype: DTypeLike | None, like: Volume | None) -> Header:
    """Return the header of the written file."""
    own = Header.of(volume.shape, file_dtype(volume.dtype), volume.affine)
    if dtype is None:
        return own
    if not (isinstance(dtype, str) and dtype == LIKE):
        return Header.of(volume.shape, file_dtype(as_dtype("dtype", dtype)), volume.affine)
    if like is None:
        raise VolumeError('dtype="like" needs like=, which is missing.')
    source, disk = like.header, file_dtype(like.disk_dtype)
    return replace(own, disk_dtype=disk, slope=source.slope, intercept=source.intercept)


class _TypedSource(OwnSource):
    """Source of a volume in the type in which it is written."""

    def __init__(self, volume: Volume, header: Header) -> None:
        self._volume, self._header, self.name = volume, header, volume.name
        self.token = _typed_key(volume.token, header)

    def _make(self) -> Backend:
        volume, header = self._volume, self._header
        return RetypedBackend(volume, header, lambda: _typed_key(volume.content_key, header))


def _typed_key(key: str, header: Header) -> str:
    kind = str(header.disk_dtype), header.slope, header.intercept
    return content_key("stored as", (key, *kind)) if key else ""
