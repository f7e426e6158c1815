"""Zarr arrays and groups that voxpipe reads itself: metadata of versions 2 and 3."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ...core.call_site import shorten
from ...core.errors import BadHeader, LeadsOutside, VolumeNotFound
from ...core.sample import parse_json
from ...storage.content import content_key, folder_key, listing_key
from ...storage.file_reader import LocalRanges
from ...storage.fsspec_ranges import version_of
from ...storage.ranges import RangeStore, ReadRange
from ..chunks.chunk_cache import ChunkCache
from ..chunks.chunked_array import ChunkedArray
from ..chunks.ranged_chunks import RangedChunks, decoder_factory, forget_bytes
from ..session import opening_session
from .chunked_backend import check_chunk_bytes, refuse_conventions
from .stored_file import library_errors
from .zarr_chunks import ArrayMetadata, Codec, NotOurs, PlainChunks, ShardedChunks, ZarrDecoder

# Length of an axis: indices, and the next one, fit into signed 64 bits.
_LONGEST = 2**62
_INDEX_CODECS = ("bytes", "crc32c")
# Members of a zarr.json. Others are extensions, which a reader must know unless marked otherwise.
_ARRAY = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")
_OPTIONAL = ("attributes", "consolidated_metadata", "dimension_names", "storage_transformers")
_MEMBERS = {"zarr_format", "node_type", *_ARRAY, *_OPTIONAL}
_DATA_TYPES = {
    *("bool", "complex64", "complex128", "float16", "float32", "float64"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}


def parse_v2(
    document: Mapping[str, Any], name: str, attributes: Mapping[str, Any] = MappingProxyType({})
) -> ArrayMetadata:
    """Return the metadata in a ``.zarray``, with xarray's axis names in its attributes."""
    with library_errors(f".zarray of {name} makes no sense", but=(NotOurs, ImportError)):
        shape, chunks = _shape(document["shape"]), _shape(document["chunks"])
        dtype = np.dtype(document["dtype"])
        if document.get("filters"):
            raise NotOurs("filters")
        compressor = document.get("compressor")
        codecs = () if compressor is None else (codec_v2(compressor),)
        fill = _fill_v2(document.get("fill_value"), dtype)
        separator = _separator(document.get("dimension_separator", "."))
        axes = tuple(range(len(shape)))
        order = {"C": axes, "F": axes[::-1]}.get(document.get("order", "C"))
        if order is None:
            raise ValueError(f"order is 'C' or 'F', not {document['order']!r}")
        refuse_conventions(attributes, name)
        names = tuple(attributes.get("_ARRAY_DIMENSIONS") or ())
        metadata = ArrayMetadata(shape, chunks, dtype, fill, codecs, order, "", separator)
        return _check(replace(metadata, dimension_names=names), name)


def parse_v3(document: Mapping[str, Any], name: str) -> ArrayMetadata:
    """Return the metadata in the ``zarr.json`` of an array."""
    with library_errors(f"zarr.json of {name} makes no sense", but=(NotOurs, ImportError)):
        shape = _shape(document["shape"])
        grid = document["chunk_grid"]
        if grid["name"] != "regular" or document.get("storage_transformers"):
            raise NotOurs("a chunk grid that is not regular")
        chunks = _shape(grid["configuration"]["chunk_shape"])
        dtype = _dtype_v3(document["data_type"])
        codecs = [codec_v3(entry) for entry in document["codecs"]]
        prefix, separator = _key_encoding(document["chunk_key_encoding"])
        shards, at_end, has_crc = None, True, True
        if codecs and codecs[0].name == "sharding_indexed":
            if len(codecs) > 1:
                raise NotOurs("codecs around shards")
            shards, sharding = chunks, codecs[0].settings
            chunks = _shape(sharding["chunk_shape"])
            codecs, index = (
                [codec_v3(entry) for entry in sharding[key]] for key in ("codecs", "index_codecs")
            )
            names = tuple(codec.name for codec in index)
            little = index and index[0].settings.get("endian", "little") == "little"
            if names not in (_INDEX_CODECS, _INDEX_CODECS[:1]) or not little:
                raise NotOurs(f"an index of {names}")
            has_crc = names == _INDEX_CODECS
            location = sharding.get("index_location", "end")
            if location not in ("start", "end"):
                raise ValueError(f"index_location is 'start' or 'end', not {location!r}")
            at_end = location == "end"
        order = tuple(range(len(shape)))
        if codecs and codecs[0].name == "transpose":
            numbers = codecs.pop(0).settings["order"]
            if isinstance(numbers, str):
                msg = f"order {numbers!r} of transpose is of a draft, not a list of axes"
                raise ValueError(msg)
            order = tuple(int(axis) for axis in numbers)
        endian = "little"
        if codecs and codecs[0].name == "bytes":
            endian = codecs.pop(0).settings.get("endian", endian)
            if dtype.itemsize > 1 and endian not in ("little", "big"):
                raise ValueError(f"endian is 'little' or 'big', not {endian!r}")
        elif not codecs or decoder_factory(codecs[0].name) is None:
            raise NotOurs("an array codec that is not bytes")
        if dtype.itemsize > 1:
            dtype = dtype.newbyteorder("<" if endian == "little" else ">")
        fill = _fill_v3(document["fill_value"], dtype)
        layout = shape, chunks, dtype, fill, tuple(codecs), order, prefix, separator
        attributes = document.get("attributes") or {}
        refuse_conventions(attributes, name)
        whole, sums = completeness_in(attributes), sums_in(attributes) if at_end else b""
        names = tuple(document.get("dimension_names") or ())
        if len(names) not in (0, len(shape)):
            raise ValueError(f"{len(names)} dimension_names of {len(shape)} axes")
        return _check(ArrayMetadata(*layout, shards, at_end, has_crc, whole, sums, names), name)


