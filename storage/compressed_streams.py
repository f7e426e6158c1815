"""Compressed streams of bytes, decoded piece by piece into a file."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, BinaryIO

from ..core.errors import CorruptVolume, TruncatedVolume

# Decoded piece by piece; larger pieces gain nothing.
_PIECE_BYTES = 1024**2
# Zlib stops at its own end: less of the input is read at once than decoding may multiply.
_INPUT_BYTES = 64 * 1024
# Tags behind the voxels of an MGH file: text, and a color table or two.
_MOST_TRAILING_BYTES = 16 * 1024**2
# Deflate stores at most 1032 bytes in one (zlib.net/zlib_tech.html). bzip2 makes 45899235 zeros
# of 46 bytes (measured by its author), that is a million of one. More is a wrong header.
BEST_RATIOS = {"gzip": 1032, "zlib": 1032, "bzip2": 1_100_000}
# zlib's own format or gzip's, whichever the stream begins with.
_EITHER = 32 + zlib.MAX_WBITS


def decompress(
    compressed: BinaryIO,
    raw: BinaryIO,
    encoding: str,
    size: int,
    name: str,
    *,
    trailing: bool = False,
) -> None:
    """Decompress a stream into ``raw``: exactly the bytes that the header speaks of.

    Parameters
    ----------
    compressed
        Read from where it stands.
    raw
        Written to.
    encoding
        ``"gzip"``, ``"zlib"`` or ``"bzip2"``.
    size
        Bytes that the stream must decode to.
    name
        What errors call the volume.
    trailing
        Whether more may follow, which is dropped. It is read to its end, where check sums are,
        unless it is long.

    Raises
    ------
    TruncatedVolume
        The stream ends early.
    CorruptVolume
        It goes on too long, or its check sums are wrong.
    """
    written = 0
    pieces = {"gzip": _gzip_pieces, "zlib": _zlib_pieces, "bzip2": _bzip2_pieces}[encoding]
    try:
        for piece in pieces(compressed):
            room = max(0, size - written)
            written += len(piece)
            if written > size and trailing:
                raw.write(piece[:room])
                if written > size + _MOST_TRAILING_BYTES:
                    break
                continue
            if written > size:
                raise CorruptVolume(
                    f"{name} decodes to more than the {size} bytes that its header speaks of.",
                    do="Write the file again; the header and the voxels do not fit.",
                )
            raw.write(piece)
    except EOFError:
        pass  # counted below
    except CorruptStream as error:
        raise CorruptVolume(
            f"{name} cannot be decoded after {written} of {size} bytes: {error}.",
            do="Copy or download the file again.",
        ) from error
    if written < size:
        raise TruncatedVolume(
            f"{name} ends after about {written} of {size} bytes, decoded, that its header "
            "speaks of.",
            do="Copy or download the file again.",
        )


def copy(stream: BinaryIO, raw: BinaryIO, size: int, name: str) -> None:
    """Copy ``size`` bytes from where a stream stands; ``TruncatedVolume`` if there are fewer."""
    left = size
    while left:
        piece = stream.read(min(left, _PIECE_BYTES))
        if not piece:
            raise TruncatedVolume(
                f"{name} ends {left} bytes before its voxels do.",
                do="Copy or download the file again.",
            )
        raw.write(piece)
        left -= len(piece)


class CorruptStream(Exception):
    """What a decoder says of damaged bytes."""


def _gzip_pieces(compressed: BinaryIO) -> Iterator[bytes]:
    module = _fastest_gzip()
    own = getattr(module, "isal_zlib", None)
    corrupt = (zlib.error, gzip.BadGzipFile, *(() if own is None else (own.error,)))
    with module.open(compressed, "rb") as stream:
        while piece := _read(stream, corrupt):
            yield piece


def _bzip2_pieces(compressed: BinaryIO) -> Iterator[bytes]:
    with bz2.open(compressed, "rb") as stream:
        # A stream of other bytes is an OSError without a number; those of disks have one.
        while piece := _read(stream, (OSError, ValueError)):
            yield piece


def _read(stream: Any, corrupt: tuple[type[Exception], ...]) -> bytes:
    try:
        piece: bytes = stream.read(_PIECE_BYTES)
    except corrupt as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise CorruptStream(str(error)) from error
    return piece


def _zlib_pieces(compressed: BinaryIO) -> Iterator[bytes]:
    decoder = zlib.decompressobj(_EITHER)
    while not decoder.eof:
        data = decoder.unconsumed_tail or compressed.read(_INPUT_BYTES)
        if not data:
            return
        try:
            yield decoder.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            raise CorruptStream(str(error)) from error


def _fastest_gzip() -> ModuleType:
    """Return isal's gzip, about twice as fast, or Python's."""
    try:
        from isal import igzip
    except ImportError:
        return gzip
    return igzip
