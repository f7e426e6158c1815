"""What the text headers of NRRD and MetaImage have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, Affine
from ...core.errors import BadHeader, TruncatedVolume
from ...storage.decompress import copy, decompress
from ..backend import Backend
from .raw import DecodedRaw, RawHeader
from .stored_file import StoredFile


def header_lines(head: bytes, at: int = 0) -> Iterator[tuple[str, int]]:
    r"""Yield each line from byte ``at`` on, without its end, and where the next one begins.

    Examples
    --------
    >>> list(header_lines(b"NDims = 3\n\xff"))
    [('NDims = 3', 10), ('\ufffd', 12)]
    """
    while at < len(head):
        end = head.find(b"\n", at)
        end = len(head) if end < 0 else end
        line = head[at:end].decode("utf-8", "replace")
        at = end + 1
        yield line, at


# No file system holds more bytes in one file.
_LONGEST = 2**63


def axis_lengths(text: str, count: int, most: int) -> tuple[int, ...] | None:
    """Return the lengths of ``count`` axes; None if they are others, or more than ``most``.

    Examples
    --------
    >>> axis_lengths("64 64 30", 3, 10), axis_lengths("64 0 30", 3, 10)
    ((64, 64, 30), None)
    """
    try:
        lengths = tuple(map(int, text.split()))
    except ValueError:
        return None
    fits = 1 <= count <= most and len(lengths) == count
    return lengths if fits and all(1 <= length < _LONGEST for length in lengths) else None


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

    IO_COUNTERS.count(headers=1)
    return DecodedRaw(fields, [header, *files], header.name, write)


# Left and posterior are counted the other way round.
RAS_OF_LPS = (-1.0, -1.0, 1.0)


def world_affine(
    columns: Sequence[Sequence[float]],
    origin: Sequence[float],
    signs: Sequence[float] = RAS_OF_LPS,
) -> Affine:
    """Return the 4x4 matrix, RAS+, of steps along the voxel axes and the first voxel's place.

    Parameters
    ----------
    columns
        For each of up to three voxel axes, the step in the world. World axes beyond
        the third (time) are dropped; missing ones are filled in, one unit long.
    origin
        World coordinates of voxel (0, 0, 0).
    signs
        What turns each world axis into R, A, S; by default it is LPS.

    Examples
    --------
    >>> world_affine([(2, 0), (0, 3)], (10, 20))[:3].tolist()
    [[-2.0, 0.0, 0.0, -10.0], [0.0, -3.0, 0.0, -20.0], [0.0, 0.0, 1.0, 0.0]]
    """
    affine: NDArray[np.float64] = np.eye(4)
    for axis, step in enumerate(columns):
        affine[:3, axis] = (*step, 0.0, 0.0, 0.0)[:3]
    affine[:3, 3] = (*origin, 0.0, 0.0, 0.0)[:3]
    affine[:3] *= np.array(signs)[:, None]
    return affine + 0.0  # no negative zeros


class ItkOnly(Exception):
    """The file is sound as far as can be told, and SimpleITK can read it.

    Parameters
    ----------
    why
        What SimpleITK is needed for.
    data_files
        Other files that the header names, which SimpleITK opens.
    """

    def __init__(self, why: str, data_files: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.data_files = data_files
