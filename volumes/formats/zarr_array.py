"""Zarr arrays and groups read by voxpipe itself: metadata, chunk keys, shards.

What is stored in a way that is not decoded here raises :class:`NotOurs`; then zarr-python
reads the array. Both give the same bytes, which a test compares.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.call_site import shorten
from ...core.errors import BadHeader, CorruptVolume, LeadsOutside, VolumeNotFound
from ...core.sample import parse_json
from ...storage.ranges import LocalRanges, RangeStore, ReadRange, Span
from ...storage.read_ahead import works_ahead
from ...storage.retry import read_anew
from ..chunks.chunk_cache import ChunkCache
from ..chunks.chunked_array import ChunkedArray, Index, Lookup
from ..chunks.ranged_chunks import RangedChunks, forget_bytes
from ..session import opening_session
from .zarr_metadata import ArrayMetadata, ZarrDecoder, crc32c, parse_v2, parse_v3

# The offset and length of a chunk that a shard does not hold (zarr v3, sharding codec 1.0).
_NOT_STORED = 2**64 - 1
_ENTRY_BYTES = 16
_CHECK_BYTES = 4
# An index of 64 chunks takes a kilobyte; thousands of shards stay known.
MOST_INDEX_BYTES = 16 * 1024**2


class PlainChunks:
    """Every chunk is an object; whether it exists, only asking for it tells."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        self._metadata = metadata

    def locate(self, chunks: Sequence[Index]) -> list[ReadRange | None]:
        """Return the object of each chunk."""
        return [ReadRange(self._metadata.key(index)) for index in chunks]

    def lookup(self, chunks: Sequence[Index]) -> Lookup:
        """Return the same; nothing must be read for it."""
        return Lookup([], lambda answers: self.locate(chunks))

    def forget(self) -> None:
        """Do nothing: nothing is known of objects."""


