"""Keep on the local disk what a part of a chain makes of each item, for all processes and runs.

The part between ``on_disk_cache()`` and ``end_caching()`` is run for one item at a time, and only
for items whose files are not there. So which files an item became is known for certain, whatever
that part does, and nothing has to be remembered of other items.

- One process makes the files of an item; the others go on with the next ones, and wait only where
  there is nothing else to do.
- A file appears by renaming, the list of several after all of them: whole or not at all.
- A failure, or the death of the process, leaves nothing that anybody waits for.
- No right is held while an item is handed out: two chains in one thread never wait for each other.
- Files come in the order of the items, whoever made them and whenever.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from ...core.errors import CacheBusy, GraphError, SampleError, UnendedCache
from ...core.sample import parse_json
from ...graph import Pipe, Traits, parents_of, walk
from ...storage.locks import is_still
from ...storage.ranges import open_regular
from ..datapipe import DataPipe, located
from ..forms import offered
from .saver import ExpectedHashes, checked_mode, write_atomically
from .streams import janitor, pair_of

# The right to make one file, held by one process at a time.
#
# A promise is a file beside the one that is promised. Its owner holds the kernel's lock on it and
# has written into it who it is. A dead owner holds no lock, so what it left is simply taken over;
# where a child that it forked still holds the lock for it, the number of the process tells.

PROMISE = ".promise"  # end of the name of a promise
_MOST_BYTES = 4096


@dataclass(frozen=True)
class _Owner:
    """Who makes a file."""

    pid: int  # number of the process
    started: int  # when the kernel started it, in its own ticks: a number may be given out again
    place: str  # machine, and space of process numbers on it; elsewhere the number says nothing
    thread: int  # thread in it

    def is_dead(self) -> bool:
        """Whether that process is known to be gone."""
        return self.place == _place() and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.place.partition(' ')[0]}"


def this_owner() -> _Owner:
    """Return who asks."""
    pid = os.getpid()
    return _Owner(pid, _started(pid), _place(), threading.get_ident())


class _FileLock:
    """A promise that is held; leaving the context gives it up."""

    def __init__(self, path: str, file: int) -> None:
        self._path, self._file = path, file

    def __enter__(self) -> _FileLock:
        return self

    def __exit__(self, *error: object) -> None:
        # Removed before it is unlocked: whoever gets the lock after that sees that it is gone.
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._file)


def claim(path: str) -> _FileLock | None:
    """Return the promise to make the file at ``path``; None if another process holds it."""
    import fcntl

    promise = f"{path}{PROMISE}"
    folder = os.path.dirname(promise)
    if folder:
        os.makedirs(folder, exist_ok=True)
    while True:
        file = os.open(promise, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            if _remove_orphan(promise):
                continue
            return None
        except BaseException:
            os.close(file)
            raise
        if not is_still(file, promise):
            # Its owner gave it up in between.
            os.close(file)
            continue
        held = _FileLock(promise, file)
        try:
            os.ftruncate(file, 0)
            os.write(file, json.dumps(asdict(this_owner())).encode())
        except BaseException:
            # The disk is full, say: held without an owner it would keep everybody waiting.
            held.__exit__()
            raise
        return held


def owner_of(path: str) -> _Owner | None:
    """Return who makes the file at ``path``; None if nobody does, or has not said so yet."""
    with suppress(OSError, ValueError, TypeError), open(f"{path}{PROMISE}", "rb") as file:
        return _Owner(**parse_json(file.read(_MOST_BYTES)))
    return None


def _remove_orphan(promise: str) -> bool:
    """Remove a promise that only a child of its dead owner still holds; say whether it is gone."""
    # One process at a time does so: the next one would remove the new promise in its place.
    import fcntl

    path = promise.removesuffix(PROMISE)
    owner = owner_of(path)
    if owner is None or not owner.is_dead():
        return not os.path.exists(promise)
    folder = os.open(os.path.dirname(promise) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        owner = owner_of(path)
        if owner is not None and owner.is_dead():
            os.unlink(promise)
            return True
        return not os.path.exists(promise)
    finally:
        os.close(folder)


def _place() -> str:
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {space}"


def _started(pid: int) -> int:
    """Return when a process was started; -1 if there is none, 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field, the name, may hold anything, but only its own ) is the last.
            fields = file.read().rpartition(b")")[2].split()
        # Of one that nobody has waited for yet there is nothing left that could write.
        return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
    except FileNotFoundError:
        pass
    if os.path.exists("/proc/self/stat"):
        return -1
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return -1
    except OSError:
        return 0
    return 0


