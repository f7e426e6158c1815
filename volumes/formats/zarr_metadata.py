"""The metadata document of a zarr array, v2 or v3, and how the codecs that it names are undone."""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.call_site import shorten
from ...core.errors import BadHeader
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
from .chunked_backend import MOST_CHUNK_BYTES

# What documents that are no metadata make the code below raise.
_SENSELESS = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError),
    *(ArithmeticError, RecursionError, SyntaxError),
)
# Of an axis: indices are 64 bits with a sign, and one may be counted on.
_LONGEST = 2**62
_INDEX_CODECS = ("bytes", "crc32c")


class NotOurs(Exception):
    """The array uses something that voxpipe leaves to zarr-python."""


class Codec(NamedTuple):
    """One step from numbers to stored bytes."""

    name: str
    """As in the metadata, e.g. ``"blosc"``; numcodecs' id where that is what names it."""
    settings: tuple[tuple[str, Any], ...] = ()

    def setting(self, key: str, default: Any = None) -> Any:
        """Return one entry of the configuration."""
        return dict(self.settings).get(key, default)


@dataclass(frozen=True)
class ArrayMetadata:
    """What one zarr array is; tuples have an entry per stored axis."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]  # decode unit: inner chunks where there are shards
    dtype: np.dtype[Any]  # as stored, byte order included
    fill_value: Any  # what a chunk holds that is not stored
    # Bytes to bytes, in the order of encoding; compressors and check sums. The first may encode
    # numbers, if somebody registered a decoder for it.
    codecs: tuple[Codec, ...]
    # Stored axes in the order in which they lie in a decoded chunk, slowest first.
    order: tuple[int, ...]
    prefix: str  # precedes the index of a chunk in its key
    separator: str  # stands between the numbers of a key
    shards: tuple[int, ...] | None = None  # object unit; None where every chunk is an object
    index_at_end: bool = True  # of a shard
    index_checked: bool = True  # by a check sum behind it

    def key(self, index: Sequence[int]) -> str:
        """Return the key of the object at an index of the grid of objects."""
        return self.prefix + (self.separator.join(map(str, index)) or "0")


def parse_v2(document: Mapping[str, Any], name: str) -> ArrayMetadata:
    """Return what a ``.zarray`` says."""
    try:
        shape, chunks = _shape(document["shape"]), _shape(document["chunks"])
        dtype = np.dtype(document["dtype"])
        if document.get("filters"):
            raise NotOurs("filters")
        compressor = document.get("compressor")
        codecs = () if compressor is None else (codec_v2(compressor),)
        fill = _fill_v2(document.get("fill_value"), dtype)
        separator = _separator(document.get("dimension_separator", "."))
        axes = tuple(range(len(shape)))
        order = axes if document.get("order", "C") == "C" else axes[::-1]
    except _SENSELESS as error:
        raise _senseless(name, ".zarray", error) from error
    return _checked(ArrayMetadata(shape, chunks, dtype, fill, codecs, order, "", separator), name)


def parse_v3(document: Mapping[str, Any], name: str) -> ArrayMetadata:
    """Return what the ``zarr.json`` of an array says."""
    try:
        shape = _shape(document["shape"])
        grid = document["chunk_grid"]
        if grid["name"] != "regular" or document.get("storage_transformers"):
            raise NotOurs("a chunk grid that is not regular")
        outer = _shape(grid["configuration"]["chunk_shape"])
        dtype = _dtype_v3(document["data_type"])
        codecs = [codec_v3(entry) for entry in document["codecs"]]
        prefix, separator = _key_encoding(document["chunk_key_encoding"])
        shards, at_end, checked = None, True, True
        chunks = outer
        if codecs and codecs[0].name == "sharding_indexed":
            if len(codecs) > 1:
                raise NotOurs("codecs around shards")
            shards, sharding = outer, codecs[0]
            chunks = _shape(sharding.setting("chunk_shape"))
            codecs = [codec_v3(entry) for entry in sharding.setting("codecs")]
            index = [codec_v3(entry) for entry in sharding.setting("index_codecs")]
            names = tuple(codec.name for codec in index)
            little = index and index[0].setting("endian", "little") == "little"
            if names not in (_INDEX_CODECS, _INDEX_CODECS[:1]) or not little:
                raise NotOurs(f"an index of {names}")
            checked = names == _INDEX_CODECS
            at_end = sharding.setting("index_location", "end") == "end"
        order = tuple(range(len(shape)))
        if codecs and codecs[0].name == "transpose":
            order = tuple(int(axis) for axis in codecs.pop(0).setting("order"))
        endian = "little"
        if codecs and codecs[0].name == "bytes":
            endian = codecs.pop(0).setting("endian", endian)
        elif not codecs or decoder_factory(codecs[0].name) is None:
            raise NotOurs("an array codec that is not bytes")
        if dtype.itemsize > 1:
            dtype = dtype.newbyteorder("<" if endian == "little" else ">")
        fill = _fill_v3(document["fill_value"], dtype)
    except _SENSELESS as error:
        raise _senseless(name, "zarr.json", error) from error
    layout = shape, chunks, dtype, fill, tuple(codecs), order, prefix, separator
    return _checked(ArrayMetadata(*layout, shards, at_end, checked), name)


def _shape(value: Any) -> tuple[int, ...]:
    lengths = tuple(value)
    if not all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _LONGEST for n in lengths
    ):
        msg = f"{shorten(value)} is no shape"
        raise ValueError(msg)
    return lengths


def _checked(found: ArrayMetadata, name: str) -> ArrayMetadata:
    chunks = found.chunks
    shards = chunks if found.shards is None else found.shards
    fits = len(found.shape) == len(chunks) == len(shards) == len(found.order)
    if not fits or min(chunks, default=1) < 1 or sorted(found.order) != list(range(len(chunks))):
        raise BadHeader(
            f"the metadata of {name} make no sense: shape {found.shape}, chunks {chunks}, "
            f"shards {found.shards}, order {found.order}.",
            do="Write the array again.",
        )
    if any(s % c for s, c in zip(shards, chunks, strict=True)):
        raise BadHeader(
            f"the shards {shards} of {name} are no multiple of its chunks {chunks}.",
            do="Write the array again.",
        )
    if math.prod(chunks) * found.dtype.itemsize > MOST_CHUNK_BYTES:
        raise BadHeader(
            f"one chunk of {name}, {chunks} {found.dtype}, takes more than {MOST_CHUNK_BYTES} "
            "bytes.",
            do="Store it in smaller chunks.",
        )
    return found


def codec_v2(configuration: Mapping[str, Any]) -> Codec:
    """Return what an entry of a ``.zarray`` says: a configuration of numcodecs."""
    settings = {key: value for key, value in configuration.items() if key != "id"}
    return Codec(str(configuration["id"]), tuple(sorted(settings.items())))


def codec_v3(entry: Any) -> Codec:
    """Return what an entry of the codecs of a ``zarr.json`` says."""
    if isinstance(entry, str):
        return Codec(entry)
    name = str(entry["name"]).removeprefix("numcodecs.")
    configuration = entry.get("configuration") or {}
    return Codec(name, tuple(configuration.items()))


def _dtype_v3(name: Any) -> np.dtype[Any]:
    plain = ("bool", "complex64", "complex128", "float16", "float32", "float64")
    if not isinstance(name, str) or not (
        name in plain or name in {f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)}
    ):
        raise NotOurs(f"data type {name!r}")
    return np.dtype(name)


def _key_encoding(encoding: Any) -> tuple[str, str]:
    if isinstance(encoding, str):
        encoding = {"name": encoding}
    settings = encoding.get("configuration") or {}
    if encoding["name"] == "default":
        separator = _separator(settings.get("separator", "/"))
        return f"c{separator}", separator
    if encoding["name"] == "v2":
        return "", _separator(settings.get("separator", "."))
    raise NotOurs(f"chunk keys {encoding['name']!r}")


def _separator(value: Any) -> str:
    """Return what stands between the numbers of a key; with another, no chunk would be found."""
    if value not in (".", "/"):
        msg = f"keys of chunks are separated by '.' or '/', not by {value!r}"
        raise ValueError(msg)
    return str(value)


def _fill_v2(value: Any, dtype: np.dtype[Any]) -> Any:
    if value is None:
        return np.zeros((), dtype)[()]
    if dtype.kind == "c":
        raise NotOurs("a complex fill value")
    if isinstance(value, str) and dtype.kind != "f":
        raise NotOurs(f"fill value {value!r}")
    return _number(value, dtype)


def _fill_v3(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "c":
        real, imaginary = value
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return complex(_fill_v3(real, part), _fill_v3(imaginary, part))
    if isinstance(value, str) and value.startswith("0x"):
        raise NotOurs("a fill value as bits")
    return _number(value, dtype)


def _number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value; text is how JSON spells NaN and infinity."""
    number = np.array(float(value) if isinstance(value, str) else value)
    with np.errstate(invalid="raise", over="ignore"):  # NaN is no integer
        return number.astype(dtype)[()]


