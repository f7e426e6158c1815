"""Datasets of HDF5 files: by chunk through h5py, or mapped where they lie in one piece."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, Region
from ...core.call_site import shorten
from ...core.errors import (
    BadHeader,
    CorruptVolume,
    LeadsOutside,
    MissingDependency,
    TruncatedVolume,
    UnknownFormat,
    VoxpipeError,
)
from ...storage.content import content_key
from ...storage.ranges import Folder, open_regular
from ..backend import Backend, Channels, no_options
from ..chunks.chunk_cache import CHUNKS
from ..chunks.chunked_array import ChunkedArray, Index
from ..header import IDENTITY, Access, Header, affine_entries
from ..voxels import Voxels, plain, refuse_unreadable
from .chunked_backend import ChunkedBackend, Layout, plain_layout
from .hdf5_filters import DeflatedChunks
from .hdf5_plugins import absent_filters, missing_filter
from .local_file import MAPS, LocalFile, MappedBackend, file_stamp, open_local, stamp_of_all
from .raw import ArrayFile, io_of
from .zarr_metadata import MOST_CHUNK_BYTES

OPTIONS = ("dataset",)
# HDF5 would keep decoded chunks. Of local files, what is kept is decided by voxpipe.
KEPT_BYTES = 0
# What it keeps of files behind a URL: what a patch of 96^3 touches of chunks of 64^3 int16.
CACHE_BYTES = 16 * 1024**2
# ilastik and others: micrometres along the last three axes, in stored order.
_SPACING = "element_size_um"
# A dataset of datasets of datasets is rare already; each level takes some of HDF5's stack.
_MOST_VIRTUAL = 16
# HDF5 itself follows no more on the way to one object (H5L_NUM_LINKS).
_MOST_LINKS = 16


def open_hdf5(
    path: str, name: str, options: Mapping[str, Any], io: str = "auto", follow: str = "beside"
) -> Backend:
    """Return the backend of one dataset: bare where it lies in one piece, else through h5py.

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
        file = h5py.File(path, "r", rdcc_nbytes=KEPT_BYTES)
    try:
        with hdf5_errors(name):
            held = None if follow == "anywhere" else Folder(os.path.dirname(os.path.abspath(path)))
            reach = Reach(name, held)
            refuse_links(h5py, file, options.get("dataset"), reach)
            dataset = chosen_dataset(h5py, file, options.get("dataset"), name)
            dataset = _beside(h5py, dataset)
            _refuse_external(dataset, reach)
            _refuse_circle(h5py, dataset, (), name, reach)
            header, layout = dataset_header(dataset, stamp, name)
            if dataset.file != file:  # behind an external link
                reach.note(path)
                path = os.path.abspath(dataset.file.filename)
                reach.check(path, dataset.file.filename)
                stamp = file_stamp(path)
            others = reach.others(path)
            header = replace(header, stamp=(*stamp, *stamp_of_all(path, others)[len(stamp) :]))
            IO_COUNTERS.count(headers=1)
            offset = plain_offset(dataset)
    except BaseException:
        file.close()
        raise
    backend: LocalFile
    if dataset.chunks is not None:
        backend = Hdf5Backend(path, _Chunks(file, dataset, stamp[0], name), header, layout)
    elif offset is None:
        backend = WholeHdf5(path, file, dataset, header, layout, name)
    else:
        try:
            backend = _bare(path, offset, header, layout, name, io)
        finally:
            file.close()
    backend.others = others
    return backend


class Hdf5Backend(LocalFile, ChunkedBackend):
    """A dataset in chunks. h5py holds the file open in this process, and one thread reads."""

    def __init__(self, path: str, source: _Chunks, header: Header, layout: Layout) -> None:
        self.path = path
        dataset = source.dataset
        array = ChunkedArray(
            tuple(dataset.shape),
            tuple(dataset.chunks),
            header.disk_dtype,
            0,
            source=source,
            cache=CHUNKS,
            token=content_key(path, (*header.stamp, dataset.name)),
        )
        super().__init__(array, layout, header, source.name)


