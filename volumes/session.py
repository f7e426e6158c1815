"""The session of a process: open files, decoded chunks, bytes on their way."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from ..core.context import holding
from ..core.errors import VolumeChanged
from ..core.locks import DeferredActs, ForkSafeLock, renew_after_fork
from ..core.lru_cache import LRUCache
from ..storage.content import documents_token
from ..storage.read_ahead import AHEAD, ReadAhead
from .backend import Backend
from .chunks.chunk_cache import CHUNKS, ChunkCache
from .header import Header

# A mapped file costs one of the 65530 maps and of the 1024 descriptors that Linux grants a process
# by default; all of voxpipe's shall stay below 64 (testing/store_contract.py).
MOST_HANDLES = 48
# What lies behind a URL takes no descriptor; what was read of its metadata, 11 kB as measured.
MOST_REMOTE_HANDLES = 4096
# Voxels that a reader returned live in memory as long as their handle.
MOST_RESIDENT_BYTES = 2 * 1024**3


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


class _Handle:
    """A backend that is open or about to be, and the lock of whoever opens it."""

    uses = itertools.count()

    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.backend: Backend | None = None
        self.use = next(self.uses)  # the largest is of what was used last


def _is_far(backend: Backend | None) -> bool:
    """Whether all that a backend reads lies behind URLs."""
    parts = getattr(backend, "below", ())
    return backend is not None and backend.remote and all(map(_is_far, parts))


def _was_read(backend: Backend | None) -> bool:
    """Whether a reader of the user has read a local file or folder, which is unchanged since."""
    version = None if backend is None else backend.first_version
    return version is not None and bool(version.is_current)


class Handles:
    """Open backends of one process by the token of their source.

    A volume that arrives with every batch finds the handle that the first one opened. The least
    recently used go when there are too many; whoever reads from one keeps it until done.
    """

    def __init__(
        self,
        most: int = MOST_HANDLES,
        most_bytes: int = MOST_RESIDENT_BYTES,
        most_remote: int = MOST_REMOTE_HANDLES,
        open_source: Callable[[Source], Backend] = lambda source: source.open(),
    ) -> None:
        self._open = open_source
        self._most, self._most_remote = most, most_remote
        self._most_bytes = most_bytes
        self._lock = ForkSafeLock()
        self._acts = DeferredActs(self._lock)
        self.by_token: dict[str, _Handle] = {}
        # What a forked child found of its parent. Dropping it would run the parent's
        # clean-up in the child, with locks and threads that do not exist there.
        self._parent_handles: list[dict[str, _Handle]] = []
        renew_after_fork(self)

    def acquire(self, source: Source, *, verify: bool = False) -> Backend:
        """Return the open backend of ``source``.

        Of voxels in memory the source holds it: here it would keep the array when the volume is
        gone.
        """
        own: Backend | None = getattr(source, "backend", None)
        if own is not None:
            return own
        # Asked before the lock is taken: a source may have to open others to tell.
        token = source.token
        with self._acts, self._lock:
            handle = self.by_token.get(token)
            if handle is None:
                handle = self.by_token[token] = _Handle()
            handle.use = next(handle.uses)
        backend = handle.backend
        if backend is not None and not verify:
            return backend
        opens = False
        try:
            with handle.opening:
                backend = handle.backend
                if opens := backend is None or (verify and not backend.is_current):
                    # Gone before: of a file that is open HDF5 opens what it was once more.
                    backend = handle.backend = None
                    backend = handle.backend = self._open(source)
                elif verify and not backend.remote:
                    # Chunks may be others under the same metadata. A bucket is listed again
                    # where copies are made of it: a listing per look would be a request each.
                    backend.forget_content_key()
                return backend
        finally:
            if opens:
                self.trim()

    def forget_content_key(self, token: str) -> None:
        """Let an open backend look again at what is stored; one that is not open does so anyway."""
        with self._acts, self._lock:
            handle = self.by_token.get(token)
        if handle is not None and handle.backend is not None:
            handle.backend.forget_content_key()

    def drop(self, token: str) -> None:
        """Open a source again at its next use."""
        with self._acts, self._lock:
            self.by_token.pop(token, None)

    def opened_again(self, source: Source, last: Backend) -> Backend:
        """Return the open backend of ``source``, but not the one that was open last."""
        self.acquire(source)
        with self._acts, self._lock:
            handle = self.by_token.get(source.token)
            if handle is not None and handle.backend is last:
                del self.by_token[source.token]
        return self.acquire(source)

    def agreeing(self, source: Source, header: Header) -> Backend:
        """Return the open backend of ``source``, opened again unless it is what is known of it."""
        backend = self.acquire(source)
        if backend.header == header:
            return backend
        # The file may have been written again since, or only touched.
        del backend
        backend = self.acquire(source, verify=True)
        if not backend.header.agrees_with(header):
            raise VolumeChanged(
                f"{source.name} has changed since its header was read: it was "
                f"{header.shape} {header.disk_dtype} and is "
                f"{backend.shape} {backend.disk_dtype}, or lies elsewhere.",
                do="Make a new Volume once the file is written.",
            )
        return backend

    def close(self) -> None:
        """Drop every handle."""
        self._acts.defer(self.by_token.clear)

    def close_one(self, token: str, path: str) -> None:
        """Drop the handles of one source, and of all that read the local file ``path``."""
        with self._acts, self._lock:
            for own, handle in [*self.by_token.items()]:
                files = getattr(handle.backend, "files", ())
                if own == token or (path and path in [getattr(f, "path", "") for f in files]):
                    del self.by_token[own]

    def close_local(self, *, keeps_read: bool = False) -> None:
        """Drop the handles of local files; ``keeps_read``: not of those that a reader read."""
        with self._acts, self._lock:
            handles = self.by_token.items()
            self.by_token = {
                token: one
                for token, one in handles
                if _is_far(one.backend) or (keeps_read and _was_read(one.backend))
            }

    def after_fork(self) -> None:
        """Start empty in a forked child."""
        self._parent_handles.append(self.by_token)
        self.by_token = {}

    def __len__(self) -> int:
        return len(self.by_token)

    def trim(self) -> None:
        """Drop what is too much: after one was opened, or an open one took a descriptor."""
        with self._acts, self._lock:
            oldest = sorted(self.by_token.items(), key=lambda entry: entry[1].use)
            backends = {token: handle.backend for token, handle in oldest if handle.backend}
            resident = sum(backend.resident_bytes for backend in backends.values())
            # Asked once: a read may give a backend its descriptor meanwhile.
            far = {token for token, backend in backends.items() if not backend.holds_descriptor}
            remote, local = len(far), len(oldest) - len(far)
            # The newest stays, however large: it is about to be read.
            for token, _ in oldest[:-1]:
                many, few = resident > self._most_bytes, local <= self._most
                if not many and few and remote <= self._most_remote:
                    return
                is_far = token in far
                if many or (remote > self._most_remote if is_far else not few):
                    del self.by_token[token]
                    resident -= backends[token].resident_bytes if token in backends else 0
                    remote, local = remote - is_far, local - (not is_far)


# Of 400 bytes each. Of more volumes, those that were read longest ago may change unnoticed.
MOST_VERSIONS = 16_384


class OpenedVersion(NamedTuple):
    """Which version of a volume a process has opened first, of those that one pass reads."""

    key: tuple[str, str]  # the pass, and the token of the volume
    version: Hashable  # what tells it from others
    moment: int  # when, in nanoseconds since 1970
    name: str  # what messages call the volume
    case: str = ""  # of which case it is, where that is known


class Versions:
    """The versions of volumes that passes read in this process, the first of each."""

    def __init__(self) -> None:
        self._first: LRUCache[OpenedVersion] = LRUCache(MOST_VERSIONS)
        self._new: deque[OpenedVersion] = deque(maxlen=MOST_VERSIONS)

    def first(self, version: OpenedVersion) -> OpenedVersion:
        """Return what was opened first of the same volume in the same pass: this, or another."""

        def note() -> OpenedVersion:
            self._new.append(version)
            return version

        return self._first.get_or(version.key, note)

    def take(self) -> tuple[OpenedVersion, ...]:
        """Return those that were opened since this was asked last."""
        new = []
        with contextlib.suppress(IndexError):
            while True:
                new.append(self._new.popleft())
        return tuple(new)


class Session:
    """One owner of what reads of volumes hold; two in one process share none of the four below.

    What they share belongs to files, and not to reads: maps of local files and hints to the kernel.

    A process has one by default, :data:`SESSION`, which volumes use unless they are bound to
    another: ``volume.in_session(session)``. What a volume is bound to does not travel: in another
    process it uses the one there.
    """

    def __init__(self, chunks: ChunkCache | None = None, ahead: ReadAhead | None = None) -> None:
        self.handles = Handles(open_source=self._open)  # open backends
        self.chunks = ChunkCache(0) if chunks is None else chunks
        """Decoded chunks; who reads lends it memory."""
        self.ahead = ReadAhead() if ahead is None else ahead
        """Stored bytes that were asked for before they are needed."""
        self.versions = Versions()  # the versions of volumes that passes read

    def opening(self) -> AbstractContextManager[None]:
        """Let what is opened inside the ``with`` block belong to this session."""
        return holding(_OPENING, self)

    def _open(self, source: Source) -> Backend:
        with self.opening():
            return source.open()

    def begin_pass(self, *, keeps_read: bool = False) -> None:
        """Close files and drop chunks that may have changed since the last pass.

        With ``keeps_read``, a user's readers of unchanged files stay open: a chain keeps volumes.
        """
        # What was learnt of volumes behind URLs stays, a round trip each: their answers tell.
        self.ahead.small.clear()
        self.ahead.requests.clear_idle()
        self.handles.close_local(keeps_read=keeps_read)
        self.chunks.clear()

    def renew(self, source: Source, located: Any) -> None:
        """Open a remote source again at its next use, and read its metadata: it may have changed.

        ``located`` has the URL that ``source`` reads.
        """
        options = located.options.storage_options
        self.ahead.documents.forget(documents_token(located.location, options))
        self.handles.drop(located.token)
        self.handles.drop(source.token)

    def close(self) -> None:
        """Let go of everything; the next read opens and fetches again."""
        self.ahead.clear()
        self.handles.close()
        self.chunks.clear()


_OPENING: ContextVar[Session | None] = ContextVar("opening", default=None)
SESSION = Session(CHUNKS, AHEAD)  # the one of this process, for volumes that are bound to no other


def opening_session() -> Session:
    """Return the session whose backend is being opened; by default that of the process."""
    return _OPENING.get() or SESSION


def close_volumes() -> None:
    """Close the files that volumes of this process hold open; the next read opens them again."""
    SESSION.close()
