"""Volumes that SimpleITK reads and voxpipe does not, and images in memory.

The header is read without voxels. These are decoded once, into the cache directory, and
mapped from there: ITK's readers decode everything for any region, but for a few formats.
Some do not notice a file that ends early, or claims more than it holds, and return uninitialised
memory (SimpleITK 2.5.7). So the size of such a file is checked here, before it is read.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS
from ...core.errors import (
    BadHeader,
    CorruptVolume,
    MissingDependency,
    TruncatedVolume,
    UnknownFormat,
    VolumeTooLarge,
)
from ...core.memory import usable_memory
from ...volumes.array_source import ArraySource, from_array
from ...volumes.backend import Backend
from ...volumes.formats.chunked_backend import warn_of_coordinates
from ...volumes.formats.raw import LocalRaw, RawHeader, fastest_first, world_affine
from ...volumes.formats.stored_file import Format, LocalStoredFile, StoredFile
from ...volumes.header import IDENTITY, affine_entries
from ...volumes.registry import BackendRequest, unknown_format
from ...volumes.source import Options
from .hdf5 import refuse_leading_on
from .tiff_metadata import is_usual_resolution

# Bytes before uncompressed voxels, by ITK's reader: GIPL 1.0.
_HEADERS = {"GiplImageIO": 256}
# Where a bitmap says how long it is.
_BMP_SIZE = slice(2, 6)
# The lines before the voxels in a legacy VTK file of the kind that ITK reads.
_VTK_END = re.compile(rb"\n(LOOKUP_TABLE|VECTORS|TENSORS|COLOR_SCALARS)[ \t]+\S[^\n]*\n\Z")
_VTK_BINARY = re.compile(rb"\A# vtk [^\n]*\n[^\n]*\nBINARY[ \t]*\n")
_VTK_HEADER_BYTES = 4096
_JPEG_END = b"\xff\xd9"
_ENDS_BYTES = 64
# Best compression that ITK decodes: the sparsest JPEG stores 192 bytes in 3 bits, and deflate
# makes 1032 bytes of one.
_BEST_RATIO = 2000
# A bitmap's header says how many colours its palette has; a palette is for up to 8 bits.
_BMP_COLOURS = struct.Struct("<46xI")
_MOST_COLOURS = 256
# The first group of a DICOM file without a preamble: GDCM believes any length in it.
_DICOM_GROUPS = (b"\x02\0", b"\x08\0")
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


def check_claims(path: str, name: str, follow: str = "same_folder") -> None:
    """Raise ``BadHeader`` for a header that makes ITK take more memory than its file holds.

    Only bitmaps and HDF5 files under any name are checked; readers of other formats take memory
    when voxels are decoded. HDF5 files may not link in a circle, nor to other files unless
    ``follow`` is ``"anywhere"``.
    """
    with LocalStoredFile(path).open() as file:
        size = os.fstat(file.fileno()).st_size
        if _is_hdf5(file, size):
            refuse_leading_on(path, name, follow)
            return
        file.seek(0)
        head = file.read(_BMP_COLOURS.size)
        if head[:2] == b"BM" and len(head) >= _BMP_COLOURS.size:
            (colours,) = _BMP_COLOURS.unpack_from(head)
            if colours > _MOST_COLOURS:
                what = f"{name} declares a palette of {colours} colours, more than a BMP holds."
                raise BadHeader(what)


def _is_hdf5(file: BinaryIO, size: int) -> bool:
    """Whether HDF5 finds its signature: at the beginning, or at 512 bytes, 1024, 2048 and so on."""
    at = 0
    while at < size:
        file.seek(at)
        if file.read(len(_HDF5_MAGIC)) == _HDF5_MAGIC:
            return True
        at = 2 * at or 512
    return False


def check_end(file: StoredFile, image_io: str, voxel_bytes: int) -> None:
    """Raise ``TruncatedVolume`` for a file that is too short, if its format shows it."""
    _check(file, voxel_bytes <= _BEST_RATIO * file.size, voxel_bytes)
    if image_io in _HEADERS:
        if file.head(2) == b"\x1f\x8b":
            msg = f"{file.name} is compressed, and SimpleITK's {image_io} would not notice damage."
            raise UnknownFormat(msg, do="Decompress it first.")
        _check(file, file.size >= _HEADERS[image_io] + voxel_bytes, voxel_bytes)
    elif image_io == "VTKImageIO":
        _check_vtk(file, voxel_bytes)
    elif image_io == "TIFFImageIO":
        msg = f"{file.name} is a TIFF, of which SimpleITK would not notice that it ends early."
        do = "Name it .tif, by which tifffile opens it, or convert it to .nii or zarr."
        raise UnknownFormat(msg, do=do)
    elif image_io == "BMPImageIO":
        length = int.from_bytes(file.head(_BMP_SIZE.stop)[_BMP_SIZE], "little")
        _check(file, file.size >= length, voxel_bytes)
    elif image_io == "JPEGImageIO":
        _check(file, _JPEG_END in _tail(file), voxel_bytes)
    elif image_io == "NrrdImageIO" and not _tail(file)[-1:].isspace():
        # Text: a cut last number is a number as well, so a blank must follow it.
        msg = f"{file.name} does not end with a line feed, so its last number may be cut."
        raise TruncatedVolume(msg, do="Append a line feed if it is whole, or write it as raw.")


def _check_vtk(file: StoredFile, voxel_bytes: int) -> None:
    head = file.head(_VTK_HEADER_BYTES)
    if not _VTK_BINARY.match(head):
        what = f"{file.name} is no binary VTK file, and SimpleITK would not notice damage in it."
        raise UnknownFormat(what, do="Write it as binary, or as .nii or .mha.")
    # Some writers end the file with a line feed.
    for end in (file.size, file.size - 1):
        if 0 < end - voxel_bytes <= len(head) and _VTK_END.search(head[: end - voxel_bytes]):
            return
    _check(file, False, voxel_bytes)


def _tail(file: StoredFile) -> bytes:
    with file.open() as stream:
        stream.seek(max(0, file.size - _ENDS_BYTES))
        return stream.read()


def _check(file: StoredFile, is_whole: bool, voxel_bytes: int) -> None:
    if not is_whole:
        msg = f"{file.name} holds {file.size} bytes and ends early: its header declares"
        raise TruncatedVolume(f"{msg} {voxel_bytes} bytes of voxels.")


# Pictures have no place in the world: these formats have a resolution of the print at most.
_PICTURES = ("PNGImageIO", "JPEGImageIO", "JPEG2000ImageIO", "BMPImageIO")
_INCH = 25.4  # millimetres
# ITK's readers that read a part of a file: these are decoded slab by slab.
_STREAMING = ("MetaImageIO", "VTKImageIO")
# Memory of one slab.
_SLAB_BYTES = 64 * 1024**2
_NUMBERS = [f"{kind}Int{bits}" for bits in (8, 16, 32, 64) for kind in ("", "U")]
_NUMBERS += ["Float32", "Float64"]


def is_installed() -> bool:
    """Whether SimpleITK can be imported."""
    try:
        simpleitk()
    except ImportError:
        return False
    return True


def simpleitk() -> Any:
    """Return the module SimpleITK, which has no types."""
    return importlib.import_module("SimpleITK")


def _reads(request: BackendRequest) -> bool:
    """Whether SimpleITK is installed and recognises a file, by its name or its beginning."""
    path = os.fspath(request.path or "")
    # SimpleITK opens the file, and would wait for the writer of a pipe.
    if not os.path.isfile(path) or not is_installed():
        return False
    try:
        check_claims(path, path, request.follow)
        with LocalStoredFile(path).open() as file:
            if file.read(2) in _DICOM_GROUPS:
                return False
    except (BadHeader, MissingDependency):
        return True  # opening the file raises this error
    except OSError:
        return False
    return bool(_reader(path).GetImageIOFromFileName(path))


def open_itk(
    path: str, name: str, follow: str = "same_folder", others: Sequence[StoredFile] = ()
) -> Backend:
    """Open any file that SimpleITK reads, by its header; ``others`` hold its voxels."""
    file = LocalStoredFile(path, name)
    check_claims(path, name, follow)
    reader = _reader(path)
    try:
        reader.ReadImageInformation()
    except RuntimeError as error:
        raise BadHeader(f"{name} cannot be read by SimpleITK: {_reason(error)}.") from None
    fields, size = _fields(reader, name), reader.GetSize()
    image_io = str(reader.GetImageIO() or reader.GetImageIOFromFileName(path))
    if image_io == "MRCImageIO":
        # SimpleITK takes its angstrom for millimetres, and signed bytes for unsigned ones.
        raise unknown_format(name, ("MRC",))
    check_end(file, image_io, fields.voxel_bytes)
    if image_io in _PICTURES:
        # As in a plain TIFF: ITK's default directions would flip x and y.
        fields = replace(fields, affine=IDENTITY)
        _warn_of_resolution(reader.GetSpacing(), name)

    def write(raw: BinaryIO) -> None:
        whole, step = fields.voxel_bytes, size[-1]
        if image_io in _STREAMING:
            step = max(1, min(step, _SLAB_BYTES * step // whole))
        elif 0 < usable_memory() < whole:
            msg = f"{name} decodes to {whole} bytes, all of which SimpleITK needs at once."
            do = "Convert it to .nii or zarr on a machine with more memory."
            raise VolumeTooLarge(msg, do=do)
        for first in range(0, size[-1], step):
            count = min(step, size[-1] - first)
            raw.write(_slab(path, name, fields, size, first, count).data)

    IO_COUNTERS.count(headers=1)
    return LocalRaw(fields, [*others, file], name, write)


def _warn_of_resolution(spacing: Sequence[float], name: str) -> None:
    """Warn of a resolution of a picture, which is not read; usual ones have no meaning."""
    x, y, *_ = spacing
    is_usual = x == y and (x == 1 or is_usual_resolution(_INCH / x))
    warn_of_coordinates([] if is_usual else ["pixels per length"], name, "resolutions in")


def open_with_itk(file: StoredFile, why: str, data_files: Sequence[str]) -> Backend:
    """Open a local file, for a reason, which names others; ``UnknownFormat`` where that fails."""
    if not isinstance(file, LocalStoredFile) or not is_installed():
        how = "with SimpleITK" if isinstance(file, LocalStoredFile) else "from a local disk"
        do = "Write it again in one piece, raw or with gzip, or copy it to a local disk and "
        do += "pip install SimpleITK."
        raise UnknownFormat(f"{file.name} can only be read {how}: {why}.", do=do)
    # Each is a plain file, and not outside the folder.
    others = [file.beside(name) for name in data_files]
    return open_itk(file.path, file.name, file.follow, others)


def from_itk(image: Any, options: Options) -> ArraySource | None:
    """Return the source of an image of the package itk, of two or three axes; copies its voxels.

    Its affine, unless another is given, turns LPS into RAS.
    """
    if not hasattr(image, "GetDirection"):
        return None
    count, name = int(image.GetImageDimension()), type(image).__name__
    if count not in (2, 3):
        what = f"an {name} of itk has {count} axes, and an image with a place in the world 2 or 3."
        raise UnknownFormat(what, do="Give its parts of three axes.")
    array = importlib.import_module("itk").array_from_image(image).T  # (x, y, z), after components
    array = array[..., None] if count == 2 else array
    columns = np.asarray(image.GetDirection()) * np.array(list(image.GetSpacing()))
    first = image.TransformIndexToPhysicalPoint(image.GetBufferedRegion().GetIndex())
    own = affine_entries(world_affine(list(columns.T), list(first)), name)
    return from_array(array, options.affine or own, is_image=True)


def from_simpleitk(image: Any, options: Options) -> ArraySource | None:
    """Return the source of a ``SimpleITK.Image``; its voxels are not copied.

    (C, I, J, K) are its components and axes in SimpleITK's order, and its affine, unless another
    is given, turns LPS into RAS.
    """
    itk, affine = simpleitk(), options.affine
    if not isinstance(image, itk.Image):
        return None
    # A copy shares the voxels until one of the two is written to.
    own = itk.Image(image)
    name = f"SimpleITK image {own.GetSize()} {own.GetPixelIDTypeAsString()}"
    fields = _fields(own, name)
    array = np.asarray(_Memory(itk.GetArrayViewFromImage(own), own))
    array = fields.layout.fold(array.reshape(fields.layout.sizes))
    return ArraySource(array, replace(fields, affine=affine or fields.affine).header("view"), name)


class _Memory:
    """The memory of an image as NumPy sees it; SimpleITK's own view does not keep it alive."""

    def __init__(self, view: NDArray[Any], owner: Any) -> None:
        self.__array_interface__ = view.__array_interface__
        self._owner = owner


