"""Files that end early, or claim more than they hold, which some of ITK's readers do not notice.

They hand out whatever the memory held where the file had no more (seen with SimpleITK
2.5.7: cut files of the formats below are read without a word). So what such a file must
hold is counted here, before it is read.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from typing import Any, BinaryIO

from ...core.errors import BadHeader, TruncatedVolume, UnknownFormat
from ..local_file import open_local
from .hdf5 import refuse_leading_on
from .stored_file import StoredFile

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
    """Raise ``TruncatedVolume`` for a file that is too short, where its format lets us tell.

    Parameters
    ----------
    file
        A local file.
    image_io
        ITK's reader of it.
    voxel_bytes
        Bytes of the decoded voxels.
    """
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
