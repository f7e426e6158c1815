"""``.b2nd``, the array format of blosc2: what nnU-Net stores its preprocessed cases in.

A chunk holds many small blocks, and blosc2 decodes only the blocks that a slice touches. The
axes stay in stored order, (C, I, J, K): nnU-Net's are (C, Z, Y, X) as SimpleITK gives them.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from ..core import TALLY, Region
from ..core.errors import BadHeader, CorruptVolume, MissingDependency, TruncatedVolume, VoxpipeError
from .backend import Channels, no_options
from .header import IDENTITY, Header
from .local_file import LocalFile, file_stamp, open_local
from .mapped import MAPS
from .voxels import Voxels, plain, refuse_unreadable
from .zarr_layout import plain_layout
from .zarr_metadata import MOST_CHUNK_BYTES

# The frame format of C-Blosc2: a MessagePack array that begins with the magic, the length of the
# header (int32) and that of the frame (uint64), each after a byte that says its type.
_HEAD = struct.Struct(">2x8s6xQ")
_MAGIC = b"b2frame\0"


class Blosc2Backend(LocalFile):
    """A mapped ``.b2nd``. Its decoder is one object, so one thread of a process reads."""

    def __init__(self, path: str, name: str, options: Mapping[str, Any]) -> None:
        no_options(options, name)
        self.path = path
        stamp = file_stamp(path)
        self._lock = threading.Lock()
        self._map, self._array = _opened(path, name)
        dtype, shape = np.dtype(self._array.dtype), tuple(self._array.shape)
        refuse_unreadable(dtype, name)
        if min(shape, default=0) < 1:
            raise BadHeader(f"{name} holds no voxels: shape {shape}.", do="Check the file.")
        self._layout = plain_layout(shape, name)
        # Blocks are what is decoded; whole chunks only where they are one block.
        blocks = tuple(self._array.blocks)
        if math.prod(self._array.chunks) * dtype.itemsize > MOST_CHUNK_BYTES:
            raise BadHeader(
                f"one chunk of {name}, {self._array.chunks} {dtype}, takes more than "
                f"{MOST_CHUNK_BYTES} bytes.",
                do="Store it in smaller chunks.",
            )
        pairs = zip(shape, self._array.chunks, strict=True)
        expected = math.prod(-(-length // chunk) for length, chunk in pairs)
        if self._array.schunk.nchunks != expected:
            raise BadHeader(
                f"{name} holds {self._array.schunk.nchunks} chunks, and its shape {shape} "
                f"speaks of {expected}.",
                do="Copy or write the file again.",
            )
        TALLY.count(headers=1)
        chunks = self._layout.spatial_part(blocks)
        super().__init__(
            Header(self._layout.shape, IDENTITY, dtype, chunks, "range", stamp=stamp), name
        )

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read the blocks that the region touches."""
        index, (first, last) = self._layout.index(region, channels or (0, self.shape[0]))
        MAPS.trim()
        try:
            with self._lock:
                found = np.asarray(self._array[index])
        except MemoryError:
            raise
        except Exception as error:  # RuntimeError, ValueError: as blosc2 says
            where = ", ".join(f"{s.start}:{s.stop}" for s in index)
            raise CorruptVolume(
                f"[{where}] of {self.name} cannot be decoded: {type(error).__name__}: {error}.",
                do="Copy or write the file again.",
            ) from error
        return Voxels(plain(self._layout.fold(found)[first:last]))


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
