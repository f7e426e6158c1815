"""Volumes that SimpleITK reads and voxpipe does not: series of DICOM, images in memory.

The header is read without voxels. These are decoded once, into the cache directory, and
mapped from there: ITK's readers decode everything for any region, but for a few formats.
Some do not notice that a file ends early, or claims more than it holds, and hand out whatever the
memory held (SimpleITK 2.5.7). So what such a file must hold is counted here, before it is read.
A folder of DICOM slices is one volume: headers alone say where they lie.
"""

from __future__ import annotations

import importlib
import math
import mmap
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
    VolumeChanged,
    VolumeTooLarge,
)
from ...core.memory import usable_memory
from ..array_source import ArraySource
from ..backend import Backend
from ..header import affine_entries, affine_matrix
from ..registry import BackendRequest, unknown_format
from .hdf5 import refuse_leading_on
from .raw import LocalRaw, RawHeader, fastest_first, world_affine
from .stored_file import Format, LocalStoredFile, StoredFile, import_package, open_local

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
_UNDEFINED_LENGTH = 2**32 - 1
# Images of thousands of frames have some fifty for each; these are looked at in seconds.
_MOST_ELEMENTS = 2**22
_IMPLICIT, _BIG = b"1.2.840.10008.1.2", b"1.2.840.10008.1.2.2"
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_DEFLATE_SYNTAX = b"1.2.840.10008.1.2.1.99"


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
        length = int.from_bytes(field, "big" if order == ">" else "little")
        start = length_at + width
        if (group, element) == _PIXELS and length == _UNDEFINED_LENGTH:
            return
        if length != _UNDEFINED_LENGTH and length > size - start:
            raise _claims(name, f"{length} bytes of element ({group:04x},{element:04x})")
        if (group, element) == _SYNTAX:
            syntax = data[start : start + length].rstrip(b"\0 ")
        if group != _META and syntax == _DEFLATE_SYNTAX:
            return
        # Sequences and items are entered: what is in them has lengths as well.
        enters = length == _UNDEFINED_LENGTH or group == _ITEMS or kind == b"SQ"
        at = start if enters else start + length


def _claims(name: str, what: str) -> BadHeader:
    return BadHeader(f"{name} speaks of {what}, which it does not hold.")


def check_end(file: StoredFile, image_io: str, voxel_bytes: int) -> None:
    """Raise ``TruncatedVolume`` for a file that is too short, where its format lets us tell."""
    check_ratio(file, voxel_bytes)
    if image_io in _HEADERS:
        if file.head(2) == b"\x1f\x8b":
            what = f"{file.name} is compressed, and SimpleITK's {image_io} would not notice damage."
            raise UnknownFormat(what, do="Decompress it first.")
        _check(file, file.size >= _HEADERS[image_io] + voxel_bytes, voxel_bytes)
    elif image_io == "VTKImageIO":
        _check_vtk(file, voxel_bytes)
    elif image_io == "TIFFImageIO":
        what = f"{file.name} is a TIFF, of which SimpleITK would not notice that it ends early."
        raise UnknownFormat(what, do="pip install tifffile, or convert it to .nii or zarr.")
    elif image_io == "BMPImageIO":
        length = int.from_bytes(file.head(_BMP_SIZE.stop)[_BMP_SIZE], "little")
        _check(file, file.size >= length, voxel_bytes)
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
        raise TruncatedVolume(
            f"{file.name} holds {file.size} bytes and ends early: its header speaks of "
            f"{voxel_bytes} bytes of voxels."
        )


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


def open_itk(path: str, name: str, follow: str = "beside") -> Backend:
    """Open any file that SimpleITK reads; only the header is read."""
    file = LocalStoredFile(path, name)
    reader = _read_information(path, name, follow)
    fields, size = _fields(reader, name), reader.GetSize()
    image_io = str(reader.GetImageIO() or reader.GetImageIOFromFileName(path))
    if image_io == "MRCImageIO":
        # SimpleITK takes its angstrom for millimetres, and signed bytes for unsigned ones.
        raise unknown_format(name, ("MRC",))
    check_end(file, image_io, fields.voxel_bytes)

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
    return LocalRaw(fields, [file], name, write)


