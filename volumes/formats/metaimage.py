"""MetaImage (``.mha``, ``.mhd``): raw voxels mapped or by range, compressed ones decoded once.

Its header is ``Key = value`` lines, of which the last names the voxels. As in ITK, rows of the
matrix are the directions of the voxel axes, in LPS.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...core import Affine
from ..header import affine_entries
from .raw import RawHeader, world_affine
from .stored_file import Format
from .text_header import ItkOnly, TextFields, TextHeader, header_lines, open_text

_LAST_KEY = "ElementDataFile"
_TYPES = {
    "MET_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i4",  # four bytes in the format, whatever the machine's long has
    "MET_ULONG": "u4",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_MOST_AXES = 10  # as in the format's own library


def parse_metaimage(head: bytes, name: str) -> TextHeader:
    """Read the beginning of a MetaImage file.

    ``BadHeader`` if it makes no sense, or does not end within ``head``; ``ItkOnly`` if only
    SimpleITK reads files like this.
    """
    fields, length = _fields(head, name)
    sizes = fields.lengths("NDims", "DimSize", _MOST_AXES)
    channels = fields.integer("ElementNumberOfChannels", 1)
    if channels < 1:
        raise fields.error(f"it has {channels} channels")
    is_local = fields[_LAST_KEY].upper() == "LOCAL"
    files = () if is_local else fields.files(_LAST_KEY, head[length:], sizes)
    is_compressed = _truth(fields, "CompressedData")
    if not _truth(fields, "BinaryData", default=True):
        raise ItkOnly("its voxels are text", files)
    skip, lowest = fields.integer("HeaderSize"), length if is_local else 0
    if skip < -1 or 0 < skip < lowest or (skip == -1 and (is_compressed or len(files) > 1)):
        raise fields.error(f"its HeaderSize is {skip}")
    affine = affine_entries(_affine(fields, len(sizes)), name)
    raw = RawHeader.of_sizes(sizes, _dtype(fields), 0, affine, colours=channels)
    encoding = "zlib" if is_compressed else "raw"
    return TextHeader(raw, encoding, files, max(skip, lowest), from_end=skip == -1)


def _fields(head: bytes, name: str) -> tuple[TextFields, int]:
    fields = TextFields(name, "MetaImage")
    for line, at in header_lines(head):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals and not key:
            continue
        if not equals or not key.isidentifier():
            raise fields.error(f"it has a line {line[:40]!r}")
        fields[key] = value
        if key == _LAST_KEY:
            if not value:
                raise fields.error(f"its {_LAST_KEY} is empty")
            return fields, at
    raise fields.error(f"it has no line {_LAST_KEY}")


def _truth(fields: TextFields, *keys: str, default: bool = False) -> bool:
    for key in keys:
        if key in fields:
            found = _TRUTHS.get(fields[key].lower())
            if found is None:
                raise fields.error(f"its {key} is {fields[key][:40]!r}")
            return found
    return default


def _dtype(fields: TextFields) -> np.dtype[np.generic]:
    text = fields.get("ElementType", "")
    code = _TYPES.get(text.removesuffix("_ARRAY"))
    if code is None:
        raise fields.error(f"its ElementType is {text[:40]!r}")
    big = _truth(fields, "BinaryDataByteOrderMSB", "ElementByteOrderMSB")
    return np.dtype((">" if big else "<") + code)


def _affine(fields: TextFields, count: int) -> Affine:
    """Return the affine of the first three axes, RAS+."""
    spacing = fields.numbers(("ElementSpacing", "ElementSize"), count) or (1.0,) * count
    origin = fields.numbers(("Offset", "Position", "Origin"), count) or (0.0,) * count
    keys = ("TransformMatrix", "Rotation", "Orientation")
    matrix = np.reshape(fields.numbers(keys, count * count) or np.eye(count), (count, count))
    shown = min(count, 3)
    columns = [spacing[axis] * matrix[axis, :shown] for axis in range(shown)]
    return world_affine(columns, origin[:3])


FORMATS = (Format("metaimage", (".mha", ".mhd"), partial(open_text, parse=parse_metaimage)),)
