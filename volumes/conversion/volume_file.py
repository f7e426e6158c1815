"""NIfTI, NRRD and MetaImage files, written box by box in any order, without memory for the volume.

A file is written in a hidden folder on the same disk, and renamed once it is whole.
"""

from __future__ import annotations

import errno
import itertools
import math
import mmap
import os
import posixpath
import re
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.call_site import warn
from ...core.convert_dtype import convert_dtype
from ...core.errors import LikelyMistake, UnknownFormat
from ...first_use import extensions
from ...storage.disk_cache import open_no_link, sync_folder
from ...storage.location import is_url, public_name
from ..formats.nifti import NIFTI2_BYTES, fields_of, head_of
from ..formats.stored_file import LocalStoredFile
from ..header import Header, affine_entries, affine_matrix
from ..volume import Volume
from .convert_plan import SCANNER, set_voxels, spacing_of
from .convert_plan import file_dtype as file_dtype
from .ome_group import image_above, is_oblique

SUFFIXES = (".nii.gz", ".nii", ".nrrd", ".mha")
"""Suffixes of files with one header in front of bare voxels."""
_MARK = "voxpipe"  # prefix of a mark in a header
_MOST_IN_NIFTI1 = 2**15 - 1  # voxels of an axis
_FLAG_BYTES = 4  # after a NIfTI header: no extensions
PIECE = 16 * 1024**2  # bytes that are compressed, copied or written at once
_LEVEL = 1  # of gzip: higher ones take several times as long for a few per cent
# Bytes of written pages that may stay mapped. A page holds rows of several boxes, and is mapped
# again for each. Predicting 512^3 float32 took 8.2 s with 32 MiB, 7.8 with 64, 7.7 with 256.
_DIRTY = 64 * 1024**2
# Bytes of unfinished rows of boxes: of float32 volumes of 512^3 four rows in the last layer.
_ROWS = 64 * 1024**2
_NOTHING = np.empty(0, np.uint8)
_LONG = mmap.PAGESIZE  # from this length on, pieces of a row are written and not mapped
_PLANES = 8  # cache lines of a set in a level-1 cache
# Errors of a file system that cannot allocate.
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
Copy = Callable[[NDArray[Any], NDArray[Any]], None]


class Writer(Protocol):
    """Function that writes a file of a format from bare voxels."""

    def __call__(
        self,
        voxels: Path,
        target: Path,
        header: Header,
        *,
        is_label: bool,
        mark: str,
        levels: int | None,
    ) -> None:
        """Write ``target`` from the file ``voxels``: (C, K, J, I) in C order, of the stored type.

        With ``is_label`` coarser levels keep voxels, and do not average them. The first 4096 bytes
        hold ``"voxpipe "`` and the word ``mark``, unless it is empty. ``levels`` is the number of
        resolutions. None is the default of the format. A function with the attribute
        ``keeps_place = False`` is not called for volumes with rotated or sheared axes. A warning
        says that it loses an origin, or mirrored or swapped axes.
        """


# An origin of fewer voxels is rounding.
_FAR = 1e-3
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


def _check_place(name: str, suffix: str, header: Header) -> None:
    """Refuse rotated axes in a format that stores only sizes; warn of other losses."""
    if is_oblique(header):
        msg = f"{name} has rotated or sheared axes, and {suffix} stores only their scale."
        do = (
            "Write .nii.gz or .ome.zarr. For voxels without a place, give "
            "⟦affine=numpy.diag([x, y, z, 1])⟧."
        )
        raise UnknownFormat(msg, do=do)
    matrix, sizes = affine_matrix(header.affine), np.array(spacing_of(header))
    losses = ["its origin"] * bool((np.abs(matrix[:3, 3]) > _FAR * sizes).any())
    losses += ["mirrored or swapped axes"] * bool((matrix.diagonal()[:3] < 0.5 * sizes).any())
    if losses:
        text = (
            f"place: {name} loses {' and '.join(losses)}, because {suffix} stores only the sizes "
            "of voxels\n  Labels and images in other files are at another place then.\n"
            "  Write .ome.zarr or .nii.gz to keep the affine."
        )
        warn(text, LikelyMistake)


def writer_of(path: str) -> Writer | None:
    """Return the writer of an installed package for the suffix of a path; None without one.

    An entry point ``voxpipe.writers`` has the name of a suffix, ``.ome.tif``. Its function writes
    a whole file from a file of bare voxels; `Writer` documents the arguments.
    """
    point = extensions("writers").get(suffix_of(path))
    if point is None:
        return None
    writer: Writer = point.load()  # its errors are raised: a suffix names it
    return writer


