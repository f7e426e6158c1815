"""Save volumes as files that viewers read: NIfTI, NRRD, MetaImage; zarr through ``convert``."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ...core.errors import BadHeader, SampleError, VolumeError
from ...core.grid import XYZ
from ...core.validate import as_dtype
from ...storage.content import content_key
from ...storage.location import is_url
from ..backend import Backend, as_array
from ..header import ONE_TIME, Header, Times
from ..stack_source import OwnSource
from ..volume import Volume
from .convert import RetypedBackend, convert
from .ome_group import image_above
from .volume_file import file_dtype, file_header, refuse_times, refuse_unwritable, writer_of
from .whole_file import write_file

_IN_ROWS = re.compile(r"\.tiff?$|(?<!\.nii)\.(zarr|ozx)(\.zip)?$|\.(png|jpe?g|bmp)$")
LIKE = "like"  # dtype= of the stored type of ``like``


def save(
    destination: str | os.PathLike[str],
    array: Any,
    *,
    like: Volume | str | os.PathLike[str] | None = None,
    affine: ArrayLike | None = None,
    axes: str | None = None,
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
        Array or tensor, (I, J, K) or (C, I, J, K). I, J, K are x, y, z; ``axes`` names another
        order. A ``Volume`` or a lazy patch is written box by box, with its own axes.
    axes
        Letters of the axes of an array. Arrays of tifffile, zarr and scikit-image are ``"zyx"``,
        or ``"czyx"``. OME-Zarr and OME-TIFF, as destination or ``like``, need it if x and z have
        one length, or x and y of a plane. Both orders fit then. So do pictures, TIFF and zarr as
        ``like``.
    like
        The volume (or its path, or a lazy patch) with the grid of these voxels. It gives the
        affine, and from NIfTI to NIfTI the header with the codes and units of qform and sform. A
        patch also gives the order of the axes, as after ``to_axes("zyx")``.
    affine
        4x4, voxel index to world millimetres, RAS+, in place of that of ``like``.
    dtype
        Stored type; by default that of the array, booleans as uint8 and float16 as float32.
        ``"like"``: the stored type of ``like`` with its slope and intercept.
    levels
        Number of resolutions, as in :func:`convert`. Other formats have one.
    overwrite
        Whether to replace an existing file or group, as :func:`convert`.
    storage_options
        For fsspec, where ``destination`` is a URL.

    Returns
    -------
    The written volume.

    Raises
    ------
    BadHeader
        ``like`` has another shape, or the array has two orders that fit.
    GridMismatch
        The labels do not cover the image of their group.
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
    model: Any = like if like is None or isinstance(like, Volume) else _volume_of(like)
    own = affine if model is None or affine is not None else model.grid.affine
    volume = _volume_at(array, own, axes or _axes_like(like, array))
    if model is not None and model.shape[1:] != volume.shape[1:]:
        text = f"the array has {volume.shape[1:]} voxels and the grid of {model.name}, given as "
        text += f"like=, has {model.shape[1:]}."
        do = "Bring it to that grid first, or give affine= instead."
        if not volume.header.names_axes and volume.shape[:0:-1] == model.shape[1:]:
            letters = "czyx"[4 - np.ndim(array) :]
            do = f"Its axes seem to be z, y, x: give axes={letters!r}."
        raise BadHeader(text, do=do)
    if model is not None and not (volume is array or volume.header.names_axes):
        _refuse_ambiguous(np.ndim(array), model, place)
    if not suffix:
        if image_above(place) is not None and volume is not array and isinstance(volume, Volume):
            volume = volume.of_kind("label")
        how: Any = {"overwrite": overwrite, "storage_options": storage_options}
        convert(_of_type(volume, array, dtype, model), place, levels=levels, **how)
        options = storage_options if is_url(place) else None
        return Volume(place, kind=volume.kind, storage_options=options)
    header = _header_for(volume, dtype, model)
    refuse_times(volume.header, place, volume.name)
    if writer_of(place) is not None:
        names = volume.header.channel_names
        unit = (model or volume).header.file_unit
        more: Any = {"channel_names": names, "times": _times_like(volume, model)}
        header = file_header(replace(header, file_unit=unit, **more))
    elif levels is not None:
        msg = f"levels= is given for {suffix}, which has one resolution"
        raise SampleError(msg, do="Write .ome.zarr or .ome.tif, or leave levels= out.")
    options = storage_options or {}
    write_file(place, volume, header, model, overwrite=overwrite, levels=levels, options=options)
    return Volume(place, kind=volume.kind, storage_options=options if is_url(place) else None)


def _volume_of(thing: Any) -> Any:
    """Return the voxels that a lazy patch makes, with the axes x, y, z; another thing's volume."""
    if hasattr(thing, "flush_plan"):
        return thing.in_axes(XYZ).flush_plan(is_tiled=True).volume
    return Volume(thing)


