"""The owner of what reads of volumes hold: open files, decoded chunks, bytes on their way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakSet

from ..storage.read_ahead import AHEAD, ReadAhead
from .backend import Backend
from .chunks.chunk_cache import CHUNKS, ChunkCache
from .handles import Handles, Opener, Versions


class Session:
    """One owner of all that reads of volumes hold. Two in one process share nothing of it.

    A process has one by default, :data:`SESSION`, which volumes use unless they are bound to
    another: ``volume.in_session(session)``. What a volume is bound to does not travel: in another
    process it uses the one there.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.volumes import Volume
    >>> session = Session()
    >>> volume = Volume(np.zeros((4, 4, 4), np.int16)).in_session(session)
    >>> volume.numpy().shape, len(session.handles)
    ((1, 4, 4, 4), 0)
    """

    def __init__(self, chunks: ChunkCache | None = None, ahead: ReadAhead | None = None) -> None:
        self.handles = Handles(open_source=self._open)
        """Open backends."""
        self.chunks = ChunkCache(0) if chunks is None else chunks
        """Decoded chunks; who reads lends it memory."""
        self.ahead = ReadAhead() if ahead is None else ahead
        """Stored bytes that were asked for before they are needed."""
        self.versions = Versions()
        """The versions of volumes that passes read."""
        _EVERY.add(self)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Let what is opened inside the ``with`` block belong to this session."""
        token = _OPENING.set(self)
        try:
            yield
        finally:
            _OPENING.reset(token)

    def _open(self, source: Opener) -> Backend:
        with self.opening():
            return source.open()

    def close(self) -> None:
        """Let go of everything; the next read opens and fetches again."""
        self.ahead.clear()
        self.handles.close()
        self.chunks.clear()

    def forget_parent(self) -> None:
        """Start empty in a forked child, whose locks may be held by threads it lacks."""
        self.handles.forget_parent()
        self.chunks.forget_parent()
        self.ahead.forget_parent()


_EVERY: WeakSet[Session] = WeakSet()
_OPENING: ContextVar[Session | None] = ContextVar("opening", default=None)
SESSION = Session(CHUNKS, AHEAD)
"""The one of this process, for volumes that are bound to no other."""


def opening_session() -> Session:
    """Return the session whose backend is being opened; by default that of the process."""
    return _OPENING.get() or SESSION


def close_volumes() -> None:
    """Close the files that volumes of this process hold open; the next read opens them again."""
    SESSION.close()


def _after_fork() -> None:
    for session in list(_EVERY):
        session.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
