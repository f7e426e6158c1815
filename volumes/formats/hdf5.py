"""Datasets of HDF5 files: by chunk, or as raw voxels where they lie in one piece."""

from __future__ import annotations

import atexit
import math
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...core import IO_COUNTERS, Region
from ...core.errors import BadHeader, CorruptVolume, UnknownFormat
from ...storage.content import content_key
from ...storage.ranges import Folder
from ..backend import Backend, Channels
from ..chunks.chunked_array import ChunkedArray
from ..header import IDENTITY, Header, affine_entries
from ..session import opening_session
from ..voxels import Voxels, plain
from .chunked_backend import ChunkedBackend, Layout, chunked_header, plain_layout
from .hdf5_chunks import ChunkFilters, ChunkIndex, Hdf5Chunks, Hdf5File, Run, run_local
from .hdf5_links import (
    Reach,
    beside_its_file,
    datasets_in,
    hdf5_errors,
    refuse_circle,
    refuse_external,
    refuse_links,
)
from .raw import RawHeader, open_raw
from .stored_file import (
    FilesBackend,
    Format,
    LocalStoredFile,
    RemoteStoredFile,
    StoredFile,
    import_package,
    joined_key,
    library_errors,
)

# HDF5 would keep decoded chunks. What is kept is decided by voxpipe.
_KEPT_BYTES = 0
# ilastik and others: micrometres along the last three axes, in stored order.
_SPACING = "element_size_um"
_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for file in list(_OPEN):
        file.close()


def open_hdf5(file: StoredFile, dataset: Any = None) -> Backend:
    """Return the backend of one dataset, which may be left out where there is no other.

    ``UnknownFormat`` if there are several or it holds no numbers, ``BadHeader`` if it makes no
    sense or there is none of this name.
    """
    h5py, errors = import_package("h5py", file.name), partial(hdf5_errors, file.name)
    run, where, find = run_local, getattr(file, "path", None), _found
    if isinstance(file, RemoteStoredFile):
        where, find = Hdf5File(file), _found_behind_url
        run = where.run
    with file.open():
        pass  # says in our words that it cannot be read
    opened = run(lambda: h5py.File(where, "r", rdcc_nbytes=_KEPT_BYTES), errors)
    # HDF5 closes what is open when a process ends, after Python has gone: h5py's driver for file
    # objects (3.16) then crashes. So they are closed before.
    _OPEN.add(opened)
    try:
        found = run(lambda: find(h5py, opened, dataset, file), errors)
        if found.offset is None:
            IO_COUNTERS.count(headers=1)
            kind = DatasetBackend if found.header.chunks is None else Hdf5Backend
            return kind(found, opened, run, file.name)
    except BaseException:
        opened.close()
        raise
    opened.close()
    header = found.header
    fields = RawHeader.of_array(found.layout, header.disk_dtype, found.offset, header.affine)
    return open_raw(fields, found.files, file.name)


class _Found(NamedTuple):
    """The dataset that was asked for."""

    dataset: Any
    header: Header
    layout: Layout
    files: Sequence[StoredFile]
    """All that was followed to get there; its own is the last."""
    offset: int | None
    """Where its numbers lie there in one piece, if they do."""


def _found(h5py: Any, opened: Any, chosen: Any, file: Any) -> _Found:
    """Look at all that leads to a dataset of a local file before HDF5 does."""
    name, path, trusted = file.name, file.path, file.follow == "anywhere"
    reach = Reach(name, None if trusted else Folder(os.path.dirname(os.path.abspath(path))))
    refuse_links(h5py, opened, chosen, reach)
    dataset = beside_its_file(h5py, chosen_dataset(h5py, opened, chosen, name))
    refuse_external(dataset, reach)
    refuse_circle(h5py, dataset, (), name, reach)
    header, layout = dataset_header(dataset, name)
    own = file
    if dataset.file != opened:  # behind an external link
        reach.note(path)
        path = os.path.abspath(dataset.file.filename)
        reach.check(path, dataset.file.filename)
        own = LocalStoredFile(path, name, file.io)
    others = [LocalStoredFile(each, name, optional=True) for each in reach.others(path)]
    return _Found(dataset, header, layout, [*others, own], plain_offset(dataset))


def _found_behind_url(h5py: Any, opened: Any, chosen: Any, file: StoredFile) -> _Found:
    """Return a dataset that lies in the file itself: HDF5 would look for others on this disk."""
    refuse_links(h5py, opened, chosen, _NoReach(file.name))
    dataset = chosen_dataset(h5py, opened, chosen, file.name)
    if dataset.is_virtual or dataset.external or dataset.file != opened:
        raise _in_other_files(file.name)
    header, layout = dataset_header(dataset, file.name)
    return _Found(dataset, header, layout, [file], plain_offset(dataset))


class Hdf5Backend(ChunkedBackend):
    """A dataset in chunks, of which only those needed are read; h5py holds its file open."""

    def __init__(self, found: _Found, opened: Any, run: Run, name: str) -> None:
        self._h5, dataset, file = opened, found.dataset, found.files[-1]
        token = content_key(joined_key([each.cache_key for each in found.files]), (dataset.name,))
        index = ChunkIndex(dataset, file.key, run, name)
        size = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
        array = ChunkedArray(
            tuple(dataset.shape),
            tuple(dataset.chunks),
            np.dtype(dataset.dtype),
            dataset.fillvalue,
            source=Hdf5Chunks(file.store, index, ChunkFilters(dataset, index, name), token, size),
            cache=opening_session().chunks,
            token=token,
        )
        super().__init__(array, found.layout, found.files, found.header, name)


class DatasetBackend(FilesBackend):
    """A dataset that HDF5 reads: neither in chunks nor in one piece, but virtual, external, small.

    One thread reads at a time.
    """

    def __init__(self, found: _Found, opened: Any, run: Run, name: str) -> None:
        self._h5, self._dataset, self._layout = opened, found.dataset, found.layout
        self._run = run
        self._lock = threading.Lock()
        super().__init__(found.files, found.header, name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read the region through h5py."""
        index, (first, last) = self._layout.index(region, channels)
        with self._lock:
            found = self._run(lambda: self._dataset[index.slices], lambda: self._errors(index))
        return Voxels(plain(self._layout.fold(found)[first:last]))

    def _errors(self, index: Region) -> AbstractContextManager[None]:
        where = ", ".join(f"{start}:{stop}" for start, stop in index)
        do = "Copy or write the file again, with all files that it refers to."
        return library_errors(f"[{where}] of {self.name} cannot be read", do, CorruptVolume)


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
    layout, dtype = plain_layout(tuple(dataset.shape or ()), name), np.dtype(dataset.dtype)
    chunks = dataset.chunks or (1,) * len(layout.stored)
    header = chunked_header(layout, chunks, dtype, name, _affine(dataset, name))
    return replace(header, chunks=header.chunks if dataset.chunks else None), layout


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


FORMATS = (Format("hdf5", (".h5", ".hdf5", ".hdf", ".he5"), open_hdf5, ("dataset",), "h5py"),)
