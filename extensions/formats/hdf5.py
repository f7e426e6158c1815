"""Datasets of HDF5 files: by chunk, or as raw voxels if they are contiguous.

HDF5 follows any link, to other files and in circles, so links are checked first.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...core import IO_COUNTERS, Region
from ...core.call_site import shorten
from ...core.errors import (
    BadHeader,
    CorruptVolume,
    LeadsOutside,
    UnknownFormat,
    VolumeNotFound,
    VolumeReadError,
)
from ...core.suggest import few_names
from ...storage.content import content_key
from ...storage.file_reader import Folder, open_regular
from ...volumes.backend import Backend, Channels
from ...volumes.chunks.chunked_array import ChunkedArray
from ...volumes.formats.chunked_backend import (
    ChunkedBackend,
    Layout,
    axes_of_names,
    chunked_header,
    millimetres_in,
    named_layout,
    plain_layout,
    refuse_conventions,
    refuse_other_axes,
    refuse_other_names,
    warn_of_coordinates,
    warn_of_empty,
)
from ...volumes.formats.raw import RawHeader, open_raw
from ...volumes.formats.stored_file import (
    FilesBackend,
    Format,
    LocalStoredFile,
    RemoteStoredFile,
    StoredFile,
    check_size,
    import_package,
    joined_key,
    library_errors,
)
from ...volumes.header import IDENTITY, Header, affine_entries, stored_affine
from ...volumes.session import opening_session
from ...volumes.voxels import Voxels, plain
from .hdf5_chunks import (
    ChunkFilters,
    ChunkIndex,
    Hdf5Chunks,
    Hdf5File,
    Run,
    bigdataviewer_level,
    coordinate_names,
    itk_place,
    run_local,
)

# A dataset of datasets of datasets is rare already; each level takes some of HDF5's stack.
_MOST_VIRTUAL = 16
# In names of the sources of a virtual dataset: a percent sign, and a number that is counted up.
_PATTERN = re.compile(r"(%%|%\d*b)")
_MOST_NAMES = 20  # of datasets that an error names
# HDF5 itself follows no more on the way to one object (H5L_NUM_LINKS).
_MOST_LINKS = 16


@dataclass(frozen=True)
class Reach:
    """How far the links of a file are followed."""

    name: str
    folder: Folder | None = None  # the files that they may lead to; None for all regular ones
    paths: dict[str, None] = field(default_factory=dict)  # all files on the way
    is_remote: bool = False  # whether none is followed: HDF5 would open it on the local disk

    def note(self, path: str) -> None:
        """Remember a file: its change may change the voxels."""
        self.paths[os.path.abspath(path)] = None

    def others(self, path: str) -> tuple[str, ...]:
        """Return all files but one."""
        return tuple(other for other in self.paths if other != os.path.abspath(path))

    def check(self, path: str, reference: str) -> None:
        """Raise ``LeadsOutside`` for a file outside the folder, ``BadHeader`` for a pipe in it."""
        if self.is_remote:
            raise _in_other_files(self.name)
        self.note(path)
        if self.folder is not None:
            self.folder.check(path, f"{self.name}, which names {shorten(reference)},")
        try:
            os.close(open_regular(path))
        except BadHeader as error:
            error.message = f"{error.message.rstrip('.')}, and {self.name} names it."
            raise
        except OSError:
            pass  # a missing file has no links


def refuse_links(h5py: Any, file: Any, key: Any, reach: Reach, depth: int = 0) -> None:
    """Check all links on the way to a dataset, before HDF5 opens their targets."""
    if not isinstance(key, str):
        return
    if depth > _MOST_LINKS:
        msg = f"more than {_MOST_LINKS} links lead to {shorten(key)} in {reach.name}."
        raise BadHeader(msg, do="Link to the dataset itself.")
    parts = [part for part in key.split("/") if part not in ("", ".")]
    for n in range(len(parts)):
        place = "/".join(parts[: n + 1])
        try:
            link = file.get(place, getlink=True)
        except (KeyError, ValueError, RuntimeError):  # h5py says so when it is opened
            return
        if isinstance(link, h5py.ExternalLink):
            path = _first_there(_places(file.filename, link.filename, "HDF5_EXT_PREFIX"))
            reach.check(path, link.filename)
            onward = "/".join([link.path, *parts[n + 1 :]])
            if not (os.path.isfile(path) and h5py.is_hdf5(path)):
                raise _missing(f"{shorten(key)} of {reach.name} is a link", path, onward)
            with h5py.File(path, "r") as other:
                refuse_links(h5py, other, onward, reach, depth + 1)
            return
        if isinstance(link, h5py.SoftLink):
            above = "" if link.path.startswith("/") else "/".join(parts[:n])
            onward = "/".join([above, link.path, *parts[n + 1 :]])
            refuse_links(h5py, file, onward, reach, depth + 1)
            return


def refuse_leading_on(path: str, name: str, follow: str) -> None:
    """Look at all of a file that another library reads, which would follow it anywhere."""
    h5py = import_package("h5py", name)
    anywhere = follow == "anywhere"
    reach = Reach(name, None if anywhere else Folder(os.path.dirname(os.path.abspath(path))))
    waiting, real_paths = [path], set[str]()
    with hdf5_errors(name):
        while waiting:
            place = waiting.pop()
            if os.path.realpath(place) in real_paths or not h5py.is_hdf5(place):
                continue
            real_paths.add(os.path.realpath(place))
            with h5py.File(place, "r") as file:
                for reference, other in _leading_on(h5py, file, reach):
                    if not anywhere:
                        msg = f"{name} leads to other files: to {other}, as {shorten(reference)}."
                        do = 'If you trust who made it: ⟦open_volume(follow="anywhere")⟧.'
                        raise LeadsOutside(msg, do=do)
                    reach.check(other, reference)
                    waiting.append(other)


def _leading_on(h5py: Any, file: Any, reach: Reach) -> Iterator[tuple[str, str]]:
    """Yield all names of other files in a file, and where HDF5 finds these."""
    for place, kind in _links_in(file).items():
        if kind == h5py.h5l.TYPE_EXTERNAL:
            name = file.get(place, getlink=True).filename
            yield name, _first_there(_places(file.filename, name, "HDF5_EXT_PREFIX"))
        elif kind == h5py.h5l.TYPE_HARD and isinstance(file[place], h5py.Dataset):
            dataset = file[place]
            for name in _external(dataset):
                yield name, os.path.abspath(name)
            if dataset.is_virtual:
                refuse_circle(h5py, dataset, (), reach.name, reach)
                for name in {source.file_name for source in dataset.virtual_sources()} - {"."}:
                    yield name, _first_there(_places(file.filename, name, "HDF5_VDS_PREFIX"))


def _places(file: str, reference: str, variable: str) -> list[str]:
    """Return where HDF5 looks for a file that another one names, in its order.

    An absolute name itself comes first. Then its file name, or the relative name, in the folders of
    the variable, the folder of the file, the current folder, and the folder of the link's target.
    """
    absolute = [reference] if os.path.isabs(reference) else []
    name = os.path.basename(reference) if absolute else reference
    beside = os.path.dirname(os.path.abspath(file))
    words = filter(None, os.environ.get(variable, "").split(os.pathsep))
    prefixes = [folder.replace("${ORIGIN}", beside) for folder in words]
    folders = [*prefixes, beside, os.getcwd(), os.path.dirname(os.path.realpath(file))]
    return [*absolute, *(os.path.join(folder, name) for folder in folders)]


def _first_there(places: Sequence[str]) -> str:
    """Return the first place where there is a file, or the first of all."""
    return next(filter(os.path.exists, places), places[0])


def _external(dataset: Any) -> list[str]:
    return [os.fsdecode(reference) for reference, *_ in dataset.external or ()]


def beside_its_file(h5py: Any, dataset: Any) -> Any:
    """Return a dataset whose external files are found in the folder of its own file."""
    # HDF5 looks for them in the current folder when it reads. A prefix of the user has priority.
    names = _external(dataset)
    if not names or dataset.id.get_access_plist().get_efile_prefix():
        return dataset
    file, path = dataset.file, dataset.name.encode()
    beside = os.path.dirname(os.path.abspath(file.filename))
    places = [[os.path.join(at, name) for name in names] for at in (beside, ".")]
    is_there = [any(map(os.path.exists, each)) for each in places]
    if is_there == [False, True]:
        beside = os.getcwd()  # checked and read files stay the same after chdir()
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_efile_prefix(os.fsencode(beside))
    h5py.h5i.dec_ref(dataset.id)  # HDF5 opens it only once, in one way
    return h5py.Dataset(h5py.h5d.open(file.id, path, access))


def refuse_external(dataset: Any, reach: Reach) -> None:
    """Look at the files that hold the numbers of a dataset, where HDF5 looks for them."""
    rest = dataset.size * dataset.id.get_type().get_size() if dataset.external else 0
    for name, (_, start, size) in zip(_external(dataset), dataset.external or (), strict=True):
        prefix = os.fsdecode(dataset.id.get_access_plist().get_efile_prefix())
        path = os.path.join(os.getcwd(), prefix, name)
        reach.check(path, name)
        if not os.path.exists(path):
            raise _missing(f"the numbers of {dataset.name} in {reach.name} lead", path)
        # HDF5 reads zeros after the end of such a file.
        check_size(f"{path} ({reach.name})", os.path.getsize(path), start + min(size, rest))
        rest -= min(size, rest)


def _missing(what: str, path: str, dataset: str = "") -> VolumeNotFound:
    place = f"the dataset {shorten(dataset)} of {path}" if dataset else path
    why = "which is missing" if not os.path.exists(path) else "which that file does not have"
    do = "Put it back where it was, or write the references again."
    return VolumeNotFound(f"{what} to {place}, {why}.", do=do)


def refuse_circle(
    h5py: Any, dataset: Any, above: tuple[tuple[str, int], ...], name: str, reach: Reach
) -> None:
    """Refuse a virtual dataset that leads back to itself: HDF5 follows it until the stack ends."""
    if not dataset.is_virtual:
        return
    file = dataset.file.filename
    # By its place in the file: it may have many names.
    here = (os.path.realpath(file), h5py.h5o.get_info(dataset.id).addr)
    if here in above or len(above) >= _MOST_VIRTUAL:
        raise BadHeader(f"the virtual dataset {dataset.name} of {name} leads back to itself.")
    for source in {(source.file_name, source.dset_name) for source in dataset.virtual_sources()}:
        there = set[tuple[str, str]]()
        for place, path in _matching(h5py, file, *source, reach):
            with h5py.File(place, "r") as other:
                refuse_links(h5py, other, path, reach)
                node = other.get(path)
                if isinstance(node, h5py.Dataset):
                    there.add((os.path.basename(place), path.strip("/")))
                    if node.file != other:
                        reach.check(node.file.filename, node.file.filename)
                    refuse_external(node, reach)
                    refuse_circle(h5py, node, (*above, here), name, reach)
        _refuse_gap(there, dataset, *source, name)


def _refuse_gap(
    there: set[tuple[str, str]], dataset: Any, file_name: str, path: str, name: str
) -> None:
    """Refuse a virtual dataset without one of its sources: HDF5 reads the fill value there.

    HDF5 counts the sources of a pattern (``%b``) from 0, and stops at the first missing one.
    """
    file = dataset.file.filename
    reference = os.path.basename(file) if file_name == "." else file_name

    def source(number: int) -> tuple[str, str]:
        names = os.path.basename(reference), path.strip("/")
        one, two = (_PATTERN.sub(lambda m: "%" if m[0] == "%%" else f"{number}", n) for n in names)
        return one, two

    numbers = {0, *(int(n) for pair in there for n in re.findall(r"\d+", "/".join(pair)))}
    count = sum(source(number) in there for number in numbers)
    for number in range(count or 1):
        if source(number) not in there:
            folder, (base, inner) = os.path.dirname(reference), source(number)
            places = _places(file, os.path.join(folder, base), "HDF5_VDS_PREFIX")
            msg = f"the virtual dataset {dataset.name} of {name} leads"
            raise _missing(msg, _first_there(places), inner)


def _matching(
    h5py: Any, file: str, file_name: str, path: str, reach: Reach
) -> Iterator[tuple[str, str]]:
    """Yield file and dataset of the sources that a name stands for; ``%b`` is a number in it."""
    names = [file]
    if file_name != ".":
        places = _places(file, file_name, "HDF5_VDS_PREFIX")
        pattern = _printf(os.path.basename(file_name))
        first: dict[str, str] = {}
        for folder in map(os.path.dirname, places):
            entries = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
            for each in filter(pattern.fullmatch, entries):
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
        with h5py.File(each, "r") as other:
            paths = [f"/{inner}" for inner in datasets_in(h5py, other)]
        yield from ((each, inner) for inner in paths if _printf(path).fullmatch(inner))


def _printf(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for the names that HDF5 makes of a ``printf`` pattern."""
    parts = _PATTERN.split(pattern)
    texts = ("%" if p == "%%" else r"\d+" if p[:1] == "%" else re.escape(p) for p in parts)
    return re.compile("".join(texts))


