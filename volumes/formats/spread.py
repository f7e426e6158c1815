"""Voxels of one volume in many files, one after another: MetaImage's and NRRD's lists of planes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import BinaryIO

from ...core import TALLY
from ...core.errors import BadHeader, TruncatedVolume
from ...storage.decompress import copy, decompress
from ..backend import Backend
from ..raw_header import RawHeader
from .raw_backends import DecodedRaw
from .stored_file import StoredFile

MOST_FILES = 2**16
"""A pattern names as many files as it says: more planes than this no scanner makes."""
_PATTERN = re.compile(
    r"(?P<text>[^%]*%0?\d{0,2}d[^%\s]*)\s+(?P<numbers>-?\d{1,9}\s+-?\d{1,9}\s+-?\d{1,9})(\s+\d+)?"
)


def listed_files(reference: str, following: Sequence[str], most: int, name: str) -> tuple[str, ...]:
    """Return the files that a header names.

    Parameters
    ----------
    reference
        One file; ``LIST`` with the names on the following lines; or a pattern for
        numbers, with the first, the last and the step.
    following
        The lines after it.
    most
        More files than this, or than :data:`MOST_FILES`, are refused.
    name
        What errors call the header.

    Examples
    --------
    >>> listed_files("a%02d.raw 1 7 3", (), 10, "a.mhd")
    ('a01.raw', 'a04.raw', 'a07.raw')
    """
    if reference.split()[0] == "LIST":
        found = tuple(line.strip() for line in following if line.strip())
    elif "%" in reference:
        match = _PATTERN.fullmatch(reference)
        numbers = tuple(map(int, match["numbers"].split())) if match else (0, 0, 0)
        first, last, step = numbers
        count = (last - first) // step + 1 if step else 0
        if match is None or not 1 <= count <= min(most, MOST_FILES):
            raise BadHeader(
                f"{name} names its files as {reference[:80]!r}.",
                do="Give a pattern, the first number, the last and the step.",
            )
        found = tuple(match["text"] % n for n in range(first, first + count * step, step))
    else:
        return (reference,)
    if not 1 <= len(found) <= min(most, MOST_FILES):
        raise BadHeader(f"{name} lists {len(found)} files.", do="List the files of the voxels.")
    return found


def open_spread(
    fields: RawHeader,
    header: StoredFile,
    names: Sequence[str],
    *,
    encoding: str,
    skip: int,
) -> Backend:
    """Return the backend of voxels in several files, which are put together once when read.

    Parameters
    ----------
    fields
        What the header says; the voxels of all files, one after another.
    header
        The header's file; the others lie beside it.
    names
        The files, in order. Each holds the same number of bytes.
    encoding
        ``"raw"``, or how each of them is compressed.
    skip
        Bytes of each file before its voxels.

    Raises
    ------
    TruncatedVolume
        A file does not have the length that it should have.
    """
    part, rest = divmod(fields.voxel_bytes, len(names))
    if rest:
        raise BadHeader(
            f"{header.name} spreads {fields.voxel_bytes} bytes of voxels over {len(names)} files.",
            do="Check whether a file is missing from the list.",
        )
    files = [header.beside(name) for name in names]
    for file in files if encoding == "raw" else ():
        # A longer one is compressed, or of another volume.
        if file.size != skip + part:
            raise TruncatedVolume(
                f"{file.name} holds {file.size} bytes, and should hold {skip + part}.",
                do="Copy or download the file again, and check what the header says of it.",
            )

    def write(raw: BinaryIO) -> None:
        for file in files:
            with file.open() as stream:
                stream.seek(skip)
                if encoding == "raw":
                    copy(stream, raw, part, file.name)
                else:
                    decompress(stream, raw, encoding, part, file.name)

    TALLY.count(headers=1)
    return DecodedRaw(fields, [header, *files], header.name, write)