def _senseless(name: str, file: str, error: Exception) -> BadHeader:
    return BadHeader(
        f"{file} of {name} makes no sense: {type(error).__name__}: {error}.",
        do="Write the array again.",
    )


Decode = Callable[[Any, Any, int], Any]
"""``decode(data, out, most) -> bytes-like``: into ``out`` where it is given, and returns that.

No more than ``most`` bytes; ``ValueError`` where there are more."""

# They make as much as they get (of delta, eight times as much), except the last two, whose memory
# cannot be known beforehand: what they made is refused afterwards.
_NUMCODECS = ("shuffle", "delta", "pcodec", "zfpy")
BOUNDED = ("crc32c", "gzip", "zlib", "blosc", "zstd", "bz2", "lzma", "lz4")
"""Codecs that are undone into no more bytes than they may need."""
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
            if flat.size != room.nbytes:
                raise _wrong_size(flat.size, room)
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
    factory = decoder_factory(first.name, installed=first.name not in _DECODERS)
    return None if factory is None else factory(dict(first.settings))


def _decoder(codec: Codec) -> Decode:
    """Return how one codec is undone."""
    make = _DECODERS.get(codec.name)
    if make is None:
        raise NotOurs(f"codec {codec.name!r}")
    return make(codec)


def _by_lzma(codec: Codec) -> Decode:
    kind, filters = codec.setting("format", lzma.FORMAT_XZ), codec.setting("filters")
    return lambda data, out, most: un_lzma(data, most, kind, filters)


