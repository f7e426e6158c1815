"""Sessions: open files, decoded chunks and prefetched bytes of a process."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..core.context import ContextKey, holding
from ..core.errors import VolumeChanged
from ..core.locks import DeferredActs, ForkSafeLock, renew_after_fork
from ..storage.content import documents_token
from ..storage.read_ahead import AHEAD, ReadAhead
from .backend import Backend
from .chunks.chunk_cache import CHUNKS, ChunkCache
from .header import Header

# A mapped file costs one of the 65530 maps and of the 1024 descriptors that Linux grants a process
# by default. All descriptors of voxpipe must stay below 64 (testing/store_contract.py).
MOST_HANDLES = 48
# Volumes at URLs take no descriptor and 11 kB of metadata (measured).
MOST_REMOTE_HANDLES = 4096
MOST_RESIDENT_BYTES = 2 * 1024**3  # voxels returned by readers, kept with their handle


class Source(Protocol):
    """Location of voxels; its pickle is small."""

    @property
    def name(self) -> str:
        """Name for messages, without credentials."""

    @property
    def token(self) -> str:
        """Equal for equal sources, in every process."""

    def open(self) -> Backend:
        """Open it in this process."""


@dataclass(eq=False)
class _Handle:
    """An open backend, or the lock under which a thread opens it."""

    uses = itertools.count()
    opening: threading.Lock = field(default_factory=threading.Lock)
    backend: Backend | None = None
    use: int = -1  # largest for the most recently used handle


def _is_far(backend: Backend | None) -> bool:
    """Whether all that a backend reads is at URLs."""
    parts = getattr(backend, "below", ())
    return backend is not None and backend.remote and all(map(_is_far, parts))


class Handles:
    """Open backends of one process by the token of their source.

    Copies of a volume that arrive with batches share one handle. The least recently used handles
    are dropped when there are too many; a running read keeps its backend.
    """

    def __init__(
        self,
        most: int = MOST_HANDLES,
        most_bytes: int = MOST_RESIDENT_BYTES,
        session: Session | None = None,
    ) -> None:
        self._session = session
        self.most, self._most_bytes = most, most_bytes
        self._lock = ForkSafeLock()
        self._acts = DeferredActs(self._lock)
        self.by_token: dict[str, _Handle] = {}
        # Handles that a forked child inherited. Dropping them would run the parent's clean-up in
        # the child, with locks and threads that do not exist there.
        self._parent_handles: list[dict[str, _Handle]] = []
        renew_after_fork(self)

    def acquire(self, source: Source, *, verify: bool = False) -> Backend:
        """Return the open backend of ``source``; ``verify`` opens it again if the store changed.

        Sources in memory hold their backend: a handle would keep the array after its volume.
        """
        own: Backend | None = getattr(source, "backend", None)
        if own is not None:
            return own
        # Before the lock: the token of a source may require opening others.
        token = source.token
        with self._lock:
            handle = self.by_token.get(token)
            if handle is None:
                handle = self.by_token[token] = _Handle()
            handle.use = next(handle.uses)
        if self._acts.due:  # of a finalizer
            self._acts.defer()
        backend = handle.backend
        if backend is not None and not verify:
            return backend
        opens = False
        try:
            with handle.opening:
                backend = handle.backend
                if opens := backend is None or (verify and not backend.is_current):
                    # Drop the old backend first: HDF5 returns an open file's old state again.
                    backend = handle.backend = None
                    with holding(OPENING, self._session or SESSION):
                        backend = handle.backend = source.open()
                elif verify and not backend.remote:
                    # Chunks may change under the same metadata. A bucket is listed again only for
                    # copies: a listing per check would be a request each.
                    backend.forget_content_key()
                return backend
        finally:
            if opens:
                backends = [one.backend for one in [*self.by_token.values()]]
                resident = sum([one.resident_bytes for one in backends if one is not None])
                if len(backends) > self.most or resident > self._most_bytes:
                    self.trim()

    def opened_again(self, source: Source, last: Backend) -> Backend:
        """Return the open backend of ``source``, opened again if it is ``last``."""
        self.acquire(source)
        with self._acts, self._lock:
            handle = self.by_token.get(source.token)
            if handle is not None and handle.backend is last:
                del self.by_token[source.token]
        return self.acquire(source)

    def agreeing(self, source: Source, header: Header) -> Backend:
        """Return the open backend of ``source``, opened again unless it has this header."""
        backend = self.acquire(source)
        if backend.header == header:
            return backend
        # The file may have been written again, or only touched.
        del backend
        backend = self.acquire(source, verify=True)
        if not backend.header.agrees_with(header):
            raise VolumeChanged(
                f"{source.name} has changed since its header was read: it was "
                f"{header.shape} {header.disk_dtype} and is "
                f"{backend.shape} {backend.disk_dtype}, or has another affine.",
                do="Make a new Volume once the file is written.",
            )
        return backend

    def close(self) -> None:
        """Drop every handle."""
        self._acts.defer(self.by_token.clear)

    def close_one(self, token: str, path: str) -> None:
        """Drop the handles of one source, and all that read the local file ``path``."""
        with self._acts, self._lock:
            for own, handle in [*self.by_token.items()]:
                files = getattr(handle.backend, "files", ())
                if own == token or (path and path in [getattr(f, "path", "") for f in files]):
                    del self.by_token[own]

    def close_local(self, *, keeps_read: bool = False) -> None:
        """Drop the handles of local files; ``keeps_read`` keeps those of users' readers."""
        with self._acts, self._lock:
            for token, handle in [*self.by_token.items()]:
                # The version of a local file or folder that a user's reader has read.
                version = getattr(handle.backend, "first_version", None) if keeps_read else None
                if not (_is_far(handle.backend) or (version is not None and version.is_current)):
                    del self.by_token[token]

    def after_fork(self) -> None:
        """Start empty in a forked child."""
        self._parent_handles.append(self.by_token)
        self.by_token = {}

    def __len__(self) -> int:
        return len(self.by_token)

    def trim(self) -> None:
        """Drop surplus handles."""
        with self._acts, self._lock:
            handles = self.by_token
            backends = {t: backend for t, one in handles.items() if (backend := one.backend)}
            resident = sum(backend.resident_bytes for backend in backends.values())
            oldest = sorted(handles.items(), key=lambda entry: entry[1].use)
            # Read once: a concurrent read may give a backend its descriptor.
            far = {token for token, backend in backends.items() if not backend.holds_descriptor}
            remote, local = len(far), len(oldest) - len(far)
            # The newest stays at any size, as a read follows.
            for token, _ in oldest[:-1]:
                many, few = resident > self._most_bytes, local <= self.most
                if not many and few and remote <= MOST_REMOTE_HANDLES:
                    return
                is_far = token in far
                if many or (remote > MOST_REMOTE_HANDLES if is_far else not few):
                    del self.by_token[token]
                    resident -= backends[token].resident_bytes if token in backends else 0
                    remote, local = remote - is_far, local - (not is_far)