def _slab(
    path: str, name: str, fields: RawHeader, shape: Sequence[int], first: int, count: int
) -> NDArray[Any]:
    """Return planes of a file along its last axis, C order; they must match ``fields``."""
    reader, size = _reader(path), (*shape[:-1], count)
    if count < shape[-1]:
        reader.SetExtractIndex((*(0 for _ in shape[:-1]), first))
        reader.SetExtractSize(size)
    try:
        image = reader.Execute()
    except (RuntimeError, MemoryError) as error:
        what = f"{name} cannot be decoded by SimpleITK: {_reason(error)}."
        raise CorruptVolume(what) from None
    array: NDArray[Any] = simpleitk().GetArrayFromImage(image)
    total = math.prod(fields.layout.sizes) // shape[-1] * count
    if image.GetSize() != size or array.size != total or array.dtype != fields.dtype:
        msg = f"{name} decodes to {image.GetSize()} {array.dtype.name}"
        raise CorruptVolume(f"{msg}, and its header declares {size} {fields.dtype.name}.")
    return np.ascontiguousarray(array)


def _reader(path: str) -> Any:
    itk = simpleitk()
    # Its warnings go to the terminal, past Python's; serious ones are raised.
    itk.ProcessObject.SetGlobalWarningDisplay(False)
    reader = itk.ImageFileReader()
    reader.SetFileName(path)
    return reader


