"""NIfTI files made by nibabel or byte by byte, never by the code under test."""

from __future__ import annotations

import struct
from pathlib import Path

import nibabel
import numpy as np

DATA = Path(nibabel.__file__).parent / "tests" / "data"
# A rotation, three spacings and a flip: no two axes can be mixed up unnoticed.
AFFINE = np.array(
    [[0.0, -2.0, 0.0, 10.0], [1.5, 0.0, 0.0, -20.0], [0.0, 0.0, -3.0, 30.0], [0.0, 0.0, 0.0, 1.0]]
)


def numbered(shape, dtype=np.int16):
    """Return an array whose entries are all different."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def channels_first(array):
    """Return a NIfTI array (I, J, K, ...) as (C, I, J, K), the fourth axis running fastest."""
    folded = array.reshape((*array.shape[:3], -1), order="F")
    return np.moveaxis(folded, -1, 0)


def write_nifti(path, array, affine=AFFINE, scaling=None, version=1, order="<"):
    """Write with nibabel; ``array`` holds the numbers as stored, ``scaling`` slope and intercept.

    nibabel chooses slopes itself, so that of a NIfTI-1 file is put in afterwards.
    """
    kind = nibabel.Nifti1Image if version == 1 else nibabel.Nifti2Image
    header = kind.header_class(endianness=order)
    header.set_data_dtype(array.dtype.newbyteorder(order))
    image = kind(array, affine, header)
    image.to_filename(path)
    if scaling is not None:
        raw = bytearray(path.read_bytes())
        struct.pack_into("<2f", raw, 112, *scaling)
        path.write_bytes(raw)
    return path


def crafted(shape=(2, 2, 2), datatype=4, bitpix=16, offset=352.0, magic=b"n+1\0", **fields):
    """Return the 352 bytes of a little-endian NIfTI-1 header, field by field."""
    raw = bytearray(352)
    struct.pack_into("<i", raw, 0, fields.get("sizeof_hdr", 348))
    dims = fields.get("dim", (len(shape), *shape, *[1] * (7 - len(shape))))
    struct.pack_into("<8h", raw, 40, *dims)
    struct.pack_into("<2h", raw, 70, datatype, bitpix)
    struct.pack_into("<8f", raw, 76, *fields.get("pixdim", (1.0, 2.0, 3.0, 4.0, 1, 1, 1, 1)))
    struct.pack_into("<3f", raw, 108, offset, fields.get("slope", 1.0), fields.get("inter", 0.0))
    struct.pack_into("<b", raw, 123, fields.get("units", 2))
    struct.pack_into("<2h", raw, 252, fields.get("qform", 0), fields.get("sform", 1))
    struct.pack_into("<6f", raw, 256, *fields.get("quaternion", (0, 0, 0, 5, 6, 7)))
    rows = fields.get("rows", (2, 0, 0, 5, 0, 3, 0, 6, 0, 0, 4, 7))
    struct.pack_into("<12f", raw, 280, *rows)
    raw[344:348] = magic
    return bytes(raw)