def _links_in(file: Any) -> dict[str, int]:
    """Return the types of all links in a file by their names: hard ones are 0."""
    links: dict[str, int] = {}
    file.id.links.visit(lambda at, link: links.setdefault(os.fsdecode(at), link.type), info=True)
    return links


def datasets_in(h5py: Any, file: Any) -> list[str]:
    """Return the paths of all datasets of a file or group."""
    paths: list[str] = []
    file.visititems(lambda at, node: paths.append(at) if isinstance(node, h5py.Dataset) else None)
    return paths


@contextmanager
def hdf5_errors(name: str) -> Iterator[None]:
    """Turn h5py's errors for a file that is damaged or in use into errors that name it."""
    with library_errors(f"{name} is no sound HDF5 file"):
        try:
            yield
        except OSError as error:
            if not re.search("unable to lock|already open for", str(error)):
                raise
            msg = f"{name} is being written by another process: {error}."
            do = "Wait until it is closed. From a writer in SWMR mode, h5py.File(path, 'r', "
            do += "swmr=True) reads an array, which is a volume. After a crash, h5clear -s PATH."
            raise VolumeReadError(msg, do=do) from error


_KEPT_BYTES = 0  # that HDF5 keeps of decoded chunks: voxpipe has a cache of its own
# ilastik and others: micrometres along the last three axes, in stored order.
_SPACING = "element_size_um"
_AXES = "axistags"
_NAME_AXES = (
    'Name its axes, ⟦dataset="name"⟧ and ⟦axes="tczyx"⟧, or as ilastik does: the attribute '
    """axistags of the dataset is '{"axes": [{"key": "t"}, {"key": "z"}, ...]}'."""
)
# BigDataViewer's tables about the levels of all time points.
_TABLES = re.compile(r"s\d+/(resolutions|subdivisions)")
_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for file in list(_OPEN):
        file.close()


