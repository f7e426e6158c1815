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
_GUARD, _FILLER = 4096, 0xA5  # bytes behind a chunk, by which tests see what decoders write
_STEP_BYTES = 4 * 1024**2  # decoded in one call: a patch of 96 cubed, and what is touched beside it
# VoxpipeStored; by module, the functions that decode and measure.
_PLAIN, _BLOSC, _ZSTD, _BLOSC2 = range(4)
_LIBRARIES = {
    "blosc": (_BLOSC, "numcodecs.blosc", "", ("blosc_decompress_ctx",)),
    "zstd": (_ZSTD, "numcodecs.zstd", "", ("ZSTD_decompress", "ZSTD_getFrameContentSize")),
    "blosc2": (_BLOSC2, "blosc2", "lib/libblosc2.so", ("blosc2_getitem",)),
    "crc32c": (_PLAIN, "google_crc32c._crc32c", "", ("crc32c_value",)),
}
# Columns of a row; those behind them are where its part lies.
DATA, SIZE, FILE, ROOM, TASK, STATUS, PARTS = 0, 1, 3, 4, 5, 6, 7
LEAVE, PLACE, DECODE = range(3)
"""What is done with a chunk: nothing, what is in its room is copied, or it is decoded before, from
where its row says that its bytes are, or :class:`ChunkPlaces` where there are any."""
SUCCESS, _INT_MAX = 0, 2**31 - 1
_NONE = np.zeros(0, np.int64)


class NativeDecoder(NamedTuple):
    """A function of another library, which keeps no state."""

    kind: int  # a VoxpipeStored: what the function takes
    decode: int = 0  # its address
    measure: int = 0  # address of the one that tells how much it will decode, if there is one
    check: int = 0  # address of the function for the CRC-32C behind each chunk, if there is one


PLAIN = NativeDecoder(_PLAIN)
"""Chunks that are stored as they are in memory."""


class StoredChunks(NamedTuple):
    """Stored bytes of chunks that a native decoder takes."""

    decoder: NativeDecoder
    columns: NDArray[np.int64]
    """(2, N): address of the bytes, 0 of a chunk that is not stored; and how many there are, 0 if
    fewer than there should be."""
    holds: Any  # what keeps the bytes in memory


class LocatedChunks(NamedTuple):
    """Chunks that a native decoder takes, and finds by itself."""

    decoder: NativeDecoder
    places: ChunkPlaces
    store: Any = None
    """Of files: what notes when they were changed last (``note_change``). They are read so while
    ``HINTS.is_warm``."""
    touch: Callable[[float], None] | None = None
    """Of a mapped file: is told how many bytes of it are going to be touched."""
    span: float = 0.0
    """How many of them a chunk takes, about."""


