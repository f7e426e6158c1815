"""The stored chunks of an HDF5 dataset: their places, and the numbers that they hold.

HDF5 returns the places of chunks, and any store of byte ranges reads them. HDF5's deflate filter
doubles its memory until a chunk is decoded: a few kilobytes of a hostile file take gigabytes. So
deflate, shuffle and check sums are undone here, into no more bytes than a chunk has. HDF5 undoes
all other filters, in a file in memory. Their memory is limited: szip, nbit and scaleoffset know
how many bytes they make, and lzf makes at most 88 of one.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import BadHeader, CorruptVolume, MissingDependency
from ...storage.decompress import inflate
from ...storage.ranges import ObjectRanges, ReadRange, Span
from ...storage.read_ahead import Ticket
from ...storage.remote import Piece, RangeFile, RemoteFile
from ...volumes.chunks.chunked_array import ChunkIndices, ChunkMap, Index
from ...volumes.chunks.ranged_chunks import RangedChunks
from ...volumes.formats.raw import world_affine
from ...volumes.formats.stored_file import library_errors
from ...volumes.header import affine_entries

Errors = Callable[[], AbstractContextManager[None]]
Run = Callable[[Callable[[], Any], Errors], Any]
"""``run(call, errors)`` returns the result of ``call``, a function of HDF5.

``errors()`` turns its errors into errors of voxpipe."""

# H5Zpublic.h.
_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3
_SUM_BYTES = 4
# Filters in a package of their own, hdf5plugin, by their numbers at the HDF Group.
_PLUGINS = {
    307: "bzip2",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32015: "zstd",
    32017: "sz",
    32018: "fcidecomp",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
}
# Bytes that one call may read: the tables of 100 000 chunks take 8 MB, in scattered nodes.
_MOST_BYTES = 128 * 1024**2
# Before this version HDF5 counts from the end of a user block (HDFGroup/hdf5#4236).
_COUNTS_USER_BLOCK = (1, 14, 4)


class _NotHere(OSError):
    """The requested bytes have to be fetched first."""


class Hdf5File(RangeFile):
    """A remote file for HDF5, and one thread at a time: calls are made again until all is here.

    h5py holds one lock for all threads while HDF5 reads, and takes it to free any object of its
    own. A read must not wait for the thread that fetches bytes: that thread may wait for the lock
    when its garbage collection frees an object of h5py. So a read of absent bytes fails, the bytes
    are fetched outside of HDF5, and the call is made again.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file)
        self._pieces: dict[Span, Piece] | None = None  # only while a call is made
        self._absent: list[Span] = []

    def run(self, call: Callable[[], Any], errors: Errors) -> Any:
        """Return the result of a function of HDF5, which may be called several times."""
        self._pieces = {}
        try:
            while True:
                self._absent.clear()
                try:
                    with errors():
                        answer = call()
                except Exception:
                    if not self._absent:
                        raise
                # Also where it returned: HDF5 takes some reads that fail for "there is none".
                if not self._absent:
                    return answer
                self._bring(self._absent[0], self._pieces)
        finally:
            self._pieces = None

    def _bring(self, span: Span, pieces: dict[Span, Piece]) -> None:
        if sum(map(len, pieces.values())) + span[1] - span[0] > _MOST_BYTES:
            what = f"the tables of {self._file.name} take more than {_MOST_BYTES} bytes."
            raise BadHeader(what, do="Give ⟦dataset=⟧, or copy the file to a local disk.")
        pieces[span] = super()._fetch([span])[0]

    def _fetch(self, spans: Sequence[Span]) -> list[Piece]:
        if self._pieces is None:
            return super()._fetch(spans)
        for span in spans:
            if span not in self._pieces:
                self._absent.append(span)
                raise _NotHere(f"bytes {span[0]} to {span[1]} are fetched first")
        return [self._pieces[span] for span in spans]


def run_local(call: Callable[[], Any], errors: Errors) -> Any:
    """Return the result of a function of HDF5 for a local file."""
    with errors():
        return call()


