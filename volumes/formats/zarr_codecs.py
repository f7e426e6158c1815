"""Decoding zarr chunks: the common compressors through numcodecs, into memory that is there."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...storage.decompress import (
    check_most,
    inflated,
    most_between,
    un_bzip2,
    un_lzma,
    zstd_content_bytes,
    zstd_most_bytes,
)
from ..chunks.decoders import Decoder, decoder_factory
from .zarr_metadata import ArrayMetadata, Codec, NotOurs

Decode = Callable[[Any, Any, int], Any]
"""``decode(data, out, most) -> bytes-like``: into ``out`` where it is given, and returns that.

No more than ``most`` bytes; ``ValueError`` where there are more."""

# They make as much as they get (of delta, eight times as much), except the last two, whose memory
# cannot be known beforehand: what they made is refused afterwards.
_NUMCODECS = ("shuffle", "delta", "pcodec", "zfpy")
BOUNDED = ("crc32c", "gzip", "zlib", "blosc", "zstd", "bz2", "lzma", "lz4")
"""Codecs that are undone into no more bytes than they may need."""
_KNOWN = (*BOUNDED, *_NUMCODECS)
_CRC32C_BYTES = 4
_BLOSC_HEADER = 16
_LZ4_HEADER = 4


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
            is_last = number == self._last
            most = room.nbytes if is_last else most_between(room.nbytes)
            held = step(held, room if is_last else None, most)
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
            held = step(held, None, most_between(out.nbytes))
        target = out.transpose(self._order)
        in_place = self.strided or target.flags.c_contiguous
        room = target if in_place else np.empty(self._shape, out.dtype)
        plug_in.decode_into(memoryview(held).toreadonly(), room)
        if not in_place:
            target[...] = room


def undone(codecs: Sequence[Codec], data: Any, chunk_bytes: int) -> Any:
    """Return the bytes of a chunk before some codecs, of :data:`BOUNDED`, in order of encoding.

    ``ValueError``, or what the codec raises, where they are damaged, or more than a chunk of
    ``chunk_bytes`` can need.
    """
    for codec in reversed(codecs):
        data = _decoder(codec)(data, None, most_between(chunk_bytes))
    return data


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
        return lambda data, out, most: inflated(data, most)
    if codec.name == "bz2":
        return lambda data, out, most: un_bzip2(data, most)
    if codec.name == "lzma":
        kind, filters = codec.setting("format", lzma.FORMAT_XZ), codec.setting("filters")
        return lambda data, out, most: un_lzma(data, most, kind, filters)
    if codec.name == "lz4":
        return _lz4()
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
    return lambda data, out, most: ready.decode(bytes(data))


def _lz4() -> Decode:
    from numcodecs.lz4 import decompress

    def decode(data: Any, out: Any, most: int) -> Any:
        check_most(int.from_bytes(data[:_LZ4_HEADER], "little"), most)
        return decompress(bytes(data))

    return decode


def _blosc() -> Decode:
    from numcodecs import blosc

    # In the main thread numcodecs lets blosc start threads of its own. On two busy cores they made
    # no difference for chunks of 64 KiB (one block), decoding 1.8 to 2.9 times slower for
    # 512 KiB, and none that was clear for 4 MiB; and workers fill all cores anyway. Where
    # somebody has decided, that stands.
    if blosc.use_threads is None:
        blosc.use_threads = False
    decompress = blosc.decompress

    def decode(data: Any, out: Any, most: int) -> Any:
        # The header of blosc: version, codec, flags, item size, decoded size, size of a block,
        # stored size. Blosc believes the last one, and would read beyond the bytes.
        stored = int.from_bytes(data[12:16], "little")
        if not _BLOSC_HEADER <= stored <= len(data):
            raise ValueError(f"{len(data)} bytes of blosc, whose header speaks of {stored}")
        size = int.from_bytes(data[4:8], "little")
        if out is None:
            check_most(size, most)
            return decompress(data)
        _check_size(size, out)
        decompress(data, out)
        return out

    return decode


def _zstd() -> Decode:
    from numcodecs.zstd import decompress

    def decode(data: Any, out: Any, most: int) -> Any:
        size = zstd_content_bytes(data)
        if out is None:
            check_most(zstd_most_bytes(data) if size is None else size, most)
            return decompress(data)
        # Where it does not say, there must be as much as there is room.
        if size is not None:
            _check_size(size, out)
        decompress(data, out)
        return out

    return decode


def _check_size(size: int, room: NDArray[np.uint8]) -> None:
    """Refuse a chunk of another size, before memory is taken for it where it tells."""
    if size != room.nbytes:
        msg = f"{size} bytes instead of {room.nbytes}"
        raise ValueError(msg)


def _checked(data: Any, out: Any, most: int) -> Any:
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
