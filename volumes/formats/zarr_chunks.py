"""Metadata, locations and decoders of the chunks of zarr arrays.

Unsupported features raise :class:`NotOurs`, and zarr-python reads the array. Tests compare the
bytes of both.
"""

from __future__ import annotations

import lzma
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.errors import CorruptVolume, VolumeChanged
from ...core.native_library import free_of_lock
from ...storage.decompress import (
    check_most,
    inflate,
    most_between,
    un_bzip2,
    un_gzip,
    un_lzma,
    zstd_content_bytes,
    zstd_most_bytes,
)
from ...storage.file_reader import LocalRanges
from ...storage.ranges import ObjectRanges, RangeStore, ReadRange, Span
from ...storage.read_ahead import works_ahead
from ...storage.retry import read_anew
from ..chunks.chunked_array import ChunkIndices, ChunkMap, Lookup
from ..chunks.native_chunks import PLAIN, ChunkPlaces, NativeDecoder, native_decoder
from ..chunks.ranged_chunks import Decoder, decoder_factory

# The offset and length of a chunk that a shard does not hold (zarr v3, sharding codec 1.0).
_NO_CHUNK = 2**64 - 1
_ENTRY_BYTES = 16
_CHECK_BYTES = 4
_ALL = slice(None)
# An index of 64 chunks takes a kilobyte; thousands of shards stay known.
MOST_INDEX_BYTES = 16 * 1024**2


class NotOurs(Exception):
    """The array uses something that voxpipe leaves to zarr-python."""


class Codec(NamedTuple):
    """One step from numbers to stored bytes."""

    name: str  # as in the metadata, e.g. ``"blosc"``, or the id of numcodecs
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class ArrayMetadata:
    """Metadata of one zarr array; tuples have an entry per stored axis."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]  # decode unit: inner chunks of shards
    dtype: np.dtype[Any]  # as stored, with its byte order
    fill_value: Any  # of chunks that are not stored
    # Compressors and checksums, in order of encoding. The first may encode numbers, if it has a
    # registered decoder.
    codecs: tuple[Codec, ...]
    order: tuple[int, ...]  # stored axes in a decoded chunk, slowest first
    prefix: str  # of keys, before the index of a chunk
    separator: str  # of the numbers in a key
    shards: tuple[int, ...] | None = None  # object unit; None if every chunk is an object
    index_at_end: bool = True  # of a shard
    index_checked: bool = True  # by a checksum that follows it
    is_complete: bool | None = None  # whether every shard was stored; None if unknown
    sums: bytes = b""  # 8 of each shard (`shard_sum`), in C order; empty if unknown
    dimension_names: tuple[Any, ...] = ()

    def key(self, index: Sequence[int]) -> str:
        """Return the key of the object at an index of the grid of objects."""
        return self.prefix + (self.separator.join(map(str, index)) or "0")


class PlainChunks(ChunkMap):
    """Map of chunks that are objects, of which only a request shows whether they exist."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        self._metadata = metadata

    def locate(self, chunks: ChunkIndices) -> ObjectRanges:
        keys = [*map(self._metadata.key, np.asarray(chunks).tolist())]
        start = np.zeros(len(keys), np.int64)
        return ObjectRanges(keys, np.arange(len(keys)), start, start - 1)


