"""The metadata document of a zarr array, v2 or v3, as plain values.

Pure functions of the JSON. What is said here in a way that voxpipe does not decode itself
raises :class:`NotOurs`, and zarr-python reads the array instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.call_site import shorten
from ...core.errors import BadHeader
from ..chunks.decoders import decoder_factory

# No chunk of a sound array is larger; a header that claims more is refused before memory is taken.
MOST_CHUNK_BYTES = 4 * 1024**3
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


@dataclass(frozen=True)
class Codec:
    """One step from numbers to stored bytes."""

    name: str
    """As in the metadata, e.g. ``"blosc"``; numcodecs' id where that is what names it."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Its configuration."""

    def setting(self, key: str, default: Any = None) -> Any:
        """Return one entry of the configuration."""
        return dict(self.settings).get(key, default)


@dataclass(frozen=True)
class ArrayMetadata:
    """What one zarr array is."""

    shape: tuple[int, ...]
    """Per stored axis."""
    chunks: tuple[int, ...]
    """Decode unit: inner chunks where there are shards."""
    dtype: np.dtype[Any]
    """As stored, byte order included."""
    fill_value: Any
    """What a chunk holds that is not stored."""
    codecs: tuple[Codec, ...]
    """Bytes to bytes, in the order of encoding; compressors and check sums. The first may encode
    numbers, if somebody registered a decoder for it."""
    order: tuple[int, ...]
    """Stored axes in the order in which they lie in a decoded chunk, slowest first."""
    prefix: str
    """What precedes the index of a chunk in its key."""
    separator: str
    """What stands between the numbers of a key."""
    shards: tuple[int, ...] | None = None
    """Object unit; None where every chunk is an object."""
    index_at_end: bool = True
    """Where a shard keeps its index."""
    index_checked: bool = True
    """Whether a check sum follows the index."""

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
    return _checked(
        ArrayMetadata(
            shape,
            chunks,
            dtype,
            fill,
            tuple(codecs),
            order,
            prefix,
            separator,
            shards,
            at_end,
            checked,
        ),
        name,
    )


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
