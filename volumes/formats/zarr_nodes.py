"""Opening zarr arrays and groups, with zarr-python, by path, URL or store.

The metadata document is looked at first, so that zarr-python is told the format
and does not probe for others: on an object store each probe is a round trip.

Volumes given as a zarr Store, Array or Group, and how they reach another process. Array and group
travel as their store and their path in it. A store in memory cannot travel; its voxels go through a
temporary file instead.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import uuid
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

from ...core import Region
from ...core.errors import BadHeader, MissingDependency, UnknownFormat, VolumeNotFound, VoxpipeError
from ...core.sample import parse_json
from ...storage.content import content_key, folder_key, listing_key
from ...storage.fsspec_ranges import version_of
from ...storage.ranges import RangeStore
from ..array_source import INLINE_BYTES, original, remember, share_array
from ..backend import Backend
from ..registry import registered_names, resolve_backend
from ..session import SESSION
from ..source import LocatedSource, Options, as_backend

Read = Callable[[str], bytes | None]
"""Returns the content of a file below the node, None where there is none."""

METADATA_FILES = ("zarr.json", ".zarray", ".zgroup")
"""What makes a folder a zarr node."""


def open_ranges_node(ranges: RangeStore, name: str) -> Any:
    """Return the zarr Array or Group at the root of a store of ranges, read by zarr-python.

    Its bytes go through the store, with all that the store checks.
    """
    version, is_array = _kind(ranges.get, name)
    zarr = _zarr(name)
    from ._zarr_python import RangesStore

    return _open(zarr, RangesStore(ranges), name, version, is_array)


def open_store_node(store: Any, path: str = "") -> Any:
    """Return the zarr Array or Group in a store object."""
    import zarr

    # Mode "r" would make zarr copy a store that may write; the user's own is to be used.
    mode: Any = "r" if store.read_only else "r+"
    try:
        # The newer format first; what it finds is not looked for in the older one.
        return zarr.open(store, mode=mode, path=path, zarr_format=3)
    except FileNotFoundError:
        pass
    try:
        return zarr.open(store, mode=mode, path=path, zarr_format=2)
    except FileNotFoundError:
        what = f"the zarr {type(store).__name__} holds no array or group at {path or '/'!r}."
        raise VolumeNotFound(what, do="Write it first, or check the store.") from None


def is_node(thing: Any) -> bool:
    """Whether something is an array or a group, not a store."""
    import zarr

    return isinstance(thing, (zarr.Array, zarr.Group))


def place_of(thing: Any) -> tuple[Any, str]:
    """Return the store of an array, group or store, and the path in it."""
    if not is_node(thing):
        return thing, ""
    return thing.store, thing.path


def store_key(store: Any, path: str) -> str:
    """Return a short key for what lies below a path of a store; empty where nobody can tell.

    Of objects in memory every byte is looked at, of others name, size and version. Stores of
    other kinds say it by an attribute ``content_key``.
    """
    own = getattr(store, "content_key", None)
    if isinstance(own, str) and own:
        return content_key(own, (path,))
    held = getattr(store, "_store_dict", store)
    if isinstance(held, MutableMapping) and (isinstance(held, dict) or held is not store):
        below = f"{path}/" if path else ""
        objects = [(key, held[key]) for key in list(held) if key.startswith(below)]
        return listing_key("memory", [_digested(key, value) for key, value in objects])
    inner = getattr(store, "_store", None)
    if inner is not None:  # a wrapper: it logs, or is slow
        return store_key(inner, path)
    return _listed_key(store, path)


def _digested(key: str, value: Any) -> tuple[str, int, str]:
    data = value.to_bytes() if hasattr(value, "to_bytes") else bytes(value)
    return key, len(data), hashlib.blake2b(data, digest_size=16).hexdigest()


def _listed_key(store: Any, path: str) -> str:
    kind = type(store).__name__
    if kind == "ZipStore":
        status = os.stat(store.path)
        return content_key(os.path.abspath(store.path), (status.st_size, status.st_mtime_ns, path))
    root = getattr(store, "root", None) if kind == "LocalStore" else getattr(store, "path", None)
    if kind == "LocalStore" and root is not None:
        folder = os.path.abspath(os.path.join(os.fspath(root), path))
        return folder_key(folder) if os.path.isdir(folder) else ""
    system = getattr(store, "fs", None)
    if system is None or root is None:
        return ""
    import fsspec

    # The store's own one belongs to the event loop of zarr.
    system = getattr(system, "sync_fs", system)
    said = {**system.storage_options, "asynchronous": False}
    said.pop("loop", None)
    protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
    mine = fsspec.filesystem(protocol, **said)
    below = f"{str(root).rstrip('/')}/{path}".rstrip("/")
    mine.invalidate_cache(below)
    found = mine.find(below, detail=True)
    listed = [(key, int(info.get("size") or 0), version_of(info)) for key, info in found.items()]
    return listing_key(f"{protocol}:{below}", listed)


def _open(zarr: ModuleType, store: Any, name: str, version: int, array: bool) -> Any:
    try:
        if array:
            return zarr.open_array(store=store, path="", mode="r", zarr_format=version)
        # Each array has its own document, of which its limits come; a copy may be an old one.
        return zarr.open_group(
            store=store, path="", mode="r", zarr_format=version, use_consolidated=False
        )
    except (MemoryError, OSError, VoxpipeError):
        raise
    except Exception as error:  # zarr, numcodecs and the codecs of others: each has its own
        raise BadHeader(
            f"zarr-python cannot open {name}: {type(error).__name__}: {error}.",
            do="Write the array again, or install the codec that it asks for.",
        ) from error


def _kind(read: Read, name: str) -> tuple[int, bool]:
    """Return the zarr format of a node, and whether it is an array."""
    document = read("zarr.json")
    if document is not None:
        try:
            return 3, parse_json(document)["node_type"] == "array"
        except (ValueError, KeyError, TypeError):
            raise BadHeader(f"zarr.json of {name} makes no sense.", do="Write it again.") from None
    if read(".zarray") is not None:
        return 2, True
    if read(".zgroup") is not None:
        return 2, False
    raise VolumeNotFound(
        f"{name} holds no zarr metadata: none of {', '.join(METADATA_FILES)} is there.",
        do="Give the path of a zarr array or group; of DICOM, a folder on a local disk.",
    )


def _zarr(name: str) -> ModuleType:
    try:
        import zarr
    except ImportError:
        raise MissingDependency(
            f"{name} is stored in a way that only zarr-python reads, which is not installed.",
            do="pip install zarr",
        ) from None
    return zarr


class ZarrSource:
    """A zarr object that somebody opened."""

    def __init__(
        self, thing: Any, options: Options, *, path: str = "", name: str = "", token: str = ""
    ) -> None:
        self.thing = thing
        self.path = path
        self.options = options
        self.name = name or f"zarr {type(thing).__name__}"
        self.token = token or uuid.uuid4().hex
        self._born = os.getpid()

    def open(self) -> Backend:
        """Open the object with the first backend that recognises it."""
        thing, path = self.thing, self.path
        packed = None if os.getpid() == self._born else self._packed()
        if packed is not None:  # connections do not survive a fork
            thing, path = _unpacked(packed), self._path()
        if path:
            thing = open_store_node(thing, path)
        backend = resolve_backend(self.options.request(zarr_store=thing, source=thing))
        if backend is None:
            raise UnknownFormat(
                f"no backend opens a {self.name}. Backends: {', '.join(registered_names())}.",
                do="Register one, or give a path.",
            )
        return as_backend(backend, self.name)

    def part_of(self, content: str) -> str:
        """Return the name of what the options choose of stored content, e.g. one level of it."""
        return LocatedSource("", self.options, token=self.token).part_of(content)

    def _path(self) -> str:
        return self.path or place_of(self.thing)[1]

    def _packed(self) -> bytes | None:
        """Return the store as a small pickle; None if it cannot travel."""
        store, _ = place_of(self.thing)
        if not _is_in_memory(store):
            # What a store of somebody else's raises is its own business; it then stays here.
            with suppress(Exception):
                packed = pickle.dumps(store)
                return packed if len(packed) <= INLINE_BYTES else None
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        packed = self._packed()
        if packed is not None:
            remember(self)
            return _arrive, (packed, self.options, self._path(), self.name, self.token)
        backend = SESSION.handles.acquire(self)
        whole = Region.of_shape(backend.shape[1:])
        return share_array(self, backend.header, lambda: np.asarray(backend.read(whole).array))


def _arrive(packed: bytes, options: Options, path: str, name: str, token: str) -> Any:
    found = original(token)
    return found or ZarrSource(_unpacked(packed), options, path=path, name=name, token=token)


def _unpacked(packed: bytes) -> Any:
    return pickle.loads(packed)  # noqa: S301  packed by this class, on its way


def _is_in_memory(store: Any) -> bool:
    """Whether a store lives in the memory of this process, wrapped or not."""
    names = {kind.__name__ for kind in type(store).__mro__}
    if names & {"MemoryStore", "KVStore", "GpuMemoryStore"} or isinstance(store, dict):
        return True
    system = getattr(store, "fs", None)
    system = getattr(system, "sync_fs", system)  # zarr 3 wraps systems that are not async
    if type(system).__name__ == "MemoryFileSystem":
        return True
    inner = getattr(store, "_store", None)
    return inner is not None and _is_in_memory(inner)


def fetch_chunks(array: Any, indices: Iterable[tuple[int, ...]]) -> int | None:
    """Return the bytes of the stored chunks of a zarr array, having fetched and dropped them.

    Returns
    -------
    None where this cannot be told apart from decoding: arrays in shards, of which a read takes
    only parts.
    """
    if array.shards is not None:
        return None
    import asyncio

    import zarr
    from zarr.core.sync import sync

    async def every() -> int:
        # As many at a time as zarr-python itself asks for.
        gate = asyncio.Semaphore(int(zarr.config.get("async.concurrency")))

        async def one(index: tuple[int, ...]) -> int:
            async with gate:
                place = array.store_path / array.metadata.encode_chunk_key(index)
                stored = getattr(place.store, "get_stored", None)  # ours may decode them, too
                found = await (place.get() if stored is None else stored(place.path))
            return 0 if found is None else len(found)

        return sum(await asyncio.gather(*(one(index) for index in indices)))

    return sync(every())
