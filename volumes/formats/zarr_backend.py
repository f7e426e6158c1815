"""Zarr arrays, OME-Zarr and NIfTI-Zarr, in folders, archives and buckets.

Chunks are fetched and decoded by voxpipe; what is stored in a way that it does not know
is read by zarr-python. Either way only the chunks that a region touches.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping
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
from ...storage.local_io import file_system_at
from ...storage.location import remote_errors
from ...storage.ranges import LocalRanges, cannot_open
from ...storage.read_ahead import Closes
from ...storage.remote import RemoteFile, open_remote
from ...storage.remote_objects import RemoteObjects
from ...storage.remote_ranges import RemoteRanges
from ...storage.retry import LOOKS, MOST_MISSING, read_anew
from ...storage.small_object_cache import DOCUMENTS
from ...storage.zip_ranges import ZipRanges
from ..backend import Backend, Channels, no_options
from ..chunks.chunk_cache import CHUNKS
from ..chunks.chunked_array import ChunkLayout, Needed
from ..header import Header, Triple
from ..scheme import StoreLayout
from ..voxels import Voxels, plain, refuse_unreadable
from .chunked_backend import OneRemoteFile
from .local_file import file_stamp, is_changed_since
from .zarr_array import NotOurs, ZarrArray, open_node
from .zarr_image import image_of
from .zarr_nodes import (
    METADATA_FILES,
    check_folder,
    fetch_chunks,
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


class ZarrBackend(Backend):
    """A zarr array.

    Parameters
    ----------
    node
        An array or group, ours or zarr-python's.
    name
        What errors call it.
    options
        ``level``: which resolution of a pyramid, 0 is the finest.
    """

    def __init__(
        self, node: Any, name: str, options: Mapping[str, Any], stamp: tuple[int, ...] = ()
    ) -> None:
        no_options(options, name, _OPTIONS)
        level = options.get("level", 0)
        image = image_of(node, level, name)
        IO_COUNTERS.count(headers=1)
        dtype = np.dtype(image.array.dtype)
        refuse_unreadable(dtype, name)
        if min(image.layout.shape) < 1:
            raise BadHeader(f"{name} holds no voxels: {image.layout.stored}.", do="Check the file.")
        self._array, self._layout, self.levels = image.array, image.layout, image.coarser
        self.keeps_chunks = isinstance(image.array, ZarrArray)
        self.culls = isinstance(image.array, ZarrArray) and None not in image.layout.spatial
        self._in_doubt = True
        super().__init__(
            Header(
                image.layout.shape,
                image.affine,
                dtype,
                chunks=image.layout.spatial_part(image.array.chunks),
                access="range",
                slope=image.slope,
                intercept=image.intercept,
                stamp=stamp,
            ),
            name,
        )

    def read(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> Voxels:
        """Read the chunks that the region touches, of these only those that the box touches."""
        index, (first, last) = self._layout.index(region, channels or (0, self.shape[0]))
        decoded = self._decoded(index, box)
        if self._in_doubt:
            self._look_whether_empty(decoded)
        part = self._layout.fold(decoded)
        return Voxels(plain(part[first:last]), self.header.slope, self.header.intercept)

    def _decoded(self, index: tuple[slice, ...], box: OrientedBox | None) -> NDArray[Any]:
        array = self._array
        if isinstance(array, ZarrArray):
            return self._read(index, lambda: array.read(_region(index), *self._culling(box)))

        def read() -> NDArray[Any]:
            return self._read(index, lambda: np.asarray(array[index]))

        # Our own reader does so chunk by chunk.
        return read_anew(read) if self.remote else read()

    def _read(self, index: tuple[slice, ...], read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return what ``read`` returns; what a codec says becomes an error that names the place."""
        try:
            return read()
        except (MemoryError, VoxpipeError):
            raise
        except Exception as error:  # each codec has its own
            where = ", ".join(f"{s.start}:{s.stop}" for s in index)
            raise CorruptVolume(
                f"[{where}] of {self.name} cannot be decoded: {type(error).__name__}: {error}.",
                do="Copy the chunks of this region again.",
            ) from error

    def _look_whether_empty(self, decoded: NDArray[Any]) -> None:
        """Warn, once, if all that was read is fill because nothing is stored at all."""
        if decoded.size and (decoded != decoded.flat[0]).any():
            self._in_doubt = False
        elif decoded.size:
            self._in_doubt = False
            if not self._stores_chunks():
                warn(
                    f"{self.name} has metadata and not one chunk, so every voxel is its fill value "
                    f"{decoded.flat[0]!s}. If it should hold more, copy its chunks too.",
                    EmptyVolume,
                )

    def _stores_chunks(self) -> bool:
        """Whether anything but metadata is stored; True where nobody knows."""
        return True

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Closes | None:
        """Begin to fetch the chunks that the region and the box touch."""
        if not isinstance(self._array, ZarrArray):
            return None
        index, _ = self._layout.index(region, (0, self.shape[0]))
        return self._array.prefetch(_region(index), *self._culling(box))

    def _culling(self, box: OrientedBox | None) -> tuple[Any, ...]:
        axes = self._layout.spatial
        return () if box is None or None in axes else (box, axes)

    @property
    def shards(self) -> Triple | None:
        """Object unit in voxels along I, J, K; None where every chunk is an object."""
        array = self._array
        own = isinstance(array, ZarrArray)
        shards = array.metadata.shards if own else getattr(array, "shards", None)
        return None if shards is None else self._layout.spatial_part(shards)

    def touched_bytes(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> int:
        """Return the bytes of the chunks that a read touches, cut at the array's edge."""
        needed = self.needed(region, channels, box)
        return 0 if needed is None else needed.voxels * self.disk_dtype.itemsize

    def needed(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> Needed | None:
        """Return the chunks that a read fetches and decodes."""
        wanted, array = self._wanted(region, channels), self._array
        if isinstance(array, ZarrArray):
            chunks = array.needed(wanted, *self._culling(box))
            return Needed(chunks, array.voxels(chunks), array.chunk_bytes)
        cuts = ChunkLayout(self._layout.stored, tuple(array.chunks))
        chunks = cuts.touched(wanted)
        size = math.prod(array.chunks) * self.disk_dtype.itemsize
        return Needed(chunks, cuts.voxels(chunks), size)

    def fetch(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> int | None:
        """Fetch the stored chunks that a read needs; None where zarr-python cannot."""
        wanted, array = self._wanted(region, channels), self._array
        if isinstance(array, ZarrArray):
            return array.fetch(wanted, *self._culling(box))
        needed = ChunkLayout(self._layout.stored, tuple(array.chunks)).touched(wanted)
        return fetch_chunks(array, map(tuple, needed.tolist()))

    def _wanted(self, region: Region, channels: Channels | None) -> Region:
        """Return the region as an index of the stored array."""
        return _region(self._layout.index(region, channels or (0, self.shape[0]))[0])


class ListedZarr(ZarrBackend):
    """A zarr array or group of many objects: its content is what a listing of them says."""

    lists = True
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
        array: Any = self._array
        fill = array.metadata.fill_value if isinstance(array, ZarrArray) else array.fill_value
        fill = 0 if fill is None else np.asarray(fill).item()
        return (
            *(tuple(array.shape), np.dtype(array.dtype).str, tuple(array.chunks), fill),
            *(self.header.slope, self.header.intercept),
        )

    def _forget_stored(self) -> None:
        """Forget what was read of other objects than those that are there now."""
        if isinstance(self._array, ZarrArray):
            self._array.forget_stored()

    def forget_content_key(self) -> None:
        """List them again when asked for the next time."""
        self._listed = None

    def _list(self) -> str:
        raise NotImplementedError

    def _note_document(self, store: LocalRanges | RemoteObjects) -> None:
        """Note what says that the array is there: what is missing then is fill."""
        path = self._array.path.strip("/")
        keys = [f"{path}/{name}".lstrip("/") for name in METADATA_FILES]
        found = next(((key, data) for key in keys if (data := store.get(key)) is not None), None)
        key, data = found or (keys[0], b"")
        self._document, self._absences = (key, hashlib.sha256(data).digest()), store.absences

    def _refuse_removed(self, store: LocalRanges | RemoteObjects) -> None:
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
        try:
            node = open_node(self._files, name, CHUNKS, content_key(path, stamp))
            super().__init__(node, name, options, stamp)
        except NotOurs:
            super().__init__(open_ranges_node(self._files, name), name, options, stamp)
        self._note_document(self._files)

    @property
    def is_current(self) -> bool:
        """Whether the metadata are those that were read; ``close_volumes`` forgets chunks too."""
        return not self._failed and metadata_stamp(self._path) == self.header.stamp

    def _decoded(self, index: tuple[slice, ...], box: OrientedBox | None) -> NDArray[Any]:
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
        super().__init__(node, name, options)

    def _list(self) -> str:
        return store_key(*self._place)


class LocalZipZarr(ZarrBackend):
    """A zarr array or group in a local zip archive."""

    def __init__(self, path: str, name: str, options: Mapping[str, Any]) -> None:
        self._path = path
        stamp = file_stamp(path)
        local = LocalRanges(os.path.dirname(path))
        store = ZipRanges(local, os.path.basename(path), name, checks_parts=True)
        token = content_key(path, stamp)
        try:
            super().__init__(open_node(store, name, CHUNKS, token), name, options, stamp)
        except NotOurs:
            super().__init__(open_ranges_node(store, name), name, options, stamp)

    @property
    def is_current(self) -> bool:
        """Whether the archive is the one that was opened."""
        return file_stamp(self._path) == self.header.stamp

    def is_as_of(self, moment: int) -> bool:
        """Whether it also was not replaced since by one of the same size and time of writing."""
        return self.is_current and not is_changed_since(self._path, moment)

    @property
    def content_key(self) -> str:
        """A name for the archive in this version."""
        return content_key(self._path, self.header.stamp)


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
                try:
                    super().__init__(open_node(store, name, CHUNKS, token), name, options)
                except NotOurs:
                    super().__init__(open_ranges_node(store, name), name, options)
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
        if not isinstance(self._store, RemoteRanges):
            return True
        return self._store.newest <= moment * 1e-9 + self._store.ahead + _CLOCKS_APART

    def _list(self) -> str:
        with remote_errors(self.name, self._storage_options, url=self._url):
            return listing_key(self._url, self._store.entries())

    def _forget_stored(self) -> None:
        """Let the next volume read the metadata anew, too."""
        super()._forget_stored()
        if isinstance(self._store, RemoteRanges):
            self._store.forget_versions()
        self._stale = True
        DOCUMENTS.forget_all(self._token)

    def _stores_chunks(self) -> bool:
        # Of as many objects some are chunks.
        with remote_errors(self.name, self._storage_options, url=self._url):
            found = self._store.entries(_MOST_METADATA)
        return len(found) > _MOST_METADATA or any(_is_chunk(entry.key) for entry in found)

    def _decoded(self, index: tuple[slice, ...], box: OrientedBox | None) -> NDArray[Any]:
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
        if not isinstance(self._store, RemoteRanges):
            return False
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


class RemoteZipZarr(OneRemoteFile, ZarrBackend):
    """A zarr array or group in a zip archive behind a URL, of which ranges are read."""

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], name: str, options: Mapping[str, Any]
    ) -> None:
        self._file = RemoteFile(url, storage_options, name)
        with self._file.errors():
            store = ZipRanges(self._file.store, "", name)
            try:
                node = open_node(store, name, CHUNKS, self._file.cache_key)
                super().__init__(node, name, options)
            except NotOurs:
                super().__init__(open_ranges_node(store, name), name, options)

    def _decoded(self, index: tuple[slice, ...], box: OrientedBox | None) -> NDArray[Any]:
        with self._file.errors():
            return super()._decoded(index, box)

    def fetch(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> int | None:
        """Fetch the stored chunks; errors name the URL."""
        with self._file.errors():
            return super().fetch(region, channels, box)


def _still_there(store: LocalRanges | RemoteObjects, key: str) -> bytes | None:
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


def _region(index: tuple[slice, ...]) -> Region:
    return Region(tuple(s.start for s in index), tuple(s.stop for s in index))
