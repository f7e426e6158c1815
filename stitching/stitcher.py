"""Weigh and sum windows, and finish each cell after its last window."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..core import Region
from ..core.errors import PatchSizeError
from ..core.memory import private_pages
from ..storage.disk_cache import open_no_link
from .windows import Cell, Triple, Windows

Key = tuple[Any, ...]
Flags = NDArray[np.bool_]
# Below this size a map costs more than it saves.
_OWN_PAGES = 64 * 1024
_HUGE_PAGE = 2 * 1024**2  # on x86, and on ARM with pages of 4 KiB
# Cached sums of weights: cells far from the faces of a volume share them.
_SUMS = 16
# Width of the bell (MONAI, nnU-Net), and MONAI's least weight, for the corners of a window.
_SIGMAS = (0.125,) * 3
_LEAST = 1e-3
_CELL = "cell"  # first entry of the keys of cells, unlike those of an output


def _gaussian(size: Sequence[int], scales: Sequence[float] = _SIGMAS) -> NDArray[np.float32]:
    bells = []
    for n, scale in zip(size, scales, strict=True):
        distance = np.arange(n, dtype=np.float32) - np.float32((n - 1) / 2)
        bells.append(np.exp(-(distance**2) / np.float32(2 * (scale * n) ** 2)))
    weights = _product(bells)
    return np.maximum(weights, np.float32(max(float(weights.min()), _LEAST)))


def _hann(size: Sequence[int]) -> NDArray[np.float32]:
    # TorchIO's: the two zeros at the ends are left out.
    return _product([np.hanning(n + 2)[1:-1].astype(np.float32) for n in size])


def _product(axes: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    i, j, k = axes
    weights: NDArray[np.float32] = i[:, None, None] * j[:, None] * k
    return weights


BLENDS: dict[str, Callable[..., NDArray[np.float32]] | None] = {
    "gaussian": _gaussian,
    "hann": _hann,
    "mean": None,
    "crop": None,
}
"""Function from a window's size to its weights, (I, J, K) float32; None: each voxel counts 1."""


class BoxWriter(Protocol):
    """Receiver of finished voxels."""

    def scale(self, shape: Triple) -> None:
        """Set another shape of the whole, before ``begin``."""

    def begin(self, channels: int) -> None:
        """Set the number of channels, before the first voxels."""

    def write(self, region: Region, voxels: NDArray[np.float32]) -> None:
        """Write the voxels (C, I, J, K) of a box: the blended output of the model."""

    def write_zeros(self, region: Region) -> None:
        """Write 0 to a box without windows, for any activation."""


