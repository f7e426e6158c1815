"""The native library for chunks (``native/interface.h``): decoded and copied, many in one call.

The libraries that decode chunks offer more in C than in Python. Where the functions of one can be
found in its shared library, all chunks of a read are decoded in one call, which lets go of the
interpreter's lock. What a function refuses, and what is of another library, is decoded chunk by
chunk in Python: to the same voxels, or to the error that says what is wrong.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import ChunkGrid, Region
from ...core.native_library import native_level, native_library

MOST_AXES = 8  # VOXPIPE_CHUNK_AXES
_COVER = struct.Struct("=16q14q15d")
_JOB = struct.Struct("=13q8q8q")
# VoxpipeStored; by module, the functions that decode and measure.
_PLAIN, _BLOSC, _ZSTD, _BLOSC2 = range(4)
_LIBRARIES = {
    "blosc": (_BLOSC, "numcodecs.blosc", "", ("blosc_decompress_ctx",)),
    "zstd": (_ZSTD, "numcodecs.zstd", "", ("ZSTD_decompress", "ZSTD_getFrameContentSize")),
    "blosc2": (_BLOSC2, "blosc2", "lib/libblosc2.so", ("blosc2_getitem",)),
}
# Columns of a row; those behind them are where its part lies.
DATA, SIZE, FILE, ROOM, TASK, STATUS, PARTS = 0, 1, 3, 4, 5, 6, 7
LEAVE, PLACE, DECODE, LOCATE = range(4)
"""What is done with a chunk: nothing, what is in its room is copied, or it is decoded before, from
where its row says that its bytes are, or from where :class:`ChunkPlaces` does."""
SUCCESS, _INT_MAX = 0, 2**31 - 1


class NativeDecoder(NamedTuple):
    """A function of another library, which keeps no state."""

    kind: int  # a VoxpipeStored: what the function takes
    decode: int = 0  # its address
    measure: int = 0  # address of the one that tells how much it will decode, if there is one


PLAIN = NativeDecoder(_PLAIN)
"""Chunks that are stored as they are in memory."""


class StoredChunks(NamedTuple):
    """Stored bytes of chunks that a native decoder takes."""

    decoder: NativeDecoder
    columns: NDArray[np.int64]
    """(2, N), (3, N) of blosc2: address of the bytes, 0 of a chunk that is not stored; how many
    there are, 0 if fewer than there should be; which of their items is its first."""
    holds: Any  # what keeps the bytes in memory


class LocatedChunks(NamedTuple):
    """Chunks that a native decoder takes, and finds by itself."""

    decoder: NativeDecoder
    places: ChunkPlaces
    store: Any = None  # of files: what notes in ``newest`` when they were changed last


@cache
def native_decoder(codec: str) -> NativeDecoder | None:
    """Return what decodes the chunks of a codec; None where its library offers nothing."""
    # On Windows, and where symbols are hidden, there is nothing to be found.
    kind, module, path, names = _LIBRARIES[codec]
    try:
        origin = importlib.import_module(module).__file__ or ""
        library = ctypes.CDLL(os.path.join(os.path.dirname(origin), path) if path else origin)
        functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]
    except (ImportError, OSError, AttributeError):
        return None
    return NativeDecoder(kind, *(address or 0 for address in functions))


def is_available(axes: int) -> bool:
    """Whether chunks of so many axes can be placed here."""
    level = native_level()
    return level is not None and 1 <= axes <= MOST_AXES and _library() is not None


class ChunkPlaces:
    """Where the stored bytes of the chunks of one array lie, for native code to look it up.

    So many chunks along each axis are a shard, in C order. ``counts`` are those of shards.
    """

    MOST_SHARDS = 1 << 16
    """Each takes 16 bytes; who has more of them is asked in Python."""

    def __init__(self, per_shard: Sequence[int], counts: Sequence[int], root: str) -> None:
        self.longest = 0
        """Bytes of the longest chunk that lies in a file."""
        self._entries = np.zeros((math.prod(counts), 2), np.int64)
        self._holds: dict[int, tuple[Any, ...]] = {-1: (os.fsencode(root) + b"\0",)}
        (entries,) = addresses_of([self._entries])
        place = address_of_bytes(self._holds[-1][0]) if root else 0
        rest = (0,) * (MOST_AXES - len(counts))
        numbers = (len(self._entries), entries, place)
        self._table = np.array([*numbers, *per_shard, *rest, *counts, *rest], np.int64)
        (self.address,) = addresses_of([self._table])

    def set_shard(self, shard: int, path: str, table: NDArray[np.uint64] | None, most: int) -> None:
        """Note the index of a shard: (chunks, 2), offset and length; None where it is not there.

        A chunk that takes more than ``most`` bytes is left to Python.
        """
        holds = os.fsencode(path) + b"\0", None if table is None else np.ascontiguousarray(table)
        self._holds[shard] = holds
        if table is not None:
            sizes = table[:, 1]
            longest = int(np.maximum.reduce(sizes[sizes <= most], initial=0))
            self.longest = max(self.longest, longest)
        # The second one first: another thread may look meanwhile.
        self._entries[shard, 1] = address_of_bytes(holds[0])
        table = holds[1]
        self._entries[shard, 0] = 1 if table is None else table.__array_interface__["data"][0]


def place_chunks(
    out: NDArray[Any],
    shape: tuple[int, ...],
    rows: NDArray[np.int64],
    fill_row: NDArray[Any],
    decoder: NativeDecoder = PLAIN,
    *,
    places: ChunkPlaces | None = None,
    indices: NDArray[np.int64] | None = None,
) -> int:
    """Bring parts of chunks to their places in ``out``, decoded first where they are not yet.

    Parameters
    ----------
    out
        A region of the array, in C order.
    shape
        Of a chunk, whole.
    rows
        (N, PARTS + 3 axes) int64, struct VoxpipeChunk of ``native/interface.h``. ``STATUS`` is set
        to ``SUCCESS``, or to another number where one could not be decoded, of which ``out`` holds
        anything; ``DATA`` and ``FILE`` are both 0 then where it is not stored.
    fill_row
        What all rows of a chunk are that is not stored.
    decoder
        What those are decoded with that have to be.
    places, indices
        Where they lie that are to be located, by their index in the grid of chunks (N, axes).

    Returns
    -------
    int
        When one of the files was changed last that were opened, in nanoseconds since 1970.
    """
    axes = len(shape)
    longest = 0 if places is None else places.longest
    # What is not kept is decoded to scratch, unless it lies in ``out`` as a whole.
    scratch = np.empty(math.prod(shape) * out.itemsize + longest, np.uint8)
    at_rows, at_scratch, at_out, at_fill = addresses_of([rows, scratch, out, fill_row])
    at_places = 0 if places is None else places.address
    at_indices = 0 if indices is None else indices.__array_interface__["data"][0]
    rest = (0,) * (MOST_AXES - axes)
    job = _JOB.pack(
        *(*decoder, len(rows), at_rows, at_scratch, at_out, at_fill),
        *(at_places, at_indices, longest, out.itemsize, axes),
        *(*shape, *rest, *out.strides, *rest),
    )
    return int(_library().voxpipe_place_chunks(job))


class NativeGrid:
    """A :class:`~voxpipe.core.ChunkGrid` of so many axes that native code cuts."""

    def __init__(self, cuts: ChunkGrid) -> None:
        axes = len(cuts.counts)
        self._axes, self._rest = axes, (0,) * (MOST_AXES - axes)
        steps = np.cumprod([1, *cuts.counts[:0:-1]], dtype=object)[::-1].tolist()
        columns = [*cuts.columns.tolist(), steps]
        numbers = [axes, *(n for row in columns for n in (*row, *self._rest))]
        self._table = np.array(numbers, np.int64)
        (self._place,) = addresses_of([self._table])
        self._cover = _cover_function()

    def cover(
        self, region: Region
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int] | None:
        """Return the parts that a region touches, and its box, in C order.

        Their indices (N, axes), their rows for :func:`place_chunks`, their numbers in C order, and
        how many voxels of the array they hold; None where these are no sensible numbers.
        """
        box, rest = region.box, self._rest
        numbers = (*region.start, *rest, *region.stop, *rest)
        if box is None:
            job = _COVER.pack(*numbers, *(0,) * 14, *(0.0,) * 15)
        else:
            clamp = box.clamp
            faces = (0,) * 6 if clamp is None else (*clamp.start, *clamp.stop)
            whole = (*numbers, 1, int(clamp is not None), *faces, *box.axes, *box.shape)
            job = _COVER.pack(*whole, *box.matrix.ravel().tolist(), *box.halo)
        cover = self._cover
        count = cover(self._place, job, 0, 0, 0, 0, 0)
        if count < 0:
            return None
        indices, order = np.empty((count, self._axes), np.int64), np.empty(count + 1, np.int64)
        rows = np.empty((count, PARTS + 3 * self._axes), np.int64)
        at_indices, at_rows, at_order = addresses_of([indices, rows, order])
        at_voxels = at_order + 8 * count
        number = cover(self._place, job, count, at_indices, at_rows, at_order, at_voxels)
        if number < 0:
            return None
        return indices[:number], rows[:number], order[:number], int(order[-1])


def blosc2_items(data: bytes, count: int, dtype: str) -> NDArray[Any] | None:
    """Return the first items of a chunk of blosc2, decoded in this thread; None if they cannot be.

    blosc2's own functions for this begin threads, which a forked child waits for in vain.
    """
    decoder = native_decoder("blosc2")
    if decoder is None or len(data) > _INT_MAX:
        return None
    number, address = ctypes.c_int, ctypes.c_void_p
    function = ctypes.CFUNCTYPE(number, address, number, number, number, address, number)
    items = np.zeros(count, dtype)
    place = address_of_bytes(data)
    (room,) = addresses_of([items])
    size = function(decoder.decode)(place, len(data), 0, count, room, items.nbytes)
    return items if size == items.nbytes else None


def addresses_of(arrays: Iterable[NDArray[Any]]) -> list[int]:
    """Return where arrays begin that can be written to: a third of what NumPy takes for it."""
    address, view = ctypes.addressof, ctypes.c_char.from_buffer
    places = []
    for array in arrays:
        places.append(address(view(array.data)) if array.size else 0)
    return places


def address_of_bytes(data: bytes | memoryview) -> int:
    """Return where bytes begin that are read-only; not 0 where there are none, either."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0] if data else 1
    return address


@cache
def _cover_function() -> Any:
    # It keeps the interpreter's lock, for which threads would wait longer than its microseconds.
    cover = ctypes.PyDLL(_library()._name).voxpipe_cover
    number = ctypes.c_int64
    cover.argtypes, cover.restype = [number, ctypes.c_char_p, *[number] * 5], number
    return cover


@cache
def _library() -> Any:
    """Return the loaded library, or None: the resampler says why."""
    return native_library(["voxpipe_place_chunks"])[0]
