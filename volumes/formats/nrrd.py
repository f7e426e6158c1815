"""NRRD (``.nrrd``, ``.nhdr``): raw voxels mapped or by range, compressed ones decoded once.

The text header of NRRD: which axes are spatial, where they lie, how the voxels are stored. It
follows the format's definition (teem.sourceforge.net/nrrd/format.html), and ITK where that leaves a
choice: a world that is not named is LPS, and without directions the axes go along the world's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from ...core import Affine
from ...core.errors import BadHeader
from ..backend import Backend
from ..header import affine_entries
from .raw import RawHeader, at_the_end, open_raw
from .stored_file import StoredFile, what_to_do
from .text_header import (
    RAS_OF_LPS,
    ItkOnly,
    axis_lengths,
    header_lines,
    listed_files,
    open_spread,
    world_affine,
)

_MAGIC = re.compile(rb"NRRD000[1-5]\r?\n")
# The most that the format's own library reads.
MOST_AXES = 16

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
    "right-anterior-superior": (1.0, 1.0, 1.0),
    "left-anterior-superior": (-1.0, 1.0, 1.0),
    "left-posterior-superior": RAS_OF_LPS,
}
_SHORT = {"ras": "right-anterior-superior", "las": "left-anterior-superior"}
_SHORT |= {"lps": "left-posterior-superior"}
_MILLIMETRES = {"mm": 1.0, "cm": 10.0, "m": 1000.0, "um": 1e-3, "µm": 1e-3, "μm": 1e-3, "nm": 1e-6}
_SPATIAL_KINDS = ("domain", "space")
_UNKNOWN_KINDS = ("???", "none")


@dataclass(frozen=True)
class NrrdHeader:
    """What a NRRD header says."""

    raw: RawHeader
    """The voxels; ``offset`` is the byte skip."""
    encoding: str
    """``"raw"``, ``"gzip"`` or ``"bzip2"``."""
    data_files: tuple[str, ...]
    """Other files that hold the voxels, none where they follow the header."""
    line_skip: int
    """Lines before them."""
    from_end: bool
    """Whether the voxels are the last bytes of the file (a byte skip of -1)."""
    length: int
    """Bytes of the header, the empty line included."""


def parse_nrrd(head: bytes, name: str) -> NrrdHeader:
    """Read the beginning of a NRRD file.

    Raises
    ------
    BadHeader
        It makes no sense, or does not end within ``head``.
    ItkOnly
        Only SimpleITK reads files like this.
    """
    fields, length = _fields(head, name)
    sizes = _sizes(fields, name)
    spatial, affine = _geometry(fields, sizes, name)
    encoding = fields.get("encoding", "").lower()
    reference = fields.get("datafile", "")
    following = head[length:].decode("utf-8", "replace").splitlines()
    files = listed_files(reference, following, math.prod(sizes), name) if reference else ()
    if encoding in _ITK_ENCODINGS:
        raise ItkOnly(f"its encoding is {encoding}", files)
    if encoding not in _ENCODINGS:
        _bad(name, f"its encoding is {encoding!r}")
    skip, lines = (_integer(fields, key, name) for key in ("byteskip", "lineskip"))
    if skip < -1 or lines < 0 or (skip == -1 and encoding != "raw"):
        _bad(name, f"it skips {lines} lines and {skip} bytes of {encoding} voxels")
    # 2-D voxels are one plane.
    padding = [1] * (3 - len(spatial))
    axes = (*spatial, *range(len(sizes), len(sizes) + len(padding)))
    raw = RawHeader(
        shape=(*sizes, *padding),
        dtype=_dtype(fields, _ENCODINGS[encoding], name),
        offset=max(skip, 0),
        affine=affine_entries(affine, name),
        axes=(axes[0], axes[1], axes[2]),
    )
    if len(files) > 1 and (lines or skip == -1):
        _bad(name, f"it skips {lines} lines and {skip} bytes of each of {len(files)} files")
    return NrrdHeader(raw, _ENCODINGS[encoding], files, lines, skip == -1, length)


def _bad(name: str, why: str) -> NoReturn:
    raise BadHeader(f"{name} has no sound NRRD header: {why}.", do="Check how the file was written")


def _fields(head: bytes, name: str) -> tuple[dict[str, str], int]:
    """Return the fields by name, without spaces and in small letters, and the header's length."""
    magic = _MAGIC.match(head)
    if magic is None:
        why = f"it begins with {head[:9]!r}"
        do = what_to_do(head, "Check how the file was written.")
        raise BadHeader(f"{name} has no sound NRRD header: {why}.", do=do)
    fields: dict[str, str] = {}
    for text, at in header_lines(head, magic.end()):
        line = text.rstrip("\r")
        if not line:
            return fields, at
        if line.startswith("#") or ":=" in line:
            continue  # a comment, or a note of the user's
        key, colon, value = line.partition(":")
        if not colon:
            _bad(name, f"it has a line {line[:40]!r}")
        key = key.replace(" ", "").lower()
        if key in fields:
            _bad(name, f"it gives {key!r} twice")
        fields[key] = value.strip()
        if key == "datafile" and fields[key].startswith("LIST"):
            return fields, at  # the rest of the file is the list
    if not fields.get("datafile"):
        _bad(name, "it does not end")
    return fields, len(head)


