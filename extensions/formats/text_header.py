"""Voxels that a header of text describes: NRRD and MetaImage.

Raw voxels are mapped or read by range, compressed ones decoded once. NRRD follows the format's
definition (teem.sourceforge.net/nrrd/format.html), and ITK for undefined cases. An unnamed world
is LPS, and axes without directions are those of the world. MetaImage has lines ``Key = value``; the
last one names the voxels. As in ITK, rows of the matrix are the directions of the voxel axes, in
LPS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO, TypeVar

import numpy as np

from ...core import IO_COUNTERS, Affine
from ...core.errors import BadHeader
from ...core.suggest import closest
from ...storage.decompress import copy, decompress
from ...volumes.backend import Backend
from ...volumes.formats.chunked_backend import factors_in, millimetres_in
from ...volumes.formats.raw import (
    RAS_OF_LPS,
    LocalRaw,
    RawHeader,
    SplitRaw,
    fastest_first,
    open_raw,
    world_affine,
)
from ...volumes.formats.stored_file import Format, StoredFile, check_size, what_to_do
from ...volumes.header import PLACEMENT, affine_entries, stored_affine
from .itk import open_with_itk

_NRRD_MAGIC = re.compile(rb"NRRD000[1-5]\r?\n")
_NRRD_KEYS = (
    "number type blocksize dimension sizes labels min max oldmin oldmax "
    "sampleunits endian encoding lineskip byteskip datafile"
)
_NRRD_PLACE = (
    "space spacedimension spaceunits spaceorigin spacedirections measurementframe spacings "
    "axismins axismaxs centerings centers kinds units"
)
_MISSPELT = 0.85  # of the ratio of difflib: one letter of seven
# The most that the format's own library reads.
_MOST_NRRD_AXES = 16

# Names in NRRD, then in MetaImage, whose longs have four bytes on any machine.
_TYPES = {
    "i1": "signed char|int8|int8_t|MET_CHAR",
    "u1": "uchar|unsigned char|uint8|uint8_t|MET_UCHAR",
    "i2": "short|short int|signed short|signed short int|int16|int16_t|MET_SHORT",
    "u2": "ushort|unsigned short|unsigned short int|uint16|uint16_t|MET_USHORT",
    "i4": "int|signed int|int32|int32_t|MET_INT|MET_LONG",
    "u4": "uint|unsigned int|uint32|uint32_t|MET_UINT|MET_ULONG",
    "i8": "longlong|long long|long long int|signed long long|signed long long int|int64|int64_t"
    "|MET_LONG_LONG",
    "u8": "ulonglong|unsigned long long|unsigned long long int|uint64|uint64_t|MET_ULONG_LONG",
    "f4": "float|MET_FLOAT",
    "f8": "double|MET_DOUBLE",
}
_CODES = {name: code for code, names in _TYPES.items() for name in names.split("|")}
_ENCODINGS = {"raw": "raw", "gzip": "gzip", "gz": "gzip", "bzip2": "bzip2", "bz2": "bzip2"}
_ITK_ENCODINGS = ("ascii", "text", "txt", "hex")
_ENDIANS = {"little": "<", "big": ">"}
_SPACES = {
    **dict.fromkeys(("right-anterior-superior", "ras", "rast"), (1.0, 1.0, 1.0)),
    **dict.fromkeys(("left-anterior-superior", "las", "last"), (-1.0, 1.0, 1.0)),
    **dict.fromkeys(("left-posterior-superior", "lps", "lpst"), RAS_OF_LPS),
    **dict.fromkeys(("", "scanner-xyz", "3d-right-handed", "3d-left-handed"), RAS_OF_LPS),
}
_SPATIAL_KINDS = ("domain", "space")
_UNKNOWN_KINDS = ("???", "none")
_LAST_KEY = "ElementDataFile"
_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_MOST_META_AXES = 10  # as in the format's own library

# Headers are text of some hundred bytes; notes of the user's may make them longer.
HEAD_BYTES = 256 * 1024
# No file system holds more bytes in one file.
_LONGEST = 2**63
MOST_FILES = 2**16
"""A pattern names as many files as it says: more planes than this no scanner makes."""
_PATTERN = re.compile(
    r"(?P<text>[^%]*%0?\d{0,2}d[^%\s]*)\s+(?P<numbers>-?\d{1,9}\s+-?\d{1,9}\s+-?\d{1,9})(\s+\d+)?"
)
N = TypeVar("N", int, float)


class ItkOnly(Exception):
    """The reason why only SimpleITK can read the file, with data files and affine of the header."""

    def __init__(self, why: str, data_files: Sequence[str], affine: tuple[float, ...]) -> None:
        super().__init__(why)
        self.data_files, self.affine = data_files, affine


@dataclass(frozen=True)
class TextHeader:
    """The fields of a header that locate and describe the voxels."""

    raw: RawHeader  # the voxels; ``offset`` counts from where the stream begins
    encoding: str  # ``"raw"``, or how the stream is compressed
    data_files: tuple[str, ...]  # with the voxels; empty if these follow the header
    skip: int  # bytes before the stream, in the file that holds it
    line_skip: int = 0  # lines between these and the stream
    from_end: bool = False  # whether the voxels are the last bytes of the file


class TextFields(dict[str, str]):
    """The fields of a header by name. Invalid values are an error."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        self.name, self._kind = name, kind

    def error(self, why: str, do: str = "") -> BadHeader:
        """Return the error of a header that makes no sense."""
        return BadHeader(f"{self.name} has no sound {self._kind} header: {why}.", do=do)

    def check_spelling(self, key: str, keys: str, place: str) -> None:
        """Raise ``BadHeader`` if a field has almost the name of a known one.

        The names of ``place`` are irrelevant with ``affine=``.
        """
        names = {name.lower(): name for name in f"{keys} {place}".split()}
        same = names.get(re.sub("[ _-]", "", key.lower()))
        near = [same] if same else closest(key, names.values(), _MISSPELT)
        for name in () if key in near else near:
            if not PLACEMENT.get().has_affine or name in keys.split():
                why = f"it has a field {key!r}; should that be {name}?"
                or_affine = ", or pass ⟦affine=⟧." if name in place.split() else "."
                raise self.error(why, f"Correct the name{or_affine}")

    def integer(self, key: str, default: int = 0) -> int:
        """Return a field as a number."""
        try:
            return int(self.get(key, default))
        except ValueError:
            raise self.error(f"its {key} is {self[key][:40]!r}") from None

    def numbers(self, keys: Sequence[str], count: int) -> tuple[float, ...] | None:
        """Return the first of some fields that is there, as ``count`` numbers; None without any."""
        by_key = {key: _as_numbers(self[key].split(), float) for key in keys if key in self}
        for key, values in by_key.items():
            if len(values) != count:
                raise self.error(f"its {key} is {self[key][:80]!r}")
        if len({*by_key.values()}) > 1 and "ElementSize" not in by_key:
            raise self.error(f"its {' and '.join(by_key)} differ", "Pass ⟦affine=⟧.")
        return next(iter(by_key.values()), None)

    def lengths(self, count_key: str, key: str, most: int) -> tuple[int, ...]:
        """Return the lengths of the axes; no more axes than ``most``."""
        count, text = self.integer(count_key, -1), self.get(key, "")
        lengths = _as_numbers(text.split(), int)
        fits = 1 <= count <= most and len(lengths) == count
        if not fits or not all(1 <= length < _LONGEST for length in lengths):
            raise self.error(f"its {count_key} is {count} and its {key} {text[:80]!r}")
        return lengths

    def files(self, key: str, rest: bytes, sizes: Sequence[int]) -> tuple[str, ...]:
        """Return the files of the voxels: one, ``LIST`` and the lines after it, or a pattern.

        A pattern is for numbers: the first, the last and the step follow it.
        """
        reference, most = self[key], min(math.prod(sizes), MOST_FILES)
        if reference.split()[0] == "LIST":
            lines = rest.decode("utf-8", "replace").splitlines()
            names = tuple(line.strip() for line in lines if line.strip())
            if not 1 <= len(names) <= most:
                raise BadHeader(f"{self.name} lists {len(names)} files.")
            return names
        if "%" not in reference:
            return (reference,)
        match = _PATTERN.fullmatch(reference)
        first, last, step = map(int, match["numbers"].split()) if match else (0, 0, 0)
        count = (last - first) // step + 1 if step else 0
        if match is None or not 1 <= count <= most:
            what = f"{self.name} names its files as {reference[:80]!r}."
            raise BadHeader(what, do="Give a pattern, the first number, the last and the step.")
        return tuple(match["text"] % n for n in range(first, first + count * step, step))


