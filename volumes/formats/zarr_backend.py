"""Zarr arrays, OME-Zarr and NIfTI-Zarr, in folders, archives and buckets.

Chunks are fetched and decoded by voxpipe; what is stored in a way that it does not know
is read by zarr-python. Either way only the chunks that a region touches.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, OrientedBox, Region
from ...core.call_site import warn
from ...core.errors import (
    BadHeader,
    CorruptVolume,
    EmptyVolume,
    TruncatedVolume,
    VolumeChanged,
    VoxpipeError,
)
from ...core.lru_cache import cached_property
from ...storage.content import content_key, folder_key, listing_key
from ...storage.file_reader import file_system_at
from ...storage.location import remote_errors
from ...storage.ranges import LocalRanges, RangeStore, cannot_open
from ...storage.read_ahead import DOCUMENTS
from ...storage.remote import RemoteFile, open_remote
from ...storage.remote_ranges import RemoteRanges
from ...storage.retry import LOOKS, MOST_MISSING, read_anew
from ...storage.zip_ranges import ZipRanges
from ..backend import Channels, no_options
from ..header import Header, Triple
from ..scheme import StoreLayout
from ..session import opening_session
from ..voxels import Voxels, refuse_unreadable
from .chunked_backend import ChunkedBackend, RemoteChunks
from .local_file import LocalFile, file_stamp
from .zarr_array import ForeignArray, ZarrArray, open_node
from .zarr_image import ZarrImage, image_of
from .zarr_metadata import NotOurs
from .zarr_nodes import (
    METADATA_FILES,
    check_folder,
    open_ranges_node,
    place_of,
    store_key,
)

_OPTIONS = ("level",)
# Objects that are no chunks: of a pyramid of a few levels, each with its metadata.
_MOST_METADATA = 200
# Seconds by which the clock of a store may be ahead of ours. Times of writing are in whole ones.
_CLOCKS_APART = 2.0
LOOK_PAUSE = 1.0
"""Seconds for which metadata behind a URL count as still there: of the thousands of requests that a
store answers in one, one more for a volume in which chunks are missing is nothing."""
_clock = time.monotonic


class ZarrBackend(ChunkedBackend):
    """A zarr array, read by voxpipe or by zarr-python."""

    def __init__(self, image: ZarrImage, name: str, stamp: tuple[int, ...] = ()) -> None:
        IO_COUNTERS.count(headers=1)
        array, layout = image.array, image.layout
        dtype = np.dtype(array.dtype)
        refuse_unreadable(dtype, name)
        if min(layout.shape) < 1:
            raise BadHeader(f"{name} holds no voxels: {layout.stored}.", do="Check the file.")
        header = Header(
            layout.shape,
            image.affine,
            dtype,
            chunks=layout.spatial_part(array.chunks),
            access="range",
            slope=image.slope,
            intercept=image.intercept,
            stamp=stamp,
        )
        self.levels = image.coarser
        self._in_doubt = True
        self.keeps_chunks = isinstance(array, ZarrArray)
        super().__init__(array if self.keeps_chunks else ForeignArray(array), layout, header, name)
        self.culls = self.culls and self.keeps_chunks

    def read(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> Voxels:
        """Read the chunks that the region touches, of these only those that the box touches."""
        found = super().read(region, channels, box)
        if self._in_doubt:
            self._look_whether_empty(found.array)
        return found

    def _decoded(self, index: Region, box: OrientedBox | None) -> NDArray[Any]:
        # Our own reader reads anew chunk by chunk.
        anew = self.remote and not self.keeps_chunks
        return read_anew(lambda: self._read(index, box)) if anew else self._read(index, box)

    def _read(self, index: Region, box: OrientedBox | None) -> NDArray[Any]:
        """Return a part; what a codec says becomes an error that names the place."""
        try:
            return super()._decoded(index, box)
        except (MemoryError, VoxpipeError):
            raise
        except Exception as error:  # each codec has its own
            where = ", ".join(f"{start}:{stop}" for start, stop in index)
            raise CorruptVolume(
                f"[{where}] of {self.name} cannot be decoded: {type(error).__name__}: {error}.",
                do="Copy the chunks of this region again.",
            ) from error

    def _look_whether_empty(self, found: NDArray[Any]) -> None:
        """Warn, once, if all that was read is fill because nothing is stored at all."""
        if not found.size:
            return
        self._in_doubt = False
        if not (found != found.flat[0]).any() and not self._stores_chunks():
            warn(
                f"{self.name} has metadata and not one chunk, so every voxel is its fill value "
                f"{found.flat[0]!s}. If it should hold more, copy its chunks too.",
                EmptyVolume,
            )

    def _stores_chunks(self) -> bool:
        """Whether anything but metadata is stored; True where nobody knows."""
        return True

    @property
    def shards(self) -> Triple | None:
        """Object unit in voxels along I, J, K; None where every chunk is an object."""
        shards = self._array.shards
        return None if shards is None else self._layout.spatial_part(shards)


class ListedZarr(ZarrBackend):
    """A zarr array or group of many objects: its content is what a listing of them says."""

    lists = True
    _array: ZarrArray | ForeignArray
    _listed: str | None = None
    _before: str | None = None
    _failed = False
    _look_pause = 0.0
    _looked = -math.inf
    _document: tuple[str, bytes]
    _absences: int

    @property
    def content_key(self) -> str:
        """Names, sizes and versions of all objects, digested; listed at the first question.

        So is the header by which they are read: under another one that came with them, chunks
        that are not there any more would be fill.
        """
        listed = self._listed
        if listed is None:
            listed = self._list()
            if self._before not in (None, listed):
                self._forget_stored()
            self._listed = self._before = listed
        return content_key(listed, self._read_as) if listed else ""

    @property
    def _read_as(self) -> tuple[object, ...]:
        """What decides which values stored objects are; ours and zarr-python's are the same."""
        array = self._array
        fill = 0 if array.fill_value is None else np.asarray(array.fill_value).item()
        return (
            *(tuple(array.shape), np.dtype(array.dtype).str, tuple(array.chunks), fill),
            *(self.header.slope, self.header.intercept),
        )

    def _forget_stored(self) -> None:
        """Forget what was read of other objects than those that are there now."""
        self._array.forget_stored()

    def forget_content_key(self) -> None:
        """List them again when asked for the next time."""
        self._listed = None

    def _list(self) -> str:
        raise NotImplementedError

    def _note_document(self, store: LocalRanges | RemoteRanges) -> None:
        """Note what says that the array is there: what is missing then is fill."""
        path = self._array.path.strip("/")
        keys = [f"{path}/{name}".lstrip("/") for name in METADATA_FILES]
        found = next(((key, data) for key in keys if (data := store.get(key)) is not None), None)
        key, data = found or (keys[0], b"")
        self._document, self._absences = (key, hashlib.sha256(data).digest()), store.absences

    def _refuse_removed(self, store: LocalRanges | RemoteRanges) -> None:
        """Raise ``VolumeChanged`` where chunks are missing because the array was removed.

        Its document is read again, once for all that is missing by then.
        """
        absences = store.absences
        if absences == self._absences or _clock() < self._looked + self._look_pause:
            return
        key, known = self._document
        data = _still_there(store, key)
        if data is not None and hashlib.sha256(data).digest() == known:
            self._absences, self._looked = absences, _clock()
            return
        self._forget_stored()
        self._failed = True
        how, now = ("removed", "gone") if data is None else ("written again", "another one")
        raise VolumeChanged(
            f"{self.name} was {how} since it was opened: {key} is {now}.",
            do="Make a new Volume once it is written.",
        )


