"""The header of NIfTI-1 and NIfTI-2: where the voxels are, what they are, where they lie.

nibabel's classes read the fields; this module decides what they mean and refuses
what makes no sense, before a byte of memory is taken on the header's word.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.errors import BadHeader, TruncatedVolume, UnknownFormat
from .header import Access, Header, affine_entries
from .voxels import refuse_unreadable

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


@dataclass(frozen=True)
class NiftiHeader:
    """What the header says about the voxels."""

    shape: tuple[int, ...]
    """As stored: (I, J, K, ...), at least three axes, the first one fastest."""
    dtype: np.dtype[Any]
    """Type as stored, with its byte order."""
    offset: int
    """Where the voxels begin in the file, in bytes."""
    affine: tuple[float, ...]
    """Voxel to world in millimetres, 16 entries row by row."""
    slope: float
    """Factor from stored number to value, 1 where the header asks for no scaling."""
    intercept: float
    """Value of a stored 0."""

    @property
    def channels(self) -> int:
        """Time, channels and further axes, folded; the first of them runs fastest."""
        return math.prod(self.shape[3:])

    @property
    def end(self) -> int:
        """One past the last byte of the voxels in the file."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    def header(self, access: Access, stamp: tuple[int, ...] = ()) -> Header:
        """Return what a backend answers for a single file."""
        i, j, k = self.shape[:3]
        return Header(
            (self.channels, i, j, k),
            self.affine,
            self.dtype,
            access=access,
            slope=self.slope,
            intercept=self.intercept,
            stamp=stamp,
        )

    def view(self, buffer: Any) -> NDArray[Any]:
        """Return the voxels of a mapped file as (C, I, J, K), without copying."""
        count = math.prod(self.shape)
        flat: NDArray[Any] = np.frombuffer(buffer, self.dtype, count, self.offset)
        folded = flat.reshape((*self.shape[:3], self.channels), order="F")
        return folded.transpose(3, 0, 1, 2)


def parse_nifti(raw: bytes, name: str, *, single_file: bool = True) -> NiftiHeader:
    """Read the first 348 or 540 bytes of a NIfTI file.

    Parameters
    ----------
    raw
        The beginning of the file; more bytes than the header are ignored.
    name
        What errors call the file.
    single_file
        Whether the voxels follow in the same file; if not, the magic and the
        offset are not looked at.

    Raises
    ------
    TruncatedVolume
        Fewer bytes than a header has.
    BadHeader
        The bytes are no NIfTI header or contradict themselves.
    UnknownFormat
        The voxels are no plain numbers (RGB, 128-bit floats).
    """
    fields, size = _fields(raw, name)
    dims = [int(n) for n in fields["dim"]]
    shape = [int(n) for n in fields.get_data_shape()]
    if not 1 <= dims[0] <= _MOST_AXES or min(shape) < 1:
        raise _bad(name, f"its dimensions are {dims}")
    dtype = _data_type(fields, name)
    slope, intercept = _scaling(fields, name)
    return NiftiHeader(
        shape=(*shape, 1, 1)[: max(3, dims[0])],
        dtype=dtype,
        offset=_offset(fields, size, name) if single_file else 0,
        affine=_affine(fields, name),
        slope=slope,
        intercept=intercept,
    )


def check_length(header: NiftiHeader, actual: int, name: str) -> None:
    """Raise ``TruncatedVolume`` if a file of ``actual`` bytes cannot hold the voxels."""
    if actual < header.end:
        raise TruncatedVolume(
            f"{name} holds {actual} bytes, and its header speaks of {header.end} "
            f"({'x'.join(map(str, header.shape))} {header.dtype.name} from byte {header.offset}).",
            do="Copy or download the file again.",
        )


def _bad(name: str, why: str) -> BadHeader:
    return BadHeader(
        f"{name} has no sound NIfTI header: {why}.", do="Check how the file was written."
    )


