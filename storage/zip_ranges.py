"""Members of a zip archive as objects of a store, read in ranges.

Stored members, as zarr writes them, are read by ranges of the archive; deflated members are
inflated whole.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from ..core.errors import BadHeader, CorruptVolume, VolumeNotFound
from .ranges import RangeStore, ReadRange, check_document, check_whole, read_coalesced
from .read_ahead import works_ahead
from .remote import Seekable
from .retry import read_anew

# APPNOTE of PKWARE, 4.3.7: signature, 22 bytes that the directory repeats, two lengths.
_LOCAL = struct.Struct("<4s22xHH")
_SIGNATURE = b"PK\x03\x04"
_ENCRYPTION_BIT = 0x1
# Checksums are computed in pieces, so that no whole member is in memory.
_CHECKED_AT_ONCE = 4 * 1024**2


class ZipRanges:
    """Zip archive without an own handle: all reads use the outer store."""

    def __init__(
        self,
        outer: RangeStore,
        key: str,
        name: str,
        *,
        checks_parts: bool = False,
        roots: Sequence[str] = (),
    ) -> None:
        self._outer, self._key = outer, key
        self.name = name  # the archive
        self._checks_parts = checks_parts
        self._sound_keys: set[str] = set()
        # The limits of the outer store, which reads the members.
        self.gap, self.most = getattr(outer, "gap", 0), getattr(outer, "most", 1 << 62)
        try:
            with zipfile.ZipFile(_Object(outer, key)) as archive:
                infos = [info for info in archive.infolist() if not info.is_dir()]
        except FileNotFoundError:
            raise VolumeNotFound(f"there is no file {name}.", do="Check the path.") from None
        except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
            msg = f"{name} is no sound zip archive: {error}."
            raise BadHeader(msg, do="Copy or write it again.") from error
        # A member may be written twice; the last entry of the directory counts.
        self._members = _from_root({info.filename: info for info in infos}, roots)
        self._starts: dict[str, int] = {}

    def get(self, key: str) -> bytes | None:
        """Return a small member such as metadata; None if missing, ``BadHeader`` if too large."""
        if key in self._members:
            check_document(self._members[key].file_size, f"{key} in {self.name}")
        return self.get_ranges([ReadRange(key)])[0]

    def get_ranges(self, ranges: Sequence[ReadRange], most: int = 0) -> list[bytes | None]:
        """Return bytes of ranges; ``CorruptVolume`` for a whole member above ``most`` bytes."""
        if works_ahead(self._outer):  # remote bytes may be damaged on their way
            return read_anew(lambda: self._members_of(ranges, most))
        return self._members_of(ranges, most)

    def _members_of(self, ranges: Sequence[ReadRange], most: int) -> list[bytes | None]:
        present = [part for part in ranges if part.object in self._members]
        for key, start, stop in present:
            if (start, stop) == (0, None):
                check_whole(self._members[key].file_size, most, f"{key} in {self.name}")
        self._find_starts({part.object for part in present})
        places = [self._place(part) for part in present]
        answers = read_coalesced(self._outer, places, self.gap, self.most)
        pieces = dict[ReadRange, bytes]()
        for part, place, answer in zip(present, places, answers, strict=True):
            if answer is None or len(answer) != place.length:
                raise self._corrupt(part.object, "it is cut short")
            pieces[part] = self._content(part, answer)
        return [pieces.get(part) for part in ranges]

    def size(self, key: str) -> int:
        """Return the inflated size of a member in bytes."""
        if key not in self._members:
            raise FileNotFoundError(key)
        return self._members[key].file_size

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the members below a folder, as keys."""
        folder = prefix.rstrip("/") + "/" if prefix else ""
        yield from (key for key in self._members if key.startswith(folder))

    def _find_starts(self, keys: set[str]) -> None:
        """Read the offsets of the bytes of members from the headers before them."""
        unknown = [key for key in sorted(keys) if key not in self._starts]
        offsets = [self._members[key].header_offset for key in unknown]
        headers = [ReadRange(self._key, at, at + _LOCAL.size) for at in offsets]
        answers = read_coalesced(self._outer, headers, self.gap, self.most)
        for key, offset, answer in zip(unknown, offsets, answers, strict=True):
            if answer is None or len(answer) != _LOCAL.size:
                raise self._corrupt(key, "it is cut short")
            signature, name_length, extra_length = _LOCAL.unpack(answer)
            if signature != _SIGNATURE:
                raise self._corrupt(key, "no header is at the offset in the directory")
            self._starts[key] = offset + _LOCAL.size + name_length + extra_length

    def _place(self, part: ReadRange) -> ReadRange:
        """Return the range of the archive that answers a range of a member."""
        info = self._members[part.object]
        if info.flag_bits & _ENCRYPTION_BIT:
            raise self._corrupt(part.object, "it is encrypted")
        start, stop = 0, info.compress_size
        if info.compress_type == zipfile.ZIP_STORED:
            start, stop = _inside(part, info.compress_size)
        first = self._starts[part.object]
        return ReadRange(self._key, first + start, first + stop)

    def _content(self, part: ReadRange, data: memoryview) -> bytes:
        info = self._members[part.object]
        if info.compress_type == zipfile.ZIP_STORED:
            if len(data) < info.file_size:
                self._check(part.object)
            elif zlib.crc32(data) != info.CRC:
                raise self._corrupt(part.object, "its check sum is wrong")
            return bytes(data)
        if info.compress_type != zipfile.ZIP_DEFLATED:
            raise self._corrupt(part.object, f"its compression {info.compress_type} is not known")
        try:
            return self._inflate(part, info, data)
        except zlib.error as error:
            raise self._corrupt(part.object, str(error)) from error

    def _inflate(self, part: ReadRange, info: zipfile.ZipInfo, data: memoryview) -> bytes:
        """Return a part of a deflated member; inflate and check the member piece by piece."""
        start, stop = _inside(part, info.file_size)
        inflate, at, crc = zlib.decompressobj(-zlib.MAX_WBITS), 0, 0
        pieces: list[bytes] = []
        rest: Any = data
        while at <= info.file_size and not inflate.eof:
            piece = inflate.decompress(rest, _CHECKED_AT_ONCE)
            rest = inflate.unconsumed_tail
            if not piece and not rest:
                break
            crc = zlib.crc32(piece, crc)
            inside = piece[max(0, start - at) : max(0, stop - at)]
            pieces += [inside] if inside else []
            at += len(piece)
        if at != info.file_size or crc != info.CRC:
            raise self._corrupt(part.object, "its check sum is wrong")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _check(self, key: str) -> None:
        """Verify the checksum of a stored member before its first partial read."""
        if not self._checks_parts or key in self._sound_keys:
            return
        info, first, crc = self._members[key], self._starts[key], 0
        for at in range(first, first + info.file_size, _CHECKED_AT_ONCE):
            stop = min(at + _CHECKED_AT_ONCE, first + info.file_size)
            piece = self._outer.get_ranges([ReadRange(self._key, at, stop)])[0]
            crc = zlib.crc32(piece or b"", crc)
        if crc != info.CRC:
            raise self._corrupt(key, "its check sum is wrong")
        self._sound_keys.add(key)

    def _corrupt(self, key: str, why: str) -> CorruptVolume:
        do = "Copy or write the archive again."
        return CorruptVolume(f"{key} in {self.name} cannot be read: {why}.", do=do)


