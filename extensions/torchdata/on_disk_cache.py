"""Cache the results of a part of a chain on the local disk, for all processes and runs.

The part between ``on_disk_cache()`` and ``end_caching()`` runs for one item at a time, and only
for items without files. So the files of each item are known, for any steps of that part.

- One process makes the files of an item. The others continue with the next items, and wait only
  if no other item is left.
- A file appears by renaming, whole or not at all. A list of several files appears after them.
- A failure, or the death of the process, leaves no lock that another process waits for.
- No lock is held while an item is yielded: two chains in one thread never wait for each other.
- Files come in the order of the items, independent of the process that made them.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import CacheBusy, GraphError, SampleError, UnendedCache
from ...core.sample import parse_json
from ...datapipes.datapipe import DataPipe, locate_errors
from ...graph import Pipe, Traits, walk
from ...storage.disk_cache import take_lock
from ...storage.file_reader import open_regular
from .streams import ExpectedHashes, checked_mode, janitor, local_target, pair_of, write_atomically

PROMISE = ".promise"
"""Suffix of a promise: the lock file of the process that makes the file of the same name."""
_MOST_BYTES = 256


@contextmanager
def claim(path: str) -> Iterator[bool]:
    """Hold the promise to make the file at ``path``; yield False if another process holds it.

    The lock of a dead process is free, so its promise is taken over.
    """
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with ExitStack() as stack:
        lock = take_lock(Path(f"{path}{PROMISE}"))
        if lock is not None:
            stack.enter_context(lock)
            # Also where the disk is full: held without an owner it would keep everybody waiting.
            stack.callback(lock.remove)
            os.ftruncate(lock.file.fileno(), 0)
            owner = f"process {os.getpid()} on {socket.gethostname()}"
            os.write(lock.file.fileno(), owner.encode())
        yield lock is not None


def owner_of(path: str) -> str:
    """Return the process that makes the file at ``path``; empty if none has announced it."""
    with suppress(OSError), open(f"{path}{PROMISE}", "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return ""


LIST = ".files.json"
"""Suffix of a list: the paths of an item that became other files than its own."""
TIMEOUT_SECONDS = 300.0
"""Longest wait, by default, for another process that makes the files of one item."""
# Items that may be looked at while another process makes the files of an earlier one.
_AHEAD = 64
# Short against a download, long against a query of the disk.
_POLL_SECONDS = 0.02
_END: Any = object()


class OnDiskCacheHolder(DataPipe, form="on_disk_cache"):
    """Begin a part of the chain whose results are kept on the local disk.

    ``end_caching()`` ends it; without an end, reading raises ``UnendedCache``. The part runs for
    one item at a time, and is skipped for items whose files exist.

    - ``filepath_fn``: makes the path of an item's file; by default the item is the path. If the
      item becomes other files, or several, their list is kept at this path, with ``.files.json``.
    - ``hash_dict``: hash in hexadecimal digits, by path. A file that has another one is made again;
      one that is made must have it. Every pass reads the files to check them.
    - ``hash_type``: ``"sha256"`` or ``"md5"``.
    - ``extra_check_fn``: returns whether the file at a path is valid; if not, it is made again.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> def twice(name):
    ...     print("making", name)
    ...     return name, name.encode() * 2
    >>> names = IterableWrapper(["kept/a", "kept/b"])
    >>> cached = names.on_disk_cache().map(twice).end_caching(skip_read=True)
    >>> list(cached), list(cached)
    making kept/a
    making kept/b
    (['kept/a', 'kept/b'], ['kept/a', 'kept/b'])
    """

    def __init__(
        self,
        parent: Pipe,
        filepath_fn: Callable[[Any], Any] | None = None,
        hash_dict: Mapping[str, str] | None = None,
        hash_type: str = "sha256",
        extra_check_fn: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__(parent)
        self.filepath_fn = filepath_fn
        hashes = ExpectedHashes(hash_dict or {}, hash_type)
        self.hashes = None if hash_dict is None else hashes
        self.check = extra_check_fn
        self.token = uuid.uuid4().hex
        self.has_end = False
        self._item: Any = _END  # the only one of the next pass

    @property
    def traits(self) -> Traits:
        return Traits(runs_user_code=bool(self.filepath_fn or self.check))

    def path_of(self, item: Any) -> str:
        path = item if self.filepath_fn is None else self.filepath_fn(item)
        if not isinstance(path, (str, os.PathLike)):
            msg = f"the path of a file expected, got {type(path).__name__}"
            raise SampleError(msg, do="filepath_fn makes one path of an item.").at(self.origin)
        with locate_errors(self):
            return local_target(str(os.fspath(path)))

    def files_of(self, path: str) -> list[str] | None:
        """Return the files of the item whose path this is; None if they are to be made."""
        # A list is written after all its files, so one that is there is whole. If a file of it was
        # removed since, the item is made again.
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            with open(f"{path}{LIST}", "rb", opener=open_regular) as file:
                files = [str(name) for name in parse_json(file.read())["files"]]
            return files if all(map(os.path.exists, files)) else None
        fits = os.path.exists(path) and (self.hashes is None or self.hashes.match(path))
        return [path] if fits and (self.check is None or self.check(path)) else None

    def __iter__(self) -> Iterator[Any]:
        item, self._item = self._item, _END
        if not self.has_end or item is _END:
            msg = "Please call `end_caching()` before iteration."
            do = "End the part that is to be kept on disk, and read what comes after its end."
            raise UnendedCache(msg, do=do).at(self.origin)
        yield item


@dataclass
class _PendingItem:
    """An item whose files were not handed out yet."""

    item: Any
    path: str
    files: list[str] | None = None  # none while another process makes them


class EndOnDiskCacheHolder(DataPipe, form="end_caching"):
    """End the part of ``on_disk_cache()``: write ``(name, data)`` to files, and yield their paths.

    Paths come in the order of the items, whether the files were there or not. Other processes may
    run the same chain: each file is made by one of them.

    - ``mode``, ``filepath_fn``: as of ``save_to_disk()``, which takes the same data.
    - ``same_filepath_fn``: whether to use the function of ``on_disk_cache()``.
    - ``skip_read``: no effect: open files are read, bytes and text are written.
    - ``timeout``: seconds to wait for another process that makes the files of one item; the adapter
      ``CacheTimeout`` sets it for a whole graph.

    Raises
    ------
    UnendedCache
        At construction: there is no ``on_disk_cache()`` upstream, or it was ended already.
    CacheBusy
        Another process took longer than ``timeout``; the message names it.
    HashMismatch
        A file that was made is not the one that ``hash_dict`` expects; it is not kept.

    Examples
    --------
    As of ``on_disk_cache``; a download is kept by
    ``urls.on_disk_cache(path_of).read_from_http().end_caching(same_filepath_fn=True)``.
    """

    # Paths: streams in the part before go no further.
    traits = Traits(plain=True)

    def __init__(
        self,
        parent: Pipe,
        mode: str = "wb",
        filepath_fn: Callable[[Any], Any] | None = None,
        *,
        same_filepath_fn: bool = False,
        skip_read: bool = False,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(parent)
        if filepath_fn is not None and same_filepath_fn:
            msg = "`filepath_fn` is mutually exclusive with `same_filepath_fn`"
            raise GraphError(msg).at(self.origin)
        self.mode = checked_mode(mode)
        self.timeout = timeout
        holder = _unended_cache(self)
        # Only one pipe may end a cache.
        holder.has_end = True
        self.token = holder.token
        self.filepath_fn = holder.filepath_fn if same_filepath_fn else filepath_fn

    def __iter__(self) -> Iterator[str]:
        every = (pipe for pipe in walk(self.parent) if isinstance(pipe, OnDiskCacheHolder))
        holder = next(pipe for pipe in every if pipe.token == self.token)
        items = iter(holder.parent)
        pending: deque[_PendingItem] = deque()
        waiting_since = 0.0
        at_end = False
        while True:
            while pending and pending[0].files is not None:
                yield from pending.popleft().files or ()
                waiting_since = 0.0
            if pending and self._settle(holder, pending[0]):
                continue
            if not at_end and len(pending) < _AHEAD:
                item = next(items, _END)
                at_end = item is _END
                if not at_end:
                    pending.append(_PendingItem(item, holder.path_of(item)))
                    self._settle(holder, pending[-1])
                continue
            if not pending:
                return
            waiting_since = waiting_since or time.monotonic()
            if time.monotonic() - waiting_since >= self.timeout:
                path = pending[0].path
                whom = owner_of(path) or "another process"
                msg = f"waited {self.timeout:g} s for {whom} to make {path}."
                do = "If it hangs, end it, and its work is taken over; if it only takes long, add "
                do += "CacheTimeout(seconds) to the adapters, or give end_caching(timeout=)."
                raise CacheBusy(msg, do=do).at(self.origin)
            time.sleep(_POLL_SECONDS)

    def _settle(self, holder: OnDiskCacheHolder, entry: _PendingItem) -> bool:
        """Find the files of an item, or make them; False if another process is at it."""
        entry.files = holder.files_of(entry.path)
        if entry.files is None:
            with claim(entry.path) as is_ours:
                if not is_ours:
                    return False
                # Another process may have made them in between.
                entry.files = holder.files_of(entry.path)
                if entry.files is None:
                    entry.files = self._make(holder, entry)
                    if entry.files != [entry.path]:  # which is not plain to see
                        text = json.dumps({"files": entry.files})
                        write_atomically(f"{entry.path}{LIST}", text)
        entry.item = None
        return True

    def _make(self, holder: OnDiskCacheHolder, entry: _PendingItem) -> list[str]:
        """Run the part of the chain on one item; return the paths of the new files."""
        key = hashlib.blake2b(entry.path.encode(), digest_size=8).hexdigest()
        paths: list[str] = []
        item: Any = None
        holder._item = entry.item
        results = iter(self.parent)
        try:
            with locate_errors(self):
                for item in results:
                    name, data = pair_of(self, item)
                    path = name if self.filepath_fn is None else self.filepath_fn(name)
                    path = local_target(str(os.fspath(path)))
                    write_atomically(path, data, holder.hashes, key)
                    paths.append(path)
                    del data
        finally:
            # Nothing stays open that only the error remembers.
            janitor(item)
            del results, item
            holder._item = _END
        return paths


def _unended_cache(end: EndOnDiskCacheHolder) -> OnDiskCacheHolder:
    every = [pipe for pipe in walk(end.parent) if isinstance(pipe, OnDiskCacheHolder)]
    for pipe in reversed(every):
        if not pipe.has_end:
            return pipe
    if every:
        msg = "`end_caching` can only be invoked once per `on_disk_cache`"
    else:
        msg = "Expected `OnDiskCacheHolder` existing in pipeline when `end_caching` is invoked"
    do = "Write .on_disk_cache(...) where the part to be kept on disk begins."
    raise UnendedCache(msg, do=do).at(end.origin)
