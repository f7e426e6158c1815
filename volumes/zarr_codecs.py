"""Decoding zarr chunks: the common compressors through numcodecs, into memory that is there."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import CorruptVolume
from .zarr_metadata import ArrayMetadata, Codec, NotOurs

Decode = Callable[[Any, Any], Any]
"""``decode(data, out) -> bytes-like``: into ``out`` where it is given, and returns that."""

_CRC32C_BYTES = 4


class ZarrDecoder:
    """Decodes the chunks of one array."""

    def __init__(self, metadata: ArrayMetadata, name: str) -> None:
        self._metadata, self._name = metadata, name
        self._steps = [_decoder(codec) for codec in reversed(metadata.codecs)]
        shape = tuple(metadata.chunks[axis] for axis in metadata.order)
        self._turned = metadata.order != tuple(range(len(shape)))
        self._shape = shape
        self._back = tuple(int(axis) for axis in np.argsort(metadata.order))

    def decode(self, data: memoryview, out: NDArray[Any]) -> None:
        """Decode one chunk into ``out``: (chunks), stored type, C order.

        Raises
        ------
        CorruptVolume
            The bytes are not those of a whole chunk.
        """
        target = np.empty(self._shape, out.dtype) if self._turned else out
        room = target.reshape(-1).view(np.uint8)
        try:
            held: Any = data
            for number, step in enumerate(self._steps):
                last = number == len(self._steps) - 1
                held = step(held, room if last else None)
            if held is not room:
                flat = np.frombuffer(held, np.uint8)
                if flat.size != room.size:
                    msg = f"{flat.size} bytes instead of {room.size}"
                    raise ValueError(msg)
                room[...] = flat
        except MemoryError:
            raise
        except Exception as error:  # each codec has its own
            raise CorruptVolume(
                f"a chunk of {self._name} cannot be decoded: {type(error).__name__}: {error}.",
                do="Copy or write the chunks again.",
            ) from error
        if self._turned:
            out[...] = target.transpose(self._back)


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
    if codec.name in ("lz4", "bz2", "lzma", "shuffle", "delta", "pcodec", "zfpy"):
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
    from numcodecs.blosc import decompress

    def decode(data: Any, out: Any) -> Any:
        if out is None:
            return decompress(data)
        # The header of blosc: version, codec, flags, item size, then the decoded size.
        size = int.from_bytes(data[4:8], "little")
        if size != out.nbytes:
            msg = f"{size} bytes instead of {out.nbytes}"
            raise ValueError(msg)
        decompress(data, out)
        return out

    return decode


def _zstd() -> Decode:
    from numcodecs.zstd import decompress

    # Its frames need not say how much they hold, so the size is compared afterwards.
    return lambda data, out: decompress(data)


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