def _fields(raw: bytes, name: str) -> tuple[Any, int]:
    """Return nibabel's view of the fields, and the header's length."""
    if len(raw) < NIFTI1_BYTES:
        raise TruncatedVolume(
            f"{name} holds {len(raw)} bytes, and a NIfTI header has {NIFTI1_BYTES}.",
            do="Copy or download the file again.",
        )
    size, order = _size_and_order(raw, name)
    if len(raw) < size:
        raise TruncatedVolume(
            f"{name} holds {len(raw)} bytes, and its NIfTI header has {size}.",
            do="Copy or download the file again.",
        )
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    build: Any = Nifti1Header if size == NIFTI1_BYTES else Nifti2Header
    return build(binaryblock=raw[:size], endianness=order, check=False), size


def _size_and_order(raw: bytes, name: str) -> tuple[int, Literal["<", ">"]]:
    orders: tuple[Literal["<"], Literal[">"]] = ("<", ">")
    for order in orders:
        (size,) = struct.unpack(order + "i", raw[:4])
        if size in (NIFTI1_BYTES, NIFTI2_BYTES):
            return size, order
    if raw.startswith(_GZIP_MAGIC):
        raise BadHeader(f"{name} is compressed with gzip.", do="Name it .nii.gz, or decompress it.")
    raise _bad(name, f"it begins with {raw[:4]!r}, not with 348 or 540")


def _offset(fields: Any, size: int, name: str) -> int:
    magic = bytes(fields["magic"].item())
    if magic.startswith((b"ni1", b"ni2")):
        raise _bad(name, "its voxels are in a separate .img file, which is not supported")
    if not magic.startswith((b"n+1", b"n+2")):
        raise _bad(name, f"its magic is {magic!r}")
    offset = float(fields["vox_offset"])
    lowest = size + _EXTENSION_FLAG_BYTES
    if not offset >= lowest or offset != int(min(offset, 2.0**62)):
        raise _bad(name, f"its voxels begin at byte {offset:g}, and the header ends at {lowest}")
    return int(offset)


def _data_type(fields: Any, name: str) -> np.dtype[Any]:
    from nibabel.spatialimages import HeaderDataError

    try:
        dtype: np.dtype[Any] = fields.get_data_dtype()
    except (HeaderDataError, KeyError):
        raise _bad(name, f"its data type {int(fields['datatype'])} is unknown") from None
    if dtype.itemsize == 0:  # a number of bits, or a float that this machine lacks
        raise UnknownFormat(
            f"{name} holds voxels of NIfTI data type {int(fields['datatype'])} "
            f"({fields.get_value_label('datatype')}), which cannot be read.",
            do="Convert the voxels to integers, or to floats of up to 64 bits.",
        )
    refuse_unreadable(dtype, name)
    return dtype


def _scaling(fields: Any, name: str) -> tuple[float, float]:
    from nibabel.spatialimages import HeaderDataError

    try:
        slope, intercept = fields.get_slope_inter()
    except HeaderDataError:
        raise _bad(name, f"its intercept is {float(fields['scl_inter'])}") from None
    return (1.0, 0.0) if slope is None else (float(slope), float(intercept))


def _affine(fields: Any, name: str) -> tuple[float, ...]:
    from nibabel.spatialimages import HeaderDataError

    try:
        # A damaged header may hold a signalling NaN, about which NumPy would warn.
        with np.errstate(invalid="ignore"):
            affine = np.array(fields.get_best_affine(), dtype=np.float64)
    except (HeaderDataError, ValueError) as error:
        raise _bad(name, f"its orientation cannot be read ({error})") from None
    affine[:3] *= millimetres(int(fields["xyzt_units"]))
    return affine_entries(affine, name)


def millimetres(units: int) -> float:
    """Return the millimetres in one spatial unit of ``xyzt_units``; unknown counts as one.

    Examples
    --------
    >>> millimetres(3), millimetres(0)
    (0.001, 1.0)
    """
    return _MILLIMETRES.get(units & _UNIT_BITS, 1.0)