class Stitcher:
    """Blend windows of one volume, which may come in any order, each once.

    Parameters
    ----------
    windows
        Places of the windows.
    blend
        One of ``BLENDS``.
    output
        Receives finished voxels, cell by cell.
    cells
        Storage of the unfinished sums.

    Examples
    --------
    >>> class Print:
    ...     def begin(self, channels): ...
    ...     def write(self, region, voxels):
    ...         print(region, voxels.ravel().tolist())
    >>> stitcher = Stitcher(Windows((3, 1, 1), (2, 1, 1), (1, 0, 0)), "mean", Print())
    >>> stitcher.add(0, np.full((1, 2, 1, 1), 2, np.float32))
    Region(0:1, 0:1, 0:1) [2.0]
    >>> stitcher.add(1, np.full((1, 2, 1, 1), 4, np.float32))
    Region(1:2, 0:1, 0:1) [3.0]
    Region(2:3, 0:1, 0:1) [4.0]
    """

    def __init__(
        self,
        windows: Windows,
        blend: str,
        output: BoxWriter,
        cells: OpenCells | None = None,
        sigma_scale: Sequence[float] | None = None,
        head: int | str | None = None,
    ) -> None:
        self.windows, self.output, self._head = windows, output, head
        self._noun = "the output" if head is None else f"the output {head!r}"
        self.targets = windows
        """The same windows in voxels of the model's output."""
        self.cells = OpenCells(CellMemory(2**62)) if cells is None else cells
        make, scales = BLENDS[blend], () if sigma_scale is None else (sigma_scale,)
        self._weights = None if make is None else make(windows.size, *scales)
        self._ones = None if self._weights is not None else np.ones(windows.size, np.float32)
        self.present = np.zeros(len(windows), np.bool_)
        """Windows that were added."""
        self.past = np.zeros(len(windows), np.bool_)
        """Windows that were added or left out."""
        self._open_counts = windows.touch_counts()
        self._sums: OrderedDict[tuple[Any, ...], NDArray[np.float32]] = OrderedDict()
        self.channels = 0

    @property
    def is_whole(self) -> bool:
        """Whether every window came or was left out."""
        return bool(self.past.all())

    def add(self, number: int, voxels: NDArray[Any]) -> None:
        """Add the output (C, I, J, K) of one window; a repeated window is ignored.

        Raises PatchSizeError for another size, or another number of channels than before.
        """
        if self.past[number]:
            return
        self.refuse_shape(voxels)
        self.begin(*voxels.shape)
        if voxels.shape[0] != self.channels:
            msg = f"a window has {voxels.shape[0]} channels, and the first had {self.channels}"
            raise PatchSizeError(msg, do="A model must give as many for every window.")
        self.present[number] = self.past[number] = True
        for cell in self.targets.cells(number):
            where = self.targets.slices(cell, number)
            part = voxels[(slice(None), *where)]
            key = (_CELL, *cell)
            if self._open_counts[cell] == 1 and key not in self.cells:
                # A single window is its own mean, with or without weights.
                self._open_counts[cell] = 0
                self.output.write(self.targets.region(cell), part.astype(np.float32, copy=False))
                continue
            weights = None if self._weights is None else self._weights[where]
            is_first, shape = key not in self.cells, part.shape
            total = self.cells.new(key, shape, np.float32) if is_first else self.cells.change(key)
            _add_weighted(total, part, weights, is_first=is_first)
            self._leave(cell)

    def leave_out(self, numbers: Iterable[int]) -> None:
        """Mark windows as left out; voxels without a window become 0."""
        for number in numbers:
            if self.past[number]:
                continue
            self.past[number] = True
            for cell in self.targets.cells(number):
                self._leave(cell)

    def begin(self, channels: int, *size: int) -> None:
        """Set channels and voxels of a window's output: before the first window, or without any."""
        if not self.channels:
            self._scale(size)
            self.channels = channels
            self.output.begin(channels)
            for cell in _cells(self._open_counts == 0):
                self._finish_open(cell)

    def _scale(self, size: tuple[int, ...]) -> None:
        """Place the windows in voxels of an output that has ``size`` voxels for each."""
        if size not in ((), self.targets.size):
            self.targets = self.windows.scale_to(size, self._noun)
            self.output.scale(self.targets.shape)
            # The voxel with the nearest centre, as in MONAI; the later one of two.
            pairs = zip(size, self.windows.size, strict=True)
            index = np.ix_(*((2 * np.arange(n) + 1) * s // (2 * n) for n, s in pairs))
            self._weights = None if self._weights is None else self._weights[index]
            self._ones = None if self._ones is None else self._ones[index]
        self._open_counts = self.targets.touch_counts()
        for number in np.flatnonzero(self.past).tolist():
            for cell in self.targets.cells(number):
                self._open_counts[cell] -= 1

    def resume(self, present: Flags, past: Flags, channels: int, *size: int) -> None:
        """Continue another process's run; ``cells`` has its sums already."""
        self.present, self.past = present.copy(), past.copy()
        self._scale(size)
        self.channels = channels
        if channels:
            self.output.begin(channels)

    def finished_regions(self) -> list[Region]:
        """Return the boxes of the cells that are done."""
        return [self.targets.region(cell) for cell in _cells(self._open_counts == 0)]

    def refuse_shape(self, voxels: NDArray[Any]) -> None:
        """Raise PatchSizeError for an output that is not (C, I, J, K) of a window.

        The first one of a named output may have another scale.
        """
        is_first = self._head is not None and not self.channels
        if voxels.ndim == 4 and voxels.size and is_first:
            self.windows.scale_to(voxels.shape[1:], self._noun)
        elif voxels.ndim != 4 or voxels.shape[1:] != self.targets.size or not voxels.shape[0]:
            size = "x".join(map(str, self.windows.size))
            msg = f"{self._noun} for a window of {size} voxels has the shape {voxels.shape}"
            do = "A model must give (B, C, I, J, K) of the size that it was given."
            raise PatchSizeError(msg, do=do)

    def _leave(self, cell: Cell) -> None:
        self._open_counts[cell] -= 1
        if self._open_counts[cell] == 0 and self.channels:
            self._finish_open(cell)

    def _finish_open(self, cell: Cell) -> None:
        """Finish a cell after its last window."""
        key, region = (_CELL, *cell), self.targets.region(cell)
        if key not in self.cells:
            self.output.write_zeros(region)
            return
        numbers = [n for n in self.targets.windows(cell) if self.present[n]]
        total, weight = self.cells.pop(key), self._weight_of(cell, numbers)
        if weight is not None:
            np.divide(total, weight, out=total)
        self.output.write(region, total)

    def _weight_of(self, cell: Cell, numbers: list[int]) -> NDArray[np.float32] | None:
        """Return the sum of the windows' weights in a cell; None if it is 1."""
        if self._weights is None and len(numbers) == 1:
            return None
        weights = self._ones if self._weights is None else self._weights
        assert weights is not None
        slices = [self.targets.slices(cell, n) for n in numbers]
        key = tuple((s.start, s.stop) for one in slices for s in one)
        total = self._sums.get(key)
        if total is None:
            total = new_array(self.targets.region(cell).shape, np.dtype(np.float32))
            for one in slices:
                total += weights[one]
            self._sums[key] = total
            if len(self._sums) > _SUMS:
                self._sums.popitem(last=False)
        return total


def _cells(mask: NDArray[np.bool_]) -> list[Cell]:
    return [(i, j, k) for i, j, k in np.argwhere(mask).tolist()]


def _add_weighted(
    total: NDArray[np.float32],
    part: NDArray[Any],
    weights: NDArray[np.float32] | None,
    *,
    is_first: bool,
) -> None:
    """Add a window's voxels to a cell; the first window sets them."""
    if weights is None:
        np.add(part, 0 if is_first else total, out=total)
        return
    import torch  # here, because plans of windows need no torch

    # One pass, where NumPy takes two. Tensors need writable memory without negative strides.
    values = np.require(part, np.float32, "W")
    values = values if min(values.strides) > 0 else values.copy()
    to, one, other = map(torch.from_numpy, (total, values, weights))
    torch.mul(one, other, out=to) if is_first else to.addcmul_(one, other)


# Arrays that are being summed: in memory up to a limit, then in a file. With a checkpoint the file
# has a name, and its slots stay until the next checkpoint.


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
