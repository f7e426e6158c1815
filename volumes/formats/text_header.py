"""What the text headers of NRRD and MetaImage have in common, and how their voxels are opened."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from ...core import IO_COUNTERS
from ...core.errors import BadHeader, TruncatedVolume
from ...storage.decompress import copy, decompress
from ..backend import Backend
from .itk import open_with_itk
from .raw import LocalRaw, RawHeader, open_raw
from .stored_file import StoredFile

# Headers are text of some hundred bytes; notes of the user's may make them longer.
HEAD_BYTES = 256 * 1024
# No file system holds more bytes in one file.
_LONGEST = 2**63
MOST_FILES = 2**16
"""A pattern names as many files as it says: more planes than this no scanner makes."""
_PATTERN = re.compile(
    r"(?P<text>[^%]*%0?\d{0,2}d[^%\s]*)\s+(?P<numbers>-?\d{1,9}\s+-?\d{1,9}\s+-?\d{1,9})(\s+\d+)?"
)


class ItkOnly(Exception):
    """Only SimpleITK can read the file, for the reason given: it, and what the header names."""

    def __init__(self, why: str, data_files: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.data_files = data_files


@dataclass(frozen=True)
class TextHeader:
    """What a header says."""

    raw: RawHeader
    """The voxels; ``offset`` counts from where the stream begins."""
    encoding: str
    """``"raw"``, or how the stream is compressed."""
    data_files: tuple[str, ...]
    """Other files that hold the voxels, none where they follow the header."""
    skip: int
    """Bytes before the stream, in the file that holds it."""
    line_skip: int = 0
    """Lines between these and the stream."""
    from_end: bool = False
    """Whether the voxels are the last bytes of the file."""


class TextFields(dict[str, str]):
    """The fields of a header by name. What makes no sense is an error."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        self.name, self._kind = name, kind

    def error(self, why: str, do: str = "Check how the file was written.") -> BadHeader:
        """Return the error of a header that makes no sense."""
        return BadHeader(f"{self.name} has no sound {self._kind} header: {why}.", do=do)

    def integer(self, key: str, default: int = 0) -> int:
        """Return a field as a number."""
        try:
            return int(self.get(key, default))
        except ValueError:
            raise self.error(f"its {key} is {self[key][:40]!r}") from None

    def numbers(self, keys: Sequence[str], count: int) -> tuple[float, ...] | None:
        """Return the first of some fields that is there, as ``count`` numbers; None without any."""
        for key in keys:
            if key in self:
                try:
                    found = tuple(map(float, self[key].split()))
                except ValueError:
                    found = ()
                if len(found) != count:
                    raise self.error(f"its {key} is {self[key][:80]!r}")
                return found
        return None

    def lengths(self, count_key: str, key: str, most: int) -> tuple[int, ...]:
        """Return the lengths of the axes; no more axes than ``most``."""
        count, text = self.integer(count_key, -1), self.get(key, "")
        try:
            lengths = tuple(map(int, text.split()))
        except ValueError:
            lengths = ()
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
            found = tuple(line.strip() for line in lines if line.strip())
            if not 1 <= len(found) <= most:
                raise BadHeader(
                    f"{self.name} lists {len(found)} files.", do="List the files of the voxels."
                )
            return found
        if "%" not in reference:
            return (reference,)
        match = _PATTERN.fullmatch(reference)
        first, last, step = map(int, match["numbers"].split()) if match else (0, 0, 0)
        count = (last - first) // step + 1 if step else 0
        if match is None or not 1 <= count <= most:
            raise BadHeader(
                f"{self.name} names its files as {reference[:80]!r}.",
                do="Give a pattern, the first number, the last and the step.",
            )
        return tuple(match["text"] % n for n in range(first, first + count * step, step))


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


def open_text(file: StoredFile, parse: Callable[[bytes, str], TextHeader]) -> Backend:
    """Open a file by its header, which may be in front of the voxels or beside them."""
    try:
        found = parse(file.head(HEAD_BYTES), file.name)
    except ItkOnly as why:
        return open_with_itk(file, str(why), why.data_files)
    if len(found.data_files) > 1:
        return _open_several(found, file)
    data = file.beside(found.data_files[0]) if found.data_files else file
    skip, fields = _after_lines(data, found.skip, found.line_skip), found.raw
    if found.from_end:
        if data.size < skip + fields.voxel_bytes:
            raise TruncatedVolume(
                f"{file.name} speaks of {fields.voxel_bytes} bytes of voxels, of which "
                f"{data.name} holds {max(0, data.size - skip)}.",
                do="Copy or download the file again.",
            )
        fields = replace(fields, offset=data.size - fields.voxel_bytes)
    elif found.encoding == "raw":
        fields = replace(fields, offset=fields.offset + skip)
    files = [file] if data is file else [file, data]
    return open_raw(fields, files, file.name, encoding=found.encoding, skip=skip)


def _after_lines(file: StoredFile, start: int, count: int) -> int:
    """Return where the text after some lines begins."""
    head = file.head(start + HEAD_BYTES) if count else b""
    for _ in range(count):
        start = head.find(b"\n", start) + 1
        if not start:
            raise BadHeader(
                f"{file.name} has fewer lines than the {count} that its header skips.",
                do="Check how the file was written.",
            )
    return start


def _open_several(found: TextHeader, header: StoredFile) -> Backend:
    """Return the backend of voxels in several files, which are put together once when read.

    Each holds the same number of bytes, in order.
    """
    skip, fields = found.skip + found.raw.offset, replace(found.raw, offset=0)
    part, rest = divmod(fields.voxel_bytes, len(found.data_files))
    if rest:
        raise BadHeader(
            f"{header.name} spreads {fields.voxel_bytes} bytes of voxels over "
            f"{len(found.data_files)} files.",
            do="Check whether a file is missing from the list.",
        )
    files = [header.beside(name) for name in found.data_files]
    for file in files if found.encoding == "raw" else ():
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
                if found.encoding == "raw":
                    copy(stream, raw, part, file.name)
                else:
                    decompress(stream, raw, found.encoding, part, file.name)

    IO_COUNTERS.count(headers=1)
    return LocalRaw(fields, [header, *files], header.name, write)