def dimension_names(array: Any) -> Sequence[Any]:
    """Return the names of the axes of an array of voxpipe or zarr-python; empty without any."""
    names: Sequence[Any] = getattr(array.metadata, "dimension_names", None) or ()
    return names or dict(getattr(array, "attrs", {})).get("_ARRAY_DIMENSIONS") or ()


def completeness(array: Any) -> bool | None:
    """Return whether the writer of an array stored every shard; None without a record."""
    if isinstance(array, ZarrArray):
        return array.metadata.is_complete
    return completeness_in(dict(array.attrs))


def completeness_in(attributes: Mapping[str, Any]) -> bool | None:
    """Return the completeness that the attributes of an array record."""
    record = attributes.get("voxpipe")
    answer = record.get("complete") if isinstance(record, Mapping) else None
    if answer is not None and not isinstance(answer, bool):
        raise ValueError(f'"complete" of the attribute "voxpipe" is true or false, not {answer!r}')
    return answer


def sums_in(attributes: Mapping[str, Any]) -> bytes:
    """Return the check sums of shards that the attributes of an array record; empty without."""
    record = attributes.get("voxpipe")
    return bytes.fromhex(record.get("sums", "")) if isinstance(record, Mapping) else b""


def _shape(value: Any) -> tuple[int, ...]:
    lengths = tuple(value)
    if not all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _LONGEST for n in lengths
    ):
        raise ValueError(f"{shorten(value)} is no shape")
    return lengths


def _check(metadata: ArrayMetadata, name: str) -> ArrayMetadata:
    chunks = metadata.chunks
    shards = chunks if metadata.shards is None else metadata.shards
    fits = len(metadata.shape) == len(chunks) == len(shards) == len(metadata.order)
    if not fits or min(chunks, default=1) < 1 or sorted(metadata.order) != list(range(len(chunks))):
        msg = f"the metadata of {name} make no sense: shape {metadata.shape}, chunks {chunks}, "
        raise BadHeader(f"{msg}shards {metadata.shards}, order {metadata.order}.")
    if any(s % c for s, c in zip(shards, chunks, strict=True)):
        raise BadHeader(f"the shards {shards} of {name} are no multiple of its chunks {chunks}.")
    check_chunk_bytes(math.prod(chunks) * metadata.dtype.itemsize, name)
    return metadata


def codec_v2(configuration: Mapping[str, Any]) -> Codec:
    """Return the codec of an entry of a ``.zarray``, a configuration of numcodecs."""
    settings = {key: value for key, value in configuration.items() if key != "id"}
    return Codec(str(configuration["id"]), settings)


def codec_v3(entry: Any) -> Codec:
    """Return the codec of an entry of a ``zarr.json``."""
    if isinstance(entry, str):
        return Codec(entry, {})
    name = str(entry["name"]).removeprefix("numcodecs.")
    return Codec(name, dict(entry.get("configuration") or {}))