def _from_root(
    members: dict[str, zipfile.ZipInfo], roots: Sequence[str]
) -> dict[str, zipfile.ZipInfo]:
    """Return members by key below the one top folder with a file of ``roots``, else unchanged.

    ``zip -r a.zip a.zarr`` writes such a folder.
    """
    folders = [key.rpartition("/")[0] for key in members if key.rpartition("/")[2] in roots]
    top = min(folders, key=len, default="")
    if not top or any(not f"{folder}/".startswith(f"{top}/") for folder in folders):
        return members
    return {key[len(top) + 1 :]: i for key, i in members.items() if key.startswith(f"{top}/")}


def _inside(part: ReadRange, size: int) -> tuple[int, int]:
    """Return the range as offsets in an object of this size."""
    start = max(0, size + part.start) if part.start < 0 else min(part.start, size)
    stop = size if part.stop is None else min(part.stop, size)
    return start, max(start, stop)


class _Object(Seekable):
    """Object of a store as a file with few reads."""

    def __init__(self, store: RangeStore, key: str) -> None:
        super().__init__(store.size(key))
        self._store, self._key = store, key

    def piece(self, start: int, stop: int) -> bytes:
        return self._store.get_ranges([ReadRange(self._key, start, stop)])[0] or b""

    def readall(self) -> bytes:
        # One request: the inherited method reads a few kilobytes at a time.
        return self.read(max(0, self._size - self._at))
