"""Write volumes as files that viewers read: NIfTI, NRRD, MHA; zarr through ``convert``.

Voxels go straight into the file's memory map, box by box and in any order, so a writer needs no
memory for the volume. The file has its name when it is whole: until then it lies in a hidden folder
beside its place.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import posixpath
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ...core import Region
from ...core.convert_dtype import convert_dtype
from ...core.errors import BadHeader, UnknownFormat, VolumeError
from ...core.validate import as_dtype
from ...storage.content import content_key
from ...storage.disk_cache import open_no_link, sync_folder
from ...storage.location import absolute_place, file_system, is_url, public_name, remote_errors
from ..backend import Backend, Channels, as_array
from ..formats.nifti import NIFTI2_BYTES, fields_of, head_of
from ..formats.stored_file import LocalStoredFile
from ..header import Header, affine_entries, affine_matrix
from ..stack_source import OwnSource
from ..volume import Volume
from ..voxels import Voxels
from .convert import convert
from .convert_plan import spacing_of
from .destination import check_destination, destination_of, disk_errors

SUFFIXES = (".nii.gz", ".nii", ".nrrd", ".mha")
"""Of files with one header in front of bare voxels, which are written in place."""
LIKE = "like"  # as a type: that of the volume whose header is taken
_MARK = "voxpipe"  # what a mark in a header begins with
# A NIfTI-1 header counts voxels of an axis in 16 bits.
_MOST_IN_NIFTI1 = 2**15 - 1
_SCANNER = 1
_FLAG_BYTES = 4  # behind a NIfTI header: no extensions
# What is compressed, copied or written at once.
_PIECE = 16 * 1024**2
_LEVEL = 1  # of gzip: higher ones take several times as long for a few per cent
# Written pages that stay mapped between two looks. A page holds rows of several boxes, and is
# mapped anew for each: to predict 512^3 float32 took 8.2 s with 32 MiB, 7.8 with 64, 7.7 with 256.
_DIRTY = 64 * 1024**2
# As many lines as a set of a first cache holds.
_PLANES = 8
# What a file system says that cannot do so.
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
Copy = Callable[[NDArray[Any], NDArray[Any]], None]
_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
_NRRD_TYPES = {
    "i1": "int8", "u1": "uint8", "i2": "int16", "u2": "uint16", "i4": "int32", "u4": "uint32",
    "i8": "int64", "u8": "uint64", "f4": "float", "f8": "double",
}  # fmt: skip
_MHA_TYPES = {
    "i1": "MET_CHAR", "u1": "MET_UCHAR", "i2": "MET_SHORT", "u2": "MET_USHORT", "i4": "MET_INT",
    "u4": "MET_UINT", "i8": "MET_LONG_LONG", "u8": "MET_ULONG_LONG", "f4": "MET_FLOAT",
    "f8": "MET_DOUBLE",
}  # fmt: skip


def suffix_of(path: str) -> str:
    """Return the suffix by which a file is written here; empty where it is none of those."""
    name = posixpath.basename(path.replace("\\", "/")).lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def refuse_unwritable(path: str) -> str:
    """Return the suffix of a path, ``""`` for zarr; UnknownFormat for any other."""
    suffix = suffix_of(path)
    if not suffix and not path.rstrip("/").lower().endswith(".zarr"):
        what = f"{public_name(path)} is the name of no format that is written."
        raise UnknownFormat(what, do=f"Let it end in .zarr or {', '.join(SUFFIXES)}.")
    return suffix


@dataclass(frozen=True)
class _Layout:
    """A header, and how the voxels follow it."""

    head: bytes
    is_interleaved: bool = False  # whether the channels of a voxel lie side by side


def _nifti(header: Header, like: Any, mark: str) -> _Layout:
    """Return a NIfTI header; of a file ``like`` it keeps codes, units and all it says else."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    channels, *spatial = header.shape
    large = max(header.shape) > _MOST_IN_NIFTI1
    build: Any = Nifti2Header if large or isinstance(like, Nifti2Header) else Nifti1Header
    fields = build(endianness="<") if like is None else build.from_header(like.as_byteswapped("<"))
    fields.set_data_dtype(header.disk_dtype)
    zooms = fields.get_zooms()[:3] if like is not None else spacing_of(header)
    fields.set_data_shape(spatial if channels == 1 else (*spatial, 1, channels))
    fields.set_zooms([*map(float, zooms), 1.0, 1.0][: 3 if channels == 1 else 5])
    if like is None:
        fields.set_sform(affine_matrix(header.affine), code=_SCANNER)
        with suppress(Exception):  # a sheared affine has no quaternion: the sform stands
            fields.set_qform(affine_matrix(header.affine), code=_SCANNER, strip_shears=False)
        fields.set_xyzt_units("mm")
    fields["scl_slope"], fields["scl_inter"] = header.slope, header.intercept
    fields["cal_min"] = fields["cal_max"] = 0  # of other values
    if mark:
        fields["descrip"] = f"{_MARK} {mark}".encode()
    size = fields.sizeof_hdr + _FLAG_BYTES
    size = -(-size // 16) * 16
    fields["vox_offset"], fields["magic"] = size, fields.single_magic
    return _Layout(fields.binaryblock.ljust(size, b"\0"))


def _text_number(value: float) -> str:
    return repr(float(value))


def _nrrd(header: Header, like: Any, mark: str) -> _Layout:
    channels, *spatial = header.shape
    matrix = _LPS @ affine_matrix(header.affine)
    vectors = [f"({','.join(map(_text_number, matrix[:3, axis]))})" for axis in range(3)]
    sizes, kinds = spatial, ["domain"] * 3
    if channels > 1:
        vectors, sizes, kinds = ["none", *vectors], [channels, *spatial], ["vector", *kinds]
    lines = [
        "NRRD0004",
        *([f"# {_MARK} {mark}"] if mark else []),
        f"type: {_name_of(header.disk_dtype, _NRRD_TYPES, 'NRRD')}",
        f"dimension: {len(sizes)}",
        "space: left-posterior-superior",
        f"sizes: {' '.join(map(str, sizes))}",
        f"space directions: {' '.join(vectors)}",
        f"kinds: {' '.join(kinds)}",
        "endian: little",
        "encoding: raw",
        f"space origin: ({','.join(map(_text_number, matrix[:3, 3]))})",
    ]
    return _Layout(("\n".join(lines) + "\n\n").encode(), is_interleaved=channels > 1)


def _mha(header: Header, like: Any, mark: str) -> _Layout:
    matrix, spacing = _LPS @ affine_matrix(header.affine), spacing_of(header)
    directions = [matrix[row, axis] / spacing[axis] for axis in range(3) for row in range(3)]
    channels, *spatial = header.shape
    lines = [
        "ObjectType = Image",
        "NDims = 3",
        *([f"Comment = {_MARK} {mark}"] if mark else []),
        "BinaryData = True",
        "BinaryDataByteOrderMSB = False",
        "CompressedData = False",
        f"TransformMatrix = {' '.join(map(_text_number, directions))}",
        f"Offset = {' '.join(map(_text_number, matrix[:3, 3]))}",
        "CenterOfRotation = 0 0 0",
        f"ElementSpacing = {' '.join(map(_text_number, spacing))}",
        f"DimSize = {' '.join(map(str, spatial))}",
        *([f"ElementNumberOfChannels = {channels}"] if channels > 1 else []),
        f"ElementType = {_name_of(header.disk_dtype, _MHA_TYPES, 'MetaImage')}",
        "ElementDataFile = LOCAL",
    ]
    return _Layout(("\n".join(lines) + "\n").encode(), is_interleaved=channels > 1)


def _name_of(dtype: np.dtype[Any], names: Mapping[str, str], what: str) -> str:
    name = names.get(dtype.str[1:])
    if name is None:
        raise UnknownFormat(f"{what} has no type for {dtype}.", do="Give dtype='float32', say.")
    return name


_LAYOUTS: dict[str, Callable[[Header, Any, str], _Layout]] = {
    ".nii.gz": _nifti,
    ".nii": _nifti,
    ".nrrd": _nrrd,
    ".mha": _mha,
}


def file_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which values are stored in a file: no format has booleans or float16."""
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype == np.float16:
        return np.dtype(np.float32)
    return dtype.newbyteorder("<")


class VolumeFile:
    """One file that is being written, box by box; it has its name once it is whole.

    Parameters
    ----------
    path
        Where it will be, on a local disk, with one of ``SUFFIXES``.
    folder
        Where it lies until then, on the same disk.
    header
        Shape, affine and type of what is written.
    like
        The volume whose header codes it gets, where both are NIfTI.
    mark
        One word for the header, by which the file is known again.
    copy
        What copies a box to its place, in the file's order of axes; by default NumPy.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        header: Header,
        like: Volume | None = None,
        mark: str = "",
        copy: Copy | None = None,
    ) -> None:
        self.path, self._copy = path, copy or copy_turned
        self._suffix = suffix_of(path.name)
        fields = _fields_like(like, header) if "nii" in self._suffix else None
        layout = _LAYOUTS[self._suffix](header, fields, mark)
        self._part = folder / "voxels"
        self._header, self._layout = header, layout
        self._dtype = header.disk_dtype
        size = math.prod(header.shape) * self._dtype.itemsize
        with open(
            self._part, "ab", opener=open_no_link
        ) as file:  # of a run that was killed it holds voxels
            file.truncate(len(layout.head) + size)
            _allocate(file.fileno(), len(layout.head) + size)
        with open(self._part, "r+b", opener=open_no_link) as file:
            file.write(layout.head)
        self._voxels: NDArray[Any] | None = None
        self._map: mmap.mmap | None = None
        self._dirty = 0

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        """Put the stored numbers (C, I, J, K) of a box into their place."""
        if self._voxels is None:
            self._voxels = self._open_map()
        self._copy(voxels, self._voxels[(slice(None), *region.slices)])
        self._dirty += self._page_bytes(region)
        if self._dirty > _DIRTY:  # pages that stay mapped would count as memory of this process
            self.release()

    def _page_bytes(self, region: Region) -> int:
        """Return about how many bytes of pages a box touches: of a row at least a page."""
        channels, row, _, _ = self._header.shape
        i, j, k = region.shape
        if self._layout.is_interleaved:
            row, i, channels = row * channels, i * channels, 1
        least = min(mmap.PAGESIZE, row * self._dtype.itemsize)
        return channels * j * k * max(least, i * self._dtype.itemsize)

    def _open_map(self) -> NDArray[Any]:
        with open(self._part, "r+b", opener=open_no_link) as file:
            self._map = mmap.mmap(file.fileno(), 0)
        c, i, j, k = self._header.shape
        flat = np.frombuffer(self._map, self._dtype, offset=len(self._layout.head))
        if self._layout.is_interleaved:
            return flat.reshape((c, i, j, k), order="F")
        return np.moveaxis(flat.reshape((i, j, k, c), order="F"), -1, 0)

    def release(self) -> None:
        """Let go of the map: what was written is in the file."""
        self._voxels, self._dirty = None, 0
        if self._map is not None:
            self._map.close()
            self._map = None

    def finish(self) -> None:
        """Compress the file if its name says so, and give it that name."""
        self.release()
        part = self._part
        if self._suffix.endswith(".gz"):
            part = part.with_name("compressed")
            _compress(self._part, part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, self.path)
        with suppress(FileNotFoundError):
            self._part.unlink()
        sync_folder(self.path.parent)