class ChunkIndex(ChunkMap):
    """The places of a dataset's chunks in the file ``key``; HDF5 is queried once for each."""

    def __init__(self, dataset: Any, key: str, run: Run, name: str) -> None:
        from h5py import version

        self._dataset, self._key, self._run, self.name = dataset, key, run, name
        counts = version.hdf5_version_tuple >= _COUNTS_USER_BLOCK
        self._base = 0 if counts else dataset.file.userblock_size
        what = f"the chunks of {self.name} cannot be found"
        self._errors = partial(library_errors, what, kind=CorruptVolume)
        # HDF5 has a lock of its own, in whose queue a reader would keep Python's.
        self._lock = threading.Lock()
        # Place of each chunk, and one bit per filter that it skipped, in the order of writing.
        self._places: dict[Index, tuple[ReadRange | None, int]] = {}

    def locate(self, chunks: ChunkIndices) -> ObjectRanges:
        """Return the place of each chunk; HDF5 reads its tables for chunks not known yet."""
        chunks = [*map(tuple, np.asarray(chunks).tolist())]
        if not self._places.keys() >= {*chunks}:
            with self._lock:
                self._run(lambda: self._ask(chunks), self._errors)
        return ObjectRanges.of([self._places[index][0] for index in chunks])

    def stores_chunks(self) -> bool:
        """Whether any chunk is stored."""
        with self._lock:
            return bool(self._run(self._dataset.id.get_storage_size, self._errors))

    def skipped_filters(self, index: Index) -> int:
        """Return which filters were left out for a chunk that was located."""
        return self._places[index][1]

    def _ask(self, chunks: Sequence[Index]) -> None:
        for index in chunks:
            if index in self._places:
                continue
            first = tuple(n * c for n, c in zip(index, self._dataset.chunks, strict=True))
            entry = self._dataset.id.get_chunk_info_by_coord(first)
            start = self._base + (entry.byte_offset or 0)
            place = ReadRange(self._key, start, start + entry.size)
            is_stored = entry.byte_offset is not None
            self._places[index] = (place, entry.filter_mask) if is_stored else (None, 0)


class Hdf5Chunks(RangedChunks):
    """Chunks that are ranges of one file, whose places must be asked for before they are read."""

    def prefetch(self, chunks: ChunkIndices, size: int) -> Ticket | None:
        """Begin to fetch; the chunks are located here, not in the loop that fetches them."""
        self._map.locate(chunks)
        return super().prefetch(chunks, size)


class ChunkFilters:
    """Makes numbers of the stored bytes of a chunk."""

    strided = True

    def __init__(self, dataset: Any, index: ChunkIndex, name: str) -> None:
        self._index, self._name = index, name
        self._dtype, self._chunks = np.dtype(dataset.dtype), tuple(dataset.chunks)
        # A copy, as a type may be part of its file.
        self._type, self._plan = dataset.id.get_type().copy(), dataset.id.get_create_plist()
        self._bytes = math.prod(self._chunks) * self._type.get_size()
        self._filters = filters_of(self._plan)
        self._plain = self.are_plain(self._type, self._dtype)
        absent_filters(self._plan)  # import plugins now; an absent filter may not be needed
        self._lock = threading.Lock()
        self._one: Any = None

    @staticmethod
    def are_plain(kind: Any, dtype: np.dtype[Any]) -> bool:
        """Return whether the bytes of a type of HDF5 are those of ``dtype``.

        Others have bits that are not in use, an offset, or another layout of real numbers.
        """
        h5t = importlib.import_module("h5py").h5t
        kind = kind.get_super() if kind.get_class() == h5t.ENUM else kind
        return dtype.kind in "iuf" and bool(kind == h5t.py_create(dtype))

    def decode(self, data: memoryview, out: NDArray[Any], index: Index) -> None:
        """Undo the filters, the last one first."""
        mask = self._index.skipped_filters(index)
        content = self._undo(data, mask)
        if content is None:  # which was made safe, as far as it was undone
            out[...] = self._read_by_hdf5(data, mask)
            return
        if len(content) != self._bytes:
            raise ValueError(f"it decodes to {len(content)} of {self._bytes} bytes")
        out[...] = np.frombuffer(content, self._dtype).reshape(self._chunks)

    def _undo(self, data: Any, mask: int) -> Any:
        """Return the decoded bytes; None where HDF5 has to do it."""
        for at in reversed(range(len(self._filters))):
            code, _, values, _ = self._filters[at]
            if mask >> at & 1:
                continue
            if code == _DEFLATE:
                data = inflate(data, self._bytes + _SUM_BYTES * at)
            elif code == _SHUFFLE:
                data = _unshuffle(data, values)
            elif code == _FLETCHER32:
                from numcodecs.fletcher32 import Fletcher32

                data = Fletcher32().decode(data)
            else:
                return None
        return data if self._plain else None

    def _read_by_hdf5(self, data: memoryview, mask: int) -> NDArray[Any]:
        with self._lock:
            try:
                if self._one is None:
                    self._one = self._dataset_in_memory()
                self._one.id.write_direct_chunk((0,) * len(self._chunks), bytes(data), mask)
                array: NDArray[Any] = self._one[...]
            except (OSError, ValueError, RuntimeError) as error:
                absent = absent_filters(self._plan)
                if not absent:
                    raise
                needs = f"the HDF5 filter {', '.join(absent)}"
                msg = f"decoding {self._name} needs {needs}, which is not installed."
                do = "pip install hdf5plugin (voxpipe imports it), or set HDF5_PLUGIN_PATH to"
                raise MissingDependency(msg, do=f"{do} the filter.") from error
        return array

    def _dataset_in_memory(self) -> Any:
        """Return a dataset of one chunk that is written as those of the file are."""
        import h5py

        name = uuid.uuid4().hex  # HDF5 opens none twice
        file = h5py.File(name, "w", driver="core", backing_store=False, rdcc_nbytes=0)
        space = h5py.h5s.create_simple(self._chunks)
        return h5py.Dataset(h5py.h5d.create(file.id, b"chunk", self._type, space, self._plan))