class ChunkPlan(SimpleNamespace):
    """The chunks that a region needs. Worked out once for it: who looks ahead and who reads ask."""

    cuts: ChunkGrid  # of which array
    chunks: NDArray[np.int64]  # their indices (N, axes), read-only: whoever asks gets the same
    address: int  # of ``chunks``
    rows: NDArray[np.int64]  # what native code is asked with, their parts in it
    order: NDArray[Any]  # their numbers in C order
    voxels: int  # how many of the array they hold
    keys: Any  # ChunkKeys, once a cache was asked

    @property
    def parts(self) -> NDArray[np.int64]:
        """(N, axes, 3), see ``ChunkGrid.parts_in``."""
        return self.rows[:, PARTS:].reshape(*self.chunks.shape, 3)


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

    So many chunks along each axis are a unit, in C order: a shard, whose chunks an index tells, or
    a chunk of a frame of blosc2, of which these are the blocks. ``counts`` are those of units.
    """

    MOST_UNITS = 1 << 16
    """Each takes 16 bytes; who has more of them is asked in Python."""

    def __init__(
        self, per_unit: Sequence[int], counts: Sequence[int], *, items: int = 0, root: str = ""
    ) -> None:
        self.longest = 0
        """Bytes of the longest chunk that lies in a file."""
        self.is_current = True
        """Whether they hold; if not, the source has to be asked for others."""
        self._entries = np.zeros((math.prod(counts), 2), np.int64)
        self._holds: dict[int, tuple[Any, ...]] = {-1: (os.fsencode(root) + b"\0",)}
        (entries,) = addresses_of([self._entries])
        at_root = address_of_bytes(self._holds[-1][0]) if root else 0
        rest = (0,) * (MOST_AXES - len(counts))
        numbers = (int(items > 0), len(self._entries), entries, items, at_root)
        self._table = np.array([*numbers, *per_unit, *rest, *counts, *rest], np.int64)
        (self.address,) = addresses_of([self._table])

    def set_frame(self, spans: NDArray[np.int64], holds: Any) -> None:
        """Note where the chunks of a frame lie, address and size (2, N), and what holds them."""
        self._entries[:], self._holds[0] = spans.T, (holds,)

    def set_shard(self, unit: int, path: str, table: NDArray[np.uint64] | None, most: int) -> None:
        """Note the index of a shard: (chunks, 2), offset and length; None where it is not there.

        A chunk that takes more than ``most`` bytes is left to Python.
        """
        holds = os.fsencode(path) + b"\0", None if table is None else np.ascontiguousarray(table)
        # With what was there: two threads may learn one index, and native code look into the first.
        self._holds[unit] = (*self._holds.get(unit, ()), *holds)
        if table is not None:
            sizes = table[:, 1]
            longest = int(np.maximum.reduce(sizes[sizes <= most], initial=0))
            self.longest = max(self.longest, longest)
        # The second one first: another thread may look meanwhile.
        self._entries[unit, 1] = address_of_bytes(holds[0])
        table = holds[1]
        self._entries[unit, 0] = 1 if table is None else table.__array_interface__["data"][0]


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
    """Bring parts of chunks to their places in ``out``, a region of an array in C order.

    ``rows`` are those of the plan (struct VoxpipeChunk of ``native/interface.h``), with ``TASK``
    and ``ROOM`` of chunks that are decoded already, and ``fill_row`` is what all rows of a chunk
    are that is not stored. ``members`` are decoded before, found by ``source``, or in ``rows`` for
    ``StoredChunks``; ``keep`` is given the plan, members, arrays, their addresses, and whether they
    are stored. With ``guards`` a decoder that writes beyond a chunk is a ``RuntimeError``. Returns
    how many of the members are stored, and which could not be decoded: of these ``out`` holds
    anything.
    """
    rest, newest, count = (0,) * (MOST_AXES - len(shape)), 0, len(members)
    finder = source if isinstance(source, LocatedChunks) else None
    at_places, longest = 0, 0
    if finder is not None:
        at_places, longest = finder.places.address, finder.places.longest
    chunk_bytes = math.prod(shape) * out.itemsize
    # What is not kept is decoded to scratch, unless it lies in ``out`` as a whole.
    scratch = np.empty(chunk_bytes + longest, np.uint8)
    addresses = addresses_of([rows, scratch, out, fill_row])
    job = _JOB.pack(
        *(*(PLAIN if source is None else source.decoder), len(rows)),
        *(*addresses, at_places, plan.address, longest),
        *(out.itemsize, len(shape), *shape, *rest, *out.strides, *rest),
    )
    # What is decoded to be kept is in memory before it is known whether it has room.
    step = max(1, _STEP_BYTES // chunk_bytes if keep else count)
    number, remaining = 0, []
    for first in range(0, count or 1, step):
        its = members[first : first + step]
        arrays: list[NDArray[Any]] = []
        if guards:
            rooms = np.full((len(its), chunk_bytes + _GUARD), _FILLER, np.uint8)
            arrays = [room[:chunk_bytes].view(out.dtype).reshape(shape) for room in rooms]
        elif keep and count:
            arrays = [np.empty(shape, out.dtype) for _ in range(len(its))]
        if arrays:
            rows[its, ROOM] = addresses_of(arrays)
        rows[its, TASK] = DECODE
        newest = max(newest, _library().voxpipe_place_chunks(job))
        if guards and (rooms[:, chunk_bytes:] != _FILLER).any():
            raise RuntimeError(f"a decoder wrote beyond the {chunk_bytes} bytes of a chunk")
        rows[:, TASK] = LEAVE
        if not count:
            break
        result = rows[its]
        is_stored, is_done = (result[:, DATA] | result[:, FILE]) != 0, result[:, STATUS] == SUCCESS
        if np.add.reduce(is_done) < len(its):
            remaining.append(its[~is_done])
            its, is_stored, result = its[is_done], is_stored[is_done], result[is_done]
            arrays = [*compress(arrays, is_done.tolist())]
        number += int(np.add.reduce(is_stored))
        if keep:
            # Those arrays may be gone when ``rows`` are used again.
            rows[members[first : first + step], ROOM] = 0
            keep(plan, its, arrays, result[:, ROOM], is_stored)
    if finder is not None and newest and newest > finder.store.newest:
        finder.store.note_change(newest)
    return number, np.concatenate(remaining) if remaining else _NONE


class NativeGrid:
    """A :class:`~voxpipe.core.ChunkGrid` of so many axes that native code cuts."""

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
        """Return the parts that a region touches, and its box, in C order; the region keeps it.

        None where these are no sensible numbers.
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
        # Numbers of all, and how many voxels they hold; their indices; their rows.
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
        vars(region)["_plan"] = plan
        return plan


def blosc2_items(data: bytes, count: int, dtype: str) -> NDArray[Any] | None:
    """Return the first items of a chunk of blosc2, decoded in this thread; None if they cannot be.

    blosc2's own functions for this begin threads, which a forked child waits for in vain.
    """
    decoder = native_decoder("blosc2")
    item = np.dtype(dtype).itemsize
    # Of its header the size of an item and that of all of them, which blosc2 believes.
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
