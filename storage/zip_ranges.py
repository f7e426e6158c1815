"""The members of a zip archive as objects of a store, read in ranges.

A member that is stored as it is, as zarr writes them, is read by ranges of the archive; one that is
deflated is inflated whole.
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

# PKWARE's APPNOTE 4.3.7: signature, 22 bytes that the directory repeats, two lengths.
_LOCAL = struct.Struct("<4s22xHH")
_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1
# A member is checked in pieces of this size: none is held whole for that.
_CHECKED_AT_ONCE = 4 * 1024**2


class ZipRanges:
    """A zip archive. It keeps no handle of its own: every read goes through the outer store."""

    def __init__(
        self, outer: RangeStore, key: str, name: str, *, checks_parts: bool = False
    ) -> None:
        self._outer, self._key = outer, key
        self.name = name  # the archive
        self._checks_parts = checks_parts
        self._checked: set[str] = set()
        # As the store below: the members lie in it.
        self.gap, self.most = getattr(outer, "gap", 0), getattr(outer, "most", 1 << 62)
        try:
            with zipfile.ZipFile(_Object(outer, key)) as archive:
                infos = [info for info in archive.infolist() if not info.is_dir()]
        except FileNotFoundError:
            raise VolumeNotFound(f"there is no file {name}.", do="Check the path.") from None
        except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
            what = f"{name} is no sound zip archive: {error}."
            raise BadHeader(what, do="Copy or write it again.") from error
        # A member may have been written again; the last entry of the directory counts.
        self._members = {info.filename: info for info in infos}
        self._starts: dict[str, int] = {}

    def get(self, key: str) -> bytes | None:
        """Return a small member such as metadata, None if there is none; ``BadHeader`` if long."""
        if key in self._members:
            check_document(self._members[key].file_size, f"{key} in {self.name}")
        return self.get_ranges([ReadRange(key)])[0]

    def get_ranges(self, ranges: Sequence[ReadRange], most: int = 0) -> list[bytes | None]:
        """Return bytes of ranges; ``CorruptVolume`` for a whole member beyond ``most`` bytes."""
        if works_ahead(self._outer):  # what comes from far away may be damaged on its way
            return read_anew(lambda: self._members_of(ranges, most))
        return self._members_of(ranges, most)

    def _members_of(self, ranges: Sequence[ReadRange], most: int) -> list[bytes | None]:
        present = [wanted for wanted in ranges if wanted.object in self._members]
        for key, start, stop in present:
            if (start, stop) == (0, None):
                check_whole(self._members[key].file_size, most, f"{key} in {self.name}")
        self._find_starts({wanted.object for wanted in present})
        places = [self._place(wanted) for wanted in present]
        answers = read_coalesced(self._outer, places, self.gap, self.most)
        found = dict[ReadRange, bytes]()
        for wanted, place, answer in zip(present, places, answers, strict=True):
            if answer is None or len(answer) != place.length:
                raise self._corrupt(wanted.object, "it is cut short")
            found[wanted] = self._content(wanted, answer)
        return [found.get(wanted) for wanted in ranges]

    def size(self, key: str) -> int:
        """Return the size of a member in bytes, inflated."""
        if key not in self._members:
            raise FileNotFoundError(key)
        return self._members[key].file_size

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the members below a folder, as keys."""
        folder = prefix.rstrip("/") + "/" if prefix else ""
        yield from (key for key in self._members if key.startswith(folder))

    def _find_starts(self, keys: set[str]) -> None:
        """Learn where the bytes of members begin: only the header before them tells."""
        unknown = [key for key in sorted(keys) if key not in self._starts]
        offsets = [self._members[key].header_offset for key in unknown]
        wanted = [ReadRange(self._key, at, at + _LOCAL.size) for at in offsets]
        answers = read_coalesced(self._outer, wanted, self.gap, self.most)
        for key, offset, answer in zip(unknown, offsets, answers, strict=True):
            if answer is None or len(answer) != _LOCAL.size:
                raise self._corrupt(key, "it is cut short")
            signature, name_length, extra_length = _LOCAL.unpack(answer)
            if signature != _SIGNATURE:
                raise self._corrupt(key, "nothing begins where the directory says")
            self._starts[key] = offset + _LOCAL.size + name_length + extra_length

    def _place(self, wanted: ReadRange) -> ReadRange:
        """Return where in the archive the bytes lie that answer a range of a member."""
        info = self._members[wanted.object]
        if info.flag_bits & _ENCRYPTED:
            raise self._corrupt(wanted.object, "it is encrypted")
        start, stop = 0, info.compress_size
        if info.compress_type == zipfile.ZIP_STORED:
            start, stop = _inside(wanted, info.compress_size)
        first = self._starts[wanted.object]
        return ReadRange(self._key, first + start, first + stop)

    def _content(self, wanted: ReadRange, data: memoryview) -> bytes:
        info = self._members[wanted.object]
        if info.compress_type == zipfile.ZIP_STORED:
            if len(data) < info.file_size:
                self._check(wanted.object)
            elif zlib.crc32(data) != info.CRC:
                raise self._corrupt(wanted.object, "its check sum is wrong")
            return bytes(data)
        if info.compress_type != zipfile.ZIP_DEFLATED:
            raise self._corrupt(wanted.object, f"its compression {info.compress_type} is not known")
        try:
            return self._inflate(wanted, info, data)
        except zlib.error as error:
            raise self._corrupt(wanted.object, str(error)) from error

    def _inflate(self, wanted: ReadRange, info: zipfile.ZipInfo, data: memoryview) -> bytes:
        """Return a part of a deflated member, which is inflated and checked piece by piece."""
        start, stop = _inside(wanted, info.file_size)
        inflate, at, found = zlib.decompressobj(-zlib.MAX_WBITS), 0, 0
        kept: list[bytes] = []
        left: Any = data
        while at <= info.file_size and not inflate.eof:
            piece = inflate.decompress(left, _CHECKED_AT_ONCE)
            left = inflate.unconsumed_tail
            if not piece and not left:
                break
            found = zlib.crc32(piece, found)
            inside = piece[max(0, start - at) : max(0, stop - at)]
            kept += [inside] if inside else []
            at += len(piece)
        if at != info.file_size or found != info.CRC:
            raise self._corrupt(wanted.object, "its check sum is wrong")
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def _check(self, key: str) -> None:
        """Look at the check sum of a stored member of which a part is read, the first time."""
        if not self._checks_parts or key in self._checked:
            return
        info, first, found = self._members[key], self._starts[key], 0
        for at in range(first, first + info.file_size, _CHECKED_AT_ONCE):
            stop = min(at + _CHECKED_AT_ONCE, first + info.file_size)
            piece = self._outer.get_ranges([ReadRange(self._key, at, stop)])[0]
            found = zlib.crc32(piece or b"", found)
        if found != info.CRC:
            raise self._corrupt(key, "its check sum is wrong")
        self._checked.add(key)

    def _corrupt(self, key: str, what: str) -> CorruptVolume:
        do = "Copy or write the archive again."
        return CorruptVolume(f"{key} in {self.name} cannot be read: {what}.", do=do)


def _inside(wanted: ReadRange, size: int) -> tuple[int, int]:
    """Return the range as offsets in an object of this size."""
    start = max(0, size + wanted.start) if wanted.start < 0 else min(wanted.start, size)
    stop = size if wanted.stop is None else min(wanted.stop, size)
    return start, max(start, stop)


class _Object(Seekable):
    """An object of a store as a file, for who reads a few pieces of it."""

    def __init__(self, store: RangeStore, key: str) -> None:
        super().__init__(store.size(key))
        self._store, self._key = store, key

    def piece(self, start: int, stop: int) -> bytes:
        return self._store.get_ranges([ReadRange(self._key, start, stop)])[0] or b""

    def readall(self) -> bytes:
        # At once: the usual one asks for a few kilobytes at a time.
        return self.read(max(0, self._size - self._at))
