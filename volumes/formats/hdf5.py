"""Datasets of HDF5 files: by chunk, or as raw voxels where they lie in one piece."""

from __future__ import annotations

import atexit
import math
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...core import IO_COUNTERS, Region
from ...core.errors import BadHeader, CorruptVolume, UnknownFormat, VoxpipeError
from ...storage.content import content_key
from ...storage.location import remote_errors
from ...storage.ranges import Folder, LocalRanges, RangeStore
from ..backend import Backend, Channels, no_options
from ..chunks.chunk_cache import CHUNKS
from ..chunks.chunked_array import ChunkedArray
from ..header import IDENTITY, Header, affine_entries
from ..voxels import Voxels, plain, refuse_unreadable
from .chunked_backend import ChunkedBackend, Layout, OneRemoteFile, RemoteChunks, plain_layout
from .hdf5_chunks import ChunkFilters, ChunkIndex, Hdf5Chunks, Hdf5File, Run, run_local
from .hdf5_links import (
    Reach,
    beside_its_file,
    datasets_in,
    hdf5_errors,
    import_h5py,
    refuse_circle,
    refuse_external,
    refuse_links,
)
from .local_file import LocalFile, file_stamp, open_local, stamp_of_all
from .raw import RawHeader, open_raw
from .stored_file import LocalStoredFile, RemoteStoredFile
from .zarr_metadata import MOST_CHUNK_BYTES

OPTIONS = ("dataset",)
# HDF5 would keep decoded chunks. What is kept is decided by voxpipe.
_KEPT_BYTES = 0
# ilastik and others: micrometres along the last three axes, in stored order.
_SPACING = "element_size_um"
# HDF5 closes what is open when a process ends, after Python has gone: h5py's driver for file
# objects (3.16) then crashes. So they are closed before.
_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for file in list(_OPEN):
        file.close()


def open_hdf5(
    path: str, name: str, options: Mapping[str, Any], io: str = "auto", follow: str = "beside"
) -> Backend:
    """Return the backend of one dataset of a local file.

    Raises
    ------
    UnknownFormat
        The file holds several datasets and none was chosen, or no numbers.
    BadHeader
        It makes no sense, or has no such dataset.
    """
    no_options(options, name, OPTIONS)
    stamp = file_stamp(path)
    with open_local(path):
        pass  # says in our words that there is no such file, or that it is a folder
    h5py = import_h5py(name)
    with hdf5_errors(name):
        file = h5py.File(path, "r", rdcc_nbytes=_KEPT_BYTES)
    try:
        with hdf5_errors(name):
            held = None if follow == "anywhere" else Folder(os.path.dirname(os.path.abspath(path)))
            reach = Reach(name, held)
            refuse_links(h5py, file, options.get("dataset"), reach)
            dataset = chosen_dataset(h5py, file, options.get("dataset"), name)
            dataset = beside_its_file(h5py, dataset)
            refuse_external(dataset, reach)
            refuse_circle(h5py, dataset, (), name, reach)
            header, layout = dataset_header(dataset, name)
            if dataset.file != file:  # behind an external link
                reach.note(path)
                path = os.path.abspath(dataset.file.filename)
                reach.check(path, dataset.file.filename)
                stamp = file_stamp(path)
            others = reach.others(path)
            header = replace(header, stamp=(*stamp, *stamp_of_all(path, others)[len(stamp) :]))
            offset = plain_offset(dataset)
            if offset is not None:
                files = [LocalStoredFile(each, name, io) for each in (*others, path)]
                fields = RawHeader.of_array(layout, header.disk_dtype, offset, header.affine)
        if offset is not None:
            file.close()
            return open_raw(fields, files, name)
        IO_COUNTERS.count(headers=1)
        if dataset.chunks is None:
            return LocalDataset(path, others, dataset, header, layout, name)
        return LocalHdf5(path, others, dataset, header, layout, name)
    except BaseException:
        file.close()
        raise


