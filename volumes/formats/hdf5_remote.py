"""Datasets of HDF5 files behind a URL: h5py reads the tables, the chunks come in joined ranges."""

from __future__ import annotations

import atexit
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ...core import IO_COUNTERS, Region
from ...core.errors import CorruptVolume, UnknownFormat, VoxpipeError
from ...storage.content import content_key
from ...storage.location import remote_errors
from ...storage.ranges import Span
from ...storage.remote import RemoteFile
from ..backend import Backend, Channels, no_options
from ..chunks.chunk_cache import CHUNKS
from ..chunks.chunked_array import ChunkedArray
from ..header import Header
from ..voxels import Voxels, plain
from .chunked_backend import Layout, OneRemoteFile, RemoteChunks
from .hdf5 import (
    CACHE_BYTES,
    OPTIONS,
    Reach,
    chosen_dataset,
    dataset_header,
    hdf5_errors,
    import_h5py,
    plain_offset,
    refuse_links,
)
from .hdf5_chunks import ChunkFilters, ChunkIndex, Hdf5Chunks, filters_of
from .hdf5_file import Hdf5File
from .hdf5_plugins import absent_filters, missing_filter
from .npy_remote import RemoteArray

T = TypeVar("T")

# HDF5 closes what is open when a process ends, after Python has gone: h5py's driver for file
# objects (3.16) then crashes. So they are closed before.
_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for file in list(_OPEN):
        file.close()


def open_remote_hdf5(
    url: str, storage_options: Mapping[str, Any], name: str, options: Mapping[str, Any]
) -> Backend:
    """Return the backend of one dataset behind a URL.

    Raises
    ------
    UnknownFormat
        The file holds several datasets and none was chosen, or no numbers.
    BadHeader
        It makes no sense, or has no such dataset.
    """
    no_options(options, name, OPTIONS)
    h5py = import_h5py(name)
    with remote_errors(name, storage_options, url=url):
        remote = RemoteFile(url, storage_options, name)
        ranges = Hdf5File(remote)
        errors = partial(hdf5_errors, name)
        file = ranges.run(lambda: h5py.File(ranges, "r", rdcc_nbytes=CACHE_BYTES), errors)
        _OPEN.add(file)

        def facts() -> tuple[Any, Header, Layout, int | None, tuple[int, ...] | None]:
            chosen = options.get("dataset")
            refuse_links(h5py, file, chosen, _NoReach(name))
            dataset = chosen_dataset(h5py, file, chosen, name)
            _refuse_other_files(dataset, file, name)
            header, layout = dataset_header(dataset, (), name)
            filters = filters_of(dataset) if dataset.chunks is not None else None
            if filters is None:
                absent_filters(dataset)  # what is installed is there now
            return dataset, header, layout, plain_offset(dataset), filters

        try:
            dataset, header, layout, offset, filters = ranges.run(facts, errors)
        except BaseException:
            file.close()
            raise
    IO_COUNTERS.count(headers=1)
    header = replace(header, access="range")
    if filters is not None:
        return ChunkedRemoteHdf5(remote, ranges, file, dataset, filters, header, layout)
    if offset is None:
        return RemoteHdf5(remote, ranges, file, dataset, header, layout)
    file.close()
    return RemoteArray(remote, layout.stored, header.disk_dtype, offset, affine=header.affine)


class ChunkedRemoteHdf5(RemoteChunks):
    """A dataset in chunks that were written through usual filters: only those needed are read."""

    def __init__(
        self,
        remote: RemoteFile,
        ranges: Hdf5File,
        file: Any,
        dataset: Any,
        filters: tuple[int, ...],
        header: Header,
        layout: Layout,
    ) -> None:
        self._file, self._ranges, self._h5 = remote, ranges, file
        token = content_key(remote.cache_key, (dataset.name,))
        index = ChunkIndex(
            dataset, lambda call: ranges.run(call, partial(hdf5_errors, remote.name))
        )
        decoder = ChunkFilters(dataset, filters, index)
        size = math.prod(dataset.chunks) * dataset.dtype.itemsize
        array = ChunkedArray(
            tuple(dataset.shape),
            tuple(dataset.chunks),
            header.disk_dtype,
            dataset.fillvalue,
            source=Hdf5Chunks(remote.store, index, decoder, token, size),
            cache=CHUNKS,
            token=token,
        )
        super().__init__(array, layout, header, remote.name)


