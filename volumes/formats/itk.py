"""What SimpleITK reads and voxpipe does not, and images that SimpleITK has in memory.

The header is read without voxels. These are decoded once, into the cache directory, and
mapped from there: ITK's readers decode everything for any region, but for a few formats.
Some do not notice that a file ends early, or claims more than it holds, and hand out whatever the
memory held (SimpleITK 2.5.7). So what such a file must hold is counted here, before it is read.
"""

from __future__ import annotations

import importlib
import math
import mmap
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
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
from ..array_source import ArraySource
from ..backend import Backend
from ..header import affine_entries
from ..registry import BackendRequest
from .hdf5 import refuse_leading_on
from .raw import LocalRaw, RawHeader, fold, world_affine
from .stored_file import Format, LocalStoredFile, StoredFile, open_local

# Bytes before uncompressed voxels, by ITK's reader: GIPL 1.0 and MRC 2014.
_HEADERS = {"GiplImageIO": 256, "MRCImageIO": 1024}
# Where a bitmap says how long it is.
_BMP_SIZE = slice(2, 6)
# The lines before the voxels in a legacy VTK file of the kind that ITK reads.
_VTK_END = re.compile(rb"\n(LOOKUP_TABLE|VECTORS|TENSORS|COLOR_SCALARS)[ \t]+\S[^\n]*\n\Z")
_VTK_BINARY = re.compile(rb"\A# vtk [^\n]*\n[^\n]*\nBINARY[ \t]*\n")
_VTK_HEADER_BYTES = 4096
_JPEG_END = b"\xff\xd9"
_ENDS_BYTES = 64
# Of all that ITK decodes: the sparsest JPEG stores a block of 192 bytes in 3 bits, and deflate
# makes 1032 bytes of one.
_BEST_RATIO = 2000
# A bitmap's header says how many colours its palette has; a palette is for up to 8 bits.
_BMP_COLOURS = struct.Struct("<46xI")
_MOST_COLOURS = 256
# DICOM PS3.5: values of these types have a length of 4 bytes after 2 that are reserved.
_LONG_TYPES = frozenset((b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN"))
_LONG_TYPES |= frozenset((b"UR", b"UT", b"UV"))
_DICOM_MAGIC, _DICOM_MAGIC_AT = b"DICM", 128
_PIXELS, _ITEMS, _SYNTAX = (0x7FE0, 0x0010), 0xFFFE, (0x0002, 0x0010)
_META, _FIRST_GROUPS = 0x0002, (0x0002, 0x0008)
_UNDEFINED = 2**32 - 1
# Images of thousands of frames have some fifty for each; these are looked at in seconds.
_MOST_ELEMENTS = 2**22
_IMPLICIT, _BIG = b"1.2.840.10008.1.2", b"1.2.840.10008.1.2.2"
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_DEFLATED = b"1.2.840.10008.1.2.1.99"


def check_claims(path: str, name: str, follow: str = "beside") -> None:
    """Raise ``BadHeader`` for a header that makes ITK take memory for what the file does not hold.

    Of DICOM and bitmaps; readers of other formats take it when voxels are decoded. Of HDF5, under
    whatever name, also for what leads to other files, unless ``follow`` is ``"anywhere"``, and for
    what leads back to itself.
    """
    with open_local(path) as file:
        size = os.fstat(file.fileno()).st_size
        if _is_hdf5(file, size):
            refuse_leading_on(path, name, follow)
            return
        file.seek(0)
        head = file.read(_DICOM_MAGIC_AT + len(_DICOM_MAGIC))
        if head[:2] == b"BM" and len(head) >= _BMP_COLOURS.size:
            (colours,) = _BMP_COLOURS.unpack_from(head)
            if colours > _MOST_COLOURS:
                raise _claims(name, f"a palette of {colours} colours")
        is_dicom = head[_DICOM_MAGIC_AT:] == _DICOM_MAGIC
        begins = len(head) >= 8 and int.from_bytes(head[:2], "little") in _FIRST_GROUPS
        if not is_dicom and not begins:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _check_elements(data, size, len(head) if is_dicom else 0, name)


def _is_hdf5(file: BinaryIO, size: int) -> bool:
    """Whether HDF5 finds its signature: at the beginning, or at 512 bytes, 1024, 2048 and so on."""
    at = 0
    while at < size:
        file.seek(at)
        if file.read(len(_HDF5_MAGIC)) == _HDF5_MAGIC:
            return True
        at = 2 * at or 512
    return False


def _check_elements(data: Any, size: int, at: int, name: str) -> None:
    """Follow the elements of a DICOM file up to its pixels, sequences entered."""
    syntax, order, count = b"", "<", 0
    while at + 8 <= size:
        count += 1
        if count > _MOST_ELEMENTS:
            raise _claims(name, f"more than {_MOST_ELEMENTS} elements before its pixels")
        is_meta = data[at : at + 2] == b"\x02\x00"
        order = ">" if syntax == _BIG and not is_meta else "<"
        group, element = struct.unpack_from(f"{order}2H", data, at)
        kind = data[at + 4 : at + 6]
        length_at, width = at + 4, 4
        is_explicit = is_meta or syntax != _IMPLICIT
        if is_explicit and group != _ITEMS and kind.isalpha() and kind.isupper():
            is_long = kind in _LONG_TYPES
            length_at, width = (at + 8, 4) if is_long else (at + 6, 2)
        field = data[length_at : length_at + width]
        length, start = (
            int.from_bytes(field, "big" if order == ">" else "little"),
            length_at + width,
        )
        if (group, element) == _PIXELS and length == _UNDEFINED:
            return
        if length != _UNDEFINED and length > size - start:
            raise _claims(name, f"{length} bytes of element ({group:04x},{element:04x})")
        if (group, element) == _SYNTAX:
            syntax = data[start : start + length].rstrip(b"\0 ")
        if group != _META and syntax == _DEFLATED:
            return
        # Sequences and items are entered: what is in them has lengths as well.
        enters = length == _UNDEFINED or group == _ITEMS or kind == b"SQ"
        at = start if enters else start + length


def _claims(name: str, what: str) -> BadHeader:
    return BadHeader(
        f"{name} speaks of {what}, which it does not hold.", do="Copy or download the file again."
    )


def check_end(file: StoredFile, image_io: str, voxel_bytes: int) -> None:
    """Raise ``TruncatedVolume`` for a file that is too short, where its format lets us tell."""
    check_ratio(file, voxel_bytes)
    if image_io in _HEADERS:
        if file.head(2) == b"\x1f\x8b":
            raise UnknownFormat(
                f"{file.name} is compressed, and SimpleITK's {image_io} would not notice damage.",
                do="Decompress it first.",
            )
        _check(file, file.size >= _HEADERS[image_io] + voxel_bytes, voxel_bytes)
    elif image_io == "VTKImageIO":
        _check_vtk(file, voxel_bytes)
    elif image_io == "TIFFImageIO":
        raise UnknownFormat(
            f"{file.name} is a TIFF, of which SimpleITK would not notice that it ends early.",
            do="pip install tifffile, or convert it to .nii or zarr.",
        )
    elif image_io == "BMPImageIO":
        told = int.from_bytes(file.head(_BMP_SIZE.stop)[_BMP_SIZE], "little")
        _check(file, file.size >= told, voxel_bytes)
    elif image_io == "JPEGImageIO":
        _check(file, _JPEG_END in _tail(file), voxel_bytes)
    elif image_io == "NrrdImageIO":
        # Text: a cut last number is a number as well, so a blank must follow it.
        _check(file, _tail(file)[-1:].isspace(), voxel_bytes)


def check_ratio(file: StoredFile, voxel_bytes: int) -> None:
    """Raise ``TruncatedVolume`` for a file whose bytes cannot decode to so many."""
    _check(file, voxel_bytes <= _BEST_RATIO * file.size, voxel_bytes)


def _check_vtk(file: StoredFile, voxel_bytes: int) -> None:
    head = file.head(_VTK_HEADER_BYTES)
    if not _VTK_BINARY.match(head):
        raise UnknownFormat(
            f"{file.name} is no binary VTK file, and SimpleITK would not notice damage in it.",
            do="Write it as binary, or as .nii or .mha.",
        )
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
        raise TruncatedVolume(
            f"{file.name} holds {file.size} bytes and ends early: its header speaks of "
            f"{voxel_bytes} bytes of voxels.",
            do="Copy or download the file again.",
        )


# ITK's readers that read a part of a file: these are decoded slab by slab.
_STREAMING = ("MetaImageIO", "VTKImageIO", "MRCImageIO")
# Memory of one slab.
_SLAB_BYTES = 64 * 1024**2
_NUMBERS = {
    "Int8": "i1",
    "UInt8": "u1",
    "Int16": "i2",
    "UInt16": "u2",
    "Int32": "i4",
    "UInt32": "u4",
    "Int64": "i8",
    "UInt64": "u8",
    "Float32": "f4",
    "Float64": "f8",
}


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
    # It opens what it is asked about, and would wait for the writer of a pipe.
    if not os.path.isfile(path) or not is_installed():
        return False
    try:
        check_claims(path, path, request.follow)
    except (BadHeader, MissingDependency):
        return True  # whoever opens it is told
    except OSError:
        return False
    return bool(_reader(path).GetImageIOFromFileName(path))


def _open(request: BackendRequest, name: str) -> Backend:
    return open_itk(os.fspath(request.path or ""), name, request.follow)


def open_itk(path: str, name: str, follow: str = "beside") -> Backend:
    """Open any file that SimpleITK reads; only the header is read."""
    file = LocalStoredFile(path, name)
    reader = _informed(path, name, follow)
    fields, image_io = _fields(reader, name), _image_io(reader)
    check_end(file, image_io, fields.voxel_bytes)
    voxels = _ItkVoxels(path, name, fields, reader.GetSize(), image_io)
    IO_COUNTERS.count(headers=1)
    return LocalRaw(fields, [file], name, voxels.write)


def open_with_itk(file: StoredFile, why: str, data_files: Sequence[str]) -> Backend:
    """Open a local file, for a reason, which names others; ``UnknownFormat`` where that fails."""
    if not isinstance(file, LocalStoredFile):
        raise UnknownFormat(
            f"{file.name} can only be read from a local disk: {why}.",
            do="Copy it, or write it again in one piece, raw or with gzip.",
        )
    if not is_installed():
        raise UnknownFormat(
            f"{file.name} can only be read with SimpleITK: {why}.",
            do="pip install SimpleITK, or write it again in one piece, raw or with gzip.",
        )
    for name in data_files:
        file.beside(name)  # a plain file, and not outside the folder
    return open_itk(file.path, file.name, file.follow)


def header_of(path: str, name: str) -> RawHeader:
    """Return what the header of a file says about its voxels."""
    return _fields(_informed(path, name), name)


def planes_of(path: str, name: str, fields: RawHeader) -> NDArray[Any]:
    """Return all voxels of a small file, in C order; they must be what ``fields`` says."""
    size = _informed(path, name).GetSize()
    return _ItkVoxels(path, name, fields, size, "").slab(0, size[-1])


def _informed(path: str, name: str, follow: str = "beside") -> Any:
    """Return a reader that has read the header."""
    check_claims(path, name, follow)
    reader = _reader(path)
    try:
        reader.ReadImageInformation()
    except RuntimeError as error:
        raise BadHeader(
            f"{name} cannot be read by SimpleITK: {_reason(error)}.", do="Check the file."
        ) from None
    return reader


def from_itk(image: Any, affine: tuple[float, ...] | None) -> ArraySource:
    """Return the source of a ``SimpleITK.Image``; its voxels are not copied.

    (C, I, J, K) are its components and axes in SimpleITK's order, and its affine, unless another
    is given, turns LPS into RAS.
    """
    itk = simpleitk()
    # A copy shares the voxels until one of the two is written to.
    own = itk.Image(image)
    name = f"SimpleITK image {own.GetSize()} {own.GetPixelIDTypeAsString()}"
    fields = _fields(own, name)
    array = fields.view(np.asarray(_Memory(itk.GetArrayViewFromImage(own), own)))
    array = fold(array, (0, fields.channels), fields.channels)
    if affine is not None:
        fields = RawHeader(fields.shape, fields.dtype, 0, affine, axes=fields.axes)
    return ArraySource(array, fields.header("view"), name)


class _Memory:
    """The memory of an image as NumPy sees it; SimpleITK's own view does not keep it alive."""

    def __init__(self, view: NDArray[Any], owner: Any) -> None:
        self.__array_interface__ = view.__array_interface__
        self._owner = owner


@dataclass(frozen=True)
class _ItkVoxels:
    """Decodes the voxels of a file, in one piece or slab by slab."""

    path: str
    name: str
    fields: RawHeader
    size: tuple[int, ...]
    image_io: str

    def write(self, raw: BinaryIO) -> None:
        """Write all voxels, the fastest axis first."""
        whole = self.fields.voxel_bytes
        step = self.size[-1]
        if self.image_io in _STREAMING:
            step = max(1, min(step, _SLAB_BYTES * step // whole))
        elif 0 < usable_memory() < whole:
            raise VolumeTooLarge(
                f"{self.name} decodes to {whole} bytes, all of which SimpleITK needs at once.",
                do="Convert it to .nii or zarr on a machine with more memory.",
            )
        for first in range(0, self.size[-1], step):
            count = min(step, self.size[-1] - first)
            raw.write(self.slab(first, count).data)

    def slab(self, first: int, count: int) -> NDArray[Any]:
        """Return planes along the last axis, C order."""
        itk = simpleitk()
        reader = _reader(self.path)
        size = (*self.size[:-1], count)
        if count < self.size[-1]:
            reader.SetExtractIndex((*(0 for _ in self.size[:-1]), first))
            reader.SetExtractSize(size)
        try:
            image = reader.Execute()
        except (RuntimeError, MemoryError) as error:
            raise CorruptVolume(
                f"{self.name} cannot be decoded by SimpleITK: {_reason(error)}.",
                do="Copy or download the file again.",
            ) from None
        array: NDArray[Any] = itk.GetArrayFromImage(image)
        expected = math.prod(self.fields.shape) // self.size[-1] * count
        if image.GetSize() != size or array.size != expected or array.dtype != self.fields.dtype:
            raise CorruptVolume(
                f"{self.name} decodes to {image.GetSize()} {array.dtype.name}, and its header "
                f"speaks of {size} {self.fields.dtype.name}.",
                do="Check how the file was written.",
            )
        return np.ascontiguousarray(array)


def _reader(path: str) -> Any:
    itk = simpleitk()
    # Its warnings go to the terminal, past Python's; what matters is raised.
    itk.ProcessObject.SetGlobalWarningDisplay(False)
    reader = itk.ImageFileReader()
    reader.SetFileName(path)
    return reader


def _image_io(reader: Any) -> str:
    return str(reader.GetImageIO() or reader.GetImageIOFromFileName(reader.GetFileName()))


def _fields(image: Any, name: str) -> RawHeader:
    """Return what an image, or a reader that has read a header, says about the voxels."""
    size = tuple(int(n) for n in image.GetSize())
    count = len(size)
    pixel = image.GetPixelIDValue()
    components = _components(image)
    dtype, is_vector = _pixel_type(pixel, name)
    if not 1 <= count <= 5 or min(size) < 1 or components < 1:
        raise BadHeader(f"{name} holds no voxels: shape {size}.", do="Check the file.")
    matrix = np.array(image.GetDirection()).reshape(count, count) * np.array(image.GetSpacing())
    affine = world_affine([matrix[:, axis] for axis in range(min(count, 3))], image.GetOrigin()[:3])
    entries, colours = affine_entries(affine, name), components if is_vector else 1
    return RawHeader.of_sizes(size, dtype, 0, entries, colours=colours)


def _components(image: Any) -> int:
    """Return how many numbers a voxel has; readers and images call it differently."""
    ask = getattr(image, "GetNumberOfComponents", None) or image.GetNumberOfComponentsPerPixel
    return int(ask())


def _pixel_type(pixel: int, name: str) -> tuple[np.dtype[Any], bool]:
    """Return the type of the numbers, and whether a voxel may have several of them."""
    itk = simpleitk()
    for prefix in ("sitk", "sitkVector"):
        for text, code in _NUMBERS.items():
            if getattr(itk, prefix + text) == pixel:
                return np.dtype(code), prefix == "sitkVector"
    for text, code in (("Float32", "c8"), ("Float64", "c16")):
        if getattr(itk, f"sitkComplex{text}") == pixel:
            return np.dtype(code), False
    what = itk.GetPixelIDValueAsString(pixel)
    raise UnknownFormat(
        f"{name} holds voxels of SimpleITK's type {what}, which are no plain numbers.",
        do="Cast the image, for instance to sitkInt16.",
    )


def _reason(error: BaseException) -> str:
    """Return the sentence of an ITK error that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1].rstrip(".")


# The last: it looks into the file, and imports SimpleITK for it.
FORMATS = (Format("simpleitk", (), _open, matches=_reads, rank=2),)
