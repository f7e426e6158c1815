"""``.b2nd``, the array format of blosc2: what nnU-Net stores its preprocessed cases in.

A chunk holds many small blocks, and a block is what is decoded: into place, and only those that
a patch touches. The axes stay in stored order, (C, I, J, K): nnU-Net's are (C, Z, Y, X) as
SimpleITK gives them.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core import TALLY
from ...core.errors import BadHeader, MissingDependency, TruncatedVolume, VoxpipeError
from ...storage.content import content_key
from ..backend import no_options
from ..chunks.chunk_cache import CHUNKS
from ..chunks.chunked_array import ChunkedArray, Cuts, Index
from ..header import IDENTITY, Header
from ..local_file import LocalFile, file_stamp, open_local
from ..mapped import MAPS
from ..voxels import refuse_unreadable
from .chunked_backend import ChunkedBackend
from .zarr_layout import plain_layout
from .zarr_metadata import MOST_CHUNK_BYTES

# The frame format of C-Blosc2: a MessagePack array that begins with the magic, the length of the
# header (int32) and that of the frame (uint64), each after a byte that says its type.
_HEAD = struct.Struct(">2x8s6xQ")
_MAGIC = b"b2frame\0"


class Blosc2Backend(LocalFile, ChunkedBackend):
    """A mapped ``.b2nd``, read by blocks."""

    def __init__(self, path: str, name: str, options: Mapping[str, Any]) -> None:
        no_options(options, name)
        self.path = path
        stamp = file_stamp(path)
        mapped, stored = _opened(path, name)
        dtype, shape = np.dtype(stored.dtype), tuple(stored.shape)
        refuse_unreadable(dtype, name)
        if min(shape, default=0) < 1:
            raise BadHeader(f"{name} holds no voxels: shape {shape}.", do="Check the file.")
        layout = plain_layout(shape, name)
        chunk, block = tuple(stored.chunks), tuple(stored.blocks)
        if math.prod(chunk) * dtype.itemsize > MOST_CHUNK_BYTES:
            raise BadHeader(
                f"one chunk of {name}, {chunk} {dtype}, takes more than {MOST_CHUNK_BYTES} bytes.",
                do="Store it in smaller chunks.",
            )
        expected = math.prod(-(-length // c) for length, c in zip(shape, chunk, strict=True))
        if stored.schunk.nchunks != expected:
            raise BadHeader(
                f"{name} holds {stored.schunk.nchunks} chunks, and its shape {shape} "
                f"speaks of {expected}.",
                do="Copy or write the file again.",
            )
        TALLY.count(headers=1)
        self.blocks = Blocks(mapped, stored, name)
        # Blocks are what is decoded; whole chunks only where they are one block.
        array = ChunkedArray(
            shape,
            block,
            dtype,
            0,
            source=self.blocks,
            cache=CHUNKS,
            token=content_key(path, stamp),
            cuts=Cuts(shape, chunk, block),
        )
        header = Header(
            layout.shape, IDENTITY, dtype, layout.spatial_part(block), "range", stamp=stamp
        )
        super().__init__(array, layout, header, name)


class Blocks:
    """The blocks of one array, each decoded alone. The decoder is one object with one state.

    In its chunk a block lies in one piece, the blocks in C order, each of full size: what
    hangs over the edge of the chunk is stored as zeros. So a block is a run of items.

    Parameters
    ----------
    mapped
        The file; it has to live as long as the array.
    stored
        The array of blosc2.
    name
        What errors call it.
    """

    strided = False

    def __init__(self, mapped: mmap.mmap, stored: Any, name: str) -> None:
        self.name, self.items = name, stored.schunk
        # The items are part of the array, and the array of the file: neither holds the other.
        self._alive = (mapped, stored)
        self._lock = threading.Lock()
        pairs = list(zip(stored.shape, stored.chunks, stored.blocks, strict=True))
        self._chunks = tuple(-(-length // chunk) for length, chunk, _ in pairs)
        self._per_chunk = tuple(-(-chunk // block) for _, chunk, block in pairs)
        self._size = math.prod(stored.blocks)
        if self.items.typesize != np.dtype(stored.dtype).itemsize or self._count() != len(
            self.items
        ):
            raise BadHeader(
                f"{name} holds {len(self.items)} items of {self.items.typesize} bytes, and its "
                f"shapes of blocks speak of {self._count()} of {stored.dtype}.",
                do="Copy or write the file again.",
            )

    def _count(self) -> int:
        return math.prod((*self._chunks, *self._per_chunk, self._size))

    def bring(self, chunks: Sequence[Index]) -> Blocks:
        """Let go of pages if there are too many; the system brings in those that are touched."""
        MAPS.trim()
        return self

    def decode(self, index: Index, out: NDArray[Any]) -> bool:
        """Decode one block."""
        chunk = inner = 0
        for i, count, per in zip(index, self._chunks, self._per_chunk, strict=True):
            chunk, inner = chunk * count + i // per, inner * per + i % per
        first = (chunk * math.prod(self._per_chunk) + inner) * self._size
        with self._lock:
            self.items.get_slice(first, first + self._size, out)
        return True

    def place(self, index: Index) -> str:
        """Return the file."""
        return self.name

    def prefetch(self, chunks: Sequence[Index], size: int) -> None:
        """Nothing is waited for in a mapped file."""

    def fetch(self, chunks: Sequence[Index]) -> None:
        """Nothing is brought in without being decoded."""


def _check_frame(file: BinaryIO, name: str) -> None:
    """Refuse what is no whole frame: blosc2 4.14 never lets go of a file that it refuses."""
    head, size = file.read(_HEAD.size), os.fstat(file.fileno()).st_size
    magic, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
    if magic != _MAGIC:
        raise BadHeader(f"{name} is no sound blosc2 array.", do="Copy or write it again.")
    if length > size:
        raise TruncatedVolume(
            f"{name} holds {size} bytes, and its header speaks of {length}.",
            do="Copy or download the file again.",
        )


def _opened(path: str, name: str) -> tuple[mmap.mmap, Any]:
    """Return the mapped file, which has to live as long, and the array in it."""
    try:
        import blosc2
    except ImportError:
        raise MissingDependency(
            f"reading {name} needs blosc2, which is not installed.",
            do="pip install 'voxpipe[formats]'",
        ) from None
    try:
        with open_local(path) as file:
            _check_frame(file, name)
            mapped = MAPS.add(file)
        found = blosc2.ndarray_from_cframe(mapped, copy=False)
        # Its own threads would compete with the workers, which fill all cores.
        found.schunk.dparams = blosc2.DParams(nthreads=1)
    except (VoxpipeError, MemoryError):
        raise
    except Exception as error:  # RuntimeError, ValueError: as blosc2 says
        raise BadHeader(
            f"{name} is no sound blosc2 array: {type(error).__name__}: {error}.",
            do="Copy or write it again.",
        ) from error
    return mapped, found