def open_with_itk(file: StoredFile, why: str, data_files: Sequence[str]) -> Backend:
    """Open a local file, for a reason, which names others; ``UnknownFormat`` where that fails."""
    if not isinstance(file, LocalStoredFile) or not is_installed():
        how = "with SimpleITK" if isinstance(file, LocalStoredFile) else "from a local disk"
        raise UnknownFormat(
            f"{file.name} can only be read {how}: {why}.",
            do="Write it again in one piece, raw or with gzip, or copy it to a local disk and pip "
            "install SimpleITK.",
        )
    for name in data_files:
        file.beside(name)  # a plain file, and not outside the folder
    return open_itk(file.path, file.name, file.follow)


def _read_information(path: str, name: str, follow: str = "beside") -> Any:
    """Return a reader that has read the header."""
    check_claims(path, name, follow)
    reader = _reader(path)
    try:
        reader.ReadImageInformation()
    except RuntimeError as error:
        raise BadHeader(f"{name} cannot be read by SimpleITK: {_reason(error)}.") from None
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
    """Return planes of a file along its last axis, C order; they must be what ``fields`` says."""
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
        raise CorruptVolume(
            f"{name} decodes to {image.GetSize()} {array.dtype.name}, and its header speaks of "
            f"{size} {fields.dtype.name}."
        )
    return np.ascontiguousarray(array)


def _reader(path: str) -> Any:
    itk = simpleitk()
    # Its warnings go to the terminal, past Python's; what matters is raised.
    itk.ProcessObject.SetGlobalWarningDisplay(False)
    reader = itk.ImageFileReader()
    reader.SetFileName(path)
    return reader