class _Chunks:
    """The chunks of one dataset, each read alone, through whatever filters it was written.

    What was deflated is decoded here, within bounds and beside other threads; the rest by HDF5.
    """

    strided = False

    def __init__(self, file: Any, dataset: Any, size: int, name: str) -> None:
        self.dataset, self.name = dataset, name
        self._file = file
        self._deflated = DeflatedChunks(dataset, size, name)
        absent_filters(dataset)  # what is installed is there now; what is not may not be needed
        # HDF5 has a lock of its own, in whose queue a reader would keep Python's.
        self._lock = threading.Lock()

    def bring(self, chunks: Sequence[Index]) -> _Chunks:
        """HDF5 fetches and decodes in one."""
        return self

    def decode(self, index: Index, out: NDArray[Any]) -> bool:
        """Read one chunk, as far as it lies in the dataset."""
        spans = zip(index, self.dataset.chunks, self.dataset.shape, strict=True)
        stored = tuple(slice(i * c, min((i + 1) * c, n)) for i, c, n in spans)
        inside = tuple(slice(0, s.stop - s.start) for s in stored)
        if self._deflated.is_needed:
            with self._lock:
                brought = self._deflated.bring(index)
            whole = None if brought is None else self._deflated.decode(*brought)
            if whole is not None:
                out[inside] = whole[inside]
                return True
        with self._lock:
            try:
                self.dataset.read_direct(out, stored, inside)
            except OSError as error:
                raise missing_filter(self.dataset, self.name) or error from None
        return True

    def place(self, index: Index) -> str:
        """Return the file."""
        return self.name

    def prefetch(self, chunks: Sequence[Index], size: int) -> None:
        """HDF5 reads when it is asked for voxels."""

    def fetch(self, chunks: Sequence[Index]) -> None:
        """HDF5 brings no bytes in without decoding them."""