def open_hdf5(file: StoredFile, dataset: Any = None, axes: Any = None) -> Backend:
    """Return the backend of one dataset, which may be left out where there is no other.

    ``UnknownFormat`` if there are several or it holds no numbers, ``BadHeader`` if it makes no
    sense or there is none of this name.
    """
    h5py, errors = import_package("h5py", file.name), partial(hdf5_errors, file.name)
    where: Any = Hdf5File(file) if isinstance(file, RemoteStoredFile) else file.path
    run = getattr(where, "run", run_local)
    with file.open():
        pass  # says in our words that it cannot be read
    h5 = run(lambda: h5py.File(where, "r", rdcc_nbytes=_KEPT_BYTES), errors)
    try:
        # HDF5 closes open files after Python has ended: h5py's driver for file objects (3.16) then
        # crashes. So they are closed before. A damaged file has no hash.
        run(lambda: _OPEN.add(h5), errors)
        target = run(lambda: _find(h5py, h5, dataset, file, axes), errors)
        if target.offset is None:
            IO_COUNTERS.count(headers=1)
            kind = DatasetBackend if target.header.chunks is None else Hdf5Backend
            return kind(target, h5, run, file.name)
    except BaseException:
        h5.close()
        raise
    h5.close()
    form = target.header.disk_dtype, target.offset, target.header.affine
    return open_raw(RawHeader(target.layout, *form), target.files, file.name)