def _fields(image: Any, name: str) -> RawHeader:
    """Return the voxels' header of an image, or of a reader that has read a header."""
    size = tuple(int(n) for n in image.GetSize())
    count = len(size)
    dtype, is_vector = _pixel_type(image.GetPixelIDValue(), name)
    # Readers and images call it differently.
    ask = getattr(image, "GetNumberOfComponents", None) or image.GetNumberOfComponentsPerPixel
    components = int(ask())
    if not 1 <= count <= 5 or min(size) < 1 or components < 1:
        raise BadHeader(f"{name} holds no voxels: shape {size}.")
    matrix = np.array(image.GetDirection()).reshape(count, count) * np.array(image.GetSpacing())
    affine = world_affine([matrix[:, axis] for axis in range(min(count, 3))], image.GetOrigin()[:3])
    layout = fastest_first(size, colours=components if is_vector else 1)
    return RawHeader(layout, dtype, 0, affine_entries(affine, name))


def _pixel_type(pixel: int, name: str) -> tuple[np.dtype[Any], bool]:
    """Return the type of the numbers, and whether a voxel may have several of them."""
    itk = simpleitk()
    for prefix in ("sitk", "sitkVector", "sitkComplex"):
        for text in _NUMBERS:
            if getattr(itk, prefix + text, None) == pixel:
                dtype = np.dtype(text.lower())
                is_complex = prefix == "sitkComplex"
                dtype = np.dtype(f"c{2 * dtype.itemsize}") if is_complex else dtype
                return dtype, prefix == "sitkVector"
    what = itk.GetPixelIDValueAsString(pixel)
    msg = f"{name} holds voxels of SimpleITK's type {what}, which are no plain numbers."
    raise UnknownFormat(msg, do="Cast the image, for instance to sitkInt16.")


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1].rstrip(".")


def _open(request: BackendRequest, name: str) -> Backend:
    return open_itk(os.fspath(request.path or ""), name, request.follow)


# The last: it looks into the file, and imports SimpleITK for it.
FORMATS = Format("simpleitk", (), _open, needs="SimpleITK", matches=_reads, rank=2)
