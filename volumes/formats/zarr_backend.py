"""Zarr arrays, OME-Zarr and NIfTI-Zarr, in folders, archives and buckets.

voxpipe fetches and decodes chunks itself, and uses zarr-python for arrays that it does not support.
Both read only the chunks that a region touches.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS, ChunkGrid, Region
from ...core.call_site import warn
from ...core.errors import (
    CorruptVolume,
    LikelyMistake,
    TruncatedVolume,
    UnknownFormat,
    VolumeChanged,
    VolumeNotFound,
    VoxpipeError,
)
from ...core.lru_cache import cached_property
from ...core.suggest import path_hint
from ...storage.content import content_key, documents_token, files_below, listing_key
from ...storage.file_reader import LocalRanges, cannot_open, file_system_at, is_network
from ...storage.location import is_url, public_name
from ...storage.ranges import RangeStore
from ...storage.remote import open_remote
from ...storage.remote_ranges import RemoteRanges
from ...storage.retry import LOOKS, MOST_MISSING, read_anew
from ...storage.zip_ranges import ZipRanges
from ..backend import Channels
from ..header import IDENTITY, Triple
from ..registry import BackendRequest
from ..scheme import StoreLayout
from ..session import opening_session
from ..voxels import Voxels
from . import zarr_nodes
from .chunked_backend import (
    AXES_BY_NAME,
    SPATIAL,
    ChunkedBackend,
    chunked_header,
    refuse_conventions,
    warn_of_coordinates,
)
from .stored_file import Format, LocalStoredFile, StoredFile, library_errors
from .zarr_array import ZarrArray, completeness, dimension_names, open_node, store_key, sums_in
from .zarr_chunks import NotOurs, lost_shard, shard_sum, sum_at, tail_bytes

# Above the number of metadata objects of a pyramid of a few levels.
_MOST_METADATA = 200
# Seconds by which the clock of a store may be ahead. Modification times are in whole seconds.
_CLOCKS_APART = 2.0
LOOK_PAUSE = 1.0
"""Seconds between checks of remote metadata for a volume with missing chunks: one more request a
second is little among thousands."""
_clock = time.monotonic
_DOCUMENTS = (*zarr_nodes.METADATA_FILES, ".zattrs")


def stored_sum(array: Any, index: Sequence[int]) -> bytes | None:
    """Return the :func:`shard_sum` of a shard of zarr-python's array; None if it is missing."""
    from zarr.abc.store import SuffixByteRequest
    from zarr.core.sync import sync

    pairs = zip(array.shards or array.chunks, array.chunks, strict=True)
    request = SuffixByteRequest(tail_bytes(math.prod(s // c for s, c in pairs)))
    place = array.store_path / array.metadata.encode_chunk_key(tuple(index))
    tail = sync(place.get(byte_range=request))
    return None if tail is None else shard_sum(tail.to_bytes())


class ForeignArray:
    """An array that zarr-python reads, with the methods of ``ChunkedArray``, without culling."""

    def __init__(self, array: Any, name: str) -> None:
        self._array, self.path, self._name = array, array.path, name
        self.shape, self.chunks = tuple(array.shape), tuple(array.chunks)
        self.dtype = np.dtype(array.dtype)
        self.shards, self.fill_value = getattr(array, "shards", None), array.fill_value
        self.chunk_bytes = math.prod(self.chunks) * self.dtype.itemsize
        self._cuts = ChunkGrid(self.shape, self.chunks)
        self._whole = self.shards is not None and completeness(array) is True
        self._shards: set[tuple[int, ...]] = set()  # known to be sound
        self._sums = sums_in(dict(array.attrs))
        refuse_conventions(dict(array.attrs), name)

    def needed_chunks(self, region: Region) -> NDArray[np.int64]:
        return self._cuts.touched_parts(region.pad(0))

    def needed_voxels(self, region: Region) -> int:
        return self._cuts.voxels(self.needed_chunks(region))

    def read(self, region: Region, *, counts: bool = False) -> NDArray[Any]:
        """Return a region; read it again after a damaged transfer."""
        if counts:
            size = self.needed_voxels(region) * self.dtype.itemsize
            IO_COUNTERS.count(reads=1, bytes_read=size)
        where = ", ".join(f"{start}:{stop}" for start, stop in region)
        what = f"[{where}] of {self._name} cannot be decoded"

        def read() -> NDArray[Any]:
            with library_errors(what, kind=CorruptVolume):
                if self._whole:
                    self._refuse_lost(region)
                return np.asarray(self._array[region.slices])

        return read_anew(read)

    def _refuse_lost(self, region: Region) -> None:
        """Raise ``CorruptVolume`` for a shard that zarr-python reads as fill, or as another."""
        grid = ChunkGrid(self.shape, self.shards or self.chunks)
        shards = grid.touched_parts(region.pad(0))
        for index in {*map(tuple, shards.tolist())} - self._shards:
            key = self._array.metadata.encode_chunk_key(index)
            own = stored_sum(self._array, index)
            number = np.ravel_multi_index(index, grid.counts)
            if own is None or (self._sums and own != sum_at(self._sums, int(number))):
                place = f"{self.path}/{key}".lstrip("/")
                raise lost_shard(place, self._name, is_there=own is not None)
            self._shards.add(index)

    def prefetch(self, region: Region) -> None:
        """Do nothing: zarr-python fetches in each read."""

    def fetch(self, region: Region) -> int | None:
        """Fetch the stored chunks of a region, drop them and return their bytes.

        None for shards: zarr-python reads parts of them, and only to decode them.
        """
        if self.shards is not None:
            return None
        import zarr
        from zarr.core.sync import sync

        async def fetch_all() -> int:
            # As many at a time as zarr-python itself requests.
            gate = asyncio.Semaphore(int(zarr.config.get("async.concurrency")))

            async def fetch_one(index: list[int]) -> int:
                async with gate:
                    key = self._array.metadata.encode_chunk_key(tuple(index))
                    place = self._array.store_path / key
                    get_stored = getattr(place.store, "get_stored", None)  # our get() decodes
                    content = await (place.get() if get_stored is None else get_stored(place.path))
                return 0 if content is None else len(content)

            return sum(await asyncio.gather(*map(fetch_one, self.needed_chunks(region).tolist())))

        return sync(fetch_all())

    def forget_stored(self) -> None:
        """Do nothing: nothing is kept."""


class ZarrBackend(ChunkedBackend):
    """A zarr array, read by voxpipe or by zarr-python."""

    _array: ZarrArray | ForeignArray

    def __init__(
        self,
        image: zarr_nodes.ZarrImage,
        name: str,
        files: Sequence[StoredFile] = (),
        stamp: tuple[int, ...] = (),
    ) -> None:
        IO_COUNTERS.count(headers=1)
        array, layout = image.array, image.layout
        dtype = np.dtype(array.dtype)
        header = chunked_header(layout, array.chunks, dtype, name, image.affine, image.scale, stamp)
        self.levels = image.coarser
        self.keeps_chunks = isinstance(array, ZarrArray)
        own = array if self.keeps_chunks else ForeignArray(array, name)
        super().__init__(own, layout, files, header, name)

    @property
    def metadata(self) -> Any:
        """Metadata of the array; None where zarr-python reads it."""
        return getattr(self._array, "metadata", None)

    @property
    def shards(self) -> Triple | None:
        shards = self._array.shards
        return None if shards is None else replace(self._layout, sizes=shards).shape[1:]


class ListedZarr(ZarrBackend):
    """A zarr array or group of many objects, whose listing defines its content."""

    lists = True
    _listing: str | None = None
    _before: str | None = None
    _has_failed = False
    _look_pause = 0.0
    _last_look = -math.inf
    _document: tuple[str, bytes]

    @property
    def content_key(self) -> str:
        """Digest of the header and of names, sizes and versions of all objects; listed once."""
        # Without the header, missing chunks would have the fill value of a later header.
        listing = self._listing
        if listing is None:
            listing = self._list()
            if self._before not in (None, listing):
                self._forget_stored()
            self._listing = self._before = listing
        if not listing:
            return ""
        # The metadata that define values, in the same form from voxpipe and from zarr-python.
        array, header = self._array, self.header
        fill = 0 if array.fill_value is None else np.asarray(array.fill_value).item()
        kind = tuple(array.shape), np.dtype(array.dtype).str, tuple(array.chunks), fill
        return content_key(listing, (*kind, header.slope, header.intercept))

    def _forget_stored(self) -> None:
        self._array.forget_stored()

    def forget_content_key(self) -> None:
        self._listing = None

    def _list(self) -> str:
        raise NotImplementedError

    def _own(self, entries: Iterable[Any]) -> Iterator[Any]:
        """Yield the entries of a listing without label groups, which may be added later."""
        is_label = self._array.path.startswith("labels/")
        return (entry for entry in entries if is_label or not entry[0].startswith("labels/"))

    def _note_document(self, store: LocalRanges | RemoteRanges) -> None:
        """Record the metadata document: while it is unchanged, missing chunks are fill."""
        path = self._array.path.strip("/")
        keys = [f"{path}/{name}".lstrip("/") for name in zarr_nodes.METADATA_FILES]
        entry = next(((key, data) for key in keys if (data := store.get(key)) is not None), None)
        key, data = entry or (keys[0], b"")
        self._document = key, hashlib.sha256(data).digest()
        self._store, self._absences = store, store.absences

    def _look_into(self, voxels: Voxels) -> None:
        """Raise ``VolumeChanged`` if the array was removed; warn if nothing is stored of it."""
        if self._store is not None and self._store.absences != self._absences:
            self._refuse_removed()
        super()._look_into(voxels)

    def _refuse_removed(self) -> None:
        """Raise ``VolumeChanged`` if chunks are missing because the array was removed."""
        # One look at its document explains all chunks missing so far.
        absences = self._store.absences
        if _clock() < self._last_look + self._look_pause:
            return
        key, digest = self._document
        data = _still_there(self._store, key)
        if data is not None and hashlib.sha256(data).digest() == digest:
            self._absences, self._last_look = absences, _clock()
            return
        self._forget_stored()
        self._has_failed = True
        how, now = ("removed", "is gone") if data is None else ("written again", "has changed")
        raise VolumeChanged(f"{self.name} was {how} since it was opened: {key} {now}.")


class LocalZarr(ListedZarr):
    """A zarr array or group in a local folder."""

    def __init__(self, path: str, name: str, level: Any, follow: str, axes: Any) -> None:
        self._path = path
        self._start = time.time_ns()
        if not os.path.isdir(path):
            if not os.path.exists(path):
                raise VolumeNotFound(f"there is no folder {path}.", do=path_hint(path))
            raise UnknownFormat(f"{name} is a file, and zarr is a folder.", do="Check the path.")
        stamp = metadata_stamp(path)
        self._files = LocalRanges(path, strict=follow != "anywhere")
        image = open_image(self._files, name, content_key(path, stamp), level, axes)
        super().__init__(image, name, stamp=stamp)
        self._note_document(self._files)
        # An array in a group has metadata of its own.
        below = str(getattr(image.array, "path", "")).strip("/")
        self._array_path = os.path.join(path, below) if below else ""
        self._array_stamp = metadata_stamp(self._array_path) if below else ()

    @property
    def is_current(self) -> bool:
        """Whether the metadata are unchanged; ``close_volumes`` forgets chunks too."""
        if self._array_path and metadata_stamp(self._array_path) != self._array_stamp:
            self._forget_stored()
            return False
        return not self._has_failed and metadata_stamp(self._path) == self.header.stamp

    def is_as_of(self, moment: int) -> bool:
        """Whether the metadata, and all chunks since ``moment``, are unchanged."""
        # File servers have clocks of their own: compare only metadata there.
        if moment < self._files.newest <= time.time_ns() and not self._network:
            return False
        return not self._has_failed and metadata_stamp(self._path) == self.header.stamp

    @cached_property
    def _network(self) -> bool:
        return is_network(file_system_at(self._path)) is not None

    def forget_content_key(self) -> None:
        super().forget_content_key()
        self._start = time.time_ns()

    def _list(self) -> str:
        return listing_key(self._path, self._own(files_below(self._path)))

    def stores_chunks(self) -> bool:
        # If files changed, missing chunks may be a change, which the pass reports.
        if self._start < self._files.newest and not self._network:
            self._in_doubt = True
            return True
        has_chunks = any(map(_is_chunk, self._files.list()))
        return has_chunks or metadata_stamp(self._path) != self.header.stamp  # removed meanwhile

    def layout(self, volumes: int = 1) -> StoreLayout:
        store = super().layout(volumes)
        return store.on_network() if self._network else store


class StoreZarr(ListedZarr):
    """A zarr object that the user opened."""

    def __init__(self, thing: Any, level: Any, axes: Any) -> None:
        name = f"zarr {type(thing).__name__}"
        self._place = zarr_nodes.place_of(thing)
        node = thing if zarr_nodes.is_node(thing) else zarr_nodes.open_store_node(thing)
        super().__init__(zarr_nodes.image_of(node, level, name, axes), name)

    def _list(self) -> str:
        return store_key(*self._place)


class RemoteZarr(ListedZarr):
    """A remote zarr array or group."""

    _look_pause = LOOK_PAUSE

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], name: str, level: Any, axes: Any
    ) -> None:
        self._url = url
        self._stale = False
        # By our clock, before the first read.
        self._start, self._newest = time.time(), 0.0
        self._replaced_at = self._mixed_at = self._last_read = 0
        self._remote = store = open_remote(url, storage_options)
        self._token = token = documents_token(url, storage_options)
        self._documents = opening_session().ahead.documents
        with store.documents(token, self._documents):
            super().__init__(open_image(store, name, token, level, axes), name)
            self._note_document(store)
        self.remote = True

    @property
    def documents(self) -> dict[str, bytes | None]:
        """The metadata objects read to open it, by key; None for a missing one."""
        entries = self._documents.all_of(self._token)
        return {key: None if d is None else bytes(d) for (key,), d in entries.items()}

    @property
    def is_current(self) -> bool:
        """Whether no read failed or returned newer objects, and no listing differed."""
        # No request: it would be one for each call.
        return not (self._has_failed or self._stale)

    def is_as_of(self, moment: int) -> bool:
        """Whether no object was written after ``moment`` or read in two versions.

        Uses the modification times in the answers, without requests.
        """
        if self._has_failed or self._mixed_at >= moment:
            return False
        return self._remote.newest <= moment * 1e-9 + self._remote.health.ahead + _CLOCKS_APART

    def _list(self) -> str:
        return listing_key(self._url, self._own(self._remote.entries()))

    def _forget_stored(self) -> None:
        """Forget chunks, and metadata for the next volume."""
        super()._forget_stored()
        self._remote.forget_versions()
        self._stale = True
        self._documents.forget(self._token)

    def stores_chunks(self) -> bool:
        # More objects than this include chunks.
        entries = self._remote.entries(_MOST_METADATA)
        return len(entries) > _MOST_METADATA or any(_is_chunk(entry.key) for entry in entries)

    def _look_into(self, voxels: Voxels) -> None:
        """Do nothing; ``read`` checks missing chunks after its retries."""

    def read(
        self, region: Region, channels: Channels | None = None, *, counts: bool = False
    ) -> Voxels:
        """Read chunks; read all again if some are newer than others."""
        for remaining in reversed(range(LOOKS)):
            try:
                voxels = super().read(region, channels, counts=counts and remaining == LOOKS - 1)
            except VolumeChanged:  # in the middle of an object
                if not remaining:
                    raise
                self._turn_to_newer()
                continue
            except (CorruptVolume, TruncatedVolume) as error:
                documents, self._has_failed = self.documents, True
                self._documents.forget(self._token)
                self._refuse_other(documents, error)
                raise
            if not self._brought_newer():
                self._last_read = time.time_ns()
                super()._look_into(voxels)
                return voxels
            self._mixed_at = self._last_read
            self._turn_to_newer()
        raise VolumeChanged(f"{self.name} is being written while it is read.")

    def _brought_newer(self) -> bool:
        """Whether objects were written since the opening or the last call."""
        newest, replaced_at = self._remote.newest, self._remote.replaced_at
        limit = max(self._newest, self._start + self._remote.health.ahead + _CLOCKS_APART)
        if newest <= limit and replaced_at <= self._replaced_at:
            return False
        self._newest, self._replaced_at = max(newest, self._newest), replaced_at
        return True

    def _turn_to_newer(self) -> None:
        """Forget the older version; raise ``VolumeChanged`` if its metadata differ.

        An epoch that began with the older version is reported when the patch is made.
        """
        documents = self.documents
        self._forget_stored()
        self._refuse_other(documents)

    def _refuse_other(
        self, documents: Mapping[str, bytes | None], error: VoxpipeError | None = None
    ) -> None:
        keys = [key for key, before in documents.items() if self._remote.get(key) != before]
        if keys:
            self._has_failed = True
            msg = f"{self.name} was written again since it was opened: {keys[0]} has changed."
            raise VolumeChanged(msg) from error


def open_zip(file: StoredFile, level: Any = 0, axes: Any = None) -> ZarrBackend:
    """Return the backend of a zarr array or group in a zip archive."""
    checks = isinstance(file, LocalStoredFile)
    roots = zarr_nodes.METADATA_FILES
    store = ZipRanges(file.store, file.key, file.name, checks_parts=checks, roots=roots)
    image = open_image(store, file.name, file.cache_key, level, axes)
    return ZarrBackend(image, file.name, [file])


def open_zarr(request: BackendRequest, name: str, level: Any = 0, axes: Any = None) -> ZarrBackend:
    """Return the backend of a zarr array or group of several objects."""
    url = "" if request.path else request.remote_zarr_uri or request.uri or ""
    path = os.fspath(request.path or "")
    backend: ListedZarr
    if request.zarr_store is not None:
        backend = StoreZarr(request.zarr_store, level, axes)
    elif url:
        backend = RemoteZarr(url, request.storage_options, name, level, axes)
    else:
        backend = LocalZarr(path, name, level, request.follow, axes)
    if vars(request)["affine"] is None and backend.header.affine == IDENTITY:
        if request.zarr_store is not None:
            _warn_of_level(_group_above(request.zarr_store), "its group", backend)
        elif parent := _PARENT.fullmatch(url or path):
            options, image = request.storage_options, parent[1]
            group = open_remote(image, options) if is_url(image) else LocalRanges(image)
            _warn_of_level(group.get, public_name(image), backend)
    return backend


_IN_ARCHIVE = re.compile(r"\.(?:zarr\.zip|ozx)/", re.IGNORECASE)
# An array in a folder that may be an image.
_PARENT = re.compile(r"(.*\.zarr(?:/[^?#]+)?)/[^/?#]+/?")


def _warn_of_level(get: Callable[[str], bytes | None], image: str, backend: ZarrBackend) -> None:
    """Warn of an array opened alone, if its place is in its group, which ``get`` reads."""
    name = backend.name
    with suppress(VoxpipeError):  # a group without access
        if any(b"multiscales" in (get(key) or b"") for key in ("zarr.json", ".zattrs")):
            what = f"level-without-place: {name} is one array of {image}, whose metadata place it"
            warn(f"{what}. Open {image} with ⟦level=⟧, or pass ⟦affine=⟧.", LikelyMistake)
        names = dimension_names(getattr(backend._array, "_array", backend._array))
        axes = [axis for axis in names if AXES_BY_NAME.get(str(axis).lower()) in SPATIAL]
        # xarray writes the coordinates of an axis as an array of its name.
        is_one = any(get(f"{axes[-1]}/{key}") for key in ("zarr.json", ".zarray") if axes)
        warn_of_coordinates(axes if is_one else (), name)


def _group_above(thing: Any) -> Callable[[str], bytes | None]:
    """Return a reader of objects by their key in the group of an array, group or store."""
    from zarr.core.sync import sync
    from zarr.storage import FsspecStore, LocalStore, StorePath

    store, path = zarr_nodes.place_of(thing)
    # A store may begin at the array itself.
    if not path and isinstance(store, LocalStore):
        store, path = LocalStore(store.root.parent, read_only=True), store.root.name
    elif not path and isinstance(store, FsspecStore):
        parent, _, path = store.path.rpartition("/")
        store = FsspecStore(store.fs, read_only=True, path=parent)
    group = path.rpartition("/")[0]

    def get(key: str) -> bytes | None:
        content = sync((StorePath(store, group) / key).get()) if path else None
        return None if content is None else content.to_bytes()

    return get


def _is_zarr(request: BackendRequest) -> bool:
    if request.zarr_store is not None:
        return True
    if request.path is None:
        # A URL without a suffix may be a folder; its metadata decide.
        name = public_name(request.uri or "").rstrip("/")
        folder = "." not in name.rpartition("/")[2]
        if _IN_ARCHIVE.search(name):
            return False
        return request.remote_zarr_uri is not None or (bool(request.uri) and folder)
    place = os.fspath(request.path)
    if os.path.isdir(place):
        return any(os.path.exists(os.path.join(place, name)) for name in zarr_nodes.METADATA_FILES)
    return place.lower().endswith(".zarr")


FORMATS = (
    # Before "zarr", which accepts every URL with .zarr in it.
    Format("zarr-zip", (".zarr.zip", ".ozx"), open_zip, ("level", "axes"), rank=-1),
    Format("zarr", (".zarr",), open_zarr, ("level", "axes"), matches=_is_zarr, rank=-1),
)


def open_image(
    store: RangeStore, name: str, token: str, level: Any, axes: Any = None
) -> zarr_nodes.ZarrImage:
    """Return the image in a store, opened by voxpipe or else by zarr-python.

    ``level`` is the resolution of a pyramid, 0 for the finest.
    """
    try:
        node = open_node(store, name, opening_session().chunks, token)
        return zarr_nodes.image_of(node, level, name, axes)
    except NotOurs:
        node = zarr_nodes.open_ranges_node(store, name)
        return zarr_nodes.image_of(node, level, name, axes)


def _still_there(store: LocalRanges | RemoteRanges, key: str) -> bytes | None:
    """Return an object that existed before; None if repeated requests miss it."""
    for _ in range(MOST_MISSING):
        try:
            content = store.get(key)
        except VolumeChanged:  # the store has repeated the request
            return None
        if content is not None:
            return content
    return None


def _is_chunk(key: str) -> bool:
    """Whether an object is a chunk or a shard, not metadata or a part of the NIfTI header."""
    return key.rpartition("/")[2] not in _DOCUMENTS and "nifti" not in key.split("/")


def metadata_stamp(path: str) -> tuple[int, ...]:
    """Return sizes and modification times of the metadata files of a local node."""
    stamp: list[int] = []
    for name in _DOCUMENTS:
        try:
            status = os.stat(f"{path}{os.sep}{name}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise cannot_open(os.path.join(path, name), error) from error
        stamp += (status.st_size, status.st_mtime_ns)
    return tuple(stamp)
