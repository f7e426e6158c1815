"""MetaImage (``.mha``, ``.mhd``): raw voxels mapped or by range, compressed ones decoded once.

The text header of MetaImage (MHA, MHD): ``Key = value`` lines, the last names the voxels. It
follows ITK: rows of the matrix are the directions of the voxel axes, in LPS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from ...core import Affine
from ...core.errors import BadHeader
from ..backend import Backend
from ..header import affine_entries
from .raw import RawHeader, at_the_end, open_raw
from .stored_file import StoredFile
from .text_header import (
    ItkOnly,
    axis_lengths,
    header_lines,
    listed_files,
    open_spread,
    world_affine,
)

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
MOST_AXES = 10  # as in the format's own library


@dataclass(frozen=True)
class MetaHeader:
    """What a MetaImage header says."""

    raw: RawHeader
    """The voxels; ``offset`` counts from the beginning of the file that holds them."""
    is_compressed: bool
    """Whether the voxels are a zlib stream."""
    data_files: tuple[str, ...]
    """Other files that hold the voxels, none where they follow the header."""
    from_end: bool
    """Whether the voxels are the last bytes of the file (a header size of -1)."""


def parse_metaimage(head: bytes, name: str) -> MetaHeader:
    """Read the beginning of a MetaImage file.

    Raises
    ------
    BadHeader
        It makes no sense, or does not end within ``head``.
    ItkOnly
        Only SimpleITK reads files like this.
    """
    fields, length = _fields(head, name)
    sizes = _sizes(fields, name)
    channels = _integer(fields, "ElementNumberOfChannels", name, 1)
    if channels < 1:
        _bad(name, f"it has {channels} channels")
    data_file = fields[_LAST_KEY]
    following = head[length:].decode("utf-8", "replace").splitlines()
    files = listed_files(data_file, following, math.prod(sizes), name)
    compressed = _truth(fields, ("CompressedData",), name)
    is_local = data_file.upper() == "LOCAL"
    if not _truth(fields, ("BinaryData",), name, default=True):
        raise ItkOnly("its voxels are text", () if is_local else files)
    skip = _integer(fields, "HeaderSize", name, 0)
    lowest = length if is_local else 0
    if skip < -1 or 0 < skip < lowest or (skip == -1 and compressed):
        _bad(name, f"its HeaderSize is {skip}")
    interleaved = (channels,) if channels > 1 else ()
    padding = (1,) * (3 - len(sizes))
    first = len(interleaved)
    raw = RawHeader(
        shape=(*interleaved, *sizes, *padding),
        dtype=_dtype(fields, name),
        offset=skip if skip > 0 else lowest,
        affine=affine_entries(_affine(fields, len(sizes), name), name),
        axes=(first, first + 1, first + 2),
    )
    if len(files) > 1 and skip == -1:
        _bad(name, f"its HeaderSize is {skip} for {len(files)} files")
    return MetaHeader(raw, compressed, () if is_local else files, skip == -1)


def _bad(name: str, why: str) -> NoReturn:
    raise BadHeader(
        f"{name} has no sound MetaImage header: {why}.", do="Check how the file was written."
    )


def _fields(head: bytes, name: str) -> tuple[dict[str, str], int]:
    fields: dict[str, str] = {}
    for line, at in header_lines(head):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals and not key:
            continue
        if not equals or not key.isidentifier():
            _bad(name, f"it has a line {line[:40]!r}")
        fields[key] = value
        if key == _LAST_KEY:
            if not value:
                _bad(name, f"its {_LAST_KEY} is empty")
            return fields, at
    _bad(name, f"it has no line {_LAST_KEY}")


def _integer(fields: dict[str, str], key: str, name: str, default: int) -> int:
    try:
        return int(fields.get(key, default))
    except ValueError:
        _bad(name, f"its {key} is {fields[key][:40]!r}")


def _truth(
    fields: dict[str, str], keys: tuple[str, ...], name: str, *, default: bool = False
) -> bool:
    for key in keys:
        if key in fields:
            found = _TRUTHS.get(fields[key].lower())
            if found is None:
                _bad(name, f"its {key} is {fields[key][:40]!r}")
            return found
    return default


def _sizes(fields: dict[str, str], name: str) -> tuple[int, ...]:
    count = _integer(fields, "NDims", name, -1)
    text = fields.get("DimSize", "")
    sizes = axis_lengths(text, count, MOST_AXES)
    if sizes is None:
        _bad(name, f"its NDims is {count} and its DimSize {text[:80]!r}")
    return sizes


def _dtype(fields: dict[str, str], name: str) -> np.dtype[np.generic]:
    text = fields.get("ElementType", "")
    code = _TYPES.get(text.removesuffix("_ARRAY"))
    if code is None:
        _bad(name, f"its ElementType is {text[:40]!r}")
    big = _truth(fields, ("BinaryDataByteOrderMSB", "ElementByteOrderMSB"), name)
    return np.dtype((">" if big else "<") + code)


def _affine(fields: dict[str, str], count: int, name: str) -> Affine:
    """Return the affine of the first three axes, RAS+."""
    spacing = _numbers(fields, ("ElementSpacing", "ElementSize"), count, name) or (1.0,) * count
    origin = _numbers(fields, ("Offset", "Position", "Origin"), count, name) or (0.0,) * count
    keys = ("TransformMatrix", "Rotation", "Orientation")
    matrix = _numbers(fields, keys, count * count, name) or tuple(np.eye(count).ravel())
    columns = [
        [spacing[axis] * entry for entry in matrix[axis * count : axis * count + min(count, 3)]]
        for axis in range(min(count, 3))
    ]
    return world_affine(columns, origin[:3])


def _numbers(
    fields: dict[str, str], keys: tuple[str, ...], count: int, name: str
) -> tuple[float, ...] | None:
    for key in keys:
        if key in fields:
            try:
                found = tuple(map(float, fields[key].split()))
            except ValueError:
                found = ()
            if len(found) != count:
                _bad(name, f"its {key} is {fields[key][:80]!r}")
            return found
    return None


# Headers are text of some hundred bytes; notes of the user's may make them longer.
HEAD_BYTES = 256 * 1024


def open_metaimage(file: StoredFile) -> Backend:
    """Open a MetaImage by its header, which may be in front of the voxels or beside them."""
    try:
        found = parse_metaimage(file.head(HEAD_BYTES), file.name)
    except ItkOnly as why:
        from .itk import open_with_itk

        return open_with_itk(file, why)
    if len(found.data_files) > 1:
        encoding, skip = "zlib" if found.is_compressed else "raw", found.raw.offset
        raw = replace(found.raw, offset=0)
        return open_spread(raw, file, found.data_files, encoding=encoding, skip=skip)
    data = file.beside(found.data_files[0]) if found.data_files else file
    files = [file] if data is file else [file, data]
    raw = found.raw
    if found.is_compressed:
        return open_raw(replace(raw, offset=0), files, file.name, encoding="zlib", skip=raw.offset)
    if found.from_end:
        raw = at_the_end(raw, file, data, raw.offset)
    return open_raw(raw, files, file.name)
