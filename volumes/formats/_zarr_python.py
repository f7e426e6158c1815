"""Stores of voxpipe for arrays that zarr-python reads.

This module imports zarr: import it late.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype

from ...core.errors import CorruptVolume
from ...core.sample import parse_json
from ...storage.decompress import most_between
from ...storage.ranges import RangeStore, ReadRange
from ..chunks.ranged_chunks import most_of_object
from .chunked_backend import check_chunk_bytes
from .zarr_array import codec_v2, codec_v3
from .zarr_chunks import BOUNDED_CODECS, Codec, undo

_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_OF_ARRAYS = ("zarr.json", ".zarray")
# Bytes of a number of an unknown type: those of the largest type of NumPy.
_LARGEST_NUMBER = 16


class RangesStore(Store):
    """Read-only store for zarr-python over a store of ranges, with its checks, retries and limits.

    The metadata of each array, when zarr-python reads them, bound the bytes of its chunks. This
    store undoes compressors with a bounded output, except inside of shards, and removes them from
    the metadata that zarr-python gets.
    """

    # Older versions of zarr-python read the last one.
    supports_writes = supports_deletes = supports_partial_writes = False
    supports_listing = True

    def __init__(self, ranges: RangeStore) -> None:
        super().__init__(read_only=True)
        self._ranges = ranges
        self._arrays: dict[str, _Objects] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangesStore) and other._ranges is self._ranges

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self._ranges.name

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return an object or a range of it, without compression; None if missing."""
        # In a thread, because the stores block.
        content = await asyncio.to_thread(self._read, key, byte_range)
        return None if content is None else prototype.buffer.from_bytes(content)

    async def get_stored(self, key: str) -> bytes | None:
        """Return an object as it is stored, with compression."""
        return await asyncio.to_thread(self._read_stored, ReadRange(key), self._objects_at(key))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        reads = [self.get(key, prototype, byte_range) for key, byte_range in key_ranges]
        return list(await asyncio.gather(*reads))

    async def exists(self, key: str) -> bool:
        answers = await asyncio.to_thread(self._ranges.get_ranges, [ReadRange(key, 0, 1)])
        return answers[0] is not None

    async def list(self) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(self._keys, ""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(self._keys, prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        keys = await asyncio.to_thread(self._keys, folder)
        for name in sorted({key[len(folder) :].split("/", 1)[0] for key in keys}):
            yield name

    async def set(self, key: Any, value: Any = None) -> None:
        self._check_writable()

    delete = set_partial_values = set

    def _keys(self, prefix: str) -> list[str]:  # type: ignore[valid-type]
        folder = prefix.rpartition("/")[0]
        return [key for key in self._ranges.list(folder) if key.startswith(prefix)]

    def _read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        if key.rpartition("/")[2] in _DOCUMENTS:
            return self._document(key, byte_range)
        objects, request = self._objects_at(key), _range(key, byte_range)
        if not objects.codecs:
            return self._read_stored(request, objects)
        content = self._read_stored(ReadRange(key), objects)
        if content is None:
            return None
        plain = bytes(undo(objects.codecs, content, objects.size))
        return plain[request.start : request.stop]

    def _read_stored(self, request: ReadRange, objects: _Objects) -> bytes | None:
        most = most_between(objects.size) if objects.size else 0
        if most and request.length is not None and request.length > most:
            msg = f"a chunk of {self._ranges.name} is stored in {request.length} bytes, in "
            raise CorruptVolume(f"{msg}{request.object}, and takes {objects.size} when decoded.")
        more = most_of_object(self._ranges, objects.size)
        (content,) = self._ranges.get_ranges([request], *more)
        if content is not None and request.length is not None and len(content) < request.length:
            msg = f"{request.object} of {self._ranges.name} ends before byte {request.stop}."
            raise CorruptVolume(msg)
        return None if content is None else bytes(content)

    def _document(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        data = self._ranges.get(key)
        if data is None:
            return None
        folder, _, file = key.rpartition("/")
        if file in _OF_ARRAYS:
            data = self._note(folder, data)
        start, stop = _range(key, byte_range)[1:]
        return bytes(data)[start:stop]

    def _note(self, folder: str, data: bytes) -> bytes:
        """Record the metadata of an array; return those for zarr-python."""
        try:
            document = parse_json(data)
            size = _object_bytes(document)
            rest, codecs = _split_compressors(document) if size else (document, ())
        except (AttributeError, KeyError, TypeError, ValueError):
            return data  # a group, or damaged metadata, whose error zarr-python raises
        check_chunk_bytes(size, self._ranges.name)
        self._arrays[folder] = _Objects(size, tuple(codecs))
        return json.dumps(rest).encode() if codecs else data

    def _objects_at(self, key: str) -> _Objects:
        while key:
            key = key.rpartition("/")[0]
            if key in self._arrays:
                return self._arrays[key]
        return _Objects()


class _Objects(NamedTuple):
    """The chunks or shards of an array."""

    size: int = 0  # bytes of a decoded one; 0 if unknown
    codecs: tuple[Codec, ...] = ()  # undone by the store; in order of encoding


def _range(key: str, byte_range: ByteRequest | None) -> ReadRange:
    """Return the range for one of zarr-python.

    Examples
    --------
    >>> _range("a", RangeByteRequest(3, 5)), _range("a", SuffixByteRequest(4))
    (ReadRange(object='a', start=3, stop=5), ReadRange(object='a', start=-4, stop=None))
    """
    if isinstance(byte_range, RangeByteRequest):
        return ReadRange(key, byte_range.start, byte_range.end)
    if isinstance(byte_range, OffsetByteRequest):
        return ReadRange(key, byte_range.offset)
    if isinstance(byte_range, SuffixByteRequest):
        return ReadRange(key, -byte_range.suffix)
    return ReadRange(key)


def _object_bytes(document: Mapping[str, Any]) -> int:
    """Return the decoded bytes of a chunk or shard from the metadata of its array.

    Examples
    --------
    >>> _object_bytes({"chunks": [2, 3], "dtype": "<i2"})
    12
    """
    grid = document.get("chunk_grid")
    shape = document["chunks"] if grid is None else grid["configuration"]["chunk_shape"]
    count = math.prod(int(length) for length in shape)
    try:
        number = np.dtype(document.get("dtype", document.get("data_type"))).itemsize
    except (TypeError, ValueError, SyntaxError):
        number = _LARGEST_NUMBER
    return count * int(number)


def _split_compressors(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Codec]]:
    """Return metadata without the last codecs of bounded output, and these codecs.

    Examples
    --------
    >>> _split_compressors({"compressor": {"id": "zlib", "level": 1}, "filters": None})
    ({'compressor': None, 'filters': None}, [Codec(name='zlib', settings={'level': 1})])
    """
    rest, last = dict(document), []
    if "codecs" not in rest:
        compressor = rest.get("compressor")
        if compressor is not None and codec_v2(compressor).name in BOUNDED_CODECS:
            last, rest["compressor"] = [codec_v2(compressor)], None
        return rest, last
    rest["codecs"] = list(rest["codecs"])
    while rest["codecs"] and codec_v3(rest["codecs"][-1]).name in BOUNDED_CODECS:
        last.insert(0, codec_v3(rest["codecs"].pop()))
    return rest, last