def _integer(fields: dict[str, str], key: str, name: str, default: str = "0") -> int:
    try:
        return int(fields.get(key, default))
    except ValueError:
        _bad(name, f"its {key} is {fields[key][:40]!r}")


def _sizes(fields: dict[str, str], name: str) -> tuple[int, ...]:
    count = _integer(fields, "dimension", name, "-1")
    text = fields.get("sizes", "")
    sizes = axis_lengths(text, count, MOST_AXES)
    if sizes is None:
        _bad(name, f"its dimension is {count} and its sizes are {text[:80]!r}")
    return sizes


def _dtype(fields: dict[str, str], encoding: str, name: str) -> np.dtype[np.generic]:
    code = _CODES.get(" ".join(fields.get("type", "").lower().split()))
    if code is None:
        _bad(name, f"its type is {fields.get('type')!r}")
    endian = _ENDIANS.get(fields.get("endian", "").lower())
    if endian is None and ("endian" in fields or int(code[1]) > 1):
        _bad(name, f"its endian is {fields.get('endian')!r}")
    return np.dtype((endian or "|") + code)


def _geometry(
    fields: dict[str, str], sizes: Sequence[int], name: str
) -> tuple[tuple[int, ...], Affine]:
    """Return which axes are spatial, one to three of them, and the affine."""
    count = len(sizes)
    kinds = fields.get("kinds", "").lower().split()
    if kinds and len(kinds) != count:
        _bad(name, f"it has {count} axes and {len(kinds)} kinds")
    directions = _vectors(fields, "spacedirections", name)
    if directions and len(directions) != count:
        _bad(name, f"it has {count} axes and {len(directions)} space directions")
    if directions:
        spatial = [axis for axis, step in enumerate(directions) if step is not None]
    else:
        spatial = [a for a in range(count) if not kinds or kinds[a] in _SPATIAL_KINDS]
        spatial = spatial or [a for a in range(count) if kinds[a] in _UNKNOWN_KINDS]
    if not spatial:
        _bad(name, "none of its axes is spatial")
    spatial = spatial[:3]  # a fourth is time
    dimension = _world_axes(fields, name)
    if directions:
        columns = [directions[axis] or () for axis in spatial]
        if any(len(step) != dimension for step in columns):
            _bad(name, f"its world has {dimension} axes, and its space directions have others")
        origin = (_vectors(fields, "spaceorigin", name) or [()])[0] or (0.0,) * dimension
        if len(origin) != dimension:
            _bad(name, f"its world has {dimension} axes, and its origin {len(origin)}")
    else:
        columns, origin = _along_the_world(fields, spatial, count, name)
    affine = world_affine(columns, origin, _signs(fields, name))
    affine[:3] *= _units(fields, name)[:, None]
    return tuple(spatial), affine