def _as_numbers(words: Sequence[str], number: Callable[[str], N]) -> tuple[N, ...]:
    """Return words as numbers; none where one of them is no number."""
    try:
        return tuple(map(number, words))
    except ValueError:
        return ()


def header_lines(head: bytes, at: int = 0) -> Iterator[tuple[str, int]]:
    r"""Yield each line from byte ``at`` on, without its end, and where the next one begins.

    Examples
    --------
    >>> list(header_lines(b"NDims = 3\n\xff"))
    [('NDims = 3', 10), ('\xff', 12)]
    """
    while at < len(head):
        end = head.find(b"\n", at)
        end = len(head) if end < 0 else end
        line, at = head[at:end], end + 1
        try:
            yield line.decode(), at
        except UnicodeDecodeError:  # of older programs, and of voxels
            yield line.decode("latin-1"), at


def open_text(file: StoredFile, parse: Callable[[bytes, str], TextHeader]) -> Backend:
    """Open a file by its header, which may be in the file of the voxels or in its own."""
    try:
        header = parse(file.head(HEAD_BYTES), file.name)
    except ItkOnly as why:
        backend = open_with_itk(file, str(why), why.data_files)
        backend.header = replace(backend.header, affine=why.affine)  # ITK ignores units
        return backend
    beside = [file.beside(name) for name in header.data_files]
    if not header.from_end and file.content_key in [one.content_key for one in beside]:
        what = f"{file.name} names itself as the file of its voxels."
        raise BadHeader(what, do="Name the file that holds the voxels, or LOCAL.")
    if len(beside) > 1:
        return _open_several(header, file, beside)
    data = beside[0] if beside else file
    skip, fields = header.skip, header.raw
    text = data.head(skip + HEAD_BYTES) if header.line_skip else b""
    for _ in range(header.line_skip):
        skip = text.find(b"\n", skip) + 1
        if not skip:
            what = f"{data.name} has fewer lines than the {header.line_skip} that its header skips."
            raise BadHeader(what)
    if header.from_end:
        check_size(data.name, data.size, skip + fields.voxel_bytes)
        fields = replace(fields, offset=data.size - fields.voxel_bytes)
    elif header.encoding == "raw":
        fields = replace(fields, offset=fields.offset + skip)
    files = [file] if data is file else [file, data]
    return open_raw(fields, files, file.name, encoding=header.encoding, skip=skip)


