"""Images that nibabel has opened, MINC files, and array-likes that are read by slices.

An image in memory has the word over the file that it came from. Its affine is its own, and its
voxels are those of its ``dataobj``: type, offset and scaling as they were when that was made.
"""

from __future__ import annotations

import math
import os
import pickle
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.errors import CorruptVolume, UnknownFormat, VolumeError
from ...storage.location import public_name
from ...volumes.array_source import INLINE_BYTES, arrive, from_array, remember, share_array
from ...volumes.backend import Backend, Channels
from ...volumes.formats.chunked_backend import millimetres_in
from ...volumes.formats.nifti import COLOURS, UNIT_BITS, UNITS, head_of, parse_mgh, parse_nifti
from ...volumes.formats.raw import RawHeader, fastest_first, open_raw
from ...volumes.formats.stored_file import (
    FilesBackend,
    Format,
    LocalStoredFile,
    StoredFile,
    library_errors,
)
from ...volumes.header import Header, Triple, affine_entries, refuse_unreadable
from ...volumes.registry import BackendRequest
from ...volumes.session import SESSION, Source
from ...volumes.source import LocatedSource, Options
from ...volumes.voxels import Voxels, plain
from .itk import check_claims

# How the names of files end that hold voxels in one compressed stream.
_ENCODINGS = {".gz": "gzip", ".mgz": "gzip", ".bz2": "bzip2"}


def _channels_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return voxels (I, J, K, ...) as (C, I, J, K); colours run fastest among the channels."""
    if array.dtype.names not in COLOURS:
        return _fold(array)
    colours = np.stack([_fold(array[name]) for name in array.dtype.names], axis=1)
    return colours.reshape(-1, *colours.shape[2:])


def _fold(array: NDArray[Any]) -> NDArray[Any]:
    i, j, k, *rest = (*array.shape, 1, 1)[: max(3, array.ndim)]
    return np.moveaxis(array.reshape((i, j, k, math.prod(rest)), order="F"), -1, 0)


def source_of_image(image: Any, options: Options) -> Source | None:
    """Return the source of an image of nibabel: lazy wherever its ``dataobj`` is."""
    if not hasattr(image, "dataobj"):  # an object of nibabel that is no image
        return None
    if not hasattr(image, "affine"):
        msg = f"a {type(image).__name__} of nibabel holds rows of numbers, no voxels."
        raise UnknownFormat(msg, do="Write its volume with wb_command -cifti-separate.")
    name = str(image.get_filename() or "the image")
    matrix = np.array(np.eye(4) if image.affine is None else image.affine, dtype=np.float64)
    with suppress(KeyError, TypeError, ValueError, IndexError):  # formats without the field
        matrix[:3] *= millimetres_in(UNITS[int(image.header["xyzt_units"]) & UNIT_BITS], name)
    affine, dataobj = affine_entries(matrix, "the image"), image.dataobj
    if type(image).__name__.startswith("Minc"):
        _refuse_time(image, name)
    if isinstance(dataobj, np.ndarray):
        values = _channels_of(np.asanyarray(dataobj))
        return from_array(values, options.affine or affine, is_image=True)
    reader = _as_in_a_file(dataobj, affine)
    if reader is None:
        name = image.get_filename() or f"{type(image).__name__} {tuple(image.shape)}"
        return DataobjSource(dataobj, options.affine or affine, public_name(name))
    # The image's own affine is part of the reader.
    own = Options(options.affine, reader, io=options.io, follow=options.follow)
    return LocatedSource(dataobj.file_like, own)


@dataclass(frozen=True)
class FileOfImage:
    """Opens the file of an image by the image's fields, even if the file's header has changed."""

    fields: RawHeader
    encoding: str  # "raw" for a file that is not compressed

    def create_backend(self, request: BackendRequest) -> Backend:
        """Open it, as it would be opened by its path where header and image agree."""
        path = os.fspath(request.path or "")
        name = public_name(str(request.source or path))
        file = LocalStoredFile(path, name, request.io)
        if _fields_in(file) != self.fields:
            file.seen_as = (repr(self.fields),)
        return open_raw(self.fields, [file], name, encoding=self.encoding, trailing=True)


def _fields_in(file: LocalStoredFile) -> RawHeader | None:
    """Return the fields of a file's own header; None if the file holds none."""
    path = file.path.lower()
    if not path.endswith((".nii", ".mgh", ".nii.gz", ".mgz")):
        return None
    parse = parse_mgh if path.endswith((".mgh", ".mgz")) else parse_nifti
    with suppress(VolumeError):
        return parse(head_of(file, path.endswith("z")), file.name)
    return None


