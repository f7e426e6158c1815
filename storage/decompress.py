"""Compressed streams of bytes, decoded piece by piece into a file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from ..core.errors import CorruptVolume, TruncatedVolume
from ..core.native_library import free_of_lock

# Writing in pieces of 2 MiB lets one entry map each piece of the page cache. With 1 MiB, a file of
# 52 MB takes 51 page faults instead of 26.
_PIECE_BYTES = 2 * 1024**2
# Bytes of input per step: decoding may multiply them.
_INPUT_BYTES = 64 * 1024
# Tags after the voxels of an MGH file: text, and one or two color tables.
_MOST_TRAILING_BYTES = 16 * 1024**2
# Most decoded bytes per stored byte; more is a wrong header. Deflate: zlib.net/zlib_tech.html.
# bzip2: its author measured 45899235 zeros in 46 bytes.
BEST_RATIOS = {"gzip": 1032, "zlib": 1032, "bzip2": 1_100_000}
# Accepts the formats of zlib and gzip.
_EITHER = 32 + zlib.MAX_WBITS
_ENDS_EARLY = "its compressed bytes end early"


def decompress(
    source: BinaryIO, raw: BinaryIO, encoding: str, size: int, name: str, *, trailing: bool = False
) -> None:
    """Decompress exactly ``size`` bytes of a stream into ``raw``.

    More or fewer bytes raise ``CorruptVolume`` or ``TruncatedVolume``; ``trailing`` allows more.
    """
    count, start, do = 0, source.tell(), "Copy or download the file again."
    is_zlib = encoding == "zlib"
    pieces = _zlib_pieces(source) if is_zlib else _file_pieces(source, encoding)
    try:
        for piece in pieces:
            raw.write(piece[: max(0, size - count)])
            count += len(piece)
            if count > size + _MOST_TRAILING_BYTES and trailing:
                break
            if count > size and not trailing:
                msg = f"{name} decodes to more than the {size} bytes of its header."
                do = "Write the file again; the header and the voxels do not fit."
                raise CorruptVolume(msg, do=do)
    except (EOFError, CorruptStream) as error:
        source.seek(start)
        sound, other = _sound_gzip(source) if encoding == "gzip" else (count, b"")
        if other:
            where = f"after {sound} of {size} decoded bytes" if sound else "where its voxels begin"
            msg = f"{name} has bytes that are no gzip {where}: {other!r}."
            do = "Remove these bytes: the voxels are complete." if sound >= size else do
            raise CorruptVolume(msg, do=do) from error
        if isinstance(error, CorruptStream):
            sound = max(count, sound)
            msg = f"{name} cannot be decoded after {sound} of {size} bytes: {error}."
            raise CorruptVolume(msg, do=do) from error
        if count < size <= sound:
            msg = f"{name} ends within the check sum after its {sound} decoded bytes."
            raise TruncatedVolume(msg, do=do) from error
        count = max(count, sound)
    if count < size:
        msg = f"{name}, decoded, ends after {count} of {size} bytes."
        raise TruncatedVolume(msg, do=do)


def copy(stream: BinaryIO, raw: BinaryIO, size: int, name: str) -> None:
    """Copy the next ``size`` bytes of a stream; ``TruncatedVolume`` if there are fewer."""
    rest = size
    while rest:
        piece = stream.read(min(rest, _PIECE_BYTES))
        if not piece:
            msg = f"{name} ends {rest} bytes before the end of its voxels."
            raise TruncatedVolume(msg, do="Copy or download the file again.")
        raw.write(piece)
        rest -= len(piece)


class CorruptStream(Exception):
    """Error of a decoder about damaged bytes."""


def _file_pieces(source: BinaryIO, encoding: str) -> Iterator[bytes]:
    """Yield decoded gzip or bzip2; isal, where installed, decodes gzip about twice as fast."""
    module: Any = bz2
    # A damaged stream is an OSError without a number; errors of disks have one.
    corrupt: Any = (OSError, ValueError)
    if encoding == "gzip":
        module, corrupt = gzip, (zlib.error, gzip.BadGzipFile)
        with suppress(ImportError):
            from isal import igzip, isal_zlib

            module, corrupt = igzip, (*corrupt, isal_zlib.error)
    with module.open(source, "rb") as stream:
        while True:
            try:
                piece = stream.read(_PIECE_BYTES)
            except corrupt as error:
                if getattr(error, "errno", None) is not None:
                    raise
                raise CorruptStream(str(error)) from error
            if not piece:
                return
            yield piece


def _sound_gzip(source: BinaryIO) -> tuple[int, bytes]:
    """Return the decoded bytes of all gzip members, and the first four bytes after them."""
    count, data = 0, source.read(_INPUT_BYTES)
    while data.startswith(b"\x1f\x8b"):
        decoder = zlib.decompressobj(_EITHER)
        with suppress(zlib.error):
            while data and not decoder.eof:
                count += len(decoder.decompress(data, _PIECE_BYTES))
                data = decoder.unconsumed_tail or source.read(_INPUT_BYTES)
        if not decoder.eof:
            return count, b""
        data = (decoder.unused_data + data).lstrip(b"\0")
    return count, data[:4]


def _zlib_pieces(source: BinaryIO) -> Iterator[bytes]:
    decoder = zlib.decompressobj(_EITHER)
    while not decoder.eof:
        data = decoder.unconsumed_tail or source.read(_INPUT_BYTES)
        if not data:
            return
        try:
            yield decoder.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            raise CorruptStream(str(error)) from error


# Decoding of chunks within the size of the chunk.
#
# 177 bytes of bzip2 become 200 MB. The decoders below stop with an error at the size of the chunk,
# before they take the memory.

# An inner codec of a chain grows a chunk hardly, except a filter that stores one byte as eight.
_GROWTH = 8
# Room for the headers and paddings of small chunks: eight blocks of zstandard.
_FLOOR = 1024**2
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# RFC 8878, 3.1.1.2.4.
_ZSTD_BLOCK_BYTES = 128 * 1024
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)


def most_between(chunk_bytes: int) -> int:
    """Return the most bytes that an inner codec of a chunk may produce."""
    return _GROWTH * chunk_bytes + _FLOOR


def check_most(size: int, most: int) -> None:
    """Raise ``ValueError`` if ``size`` bytes are more than a chunk can need."""
    if size > most:
        raise ValueError(f"it decodes to more than the {most} bytes that its chunk can need")


def inflate(data: Any, most: int) -> bytes:
    """Decode a stream of gzip or zlib."""
    decoder = zlib.decompressobj(_EITHER)
    content = _stop_at(decoder.decompress, data, most)
    if not decoder.eof:
        raise ValueError(_ENDS_EARLY)
    return content


def un_gzip(data: Any, most: int) -> bytes:
    """Decode one or several members of gzip."""
    return _streams(lambda: zlib.decompressobj(_EITHER), data, most)


def un_bzip2(data: Any, most: int) -> bytes:
    """Decode one or several streams of bzip2."""
    return _streams(bz2.BZ2Decompressor, data, most)


def un_lzma(data: Any, most: int, kind: int, filters: Any = None) -> bytes:
    """Decode lzma in one of its formats; raw streams need their filters."""
    own = filters if kind == lzma.FORMAT_RAW else None
    return _streams(lambda: lzma.LZMADecompressor(kind, None, own), data, most)


def _stop_at(decompress: Callable[[Any, int], bytes], data: Any, most: int) -> bytes:
    # One byte more shows that the stream is too long.
    content = free_of_lock(decompress)(data, most + 1)
    check_most(len(content), most)
    return content


def _streams(make: Callable[[], Any], data: Any, most: int) -> bytes:
    """Decode joined streams one after another."""
    pieces: list[bytes] = []
    room = most
    while data:
        decoder = make()
        try:
            pieces.append(_stop_at(decoder.decompress, data, room))
        except (OSError, lzma.LZMAError):
            if pieces:
                break  # trailing garbage, which Python's own functions skip too
            raise
        room -= len(pieces[-1])
        if not decoder.eof:
            raise ValueError(_ENDS_EARLY)
        data = decoder.unused_data.lstrip(b"\0")  # zeros pad a stream
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _zstd_frames(data: Any) -> Iterator[tuple[int | None, int]]:
    """Yield the content size and the limit of each frame of zstandard.

    The size is None in a header without one (RFC 8878, 3.1.1.1). The limit comes from the headers
    of the blocks. Skippable frames hold nothing. The decoder refuses bytes that form no frame.
    """
    at = 0
    while at + 6 <= len(data):
        if int.from_bytes(data[at : at + 4], "little") in _SKIPPABLE:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if bytes(data[at : at + 4]) != _ZSTD_MAGIC:
            return
        descriptor = data[at + 4]
        flag, single_segment = descriptor >> 6, bool(descriptor & 0x20)
        length = (int(single_segment), 2, 4, 8)[flag]
        at += 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3] + length
        field = int.from_bytes(bytes(data[at - length : at]), "little")
        last, most = False, 0
        while not last and at + 3 <= len(data):
            header = int.from_bytes(data[at : at + 3], "little")
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            most += _ZSTD_BLOCK_BYTES if kind == 2 else size  # raw and repeated blocks are exact
            at += 3 + (1 if kind == 1 else size)
        at += 4 * (descriptor >> 2 & 1)  # checksum
        # A field of two bytes counts from 256, because one byte holds smaller sizes.
        yield (field + (256 if length == 2 else 0) if length else None), most


def zstd_content_bytes(data: Any) -> int | None:
    """Return how many bytes frames of zstandard hold; None if a header lacks the size."""
    sizes = [size for size, _ in _zstd_frames(data)]
    numbers = [size for size in sizes if size is not None]
    return sum(numbers) if numbers and len(numbers) == len(sizes) else None


def zstd_most_bytes(data: Any) -> int:
    """Return an upper limit of the decoded bytes of frames of zstandard."""
    return sum(most if size is None else size for size, most in _zstd_frames(data))