def _open_several(
    header: TextHeader, header_file: StoredFile, files: Sequence[StoredFile]
) -> Backend:
    """Return the backend of voxels in several files, each with the same number of bytes, in order.

    Raw voxels are read where they are. Compressed ones, and files that end within an entry of each
    axis, are put together once when read.
    """
    skip, fields = header.skip + header.raw.offset, replace(header.raw, offset=0)
    count, name = len(files), header_file.name
    part, rest = divmod(fields.voxel_bytes, count)
    if rest:
        msg = f"{name} spreads {fields.voxel_bytes} bytes of voxels over {count} files."
        raise BadHeader(msg, do="Check whether a file is missing from the list.")
    is_raw = header.encoding == "raw"
    for file in files if is_raw else ():
        check_size(file.name, file.size, skip + part)
    starts = [file.size - part if header.from_end else skip for file in files] if is_raw else []
    IO_COUNTERS.count(headers=1)
    sizes = fields.layout.sizes
    leads = [n for n in range(1, len(sizes)) if math.prod(sizes[:n]) % count == 0]
    if is_raw and leads:
        counts = [math.prod(sizes[: leads[0]]) // count] * count
        several = [header_file, *files]
        return SplitRaw(fields, several, name, lead=leads[0], counts=counts, starts=starts)

    def write(raw: BinaryIO) -> None:
        for file, start in zip(files, starts or [skip] * count, strict=True):
            with file.open() as stream:
                stream.seek(start)
                if is_raw:
                    copy(stream, raw, part, file.name)
                else:
                    decompress(stream, raw, header.encoding, part, file.name)

    return LocalRaw(fields, [header_file, *files], name, write)


def parse_nrrd(head: bytes, name: str) -> TextHeader:
    """Read the beginning of a NRRD file.

    ``BadHeader`` if it makes no sense, or does not end within ``head``; ``ItkOnly`` if only
    SimpleITK reads files like this.
    """
    fields, length = _nrrd_fields(head, name)
    sizes = fields.lengths("dimension", "sizes", _MOST_NRRD_AXES)
    spatial = _spatial_axes(fields, len(sizes))
    affine = stored_affine(lambda: affine_entries(_nrrd_affine(fields, spatial, sizes), name))
    encoding = fields.get("encoding", "").lower()
    files = fields.files("datafile", head[length:], sizes) if fields.get("datafile") else ()
    if encoding in _ITK_ENCODINGS:
        raise ItkOnly(f"its encoding is {encoding}", files, affine)
    if encoding not in _ENCODINGS:
        raise fields.error(f"its encoding is {encoding!r}")
    skip, lines = fields.integer("byteskip"), fields.integer("lineskip")
    if skip < -1 or lines < 0 or (skip == -1 and encoding != "raw"):
        raise fields.error(f"it skips {lines} lines and {skip} bytes of {encoding} voxels")
    if len(files) > 1 and lines:
        raise fields.error(f"it skips {lines} lines of each of {len(files)} files")
    # 2-D voxels are one plane.
    padding = (1,) * (3 - len(spatial))
    axes = (*spatial, *range(len(sizes), len(sizes) + len(padding)))
    layout = fastest_first((*sizes, *padding), (axes[0], axes[1], axes[2]))
    raw = RawHeader(layout, _nrrd_dtype(fields), max(skip, 0), affine)
    start = 0 if files else length
    return TextHeader(raw, _ENCODINGS[encoding], files, start, lines, from_end=skip == -1)


def _nrrd_fields(head: bytes, name: str) -> tuple[TextFields, int]:
    """Return the fields by name, without spaces and in small letters, and the header's length."""
    magic, fields = _NRRD_MAGIC.match(head), TextFields(name, "NRRD")
    if magic is None:
        raise fields.error(f"it begins with {head[:9]!r}", what_to_do(head))
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
        fields.check_spelling(key, _NRRD_KEYS, _NRRD_PLACE)
        if key in fields:
            raise fields.error(f"it gives {key!r} twice")
        fields[key] = value.strip()
        if key == "datafile" and fields[key].startswith("LIST"):
            return fields, at  # the rest of the file is the list
    if not fields.get("datafile"):
        raise fields.error("it does not end")
    return fields, len(head)


def _nrrd_dtype(fields: TextFields) -> np.dtype[np.generic]:
    code = _CODES.get(" ".join(fields.get("type", "").lower().split()))
    if code is None:
        raise fields.error(f"its type is {fields.get('type')!r}")
    endian = _ENDIANS.get(fields.get("endian", "").lower())
    if endian is None and ("endian" in fields or int(code[1]) > 1):
        raise fields.error(f"its endian is {fields.get('endian')!r}")
    return np.dtype((endian or "|") + code)


def _spatial_axes(fields: TextFields, count: int) -> tuple[int, ...]:
    """Return which axes are spatial, one to three of them."""
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
    return tuple(spatial[:3])  # a fourth is time


def _nrrd_affine(fields: TextFields, spatial: Sequence[int], sizes: Sequence[int]) -> Affine:
    """Return the affine of the spatial axes, RAS+."""
    directions, space = _vectors(fields, "spacedirections"), fields.get("space", "").lower()
    # A world with time has four axes.
    has_time = space.endswith(("-time", "rast", "last", "lpst"))
    dimension = fields.integer("spacedimension", 4 if has_time else 3)
    if directions:
        columns = [directions[axis] or () for axis in spatial]
        if any(len(step) != dimension for step in columns):
            why = f"its world has {dimension} axes, and its space directions have others"
            raise fields.error(why)
        origin = (_vectors(fields, "spaceorigin") or [()])[0] or (0.0,) * dimension
        if len(origin) != dimension:
            raise fields.error(f"its world has {dimension} axes, and its origin {len(origin)}")
    else:
        columns, origin = _along_the_world(fields, spatial, sizes)
    if space.removesuffix("-time") not in _SPACES:
        raise fields.error(f"its space is {space[:40]!r}", "Pass ⟦affine=⟧.")
    affine = world_affine(columns, origin, _SPACES[space.removesuffix("-time")])
    units, own = _units(fields, "spaceunits", dimension), _units(fields, "units", len(sizes))
    own = [own[axis] for axis in spatial] if any(own) else []
    # Oblique directions mix the axes of voxels and world: only a common unit fits both.
    if own and (units[: len(own)] not in ([], own) or (directions and len({*own}) > 1)):
        raise fields.error(f"its units {own} do not fit its space", "Pass ⟦affine=⟧ instead.")
    units = units or (own[:1] * 3 if directions else own)
    factors = factors_in(dict(zip("xyz", units, strict=False)), fields.name)
    affine[: len(factors)] *= np.reshape([*factors.values()], (-1, 1))
    return affine


def _units(fields: TextFields, key: str, count: int) -> list[str]:
    """Return the units of a field, one for each axis; none without the field."""
    text = fields.get(key, "")
    words = [phrase or word for phrase, word in re.findall(r'"([^"]*)"|([^\s"]+)', text)]
    if len(words) not in (0, count):
        do = f"Write {count} units in quotes, or pass ⟦affine=⟧."
        raise fields.error(f"its {key} are {text[:80]!r}", do)
    return words


def _along_the_world(
    fields: TextFields, spatial: Sequence[int], sizes: Sequence[int]
) -> tuple[list[tuple[float, ...]], tuple[float, ...]]:
    """Return steps along the world's axes, from spacings, axis mins and axis maxs."""
    count, keys = len(sizes), ("spacings", "axismins", "axismaxs")
    spacings, mins, maxs = (fields.numbers((k,), count) or (math.nan,) * count for k in keys)
    space_origin = (_vectors(fields, "spaceorigin") or [None])[0]
    centres = fields.get("centerings", fields.get("centers", "")).lower().split()
    columns, origin = [], []
    for row, axis in enumerate(spatial):
        # A minimum is that of the first voxel's near face, if it is not said to be a node.
        centre, extent = centres[axis] if len(centres) == count else "", maxs[axis] - mins[axis]
        is_node, nodes = centre == "node", extent / max(1, sizes[axis] - 1)
        between = nodes if is_node else extent / sizes[axis]
        step = next((s for s in (spacings[axis], between) if not math.isnan(s)), 1.0)
        steps = [between] if centre in ("node", "cell") else [between, nodes]
        if math.isfinite(extent) and not any(math.isclose(step, s, rel_tol=1e-3) for s in steps):
            raise fields.error("its spacings and its axis mins and maxs differ", "Pass ⟦affine=⟧.")
        columns.append(tuple(step if other == row else 0.0 for other in range(3)))
        first = mins[axis] + (0.0 if is_node else step / 2)
        origin.append(first if math.isfinite(first) else 0.0)
    return columns, space_origin or tuple(origin)


def _vectors(fields: TextFields, key: str) -> list[tuple[float, ...] | None]:
    """Return the vectors of a field, None for an axis that is not spatial."""
    text = fields.get(key, "")
    if not re.fullmatch(r"(\s*(\([^()]*\)|none))*\s*", text):
        raise fields.error(f"its {key} are {text[:80]!r}")
    vectors: list[tuple[float, ...] | None] = []
    for part in re.findall(r"\([^()]*\)|none", text):
        numbers = () if part == "none" else _as_numbers(part[1:-1].split(","), float)
        if not numbers and part != "none":
            raise fields.error(f"its {key} are {text[:80]!r}")
        # Some write nan for an axis that has no place.
        vectors.append(None if all(map(math.isnan, numbers)) else numbers)
    return vectors


def parse_metaimage(head: bytes, name: str) -> TextHeader:
    """Read the beginning of a MetaImage file.

    ``BadHeader`` if it makes no sense, or does not end within ``head``; ``ItkOnly`` if only
    SimpleITK reads files like this.
    """
    fields, length = _meta_fields(head, name)
    sizes = fields.lengths("NDims", "DimSize", _MOST_META_AXES)
    channels = fields.integer("ElementNumberOfChannels", 1)
    if channels < 1:
        raise fields.error(f"it has {channels} channels")
    is_local = fields[_LAST_KEY].upper() == "LOCAL"
    files = () if is_local else fields.files(_LAST_KEY, head[length:], sizes)
    is_compressed = _truth(fields, "CompressedData")
    affine = stored_affine(lambda: affine_entries(_meta_affine(fields, len(sizes)), name))
    if not _truth(fields, "BinaryData", default=True):
        raise ItkOnly("its voxels are text", files, affine)
    skip, lowest = fields.integer("HeaderSize"), length if is_local else 0
    if skip < -1 or 0 < skip < lowest or (skip == -1 and is_compressed):
        raise fields.error(f"its HeaderSize is {skip}")
    raw = RawHeader(fastest_first(sizes, colours=channels), _meta_dtype(fields), 0, affine)
    encoding = "zlib" if is_compressed else "raw"
    return TextHeader(raw, encoding, files, max(skip, lowest), from_end=skip == -1)


# The fields that describe voxels, and those of their place; notes may have any other name.
_META_KEYS = (
    "ObjectType ObjectSubType NDims BinaryData BinaryDataByteOrderMSB ElementByteOrderMSB "
    "CompressedData CompressedDataSize DimSize ElementType ElementNumberOfChannels HeaderSize "
    "ElementDataFile ElementMin ElementMax ElementToIntensityFunctionSlope "
    "ElementToIntensityFunctionOffset"
)
_META_PLACE = (
    "TransformMatrix Rotation Orientation Offset Position Origin CenterOfRotation "
    "AnatomicalOrientation DistanceUnits ElementSpacing ElementSize"
)


def _meta_fields(head: bytes, name: str) -> tuple[TextFields, int]:
    fields = TextFields(name, "MetaImage")
    for line, at in header_lines(head):
        if not line.strip():
            continue
        # ITK writes notes of any key, DICOM's tags too, and reads any row of separators.
        key, *values = (part.strip() for part in re.split(r"[=:][=:\s]*", line, maxsplit=1))
        if not values or not key or not key.isprintable():
            raise fields.error(f"it has a line {line[:40]!r}")
        (value,) = values
        fields.check_spelling(key, _META_KEYS, _META_PLACE)
        fields[key] = value
        if key == _LAST_KEY:
            if not value:
                raise fields.error(f"its {_LAST_KEY} is empty")
            return fields, at
    raise fields.error(f"it has no line {_LAST_KEY}")


def _truth(fields: TextFields, *keys: str, default: bool = False) -> bool:
    for key in keys:
        if key in fields:
            value = _TRUTHS.get(fields[key].lower())
            if value is None:
                raise fields.error(f"its {key} is {fields[key][:40]!r}")
            return value
    return default


def _meta_dtype(fields: TextFields) -> np.dtype[np.generic]:
    text = fields.get("ElementType", "")
    code = _CODES.get(text.removesuffix("_ARRAY")) if text.startswith("MET_") else None
    if code is None:
        raise fields.error(f"its ElementType is {text[:40]!r}")
    keys = "BinaryDataByteOrderMSB", "ElementByteOrderMSB"
    big, other = (_truth(fields, *each) for each in (keys, keys[::-1]))
    if big != other:
        raise fields.error(f"its {' and '.join(keys)} differ")
    return np.dtype((">" if big else "<") + code)


def _meta_affine(fields: TextFields, count: int) -> Affine:
    spacing = fields.numbers(("ElementSpacing", "ElementSize"), count) or (1.0,) * count
    origin = fields.numbers(("Offset", "Position", "Origin"), count) or (0.0,) * count
    keys = ("TransformMatrix", "Rotation", "Orientation")
    matrix = np.reshape(fields.numbers(keys, count * count) or np.eye(count), (count, count))
    rank = min(count, 3)
    with np.errstate(all="ignore"):  # the header refuses values that are not finite
        columns = [spacing[axis] * matrix[axis, :rank] for axis in range(rank)]
    affine = world_affine(columns, origin[:3])
    affine[:3] *= millimetres_in(fields.get("DistanceUnits", "").replace("?", ""), fields.name)
    return affine


FORMATS = (
    Format("nrrd", (".nrrd", ".nhdr"), partial(open_text, parse=parse_nrrd)),
    Format("metaimage", (".mha", ".mhd"), partial(open_text, parse=parse_metaimage)),
)
