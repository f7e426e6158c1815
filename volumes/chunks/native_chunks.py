"""Native decoding and copying of many chunks in one call (``native/interface.h``).

If the decode function of a codec is in its shared library, one call decodes all chunks of a read
without the interpreter lock. Python decodes the chunks that the function refuses, and those of
other codecs, one by one. The voxels are the same; errors name the cause.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import compress
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import ChunkGrid, Region
from ...core.native_library import native_level, native_library

Numbers = NDArray[np.int64]
MOST_AXES = 8  # VOXPIPE_CHUNK_AXES
_COVER = struct.Struct("=16q13q16d")
_NO_BOX = (0,) * 13 + (0.0,) * 16
_NO_FACES = (-(2**62),) * 3 + (2**62,) * 3
_JOB = struct.Struct("=14q8q8q")
_GUARD, _FILLER = 4096, 0xA5  # bytes after a chunk, where tests find writes out of bounds
_STEP_BYTES = 4 * 1024**2  # decoded in one call: the chunks of a patch of 96 cubed
# VoxpipeStored, module, path of the shared library, and the functions that decode and measure.
_PLAIN, _BLOSC, _ZSTD, _BLOSC2 = range(4)
_LIBRARIES = {
    "blosc": (_BLOSC, "numcodecs.blosc", "", ("blosc_decompress_ctx",)),
    "zstd": (_ZSTD, "numcodecs.zstd", "", ("ZSTD_decompress", "ZSTD_getFrameContentSize")),
    "blosc2": (_BLOSC2, "blosc2", "lib/libblosc2.so", ("blosc2_getitem",)),
    "crc32c": (_PLAIN, "google_crc32c._crc32c", "", ("crc32c_value",)),
}
# Columns of a row; the part of the chunk follows them.
DATA, SIZE, FILE, ROOM, TASK, STATUS, PARTS = 0, 1, 3, 4, 5, 6, 7
LEAVE, PLACE, DECODE = range(3)
"""Tasks for a chunk: none, copy from its room, or decode and copy. The bytes to decode are those
of its row or, if there are any, of :class:`ChunkPlaces`."""
SUCCESS, _INT_MAX = 0, 2**31 - 1
_NONE = np.zeros(0, np.int64)


class NativeDecoder(NamedTuple):
    """Stateless functions of another library, by address; 0 for none."""

    kind: int  # a VoxpipeStored: the signature of ``decode``
    decode: int = 0
    measure: int = 0  # returns the decoded size
    check: int = 0  # returns the CRC-32C that follows each chunk


PLAIN = NativeDecoder(_PLAIN)
"""Uncompressed chunks."""


class StoredChunks(NamedTuple):
    """Stored bytes of chunks for a native decoder."""

    decoder: NativeDecoder
    columns: NDArray[np.int64]
    """(2, N): address of the bytes, 0 for a chunk that is not stored; and their number, 0 if bytes
    are missing."""
    holds: Any  # owns the bytes


class LocatedChunks(NamedTuple):
    """Locations from which a native decoder reads chunks itself."""

    decoder: NativeDecoder
    places: ChunkPlaces
    store: Any = None
    """The store of files, whose ``note_change`` takes their latest change. Files are read natively
    only while ``HINTS.is_warm``."""
    touch: Callable[[float], None] | None = None
    """Counts the bytes of a mapped file that a read will touch."""
    span: float = 0.0
    """Average bytes of a chunk in a mapped file."""


class ChunkPlan(SimpleNamespace):
    """The chunks of a region, computed once for prefetch and read."""

    cuts: ChunkGrid
    chunks: NDArray[np.int64]  # indices (N, axes); read-only, because callers share it
    address: int  # of ``chunks``
    rows: NDArray[np.int64]  # VoxpipeChunk structs, parts included
    order: NDArray[Any]  # numbers in C order
    voxels: int  # of the array, in these chunks
    keys: Any  # ChunkKeys, None before the first use of a cache

    @property
    def parts(self) -> NDArray[np.int64]:
        """(N, axes, 3), see ``ChunkGrid.parts_in``."""
        return self.rows[:, PARTS:].reshape(*self.chunks.shape, 3)


@cache
def native_decoder(codec: str) -> NativeDecoder | None:
    """Return the decoder of a codec; None if its library exports none."""
    # Windows, and libraries with hidden symbols, export none.
    kind, module, path, names = _LIBRARIES[codec]
    try:
        origin = importlib.import_module(module).__file__ or ""
        library = ctypes.CDLL(os.path.join(os.path.dirname(origin), path) if path else origin)
        functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]
    except (ImportError, OSError, AttributeError):
        return None
    return NativeDecoder(kind, *(address or 0 for address in functions))


def is_available(axes: int) -> bool:
    """Whether the kernel can place chunks of ``axes`` axes."""
    level = native_level()
    return level is not None and 1 <= axes <= MOST_AXES and _library() is not None


class ChunkPlaces:
    """Table of the stored chunks of one array, for lookups by native code.

    ``per_unit`` chunks along each axis form a unit, in C order. A unit is a shard with an index,
    or a chunk of a blosc2 frame, whose blocks are the chunks here. ``counts`` are units per axis.
    """

    MOST_UNITS = 1 << 16
    """Bound of units, 16 bytes each; Python finds the chunks of arrays with more."""

    def __init__(
        self, per_unit: Sequence[int], counts: Sequence[int], *, items: int = 0, root: str = ""
    ) -> None:
        self.longest = 0
        """Bytes of the longest chunk in a file."""
        self.is_current = True
        """Whether the table is valid; if not, call ``native_source()`` again."""
        self._entries = np.zeros((math.prod(counts), 2), np.int64)
        self._holds: dict[int, tuple[Any, ...]] = {-1: (os.fsencode(root) + b"\0",)}
        (entries,) = addresses_of([self._entries])
        at_root = address_of_bytes(self._holds[-1][0]) if root else 0
        rest = (0,) * (MOST_AXES - len(counts))
        numbers = (int(items > 0), len(self._entries), entries, items, at_root)
        self._table = np.array([*numbers, *per_unit, *rest, *counts, *rest], np.int64)
        (self.address,) = addresses_of([self._table])

    def set_frame(self, spans: NDArray[np.int64], holds: Any) -> None:
        """Enter the chunks of a frame: address and size (2, N), and the owner of the memory."""
        self._entries[:], self._holds[0] = spans.T, (holds,)

    def set_shard(self, unit: int, path: str, index: NDArray[np.uint64] | None, most: int) -> None:
        """Enter the index of a shard: (1 + chunks, 2); None for a missing shard.

        The change time and size of its file, then offsets and lengths. Python decodes chunks of
        more than ``most`` bytes.
        """
        holds = os.fsencode(path) + b"\0", None if index is None else np.ascontiguousarray(index)
        # Keep earlier tables: native code may be using one while another thread enters it again.
        self._holds[unit] = (*self._holds.get(unit, ()), *holds)
        if index is not None:
            sizes = index[1:, 1]
            longest = int(np.maximum.reduce(sizes[sizes <= most], initial=0))
            self.longest = max(self.longest, longest)
        # The path first: another thread may read the entry meanwhile.
        self._entries[unit, 1] = address_of_bytes(holds[0])
        index = holds[1]
        self._entries[unit, 0] = 1 if index is None else index.__array_interface__["data"][0]


def place_chunks(
    out: NDArray[Any],
    shape: tuple[int, ...],
    plan: ChunkPlan,
    rows: Numbers,
    fill_row: NDArray[Any],
    members: Numbers = _NONE,
    source: StoredChunks | LocatedChunks | None = None,
    keep: Callable[..., None] | None = None,
    *,
    guards: bool = False,
) -> tuple[int, Numbers]:
    """Decode ``members`` and copy parts of chunks into ``out``, a region of an array in C order.

    ``rows`` are those of the plan (struct VoxpipeChunk of ``native/interface.h``), with ``TASK``
    and ``ROOM`` of decoded chunks. ``fill_row`` is one row of a chunk that is not stored.
    ``source`` locates the bytes of members; for ``StoredChunks`` they are in ``rows``.
    ``keep`` gets the plan, members, arrays, addresses, and which members are stored. With
    ``guards`` a write beyond a chunk raises ``RuntimeError``.
    Returns the number of stored members, and the members that could not be decoded. The parts of
    the latter in ``out`` are undefined.
    """
    rest, newest, count = (0,) * (MOST_AXES - len(shape)), 0, len(members)
    finder = source if isinstance(source, LocatedChunks) else None
    at_places, longest = 0, 0
    if finder is not None:
        at_places, longest = finder.places.address, finder.places.longest
    chunk_bytes = math.prod(shape) * out.itemsize
    # Chunks that are not kept are decoded to scratch, except those that are whole in ``out``.
    scratch = np.empty(chunk_bytes + longest, np.uint8)
    addresses = addresses_of([rows, scratch, out, fill_row])
    job = _JOB.pack(
        *(*(PLAIN if source is None else source.decoder), len(rows)),
        *(*addresses, at_places, plan.address, longest),
        *(out.itemsize, len(shape), *shape, *rest, *out.strides, *rest),
    )
    # Bound the decoded chunks that wait for a place in the cache.
    step = max(1, _STEP_BYTES // chunk_bytes if keep else count)
    number, remaining = 0, []
    for first in range(0, count or 1, step):
        batch = members[first : first + step]
        arrays: list[NDArray[Any]] = []
        if guards:
            rooms = np.full((len(batch), chunk_bytes + _GUARD), _FILLER, np.uint8)
            arrays = [room[:chunk_bytes].view(out.dtype).reshape(shape) for room in rooms]
        elif keep and count:
            arrays = [np.empty(shape, out.dtype) for _ in range(len(batch))]
        if arrays:
            rows[batch, ROOM] = addresses_of(arrays)
        rows[batch, TASK] = DECODE
        newest = max(newest, _library().voxpipe_place_chunks(job))
        if guards and (rooms[:, chunk_bytes:] != _FILLER).any():
            raise RuntimeError(f"a decoder wrote beyond the {chunk_bytes} bytes of a chunk")
        rows[:, TASK] = LEAVE
        if not count:
            break
        result = rows[batch]
        is_stored, is_done = (result[:, DATA] | result[:, FILE]) != 0, result[:, STATUS] == SUCCESS
        if np.add.reduce(is_done) < len(batch):
            remaining.append(batch[~is_done])
            batch, is_stored, result = batch[is_done], is_stored[is_done], result[is_done]
            arrays = [*compress(arrays, is_done.tolist())]
        number += int(np.add.reduce(is_stored))
        if keep:
            # The cache may have freed these arrays when ``rows`` are used again.
            rows[members[first : first + step], ROOM] = 0
            keep(plan, batch, arrays, result[:, ROOM], is_stored)
    if finder is not None and newest and newest > finder.store.newest:
        finder.store.note_change(newest)
    return number, np.concatenate(remaining) if remaining else _NONE


class NativeGrid:
    """A :class:`~voxpipe.core.ChunkGrid` for the kernel."""

    def __init__(self, cuts: ChunkGrid) -> None:
        axes = len(cuts.counts)
        self._cuts, self._axes, self._rest = cuts, axes, (0,) * (MOST_AXES - axes)
        steps = np.cumprod([1, *cuts.counts[:0:-1]], dtype=object)[::-1].tolist()
        columns = [*cuts.columns.tolist(), steps]
        numbers = [axes, *(n for row in columns for n in (*row, *self._rest))]
        self._table = np.array(numbers, np.int64)
        (self._address,) = addresses_of([self._table])
        self._cover = _cover_function()

    def cover(self, region: Region) -> ChunkPlan | None:
        """Return the chunks that a region and its box touch, in C order.

        None if the numbers are out of range.
        """
        box, rest = region.box, self._rest
        if region.is_empty or min(region.start) < 0:
            return None
        numbers = (*region.start, *rest, *region.stop, *rest)
        if box is None:
            job = _COVER.pack(*numbers, *_NO_BOX)
        else:
            clamp = box.clamp
            faces = _NO_FACES if clamp is None else (*clamp.start, *clamp.stop)
            whole = (*numbers, 1, *faces, *box.axes, *box.shape)
            job = _COVER.pack(*whole, *box.matrix.ravel().tolist(), *box.halo, box.beyond)
        count = self._cover(self._address, job, 0, 0, 0, 0, 0)
        if count < 0:
            return None
        # One buffer: numbers of the chunks, count of voxels, indices, rows.
        axes, width = self._axes, PARTS + 3 * self._axes
        room = np.empty(1 + count * (1 + axes + width), np.int64)
        at = ctypes.addressof(ctypes.c_char.from_buffer(room.data))
        first, second = count + 1, count + 1 + count * axes
        places = count, at + 8 * first, at + 8 * second, at, at + 8 * count
        number = self._cover(self._address, job, *places)
        if number < 0:
            return None
        chunks = room[first : first + number * axes].reshape(number, axes)
        rows = room[second : second + number * width].reshape(number, width)
        chunks.setflags(write=False)
        plan = ChunkPlan(cuts=self._cuts, chunks=chunks, rows=rows, order=room[:number])
        plan.address, plan.voxels, plan.keys = places[1], int(room[count]), None
        return plan


def blosc2_items(data: bytes, count: int, dtype: str) -> NDArray[Any] | None:
    """Return the first items of a blosc2 chunk, decoded in this thread; None if that fails.

    The functions of the blosc2 package start threads, which a forked child does not have.
    """
    decoder = native_decoder("blosc2")
    item = np.dtype(dtype).itemsize
    # Check the sizes of an item and of all items in the header: blosc2 trusts them.
    head = bytes([item]) + (count * item).to_bytes(8, "little")[:4]
    if decoder is None or max(len(data), count * item) > _INT_MAX or data[3:8] != head:
        return None
    number, address = ctypes.c_int, ctypes.c_void_p
    function = ctypes.CFUNCTYPE(number, address, number, number, number, address, number)
    items = np.zeros(count, dtype)
    start = address_of_bytes(data)
    (room,) = addresses_of([items])
    size = function(decoder.decode)(start, len(data), 0, count, room, items.nbytes)
    return items if size == items.nbytes else None


def addresses_of(arrays: Iterable[NDArray[Any]]) -> list[int]:
    """Return the addresses of writable arrays, in a third of the time of ``ctypes.data``."""
    address, view = ctypes.addressof, ctypes.c_char.from_buffer
    places = []
    for array in arrays:
        places.append(address(view(array.data)) if array.size else 0)
    return places


def address_of_bytes(data: bytes | memoryview) -> int:
    """Return the address of read-only bytes; 1 for empty ones."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0] if data else 1
    return address


@cache
def _cover_function() -> Any:
    # It keeps the interpreter lock: waiting for the lock would take longer than the call.
    cover = ctypes.PyDLL(_library()._name).voxpipe_cover
    number = ctypes.c_int64
    cover.argtypes, cover.restype = [number, ctypes.c_char_p, *[number] * 5], number
    return cover


@cache
def _library() -> Any:
    """Return the loaded library, or None; the resampler reports why."""
    return native_library(["voxpipe_place_chunks"])[0]
