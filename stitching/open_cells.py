"""Arrays that are being summed: in memory up to a limit, then in a file.

With a checkpoint the file has a name, and its slots stay until the next checkpoint.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..core.memory import private_pages
from ..storage.disk_cache import open_no_link

Key = tuple[Any, ...]
# Below this size a map costs more than it saves.
_OWN_PAGES = 64 * 1024
_HUGE_PAGE = 2 * 1024**2  # on x86, and on ARM with pages of 4 KiB


class Slot(NamedTuple):
    """Place of an array in the file."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


class CellMemory:
    """Shared memory limit of several ``OpenCells``, except for the array in use."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._sizes: OrderedDict[tuple[OpenCells, Key], int] = OrderedDict()
        self.most_bytes = 0  # peak of the bytes

    def use(self, cells: OpenCells, key: Key, size: int) -> None:
        """Count an array in use; the least recently used ones are written to their files."""
        self._bytes += size - self._sizes.pop((cells, key), 0)
        self._sizes[cells, key] = size
        while self._bytes > self._limit and len(self._sizes) > 1:
            other, its_key = next(iter(self._sizes))
            other.put_away(its_key)
        self.most_bytes = max(self.most_bytes, self._bytes)

    def forget(self, cells: OpenCells, key: Key) -> None:
        """Remove an array from the count."""
        self._bytes -= self._sizes.pop((cells, key))


class OpenCells:
    """Arrays by key; one thread at a time uses those that share a memory.

    Parameters
    ----------
    memory
        The memory limit; the rest is written to the file.
    path
        Path of the file; by default it has no name, and is gone with the process.
    """

    def __init__(self, memory: CellMemory, path: str | None = None) -> None:
        self.memory, self._path = memory, path
        self._arrays: dict[Key, NDArray[Any]] = {}
        self._dirty: set[Key] = set()
        self._slots: dict[Key, Slot] = {}
        self._safe: dict[Key, Slot] = {}  # slots of the last checkpoint
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # offsets by size
        self._file: Any = None  # unbuffered
        self._end = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._arrays or key in self._slots

    def new(self, key: Key, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Keep a new array of zeros under a key that has none, and return it, to be changed."""
        array = new_array(shape, np.dtype(dtype))
        self.put(key, array)
        return array

    def put(self, key: Key, array: NDArray[Any]) -> None:
        """Keep an array under a key that has none."""
        self._enter(key, array)
        self._dirty.add(key)

    def change(self, key: Key) -> NDArray[Any]:
        """Return an array that is going to be changed in place before the next call."""
        array = self._read(key)
        self._dirty.add(key)
        return array

    def pop(self, key: Key) -> NDArray[Any]:
        """Return an array, and forget it."""
        array = self._read(key)
        self._forget(key)
        self._dirty.discard(key)
        slot = self._slots.pop(key, None)
        if slot is not None and slot != self._safe.get(key):
            self._free[slot.size].append(slot.offset)
        return array

    def _read(self, key: Key) -> NDArray[Any]:
        array = self._arrays.get(key)
        if array is not None:
            self.memory.use(self, key, array.nbytes)
            return array
        slot = self._slots[key]
        array = new_array(slot.shape, np.dtype(slot.dtype))
        view, position, file = _bytes_of(array), 0, self._open()
        file.seek(slot.offset)
        while position < slot.size:
            count = file.readinto(view[position:])
            if not count:
                raise EOFError(f"{self._path} holds fewer bytes than were written")
            position += count
        self._enter(key, array)
        return array

    def _enter(self, key: Key, array: NDArray[Any]) -> None:
        self._arrays[key] = array
        self.memory.use(self, key, array.nbytes)

    def put_away(self, key: Key) -> None:
        """Leave an array in the file only."""
        if key in self._dirty:
            self._write(key)
        self._forget(key)

    def _forget(self, key: Key) -> None:
        del self._arrays[key]
        self.memory.forget(self, key)

    def _write(self, key: Key) -> None:
        array = np.ascontiguousarray(self._arrays[key])
        slot = self._slots.get(key)
        if slot is None or slot == self._safe.get(key):
            free = self._free[array.nbytes]
            offset = free.pop() if free else self._end
            self._end = max(self._end, offset + array.nbytes)
            slot = self._slots[key] = Slot(offset, array.shape, array.dtype.str)
        view, position, file = _bytes_of(array), 0, self._open()
        file.seek(slot.offset)
        while position < array.nbytes:
            position += file.write(view[position:])
        self._dirty.discard(key)

    def write_all(self) -> list[tuple[Key, Slot]]:
        """Write all changed arrays; return all slots, for a checkpoint."""
        for key in [key for key in self._arrays if key in self._dirty]:
            self._write(key)
        return list(self._slots.items())

    def keep(self, table: Iterable[tuple[Key, Slot]]) -> None:
        """Protect the slots of a new checkpoint, and free those of the one before."""
        slots = dict(table)
        current = {*slots.values(), *self._slots.values()}
        for slot in self._safe.values():
            if slot not in current:
                self._free[slot.size].append(slot.offset)
        self._safe = slots

    def restore(self, table: Sequence[tuple[Key, Slot]]) -> None:
        """Load the slots of a checkpoint of another process."""
        self._slots = dict(table)
        self._safe = dict(table)
        self._end = max((slot.offset + slot.size for slot in self._slots.values()), default=0)

    def _open(self) -> Any:
        # seek() is safe, as no other thread uses the file; preadv() is not on all systems.
        if self._file is None:
            if self._path is None:
                # No name, so that nothing is left after any end of the process.
                self._file = tempfile.TemporaryFile(prefix="voxpipe-cells-", buffering=0)  # noqa: SIM115
            else:
                own = open_no_link(self._path, os.O_RDWR | os.O_CREAT)
                self._file = os.fdopen(own, "r+b", buffering=0)
        return self._file

    def close(self) -> None:
        """Release the arrays and the file; a named file stays."""
        for key in [*self._arrays]:
            self._forget(key)
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.close()


def new_array(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return zeros in their own pages, which return to the system when freed."""
    size = int(np.prod(shape)) * dtype.itemsize
    if size < _OWN_PAGES:
        return np.zeros(shape, dtype)
    pages = private_pages(size)
    if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # not on all systems
            pages.madvise(mmap.MADV_HUGEPAGE)  # one fault instead of 512
    return np.frombuffer(pages, dtype).reshape(shape)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    flat: Any = array.reshape(-1)
    return memoryview(flat).cast("B")