class FoundDataset(NamedTuple):
    """The dataset that was asked for."""

    dataset: Any
    header: Header
    layout: Layout
    files: Sequence[StoredFile]  # all files on the way; its own is the last
    offset: int | None  # of its contiguous numbers in the last file, else None
    is_stored: bool  # whether any of its numbers are, here or in other files


def _find(h5py: Any, h5: Any, key: Any, file: StoredFile, axes: Any) -> FoundDataset:
    """Return a dataset after a check of all its links; a remote file may link to no other file."""
    name, files = file.name, [file]
    if isinstance(file, LocalStoredFile):
        path, anywhere = file.path, file.follow == "anywhere"
        reach = Reach(name, None if anywhere else Folder(os.path.dirname(os.path.abspath(path))))
        refuse_links(h5py, h5, key, reach)
        dataset = beside_its_file(h5py, chosen_dataset(h5py, h5, key, name))
        refuse_external(dataset, reach)
        refuse_circle(h5py, dataset, (), name, reach)
        own = file
        if dataset.file != h5:  # reached by an external link
            reach.note(path)
            path = os.path.abspath(dataset.file.filename)
            reach.check(path, dataset.file.filename)
            own = LocalStoredFile(path, name, file.io)
        others = [LocalStoredFile(each, name, optional=True) for each in reach.others(path)]
        files = [*others, own]
    else:  # HDF5 would look for others on this disk
        refuse_links(h5py, h5, key, Reach(name, is_remote=True))
        dataset = chosen_dataset(h5py, h5, key, name)
        if dataset.is_virtual or dataset.external or dataset.file != h5:
            raise _in_other_files(name)
    itk = itk_place(dataset, name, axes)
    layout, dtype = _layout(dataset, name, itk[0] if itk else axes), np.dtype(dataset.dtype)
    level = bigdataviewer_level(h5py, h5, dataset, dtype)
    if level is not None:  # which has no other type, and stores it as the signed one
        dtype = np.dtype(dtype.str.replace("i", "u"))
    chunks = dataset.chunks or (1,) * len(layout.sizes)
    affine = stored_affine(itk[1] if itk else lambda: _affine(dataset, layout, level, name))
    header = chunked_header(layout, chunks, dtype, name, affine)
    header = replace(header, chunks=header.chunks if dataset.chunks else None)
    in_others = dataset.is_virtual or dataset.external
    # In one piece. BigDataViewer's unsigned numbers are stored as signed ones.
    is_plain = ChunkFilters.are_plain(dataset.id.get_type(), np.dtype(dataset.dtype))
    offset = None if dataset.chunks or in_others or not is_plain else dataset.id.get_offset()
    is_stored = bool(in_others or dataset.chunks or dataset.id.get_storage_size())
    return FoundDataset(dataset, header, layout, files, offset, is_stored)