def _by_numcodecs(codec: Codec) -> Decode:
    import numcodecs

    try:
        ready = numcodecs.get_codec({"id": codec.name, **dict(codec.settings)})
    except Exception as error:
        raise NotOurs(f"codec {codec.name!r}: {error}") from error
    return lambda data, out, most: ready.decode(bytes(data))


def _lz4(codec: Codec) -> Decode:
    from numcodecs.lz4 import decompress

    def decode(data: Any, out: Any, most: int) -> Any:
        check_most(int.from_bytes(data[:_LZ4_HEADER], "little"), most)
        return decompress(bytes(data))

    return decode


def _blosc(codec: Codec) -> Decode:
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
        if size != out.nbytes:
            raise _wrong_size(size, out)
        decompress(data, out)
        return out

    return decode


def _zstd(codec: Codec) -> Decode:
    from numcodecs.zstd import decompress

    def decode(data: Any, out: Any, most: int) -> Any:
        size = zstd_content_bytes(data)
        if out is None:
            check_most(zstd_most_bytes(data) if size is None else size, most)
            return decompress(data)
        # Where it does not say, there must be as much as there is room.
        if size not in (None, out.nbytes):
            raise _wrong_size(size, out)
        decompress(data, out)
        return out

    return decode


def _wrong_size(size: int, room: NDArray[np.uint8]) -> ValueError:
    """Return the error of a chunk of another size: before memory is taken, where it tells."""
    return ValueError(f"{size} bytes instead of {room.nbytes}")


def _without_check_sum(data: Any, out: Any, most: int) -> Any:
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


_DECODERS: dict[str, Callable[[Codec], Decode]] = {
    "crc32c": lambda codec: _without_check_sum,
    **dict.fromkeys(("gzip", "zlib"), lambda codec: lambda data, out, most: inflated(data, most)),
    "bz2": lambda codec: lambda data, out, most: un_bzip2(data, most),
    "lzma": _by_lzma,
    "lz4": _lz4,
    "blosc": _blosc,
    "zstd": _zstd,
    **dict.fromkeys(_NUMCODECS, _by_numcodecs),
}
