"""NRRD (``.nrrd``, ``.nhdr``): raw voxels mapped or by range, compressed ones decoded once.

The text header says which axes are spatial, where they lie, how the voxels are stored. It
follows the format's definition (teem.sourceforge.net/nrrd/format.html), and ITK where that leaves a
choice: a world that is not named is LPS, and without directions the axes go along the world's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...core import Affine
from ..header import affine_entries
from .raw import RAS_OF_LPS, RawHeader, world_affine
from .stored_file import Format, what_to_do
from .text_header import ItkOnly, TextFields, TextHeader, header_lines, open_text

_MAGIC = re.compile(rb"NRRD000[1-5]\r?\n")
# The most that the format's own library reads.
_MOST_AXES = 16

_TYPES = {
    "i1": "signed char|int8|int8_t",
    "u1": "uchar|unsigned char|uint8|uint8_t",
    "i2": "short|short int|signed short|signed short int|int16|int16_t",
    "u2": "ushort|unsigned short|unsigned short int|uint16|uint16_t",
    "i4": "int|signed int|int32|int32_t",
    "u4": "uint|unsigned int|uint32|uint32_t",
    "i8": "longlong|long long|long long int|signed long long|signed long long int|int64|int64_t",
    "u8": "ulonglong|unsigned long long|unsigned long long int|uint64|uint64_t",
    "f4": "float",
    "f8": "double",
}
_CODES = {name: code for code, names in _TYPES.items() for name in names.split("|")}
_ENCODINGS = {"raw": "raw", "gzip": "gzip", "gz": "gzip", "bzip2": "bzip2", "bz2": "bzip2"}
_ITK_ENCODINGS = ("ascii", "text", "txt", "hex")
_ENDIANS = {"little": "<", "big": ">"}
_SPACES = {
    **dict.fromkeys(("right-anterior-superior", "ras", "rast"), (1.0, 1.0, 1.0)),
    **dict.fromkeys(("left-anterior-superior", "las", "last"), (-1.0, 1.0, 1.0)),
    **dict.fromkeys(("left-posterior-superior", "lps", "lpst"), RAS_OF_LPS),
}
_MILLIMETRES = {"mm": 1.0, "cm": 10.0, "m": 1000.0, "um": 1e-3, "µm": 1e-3, "μm": 1e-3, "nm": 1e-6}
_SPATIAL_KINDS = ("domain", "space")
_UNKNOWN_KINDS = ("???", "none")


def parse_nrrd(head: bytes, name: str) -> TextHeader:
    """Read the beginning of a NRRD file.

    ``BadHeader`` if it makes no sense, or does not end within ``head``; ``ItkOnly`` if only
    SimpleITK reads files like this.
    """
    fields, length = _fields(head, name)
    sizes = fields.lengths("dimension", "sizes", _MOST_AXES)
    spatial, affine = _geometry(fields, sizes)
    encoding = fields.get("encoding", "").lower()
    files = fields.files("datafile", head[length:], sizes) if fields.get("datafile") else ()
    if encoding in _ITK_ENCODINGS:
        raise ItkOnly(f"its encoding is {encoding}", files)
    if encoding not in _ENCODINGS:
        raise fields.error(f"its encoding is {encoding!r}")
    skip, lines = fields.integer("byteskip"), fields.integer("lineskip")
    if skip < -1 or lines < 0 or (skip == -1 and encoding != "raw"):
        raise fields.error(f"it skips {lines} lines and {skip} bytes of {encoding} voxels")
    if len(files) > 1 and (lines or skip == -1):
        raise fields.error(f"it skips {lines} lines and {skip} bytes of each of {len(files)} files")
    # 2-D voxels are one plane.
    padding = (1,) * (3 - len(spatial))
    axes = (*spatial, *range(len(sizes), len(sizes) + len(padding)))
    raw = RawHeader(
        shape=(*sizes, *padding),
        dtype=_dtype(fields),
        offset=max(skip, 0),
        affine=affine_entries(affine, name),
        axes=(axes[0], axes[1], axes[2]),
    )
    start = 0 if files else length
    return TextHeader(raw, _ENCODINGS[encoding], files, start, lines, from_end=skip == -1)


def _fields(head: bytes, name: str) -> tuple[TextFields, int]:
    """Return the fields by name, without spaces and in small letters, and the header's length."""
    magic, fields = _MAGIC.match(head), TextFields(name, "NRRD")
    if magic is None:
        do = what_to_do(head, "Check how the file was written.")
        raise fields.error(f"it begins with {head[:9]!r}", do)
    for text, at in header_lines(head, magic.end()):
        line = text.rstrip("\r")
        if not line:
            return fields, at
        if line.startswith("#") or ":=" in line:
            continue  # a comment, or a note of the user's
        key, colon, value = line.partition(":")
        if not colon:
            raise fields.error(f"it has a line {line[:40]!r}")
        key = key.replace(" ", "").lower()
        if key in fields:
            raise fields.error(f"it gives {key!r} twice")
        fields[key] = value.strip()
        if key == "datafile" and fields[key].startswith("LIST"):
            return fields, at  # the rest of the file is the list
    if not fields.get("datafile"):
        raise fields.error("it does not end")
    return fields, len(head)