class Hdf5Backend(ChunkedBackend):
    """A dataset in chunks, of which only those needed are read; h5py holds its file open."""

    def __init__(self, target: FoundDataset, h5: Any, run: Run, name: str) -> None:
        self._h5, dataset, file = h5, target.dataset, target.files[-1]
        token = content_key(joined_key([each.cache_key for each in target.files]), (dataset.name,))
        index = ChunkIndex(dataset, file.key, run, name)
        size = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
        filters = ChunkFilters(dataset, index, name)
        source = Hdf5Chunks(file.store, index, filters, token, size, name)
        form = tuple(dataset.shape), tuple(dataset.chunks), target.header.disk_dtype
        cache, fill = opening_session().chunks, np.asarray(dataset.fillvalue).astype(form[2])[()]
        array = ChunkedArray(*form, fill, source=source, cache=cache, token=token)
        super().__init__(array, target.layout, target.files, target.header, name)
        self.stores_chunks = index.stores_chunks  # type: ignore[method-assign]


class DatasetBackend(FilesBackend):
    """A dataset that HDF5 reads: neither in chunks nor in one piece, but virtual, external, small.

    One thread reads at a time.
    """

    def __init__(self, target: FoundDataset, h5: Any, run: Run, name: str) -> None:
        self._h5, self._run, self._dataset, self._layout = h5, run, target.dataset, target.layout
        self._lock = threading.Lock()
        super().__init__(target.files, target.header, name)
        # HDF5 reads the fill value of a dataset that was never written.
        self._warns, self.stores_chunks = not target.is_stored, lambda: target.is_stored

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read the region through h5py."""
        index, (first, last) = self._layout.index(region, channels)
        where = ", ".join(f"{start}:{stop}" for start, stop in index)
        what = f"[{where}] of {self.name} cannot be read"
        do = "Copy or write the file again, with all files that it refers to."
        errors = partial(library_errors, what, do, CorruptVolume)
        with self._lock:
            array = self._run(lambda: self._dataset[index.slices], errors)
        array = array.astype(self.header.disk_dtype, copy=False)
        voxels = Voxels(plain(self._layout.fold(array)[first:last]))
        if self._warns:
            self._warns = False
            warn_of_empty(voxels, self.stores_chunks, self.name)
        return voxels


def _in_other_files(name: str) -> UnknownFormat:
    msg = f"the numbers of {name} are in other files."
    do = "Only one file is read by URL: store them in it, or copy all to a local disk."
    return UnknownFormat(msg, do=do)


def chosen_dataset(h5py: Any, file: Any, key: Any, name: str) -> Any:
    """Return the dataset that was chosen, or the only one of two to four axes."""
    if key is not None:
        if not isinstance(key, str) or key not in file:
            there = few_names(datasets_in(h5py, file), _MOST_NAMES) or "none"
            msg = f"{name} has no dataset {key!r}, but {there}."
            raise BadHeader(msg, do="Give the path of one of them as ⟦dataset=⟧.")
        if not isinstance(file[key], h5py.Dataset):
            raise BadHeader(f"{key} in {name} is a group.", do="Give the path of a dataset.")
        return file[key]
    paths = datasets_in(h5py, file)
    itk = [path for path in paths if itk_place(file[path], name)]
    paths = itk or [path for path in paths if not _TABLES.fullmatch(path)]
    axes = {path: file[path].ndim for path in paths}
    has_names = {p for p in paths if _AXES in file[p].attrs or any(d.label for d in file[p].dims)}
    fitting = [path for path in paths if 2 <= axes[path] <= (9 if path in has_names else 4)]
    if len(fitting) == 1:
        return file[fitting[0]]
    # Tables have two axes, and texts are no voxels: the last choice of an example.
    fitting.sort(key=lambda path: axes[path] < 3 or file[path].dtype.kind not in "biufc")
    names = [path if axes[path] else f"{path} (no array)" for path in paths]
    for at in (at for at, kind in _links_in(file).items() if kind):  # followed only by name
        link = file.get(at, getlink=True)
        names.append(f"{at} (a link to {getattr(link, 'filename', '')}:{link.path})")
    msg = f"{name} holds {len(fitting)} datasets of two to four axes; all: "
    do = f"Choose one, such as ⟦dataset={fitting[0]!r}⟧." if fitting else _NAME_AXES
    raise UnknownFormat(f"{msg}{few_names(names, _MOST_NAMES) or 'none'}.", do=do)


def _layout(dataset: Any, name: str, axes: Any) -> Layout:
    """Return the layout that vigra's ``axistags`` give, as ilastik writes them; else the plain."""
    where, tags = f"{dataset.name} of {name}", dataset.attrs.get(_AXES)
    if dataset.shape is None:
        raise BadHeader(f"{where} is empty: it has no shape.", do="Give another one as ⟦dataset=⟧.")
    refuse_conventions(dataset.attrs, where)
    shape = tuple(dataset.shape)
    labels = [dim.label or next(iter(dim.keys()), "") for dim in dataset.dims]
    if tags is None and axes is None:
        axes = axes_of_names(labels, where)
        if axes is None and len(shape) > 4:
            raise UnknownFormat(f"{where} has {len(shape)} axes without names.", do=_NAME_AXES)
    if axes is not None or tags is None:
        file_axes = labels
        with suppress(KeyError, TypeError, ValueError):
            file_axes = [str(axis["key"]) for axis in json.loads(tags)["axes"]]
        if "".join(labels) != axes:  # else it decides between labels and tags that differ
            refuse_other_axes(axes, file_axes, shape, where)
        return plain_layout(shape, name, axes)
    with library_errors(f"{_AXES} of {name} make no sense"):
        sizes = [(str(a["key"]), a.get("resolution")) for a in json.loads(tags)["axes"]]
    # vigra's resolution has no unit; 0 is unknown.
    keys = [axis for axis, size in sizes if axis in {*"xyz"} and size not in (None, 0, 1)]
    warn_of_coordinates(() if _SPACING in dataset.attrs else keys, name, "resolutions along")
    axes = tuple(axis for axis, _ in sizes)
    refuse_other_names(labels, axes, where)
    return named_layout(shape, axes, name)