# Each takes 400 bytes. With more volumes, changes of those that were opened first go unnoticed.
MOST_VERSIONS = 16_384


class OpenedVersion(NamedTuple):
    """First version of a volume that a process has opened in a pass."""

    key: tuple[str, str]  # the pass, and the token of the volume
    version: Hashable  # identifies the version
    moment: int  # time of opening, in nanoseconds since 1970
    name: str  # name of the volume for messages
    case: str = ""  # its case, where that is known


class Session:
    """Owner of the handles, chunks, prefetched bytes and versions of reads.

    Two sessions of a process share maps of local files and hints to the kernel, but none of these.
    Volumes use :data:`SESSION` unless ``volume.in_session(session)`` binds them to another one. The
    binding is not pickled: in another process a volume uses the default session there.
    """

    def __init__(self, chunks: ChunkCache | None = None, ahead: ReadAhead | None = None) -> None:
        self.handles = Handles(session=self)  # open backends
        self.chunks = ChunkCache(0) if chunks is None else chunks
        """Decoded chunks, in memory that reading services grant."""
        self.ahead = ReadAhead() if ahead is None else ahead  # prefetched stored bytes
        # The first version of each volume in each pass, and those that were not taken yet.
        self._first: dict[tuple[str, str], OpenedVersion] = {}
        self._new: deque[OpenedVersion] = deque(maxlen=MOST_VERSIONS)
        self._keys: deque[tuple[str, str]] = deque()  # of the first versions, oldest first

    def first_version(self, version: OpenedVersion) -> OpenedVersion:
        """Return the first version of the same volume in the same pass: this or an earlier one."""
        # One step, so that two threads agree.
        first = self._first.setdefault(version.key, version)
        if first is version:
            self._new.append(version)
            self._keys.append(version.key)
            if len(self._keys) > MOST_VERSIONS:
                self._first.pop(self._keys.popleft(), None)
        return first

    def take_versions(self) -> tuple[OpenedVersion, ...]:
        """Return the first versions since the last call."""
        new = []
        with contextlib.suppress(IndexError):  # another thread may take some meanwhile
            while True:
                new.append(self._new.popleft())
        return tuple(new)

    def begin_pass(self, *, keeps_read: bool = False) -> None:
        """Close files and drop chunks that may have changed since the last pass.

        With ``keeps_read``, a user's readers of unchanged files stay open: a chain keeps volumes.
        """
        # Handles of volumes at URLs stay, as each costs a round trip; responses show changes.
        self.ahead.small.clear()
        self.ahead.requests.clear_idle()
        self.handles.close_local(keeps_read=keeps_read)
        self.chunks.clear()

    def renew(self, source: Source, base: Any) -> None:
        """Open a remote source again at its next use, and read its metadata: it may have changed.

        ``base`` has the URL that ``source`` reads.
        """
        options = base.options.storage_options
        self.ahead.documents.forget(documents_token(base.location, options))
        self.handles.close_one(base.token, "")
        self.handles.close_one(source.token, "")

    def close(self) -> None:
        """Release everything; the next read opens and fetches again."""
        self.ahead.clear()
        self.handles.close()
        self.chunks.clear()


SESSION = Session(CHUNKS, AHEAD)  # default session of this process
OPENING: ContextKey[Session] = ContextKey(SESSION)
"""Session of the backends that are opened; by default that of the process."""
opening_session = OPENING.get


def close_volumes() -> None:
    """Close the files of all volumes in this process; the next read opens them again."""
    SESSION.close()