class ShardedChunks(ChunkMap):
    """Map of chunks in shards, whose indices are read once."""

    def __init__(self, metadata: ArrayMetadata, store: RangeStore) -> None:
        assert metadata.shards is not None
        self._metadata, self._store = metadata, store
        pairs = zip(metadata.shards, metadata.chunks, strict=True)
        self._per_shard = tuple(s // c for s, c in pairs)
        # In C order; of shards as Python integers, because a header may claim any number.
        self._steps = np.cumprod([1, *self._per_shard[:0:-1]])[::-1]
        self._counts = counts = [
            -(-n // s) for n, s in zip(metadata.shape, metadata.shards, strict=True)
        ]
        steps = np.cumprod([1, *counts[:0:-1]], dtype=object)[::-1]
        self._shard_steps = steps.astype(np.int64) if math.prod(counts) < 2**63 else steps
        checks = _CHECK_BYTES if metadata.index_checked else 0
        self._index_bytes = math.prod(self._per_shard) * _ENTRY_BYTES + checks
        self._read_bytes = self._index_bytes + (_CHECK_BYTES if metadata.sums else 0)
        # Key and index of each shard whose index was read, by number. The first row is the stamp
        # of a local file, which may be written again while the metadata stay.
        self._tables: OrderedDict[int, tuple[str, NDArray[np.uint64] | None]] = OrderedDict()
        self._stamp_of = store.stamp_of if isinstance(store, LocalRanges) else None
        self._extents: dict[int, Span | None] = {}
        self._most = 0
        self._places: ChunkPlaces | None = None  # local shards only
        self._fits = isinstance(store, LocalRanges) and math.prod(counts) <= ChunkPlaces.MOST_UNITS
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Forget every index, because the shards were replaced."""
        with self._lock:
            self._tables.clear()
            self._extents.clear()
            if self._places is not None:
                self._places.is_current = False
            self._places = None

    def locate(self, chunks: ChunkIndices) -> ObjectRanges:
        lookup = self.lookup(chunks)
        if not lookup.requests:
            return lookup.places(())

        def read() -> ObjectRanges:
            return lookup.places(self._store.get_ranges(lookup.requests))

        return read_anew(read) if works_ahead(self._store) else read()

    def native_places(self, most: int) -> ChunkPlaces | None:
        if self._places is None and self._fits and isinstance(self._store, LocalRanges):
            with self._lock:
                if self._places is None and self._fits:  # unless another thread made it
                    self._most = most
                    self._places = ChunkPlaces(self._per_shard, self._counts, root=self._store.real)
                    self._add_places(self._tables)
        return self._places

    def _add_places(self, tables: Mapping[int, tuple[str, NDArray[np.uint64] | None]]) -> None:
        """Enter shards for native code; the caller holds the lock."""
        if self._places is not None and isinstance(self._store, LocalRanges):
            for shard, (key, index) in tables.items():
                self._places.set_shard(shard, self._store.path_of(key), index, self._most)

    def lookup(self, chunks: ChunkIndices) -> Lookup:
        indices = np.asarray(chunks, np.int64).reshape(-1, len(self._per_shard))
        shards, inner = np.divmod(indices, self._per_shard)
        # Vectorized, because a patch touches a hundred chunks.
        number, flat = shards @ self._shard_steps, inner @ self._steps
        numbers = [*dict.fromkeys(number.tolist())]
        with self._lock:
            hits = {n: self._tables[n] for n in numbers if n in self._tables}
        if (stamp_of := self._stamp_of) is not None:
            hits = {n: hit for n, hit in hits.items() if self._is_as_read(n, hit, stamp_of)}
        unknown: dict[str, tuple[int, Any]] = {}
        if len(hits) < len(numbers):
            by_number = dict(zip(number.tolist(), shards.tolist(), strict=True))
            keys = ((n, self._metadata.key(by_number[n])) for n in numbers if n not in hits)
            # Before the read: a later change shows then.
            unknown = {key: (n, stamp_of and stamp_of(key)) for n, key in keys}
        at_end = self._metadata.index_at_end
        span = (-self._read_bytes, None) if at_end else (0, self._read_bytes)

        def places(answers: Sequence[bytes | None]) -> ObjectRanges:
            tables = {**hits, **self._learnt(unknown, answers)} if unknown else hits
            entries, which = np.empty((len(flat), 2), np.uint64), np.zeros(len(flat), np.int64)
            for n, shard in enumerate(numbers):
                index = tables[shard][1]
                members = (number == shard).nonzero()[0] if len(numbers) > 1 else _ALL
                which[members] = n
                entries[members] = _NO_CHUNK if index is None else index[1:][flat[members]]
            first, length = entries.T
            end = first + length
            # Sums that wrap around or exceed the offsets of files.
            if len(odd := ((end < first) | (end >= 2**63)).nonzero()[0]):
                for n in odd.tolist():
                    if (entries[n] != _NO_CHUNK).any():
                        what = f"a chunk at {first[n]}, {length[n]} bytes long"
                        raise self._corrupt(tables[numbers[which[n]]][0], what)
                which[odd], entries[odd], end[odd] = -1, 0, 0
            keys = [tables[shard][0] for shard in numbers]
            return ObjectRanges(keys, which, first.astype(np.int64), end.astype(np.int64))

        def extents() -> dict[str, Span]:
            with self._lock:
                keys = {n: self._tables[n][0] for n in numbers if n in self._tables}
            spans = {key: self._extent(n) for n, key in keys.items()}
            return {key: span for key, span in spans.items() if span is not None}

        return Lookup([ReadRange(key, *span) for key in unknown], places, extents)

    def _is_as_read(self, shard: int, hit: Any, stamp_of: Callable[[str], Any]) -> bool:
        """Whether a shard has the stamp in its index; raise ``VolumeChanged`` if it was removed."""
        key, index = hit
        stamp, before = stamp_of(key), None if index is None else (*index[0].tolist(),)
        if stamp is None and before:
            with self._lock:
                self._tables.pop(shard, None)
            msg = f"the shard {key} of {self._store.name} was removed since it was read."
            raise VolumeChanged(msg, do="Read it again: a missing shard has the fill value.")
        return bool(stamp == before)

    def _learnt(
        self, shards: Mapping[str, tuple[int, Any]], answers: Sequence[bytes | None]
    ) -> dict[int, tuple[str, NDArray[np.uint64] | None]]:
        learnt: dict[int, tuple[str, NDArray[np.uint64] | None]] = {}
        for (key, (shard, stamp)), answer in zip(shards.items(), answers, strict=True):
            if answer is None and self._metadata.is_complete:
                raise lost_shard(key, self._store.name)
            learnt[shard] = key, None
            if answer is not None:
                first = np.array([stamp or (0, 0)], np.uint64)
                learnt[shard] = key, np.concatenate([first, self._parse(shard, key, answer)])
        with self._lock:
            self._tables.update(learnt)
            self._add_places(learnt)
            while len(self._tables) * self._index_bytes > MOST_INDEX_BYTES:
                self._extents.pop(self._tables.popitem(last=False)[0], None)
                # Native tables would be rebuilt at each eviction.
                if self._places is not None:
                    self._places.is_current = False
                self._places, self._fits = None, False
        return learnt

    def _extent(self, shard: int) -> Span | None:
        """Return the span of all chunks in a shard; None if it holds none."""
        with self._lock:
            if shard not in self._extents:
                index = self._tables.get(shard, ("", None))[1]
                self._extents[shard] = None if index is None else _extent(index[1:])
            return self._extents[shard]

    def _parse(self, shard: int, key: str, data: bytes) -> NDArray[np.uint64]:
        if len(data) != self._read_bytes:
            raise self._corrupt(key, f"{len(data)} of {self._read_bytes} bytes of its index")
        own, data = shard_sum(data), data[-self._index_bytes :]
        if self._metadata.index_checked:
            body, check_sum = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
            if crc32c(body) != int.from_bytes(check_sum, "little"):
                raise self._corrupt(key, "an index with a wrong check sum")
            data = body
        if self._metadata.sums and own != sum_at(self._metadata.sums, shard):
            raise lost_shard(key, self._store.name, is_there=True)
        return np.frombuffer(data, "<u8").reshape(-1, 2)

    def _corrupt(self, key: str, what: str) -> CorruptVolume:
        return CorruptVolume(f"the shard {key} of {self._store.name} holds {what}.")


def tail_bytes(chunks: int) -> int:
    """Return the bytes of a shard's end with its :func:`shard_sum` and checked index."""
    return chunks * _ENTRY_BYTES + 2 * _CHECK_BYTES


def shard_sum(tail: bytes) -> bytes:
    """Return the check sums of a shard's last chunk and of its index.

    The index alone is equal in shards of equal lengths, such as those without a codec.
    """
    return bytes(tail[:_CHECK_BYTES]) + bytes(tail[-_CHECK_BYTES:])


def sum_at(sums: bytes, shard: int) -> bytes:
    """Return the recorded :func:`shard_sum` of a shard by its number in C order."""
    return sums[shard * 2 * _CHECK_BYTES :][: 2 * _CHECK_BYTES]


def lost_shard(key: str, name: str, *, is_there: bool = False) -> CorruptVolume:
    """Return the error of a missing, or another, shard in an array that was written whole."""
    document = f"{key.rpartition('c/')[0]}zarr.json"
    state, do = "missing, and all were written", 'is fill, write "complete": false in'
    if is_there:
        state, do = "not the one that was written", 'was edited, remove "sums" from'
    do = f"Copy or convert it again. If it {do} {document}."
    return CorruptVolume(f"the shard {key} of {name} is {state}.", do=do)


def _extent(table: NDArray[np.uint64]) -> Span | None:
    """Return the span of all chunks in a table; None if there are none or it is damaged.

    Examples
    --------
    >>> nothing = 2**64 - 1
    >>> _extent(np.array([[40, 2], [nothing, nothing], [10, 5]], np.uint64))
    (10, 42)
    """
    starts, lengths = table[(table != _NO_CHUNK).any(axis=1)].T
    stops = starts + lengths
    # The read of a chunk with a damaged entry raises.
    if not len(starts) or (stops < starts).any() or stops.max() >= 2**63:
        return None
    return int(starts.min()), int(stops.max())


Decode = Callable[[Any, Any, int], Any]
"""``decode(data, out, most) -> bytes-like``: into ``out`` if given, and returns that.

Raises ``ValueError`` above ``most`` bytes."""

# The output of the first two is bounded: as large as the input, with delta eight times. That of the
# others is unknown before decoding, and checked after.
_NUMCODECS = ("shuffle", "delta", "pcodec", "zfpy")
_NATIVE = ("blosc", "zstd")
_BLOSC_HEADER = 16
_LZ4_HEADER = 4


class ZarrDecoder:
    """Decodes the chunks of one array."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        self._plug_in = _plug_in(metadata)
        rest = metadata.codecs[1:] if self._plug_in is not None else metadata.codecs
        self._steps = [_decoder(codec) for codec in reversed(rest)]
        self._order = metadata.order
        self.strided = bool(getattr(self._plug_in, "strided", False))
        self._shape = tuple(metadata.chunks[axis] for axis in metadata.order)
        self._is_transposed = metadata.order != tuple(range(len(self._shape)))
        self.native: NativeDecoder | None = None
        """The equal native decoder of many chunks in one call; None without one."""
        if self._plug_in is None and not self._is_transposed:
            self.native = _native(rest)

    def decode(self, data: memoryview, out: NDArray[Any], index: tuple[int, ...]) -> None:
        """Decode a chunk of any index into ``out``: whole chunk, stored type.

        ``out`` is in C order without gaps, unless the decoder is :attr:`strided`. Raises the
        exception of the codec, or ``ValueError``, if the bytes are not a whole chunk.
        """
        content: Any = data
        if self._plug_in is not None:
            # External decoders write in place if they can.
            for step in self._steps:
                content = step(content, None, most_between(out.nbytes))
            target = out.transpose(self._order)
            in_place = self.strided or target.flags.c_contiguous
            room = target if in_place else np.empty(self._shape, out.dtype)
            if getattr(self._plug_in, "clears", False):
                room[...] = 0
            self._plug_in.decode_into(memoryview(content).toreadonly(), room)
            if not in_place:
                target[...] = room
            return
        target = np.empty(self._shape, out.dtype) if self._is_transposed else out
        room = target.reshape(-1).view(np.uint8)
        for number, step in enumerate(self._steps):
            is_last = number == len(self._steps) - 1
            most = room.nbytes if is_last else most_between(room.nbytes)
            content = step(content, room if is_last else None, most)
        if content is not room:
            flat = np.frombuffer(content, np.uint8)
            if flat.size != room.nbytes:
                raise _wrong_size(flat.size, room)
            room[...] = flat
        if self._is_transposed:
            out.transpose(self._order)[...] = target


def undo(codecs: Sequence[Codec], data: Any, chunk_bytes: int) -> Any:
    """Return the bytes of a chunk before ``codecs``, which are :data:`BOUNDED_CODECS` in order.

    Raise the exception of the codec, or ``ValueError``, for damaged bytes and for more bytes than
    a chunk of ``chunk_bytes`` can need.
    """
    for codec in reversed(codecs):
        data = _decoder(codec)(data, None, most_between(chunk_bytes))
    return data


def _native(codecs: Sequence[Codec]) -> NativeDecoder | None:
    check = native_decoder("crc32c") if codecs and _is_behind(codecs[-1]) else None
    names = [codec.name for codec in (codecs[:-1] if check else codecs)]
    decoder = None if names else PLAIN
    if len(names) == 1 and names[0] in _NATIVE:
        decoder = native_decoder(names[0])
    return decoder._replace(check=check.decode) if check and decoder else decoder


def _plug_in(metadata: ArrayMetadata) -> Decoder | None:
    """Return the external decoder of the first codec, if there is one."""
    # Search packages only for unknown codecs: the search takes a millisecond.
    if not metadata.codecs:
        return None
    first = metadata.codecs[0]
    factory = decoder_factory(first.name, external=first.name not in _DECODERS)
    return None if factory is None else factory(first.settings)


def _decoder(codec: Codec) -> Decode:
    if (make := _DECODERS.get(codec.name)) is None:
        raise NotOurs(f"codec {codec.name!r}")
    return make(codec)


def _by_lzma(codec: Codec) -> Decode:
    kind, filters = codec.settings.get("format", lzma.FORMAT_XZ), codec.settings.get("filters")
    return lambda data, out, most: un_lzma(data, most, kind, filters)


def _by_numcodecs(codec: Codec) -> Decode:
    import numcodecs

    try:
        ready = numcodecs.get_codec({"id": codec.name, **codec.settings})
    except Exception as error:
        raise NotOurs(f"codec {codec.name!r}: {error}") from error
    return lambda data, out, most: ready.decode(bytes(data))


def _lz4(codec: Codec) -> Decode:
    from numcodecs import lz4

    decompress = free_of_lock(lz4.decompress)

    def decode(data: Any, out: Any, most: int) -> Any:
        check_most(int.from_bytes(data[:_LZ4_HEADER], "little"), most)
        return decompress(bytes(data))

    return decode


def _blosc(codec: Codec) -> Decode:
    from numcodecs import blosc

    # In the main thread numcodecs lets blosc start threads, which slow down decoding of 512 KiB on
    # two busy cores by 1.8 to 2.9 times, without a clear effect on 64 KiB and 4 MiB. Workers fill
    # all cores anyway. Keep the user's setting, if there is one.
    if blosc.use_threads is None:
        blosc.use_threads = False
    decompress = free_of_lock(blosc.decompress)

    def decode(data: Any, out: Any, most: int) -> Any:
        # The header of blosc: version, codec, flags, item size, decoded size, size of a block,
        # stored size. Blosc trusts the last one and would read beyond the bytes.
        stored_size = int.from_bytes(data[12:16], "little")
        if not _BLOSC_HEADER <= stored_size <= len(data):
            raise ValueError(f"{len(data)} bytes of blosc, whose header claims {stored_size}")
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
    from numcodecs import zstd

    decompress = free_of_lock(zstd.decompress)

    def decode(data: Any, out: Any, most: int) -> Any:
        size = zstd_content_bytes(data)
        if size is None or out is None:
            limit = most if out is None else most_between(out.nbytes)
            check_most(zstd_most_bytes(data) if size is None else size, limit)
            return decompress(data)
        if size != out.nbytes:
            raise _wrong_size(size, out)
        decompress(data, out)
        return out

    return decode


def _wrong_size(size: int, room: NDArray[np.uint8]) -> ValueError:
    return ValueError(f"{size} bytes instead of {room.nbytes}")


def _by_crc32c(codec: Codec) -> Decode:
    at = -_CHECK_BYTES if _is_behind(codec) else _CHECK_BYTES

    def decode(data: Any, out: Any, most: int) -> Any:
        body, check_sum = (data[:at], data[at:]) if at < 0 else (data[at:], data[:at])
        if crc32c(body) != int.from_bytes(bytes(check_sum), "little"):
            raise ValueError("its check sum is wrong")
        return body

    return decode


def _is_behind(codec: Codec) -> bool:
    """Whether a codec is a CRC-32C after the bytes; that of numcodecs may precede them."""
    return codec.name == "crc32c" and codec.settings.get("location", "end") == "end"


def crc32c(data: Any) -> int:
    """Return the CRC-32C of bytes."""
    try:
        import google_crc32c  # a dependency of zarr-python 3.1
    except ModuleNotFoundError:
        older = import_module("crc32c")  # a dependency of zarr-python 3.0
        return int(older.crc32c(bytes(data)))
    return int(google_crc32c.value(bytes(data)))


_DECODERS: dict[str, Callable[[Codec], Decode]] = {
    "crc32c": _by_crc32c,
    "gzip": lambda codec: lambda data, out, most: un_gzip(data, most),
    "zlib": lambda codec: lambda data, out, most: inflate(data, most),
    "bz2": lambda codec: lambda data, out, most: un_bzip2(data, most),
    "lzma": _by_lzma,
    "lz4": _lz4,
    "blosc": _blosc,
    "zstd": _zstd,
    **dict.fromkeys(_NUMCODECS, _by_numcodecs),
}
BOUNDED_CODECS = _DECODERS.keys() - _NUMCODECS
"""Codecs that decode into a bounded number of bytes."""
