"""``.b2nd``, the array format of blosc2, in which nnU-Net stores its preprocessed cases.

A chunk holds many small blocks. Only blocks that a patch touches are decoded, each into place. The
axes stay in stored order: nnU-Net's are (C, Z, Y, X), as in arrays of SimpleITK. The header of a
remote file is read first (README_CFRAME_FORMAT.rst, README_B2ND_METALAYER.rst of C-Blosc2). Then
the file is copied once into the cache: blosc2 reads files and memory only, and an epoch needs most
of a case. The format has no check sums, so damage of a copy shows when its blocks are decoded,
maybe in a later run. Then the copy is made again.
"""

from __future__ import annotations

import io
import math
import operator
import struct
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, ChunkGrid, Region
from ...core.errors import BadHeader, CacheTooSmall, VolumeNotFound
from ...core.lru_cache import cached_property
from ...storage.decompress import copy
from ...storage.disk_cache import cache_budget, cache_directory
from ...storage.retry import DAMAGE, read_anew
from ...storage.volume_cache import VolumeCache
from ...volumes.backend import Backend, Channels
from ...volumes.chunks.chunked_array import (
    ChunkedArray,
    ChunkIndices,
    ChunkSource,
    FetchedChunks,
    Index,
)
from ...volumes.chunks.native_chunks import ChunkPlaces, LocatedChunks, blosc2_items, native_decoder
from ...volumes.formats.chunked_backend import ChunkedBackend, chunked_header, plain_layout
from ...volumes.formats.stored_file import (
    MAPPED_AROUND,
    MAPS,
    FilesBackend,
    Format,
    LocalStoredFile,
    MappedFile,
    RemoteStoredFile,
    StoredFile,
    check_size,
    import_package,
    library_errors,
)
from ...volumes.session import opening_session
from ...volumes.voxels import Voxels

# Magic, bytes of the header (int32) and of the frame (uint64).
_HEAD = struct.Struct(">2x8sxixQ")
_MAGIC = b"b2frame\0"
# Headers of plain arrays take 200 bytes; other layers of metadata may make them longer.
HEAD_BYTES = 4096
MOST_HEAD_BYTES = 1024**2
# Position of the number of bytes of chunks after the header of a frame.
_STORED_BYTES = slice(0x27, 0x2F)
# Header of a chunk (README_CHUNK_FORMAT.rst): flags, decoded size, size of a block, stored size,
# filters, flags of version 2.
_CHUNK = struct.Struct("<2xBx3i6B9xB")
# Replaces the offset of a chunk of zeros.
_ZEROS = -0x7F << 56
# Filters that need only the chunk: none, shuffle, bit shuffle; up to zstandard; no dictionary.
_FILTERS = {0, 1, 2}
_LAST_CODEC, _USES_DICTIONARY = 4, 1
# In the map of layers: the name, then the position of its content.
_LAYER = b"\xa4b2nd\xd2"