def _dtype_v3(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in _DATA_TYPES:
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
    """Return the separator of numbers in keys; another one would find no chunk."""
    if value not in (".", "/"):
        raise ValueError(f"keys of chunks are separated by '.' or '/', not by {value!r}")
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
    if value is None:
        raise ValueError("fill_value is null, and version 3 wants a number, 0 for instance")
    if isinstance(value, str) and value.startswith("0x"):
        raise NotOurs("a fill value as bits")
    return _number(value, dtype)


def _number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value; JSON has NaN and infinity as text."""
    number = np.array(float(value) if isinstance(value, str) else value)
    with np.errstate(invalid="raise", over="ignore"):  # NaN is no integer
        result = number.astype(dtype)[()]
    if dtype.kind in "iub" and result != number:
        raise ValueError(f"fill_value {value!r} is no {dtype} number")
    return result


class ZarrArray(ChunkedArray):
    """One zarr array, read by voxpipe."""

    def __init__(
        self, metadata: ArrayMetadata, path: str, store: RangeStore, cache: ChunkCache, token: str
    ) -> None:
        self.metadata, self.path = metadata, path
        self.shards, self.fill_value = metadata.shards, metadata.fill_value
        inside = replace(metadata, prefix=path + metadata.prefix)
        self._map = PlainChunks(inside) if self.shards is None else ShardedChunks(inside, store)
        self._ahead, own = opening_session().ahead, f"{token}/{path}"
        size = math.prod(metadata.chunks) * metadata.dtype.itemsize
        source = RangedChunks(store, self._map, ZarrDecoder(metadata), own, size)
        form = metadata.shape, metadata.chunks, metadata.dtype, metadata.fill_value
        super().__init__(*form, source=source, cache=cache, token=own)

    def forget_stored(self) -> None:
        """Forget locations and bytes of chunks that were written anew."""
        if isinstance(self._map, ShardedChunks):
            self._map.forget()
        forget_bytes(self._ahead, self._token)
        self._cache.forget(self._token)


class ZarrGroup:
    """One zarr group: its attributes, and its arrays by path."""

    def __init__(
        self, attrs: Mapping[str, Any], path: str, store: RangeStore, version: int, node: Any
    ) -> None:
        self.attrs, self._path, self._store, self._version = attrs, path, store, version
        self._node = node

    def get(self, path: str) -> Any:
        """Return the array or group at a path below; None if missing."""
        # Local folders check paths; an object server may resolve "..".
        if ".." in path.split("/") and not isinstance(self._store, LocalRanges):
            msg = f"the metadata of {self._store.name} refer to {shorten(path)}."
            raise LeadsOutside(msg, do="Refer only to arrays below the URL of the group.")
        return self._node(f"{self._path}{path.strip('/')}/", self._version)

    def arrays(self) -> Iterator[tuple[str, Any]]:
        """Yield the arrays directly below, by name."""
        marks = ("/zarr.json",) if self._version == 3 else ("/.zarray",)
        for key in sorted(self._store.list(self._path)):
            below = key[len(self._path) :]
            if below.endswith(marks) and below.count("/") == 1:
                node = self.get(below.split("/", 1)[0])
                if isinstance(node, ZarrArray):
                    yield below.split("/", 1)[0], node


def open_node(store: RangeStore, name: str, cache: ChunkCache, token: str) -> ZarrArray | ZarrGroup:
    """Return the array or group at the root of a store; raise ``NotOurs`` for zarr-python."""

    def node(path: str, version: int | None = None) -> ZarrArray | ZarrGroup | None:
        if version in (None, 3):
            document = _json(store.get(f"{path}zarr.json"), f"zarr.json of {name}")
            if document is not None:
                _refuse_newer(document, 3, f"{path}zarr.json of {name}")
                kind = document.get("node_type")
                if kind == "array":
                    return ZarrArray(parse_v3(document, name), path, store, cache, token)
                if kind != "group":
                    msg = f"{path}zarr.json of {name} has node_type {kind!r}, not array or group."
                    raise BadHeader(msg)
                attrs = document.get("attributes") or {}
                if getattr(store, "documents_token", ""):
                    # In parallel, before they are needed one by one.
                    store.get_ranges([ReadRange(f"{path}{key}") for key in _members(attrs)])
                return ZarrGroup(attrs, path, store, 3, node)
            if version == 3:
                return None
        if path and getattr(store, "documents_token", ""):  # in parallel
            store.get_ranges([ReadRange(f"{path}{key}") for key in (".zarray", ".zattrs")])
        document = _json(store.get(f"{path}.zarray"), f".zarray of {name}")
        if document is not None:
            _refuse_newer(document, 2, f"{path}.zarray of {name}")
            attrs = _json(store.get(f"{path}.zattrs"), f".zattrs of {name}") or {}
            return ZarrArray(parse_v2(document, name, attrs), path, store, cache, token)
        document = _json(store.get(f"{path}.zgroup"), f".zgroup of {name}")
        if document is None:
            return None
        _refuse_newer(document, 2, f"{path}.zgroup of {name}")
        attrs = _json(store.get(f"{path}.zattrs"), f".zattrs of {name}") or {}
        return ZarrGroup(attrs, path, store, 2, node)

    root = node("")
    if root is None:
        msg = f"{name} holds no zarr metadata: none of zarr.json, .zarray, .zgroup is there."
        do = "Give the path of a zarr array or group. DICOM folders must be local."
        raise VolumeNotFound(msg, do=do)
    return root


def _refuse_newer(document: Mapping[str, Any], version: int, place: str) -> None:
    number = document.get("zarr_format")
    if number != version:
        do = "Write it again as version 3 or 2, for instance with zarr-python."
        raise BadHeader(f"{place} has zarr_format {number!r} and not {version}.", do=do)
    for key in sorted(document.keys() - _MEMBERS) if version == 3 else ():
        entry = document[key]
        if not isinstance(entry, dict) or entry.get("must_understand") is not False:
            do = "Write it again without that extension."
            raise BadHeader(f"{place} uses the unknown extension {key!r}.", do=do)


def _members(attrs: Any) -> list[str]:
    """Return the objects that opening an image reads after the document of its group.

    Examples
    --------
    >>> _members({"ome": {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}})
    ['nifti/zarr.json', '0/zarr.json']
    >>> _members({"colour": "red"})
    []
    """
    try:
        path = attrs.get("ome", attrs)["multiscales"][0]["datasets"][0]["path"]
    except (AttributeError, KeyError, TypeError, IndexError):
        return []
    if not isinstance(path, str) or ".." in path.split("/"):
        return []
    # voxpipe writes a NIfTI header in one chunk.
    header = ["nifti/c/0"] if "voxpipe" in attrs else []
    return ["nifti/zarr.json", *header, f"{path}/zarr.json"]


def _json(data: bytes | None, place: str) -> dict[str, Any] | None:
    if data is None:
        return None
    try:
        document = parse_json(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise BadHeader(f"{place} is not a JSON object.")
    return document


def store_key(store: Any, path: str) -> str:
    """Return a short key for the objects below a path of a store; empty if unknown.

    Digests all bytes of objects in memory, and name, size and version of others. Stores of other
    kinds provide an attribute ``content_key``.
    """
    own = getattr(store, "content_key", None)
    if isinstance(own, str) and own:
        return content_key(own, (path,))
    mapping = getattr(store, "_store_dict", store)
    if isinstance(mapping, MutableMapping) and (isinstance(mapping, dict) or mapping is not store):
        below = f"{path}/" if path else ""
        objects = [(key, mapping[key]) for key in list(mapping) if key.startswith(below)]
        return listing_key("memory", [_digest(key, value) for key, value in objects])
    inner = getattr(store, "_store", None)
    if inner is not None:  # a wrapper, for logs or latency
        return store_key(inner, path)
    return _listed_key(store, path)


def _digest(key: str, value: Any) -> tuple[str, int, str]:
    data = value.to_bytes() if hasattr(value, "to_bytes") else bytes(value)
    return key, len(data), hashlib.blake2b(data, digest_size=16).hexdigest()


def _listed_key(store: Any, path: str) -> str:
    kind = type(store).__name__
    if kind == "ZipStore":
        status = os.stat(store.path)
        return content_key(os.path.abspath(store.path), (status.st_size, status.st_mtime_ns, path))
    root = getattr(store, "root", None) if kind == "LocalStore" else getattr(store, "path", None)
    if kind == "LocalStore" and root is not None:
        folder = os.path.abspath(os.path.join(os.fspath(root), path))
        return folder_key(folder) if os.path.isdir(folder) else ""
    system = getattr(store, "fs", None)
    if system is None or root is None:
        return ""
    import fsspec

    # A new one, because that of the store belongs to the event loop of zarr.
    system = getattr(system, "sync_fs", system)
    options = {**system.storage_options, "asynchronous": False}
    options.pop("loop", None)
    protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
    mine = fsspec.filesystem(protocol, **options)
    below = f"{str(root).rstrip('/')}/{path}".rstrip("/")
    mine.invalidate_cache(below)
    files = mine.find(below, detail=True)
    entries = [(key, int(info.get("size") or 0), version_of(info)) for key, info in files.items()]
    return listing_key(f"{protocol}:{below}", entries)