def _allocate(file: int, size: int) -> None:
    """Take the room now: a map of a file for which there is none ends the process by a signal."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, max(1, size))
        except OSError as error:
            if error.errno not in _NO_ALLOCATION:
                raise


def copy_turned(voxels: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy (C, I, J, K) to a target along whose first axis voxels follow each other in memory."""
    if voxels.strides[1] == voxels.itemsize:
        target[...] = voxels
        return
    # Planes I of a box lie a power of two apart as a rule, and share few lines of a cache: of all
    # of them at once none would stay until its next voxel is copied. A fourth of the time.
    for start in range(0, voxels.shape[1], _PLANES):
        planes = slice(start, start + _PLANES)
        target[:, planes] = voxels[:, planes]


def _compress(source: Path, target: Path) -> None:
    """Write a file anew by gzip, without a name or a time: the same bytes for the same voxels."""
    try:
        from isal import isal_zlib

        packer: Any = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, 31)
    except ImportError:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    with open(source, "rb") as plain, open(target, "wb", opener=open_no_link) as out:
        while piece := plain.read(_PIECE):
            out.write(packer.compress(piece))
        out.write(packer.flush())


def _fields_like(like: Volume | None, header: Header) -> Any:
    """Return nibabel's header of a NIfTI file on this grid; None of any other volume."""
    source = None if like is None else like.located_source
    place = None if source is None else source.path or source.location
    if like is None or place is None or is_url(place) or ".nii" not in suffix_of(place):
        return None
    if (
        affine_entries(like.affine, like.name) != header.affine
        or like.shape[1:] != header.shape[1:]
    ):
        return None
    raw = head_of(LocalStoredFile(place), place.lower().endswith(".gz"))
    fields, _ = fields_of(raw[:NIFTI2_BYTES], place)
    return fields