def suffix_of(path: str) -> str:
    """Return the suffix of a written format that a path has, the longest; empty if none."""
    name = posixpath.basename(path.replace("\\", "/")).lower()
    ends = [suffix for suffix in (*SUFFIXES, *extensions("writers")) if name.endswith(suffix)]
    return max(ends, key=len, default="")


def refuse_archive(path: str) -> None:
    """Raise UnknownFormat for a zip archive or a part of one."""
    match = re.match(r"(.+)\.(zip|ozx)(?=[/\\]|$)", path, re.IGNORECASE)
    if match and not os.path.isdir(match[0]):
        folder = public_name(match[1]).removesuffix(".zarr") + ".zarr"
        do = f"Write a folder, {folder}, and pack it without compression afterwards."
        raise UnknownFormat(f"nothing is written into the archive {public_name(match[0])}.", do=do)


def refuse_unwritable(path: str) -> str:
    """Return the suffix of a path, ``""`` for zarr; raise UnknownFormat for any other."""
    refuse_archive(path)
    suffix = suffix_of(path)
    is_zarr = path.rstrip("/").lower().endswith(".zarr") or image_above(path) is not None
    if not suffix and not is_zarr:
        msg = f"{public_name(path)} has the suffix of no format that is written."
        every = ", ".join((*SUFFIXES, *extensions("writers")))
        do = f"Let it end in .zarr or {every}."
        if "/labels/" in path:
            do = "Name the image of the labels with its suffix: {image}.ome.zarr/labels/NAME."
        raise UnknownFormat(msg, do=do)
    return suffix


def file_header(header: Header) -> Header:
    """Return the header of a file of the values, for formats without a scale."""
    own = Header.of(header.shape, file_dtype(header.dtype), affine_matrix(header.affine))
    names = getattr(header, "channel_names", ())
    extra: dict[str, Any] = {"channel_names": names} if names else {}
    return replace(own, file_unit=header.file_unit, times=header.times, **extra)


def refuse_times(header: Header, place: str, name: str) -> None:
    """Raise ``UnknownFormat`` if a volume of several time points is written without their axis."""
    if header.times.number > 1 and not getattr(writer_of(place), "keeps_times", False):
        msg = (
            f"{name} has {header.times.number} time points, and {suffix_of(place)} has no axis of "
        )
        do = "Write one, vp.Volume(path, time=0) for instance, or write .ome.zarr or .ome.tif."
        raise UnknownFormat(f"{msg}time in {public_name(place)}.", do=do)


