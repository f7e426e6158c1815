"""Volumes given as a zarr Store, Array or Group, and how they reach another process.

Array and group travel as their store and their path in it. A store in memory
cannot travel; its voxels go through a temporary file instead.
"""

from __future__ import annotations

import os
import pickle
import uuid
from contextlib import suppress
from typing import Any

import numpy as np

from ...core import Region
from ...core.errors import UnknownFormat
from ..array_source import INLINE_BYTES
from ..backend import Backend
from ..handles import HANDLES
from ..registry import registered_names, resolve_backend
from ..source import LocatedSource, Options, as_backend
from ..spill import original, remember, travel
from .zarr_nodes import open_store_node, place_of


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
        backend = HANDLES.acquire(self)
        whole = Region.of_shape(backend.shape[1:])
        return travel(self, backend.header, lambda: np.asarray(backend.read(whole).array))


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