def filters_of(plan: Any) -> list[Any]:
    """Return number, flags, values and name of the filters of a dataset, in order of writing."""
    return [plan.get_filter(n) for n in range(plan.get_nfilters())]


def absent_filters(plan: Any) -> list[str]:
    """Return the filters that HDF5 does not have, after ``import hdf5plugin`` offered it more."""
    # Workers do not run the imports of the user's script.
    from h5py import h5z

    absent = [code for code, *_ in filters_of(plan) if not h5z.filter_avail(code)]
    if absent:
        with contextlib.suppress(ImportError):
            importlib.import_module("hdf5plugin")  # registers its filters
        absent = [code for code in absent if not h5z.filter_avail(code)]
    return [f"{_PLUGINS[code]} ({code})" if code in _PLUGINS else str(code) for code in absent]


def _unshuffle(data: Any, values: Sequence[int]) -> Any:
    width = values[0] if values else 1
    whole = len(data) // width * width
    planes = np.frombuffer(data, np.uint8, whole).reshape(width, -1)
    items = np.empty((whole // width, width), np.uint8)
    # Plane by plane: transposing at once made a read of int16 1.4 times as long (measured).
    for at in range(width):
        items[:, at] = planes[at]
    if whole == len(data):
        return items.reshape(-1).data
    return items.tobytes() + bytes(data[whole:])  # the remainder is not shuffled


_CELLS = re.compile(r"/t\d+/s(\d+)/(\d+)/cells")
_NO_VARIABLE = b"This is a netCDF dimension but not"  # the name of a scale without numbers


def bigdataviewer_level(h5py: Any, h5: Any, dataset: Any, dtype: np.dtype[Any]) -> Any:
    """Return the factors (x, y, z) of a level of BigDataViewer; None for any other dataset."""
    parts = _CELLS.fullmatch(dataset.name)
    table = None if parts is None else h5.get(f"s{parts[1]}/resolutions")
    if parts is None or not isinstance(table, h5py.Dataset) or dtype.str[1:] not in ("i2", "u2"):
        return None
    factors = np.asarray(table, np.float64)
    return factors[int(parts[2])] if int(parts[2]) < len(factors) else np.zeros(0)


def coordinate_names(dataset: Any, spatial: Sequence[int | None]) -> list[str]:
    """Return the names of scales with a number for each voxel along an axis of space."""
    return [
        key or scale.name
        for axis in spatial
        if axis is not None and dataset.shape[axis] > 1
        for key, scale in dataset.dims[axis].items()
        if scale.shape == dataset.shape[axis : axis + 1]
        and not bytes(scale.attrs.get("NAME", b"")).startswith(_NO_VARIABLE)
    ]


def itk_place(
    dataset: Any, name: str, axes: Any = None
) -> tuple[str, Callable[[], tuple[float, ...]]] | None:
    """Return the axes of an ITKImage's voxels and a function that reads its affine; else None.

    ``axes`` are those that the user gave, and have to be the same.
    """
    group, at = dataset.parent, dataset.name.rsplit("/", 1)[-1]
    keys = ("Origin", "Spacing", "Directions")
    if at != "VoxelData" or not all(key in group for key in keys) or "Dimension" not in group:
        return None
    count = group["Dimension"].size
    own = "tzyx"[-count:] + "c" * (dataset.ndim - count)
    if axes not in (None, own):
        what = f"axes={axes!r} of {name} differs from the axes of its ITKImage, {own!r}."
        raise BadHeader(what, do="Leave ⟦axes=⟧ out.")

    def affine() -> tuple[float, ...]:
        origin, spacing, rows = (np.asarray(group[key], np.float64) for key in keys)
        if not origin.shape == spacing.shape == rows.shape[:1] == rows.shape[1:] == (count,):
            what = f"{', '.join(keys)} of {group.name} in {name} do not fit {count} axes."
            raise BadHeader(what, do="Pass ⟦affine=⟧ to say where the voxels lie.")
        steps = rows * spacing[:, None]  # a row of directions for each axis
        return affine_entries(world_affine(list(steps[:3, :3]), origin[:3].tolist()), name)

    return own, affine