def _as_in_a_file(dataobj: Any, affine: tuple[float, ...]) -> FileOfImage | None:
    """Return how a proxy of nibabel reads its file, if that is one piece of plain numbers."""
    from nibabel.arrayproxy import ArrayProxy

    # Subclasses scale by slices, or read records; an open file is the process's own.
    path = getattr(dataobj, "file_like", None)
    if type(dataobj) is not ArrayProxy or not isinstance(path, str) or dataobj.order != "F":
        return None
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".zst":
        return None
    shape = tuple(int(n) for n in dataobj.shape)
    dtype = np.dtype(dataobj.dtype)
    if dtype.names in COLOURS:
        layout = fastest_first(shape, colours=len(dtype.names or ()))
        fields = RawHeader(layout, np.dtype("u1"), int(dataobj.offset), affine)
    else:
        refuse_unreadable(dtype, path)
        scale = float(dataobj.slope), float(dataobj.inter)
        fields = RawHeader(fastest_first(shape), dtype, int(dataobj.offset), affine, *scale)
    return FileOfImage(fields, _ENCODINGS.get(suffix, "raw"))


class DataobjSource:
    """A ``dataobj`` that reads on request: nibabel's of other formats, dask's, HDF5's.

    A small pickle is sent to workers itself; otherwise a temporary file with its voxels.
    """

    def __init__(self, dataobj: Any, affine: tuple[float, ...], name: str, token: str = "") -> None:
        self.dataobj = dataobj
        self.affine = affine
        self.name = name
        self.token = token or uuid.uuid4().hex

    def open(self) -> Backend:
        """Return the backend; of the voxels one is read."""
        return DataobjBackend(self.dataobj, self.affine, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        with suppress(Exception):  # a foreign object may raise any error
            if len(pickle.dumps(self.dataobj)) <= INLINE_BYTES:
                remember(self)
                inline = self.dataobj, self.affine, self.name, self.token
                return arrive, (self.token, DataobjSource, *inline)
        backend = SESSION.handles.acquire(self)
        whole = Region.of_shape(backend.shape[1:])
        return share_array(self, backend.header, lambda: np.asarray(backend.read(whole).array))


class DataobjBackend(Backend):
    """An array-like (I, J, K, ...) that is read by slices; further axes are folded into C."""

    def __init__(self, dataobj: Any, affine: tuple[float, ...], name: str) -> None:
        self._dataobj = dataobj
        self._lock = threading.Lock()  # a file that is open has one place
        self._sizes = tuple(int(n) for n in dataobj.shape)
        first = self._fold(tuple(slice(0, 1) for _ in self._sizes))
        refuse_unreadable(first.dtype, name)
        i, j, k, *rest = (*self._sizes, 1, 1)[: max(3, len(self._sizes))]
        # Colours are channels too: one voxel shows how many.
        shape = (len(first) * math.prod(rest), i, j, k)
        chunks = _chunks_of(dataobj)
        super().__init__(Header(shape, affine, first.dtype, chunks, "range"), name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read a region, all channels, and return those that are asked for."""
        index = (*region.slices, *(slice(0, n) for n in self._sizes[3:]))
        array = self._fold(index[: len(self._sizes)])
        return Voxels(plain(array[slice(*(channels or (0, self.shape[0])))]))

    def _fold(self, index: tuple[slice, ...]) -> NDArray[Any]:
        with self._lock:
            part = self._dataobj[index]
            if type(part).__module__.partition(".")[0] == "dask":
                # Threads of dask's own hang in a forked worker, and cores are busy anyway.
                part = part.compute(scheduler="synchronous")
            array = np.asanyarray(part)
        return _channels_of(array)


def _refuse_time(image: Any, name: str) -> None:
    """Refuse MINC with time, which comes before space: nibabel's affine is of the last axes."""
    if len(image.shape) != 3:
        msg = f"{name} is a MINC file of {len(image.shape)} axes, {image.shape}; three are read."
        do = "Give one time of it: nibabel.Nifti1Image(image.dataobj[0], image.affine)."
        raise UnknownFormat(msg, do=do)


class MincBackend(FilesBackend):
    """A MINC file, version 1 or 2, as nibabel reads it: its axes, its affine and its scaling."""

    def __init__(self, file: StoredFile) -> None:
        import nibabel

        if not isinstance(file, LocalStoredFile):
            raise UnknownFormat(f"{file.name} is a MINC file, which is only read from local disks.")
        check_claims(file.path, file.name, file.follow)
        with library_errors(f"{file.name} cannot be read as MINC"):
            image: Any = nibabel.load(file.path)
            _refuse_time(image, file.name)
            affine = affine_entries(image.affine, file.name)
            millimetres_in("mm", file.name)  # of every MINC file
            self._inner = DataobjBackend(image.dataobj, affine, file.name)
        super().__init__([file], self._inner.header, file.name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read a region; nibabel scales it, slice by slice where the file says so."""
        with library_errors(f"{self.name} cannot be read", kind=CorruptVolume):
            return self._inner.read(region, channels)


def _chunks_of(dataobj: Any) -> Triple | None:
    """Return the chunk of an array-like that says so: dask's sizes of each, h5py's of one."""
    chunks = getattr(dataobj, "chunks", None)
    if not isinstance(chunks, tuple) or len(chunks) < 3:
        return None
    i, j, k = (max(n) if isinstance(n, tuple) else int(n) for n in chunks[:3])
    return i, j, k


FORMATS = (Format("minc", (".mnc",), MincBackend, needs="nibabel"),)