def _along_the_world(
    fields: dict[str, str], spatial: Sequence[int], count: int, name: str
) -> tuple[list[tuple[float, ...]], tuple[float, ...]]:
    """Return steps along the world's axes, from spacings and axis mins."""
    spacings = _numbers(fields, "spacings", count, name)
    given = (_vectors(fields, "spaceorigin", name) or [None])[0]
    mins = _numbers(fields, "axismins", count, name)
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


def _numbers(fields: dict[str, str], key: str, count: int, name: str) -> tuple[float, ...]:
    text = fields.get(key)
    if text is None:
        return (math.nan,) * count
    try:
        found = tuple(map(float, text.split()))
    except ValueError:
        found = ()
    if len(found) != count:
        _bad(name, f"its {key} are {text[:80]!r}")
    return found


def _vectors(fields: dict[str, str], key: str, name: str) -> list[tuple[float, ...] | None]:
    """Return the vectors of a field, None for an axis that is not spatial."""
    text = fields.get(key, "")
    if not re.fullmatch(r"(\s*(\([^()]*\)|none))*\s*", text):
        _bad(name, f"its {key} are {text[:80]!r}")
    found: list[tuple[float, ...] | None] = []
    for part in re.findall(r"\([^()]*\)|none", text):
        try:
            numbers = None if part == "none" else tuple(map(float, part[1:-1].split(",")))
        except ValueError:
            _bad(name, f"its {key} are {text[:80]!r}")
        # Some write nan for an axis that has no place.
        all_nan = numbers is not None and all(map(math.isnan, numbers))
        found.append(None if all_nan else numbers)
    return found


def _space(fields: dict[str, str]) -> str:
    space = fields.get("space", "").lower().removesuffix("-time")
    space = space[:-1] if space in ("rast", "last", "lpst") else space
    return _SHORT.get(space, space)


def _world_axes(fields: dict[str, str], name: str) -> int:
    """Return how many axes the world has."""
    if "spacedimension" in fields:
        return _integer(fields, "spacedimension", name)
    timed = fields.get("space", "").lower().endswith(("-time", "rast", "last", "lpst"))
    return 4 if timed else 3


def _signs(fields: dict[str, str], name: str) -> tuple[float, ...]:
    return _SPACES.get(_space(fields), RAS_OF_LPS)


def _units(fields: dict[str, str], name: str) -> Affine:
    """Return the millimetres in a unit, per world axis; unknown counts as one."""
    units = re.findall(r'"([^"]*)"', fields.get("spaceunits", ""))
    found = [_MILLIMETRES.get(unit.strip(), 1.0) for unit in (*units, "", "", "")[:3]]
    return np.array(found, dtype=np.float64)


# Headers are text of some hundred bytes; notes of the user's may make them longer.
HEAD_BYTES = 256 * 1024


def open_nrrd(file: StoredFile) -> Backend:
    """Open a NRRD by its header, which may be in front of the voxels or beside them."""
    try:
        found = parse_nrrd(file.head(HEAD_BYTES), file.name)
    except ItkOnly as why:
        from .itk import open_with_itk

        return open_with_itk(file, why)
    if len(found.data_files) > 1:
        raw, skip = replace(found.raw, offset=0), found.raw.offset
        return open_spread(raw, file, found.data_files, encoding=found.encoding, skip=skip)
    data = file.beside(found.data_files[0]) if found.data_files else file
    skip = 0 if found.data_files else found.length
    if found.line_skip:
        skip = _after_lines(data, skip, found.line_skip)
    raw = found.raw
    if found.from_end:
        raw = at_the_end(raw, file, data, skip)
    elif found.encoding == "raw":
        raw = replace(raw, offset=raw.offset + skip)
    files = [file] if data is file else [file, data]
    return open_raw(raw, files, file.name, encoding=found.encoding, skip=skip)


def _after_lines(file: StoredFile, start: int, count: int) -> int:
    """Return where the text after some lines begins."""
    head = file.head(start + HEAD_BYTES)
    for _ in range(count):
        start = head.find(b"\n", start) + 1
        if not start:
            raise BadHeader(
                f"{file.name} has fewer lines than the {count} that its header skips.",
                do="Check how the file was written.",
            )
    return start
