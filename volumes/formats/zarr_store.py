"""What zarr-python reads of a volume, through the same stores as everything else.

This module imports zarr: import it late.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype

from ...core.errors import BadHeader, CorruptVolume
from ...core.sample import parse_json
from ..chunks.bounded import most_between
from ..stores.ranges import LocalRanges, RangeStore, ReadRange
from ..stores.read_ahead import works_ahead
from ..stores.zip_ranges import ZipRanges
from .zarr_metadata import MOST_CHUNK_BYTES

_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_OF_ARRAYS = ("zarr.json", ".zarray")
# Of numbers whose type numpy has no name for: the largest that it has takes as many.
_LARGEST_NUMBER = 16


class RangesStore(Store):
    """Objects of a store of ranges, for zarr-python: with its checks, retries and limits.

    It can only be read. Of each array, the metadata that zarr-python asks for say which bytes its
    stored chunks can need at most.
    """

    # Older versions of zarr-python ask for the last one.
    supports_writes = supports_deletes = supports_partial_writes = False
    supports_listing = True

    def __init__(self, ranges: RangeStore) -> None:
        super().__init__(read_only=True)
        self._ranges = ranges
        self._chunk_bytes: dict[str, int] = {}

    def __eq__(self, other: object) -> bool:
        """Whether it reads the same objects."""
        return isinstance(other, RangesStore) and other._ranges is self._ranges

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self._ranges.name

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return an object or a range of it; None where there is none."""
        # The stores wait: in a thread, so that others go on meanwhile.
        found = await asyncio.to_thread(self._read, key, byte_range)
        return None if found is None else prototype.buffer.from_bytes(found)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return objects or ranges of them, side by side."""
        asked = [self.get(key, prototype, byte_range) for key, byte_range in key_ranges]
        return list(await asyncio.gather(*asked))

    async def exists(self, key: str) -> bool:
        """Whether there is an object of this name."""
        found = await asyncio.to_thread(self._ranges.get_ranges, [ReadRange(key, 0, 1)])
        return found[0] is not None

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        for key in await asyncio.to_thread(self._keys, ""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with a prefix."""
        for key in await asyncio.to_thread(self._keys, prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield what lies directly below a folder: the last parts of names."""
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        keys = await asyncio.to_thread(self._keys, folder)
        for name in sorted({key[len(folder) :].split("/", 1)[0] for key in keys}):
            yield name

    async def set(self, key: str, value: Buffer) -> None:
        """Raise ``ValueError``: it can only be read."""
        self._check_writable()

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Any]]) -> None:
        """Raise ``ValueError``: it can only be read."""
        self._check_writable()

    async def delete(self, key: str) -> None:
        """Raise ``ValueError``: it can only be read."""
        self._check_writable()

    def _keys(self, prefix: str) -> list[str]:  # type: ignore[valid-type]
        folder = prefix.rpartition("/")[0]
        return [key for key in self._ranges.list(folder) if key.startswith(prefix)]

    def _read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        if key.rpartition("/")[2] in _DOCUMENTS:
            return self._document(key, byte_range)
        wanted, chunk = _range(key, byte_range), self._chunk_at(key)
        most = most_between(chunk) if chunk else 0
        if most and wanted.length is not None and wanted.length > most:
            raise CorruptVolume(
                f"a chunk of {self._ranges.name} is stored in {wanted.length} bytes, in {key}, and "
                f"takes {chunk} when decoded.",
                do="Copy or write this file again.",
            )
        found = self._found(wanted, chunk, most)
        if found is not None and wanted.length is not None and len(found) < wanted.length:
            raise CorruptVolume(
                f"{key} of {self._ranges.name} ends before byte {wanted.stop}.",
                do="Copy or write this file again.",
            )
        return None if found is None else bytes(found)

    def _found(self, wanted: ReadRange, chunk: int, most: int) -> bytes | None:
        store: Any = self._ranges
        if works_ahead(store):
            (found,) = store.get_ranges([wanted], chunk)
        elif isinstance(store, (LocalRanges, ZipRanges)):
            (found,) = store.get_ranges([wanted], most)
        else:
            (found,) = store.get_ranges([wanted])
        return found

    def _document(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        data = self._ranges.get(key)
        if data is None:
            return None
        folder, _, file = key.rpartition("/")
        if file in _OF_ARRAYS:
            size = _object_bytes(data)
            if size > MOST_CHUNK_BYTES:
                raise BadHeader(
                    f"one chunk of {self._ranges.name} takes {size} bytes, more than "
                    f"{MOST_CHUNK_BYTES}.",
                    do="Store it in smaller chunks.",
                )
            self._chunk_bytes[folder] = size
        start, stop = _range(key, byte_range)[1:]
        return bytes(data)[start:stop]

    def _chunk_at(self, key: str) -> int:
        """Return what an object of the array takes in which a key lies; 0 if that is not known."""
        while key:
            key = key.rpartition("/")[0]
            if self._chunk_bytes.get(key):
                return self._chunk_bytes[key]
        return 0


def _range(key: str, asked: ByteRequest | None) -> ReadRange:
    """Return a range of ours for one of zarr-python.

    Examples
    --------
    >>> _range("a", RangeByteRequest(3, 5)), _range("a", SuffixByteRequest(4))
    (ReadRange(object='a', start=3, stop=5), ReadRange(object='a', start=-4, stop=None))
    """
    if isinstance(asked, RangeByteRequest):
        return ReadRange(key, asked.start, asked.end)
    if isinstance(asked, OffsetByteRequest):
        return ReadRange(key, asked.offset)
    if isinstance(asked, SuffixByteRequest):
        return ReadRange(key, -asked.suffix)
    return ReadRange(key)


def _object_bytes(document: bytes) -> int:
    """Return what a chunk or shard takes, as the metadata of its array say; 0 if they do not.

    Examples
    --------
    >>> _object_bytes(b'{"chunks": [2, 3], "dtype": "<i2"}')
    12
    >>> _object_bytes(b'{"node_type": "group"}')
    0
    """
    try:
        found = parse_json(document)
        grid = found.get("chunk_grid")
        shape = found["chunks"] if grid is None else grid["configuration"]["chunk_shape"]
        count = math.prod(int(length) for length in shape)
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0  # zarr-python says what is wrong with it
    try:
        number = np.dtype(found.get("dtype", found.get("data_type"))).itemsize
    except (TypeError, ValueError, SyntaxError):
        number = _LARGEST_NUMBER
    return count * int(number)
