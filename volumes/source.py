"""Sources of volumes: picklable locations with options, opened in each process.

A source holds no handle. Its token is the same in every process, so that copies of a volume in
batches share one open handle.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..core.call_site import warn
from ..core.context import holding
from ..core.errors import LikelyMistake, UnknownFormat, VolumeNotFound, reader_error
from ..core.lru_cache import cached_property
from ..core.suggest import path_hint
from ..core.validate import as_choice
from ..storage.content import content_key, files_below
from ..storage.file_reader import FOLLOW, IO_MODES
from ..storage.location import check_base, is_url, local_path, lower_schemes, public_name
from ..storage.retry import read_anew
from .backend import Backend, ForeignBackend
from .formats.stored_file import LocalStoredFile
from .header import PLACEMENT, TIMES_STAY, UNIT, Header, Placement, affine_matrix, invertible_affine
from .registry import (
    AFTER,
    BEFORE,
    BackendRequest,
    is_recognised,
    registered_names,
    resolve_backend,
    unknown_format,
    with_affine,
)

_MOST_FILES = 1000  # watched files of a folder that a user's reader opens


@dataclass(frozen=True, eq=False)
class Options:
    """Options of a source."""

    affine: tuple[float, ...] | None = None  # overrides the stored one
    reader: Any = None  # opens the source instead of the registered backends
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # for fsspec
    reader_kwargs: Mapping[str, Any] = field(default_factory=dict)  # for the backend or the reader
    io: str = "auto"  # how bare voxels of local files are read
    follow: str = "same_folder"  # limit of a header's references to other files: one of ``FOLLOW``

    def __post_init__(self) -> None:
        as_choice("io", self.io, IO_MODES)
        as_choice("follow", self.follow, FOLLOW)

    def request(self, **place: Any) -> BackendRequest:
        """Return the request for a factory."""
        affine = None if self.affine is None else affine_matrix(self.affine)
        own = {**vars(self), "affine": affine}
        if "reader" in self.reader_kwargs:  # the name of a backend
            own["reader_kwargs"] = {**self.reader_kwargs}
            own["reader"] = own["reader_kwargs"].pop("reader")
        return BackendRequest(**own, **place)


_MOST_FOLDERS = 16  # in which the error for a folder looks for volumes
USUAL_OPTIONS = Options()
"""Default options: one object, pickled once with the volumes of a batch."""


_T = TypeVar("_T")


def copy_with(like: _T, **own: Any) -> _T:
    """Return a copy of a frozen object with other values of fields, which nothing checks."""
    copy = object.__new__(type(like))
    copy.__dict__.update(like.__dict__, **own)
    return copy


@dataclass(frozen=True)
class Stamp:
    """Version of the file or folder at one location."""

    how: str  # source of the version: ``"file"``, ``"listing"`` or ``"metadata"`` of a folder
    size: int  # bytes of these files
    objects: int  # number of these files
    version: str  # modification time, ETag, or a digest of those of all files; empty if unknown

    def change(self, now: Stamp) -> str:
        """Return the difference of ``now`` in words; empty if there is none.

        Examples
        --------
        >>> Stamp("file", 10, 1, "a").change(Stamp("file", 12, 1, "b"))
        'it had 10 bytes and has 12'
        """
        if self == now:
            return ""
        if self.size != now.size:
            return f"it had {self.size} bytes and has {now.size}"
        if self.objects != now.objects:
            return f"it had {self.objects} files and has {now.objects}"
        return "it was written again, with as many bytes"


@dataclass(frozen=True, eq=False)
class LocatedSource:
    """A path or a URL with the options to open it."""

    location: str = field(repr=False)  # as the user wrote it; may hold credentials
    options: Options = USUAL_OPTIONS
    path: str = ""  # absolute local path, empty for a URL
    own_token: str = ""
    name: str = ""  # the location without credentials

    def __post_init__(self) -> None:
        location = self.location
        if self.own_token or self.name:
            return
        if not location.strip() or "\0" in location:
            raise VolumeNotFound(f"{location!r} is no path of a volume.")
        place: str | None = os.path.expanduser(location)
        if ":" in location:
            self.__dict__.update(location=lower_schemes(location))
            place = None if is_url(location) else local_path(location)
        # Made absolute now: a worker may run in another directory.
        path = "" if place is None else os.path.abspath(place)
        path = location if path == location else path  # one text has one pickle
        name = self.location if path else public_name(self.location)
        self.__dict__.update(path=path, name=name)
        if self.options is not USUAL_OPTIONS:
            self.token  # noqa: B018  other processes could not find that of their objects

    @cached_property
    def token(self) -> str:
        """Equal for equal sources, in every process."""
        values = _USUAL_VALUES if self.options is USUAL_OPTIONS else _stable_values(self.options)
        return self.own_token or content_key(self.path or self.location, values)

    def at(self, location: str) -> LocatedSource:
        """Return the source of another place with the same options."""
        has_other_spelling = "//" in location or "/." in location or ":" in location
        if has_other_spelling or location[0] != os.sep or location[-1] == "/" or "\0" in location:
            return LocatedSource(location, self.options)
        source = object.__new__(LocatedSource)
        source.__dict__.update(location=location, options=self.options, path=location)
        source.__dict__.update(own_token="", name=location)
        if self.options is not USUAL_OPTIONS:
            source.token  # noqa: B018  as in ``__post_init__``
        return source

    def __getstate__(self) -> dict[str, Any]:
        # Pickles of one source are equal, whether or not its token has been found.
        is_usual = self.options is USUAL_OPTIONS
        return {k: v for k, v in self.__dict__.items() if not is_usual or k != "token"}

    def _below(self) -> Iterator[str]:
        """Yield the folders below this one that are volumes, such as those of DICOM slices."""
        for folder, names, _ in islice(os.walk(self.path), _MOST_FOLDERS):
            for place in (os.path.join(folder, name) for name in sorted(names)):
                if is_recognised(self.options.request(path=Path(place), source=place)):
                    yield place

    def part_of(self, content: str) -> str:
        """Return the content key of the part that the options select, such as one data set."""
        kwargs = self.options.reader_kwargs
        return content_key(content, tuple(_stable(kwargs))) if content and kwargs else content

    def open(self) -> Backend:
        """Open the location with the first backend that recognises it."""
        remote = None if self.path else self.location
        request = self.options.request(
            path=Path(self.path) if self.path else None,
            remote_zarr_uri=remote if ".zarr" in self.name else None,
            uri=remote,
            source=self.location,
        )
        # Taken before opening, so that later writes are detected.
        is_foreign = self.options.reader is not None or BEFORE or AFTER
        first_version = _version_at(self.path) if self.path and is_foreign else None
        read = partial(placed_backend, request, self.name)
        backend = read() if self.path else read_anew(read)
        if backend is not None:
            if type(backend).is_current is Backend.is_current:
                backend.first_version = first_version
            return backend
        if self.path and not os.path.exists(self.path):
            raise VolumeNotFound(f"there is no file {self.path}.", do=path_hint(self.path))
        if self.path and os.path.isdir(self.path):
            what = f"{self.name} is a folder without zarr.json, .zarray or .zgroup."
            example = "".join(f", such as {place}" for place in islice(self._below(), 1))
            do = f"Give the path of one volume{example}, or several by *: 'folder/*.nii.gz'."
            if os.path.exists(os.path.join(self.path, "attributes.json")):
                what = f"{self.name} is an N5 container, which is not read."
                do = "Convert it to zarr, or pass reader=, which returns (voxels, affine)."
            raise UnknownFormat(what, do=do)
        if not self.path:
            check_base(self.location, self.options.storage_options)
        raise unknown_format(self.name, registered_names())


def placed_backend(request: BackendRequest, name: str) -> Backend | None:
    """Return the backend of a request, with a sound affine; None if no backend recognises it."""
    has_affine, units = vars(request)["affine"] is not None, set[str]()
    with holding(PLACEMENT, Placement(has_affine, units)):
        backend = resolve_backend(request)
    if backend is None:
        return None
    ours: Backend = backend
    if not isinstance(backend, Backend):  # of TorchIO's kind
        try:
            ours = with_affine(ForeignBackend(backend, name), request)
        except Exception as error:
            raise reader_error(error, backend, "opening", name)  # noqa: B904
    ours.name = ours.name or name
    if not has_affine:
        header, noun = ours.header, f"the affine of {name}"
        affine = invertible_affine(header.affine, header.shape[1:], noun)
        unit = units.pop() if len(units) == 1 else UNIT if units else header.file_unit
        ours.header = replace(header, affine=affine, file_unit=unit)
    return ours


def warn_of_times(source: Any, header: Header) -> None:
    """Warn of time points that are read as channels, unless the user chose them or named axes."""
    options = getattr(getattr(source, "located_source", source), "options", None)
    if options is None or TIMES_STAY.get():  # an array, or a conversion
        return
    if {*map(options.reader_kwargs.get, ("time", "axes"))} != {None}:
        return
    number, stride = header.times[:2]
    channels = header.shape[0] // number
    those = f" and {channels} channels" if channels > 1 else ""
    order = {1: ", time fastest", channels: ", time slowest"}.get(stride, "") if those else ""
    msg = f"times-and-channels: the {number} time points{those} of {source.name} become "
    msg += f"{header.shape[0]} channels{order}"
    do = 'Pass ⟦time=0⟧ for one time point, or ⟦time="channels"⟧ for all, time slowest.'
    warn(f"{msg}. {do}", LikelyMistake)


def _version_at(path: str) -> LocalStoredFile | FolderVersion | None:
    """Return the version of a local file or folder, for readers without versions."""
    if os.path.isdir(path):
        return FolderVersion(path)
    is_other = os.path.exists(path) and not os.path.isfile(path)  # a pipe or a device
    return None if is_other else LocalStoredFile(path, optional=not os.path.exists(path))


class FolderVersion:
    """A local folder and its version at construction."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._version, self._time = self._look(), os.stat(path).st_mtime_ns
        # Writing a file again leaves the time of its folder unchanged.
        self.stamp = (self._time, content_key("", tuple(self._version)))

    def _look(self) -> list[tuple[str, int, str]]:
        return sorted(islice(files_below(self._path), _MOST_FILES))

    @property
    def is_current(self) -> bool:
        """Whether sizes and modification times of its files are unchanged."""
        return os.path.isdir(self._path) and self._look() == self._version

    def is_as_of(self, moment: int) -> bool:
        """Whether no file was added, removed or renamed."""
        return os.path.isdir(self._path) and os.stat(self._path).st_mtime_ns == self._time


_TOKENS: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _stable(value: Any) -> Any:
    """Return something whose ``repr`` is equal for equal values, in this process."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, np.dtype, np.generic)):
        return value
    if type(value) is dict and not value:
        return []  # the usual case: the rest of this function takes microseconds per volume
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, Mapping):
        return sorted((str(key), repr(_stable(entry))) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return [_stable(entry) for entry in value]
    # Other objects equal only themselves: a redefined function of the same name differs.
    try:
        return _TOKENS.setdefault(value, uuid.uuid4().hex)
    except TypeError:
        return uuid.uuid4().hex


def _stable_values(options: Options) -> tuple[Any, ...]:
    """Return the options as a part of tokens, without defaults that do not change voxels."""
    usual = [("io", "auto"), ("follow", "same_folder")]
    values = [value for key, value in vars(options).items() if (key, value) not in usual]
    return tuple(map(_stable, values))


_USUAL_VALUES = _stable_values(USUAL_OPTIONS)