class FrameHeader(NamedTuple):
    """The header of a frame."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]  # decode units inside a chunk
    dtype: np.dtype[Any]


def frame_sizes(head: bytes, name: str) -> tuple[int, int]:
    """Return the bytes of the header and of the whole frame, of the first 24 bytes of a file."""
    magic, header, length = _HEAD.unpack_from(head) if len(head) >= _HEAD.size else (b"", 0, 0)
    if magic != _MAGIC or not _HEAD.size <= header <= min(length, MOST_HEAD_BYTES):
        raise BadHeader(f"{name} is no sound blosc2 array.")
    return header, length


def read_frame_header(head: bytes, name: str) -> FrameHeader:
    """Return the header of a frame."""
    header, _ = frame_sizes(head, name)
    msgpack = import_package("msgpack", name)  # which blosc2 needs itself
    try:
        at = head.index(_LAYER, 0, header) + len(_LAYER)
        layers = msgpack.Unpacker()
        layers.feed(head[int.from_bytes(head[at : at + 4], "big") : header])
        # The 0 before it means that the type is a NumPy string.
        _, axes, shape, chunks, blocks, _, text = msgpack.unpackb(layers.unpack())
        dtype = np.dtype(text)
        shape, chunks, blocks = (tuple(map(operator.index, n)) for n in (shape, chunks, blocks))
    except (ValueError, TypeError, IndexError, SyntaxError, msgpack.UnpackException) as error:
        raise BadHeader(f"the header of {name} describes no array: {error}.") from None
    sizes = (*shape, *chunks, *blocks)
    if {len(shape), len(chunks), len(blocks)} != {axes} or min(sizes) < 1:
        sizes_text = f"shape {shape}, chunks {chunks}, blocks {blocks}"
        raise BadHeader(f"the header of {name} contradicts itself: {sizes_text}.")
    return FrameHeader(shape, chunks, blocks, dtype)


class Blosc2Backend(ChunkedBackend):
    """A ``.b2nd``, mapped unless ``io`` says to read it, by blocks."""

    def __init__(self, file: LocalStoredFile, axes: Any = None) -> None:
        name = file.name
        file_map, ndarray = _open(file)
        dtype, shape = np.dtype(ndarray.dtype), tuple(ndarray.shape)
        chunk, block = tuple(ndarray.chunks), tuple(ndarray.blocks)
        layout = plain_layout(shape, name, axes)
        chunked_header(layout, chunk, dtype, name)
        header = chunked_header(layout, block, dtype, name)
        total = math.prod(-(-length // c) for length, c in zip(shape, chunk, strict=True))
        if ndarray.schunk.nchunks != total:
            content = f"{ndarray.schunk.nchunks} chunks"
            raise BadHeader(f"{name} holds {content}, and its shape {shape} declares {total}.")
        IO_COUNTERS.count(headers=1)
        # The unit of decoding is a block; a whole chunk only if it is one block.
        self.blocks = Blosc2Blocks(file_map, ndarray, name)
        cache, token = opening_session().chunks, file.content_key
        form, cuts = (shape, block, dtype, 0), ChunkGrid(shape, chunk, block)
        array = ChunkedArray(*form, source=self.blocks, cache=cache, token=token, cuts=cuts)
        super().__init__(array, layout, [file], header, name)


class Blosc2Blocks(ChunkSource, FetchedChunks):
    """The blocks of one array, each decoded alone. The decoder is one object with one state.

    A block is a contiguous run of items in its chunk. Blocks are in C order, each of full size:
    items beyond the edge of the chunk are stored as zeros. The mapped file has to live as long as
    the array; without one blosc2 reads the file at each call. Native code finds chunks by itself.
    """

    def __init__(self, file_map: MappedFile | None, ndarray: Any, name: str) -> None:
        self.name, self.items = name, ndarray.schunk
        # The items are part of the array, and the array of the file: neither holds the other.
        self._map, self._alive = file_map, (file_map, ndarray)
        self._lock = threading.Lock()
        pairs = list(zip(ndarray.shape, ndarray.chunks, ndarray.blocks, strict=True))
        self._chunks = tuple(-(-length // chunk) for length, chunk, _ in pairs)
        self._per_chunk = tuple(-(-chunk // block) for _, chunk, block in pairs)
        self._size = math.prod(ndarray.blocks)
        blocks = math.prod((*self._chunks, *self._per_chunk))
        self._span = len(file_map or b"") / blocks + MAPPED_AROUND  # of the map, about
        count, size = len(self.items), self.items.typesize
        total = math.prod((*self._chunks, *self._per_chunk, self._size))
        if size != np.dtype(ndarray.dtype).itemsize or count != total:
            msg = f"{name} holds {count} items of {size} bytes, and its shapes of blocks declare"
            raise BadHeader(f"{msg} {total} of {ndarray.dtype}.")

    def fetch_chunks(self, chunks: ChunkIndices) -> Blosc2Blocks:
        """Return itself, which decodes blocks one by one: those that native code leaves, or all."""
        if self._map is not None:
            MAPS.touch(self._map, len(chunks) * self._span)
        return self

    def place(self, index: Index) -> str:
        """Return the file."""
        return self.name

    def native_source(self) -> LocatedChunks | None:
        """Return a native reader of blocks of the mapped file; None without map or decoder."""
        decoder = native_decoder("blosc2")
        if self._map is None or decoder is None or math.prod(self._chunks) > ChunkPlaces.MOST_UNITS:
            return None
        places = ChunkPlaces(self._per_chunk, self._chunks, items=self._size)
        places.set_frame(self.chunk_bytes, self._alive)
        return LocatedChunks(decoder, places, None, partial(MAPS.touch, self._map), self._span)

    def items_of(self, blocks: ChunkIndices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the chunk of each block, and the index of its first item there."""
        chunk, inner = np.divmod(np.asarray(blocks), self._per_chunk)
        number = np.ravel_multi_index(tuple(chunk.T), self._chunks)
        return number, np.ravel_multi_index(tuple(inner.T), self._per_chunk) * self._size

    @cached_property
    def chunk_bytes(self) -> NDArray[np.int64]:
        """Address of each chunk in memory, and its number of bytes: (2, N) int64.

        The address is 0 for a chunk of zeros that is not stored. The number is 0 for chunks that
        only blosc2's own reader of frames can decode, or refuse.
        """
        places = np.zeros((2, math.prod(self._chunks)), np.int64)
        places[0] = 1
        with memoryview(self._map or b"") as frame, suppress(struct.error, BadHeader):
            header = frame_sizes(bytes(frame[: _HEAD.size]), self.name)[0]
            end = header + int.from_bytes(frame[_STORED_BYTES], "big", signed=True)
            # Offsets of the chunks, from the end of the header, in one more chunk at the end.
            index = bytes(frame[end:]) if header <= end <= len(frame) else b""
            offsets = blosc2_items(index, places.shape[1], "<i8")
            if offsets is not None:
                begin = np.frombuffer(frame, np.uint8).__array_interface__["data"][0] + header
                for number, span in self._sound_chunks(frame[header:end], offsets).items():
                    places[:, number] = begin + span[0], span[1]
                places[0, offsets == _ZEROS] = 0
        return places

    def _sound_chunks(
        self, chunks: memoryview, offsets: NDArray[np.int64]
    ) -> dict[int, tuple[int, int]]:
        """Return offset and size, by number, of chunks that can be decoded without the frame."""
        sound = {}
        size = math.prod(self._per_chunk) * self._size * self.items.typesize
        for number, offset in enumerate(offsets.tolist()):
            if not 0 <= offset <= len(chunks) - _CHUNK.size:
                continue  # all of one value, or damage
            flags, nbytes, _, length, *filters, options = _CHUNK.unpack_from(chunks, offset)
            is_usual = flags >> 5 <= _LAST_CODEC and not options & _USES_DICTIONARY
            is_usual = is_usual and {*filters} <= _FILTERS
            if is_usual and nbytes == size and _CHUNK.size <= length <= len(chunks) - offset:
                sound[number] = offset, length
        return sound

    def decode(self, index: Index, out: NDArray[Any]) -> bool:
        """Decode one block; False where all of its chunk is zeros."""
        (chunk,), (item,) = self.items_of([index])
        if not self.chunk_bytes[0, chunk]:
            return False
        first = int(chunk * math.prod(self._per_chunk) * self._size + item)
        with self._lock:
            self.items.get_slice(first, first + self._size, out)
        return True