def _nifti(header: Header, like: Any, mark: str) -> bytes:
    """Return a NIfTI header; it keeps the codes, units and other fields of ``like``."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    large = max(header.shape) > _MOST_IN_NIFTI1
    build: Any = Nifti2Header if large or isinstance(like, Nifti2Header) else Nifti1Header
    fields = build(endianness="<") if like is None else build.from_header(like.as_byteswapped("<"))
    set_voxels(fields, header, spacing_of(header) if like is None else fields.get_zooms()[:3])
    if like is None:
        fields.set_sform(affine_matrix(header.affine), code=SCANNER)
        with suppress(Exception):  # a sheared affine has no quaternion, only the sform
            fields.set_qform(affine_matrix(header.affine), code=SCANNER, strip_shears=False)
        fields.set_xyzt_units("mm")
    fields["cal_min"] = fields["cal_max"] = 0  # display range of the values of ``like``
    if mark:
        fields["descrip"] = f"{_MARK} {mark}".encode()
    size = fields.sizeof_hdr + _FLAG_BYTES
    size = -(-size // 16) * 16
    fields["vox_offset"], fields["magic"] = size, fields.single_magic
    return bytes(fields.binaryblock.ljust(size, b"\0"))


def _nrrd(header: Header, like: Any, mark: str) -> bytes:
    channels, *spatial = header.shape
    matrix = _LPS @ affine_matrix(header.affine)
    *vectors, origin = [f"({','.join(map(repr, column))})" for column in matrix.T[:, :3].tolist()]
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
        f"space origin: {origin}",
    ]
    return ("\n".join(lines) + "\n\n").encode()


def _mha(header: Header, like: Any, mark: str) -> bytes:
    matrix, spacing = _LPS @ affine_matrix(header.affine), spacing_of(header)
    directions = (matrix[:3, :3] / spacing).T.ravel().tolist()
    channels, *spatial = header.shape
    lines = [
        "ObjectType = Image",
        "NDims = 3",
        *([f"Comment = {_MARK} {mark}"] if mark else []),
        "BinaryData = True",
        "BinaryDataByteOrderMSB = False",
        "CompressedData = False",
        f"TransformMatrix = {' '.join(map(repr, directions))}",
        f"Offset = {' '.join(map(repr, matrix[:3, 3].tolist()))}",
        "CenterOfRotation = 0 0 0",
        f"ElementSpacing = {' '.join(map(repr, spacing))}",
        f"DimSize = {' '.join(map(str, spatial))}",
        *([f"ElementNumberOfChannels = {channels}"] if channels > 1 else []),
        f"ElementType = {_name_of(header.disk_dtype, _MHA_TYPES, 'MetaImage')}",
        "ElementDataFile = LOCAL",
    ]
    return ("\n".join(lines) + "\n").encode()


def _name_of(dtype: np.dtype[Any], names: Mapping[str, str], kind: str) -> str:
    name = names.get(dtype.str[1:])
    if name is None:
        raise UnknownFormat(f"{kind} has no type for {dtype}.", do="Give dtype='float32', say.")
    return name


_HEADS: dict[str, Callable[[Header, Any, str], bytes]] = {
    ".nii.gz": _nifti,
    ".nii": _nifti,
    ".nrrd": _nrrd,
    ".mha": _mha,
}


def as_stored(voxels: NDArray[Any], header: Header) -> NDArray[Any]:
    """Return the stored numbers of values, rounded and clipped to the stored type."""
    if voxels.dtype.kind == "b":
        voxels = voxels.view(np.uint8)
    if (header.slope, header.intercept) != (1.0, 0.0):
        voxels = (voxels.astype(np.float64) - header.intercept) / header.slope
    return convert_dtype(voxels, header.disk_dtype)


class VolumeFile:
    """A file that is written box by box and renamed once it is whole.

    Parameters
    ----------
    path
        Local path of the finished file, with one of ``SUFFIXES``.
    folder
        Folder of the unfinished file, on the same disk.
    header
        Shape, affine and stored type.
    like
        Volume whose header codes are kept, where both are NIfTI.
    mark
        One word in the header, for :func:`has_mark`.
    levels
        Number of resolutions, for formats of packages; None for their default.
    copy
        Function that copies a box into the file's order of axes; by default with NumPy.
    """

    is_label = False
    """Whether coarser levels of a label are written, by the writer of a package."""

    def __init__(
        self,
        path: Path,
        folder: Path,
        header: Header,
        like: Volume | None = None,
        mark: str = "",
        copy: Copy | None = None,
        levels: int | None = None,
    ) -> None:
        self.path, self._copy = path, copy or copy_turned
        self._suffix = suffix_of(path.name)
        self._writer, self._mark, self._levels = writer_of(path.name), mark, levels
        if not getattr(self._writer, "keeps_place", True):
            _check_place(public_name(str(path)), self._suffix, header)
        fields = _fields_like(like, header) if "nii" in self._suffix else None
        head = b"" if self._writer is not None else _HEADS[self._suffix](header, fields, mark)
        self._head = head
        # Whether the channels of a voxel are adjacent.
        is_apart = self._writer is not None or "nii" in self._suffix
        self._is_interleaved = not is_apart and header.shape[0] > 1
        self._part = folder / "voxels"
        self._header = header
        self._dtype = header.disk_dtype
        size = math.prod(header.shape) * self._dtype.itemsize
        # Appending keeps the voxels of a killed run.
        with open(self._part, "ab", opener=open_no_link) as file:
            file.truncate(len(head) + size)
            _allocate(file.fileno(), len(head) + size)
        with open(self._part, "r+b", opener=open_no_link) as file:
            file.write(head)
        self._voxels: NDArray[Any] | None = None
        self._dirty = 0
        # Rows of boxes along the first axis: their end so far, and their buffer.
        self._rows: dict[Region, tuple[int, Any]] = {}
        self._spare = _NOTHING  # buffer of the last row, reused for one of the same size

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        """Write the stored numbers (C, I, J, K) of a box to the file or the buffer of its row."""
        # A whole row of boxes is long pieces of the file, which are written. Other boxes are
        # mapped, which takes six times as long: each page is first read as zeros.
        row = Region((0, *region.start[1:]), (self._header.shape[1], *region.stop[1:]))
        end_i, buffer = self._rows.get(row, (0, None))
        size = self._header.shape[0] * row.size * self._dtype.itemsize
        # A row is buffered if its pieces are long, and all buffers are within the bound.
        total = sum(other.size for _, other in self._rows.values()) + size
        has_room = row.shape[1] * self._row_bytes >= _LONG and total <= _ROWS
        if region.start[0] != end_i or (buffer is None and not has_room):
            self._write_mapped(region, voxels)
            return
        if buffer is None:
            buffer = self._spare if self._spare.size == size else np.empty(size, np.uint8)
            self._spare = _NOTHING
        place = (slice(None), slice(end_i, region.stop[0]))
        self._copy(voxels, self._in_order(buffer, row)[place])
        self._rows[row] = (region.stop[0], buffer)
        if region.stop[0] == row.stop[0]:
            self._write_row(row)

    def flush(self) -> None:
        """Write the unfinished rows."""
        for row, (end_i, buffer) in self._rows.items():
            box = Region(row.start, (end_i, *row.stop[1:]))
            self._write_mapped(box, self._in_order(buffer, row)[:, :end_i])
        self._rows.clear()

    @property
    def _row_bytes(self) -> int:
        """Contiguous bytes along the first axis."""
        channels, row, _, _ = self._header.shape
        return row * self._dtype.itemsize * (channels if self._is_interleaved else 1)

    def _in_order(self, numbers: NDArray[Any], box: Region) -> NDArray[Any]:
        """Return bytes of a whole box, in the file's order, as an array (C, I, J, K)."""
        flat, channels, (i, j, k) = numbers.view(self._dtype), self._header.shape[0], box.shape
        if self._is_interleaved:
            return flat.reshape((channels, i, j, k), order="F")
        return np.moveaxis(flat.reshape((i, j, k, channels), order="F"), -1, 0)

    def _write_row(self, row: Region) -> None:
        _, buffer = self._rows.pop(row)
        channels, _, rows, planes = self._header.shape
        channels = 1 if self._is_interleaved else channels
        piece, view = row.shape[1] * self._row_bytes, memoryview(buffer)
        with open(self._part, "r+b", opener=open_no_link) as file:
            places = itertools.product(range(channels), range(row.start[2], row.stop[2]))
            for number, (channel, k) in enumerate(places):
                at = ((channel * planes + k) * rows + row.start[1]) * self._row_bytes
                file.seek(len(self._head) + at)
                file.write(view[number * piece : (number + 1) * piece])
        self._spare = buffer

    def _write_mapped(self, region: Region, voxels: NDArray[Any]) -> None:
        shape, itemsize = self._header.shape, self._dtype.itemsize
        if self._voxels is None:
            with open(self._part, "r+b", opener=open_no_link) as file:
                pages = mmap.mmap(file.fileno(), 0)
            numbers = np.frombuffer(pages, np.uint8, offset=len(self._head))
            self._voxels = self._in_order(numbers, Region.of_shape(shape[1:]))
        self._copy(voxels, self._voxels[(slice(None), *region.slices)])
        # The approximate bytes of pages that a box touches: at least a page per row.
        i, j, k = region.shape
        count, inner = (1, shape[0]) if self._is_interleaved else (shape[0], 1)
        least = min(mmap.PAGESIZE, shape[1] * inner * itemsize)
        self._dirty += count * j * k * max(least, i * inner * itemsize)
        if self._dirty > _DIRTY:  # mapped pages count as memory of this process
            self.release()

    def release(self) -> None:
        """Release the map; the file has the written voxels."""
        # Not closed: a traceback may hold a view, and the error of closing would hide its error.
        self._voxels, self._dirty = None, 0

    def finish(self) -> None:
        """Write the unfinished rows, compress a ``.gz`` or call the writer; rename the file."""
        self.flush()
        self.release()
        part = self._part
        if self._writer is not None:
            part = part.with_name("written")
            how: Any = {"is_label": self.is_label, "mark": self._mark, "levels": self._levels}
            self._writer(self._part, part, self._header, **how)
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
    """Allocate a file: on a full disk, writing to its map would kill the process by a signal."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, max(1, size))
        except OSError as error:
            if error.errno not in _NO_ALLOCATION:
                raise


def copy_turned(voxels: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy (C, I, J, K) to a target whose first spatial axis is contiguous."""
    if voxels.strides[1] == voxels.itemsize:
        target[...] = voxels
        return
    # Planes of I are usually a power of two apart and share few cache lines. Copying all of them
    # at once would evict each line before its next voxel; this takes a fourth of that time.
    for start in range(0, voxels.shape[1], _PLANES):
        planes = slice(start, start + _PLANES)
        target[:, planes] = voxels[:, planes]


def _compress(source: Path, target: Path) -> None:
    """Compress a file by gzip without name and time, so equal voxels give equal bytes."""
    try:
        from isal import isal_zlib

        packer: Any = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, 31)
    except ImportError:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    with open(source, "rb") as plain, open(target, "wb", opener=open_no_link) as out:
        while piece := plain.read(PIECE):
            out.write(packer.compress(piece))
        out.write(packer.flush())


def _fields_like(like: Volume | None, header: Header) -> Any:
    """Return nibabel's header of a NIfTI file on the grid of ``header``; None otherwise."""
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


_HEAD = 4096  # bytes in which a mark is searched