class WholeHdf5(LocalFile):
    """A dataset that is neither in chunks nor in one piece: virtual, external, or packed bits."""

    def __init__(
        self, path: str, file: Any, dataset: Any, header: Header, layout: Layout, name: str
    ) -> None:
        self.path = path
        self._file, self._dataset, self._layout = file, dataset, layout
        self._lock = threading.Lock()
        super().__init__(header, name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read the region through h5py."""
        index, (first, last) = self._layout.index(region, channels or (0, self.shape[0]))
        try:
            with self._lock:
                found = self._dataset[index]
        except Exception as error:  # OSError, RuntimeError: whatever lies behind it said
            if isinstance(error, MemoryError):
                raise
            where = ", ".join(f"{s.start}:{s.stop}" for s in index)
            raise CorruptVolume(
                f"[{where}] of {self.name} cannot be read: {type(error).__name__}: {error}.",
                do="Copy or write the file again, with all files that it refers to.",
            ) from error
        return Voxels(plain(self._layout.fold(found)[first:last]))


class MappedHdf5(LocalFile, MappedBackend):
    """A dataset that lies in its file as one uncompressed array."""

    def __init__(self, path: str, view: NDArray[Any], header: Header, name: str) -> None:
        self.path = path
        super().__init__(view, header, name)


def _bare(path: str, offset: int, header: Header, layout: Layout, name: str, io: str) -> LocalFile:
    shape, dtype = layout.stored, header.disk_dtype
    expected, actual = offset + math.prod(shape) * dtype.itemsize, header.stamp[0]
    if actual < expected:
        raise TruncatedVolume(
            f"{name} holds {actual} bytes, and its dataset ends at {expected}.",
            do="Copy or download the file again.",
        )
    with open_local(path) as file:
        choice = io_of(file, io)
        if choice.mode != "mmap":
            header = replace(header, access="range")
            return ArrayFile(file, choice, path, offset, layout, header, name)
        array: NDArray[Any] = np.ndarray(shape, dtype, MAPS.add(file), offset)
    return MappedHdf5(path, layout.fold(array), header, name)


def chosen_dataset(h5py: Any, file: Any, chosen: Any, name: str) -> Any:
    """Return the dataset that was chosen, or the only one of two to four axes."""
    if chosen is not None:
        if not isinstance(chosen, str) or chosen not in file:
            raise BadHeader(
                f"{name} has no dataset {chosen!r}, but {_listed(_datasets(h5py, file))}.",
                do="Give dataset=.",
            )
        if not isinstance(file[chosen], h5py.Dataset):
            raise BadHeader(f"{chosen} in {name} is a group.", do="Give the path of a dataset.")
        return file[chosen]
    found = _datasets(h5py, file)
    fitting = [path for path in found if 2 <= file[path].ndim <= 4]
    if len(fitting) == 1:
        return file[fitting[0]]
    raise UnknownFormat(
        f"{name} holds {len(fitting)} datasets of two to four axes; all: {_listed(found)}.",
        do="Give dataset=.",
    )


@dataclass(frozen=True)
class Reach:
    """How far the links of a file are followed."""

    name: str
    """What errors call the file."""
    folder: Folder | None = None
    """Which files they may lead to; None for all that are regular."""
    reached: dict[str, None] = field(default_factory=dict)
    """What they lead to, and what has led there."""

    def note(self, path: str) -> None:
        """Remember a file: where it changes, so may what is read."""
        self.reached[os.path.abspath(path)] = None

    def others(self, path: str) -> tuple[str, ...]:
        """Return all files but one."""
        return tuple(other for other in self.reached if other != os.path.abspath(path))

    def check(self, path: str, reference: str) -> None:
        """Raise ``LeadsOutside`` for what is not in the folder, ``BadHeader`` for a pipe there."""
        self.note(path)
        if self.folder is not None:
            self.folder.check(path, f"{self.name}, which names {shorten(reference)},")
        try:
            os.close(open_regular(path))
        except BadHeader as error:
            error.what = f"{error.what.rstrip('.')}, and {self.name} names it."
            raise
        except OSError:
            pass  # what is not there leads nowhere


def refuse_links(h5py: Any, file: Any, chosen: Any, reach: Reach, depth: int = 0) -> None:
    """Look at all links on the way to a dataset, before HDF5 opens what they lead to.

    Raises
    ------
    LeadsOutside, BadHeader
        One of them leads out of the folder, or to no regular file; or they are too many.
    """
    if not isinstance(chosen, str):
        return
    if depth > _MOST_LINKS:
        raise BadHeader(
            f"more than {_MOST_LINKS} links lead to {shorten(chosen)} in {reach.name}.",
            do="Link to the dataset itself.",
        )
    parts = [part for part in chosen.split("/") if part not in ("", ".")]
    for n in range(len(parts)):
        place = "/".join(parts[: n + 1])
        try:
            link = file.get(place, getlink=True)
        except (KeyError, ValueError, RuntimeError):  # h5py says so when it is opened
            return
        if isinstance(link, h5py.ExternalLink):
            path = _found(_places(file.filename, link.filename, "HDF5_EXT_PREFIX"))
            reach.check(path, link.filename)
            if os.path.isfile(path) and h5py.is_hdf5(path):
                onward = "/".join([link.path, *parts[n + 1 :]])
                with h5py.File(path, "r") as opened:
                    refuse_links(h5py, opened, onward, reach, depth + 1)
            return
        if isinstance(link, h5py.SoftLink):
            above = "" if link.path.startswith("/") else "/".join(parts[:n])
            onward = "/".join([above, link.path, *parts[n + 1 :]])
            refuse_links(h5py, file, onward, reach, depth + 1)
            return


def refuse_leading_on(path: str, name: str, follow: str) -> None:
    """Look at all of a file that another library reads, which would follow it anywhere.

    Raises
    ------
    LeadsOutside
        It holds an external link, or data that lie in other files.
    BadHeader
        A virtual dataset leads back to itself, a link to no regular file; or it is damaged.
    MissingDependency
        h5py is not installed.
    """
    h5py = import_h5py(name)
    trusted = follow == "anywhere"
    reach = Reach(name, None if trusted else Folder(os.path.dirname(os.path.abspath(path))))
    waiting, seen = [path], set[str]()
    with hdf5_errors(name):
        while waiting:
            place = waiting.pop()
            if os.path.realpath(place) in seen or not h5py.is_hdf5(place):
                continue
            seen.add(os.path.realpath(place))
            with h5py.File(place, "r") as file:
                for reference, other in _leading_on(h5py, file, reach):
                    if not trusted:
                        raise LeadsOutside(
                            f"{name} leads to other files: to {other}, as {shorten(reference)}.",
                            do='If you trust who made it: open_volume(follow="anywhere"), or '
                            "Volume(...) likewise.",
                        )
                    reach.check(other, reference)
                    waiting.append(other)


def _leading_on(h5py: Any, file: Any, reach: Reach) -> Iterator[tuple[str, str]]:
    """Yield all names of other files in a file, and where HDF5 finds these."""
    links: dict[str, int] = {}
    file.id.links.visit(lambda at, link: links.setdefault(os.fsdecode(at), link.type), info=True)
    for place, kind in links.items():
        if kind == h5py.h5l.TYPE_EXTERNAL:
            named = file.get(place, getlink=True).filename
            yield named, _found(_places(file.filename, named, "HDF5_EXT_PREFIX"))
        elif kind == h5py.h5l.TYPE_HARD and isinstance(file[place], h5py.Dataset):
            dataset = file[place]
            for named in _external(dataset):
                yield named, os.path.abspath(named)
            if dataset.is_virtual:
                _refuse_circle(h5py, dataset, (), reach.name, reach)
                for named in {source.file_name for source in dataset.virtual_sources()} - {"."}:
                    yield named, _found(_places(file.filename, named, "HDF5_VDS_PREFIX"))


def _places(file: str, reference: str, variable: str) -> list[str]:
    """Return where HDF5 looks for a file that another one names, in its order.

    Where the name says, if it is absolute, and else in the folders of the variable, beside the
    file, where the process is, and beside what the file is a link to.
    """
    absolute = [reference] if os.path.isabs(reference) else []
    name = os.path.basename(reference) if absolute else reference
    beside = os.path.dirname(os.path.abspath(file))
    chosen = [
        folder.replace("${ORIGIN}", beside)
        for folder in os.environ.get(variable, "").split(os.pathsep)
        if folder
    ]
    folders = [*chosen, beside, os.getcwd(), os.path.dirname(os.path.realpath(file))]
    return [*absolute, *(os.path.join(folder, name) for folder in folders)]


def _found(places: Sequence[str]) -> str:
    """Return the first place where there is a file, or the first of all."""
    return next(filter(os.path.exists, places), places[0])


def _external(dataset: Any) -> list[str]:
    return [os.fsdecode(reference) for reference, *_ in dataset.external or ()]


def _beside(h5py: Any, dataset: Any) -> Any:
    """Return a dataset whose numbers lie in other files, of names beside its own file.

    HDF5 looks for them where the process is when it reads. What a variable says goes first.
    """
    names = _external(dataset)
    if not names or dataset.id.get_access_plist().get_efile_prefix():
        return dataset
    file, path = dataset.file, dataset.name.encode()
    beside = os.path.dirname(os.path.abspath(file.filename))
    if not any(os.path.exists(os.path.join(beside, name)) for name in names):
        beside = os.getcwd()  # what is looked at is what is read, wherever the process goes
    wanted = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    wanted.set_efile_prefix(os.fsencode(beside))
    h5py.h5i.dec_ref(dataset.id)  # HDF5 opens it only once, in one way
    return h5py.Dataset(h5py.h5d.open(file.id, path, wanted))


def _refuse_external(dataset: Any, reach: Reach) -> None:
    """Look at the files that hold the numbers of a dataset, where HDF5 looks for them."""
    for name in _external(dataset):
        prefix = os.fsdecode(dataset.id.get_access_plist().get_efile_prefix())
        reach.check(os.path.join(os.getcwd(), prefix, name), name)


def _refuse_circle(
    h5py: Any, dataset: Any, above: tuple[tuple[str, int], ...], name: str, reach: Reach
) -> None:
    """Refuse a virtual dataset that leads back to itself: HDF5 follows it until the stack ends."""
    if not dataset.is_virtual:
        return
    file = dataset.file.filename
    # By its place in the file: it may have many names.
    here = (os.path.realpath(file), h5py.h5o.get_info(dataset.id).addr)
    if here in above or len(above) >= _MOST_VIRTUAL:
        raise BadHeader(
            f"the virtual dataset {dataset.name} of {name} leads back to itself.",
            do="Write it again, of datasets that hold numbers.",
        )
    for source in {(source.file_name, source.dset_name) for source in dataset.virtual_sources()}:
        for place, path in _matching(h5py, file, *source, reach):
            with h5py.File(place, "r") as opened:
                refuse_links(h5py, opened, path, reach)
                found = opened.get(path)
                if isinstance(found, h5py.Dataset):
                    if found.file != opened:
                        reach.check(found.file.filename, found.file.filename)
                    _refuse_external(found, reach)
                    _refuse_circle(h5py, found, (*above, here), name, reach)


def _matching(
    h5py: Any, file: str, file_name: str, path: str, reach: Reach
) -> Iterator[tuple[str, str]]:
    """Yield file and dataset of the sources that a name stands for; ``%b`` is a number in it."""
    names = [file]
    if file_name != ".":
        places = _places(file, file_name, "HDF5_VDS_PREFIX")
        wanted = _printf(os.path.basename(file_name))
        first: dict[str, str] = {}
        for folder in map(os.path.dirname, places):
            listed = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
            for each in filter(wanted.fullmatch, listed):
                first.setdefault(each, os.path.join(folder, each))
        names = list(first.values())
        for each in names or places[:1]:
            reach.check(each, file_name)
    for each in names:
        if not h5py.is_hdf5(each):
            continue
        if "%" not in path:
            yield each, path
            continue
        with h5py.File(each, "r") as opened:
            found = [f"/{inner}" for inner in _datasets(h5py, opened)]
        yield from ((each, inner) for inner in found if _printf(path).fullmatch(inner))


def _printf(pattern: str) -> re.Pattern[str]:
    """Return what matches the names that HDF5 makes of a pattern, as of ``printf``."""
    parts = re.split(r"(%%|%\d*b)", pattern)
    return re.compile(
        "".join("%" if p == "%%" else r"\d+" if p[:1] == "%" else re.escape(p) for p in parts)
    )


def _datasets(h5py: Any, file: Any) -> list[str]:
    found: list[str] = []
    file.visititems(lambda path, node: found.append(path) if _is(node, h5py.Dataset) else None)
    return found


def _is(node: Any, kind: Any) -> bool:
    return isinstance(node, kind)


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


def dataset_header(dataset: Any, stamp: tuple[int, ...], name: str) -> tuple[Header, Layout]:
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
    access: Access = "view" if plain_offset(dataset) is not None else "range"
    affine = _affine(dataset, name)
    return Header(layout.shape, affine, dtype, chunks, access, stamp=stamp), layout


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


def import_h5py(name: str) -> Any:
    """Return the module h5py; ``MissingDependency`` where it is not installed."""
    try:
        import h5py
    except ImportError:
        raise MissingDependency(
            f"reading {name} needs h5py, which is not installed.",
            do="pip install 'voxpipe[formats]'",
        ) from None
    return h5py


@contextmanager
def hdf5_errors(name: str) -> Iterator[None]:
    """Turn what h5py raises on a file that is damaged into errors that name it."""
    try:
        yield
    except (VoxpipeError, MemoryError):
        raise
    except Exception as error:  # OSError, KeyError, RuntimeError: whatever the bytes lead to
        raise BadHeader(
            f"{name} is no sound HDF5 file: {type(error).__name__}: {error}.",
            do="Copy or write it again.",
        ) from error