def _axes_like(like: Any, array: Any) -> str | None:
    """Return the axes of an array, where it is like a lazy patch whose axes have another order."""
    own = like.plan.axes if hasattr(like, "flush_plan") else XYZ
    if isinstance(array, Volume) or hasattr(array, "flush_plan") or not {*own} <= {*XYZ}:
        return None
    return None if own == XYZ else "c" * (np.ndim(array) - len(own)) + own


def _refuse_ambiguous(ndim: int, like: Any, place: str) -> None:
    """Raise ``BadHeader`` if an array without named axes fits a grid in two orders."""
    names = [posixpath.basename(each.rstrip("/")).lower() for each in (place, like.name)]
    is_ome = any(".ome." in name for name in names) or image_above(place) or image_above(like.name)
    # Other files whose programs give arrays as z, y, x.
    is_in_rows = like.header.names_axes and _IN_ROWS.search(names[1])
    letters = XYZ[: min(ndim, 3)]
    sizes = like.shape[1 : 1 + len(letters)]
    if not (is_ome or is_in_rows) or sizes[0] != sizes[-1] or sizes[0] == 1:
        return
    lead = "c" * (ndim - len(letters))
    msg = f"the array does not name its axes, and the grid of {like.name}, given as like=, has as "
    msg += f"many voxels along {letters[0]} as along {letters[-1]}, so two orders fit."
    do = f"Give axes={lead + letters[::-1]!r} for an array of tifffile or zarr, or "
    raise BadHeader(msg, do=f"{do}axes={lead + letters!r} for one of vp.Volume.")


def _volume_at(array: Any, affine: ArrayLike | None, axes: str | None) -> Any:
    """Return an array or a volume as a volume with this affine."""
    if axes is not None and (isinstance(array, Volume) or hasattr(array, "flush_plan")):
        msg = f"axes={axes!r} is given for a {type(array).__name__}, which has axes of its own"
        raise SampleError(msg, do="Leave axes= out.")
    if hasattr(array, "flush_plan"):
        return _volume_of(array)
    if not isinstance(array, Volume):
        own: Any = {} if axes is None else {"axes": axes}
        return Volume(array, affine=affine, **own)
    if affine is None or np.array_equal(as_array(affine), array.affine):
        return array
    return Volume([array], affine=affine, kind=array.kind)


def _of_type(volume: Any, array: Any, dtype: DTypeLike | None, like: Any) -> Any:
    """Return a volume in the type and with the times in which it is written; a patch as it is."""
    times = _times_like(volume, like)
    if dtype is None and times == volume.header.times:
        return array if hasattr(array, "flush_plan") else volume
    names = volume.header.channel_names
    header = replace(_header_for(volume, dtype, like), channel_names=names, times=times)
    return Volume.of_source(_TypedSource(volume, header), volume.kind)


def _times_like(volume: Any, like: Any) -> Times:
    """Return the time points of a volume, with the step of ``like`` if it has as many."""
    own: Times = volume.header.times
    others = ONE_TIME if like is None else like.header.times
    if volume.shape[0] == 1 or others.number == 1:
        return own
    if own.number == others.number:
        return others._replace(stride=own.stride)
    return others if own.number == 1 and volume.shape[0] == like.shape[0] else own


def _header_for(volume: Volume, dtype: DTypeLike | None, like: Volume | None) -> Header:
    """Return the header of the written file."""
    affine = volume.grid.affine
    own = Header.of(volume.shape, file_dtype(volume.dtype), affine)
    if dtype is None:
        return own
    if not (isinstance(dtype, str) and dtype == LIKE):
        return Header.of(volume.shape, file_dtype(as_dtype("dtype", dtype)), affine)
    if like is None:
        raise VolumeError('dtype="like" needs like=, which is missing.')
    source, disk = like.header, file_dtype(like.disk_dtype)
    return replace(own, disk_dtype=disk, slope=source.slope, intercept=source.intercept)


class _TypedSource(OwnSource):
    """Source of a volume in the type in which it is written."""

    def __init__(self, volume: Volume, header: Header) -> None:
        self._volume, self._header, self.name = volume, header, volume.name
        own = volume.token if isinstance(volume, Volume) else volume.version()
        self.token = _typed_key(own, header)

    def _make(self) -> Backend:
        volume, header = self._volume, self._header
        key = partial(getattr, volume, "content_key", "")
        return RetypedBackend(volume, header, lambda: _typed_key(key(), header))


def _typed_key(key: str, header: Header) -> str:
    kind = str(header.disk_dtype), header.slope, header.intercept
    return content_key("stored as", (key, *kind)) if key else ""
