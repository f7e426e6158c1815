"""Where the voxels of a volume are: a value that travels, and opens itself elsewhere.

A source never holds a handle. Its token is the same in every process, so that the
many copies of one volume that travel with the batches share one open handle.

Volumes whose voxels are in memory: arrays, tensors, images of nibabel. A small array travels inside
the pickle. A larger one is written to a temporary file on its first journey, which the other
process maps.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UnknownFormat, VolumeNotFound
from ..storage.content import content_key
from ..storage.file_reader import check_io
from ..storage.location import absolute_place, is_url, public_name
from ..storage.ranges import FOLLOW
from ..storage.retry import read_anew
from .backend import Backend, ForeignBackend, as_array, only_in_torch
from .header import Header, affine_matrix, array_header, channels_first
from .registry import BackendRequest, registered_names, resolve_backend, unknown_format
from .spill import ArrayBackend, original, remember, travel


@dataclass(frozen=True, eq=False)
class Options:
    """What the user said about a source."""

    affine: tuple[float, ...] | None = None
    """Overrides the stored one."""
    reader: Any = None
    """Opens the source instead of the registered backends."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """For fsspec."""
    reader_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For the backend or the reader."""
    io: str = "auto"
    """How bare voxels of local files are read."""
    follow: str = "beside"
    """How far what a header names is followed: one of ``FOLLOW``."""

    def __post_init__(self) -> None:
        check_io(self.io)
        if self.follow not in FOLLOW:
            msg = f"follow is one of {', '.join(map(repr, FOLLOW))}, got {self.follow!r}"
            raise ValueError(msg)

    def request(self, **place: Any) -> BackendRequest:
        """Return what a factory gets to know."""
        return BackendRequest(
            affine=None if self.affine is None else affine_matrix(self.affine),
            reader=self.reader,
            storage_options=self.storage_options,
            reader_kwargs=self.reader_kwargs,
            io=self.io,
            follow=self.follow,
            **place,
        )


class Source(Protocol):
    """Where voxels are. Picklable, and small then."""

    @property
    def name(self) -> str:
        """What messages call it; no credentials."""

    @property
    def token(self) -> str:
        """Equal for equal sources, in every process."""

    def open(self) -> Backend:
        """Open it in this process."""


@dataclass(frozen=True, eq=False)
class LocatedSource:
    """A path or a URL, with all that is needed to open it."""

    location: str = field(repr=False)
    """As the user wrote it; may hold credentials."""
    options: Options = Options()
    """What the user said about it."""
    path: str = ""
    """Absolute local path, empty for a URL."""
    token: str = ""
    """Equal for equal sources, in every process."""

    def __post_init__(self) -> None:
        if self.token:
            return
        # Made absolute now: a worker may run in another directory.
        path = "" if is_url(self.location) else absolute_place(self.location)
        object.__setattr__(self, "path", path)
        said = dict(vars(self.options))
        # What is read is the same, so what is usual leaves no trace in the names of copies.
        if said["io"] == "auto":
            del said["io"]
        if said["follow"] == "beside":
            del said["follow"]
        token = content_key(path or self.location, tuple(map(_stable, said.values())))
        object.__setattr__(self, "token", token)

    @property
    def name(self) -> str:
        """The location without credentials."""
        return public_name(self.location) if not self.path else self.location

    def part_of(self, content: str) -> str:
        """Return the name of what the options choose of stored content, e.g. one data set of it."""
        chosen = self.options.reader_kwargs
        return content_key(content, tuple(_stable(chosen))) if content and chosen else content

    def open(self) -> Backend:
        """Open the location with the first backend that recognises it."""
        return self._open() if self.path else read_anew(self._open)

    def _open(self) -> Backend:
        remote = None if self.path else self.location
        request = self.options.request(
            path=Path(self.path) if self.path else None,
            remote_zarr_uri=remote if ".zarr" in self.name else None,
            uri=remote,
            source=self.location,
        )
        backend = resolve_backend(request)
        if backend is None:
            raise self._unknown()
        return as_backend(backend, self.name)

    def _unknown(self) -> Exception:
        if self.path and not os.path.exists(self.path):
            return VolumeNotFound(f"there is no file {self.path}.", do="Check the path.")
        if self.path and os.path.isdir(self.path):
            what = f"{self.name} is a folder without zarr.json, .zarray or .zgroup."
            return UnknownFormat(what, do="Give the path of one volume.")
        return unknown_format(self.name, registered_names())


def as_backend(backend: Any, name: str) -> Backend:
    """Return a ``Backend`` as it is, one of TorchIO's kind wrapped."""
    if not isinstance(backend, Backend):
        return ForeignBackend(backend, name)
    backend.name = backend.name or name
    return backend


_TOKENS: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _stable(value: Any) -> Any:
    """Return something whose ``repr`` is equal for equal values, in this process."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, np.dtype, np.generic)):
        return value
    if type(value) is dict and not value:
        return []  # most options are not given; the rest of this takes microseconds per volume
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, Mapping):
        return sorted((str(key), repr(_stable(entry))) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return [_stable(entry) for entry in value]
    # Anything else is itself only: a redefined function of the same name is another.
    try:
        return _TOKENS.setdefault(value, uuid.uuid4().hex)
    except TypeError:
        return uuid.uuid4().hex


# A pickled volume stays below 16 kB; half of that leaves room for the header.
INLINE_BYTES = 8 * 1024


class ArraySource:
    """An array (C, I, J, K) in this process. Its voxels must not change while a pass reads them."""

    def __init__(self, array: NDArray[Any], header: Header, name: str, token: str = "") -> None:
        self.array = array
        self.name = name
        self.token = token or uuid.uuid4().hex
        self.backend = ArrayBackend(array, header, name, self.token)
        self._latest: ArraySource | None = None
        self._pass = ""

    def opened_anew(self, by: str) -> ArraySource:
        """Return the source for a pass: of another token where voxels were written to meanwhile.

        Statistics, tables and copies are kept by the token, and so are made anew, all of them.
        """
        latest = self._latest or self
        looked, self._pass = self._pass == by, by  # several cases may show one array
        if looked:
            return latest
        if not latest.backend.holds_what_is_kept:
            latest = self._latest = ArraySource(self.array, self.backend.header, self.name)
        return latest

    def open(self) -> Backend:
        """Return the backend; nothing has to be opened."""
        return self.backend

    def __reduce__(self) -> tuple[Any, ...]:
        header = self.backend.header
        if self.array.nbytes > INLINE_BYTES:
            return travel(self, header, lambda: self.array)
        remember(self)
        # It arrives with the values of this moment, where something may be kept of earlier ones.
        self.backend.note()
        # ``copy`` drops the rest of a larger array of which this is a view.
        return _arrive_inline, (self.array.copy(), header, self.name, self.token)


def _arrive_inline(array: NDArray[Any], header: Header, name: str, token: str) -> Any:
    return original(token) or ArraySource(array, header, name, token)


def held_in_memory(tensor: Any, affine: tuple[float, ...], name: str) -> Backend:
    """Return the backend of a tensor (C, I, J, K), which shares its memory."""
    backend = from_array(tensor, affine).backend
    backend.name = name
    return backend


def from_array(array: Any, affine: tuple[float, ...]) -> ArraySource:
    """Return the source of a tensor or an array of two to four axes; memory is shared."""
    values = as_array(array)
    name = f"array {tuple(values.shape)} {values.dtype.name}"
    values = channels_first(values, name)
    name = f"array {tuple(values.shape)} {values.dtype.name}"
    header = array_header(values, affine, name, tensor_dtype=only_in_torch(array))
    return ArraySource(values, header, name)