def has_mark(path: Path, mark: str) -> bool:
    """Whether a file at a local path was written with this mark."""
    with suppress(OSError, zlib.error):
        with open(path, "rb") as file:
            head = file.read(_HEAD)
        if path.name.lower().endswith(".gz"):
            head = zlib.decompressobj(31).decompress(head, _HEAD)
        return f"{_MARK} {mark}".encode() in head
    return False


_HEAD = 4096  # bytes in which a mark stands


def save(
    path: str | os.PathLike[str],
    array: Any,
    *,
    like: Volume | str | os.PathLike[str] | None = None,
    affine: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Volume:
    """Write voxels as NIfTI, NRRD, MetaImage or zarr, where a viewer overlays them on a scan.

    Parameters
    ----------
    path
        Path or URL; it ends in ``.nii``, ``.nii.gz``, ``.nrrd``, ``.mha`` or ``.zarr``.
    array
        Array or tensor, (I, J, K) or (C, I, J, K); or a ``Volume``, which is written box by box,
        whatever its size.
    like
        The volume (or its path) on whose grid these voxels lie: they get its affine, and where
        both are NIfTI its header with the codes and units of qform and sform.
    affine
        4x4, voxel index to world millimetres, RAS+, in place of that.
    dtype
        Type that is written; by default that of the array, booleans as uint8 and float16 as
        float32. ``"like"``: the stored type of ``like`` with its slope and intercept.
    overwrite
        Whether to replace what is there.
    storage_options
        For fsspec, where ``path`` is a URL.

    Returns
    -------
    The written volume.

    Raises
    ------
    BadHeader
        ``like`` has another shape.
    DestinationExists
        Something is there; this is a ``FileExistsError``.
    UnknownFormat
        The name is that of no format that is written, or the format lacks the type.

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
    first: Any = path
    if not isinstance(first, (str, os.PathLike)):
        msg = f"save takes the path first, then the array; the path is a {type(first).__name__}"
        raise TypeError(f"{msg}: write vp.save(path, array, like=scan)")
    place = os.fspath(path)
    suffix = refuse_unwritable(place)
    model = like if like is None or isinstance(like, Volume) else Volume(like)
    volume = _volume_at(array, affine if model is None or affine is not None else model.affine)
    if model is not None and model.shape[1:] != volume.shape[1:]:
        what = f"an array of {volume.shape[1:]} voxels is to lie on the grid of {model.name}, "
        what += f"which has {model.shape[1:]}."
        raise BadHeader(what, do="Bring it to that grid first, or give affine= instead.")
    if not suffix:
        if dtype is not None:
            source = _TypedSource(volume, _header_for(volume, dtype, model))
            volume = Volume.of_source(source, volume.kind)
        convert(volume, place, overwrite=overwrite, storage_options=storage_options)
        return Volume(place, storage_options=storage_options if is_url(place) else None)
    header = _header_for(volume, dtype, model)
    target = destination_of(place, storage_options or {})
    check_destination(target, overwrite=overwrite, is_file=True)
    if is_url(place):
        with tempfile.TemporaryDirectory(prefix="voxpipe-save-") as folder:
            local = Path(folder) / posixpath.basename(place)
            _write_file(local, volume, header, model)
            upload(local, place, storage_options or {}, overwrite=overwrite)
        return Volume(place, storage_options=storage_options)
    with disk_errors(f"{volume.name} could not be saved at {place}", place):
        _write_file(Path(absolute_place(place)), volume, header, model)
    return Volume(place, kind=volume.kind)


def upload(local: Path, url: str, options: Mapping[str, Any], *, overwrite: bool) -> None:
    """Copy a file to a URL."""
    system, path = file_system(url, options)
    with remote_errors(public_name(url), options):
        check_destination(destination_of(url, options), overwrite=overwrite, is_file=True)
        system.put_file(str(local), path)


def _volume_at(array: Any, affine: ArrayLike | None) -> Volume:
    """Return the volume of an array, or a volume, at this place in the world."""
    if not isinstance(array, Volume):
        return Volume(array, affine=affine)
    if affine is None or np.array_equal(as_array(affine), array.affine):
        return array
    return Volume([array], affine=affine, kind=array.kind)


def _dtype_of(dtype: DTypeLike | None, like: Volume | None) -> Header:
    if isinstance(dtype, str) and dtype == LIKE:
        if like is None:
            raise VolumeError('dtype="like" is that of like=, which is missing.')
        return like.header
    return Header.of((1, 1, 1, 1), as_dtype("dtype", dtype))


def _header_for(volume: Volume, dtype: DTypeLike | None, like: Volume | None) -> Header:
    """Return the header of the file that is written."""
    own = Header.of(volume.shape, file_dtype(volume.dtype), volume.affine)
    if dtype is None:
        return own
    source = _dtype_of(dtype, like)
    disk = file_dtype(source.disk_dtype)
    return replace(own, disk_dtype=disk, slope=source.slope, intercept=source.intercept)


def _write_file(path: Path, volume: Volume, header: Header, like: Volume | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        file = VolumeFile(path, Path(folder), header, like)
        for region in slabs(header):
            voxels = volume.numpy() if volume.is_loaded else volume.read(region).values()
            if volume.is_loaded:
                voxels = voxels[(slice(None), *region.slices)]
            file.write(region, as_stored(voxels, header))
        file.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def slabs(header: Header) -> list[Region]:
    """Return boxes of whole planes along K, of some megabytes each."""
    channels, i, j, k = header.shape
    plane = channels * i * j * header.disk_dtype.itemsize
    step = max(1, _PIECE // max(1, plane))
    return [Region((0, 0, at), (i, j, min(at + step, k))) for at in range(0, k, step)]


def as_stored(voxels: NDArray[Any], header: Header) -> NDArray[Any]:
    """Return values as the numbers that are stored for them: rounded and clipped, not cut off."""
    if voxels.dtype.kind == "b":
        voxels = voxels.view(np.uint8)
    if (header.slope, header.intercept) != (1.0, 0.0):
        voxels = (voxels.astype(np.float64) - header.intercept) / header.slope
    return convert_dtype(voxels, header.disk_dtype)


class _TypedBackend(Backend):
    """A volume in another stored type, region by region."""

    counts_below = True

    def __init__(self, volume: Volume, header: Header) -> None:
        self._volume = volume
        super().__init__(header, volume.name)

    @property
    def content_key(self) -> str:
        """That of the volume, and what is stored of it."""
        return _typed_key(self._volume.content_key, self.header)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a region as it is stored."""
        values = self._volume.read(region).values()
        array = as_stored(values[slice(*channels) if channels else slice(None)], self.header)
        return Voxels(array, self.header.slope, self.header.intercept)


class _TypedSource(OwnSource):
    """A volume that is to be written in another type."""

    def __init__(self, volume: Volume, header: Header) -> None:
        self._volume, self._header, self.name = volume, header, volume.name
        self.token = _typed_key(volume.token, header)

    def _make(self) -> Backend:
        return _TypedBackend(self._volume, self._header)


def _typed_key(key: str, header: Header) -> str:
    kind = str(header.disk_dtype), header.slope, header.intercept
    return content_key("stored as", (key, *kind)) if key else ""