def _affine(dataset: Any, layout: Layout, level: Any, name: str) -> tuple[float, ...]:
    attribute = dataset.attrs.get(_SPACING)
    if attribute is None and level is None:
        warn_of_coordinates(coordinate_names(dataset, layout.spatial), name)
        return IDENTITY
    noun, numbers = (_SPACING, attribute) if attribute is not None else ("resolutions", level)
    spacing = np.asarray(numbers).ravel()
    is_numbers = spacing.dtype.kind in "iuf" and spacing.shape == (3,)
    if not is_numbers or not np.isfinite(spacing).all() or spacing.min() <= 0:
        msg = f"{noun} of {name} is {spacing.tolist()}, not three lengths."
        raise BadHeader(msg, do="Pass ⟦affine=⟧ to say where the voxels lie.")
    if attribute is None:
        matrix = np.diag([*level[::-1], 1.0])  # stored as (z, y, x)
        matrix[:3, 3] = (level[::-1] - 1) / 2
        return affine_entries(matrix, name)
    # In stored order; of an image it begins with the axis that is not stored.
    places = [-1 if axis is None else axis for axis in layout.spatial]
    lengths = spacing[np.argsort(np.argsort(places))]
    return affine_entries(np.diag([*(lengths * millimetres_in("um", name)), 1.0]), name)


FORMATS = Format("hdf5", (".h5", ".hdf5", ".hdf", ".he5"), open_hdf5, ("dataset", "axes"), "h5py")