def open_remote_hdf5(
    url: str, storage_options: Mapping[str, Any], name: str, options: Mapping[str, Any]
) -> Backend:
    """Return the backend of one dataset behind a URL.

    Raises
    ------
    UnknownFormat, BadHeader
        As for a local file; or its numbers are in other files.
    """
    no_options(options, name, OPTIONS)
    h5py = import_h5py(name)
    with remote_errors(name, storage_options, url=url):
        remote = RemoteStoredFile(url, storage_options, name)
        ranges, errors = Hdf5File(remote), partial(hdf5_errors, name)
        file = ranges.run(lambda: h5py.File(ranges, "r", rdcc_nbytes=_KEPT_BYTES), errors)
        _OPEN.add(file)

        def found() -> tuple[Any, Header, Layout, int | None]:
            chosen = options.get("dataset")
            refuse_links(h5py, file, chosen, _NoReach(name))
            dataset = chosen_dataset(h5py, file, chosen, name)
            # HDF5 would look for them on the local disk.
            if dataset.is_virtual or dataset.external or dataset.file != file:
                raise _in_other_files(name)
            return (dataset, *dataset_header(dataset, name), plain_offset(dataset))

        try:
            dataset, header, layout, offset = ranges.run(found, errors)
            if offset is not None:
                file.close()
                fields = RawHeader.of_array(layout, header.disk_dtype, offset, header.affine)
                return open_raw(fields, [remote], name)
            IO_COUNTERS.count(headers=1)
            kind = RemoteDataset if dataset.chunks is None else RemoteHdf5
            return kind(remote, ranges, file, dataset, header, layout)
        except BaseException:
            file.close()
            raise


def chunked_array(
    dataset: Any, store: RangeStore, key: str, run: Run, token: str, name: str
) -> ChunkedArray:
    """Return the array of a dataset in chunks, whose file a store calls ``key``."""
    index = ChunkIndex(dataset, key, run, name)
    size = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
    return ChunkedArray(
        tuple(dataset.shape),
        tuple(dataset.chunks),
        np.dtype(dataset.dtype),
        dataset.fillvalue,
        source=Hdf5Chunks(store, index, ChunkFilters(dataset, index, name), token, size),
        cache=CHUNKS,
        token=token,
    )


class LocalHdf5(LocalFile, ChunkedBackend):
    """A dataset in chunks of a local file, which h5py holds open in this process."""

    def __init__(
        self,
        path: str,
        others: tuple[str, ...],
        dataset: Any,
        header: Header,
        layout: Layout,
        name: str,
    ) -> None:
        self.path, self.others = path, others
        token = content_key(path, (*header.stamp, dataset.name))
        store, key = LocalRanges(os.path.dirname(path)), os.path.basename(path)
        array = chunked_array(dataset, store, key, run_local, token, name)
        super().__init__(array, layout, header, name)


class RemoteHdf5(RemoteChunks):
    """A dataset in chunks of a file behind a URL: only those needed are read."""

    def __init__(
        self,
        remote: RemoteStoredFile,
        ranges: Hdf5File,
        file: Any,
        dataset: Any,
        header: Header,
        layout: Layout,
    ) -> None:
        self._file, self._h5 = remote, file
        token = content_key(remote.cache_key, (dataset.name,))
        array = chunked_array(dataset, remote.store, "", ranges.run, token, remote.name)
        super().__init__(array, layout, replace(header, access="range"), remote.name)