class ShardedChunks:
    """Chunks lie in shards, each with an index that is read once."""

    def __init__(self, metadata: ArrayMetadata, store: RangeStore) -> None:
        assert metadata.shards is not None
        self._metadata, self._store = metadata, store
        pairs = zip(metadata.shards, metadata.chunks, strict=True)
        self._per_shard = tuple(s // c for s, c in pairs)
        checks = _CHECK_BYTES if metadata.index_checked else 0
        self._index_bytes = math.prod(self._per_shard) * _ENTRY_BYTES + checks
        self._known: OrderedDict[Index, NDArray[np.uint64] | None] = OrderedDict()
        self._extents: dict[Index, Span | None] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Forget every index: the shards are others now."""
        with self._lock:
            self._known.clear()
            self._extents.clear()

    def locate(self, chunks: Sequence[Index]) -> list[ReadRange | None]:
        """Return where each chunk lies; reads the indices that are not known yet, at once."""
        lookup = self.lookup(chunks)
        if not lookup.requests:
            return lookup.places(())

        def read() -> list[ReadRange | None]:
            return lookup.places(self._store.get_ranges(lookup.requests))

        return read_anew(read) if works_ahead(self._store) else read()

    def lookup(self, chunks: Sequence[Index]) -> Lookup:
        """Return which indices must be read to say where chunks lie, and how to say it then."""
        count = len(self._per_shard)
        shards, inner = np.divmod(np.array(chunks, np.int64).reshape(-1, count), self._per_shard)
        # Of arrays of numbers and not chunk by chunk: a patch touches a hundred of them.
        flat = np.ravel_multi_index(tuple(inner.T), self._per_shard)
        by_shard: dict[Index, list[int]] = {}
        for n, shard in enumerate(map(tuple, shards.tolist())):
            by_shard.setdefault(shard, []).append(n)
        keys = {shard: self._metadata.key(shard) for shard in by_shard}
        with self._lock:
            known = {shard: self._known[shard] for shard in by_shard if shard in self._known}
        unknown = [shard for shard in by_shard if shard not in known]
        at_end = self._metadata.index_at_end
        span = (-self._index_bytes, None) if at_end else (0, self._index_bytes)

        def places(answers: Sequence[bytes | None]) -> list[ReadRange | None]:
            found: list[ReadRange | None] = [None] * len(chunks)
            tables = {**known, **self._learnt(unknown, answers)} if unknown else known
            for shard, table in tables.items():
                if table is None:
                    continue
                members, key = by_shard[shard], keys[shard]
                for n, (offset, length) in zip(members, table[flat[members]].tolist(), strict=True):
                    if (offset, length) == (_NOT_STORED, _NOT_STORED):
                        continue
                    if offset + length >= 2**63:
                        raise self._corrupt(shard, f"a chunk at {offset}, {length} bytes long")
                    found[n] = ReadRange(key, offset, offset + length)
            return found

        def extents() -> dict[str, Span]:
            found = {keys[shard]: self._extent(shard) for shard in by_shard}
            return {key: span for key, span in found.items() if span is not None}

        return Lookup([ReadRange(keys[shard], *span) for shard in unknown], places, extents)

    def _learnt(
        self, shards: Sequence[Index], answers: Sequence[bytes | None]
    ) -> dict[Index, NDArray[np.uint64] | None]:
        learnt = {
            shard: None if answer is None else self._parsed(shard, answer)
            for shard, answer in zip(shards, answers, strict=True)
        }
        with self._lock:
            self._known.update(learnt)
            while len(self._known) * self._index_bytes > MOST_INDEX_BYTES:
                self._extents.pop(self._known.popitem(last=False)[0], None)
        return learnt

    def _extent(self, shard: Index) -> Span | None:
        """Return from where to where a shard holds chunks; None if it holds none."""
        with self._lock:
            if shard not in self._extents:
                self._extents[shard] = _extent(self._known.get(shard))
            return self._extents[shard]

    def _parsed(self, shard: Index, data: bytes) -> NDArray[np.uint64]:
        if len(data) != self._index_bytes:
            raise self._corrupt(shard, f"{len(data)} of {self._index_bytes} bytes of its index")
        if self._metadata.index_checked:
            body, stored = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
            computed = crc32c(body)
            if computed is not None and computed != int.from_bytes(stored, "little"):
                raise self._corrupt(shard, "an index whose check sum is wrong")
            data = body
        table = np.frombuffer(data, "<u8").astype(np.uint64, copy=False)
        return table.reshape(-1, 2)

    def _corrupt(self, shard: Index, what: str) -> CorruptVolume:
        return CorruptVolume(
            f"the shard {self._metadata.key(shard)} of {self._store.name} holds {what}.",
            do="Copy or write the shard again.",
        )


def _extent(table: NDArray[np.uint64] | None) -> Span | None:
    """Return from where to where chunks lie; None if there are none, or it makes no sense.

    Examples
    --------
    >>> nothing = 2**64 - 1
    >>> _extent(np.array([[40, 2], [nothing, nothing], [10, 5]], np.uint64))
    (10, 42)
    """
    if table is None:
        return None
    starts, lengths = table[(table != _NOT_STORED).any(axis=1)].T
    stops = starts + lengths
    # A damaged index may say anything; whoever reads that chunk is told.
    if not len(starts) or (stops < starts).any() or stops.max() >= 2**63:
        return None
    return int(starts.min()), int(stops.max())


class ZarrArray(ChunkedArray):
    """One zarr array, read by voxpipe."""

    def __init__(
        self, metadata: ArrayMetadata, path: str, store: RangeStore, cache: ChunkCache, token: str
    ) -> None:
        self.metadata, self.path = metadata, path
        self.shards, self.fill_value = metadata.shards, metadata.fill_value
        inside = replace(metadata, prefix=path + metadata.prefix)
        is_sharded = metadata.shards is not None
        self._map = ShardedChunks(inside, store) if is_sharded else PlainChunks(inside)
        self._ahead, own = opening_session().ahead, f"{token}/{path}"
        size = math.prod(metadata.chunks) * metadata.dtype.itemsize
        super().__init__(
            metadata.shape,
            metadata.chunks,
            metadata.dtype,
            metadata.fill_value,
            source=RangedChunks(store, self._map, ZarrDecoder(metadata), own, size),
            cache=cache,
            token=own,
        )

    def forget_stored(self) -> None:
        """Forget where chunks lie and what is kept of their bytes: they were written anew."""
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

    def __getitem__(self, path: str) -> Any:
        """Return the array or group below; ``KeyError`` where there is none."""
        # A local folder looks where a path leads, a server of objects may resolve it by itself.
        if ".." in path.split("/") and not isinstance(self._store, LocalRanges):
            raise LeadsOutside(
                f"the metadata of {self._store.name} speak of {shorten(path)}.",
                do="What is behind a URL can only name arrays below it.",
            )
        found = self._node(f"{self._path}{path.strip('/')}/", self._version)
        if found is None:
            raise KeyError(path)
        return found

    def arrays(self) -> Iterator[tuple[str, Any]]:
        """Yield the arrays directly below, by name."""
        marks = ("/zarr.json",) if self._version == 3 else ("/.zarray",)
        for key in sorted(self._store.list(self._path)):
            below = key[len(self._path) :]
            if below.endswith(marks) and below.count("/") == 1:
                node = self[below.split("/", 1)[0]]
                if isinstance(node, ZarrArray):
                    yield below.split("/", 1)[0], node


def open_node(store: RangeStore, name: str, cache: ChunkCache, token: str) -> ZarrArray | ZarrGroup:
    """Return the array or group at the root of a store.

    ``NotOurs`` where zarr-python has to read it.
    """

    def node(path: str, version: int | None = None) -> ZarrArray | ZarrGroup | None:
        if version in (None, 3):
            document = _json(store.get(f"{path}zarr.json"), f"zarr.json of {name}")
            if document is not None:
                kind = document.get("node_type")
                if kind == "array":
                    return ZarrArray(parse_v3(document, name), path, store, cache, token)
                if kind != "group":
                    raise BadHeader(
                        f"{path}zarr.json of {name} is of no array and no group, but {kind!r}.",
                        do="Write it again.",
                    )
                attrs = document.get("attributes") or {}
                if getattr(store, "keeps_documents", False):
                    # Side by side, and not one after another as they are looked at.
                    store.get_ranges([ReadRange(f"{path}{key}") for key in _members(attrs)])
                return ZarrGroup(attrs, path, store, 3, node)
            if version == 3:
                return None
        document = _json(store.get(f"{path}.zarray"), f".zarray of {name}")
        if document is not None:
            return ZarrArray(parse_v2(document, name), path, store, cache, token)
        if _json(store.get(f"{path}.zgroup"), f".zgroup of {name}") is None:
            return None
        attrs = _json(store.get(f"{path}.zattrs"), f".zattrs of {name}") or {}
        return ZarrGroup(attrs, path, store, 2, node)

    found = node("")
    if found is None:
        raise VolumeNotFound(
            f"{name} holds no zarr metadata: none of zarr.json, .zarray, .zgroup is there.",
            do="Give the path of a zarr array or group; of DICOM, a folder on a local disk.",
        )
    return found


def _members(attrs: Any) -> list[str]:
    """Return which objects opening an image reads besides the document of its group.

    Examples
    --------
    >>> _members({"ome": {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}})
    ['nifti/zarr.json', '0/zarr.json']
    >>> _members({"colour": "red"})
    []
    """
    try:
        found = attrs.get("ome", attrs)["multiscales"][0]["datasets"][0]["path"]
    except (AttributeError, KeyError, TypeError, IndexError):
        return []
    if not isinstance(found, str) or ".." in found.split("/"):
        return []
    # Those that voxpipe wrote have a NIfTI header, in one chunk.
    header = ["nifti/c/0"] if "voxpipe" in attrs else []
    return ["nifti/zarr.json", *header, f"{found}/zarr.json"]


def _json(data: bytes | None, what: str) -> dict[str, Any] | None:
    if data is None:
        return None
    try:
        document = parse_json(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise BadHeader(f"{what} makes no sense.", do="Write it again.")
    return document