def _dtype(fields: TextFields) -> np.dtype[np.generic]:
    code = _CODES.get(" ".join(fields.get("type", "").lower().split()))
    if code is None:
        raise fields.error(f"its type is {fields.get('type')!r}")
    endian = _ENDIANS.get(fields.get("endian", "").lower())
    if endian is None and ("endian" in fields or int(code[1]) > 1):
        raise fields.error(f"its endian is {fields.get('endian')!r}")
    return np.dtype((endian or "|") + code)


def _geometry(fields: TextFields, sizes: Sequence[int]) -> tuple[tuple[int, ...], Affine]:
    """Return which axes are spatial, one to three of them, and the affine."""
    count = len(sizes)
    kinds = fields.get("kinds", "").lower().split()
    if kinds and len(kinds) != count:
        raise fields.error(f"it has {count} axes and {len(kinds)} kinds")
    directions = _vectors(fields, "spacedirections")
    if directions and len(directions) != count:
        raise fields.error(f"it has {count} axes and {len(directions)} space directions")
    if directions:
        spatial = [axis for axis, step in enumerate(directions) if step is not None]
    else:
        spatial = [a for a in range(count) if not kinds or kinds[a] in _SPATIAL_KINDS]
        spatial = spatial or [a for a in range(count) if kinds[a] in _UNKNOWN_KINDS]
    if not spatial:
        raise fields.error("none of its axes is spatial")
    spatial = spatial[:3]  # a fourth is time
    space = fields.get("space", "").lower()
    # A world with time has four axes.
    timed = space.endswith(("-time", "rast", "last", "lpst"))
    dimension = fields.integer("spacedimension", 4 if timed else 3)
    if directions:
        columns = [directions[axis] or () for axis in spatial]
        if any(len(step) != dimension for step in columns):
            raise fields.error(
                f"its world has {dimension} axes, and its space directions have others"
            )
        origin = (_vectors(fields, "spaceorigin") or [()])[0] or (0.0,) * dimension
        if len(origin) != dimension:
            raise fields.error(f"its world has {dimension} axes, and its origin {len(origin)}")
    else:
        columns, origin = _along_the_world(fields, spatial, count)
    affine = world_affine(columns, origin, _SPACES.get(space.removesuffix("-time"), RAS_OF_LPS))
    # An unknown unit counts as a millimetre.
    units = (*re.findall(r'"([^"]*)"', fields.get("spaceunits", "")), "", "", "")[:3]
    affine[:3] *= np.array([[_MILLIMETRES.get(unit.strip(), 1.0)] for unit in units])
    return tuple(spatial), affine


def _along_the_world(
    fields: TextFields, spatial: Sequence[int], count: int
) -> tuple[list[tuple[float, ...]], tuple[float, ...]]:
    """Return steps along the world's axes, from spacings and axis mins."""
    spacings = fields.numbers(("spacings",), count) or (math.nan,) * count
    given = (_vectors(fields, "spaceorigin") or [None])[0]
    mins = fields.numbers(("axismins",), count) or (math.nan,) * count
    centres = fields.get("centerings", fields.get("centers", "")).lower().split()
    columns, origin = [], []
    for row, axis in enumerate(spatial):
        step = spacings[axis] if math.isfinite(spacings[axis]) and spacings[axis] else 1.0
        columns.append(tuple(step if other == row else 0.0 for other in range(3)))
        # A minimum is that of the first voxel's near face, if it is not said to be a node.
        is_node = len(centres) == count and centres[axis] == "node"
        first = mins[axis] + (0.0 if is_node else step / 2)
        origin.append(first if math.isfinite(first) else 0.0)
    return columns, given or tuple(origin)


def _vectors(fields: TextFields, key: str) -> list[tuple[float, ...] | None]:
    """Return the vectors of a field, None for an axis that is not spatial."""
    text = fields.get(key, "")
    if not re.fullmatch(r"(\s*(\([^()]*\)|none))*\s*", text):
        raise fields.error(f"its {key} are {text[:80]!r}")
    found: list[tuple[float, ...] | None] = []
    for part in re.findall(r"\([^()]*\)|none", text):
        try:
            numbers = None if part == "none" else tuple(map(float, part[1:-1].split(",")))
        except ValueError:
            raise fields.error(f"its {key} are {text[:80]!r}") from None
        # Some write nan for an axis that has no place.
        all_nan = numbers is not None and all(map(math.isnan, numbers))
        found.append(None if all_nan else numbers)
    return found


FORMATS = (Format("nrrd", (".nrrd", ".nhdr"), partial(open_text, parse=parse_nrrd)),)