def _open(file: LocalStoredFile) -> tuple[MappedFile | None, Any]:
    """Return the mapped file, which has to live as long, or None, and the array in it."""
    blosc2, name = import_package("blosc2", file.name), file.name
    with library_errors(f"{name} is no sound blosc2 array"):
        with file.open() as stream:
            # blosc2 4.14 never closes a file that it refuses.
            check_size(name, file.size, frame_sizes(stream.read(HEAD_BYTES), name)[1])
            file_map = MAPS.add(stream) if file.io in ("auto", "mmap") else None
        if file_map is None:
            ndarray = blosc2.open(file.path, mode="r")
        else:
            ndarray = blosc2.ndarray_from_cframe(file_map, copy=False)
        # Its own threads would compete with the workers, which fill all cores.
        ndarray.schunk.dparams = blosc2.DParams(nthreads=1)
    return file_map, ndarray


# Between making the copy and mapping it, another process may need its room; each time at least
# one of the two goes on.
_ATTEMPTS = 3


class RemoteBlosc2(FilesBackend):
    """A ``.b2nd`` that is copied when its voxels are first asked for."""

    def __init__(self, file: RemoteStoredFile, axes: Any = None) -> None:
        self._lock, self._axes = threading.Lock(), axes
        self._copy: Blosc2Backend | None = None
        self._file, self._handles = file, opening_session().handles
        head = file.head(HEAD_BYTES)
        size, length = frame_sizes(head, file.name)
        check_size(file.name, file.size, length)
        frame = read_frame_header(file.head(size) if size > len(head) else head, file.name)
        layout = plain_layout(frame.shape, file.name, axes)
        header = chunked_header(layout, frame.blocks, frame.dtype, file.name)
        IO_COUNTERS.count(headers=1)
        super().__init__([file], replace(header, access="stream"), file.name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read the blocks that the region touches, of the copy that the first call makes."""

        def read() -> Voxels:
            backend = None
            try:
                with self._lock:
                    if is_new := self._copy is None:
                        self._copy = self._write_copy()
                    backend = self._copy
                if is_new:  # of which few stay open
                    self._handles.trim()
                assert backend is not None
                return backend.read(region, channels)
            except DAMAGE:
                # It goes, for all processes, unless another thread has made it anew.
                with self._lock:
                    if self._copy is backend:
                        self._copy = None
                        self._cache.drop(self._file.cache_key)
                raise

        return read_anew(read)

    @property
    def holds_descriptor(self) -> bool:
        """Once it has its copy."""
        return self._copy is not None

    @property
    def _cache(self) -> VolumeCache:
        return VolumeCache(cache_directory(), cache_budget())

    def _write_copy(self) -> Blosc2Backend:
        cache = self._cache
        for attempt in range(_ATTEMPTS):
            with cache.open(self._file.cache_key, self._file.size, self._write, self.name) as raw:
                if isinstance(raw, io.BytesIO):  # it has no name
                    msg = f"{self.name} takes {self._file.size} bytes, and this process may not"
                    do = "Raise its limit (ulimit -f), or copy the file to a local disk."
                    raise CacheTooSmall(f"{msg} write files as long.", do=do)
                try:
                    backend = Blosc2Backend(LocalStoredFile(raw.name, self.name), self._axes)
                except VolumeNotFound:
                    if attempt + 1 < _ATTEMPTS:
                        continue
                    raise
            break
        if (backend.shape, backend.disk_dtype) != (self.shape, self.disk_dtype):
            msg = f"blosc2 finds {backend.shape} {backend.disk_dtype} in {self.name}"
            raise BadHeader(f"{msg}, and its header declares {self.shape} {self.disk_dtype}.")
        return backend

    def _write(self, raw: BinaryIO) -> None:
        with self._file.open() as stream:
            copy(stream, raw, self._file.size, self.name)


def open_blosc2(file: StoredFile, axes: Any = None) -> Backend:
    """Return the backend of a ``.b2nd``."""
    if isinstance(file, LocalStoredFile):
        return Blosc2Backend(file, axes)
    return RemoteBlosc2(file, axes)


FORMATS = (Format("blosc2", (".b2nd",), open_blosc2, ("axes",), needs="blosc2"),)