LIST = ".files.json"
"""End of the name of a list: it stands where an item became anything else than its own file."""


TIMEOUT_SECONDS = 300.0
"""Longest wait for another process that makes the files of one item, unless told otherwise."""
# Items that may be looked at while another process makes the files of an earlier one.
_AHEAD = 64
# Short against a download, long against asking the disk.
_POLL_SECONDS = 0.02
_END: Any = object()


@offered("on_disk_cache")
class OnDiskCacheHolder(DataPipe):
    """Begin a part of the chain whose results are kept on the local disk.

    ``end_caching()`` ends it. What stands in between is run for one item at a time, and not at all
    for items whose files are there.

    Parameters
    ----------
    parent
        Yields items, e.g. URLs.
    filepath_fn
        Makes the path of an item's file; by default the item is the path. If the item becomes
        other files, or several, a list of them is kept at this path, with ``.files.json``.
    hash_dict
        Hash in hexadecimal digits, by path. A file that has another one is made again; one that
        is made must have it. Every pass reads the files to check them.
    hash_type
        ``"sha256"`` or ``"md5"``.
    extra_check_fn
        Says of a path whether the file there will do; if not, it is made again.

    Raises
    ------
    UnendedCache
        When read: there is no ``end_caching()``.

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
        super().__init__()
        self.parent = parent
        self.filepath_fn = filepath_fn
        hashes = ExpectedHashes(hash_dict or {}, hash_type)
        self.hashes = None if hash_dict is None else hashes
        self.check = extra_check_fn
        self.token = uuid.uuid4().hex
        self.ended = False
        self._item: Any = _END

    @property
    def traits(self) -> Traits:
        """Runs functions, if it was given some."""
        return Traits(runs_user_code=bool(self.filepath_fn or self.check))

    def path_of(self, item: Any) -> str:
        """Return the path of an item."""
        path = item if self.filepath_fn is None else self.filepath_fn(item)
        if not isinstance(path, (str, os.PathLike)):
            msg = f"the path of a file expected, got {type(path).__name__}"
            raise SampleError(msg, do="filepath_fn makes one path of an item.").at(self.origin)
        return str(os.fspath(path))

    def files_of(self, path: str) -> list[str] | None:
        """Return the files of the item whose path this is; None if they are to be made."""
        # A list is written after all its files, so one that is there is whole. If a file of it was
        # removed since, the item is made again.
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            with open(f"{path}{LIST}", "rb", opener=open_regular) as file:
                listed = [str(name) for name in parse_json(file.read())["files"]]
            return listed if all(map(os.path.exists, listed)) else None
        fits = os.path.exists(path) and (self.hashes is None or self.hashes.match(path))
        return [path] if fits and (self.check is None or self.check(path)) else None

    def feed(self, item: Any = _END) -> None:
        """Set the only item of the next pass."""
        self._item = item

    def __iter__(self) -> Iterator[Any]:
        item, self._item = self._item, _END
        if not self.ended or item is _END:
            do = "End the part that is to be kept on disk, and read what comes after its end."
            raise UnendedCache("Please call `end_caching()` before iteration.", do=do).at(
                self.origin
            )
        yield item


@dataclass
class _Entry:
    """An item whose files were not handed out yet."""

    item: Any
    path: str
    files: list[str] | None = None  # none while another process makes them


@offered("end_caching")
class EndOnDiskCacheHolder(DataPipe):
    """End what ``on_disk_cache()`` began: write ``(name, data)`` to files, and yield their paths.

    Paths come in the order of the items, whether the files were there or not. Other processes may
    run the same chain: each file is made by one of them.

    Parameters
    ----------
    parent
        Yields ``(name, data)``: bytes, text, or an open file, which is copied in pieces and closed.
    mode
        ``"w"``, ``"wt"`` or ``"wb"``. What the data are decides; it is here for torchdata's sake.
    filepath_fn
        Makes the path of the name; by default the name is the path.
    same_filepath_fn
        Whether to use the ``filepath_fn`` of ``on_disk_cache()``.
    skip_read
        Has no effect: what can be read is read, what is bytes or text is written.
    timeout
        Seconds to wait for another process that makes the files of one item; the adapter
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
        super().__init__()
        if filepath_fn is not None and same_filepath_fn:
            msg = "`filepath_fn` is mutually exclusive with `same_filepath_fn`"
            raise GraphError(msg).at(self.origin)
        self.parent = parent
        self.mode = checked_mode(mode)
        self.timeout = timeout
        holder = _unended_cache(self)
        # What it ends cannot be ended by another one.
        holder.ended = True
        self.token = holder.token
        self.filepath_fn = holder.filepath_fn if same_filepath_fn else filepath_fn

    def __iter__(self) -> Iterator[str]:
        holder = next(
            pipe
            for pipe in walk(self.parent)
            if isinstance(pipe, OnDiskCacheHolder) and pipe.token == self.token
        )
        items = iter(holder.parent)
        held: deque[_Entry] = deque()
        waiting_since = 0.0
        at_end = False
        while True:
            while held and held[0].files is not None:
                yield from held.popleft().files or ()
                waiting_since = 0.0
            if held and self._settle(holder, held[0]):
                continue
            if not at_end and len(held) < _AHEAD:
                item = next(items, _END)
                at_end = item is _END
                if not at_end:
                    held.append(_Entry(item, holder.path_of(item)))
                    self._settle(holder, held[-1])
                continue
            if not held:
                return
            waiting_since = waiting_since or time.monotonic()
            self._wait(held[0], waiting_since)

    def _settle(self, holder: OnDiskCacheHolder, entry: _Entry) -> bool:
        """Find the files of an item, or make them; False if another process is at it."""
        entry.files = holder.files_of(entry.path)
        if entry.files is None:
            promise = claim(entry.path)
            if promise is None:
                return False
            with promise:
                # Somebody may have made them in between.
                entry.files = holder.files_of(entry.path)
                if entry.files is None:
                    entry.files = self._make(holder, entry)
                    if entry.files != [entry.path]:  # which is not plain to see
                        noted = json.dumps({"files": entry.files})
                        write_atomically(f"{entry.path}{LIST}", noted)
        entry.item = None
        return True

    def _make(self, holder: OnDiskCacheHolder, entry: _Entry) -> list[str]:
        """Run the part of the chain on one item; return the paths of what it made."""
        key = hashlib.blake2b(entry.path.encode(), digest_size=8).hexdigest()
        made: list[str] = []
        found: Any = None
        holder.feed(entry.item)
        results = iter(self.parent)
        try:
            with located(self):
                for found in results:
                    name, data = pair_of(self, found)
                    path = name if self.filepath_fn is None else self.filepath_fn(name)
                    write_atomically(os.fspath(path), data, holder.hashes, key)
                    made.append(str(os.fspath(path)))
                    del data
        finally:
            # Nothing stays open that only the error remembers.
            janitor(found)
            del results, found
            holder.feed()
        return made

    def _wait(self, entry: _Entry, since: float) -> None:
        """Wait a little for the process that makes the files of an item."""
        if time.monotonic() - since >= self.timeout:
            owner = owner_of(entry.path)
            whom = "another process" if owner is None else str(owner)
            raise CacheBusy(
                f"waited {self.timeout:g} s for {whom} to make {entry.path}.",
                do="If it hangs, end it, and its work is taken over; if it only takes long, add "
                "CacheTimeout(seconds) to the adapters, or give end_caching(timeout=).",
            ).at(self.origin)
        time.sleep(_POLL_SECONDS)


def _unended_cache(end: EndOnDiskCacheHolder) -> OnDiskCacheHolder:
    """Return the nearest cache upstream that was not ended."""
    nearest: deque[Pipe] = deque([end.parent])
    seen: set[int] = set()
    any_ended = False
    while nearest:
        pipe = nearest.popleft()
        if isinstance(pipe, OnDiskCacheHolder):
            if not pipe.ended:
                return pipe
            any_ended = True
        nearest += [p for p in parents_of(pipe) if id(p) not in seen]
        seen.update(id(p) for p in parents_of(pipe))
    if any_ended:
        msg = "`end_caching` can only be invoked once per `on_disk_cache`"
    else:
        msg = "Expected `OnDiskCacheHolder` existing in pipeline when `end_caching` is invoked"
    do = "Write .on_disk_cache(...) where the part to be kept on disk begins."
    raise UnendedCache(msg, do=do).at(end.origin)