class DatasetBackend(Backend):
    """A dataset that HDF5 reads: neither in chunks nor in one piece, but virtual, external, small.

    One thread reads at a time.
    """

    def __init__(self, dataset: Any, run: Run, header: Header, layout: Layout, name: str) -> None:
        self._dataset, self._run, self._layout = dataset, run, layout
        self._lock = threading.Lock()
        super().__init__(replace(header, access="range"), name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read the region through h5py."""
        index, (first, last) = self._layout.index(region, channels or (0, self.shape[0]))
        with self._lock:
            found = self._run(lambda: self._dataset[index], partial(self._errors, index))
        return Voxels(plain(self._layout.fold(found)[first:last]))

    @contextmanager
    def _errors(self, index: tuple[slice, ...]) -> Iterator[None]:
        try:
            yield
        except (VoxpipeError, MemoryError):
            raise
        except Exception as error:  # OSError, RuntimeError: whatever lies behind it said
            where = ", ".join(f"{s.start}:{s.stop}" for s in index)
            raise CorruptVolume(
                f"[{where}] of {self.name} cannot be read: {type(error).__name__}: {error}.",
                do="Copy or write the file again, with all files that it refers to.",
            ) from error


class LocalDataset(LocalFile, DatasetBackend):
    """One of a local file."""

    def __init__(
        self,
        path: str,
        others: tuple[str, ...],
        dataset: Any,
        header: Header,
        layout: Layout,
        name: str,
    ) -> None:
        self.path, self.others = path, others
        super().__init__(dataset, run_local, header, layout, name)


class RemoteDataset(OneRemoteFile, DatasetBackend):
    """One of a file behind a URL."""

    def __init__(
        self,
        remote: RemoteStoredFile,
        ranges: Hdf5File,
        file: Any,
        dataset: Any,
        header: Header,
        layout: Layout,
    ) -> None:
        self._file, self._h5 = remote, file
        super().__init__(dataset, ranges.run, header, layout, remote.name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read the region through h5py; errors name the URL."""
        with self._file.errors():
            return super().read(region, channels)


class _NoReach(Reach):
    """Follows no link: HDF5 would open what it leads to on the local disk."""

    def check(self, path: str, reference: str) -> None:
        raise _in_other_files(self.name)


def _in_other_files(name: str) -> UnknownFormat:
    return UnknownFormat(
        f"the numbers of {name} are in other files.",
        do="Only one file is read by URL: store them in it, or copy all to a local disk.",
    )


def chosen_dataset(h5py: Any, file: Any, chosen: Any, name: str) -> Any:
    """Return the dataset that was chosen, or the only one of two to four axes."""
    if chosen is not None:
        if not isinstance(chosen, str) or chosen not in file:
            raise BadHeader(
                f"{name} has no dataset {chosen!r}, but {_listed(datasets_in(h5py, file))}.",
                do="Give dataset=.",
            )
        if not isinstance(file[chosen], h5py.Dataset):
            raise BadHeader(f"{chosen} in {name} is a group.", do="Give the path of a dataset.")
        return file[chosen]
    found = datasets_in(h5py, file)
    fitting = [path for path in found if 2 <= file[path].ndim <= 4]
    if len(fitting) == 1:
        return file[fitting[0]]
    raise UnknownFormat(
        f"{name} holds {len(fitting)} datasets of two to four axes; all: {_listed(found)}.",
        do="Give dataset=.",
    )


def _listed(paths: list[str]) -> str:
    return ", ".join(paths[:20]) + (", ..." if len(paths) > 20 else "") or "none"


def plain_offset(dataset: Any) -> int | None:
    """Return where the numbers lie in this file as they are, in one piece; None if they do not.

    HDF5's own types have other bits.
    """
    stored = dataset.id.get_type()
    is_plain = (
        dataset.chunks is None
        and not dataset.external
        and not dataset.is_virtual
        and stored.get_size() == dataset.dtype.itemsize
        and dataset.dtype.kind in "iuf"
    )
    return dataset.id.get_offset() if is_plain else None


def dataset_header(dataset: Any, name: str) -> tuple[Header, Layout]:
    """Return the header of a dataset, and how its axes become (C, I, J, K)."""
    dtype = np.dtype(dataset.dtype)
    refuse_unreadable(dtype, name)
    if dataset.shape is None or min(dataset.shape, default=0) < 1:
        raise BadHeader(f"{name} holds no voxels: shape {dataset.shape}.", do="Check the file.")
    layout = plain_layout(tuple(dataset.shape), name)
    chunks = None
    if dataset.chunks is not None:
        chunks = layout.spatial_part(dataset.chunks)
        if math.prod(dataset.chunks) * dtype.itemsize > MOST_CHUNK_BYTES:
            raise BadHeader(
                f"one chunk of {name}, {dataset.chunks} {dtype}, takes more than "
                f"{MOST_CHUNK_BYTES} bytes.",
                do="Store it in smaller chunks.",
            )
    return Header(layout.shape, _affine(dataset, name), dtype, chunks, "range"), layout


def _affine(dataset: Any, name: str) -> tuple[float, ...]:
    said = dataset.attrs.get(_SPACING)
    if said is None:
        return IDENTITY
    spacing = np.asarray(said, np.float64).ravel()
    if spacing.shape != (3,) or not np.isfinite(spacing).all() or spacing.min() <= 0:
        raise BadHeader(
            f"{_SPACING} of {name} is {np.asarray(said).tolist()}, not three lengths.",
            do="Pass affine= to say where the voxels lie.",
        )
    return affine_entries(np.diag([*(spacing * 1e-3), 1.0]), name)
