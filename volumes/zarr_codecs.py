"""Decoding zarr chunks: the common compressors through numcodecs, into memory that is there."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decoders import Decoder, decoder_factory
from .zarr_metadata import ArrayMetadata, Codec, NotOurs

Decode = Callable[[Any, Any], Any]
"""``decode(data, out) -> bytes-like``: into ``out`` where it is given, and returns that."""

_NUMCODECS = ("lz4", "bz2", "lzma", "shuffle", "delta", "pcodec", "zfpy")
_KNOWN = ("crc32c", "gzip", "zlib", "blosc", "zstd", *_NUMCODECS)
_CRC32C_BYTES = 4
_BLOSC_HEADER = 16
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class ZarrDecoder:
    """Decodes the chunks of one array."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        self._plug_in = _plug_in(metadata)
        rest = metadata.codecs[1:] if self._plug_in is not None else metadata.codecs
        self._steps = [_decoder(codec) for codec in reversed(rest)]
        self._last = -1 if self._plug_in is not None else len(self._steps) - 1
        self._order = metadata.order
        self.strided = bool(getattr(self._plug_in, "strided", False))
        shape = tuple(metadata.chunks[axis] for axis in metadata.order)
        self._turned = metadata.order != tuple(range(len(shape)))
        self._shape = shape
        self._back = tuple(int(axis) for axis in np.argsort(metadata.order))

    def decode(self, data: memoryview, out: NDArray[Any], index: tuple[int, ...]) -> None:
        """Decode one chunk, whichever it is, into ``out``: (chunks), stored type.

        In C order without gaps, unless the decoder is :attr:`strided`.

        Raises what the codec raises, or ``ValueError``, where the bytes are not those of a
        whole chunk.
        """
        if self._plug_in is not None:
            self._plug(self._plug_in, data, out)
            return
        target = np.empty(self._shape, out.dtype) if self._turned else out
        room = target.reshape(-1).view(np.uint8)
        held: Any = data
        for number, step in enumerate(self._steps):
            held = step(held, room if number == self._last else None)
        if held is not room:
            flat = np.frombuffer(held, np.uint8)
            _check_size(flat.size, room)
            room[...] = flat
        if self._turned:
            out[...] = target.transpose(self._back)

    def _plug(self, plug_in: Decoder, data: memoryview, out: NDArray[Any]) -> None:
        """Let a decoder from outside write where the chunk is wanted, if it can."""
        held: Any = data
        for step in self._steps:
            held = step(held, None)
        target = out.transpose(self._order)
        in_place = self.strided or target.flags.c_contiguous
        room = target if in_place else np.empty(self._shape, out.dtype)
        plug_in.decode_into(memoryview(held).toreadonly(), room)
        if not in_place:
            target[...] = room


def _plug_in(metadata: ArrayMetadata) -> Decoder | None:
    """Return the decoder from outside of what encodes the numbers, if there is one.

    Packages are only asked for what is not known here: looking for them takes a millisecond.
    """
    if not metadata.codecs:
        return None
    first = metadata.codecs[0]
    factory = decoder_factory(first.name, installed=first.name not in _KNOWN)
    return None if factory is None else factory(dict(first.settings))


def _decoder(codec: Codec) -> Decode:
    """Return how one codec is undone."""
    if codec.name == "crc32c":
        return _checked
    if codec.name in ("gzip", "zlib"):
        return _inflated
    if codec.name == "blosc":
        return _blosc()
    if codec.name == "zstd":
        return _zstd()
    if codec.name in _NUMCODECS:
        return _by_numcodecs(codec)
    raise NotOurs(f"codec {codec.name!r}")


def _by_numcodecs(codec: Codec) -> Decode:
    import numcodecs

    try:
        ready = numcodecs.get_codec({"id": codec.name, **dict(codec.settings)})
    except Exception as error:
        raise NotOurs(f"codec {codec.name!r}: {error}") from error
    return lambda data, out: ready.decode(bytes(data))


def _blosc() -> Decode:
    from numcodecs import blosc

    # In the main thread numcodecs lets blosc start threads of its own. On two busy cores they made
    # no difference for chunks of 64 KiB (one block), decoding 1.8 to 2.9 times slower for
    # 512 KiB, and none that was clear for 4 MiB; and workers fill all cores anyway. Where
    # somebody has decided, that stands.
    if blosc.use_threads is None:
        blosc.use_threads = False
    decompress = blosc.decompress

    def decode(data: Any, out: Any) -> Any:
        # The header of blosc: version, codec, flags, item size, decoded size, size of a block,
        # stored size. Blosc believes the last one, and would read beyond the bytes.
        stored = int.from_bytes(data[12:16], "little")
        if not _BLOSC_HEADER <= stored <= len(data):
            raise ValueError(f"{len(data)} bytes of blosc, whose header speaks of {stored}")
        if out is None:
            return decompress(data)
        size = int.from_bytes(data[4:8], "little")
        _check_size(size, out)
        decompress(data, out)
        return out

    return decode


def _zstd() -> Decode:
    from numcodecs.zstd import decompress

    def decode(data: Any, out: Any) -> Any:
        size = zstd_content_bytes(data)
        if out is None or size is None:
            return decompress(data)
        _check_size(size, out)
        decompress(data, out)
        return out

    return decode


def zstd_content_bytes(data: Any) -> int | None:
    """Return how much the first frame of zstandard says that it holds; None if it does not say.

    RFC 8878, section 3.1.1.1.
    """
    if len(data) < 6 or bytes(data[:4]) != _ZSTD_MAGIC:
        return None  # numcodecs says what is wrong with it
    descriptor = data[4]
    flag, single_segment = descriptor >> 6, bool(descriptor & 0x20)
    if flag == 0 and not single_segment:
        return None
    start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    length = (1, 2, 4, 8)[flag]
    field = bytes(data[start : start + length])
    # Two bytes count from 256, as one byte holds all below.
    return int.from_bytes(field, "little") + (256 if length == 2 else 0)


def _check_size(size: int, room: NDArray[np.uint8]) -> None:
    """Refuse a chunk of another size, before memory is taken for it where it tells."""
    if size != room.nbytes:
        msg = f"{size} bytes instead of {room.nbytes}"
        raise ValueError(msg)


def _inflated(data: Any, out: Any) -> Any:
    limit = 0 if out is None else out.nbytes + 1
    inflate = zlib.decompressobj(32 + zlib.MAX_WBITS)  # gzip and zlib headers alike
    return inflate.decompress(data, limit)


def _checked(data: Any, out: Any) -> Any:
    """Take off the check sum, having compared it where there is a library for it."""
    body, stored = data[:-_CRC32C_BYTES], bytes(data[-_CRC32C_BYTES:])
    computed = crc32c(body)
    if computed is not None and computed != int.from_bytes(stored, "little"):
        msg = "its check sum is wrong"
        raise ValueError(msg)
    return body


def crc32c(data: Any) -> int | None:
    """Return the CRC-32C of bytes; None where no library for it is installed."""
    try:
        import google_crc32c
    except ImportError:
        return None
    return int(google_crc32c.value(bytes(data)))