class LocalZarr(ListedZarr):
    """A zarr array or group in a local folder."""

    def __init__(
        self, path: str, name: str, options: Mapping[str, Any], follow: str = "beside"
    ) -> None:
        self._path = path
        stamp, contained = metadata_stamp(path), follow != "anywhere"
        self._files = LocalRanges(path, contained=contained)
        check_folder(path, name)
        image = opened(self._files, name, content_key(path, stamp), options)
        super().__init__(image, name, stamp)
        self._note_document(self._files)

    @property
    def is_current(self) -> bool:
        """Whether the metadata are those that were read; ``close_volumes`` forgets chunks too."""
        return not self._failed and metadata_stamp(self._path) == self.header.stamp

    def _decoded(self, index: Region, box: OrientedBox | None) -> NDArray[Any]:
        found = super()._decoded(index, box)
        self._refuse_removed(self._files)
        return found

    def is_as_of(self, moment: int) -> bool:
        """Whether metadata are those that were read, and no chunk was written or removed since.

        File servers have clocks of their own: there metadata are all that tells.
        """
        if moment < self._files.newest <= time.time_ns() and not self._network:
            return False
        return self.is_current

    @cached_property
    def _network(self) -> bool:
        """Return whether it lies on another machine."""
        return file_system_at(self._path).network

    def _list(self) -> str:
        return folder_key(self._path)

    def _stores_chunks(self) -> bool:
        return any(map(_is_chunk, self._files.list()))

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return what a scheme needs to know; a file server is read in longer runs."""
        found = super().layout(volumes)
        return found.on_network() if self._network else found


class StoreZarr(ListedZarr):
    """A zarr object that the user opened."""

    def __init__(self, node: Any, thing: Any, name: str, options: Mapping[str, Any]) -> None:
        self._place = place_of(thing)
        super().__init__(image_of(node, level_in(options, name), name), name)

    def _list(self) -> str:
        return store_key(*self._place)


class LocalZipZarr(LocalFile, ZarrBackend):
    """A zarr array or group in a local zip archive."""

    def __init__(self, path: str, name: str, options: Mapping[str, Any]) -> None:
        self.path = path
        stamp = file_stamp(path)
        local = LocalRanges(os.path.dirname(path))
        store = ZipRanges(local, os.path.basename(path), name, checks_parts=True)
        super().__init__(opened(store, name, content_key(path, stamp), options), name, stamp)


class RemoteZarr(ListedZarr):
    """A zarr array or group behind a URL."""

    remote = True
    _look_pause = LOOK_PAUSE

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], name: str, options: Mapping[str, Any]
    ) -> None:
        no_options(options, name, _OPTIONS)
        self._url, self._storage_options = url, storage_options
        self._stale = False
        # By our clock: before anything is read.
        self._begun, self._newest = time.time(), 0.0
        self._replaced = self._mixed = self._last_read = 0
        with remote_errors(name, storage_options, url=url):
            self._store = store = open_remote(url, storage_options)
            self._token = token = documents_token(url, storage_options)
            with store.documents(token):
                super().__init__(opened(store, name, token, options), name)
                self._note_document(store)

    @property
    def documents(self) -> dict[str, bytes | None]:
        """What was read to open it: small objects by key, None for one that is not there."""
        found = DOCUMENTS.all_of(self._token)
        return {key: None if d is None else bytes(d) for (key,), d in found.items()}

    @property
    def is_current(self) -> bool:
        """Whether no read failed or brought what is newer, and no listing differed.

        Asking would be a request per look.
        """
        return not (self._failed or self._stale)

    def is_as_of(self, moment: int) -> bool:
        """Whether no object that was read was written since, or read in two versions.

        What answers say of themselves tells; nothing is asked for it.
        """
        if self._failed or self._mixed >= moment:
            return False
        return self._store.newest <= moment * 1e-9 + self._store.ahead + _CLOCKS_APART

    def _list(self) -> str:
        with remote_errors(self.name, self._storage_options, url=self._url):
            return listing_key(self._url, self._store.entries())

    def _forget_stored(self) -> None:
        """Let the next volume read the metadata anew, too."""
        super()._forget_stored()
        self._store.forget_versions()
        self._stale = True
        DOCUMENTS.forget_all(self._token)

    def _stores_chunks(self) -> bool:
        # Of as many objects some are chunks.
        with remote_errors(self.name, self._storage_options, url=self._url):
            found = self._store.entries(_MOST_METADATA)
        return len(found) > _MOST_METADATA or any(_is_chunk(entry.key) for entry in found)

    def _decoded(self, index: Region, box: OrientedBox | None) -> NDArray[Any]:
        with remote_errors(self.name, self._storage_options, url=self._url):
            for left in reversed(range(LOOKS)):
                try:
                    found = super()._decoded(index, box)
                except VolumeChanged:  # of a part of an object: all of it is read anew
                    if not left:
                        raise
                    self._turn_to_newer()
                    continue
                except (CorruptVolume, TruncatedVolume) as error:
                    self._explain(error)
                    raise
                if not self._brought_newer():
                    self._refuse_removed(self._store)
                    self._last_read = time.time_ns()
                    return found
                self._mixed = self._last_read
                self._turn_to_newer()
        raise VolumeChanged(
            f"{self.name} is being written while it is read.",
            do="Make a new Volume once it is written.",
        )

    def _brought_newer(self) -> bool:
        """Whether objects were written since this was opened, or since this was asked last."""
        newest, replaced = self._store.newest, self._store.replaced
        known = max(self._newest, self._begun + self._store.ahead + _CLOCKS_APART)
        if newest <= known and replaced <= self._replaced:
            return False
        self._newest, self._replaced = max(newest, self._newest), replaced
        return True

    def _turn_to_newer(self) -> None:
        """Forget what was read of an older version; ``VolumeChanged`` if its metadata were others.

        Whoever began to read an epoch of the older one is told when the patch is made.
        """
        known = self.documents
        self._forget_stored()
        self._refuse_other(known)

    def _explain(self, error: VoxpipeError) -> None:
        """Let the next volume read the metadata anew; say so where they are others now."""
        known, self._failed = self.documents, True
        DOCUMENTS.forget_all(self._token)
        self._refuse_other(known, error)

    def _refuse_other(
        self, known: Mapping[str, bytes | None], error: VoxpipeError | None = None
    ) -> None:
        changed = [key for key, before in known.items() if self._store.get(key) != before]
        if changed:
            self._failed = True
            raise VolumeChanged(
                f"{self.name} was written again since it was opened: {changed[0]} is another one.",
                do="Make a new Volume once it is written.",
            ) from error

    def fetch(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> int | None:
        """Fetch the stored chunks; errors name the URL."""
        with remote_errors(self.name, self._storage_options, url=self._url):
            return super().fetch(region, channels, box)


class RemoteZipZarr(RemoteChunks, ZarrBackend):
    """A zarr array or group in a zip archive behind a URL, of which ranges are read."""

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], name: str, options: Mapping[str, Any]
    ) -> None:
        self._file = RemoteFile(url, storage_options, name)
        with self._file.errors():
            store = ZipRanges(self._file.store, "", name)
            super().__init__(opened(store, name, self._file.cache_key, options), name)


def opened(store: RangeStore, name: str, token: str, options: Mapping[str, Any]) -> ZarrImage:
    """Return the image in a store, opened by voxpipe or, where it cannot, by zarr-python."""
    level = level_in(options, name)
    try:
        return image_of(open_node(store, name, opening_session().chunks, token), level, name)
    except NotOurs:
        return image_of(open_ranges_node(store, name), level, name)


def level_in(options: Mapping[str, Any], name: str) -> Any:
    """Return which resolution of a pyramid was chosen, 0 for the finest."""
    no_options(options, name, _OPTIONS)
    return options.get("level", 0)


def _still_there(store: LocalRanges | RemoteRanges, key: str) -> bytes | None:
    """Return an object that was there before; None if it is gone, which is asked for again."""
    for _ in range(MOST_MISSING):
        try:
            found = store.get(key)
        except VolumeChanged:  # asked so often already
            return None
        if found is not None:
            return found
    return None


def _is_chunk(key: str) -> bool:
    """Whether an object is a chunk or a shard: below a header of NIfTI-Zarr that is none either."""
    name = key.rpartition("/")[2]
    return name not in (*METADATA_FILES, ".zattrs") and "nifti" not in key.split("/")


def documents_token(url: str, storage_options: Mapping[str, Any]) -> str:
    """Return under which name the metadata of a remote zarr are kept by a process."""
    return content_key(url, (sorted(map(str, storage_options.items())),))


def metadata_stamp(path: str) -> tuple[int, ...]:
    """Return sizes and times of the metadata files of a local node."""
    stamp: list[int] = []
    for name in (*METADATA_FILES, ".zattrs"):
        try:
            status = os.stat(os.path.join(path, name))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise cannot_open(os.path.join(path, name), error) from error
        stamp += (status.st_size, status.st_mtime_ns)
    return tuple(stamp)
