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
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ....core.errors import CacheBusy, GraphError, SampleError, UnendedCache, placed
from ....graph import Pipe, Traits, parents_of, walk
from ...datapipe import DataPipe
from ...forms import offered
from .cached_files import Entries
from .promise import claim, owner_of
from .saver import checked_mode
from .streams import janitor, pair_of
from .written import Hashes, write_whole

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
    ValueError
        At construction: another kind of hash.
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
        self.entries = Entries(Hashes(hash_dict or {}, hash_type), extra_check_fn)
        if hash_dict is None:
            self.entries = Entries(None, extra_check_fn)
        self.token = uuid.uuid4().hex
        self.ended = False
        self._item: Any = _END

    @property
    def traits(self) -> Traits:
        """Runs functions, if it was given some."""
        return Traits(opaque=bool(self.filepath_fn or self.entries.check))

    def path_of(self, item: Any) -> str:
        """Return the path of an item.

        Raises
        ------
        SampleError
            It is none.
        """
        path = item if self.filepath_fn is None else self.filepath_fn(item)
        if not isinstance(path, (str, os.PathLike)):
            msg = f"the path of a file expected, got {type(path).__name__}"
            do = "filepath_fn makes one path of an item."
            raise SampleError(msg, do=do).at(self.origin)
        return str(os.fspath(path))

    def feed(self, item: Any = _END) -> None:
        """Set the only item of the next pass."""
        self._item = item

    def __iter__(self) -> Iterator[Any]:
        """Yield the one item whose files are to be made."""
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
    files: list[str] | None = None
    """None while another process makes them."""


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
    GraphError
        At construction: ``filepath_fn`` and ``same_filepath_fn`` are both given.
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
        self.skip_read = skip_read
        self.timeout = timeout
        holder = _begun(self)
        # What it ends cannot be ended by another one.
        holder.ended = True
        self.token = holder.token
        self.filepath_fn = holder.filepath_fn if same_filepath_fn else filepath_fn

    def __iter__(self) -> Iterator[str]:
        """Yield the paths."""
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
        entries = holder.entries
        entry.files = entries.files_of(entry.path)
        if entry.files is None:
            promise = claim(entry.path)
            if promise is None:
                return False
            with promise:
                # Somebody may have made them in between.
                entry.files = entries.files_of(entry.path)
                if entry.files is None:
                    made = self._make(holder, entry)
                    entries.note(entry.path, made)
                    entry.files = made
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
            for found in results:
                name, data = pair_of(self, found)
                path = name if self.filepath_fn is None else self.filepath_fn(name)
                write_whole(os.fspath(path), data, holder.entries.hashes, key)
                made.append(str(os.fspath(path)))
                del data
        except Exception as error:
            raise placed(error, self.origin)  # noqa: B904  the very same error
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


def _begun(end: EndOnDiskCacheHolder) -> OnDiskCacheHolder:
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