class RemoteHdf5(OneRemoteFile):
    """A dataset of other filters. One thread reads; the chunks of a region come side by side."""

    # h5py keeps this much of the file decoded.
    resident_bytes = CACHE_BYTES

    def __init__(
        self,
        remote: RemoteFile,
        ranges: Hdf5File,
        file: Any,
        dataset: Any,
        header: Header,
        layout: Layout,
    ) -> None:
        self._file, self._ranges, self._h5 = remote, ranges, file
        self._dataset, self._layout = dataset, layout
        self._lock = threading.Lock()
        super().__init__(header, remote.name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Fetch the chunks that the region touches, and decode them."""
        index, (first, last) = self._layout.index(region, channels or (0, self.shape[0]))
        with self._announced(index):
            found = self._asked(index, lambda: self._dataset[index])
        return Voxels(plain(self._layout.fold(found)[first:last]))

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Fetch the chunks that the region touches, without decoding them."""
        index, _ = self._layout.index(region, channels or (0, self.shape[0]))
        with self._announced(index) as spans:
            return sum(stop - start for start, stop in spans)

    @contextmanager
    def _announced(self, index: tuple[slice, ...]) -> Iterator[list[Span]]:
        with self._lock, self._file.errors():
            spans = self._asked(index, lambda: self._spans(index))
            with self._ranges.announced(spans):
                yield spans

    def _asked(self, index: tuple[slice, ...], call: Callable[[], T]) -> T:
        return self._ranges.run(call, lambda: self._errors(index))

    def _spans(self, index: tuple[slice, ...]) -> list[Span]:
        """Return where the stored chunks of a part lie, in the order of the file."""
        if self._dataset.chunks is None:
            return []  # it lies in a table, or is not stored
        firsts = [
            range(part.start // n * n, part.stop, n)
            for part, n in zip(index, self._dataset.chunks, strict=True)
        ]
        found = map(self._dataset.id.get_chunk_info_by_coord, itertools.product(*firsts))
        # A chunk beyond the end is damage, which h5py tells of.
        return sorted(
            (place.byte_offset, place.byte_offset + place.size)
            for place in found
            if place.byte_offset is not None and place.byte_offset + place.size <= self._file.size
        )

    @contextmanager
    def _errors(self, index: tuple[slice, ...]) -> Iterator[None]:
        try:
            yield
        except (VoxpipeError, MemoryError):
            raise
        except Exception as error:  # OSError, RuntimeError: whatever the filter said
            where = ", ".join(f"{s.start}:{s.stop}" for s in index)
            raise missing_filter(self._dataset, self.name) or CorruptVolume(
                f"[{where}] of {self.name} cannot be decoded: {type(error).__name__}: {error}.",
                do="Upload the file again.",
            ) from error


def _refuse_other_files(dataset: Any, file: Any, name: str) -> None:
    """Refuse what names other files: HDF5 would look for them on the local disk."""
    if dataset.is_virtual or dataset.external or dataset.file != file:
        raise _in_other_files(name)


class _NoReach(Reach):
    """Follows no link: HDF5 would open what it leads to on the local disk."""

    def check(self, path: str, reference: str) -> None:
        raise _in_other_files(self.name)


def _in_other_files(name: str) -> UnknownFormat:
    return UnknownFormat(
        f"the numbers of {name} are in other files.",
        do="Only one file is read by URL: store them in it, or copy all to a local disk.",
    )
