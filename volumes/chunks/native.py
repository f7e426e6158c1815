"""The native library for chunks (``native/chunks.h``): decoded and copied, many in one call.

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
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.native_library import native_level, native_library

ABI = 3  # VOXPIPE_CHUNKS_ABI of native/chunks.h
MOST_AXES = 8  # VOXPIPE_CHUNK_AXES
_JOB = struct.Struct("=10q8q8q")
# VoxpipeStored; by module, the functions that decode and measure.
_PLAIN, _BLOSC, _ZSTD, _BLOSC2 = range(4)
_LIBRARIES = {
    "blosc": (_BLOSC, "numcodecs.blosc", "", ("blosc_decompress_ctx",)),
    "zstd": (_ZSTD, "numcodecs.zstd", "", ("ZSTD_decompress", "ZSTD_getFrameContentSize")),
    "blosc2": (_BLOSC2, "blosc2", "lib/libblosc2.so", ("blosc2_getitem",)),
}
# Columns of a row; those behind them are where its part lies.
_DATA, _SIZE, _FIRST, _FILE, _ROOM, _IS_ROW, _STATUS, _PARTS = range(8)
_OK, _INT_MAX = 0, 2**31 - 1


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
    """(4, N): address of the bytes, or their place in a file; how many there are, 0 if fewer than
    there should be; of blosc2 the first of its items in these bytes; 1 and the descriptor of the
    file, 0 of bytes in memory. Address and file are 0 of a chunk that is not stored."""
    holds: Any  # what keeps the bytes in memory, or the files open


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


def place_chunks(
    out: NDArray[Any],
    shape: tuple[int, ...],
    parts: NDArray[np.int64],
    rooms: NDArray[np.int64],
    fill_row: NDArray[Any],
    decoder: NativeDecoder = PLAIN,
    columns: NDArray[np.int64] | None = None,
) -> NDArray[np.bool_]:
    """Bring parts of chunks to their places in ``out``, decoded first where they are not yet.

    Parameters
    ----------
    out
        A region of the array, in C order.
    shape
        Of a chunk, whole.
    parts
        (N, axes, 3) int64: first voxel in the region, first in the chunk, and how many.
    rooms
        (N,) int64: where in memory each chunk is, or is decoded to; 0 for one that is not stored,
        and for one of ``columns`` that is not kept.
    fill_row
        What all rows of a chunk are that is not stored.
    decoder, columns
        What the last M chunks are decoded with, and from: (4, M), see :class:`StoredChunks`.

    Returns
    -------
    numpy.ndarray
        (N,) bool: False for those that could not be decoded, of which ``out`` holds anything.
    """
    count, axes, _ = parts.shape
    rows = np.zeros((count, _PARTS + 3 * axes), np.int64)
    rows[:, _PARTS:] = parts.reshape(count, -1)
    rows[:, _ROOM] = rooms
    size = math.prod(shape) * out.itemsize
    is_empty = rows[:, _ROOM] == 0
    if columns is not None:
        its = rows[count - columns.shape[1] :]
        its[:, _DATA:_ROOM] = columns.T
        is_empty &= (rows[:, _DATA] == 0) & (rows[:, _FILE] == 0)
        longest, last_file = np.maximum.reduce(columns[[1, 3]], axis=1).tolist()
        size += longest if last_file else 0
    # What is not kept is decoded to scratch, unless it lies in ``out`` as a whole.
    scratch = np.empty(size, np.uint8)
    fill_place, *places = addresses_of([fill_row, rows, scratch, out])
    rows[is_empty, _ROOM] = fill_place
    rows[:, _IS_ROW] = is_empty
    rest = (0,) * (MOST_AXES - axes)
    job = _JOB.pack(
        *(ABI, *decoder, count, *places),
        *(out.itemsize, axes, *shape, *rest, *out.strides, *rest),
    )
    if _library().voxpipe_place_chunks(job) != _OK:
        raise RuntimeError(f"the native library refused chunks {shape} of {out.shape}")
    is_done: NDArray[np.bool_] = rows[:, _STATUS] == _OK
    return is_done


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
    return [address(view(array.data)) if array.size else 0 for array in arrays]


def address_of_bytes(data: bytes | memoryview) -> int:
    """Return where bytes begin that are read-only; not 0 where there are none, either."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0] if data else 1
    return address


_SHORT_CALLS = {
    "voxpipe_table_take": 6,
    "voxpipe_table_announce": 7,
    "voxpipe_table_put": 8,
    "voxpipe_table_make_room": 3,
    "voxpipe_table_withdraw": 5,
}
"""Functions that take so many numbers, and microseconds."""


@cache
def _short_calls() -> Any:
    library = _library()
    if library is None:
        return None
    # They keep the interpreter's lock, for which threads would wait longer than they take.
    short = ctypes.PyDLL(library._name)
    for name, count in _SHORT_CALLS.items():
        function = getattr(short, name)
        function.argtypes, function.restype = [ctypes.c_int64] * count, ctypes.c_int64
    return short


def short_calls() -> Any:
    """Return the library by whose functions the lock is kept; None where it is not to be used."""
    calls: Any = None if native_level() is None else _short_calls()
    return calls


@cache
def _library() -> Any:
    """Return the loaded library, or None: the resampler says why."""
    return native_library(["voxpipe_place_chunks"], version="voxpipe_chunks_abi", abi=ABI)[0]
