"""NIfTI-1 and -2, in one file or two (``.hdr`` and ``.img``), and Analyze as nibabel reads it.

The header of NIfTI-1 and NIfTI-2: where the voxels are, what they are, where they lie. nibabel's
classes read the fields; this module decides what they mean and refuses what makes no sense, before
a byte of memory is taken on the header's word.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ...core.errors import BadHeader, MissingDependency, TruncatedVolume, UnknownFormat
from ..backend import Backend
from ..header import affine_entries
from ..voxels import refuse_unreadable
from .raw import RawHeader, open_raw
from .stored_file import Format, LocalStoredFile, StoredFile, open_local, what_to_do

NIFTI1_BYTES = 348
NIFTI2_BYTES = 540
# The header of a single file is followed by four bytes that announce extensions.
_EXTENSION_FLAG_BYTES = 4
_GZIP_MAGIC = b"\x1f\x8b"
# xyzt_units, lowest three bits: 1 metre, 2 millimetre, 3 micrometre; 0 is unknown.
_MILLIMETRES = {1: 1000.0, 2: 1.0, 3: 0.001}
_UNIT_BITS = 0b111
# The format has room for seven axes, and an unused one has length 1.
_MOST_AXES = 7
_CHECK = "Check how the file was written."


def parse_nifti(raw: bytes, name: str, *, single_file: bool = True) -> RawHeader:
    """Read the first 348 or 540 bytes of a NIfTI file; colours (RGB24, RGBA32) become channels.

    Where the voxels do not follow in a ``single_file``, magic and offset are not looked at.
    """
    fields, size = _fields(raw, name)
    magic = bytes(fields["magic"].item())
    if single_file and magic.startswith((b"ni1", b"ni2")):
        why = "its voxels are in a separate .img file, so its own name must end in .hdr"
        raise bad_nifti(name, why)
    if single_file and not magic.startswith((b"n+1", b"n+2")):
        raise bad_nifti(name, f"its magic is {magic!r}")
    lowest = size + _EXTENSION_FLAG_BYTES if single_file else None
    return raw_header(fields, lowest, millimetres(int(fields["xyzt_units"])), name)


def parse_nifti_of_pair(raw: bytes, name: str) -> RawHeader:
    """Read the header of a NIfTI whose voxels, from the offset on, are in another file."""
    fields, _ = _fields(raw, name)
    return raw_header(fields, 0, millimetres(int(fields["xyzt_units"])), name)


def raw_header(fields: Any, lowest: int | None, unit: float, name: str) -> RawHeader:
    """Return what the fields of a NIfTI or Analyze header say, as nibabel shows them.

    Voxels begin at byte ``lowest`` or later; None takes no notice of where. ``unit`` is the
    millimetres in one unit of the affine.
    """
    from nibabel.spatialimages import HeaderDataError

    dims = [int(n) for n in fields["dim"]]
    shape = [int(n) for n in fields.get_data_shape()]
    if not 1 <= dims[0] <= _MOST_AXES or min(shape) < 1:
        raise bad_nifti(name, f"its dimensions are {dims}")
    slope, intercept = None, 0.0
    why = f"its data type {int(fields['datatype'])} is unknown"
    try:
        dtype: np.dtype[Any] = fields.get_data_dtype()
        if dtype.itemsize and not is_colour(dtype):
            refuse_unreadable(dtype, name)
            why = f"its intercept is {fields.get('scl_inter', 0.0)}"
            slope, intercept = fields.get_slope_inter()
        why = "its orientation cannot be read"
        # A damaged header may hold a signalling NaN, about which NumPy would warn.
        with np.errstate(invalid="ignore"):
            affine = np.array(fields.get_best_affine(), dtype=np.float64)
    except (HeaderDataError, KeyError, ValueError) as error:
        raise bad_nifti(name, f"{why} ({error})") from None
    if dtype.itemsize == 0:  # a number of bits, or a float that this machine lacks
        raise UnknownFormat(
            f"{name} holds voxels of NIfTI data type {int(fields['datatype'])} "
            f"({fields.get_value_label('datatype')}), which cannot be read.",
            do="Convert the voxels to integers, or to floats of up to 64 bits.",
        )
    affine[:3] *= unit
    offset = 0.0 if lowest is None else float(fields["vox_offset"])
    if not offset >= (lowest or 0) or offset != int(min(offset, 2.0**62)):
        why = f"its voxels begin at byte {offset:g}, and the header ends at {lowest}"
        raise bad_nifti(name, why)
    entries = affine_entries(affine, name)
    if dtype.names is not None:
        colours = len(dtype.names)
        return RawHeader.of_sizes(shape, np.dtype("u1"), int(offset), entries, colours=colours)
    scale = (1.0, 0.0) if slope is None else (float(slope), float(intercept))
    return RawHeader.of_sizes(shape, dtype, int(offset), entries, scale=scale)


def bad_nifti(name: str, why: str) -> BadHeader:
    """Return the error for a header that makes no sense."""
    return BadHeader(f"{name} has no sound NIfTI header: {why}.", do=_CHECK)


def _fields(raw: bytes, name: str) -> tuple[Any, int]:
    """Return nibabel's view of the fields, and the header's length."""
    if len(raw) < NIFTI1_BYTES:
        raise TruncatedVolume(
            f"{name} holds {len(raw)} bytes, and a NIfTI header has {NIFTI1_BYTES}.",
            do=what_to_do(raw, "Copy or download the file again."),
        )
    size, order = size_and_order(raw, name)
    if len(raw) < size:
        raise TruncatedVolume(
            f"{name} holds {len(raw)} bytes, and its NIfTI header has {size}.",
            do="Copy or download the file again.",
        )
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    build: Any = Nifti1Header if size == NIFTI1_BYTES else Nifti2Header
    return build(binaryblock=raw[:size], endianness=order, check=False), size


def size_and_order(raw: bytes, name: str) -> tuple[int, Literal["<", ">"]]:
    """Return the length that a header claims, 348 or 540, and its byte order."""
    orders: tuple[Literal["<"], Literal[">"]] = ("<", ">")
    for order in orders:
        (size,) = struct.unpack(order + "i", raw[:4])
        if size in (NIFTI1_BYTES, NIFTI2_BYTES):
            return size, order
    if raw.startswith(_GZIP_MAGIC):
        raise BadHeader(f"{name} is compressed with gzip.", do="Name it .nii.gz, or decompress it.")
    why = f"it begins with {raw[:4]!r}, not with 348 or 540"
    raise BadHeader(f"{name} has no sound NIfTI header: {why}.", do=what_to_do(raw, _CHECK))


def is_colour(dtype: np.dtype[Any]) -> bool:
    """Whether voxels are RGB24 or RGBA32: three or four bytes each."""
    return dtype.names in (("R", "G", "B"), ("R", "G", "B", "A"))


def millimetres(units: int) -> float:
    """Return the millimetres in one spatial unit of ``xyzt_units``; unknown counts as one.

    Examples
    --------
    >>> millimetres(3), millimetres(0)
    (0.001, 1.0)
    """
    return _MILLIMETRES.get(units & _UNIT_BITS, 1.0)


# Bytes that are surely enough to decode the header from.
HEAD_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS


def open_nifti(file: StoredFile) -> Backend:
    """Open a ``.nii``."""
    return open_raw(parse_nifti(file.head(NIFTI2_BYTES), file.name), [file], file.name)


def open_nifti_gz(file: StoredFile) -> Backend:
    """Open a ``.nii.gz``: the header from its first bytes, the voxels when they are read."""
    head = decoded_head(file.head(HEAD_BYTES), file.name)
    return open_raw(parse_nifti(head, file.name), [file], file.name, encoding="gzip")


def decoded_head(
    head: bytes, name: str, do: str = "Remove .gz from its name if it is not compressed."
) -> bytes:
    """Return the beginning of what ``head`` decodes to: enough for a NIfTI header.

    ``do`` is the advice for a file that is not compressed.
    """
    try:
        return zlib.decompressobj(_GZIP).decompress(head, NIFTI2_BYTES)
    except zlib.error:
        raise BadHeader(
            f"{name} is not compressed with gzip: it begins with {head[:4]!r}.",
            do=what_to_do(head, do),
        ) from None


_MAGIC_AT = {NIFTI1_BYTES: 344, NIFTI2_BYTES: 4}
# Nibabel takes a pair whose magic says "one file" for a pair all the same.
_MAGICS = (b"ni1", b"n+1", b"ni2", b"n+2")
# SPM's two matrices of 4 x 4 take 400; what is deflated in it may be a thousand times as much.
_MOST_MAT_BYTES = 64 * 1024


def open_pair(file: StoredFile) -> Backend:
    """Open a pair by either of its names; both files are compressed, or none.

    Analyze's only on local disks: behind a URL nobody looks for the ``.mat`` that moves it.
    """
    name = file.name
    gzipped = name.lower().endswith(".gz")
    is_header = name.lower().removesuffix(".gz").endswith(".hdr")
    header = file if is_header else file.renamed(".img", ".hdr")
    voxels = file.renamed(".hdr", ".img") if is_header else file
    raw = header.head(HEAD_BYTES if gzipped else NIFTI2_BYTES)
    raw = decoded_head(raw, header.name) if gzipped else raw
    fields = _parse(raw, header)
    encoding = "gzip" if gzipped else "raw"
    return open_raw(fields, [header, voxels], name, encoding=encoding)


def _parse(raw: bytes, header: StoredFile) -> RawHeader:
    if len(raw) >= NIFTI1_BYTES:
        size, order = size_and_order(raw, header.name)
        if not raw[_MAGIC_AT[size] :].startswith(_MAGICS):
            if size == NIFTI1_BYTES:
                return _parse_analyze(raw, order, header)
            raise BadHeader(
                f"{header.name} has no sound NIfTI header: its magic is {raw[4:8]!r}.",
                do="Check how the file was written.",
            )
    return parse_nifti_of_pair(raw, header.name)


def _parse_analyze(raw: bytes, order: str, header: StoredFile) -> RawHeader:
    """Return what an Analyze header (plain, SPM99, SPM2) says, by nibabel's rule.

    The first axis runs to the left, the origin is SPM's field or the centre, and a
    ``.mat`` beside the file has the last word.
    """
    from nibabel.spm2analyze import Spm2AnalyzeHeader

    fields: Any = Spm2AnalyzeHeader(binaryblock=raw[:NIFTI1_BYTES], endianness=order, check=False)
    found = raw_header(fields, 0, 1.0, header.name)
    if not isinstance(header, LocalStoredFile):
        raise BadHeader(
            f"{header.name} is an Analyze header, which is only read from local disks.",
            do="Copy both files, or convert them to .nii.",
        )
    mat = os.path.splitext(header.path.removesuffix(".gz"))[0] + ".mat"
    if not os.path.exists(mat):
        return found
    with open_local(mat) as file:
        size = os.fstat(file.fileno()).st_size
    if size > _MOST_MAT_BYTES:
        raise BadHeader(
            f"{mat} takes {size} bytes, and the matrices of an image {_MOST_MAT_BYTES} at most.",
            do="Remove it if it does not belong to the image.",
        )
    return replace(found, affine=affine_entries(_affine_of_mat(header), header.name))


def _affine_of_mat(header: LocalStoredFile) -> Any:
    """Return the affine that nibabel makes of header and ``.mat``."""
    import nibabel

    try:
        image: Any = nibabel.load(header.path)
    except ImportError as error:
        raise MissingDependency(
            f"the .mat beside {header.name} needs scipy.", do="pip install scipy"
        ) from error
    except Exception as error:  # whatever scipy raises on damaged files
        raise BadHeader(
            f"the .mat beside {header.name} cannot be read: {error}.",
            do="Remove it if it does not belong to the image.",
        ) from error
    return image.affine


FORMATS = (
    Format("nifti", (".nii",), open_nifti),
    Format("nifti-gz", (".nii.gz",), open_nifti_gz),
    Format("nifti-pair", (".hdr", ".img", ".hdr.gz", ".img.gz"), open_pair),
)
