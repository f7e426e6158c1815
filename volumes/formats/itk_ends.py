"""Files that end early, which some of ITK's readers do not notice.

They hand out whatever the memory held where the file had no more (seen with SimpleITK
2.5.7: cut files of the formats below are read without a word). So what such a file must
hold is counted here, before it is read.
"""

from __future__ import annotations

import re

from ...core.errors import TruncatedVolume, UnknownFormat
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