def _fields(image: Any, name: str) -> RawHeader:
    """Return what an image, or a reader that has read a header, says about the voxels."""
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
    """Return the sentence of an ITK error that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1].rstrip(".")


# Series lie among other files; one of so many tells.
_LOOKED_AT = 16
# Of the distance between slices. Positions are decimal text of up to 16 letters.
_UNEVEN = 1e-2


def _has_dicom(request: BackendRequest) -> bool:
    """Whether one of the first files of a local folder is DICOM."""
    if request.path is None or not os.path.isdir(request.path):
        return False
    return any(map(_is_dicom, _files(os.fspath(request.path))[:_LOOKED_AT]))


def _files(folder: str) -> list[str]:
    # Copies from macOS bring a hidden ._NAME for each file, and these come first.
    with os.scandir(folder) as entries:
        # isfile() is false, and raises nothing, for links that lead in a circle.
        return sorted(
            entry.path
            for entry in entries
            if not entry.name.startswith(".") and os.path.isfile(entry.path)
        )


def _is_dicom(path: str) -> bool:
    with open_local(path) as file:
        return file.read(_DICOM_MAGIC_AT + len(_DICOM_MAGIC))[_DICOM_MAGIC_AT:] == _DICOM_MAGIC


def open_series(request: BackendRequest, name: str, series: str = "") -> Backend:
    """Open the slices of one series, whose UID may be left out where there is no other.

    ``UnknownFormat`` if it is not there, ``BadHeader`` if the slices do not make up a volume.
    """
    folder = os.fspath(request.path or "")
    import_package("SimpleITK", f"the DICOM files of {name}")
    slices = _slices(folder, name, series)
    files = [LocalStoredFile(path, f"{path} (of {name})") for path in slices]
    headers = [_fields(_read_information(file.path, file.name), file.name) for file in files]
    fields = _stack(headers, name)
    for file, one in zip(files, headers, strict=True):
        check_ratio(file, one.voxel_bytes)

    def write(raw: BinaryIO) -> None:
        for file in files:
            if not file.is_current:
                raise VolumeChanged(f"{file.name} was written again since its header was read.")
            size = _read_information(file.path, file.name).GetSize()
            raw.write(_slab(file.path, file.name, headers[0], size, 0, size[-1]).data)

    IO_COUNTERS.count(headers=len(files))
    return LocalRaw(fields, files, name, write)


# What is told of a series, of its first slice: by DICOM's group and element.
_FACTS = {"modality": "0008|0060", "description": "0008|103e", "study": "0020|000d"}


def series_of(folder: str) -> dict[str, dict[str, str]]:
    """Return what is told of each series of DICOM slices that lie in a folder, by its UID."""
    if not any(map(_is_dicom, _files(folder))):
        return {}
    import_package("SimpleITK", f"the DICOM files of {folder}")
    series: dict[str, dict[str, str]] = {}
    for uid in _series_in(folder, folder):
        first = simpleitk().ImageSeriesReader.GetGDCMSeriesFileNames(folder, uid)[0]
        reader = _read_information(first, f"{first} (of {folder})")
        keys = {fact: key for fact, key in _FACTS.items() if reader.HasMetaDataKey(key)}
        series[uid] = {fact: reader.GetMetaData(key).strip("\0 ") for fact, key in keys.items()}
    return series


def _series_in(folder: str, name: str) -> tuple[str, ...]:
    # GDCM reads whatever is there: pipes, and claims of any size. Files of other kinds are no harm.
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not entry.is_dir():
            check_claims(entry.path, f"{entry.path} (of {name})")
    itk = simpleitk()
    itk.ProcessObject.SetGlobalWarningDisplay(False)
    uids: tuple[str, ...] = itk.ImageSeriesReader.GetGDCMSeriesIDs(folder)
    return uids


def _slices(folder: str, name: str, series: str) -> Sequence[str]:
    """Return the files of a series in the order of their places."""
    itk, series_ids = simpleitk(), _series_in(folder, name)
    if series not in series_ids and (series or len(series_ids) != 1):
        raise UnknownFormat(
            f"{name} holds {len(series_ids)} DICOM series ({', '.join(series_ids)})"
            + (f", and not {series}." if series else "."),
            do="Give the one to read as series=.",
        )
    _refuse_orphans(folder, series_ids, name)
    paths: tuple[str, ...] = itk.ImageSeriesReader.GetGDCMSeriesFileNames(
        folder, series or series_ids[0]
    )
    return paths


def _refuse_orphans(folder: str, series_ids: Sequence[str], name: str) -> None:
    """Refuse a folder with slices that GDCM cannot read: it leaves them out without a word."""
    itk = simpleitk()
    read = {
        os.path.realpath(path)
        for series in series_ids
        for path in itk.ImageSeriesReader.GetGDCMSeriesFileNames(folder, series)
    }
    for path in _files(folder):
        is_slice = path.lower().endswith(".dcm") or _is_dicom(path)
        is_index = os.path.basename(path).upper() == "DICOMDIR"
        if is_slice and not is_index and os.path.realpath(path) not in read:
            msg = f"{path} (of {name}) is a DICOM file of no series that SimpleITK recognises."
            raise BadHeader(msg, do="Copy it again if it is damaged, or move it out of the folder.")


def _stack(slices: Sequence[RawHeader], name: str) -> RawHeader:
    """Return the header of slices that lie one behind the other."""
    first, layout = slices[0], slices[0].layout
    depth = layout.shape[3]
    if len(slices) == 1:
        return first
    affines = [affine_matrix(fields.affine) for fields in slices]
    for fields, affine in zip(slices, affines, strict=True):
        same = (fields.layout, fields.dtype) == (layout, first.dtype)
        if not same or not np.allclose(affine[:3, :3], affines[0][:3, :3], atol=1e-4) or depth > 1:
            what = f"the slices of {name} differ in size, type or direction, or are volumes."
            raise BadHeader(what, do="Give one file of it, or convert the series to .nii.")
    places = np.array([affine[:3, 3] for affine in affines])
    step = (places[-1] - places[0]) / (len(slices) - 1)
    distance = float(np.linalg.norm(step))
    away = np.abs(places - places[0] - np.arange(len(slices))[:, None] * step).max()
    if distance == 0 or away > _UNEVEN * distance:
        raise BadHeader(
            f"the {len(slices)} slices of {name} are not evenly spaced: {away:g} mm off a "
            f"distance of {distance:g} mm.",
            do="Look for missing or doubled slices.",
        )
    affine = affines[0].copy()
    affine[:3, 2] = step
    sizes = tuple(
        len(slices) if axis == layout.spatial[2] else n for axis, n in enumerate(layout.sizes)
    )
    whole = replace(layout, sizes=sizes)
    return replace(first, layout=whole, affine=affine_entries(affine, name))


FORMATS = (
    Format("dicom", (), open_series, ("series",), matches=_has_dicom, rank=1),
    # The last: it looks into the file, and imports SimpleITK for it.
    Format(
        "simpleitk",
        (),
        lambda request, name: open_itk(os.fspath(request.path or ""), name, request.follow),
        matches=_reads,
        rank=2,
    ),
)
