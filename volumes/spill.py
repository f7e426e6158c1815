"""Voxels in memory that another process must see: one temporary file, owned by the original."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backend import Backend, ViewBackend
from .header import Header
from .npy import map_npy

_PATHS: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()
_ORIGINALS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_WRITING = threading.Lock()


class SpilledSource:
    """The temporary file of voxels that are in the memory of another process."""

    def __init__(self, path: str, token: str, name: str, header: Header) -> None:
        self.path = path
        self.token = token
        self.name = name
        self._header = header

    def open(self) -> Backend:
        """Map the file."""
        return ViewBackend(map_npy(self.path, self.name), self._header, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return arrive, (self.path, self.token, self.name, self._header)


def travel(source: Any, header: Header, voxels: Callable[[], NDArray[Any]]) -> tuple[Any, ...]:
    """Return what ``__reduce__`` of a source in memory returns.

    Parameters
    ----------
    source
        The original: it has a ``token`` and a ``name``, and owns the file.
    header
        What the other process answers without reading.
    voxels
        Returns the stored numbers (C, I, J, K); called the first time only.
    """
    remember(source)
    with _WRITING:
        owner, path = _PATHS.get(source, (0, ""))
        # A forked child writes a file of its own: the parent's goes with the parent's object.
        if owner != os.getpid():
            path = _write(voxels(), source)
            _PATHS[source] = (os.getpid(), path)
    return arrive, (path, source.token, source.name, header)


def arrive(path: str, token: str, name: str, header: Header) -> Any:
    """Return the original if it lives in this process, else the source of its file."""
    return original(token) or SpilledSource(path, token, name, header)


def remember(source: Any) -> None:
    """Let copies that come back to this process find ``source``."""
    _ORIGINALS[source.token] = source


def original(token: str) -> Any:
    """Return the living source of this token in this process, or None."""
    return _ORIGINALS.get(token)


def _write(array: NDArray[Any], owner: Any) -> str:
    handle, path = tempfile.mkstemp(prefix="voxpipe-", suffix=".npy")
    weakref.finalize(owner, _remove, path, os.getpid())
    with os.fdopen(handle, "wb") as file:
        np.save(file, array, allow_pickle=False)
    return path


def _remove(path: str, owner: int) -> None:
    # A forked child holds a copy of the owner; the file is not its own.
    if os.getpid() == owner and os.path.exists(path):
        os.unlink(path)


def _renew_lock() -> None:
    """Forget a lock that a thread of the parent may have held at the fork."""
    global _WRITING
    _WRITING = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
