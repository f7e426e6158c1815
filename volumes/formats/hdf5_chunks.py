"""Chunks of HDF5 datasets behind a URL: HDF5 says where they lie, all else is voxpipe's.

The filters that nearly every file uses are undone here: deflate (gzip) and shuffle. A dataset that
was written through another one is read by HDF5 itself (:mod:`.hdf5_remote`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...storage.decompress import inflated
from ...storage.ranges import ReadRange
from ...storage.read_ahead import Ticket
from ..chunks.chunked_array import Index, Lookup
from ..chunks.ranged_chunks import RangedChunks

# HDF5's numbers of filters, H5Zpublic.h.
_DEFLATE, _SHUFFLE = 1, 2


class _Stored(NamedTuple):
    """Where a chunk lies, and which filters were left out for it."""

    place: ReadRange | None
    skipped: int
    """One bit per filter, in the order of writing."""


def filters_of(dataset: Any) -> tuple[int, ...] | None:
    """Return the filters of a dataset in the order of writing; None where h5py has to read it.

    HDF5's own types may have other bits than numpy's.
    """
    stored, plan = dataset.id.get_type(), dataset.id.get_create_plist()
    found = tuple(plan.get_filter(n)[0] for n in range(plan.get_nfilters()))
    plain = stored.get_size() == dataset.dtype.itemsize and dataset.dtype.kind in "iuf"
    return found if plain and set(found) <= {_DEFLATE, _SHUFFLE} else None


class ChunkIndex:
    """Where the chunks of a dataset lie, asked of HDF5 once each.

    Parameters
    ----------
    dataset
        Of h5py, in chunks.
    asked
        Calls a function that has HDF5 read the tables of the file, as often as it takes.
    """

    def __init__(self, dataset: Any, asked: Callable[[Callable[[], None]], None]) -> None:
        self._dataset, self._asked = dataset, asked
        self._lock = threading.Lock()
        self._known: dict[Index, _Stored] = {}

    def locate(self, chunks: Sequence[Index]) -> list[ReadRange | None]:
        """Return where each chunk lies; None for one that is not stored."""
        if any(index not in self._known for index in chunks):
            with self._lock:
                self._asked(lambda: self._ask(chunks))
        return [self._known[index].place for index in chunks]

    def lookup(self, chunks: Sequence[Index]) -> Lookup:
        """Return the same, for chunks that were located before: HDF5 waits for what it reads."""
        return Lookup([], lambda answers: [self._known[index].place for index in chunks])

    def skipped(self, index: Index) -> int:
        """Return which filters were left out for a chunk that was located."""
        return self._known[index].skipped

    def _ask(self, chunks: Sequence[Index]) -> None:
        for index in chunks:
            if index not in self._known:
                self._known[index] = self._stored(index)

    def _stored(self, index: Index) -> _Stored:
        first = tuple(n * c for n, c in zip(index, self._dataset.chunks, strict=True))
        found = self._dataset.id.get_chunk_info_by_coord(first)
        if found.byte_offset is None:
            return _Stored(None, 0)
        start = found.byte_offset
        return _Stored(ReadRange("", start, start + found.size), found.filter_mask)


class ChunkFilters:
    """Makes numbers of the bytes of a chunk."""

    strided = True

    def __init__(self, dataset: Any, filters: tuple[int, ...], index: ChunkIndex) -> None:
        self._shape, self._dtype = tuple(dataset.chunks), dataset.dtype
        self._filters, self._index = filters, index

    def decode(self, data: memoryview, out: NDArray[Any], index: Index) -> None:
        """Undo the filters, the last one first."""
        size, skipped = self._dtype.itemsize, self._index.skipped(index)
        most = int(np.prod(self._shape)) * size
        held: Any = data
        for number in reversed(range(len(self._filters))):
            if skipped >> number & 1:
                continue
            if self._filters[number] == _DEFLATE:
                held = inflated(held, most)
            elif size > 1:
                held = np.frombuffer(held, np.uint8).reshape(size, -1).T.tobytes()
        if len(held) != most:
            raise EOFError(f"it has {len(held)} bytes instead of {most}")
        out[...] = np.frombuffer(held, self._dtype).reshape(self._shape)


class Hdf5Chunks(RangedChunks):
    """Chunks that are ranges of one file, whose places must be asked for before they are read."""

    def prefetch(self, chunks: Sequence[Index], size: int) -> Ticket | None:
        """Begin to fetch; where chunks lie is asked here, not in the loop that brings them."""
        self._map.locate(chunks)
        return super().prefetch(chunks, size)
