"""Keep items in a store that workers, ranks and machines share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from ...core.call_site import WarnOnce
from ...core.errors import CacheUnused, GraphError, MissingDependency, StoreUnavailable, StreamError
from ...core.redact import RedactedDict
from ...core.validate import as_choice, validate_int
from ...datapipes.datapipe import SameLength, first_random_pipe, locate_errors
from ...graph import (
    Pipe,
    Traits,
    describe,
    fingerprint,
    is_own,
    is_pipe,
    parents_of,
    rebuild,
    traits_of,
    walk,
    with_parents,
)
from ...graph.fingerprint import stable_text
from ...storage.content import behaviour_digest, content_key
from ...storage.disk_cache import cache_budget, results_folder
from ...storage.location import Secrets, absolute_place, public_name
from .item_codec import decode, encode, key_of
from .item_stores import REDIS, open_store

# Seconds without requests to a store that failed.
_PAUSE = 30.0
# Stores by process, whose forked children open their own, and ends of pauses by method. Attributes
# are searched for generators of functions.
_STATES: WeakKeyDictionary[ItemCache, dict[Any, Any]] = WeakKeyDictionary()
# Attributes that say where a pipe was written, and how far it is.
_PLACE = {*vars(IterDataPipe), "origin", "_arguments"}


class ItemCache(SameLength, form="cache_items"):
    """Keep the results of the pipes before it in a store that processes and machines share.

    Kept are the pipes directly before it that take single items, from the first that reads or runs
    a function. They run for one item at a time. Results hold numbers, texts, bytes, lists, tuples,
    dictionaries, samples, arrays and tensors (in C order); nothing is pickled.

    The key of a result has the item before the kept pipes, their code and arguments, and
    ``version``. Volumes count by content, plan and identity of their sample, paths and URLs by
    their text. Functions must not depend on a sample's seed or epoch.

    - ``store``: The URL of a Redis server (``pip install voxpipe[redis]``), a folder, or a URL of
      fsspec. By default a folder in the cache directory.
    - ``version``: Text or number, needed for a function whose code does not show its results, as if
      it reads a file. Change it with the function.
    - ``key_fn``: Makes plain values of an item, which count in its place.
    - ``ttl``: Seconds after which a result is made again.
    - ``store_bytes``: Bytes of all results, beyond which the oldest are removed. By default
      ``$VOXPIPE_CACHE_BYTES``. Outside Redis, a process may exceed it by a sixteenth.
    - ``timeout``: Seconds for one answer of Redis or of an asynchronous file system.
    - ``on_error``: With ``"warn"``, items are made again if a store fails or an entry is damaged.
      One ``CacheUnused`` warns, and the store is used again after 30 s. ``"raise"`` raises.
    - ``storage_options``: Options of the client, never written anywhere.

    Raises
    ------
    GraphError
        At construction: there is no pipe to keep, one draws, or ``version`` is missing.
    SampleError
        A result, or an item without ``key_fn``, has no safe form.
    StoreUnavailable, StreamError
        With ``on_error="raise"``: the store failed, or an entry is damaged.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> def double(number):
    ...     print("making", number)
    ...     return 2 * number
    >>> pipe = IterableWrapper([1, 2]).map(double).cache_items("kept")
    >>> list(pipe), list(pipe)
    making 1
    making 2
    ([2, 4], [2, 4])
    """

    def __init__(
        self,
        parent: Pipe,
        store: str | os.PathLike[str] | None = None,
        *,
        version: str | int = "",
        key_fn: Callable[[Any], Any] | None = None,
        ttl: float = float("inf"),
        store_bytes: int | None = None,
        timeout: float = 2.0,
        on_error: str = "warn",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        pipes = _pipes_to_keep(parent)
        super().__init__(parents_of(pipes[0])[0] if pipes else parent)
        place = os.fspath(store or results_folder("items"))
        self.store = place if place.startswith(REDIS) else absolute_place(place)
        with locate_errors(self):
            if not pipes:
                msg = f"{describe(parent)} does not take single items, to keep their results"
                raise GraphError(msg, do="Put cache_items() directly after map(), realize(), ...")
            if (drawing := first_random_pipe(parent)) is not None:
                msg = f"{describe(drawing)} is drawn anew in every epoch, so no result is kept"
                raise GraphError(msg, do="Put cache_items() before it.")
            if self.store.startswith(REDIS) and find_spec("redis") is None:
                msg = f"{public_name(self.store)} needs the package redis."
                raise MissingDependency(msg, do="pip install voxpipe[redis]")
            _version_of(pipes, version)
        if not (ttl > 0 and 0 < timeout < float("inf")):
            raise ValueError(f"ttl and timeout are seconds above 0, got {ttl} and {timeout}")
        most = cache_budget() if store_bytes is None else store_bytes
        self.store_bytes = validate_int("store_bytes", most, least=1, unit="bytes")
        self.version, self.key_fn, self.ttl, self.timeout = version, key_fn, ttl, timeout
        self.on_error = as_choice("on_error", on_error, ("warn", "raise"))
        self.storage_options = RedactedDict(storage_options or {})
        end: Any = IterableWrapper([], deepcopy=False)
        for pipe in pipes:
            end = with_parents(pipe, [end])
        self.part = ((end,),)  # the search for parents does not enter a tuple in a tuple
        # The search for generators and values of functions does not enter pipes.
        self.contents = [_settings(pipe) for pipe in pipes]
        self.once = WarnOnce()
        self.digest, self.has_epochs = "", False  # of code and settings, by pass or epoch

    @property
    def inner_pipes(self) -> tuple[Pipe, ...]:
        return tuple(walk(self.part[0][0]))[1:]

    @property
    def traits(self) -> Traits:
        every = [traits_of(pipe) for pipe in self.inner_pipes]
        code = self.key_fn is not None or any(one.runs_user_code for one in every)
        opens, voxels = (any(getattr(one, n) for one in every) for n in ("opens", "voxels"))
        return Traits(per_item=True, voxels=voxels, opens=opens, runs_user_code=code)

    def describe(self) -> str:
        """Return the kept pipes and this one, as the user wrote them."""
        return ".".join([*map(describe, self.inner_pipes), self.origin.call])

    def settings(self) -> Any:
        """Return the kept pipes; where their results are changes no batch."""
        return fingerprint(self.part[0][0])

    def set_epoch(self, epoch: int) -> None:
        """Digest code and settings anew; a loader makes each batch of an epoch by one pass."""
        self.digest, self.has_epochs = "", True

    def __iter__(self) -> Iterator[Any]:
        feed: Any = IterableWrapper([], deepcopy=False)
        part = rebuild(self.part[0][0], lambda old, here: here if parents_of(old) else feed)
        if not (self.has_epochs and self.digest):
            with locate_errors(self):
                self.digest = _version_of(self.inner_pipes, self.version)
        versions = (self.digest, self.version)
        for item in self.parent:
            with locate_errors(self, item):
                plain = item if self.key_fn is None else self.key_fn(item)
                key = key_of(plain, versions)
                results = self._load(key, item)
            if not results:
                feed.iterable = [item]
                results = list(part)
                with locate_errors(self, item):
                    for result in results:
                        self._save(key, encode(result, key, item))
            feed.iterable = []
            yield from results

    def _load(self, key: str, item: Any) -> list[Any]:
        entry = self._call("get", key)
        try:
            return [] if entry is None else decode(entry, key, item, self.ttl)
        except StreamError as error:
            self._warn(error)
            return []

    def _save(self, key: str, entry: bytes) -> None:
        if len(entry) > self.store_bytes:
            msg = f"an item of {len(entry)} bytes is above store_bytes={self.store_bytes}."
            self._warn(StreamError(msg, do="Give a larger store_bytes=."))
        else:
            self._call("put", key, entry, self.store_bytes, self.ttl)

    def _call(self, method: str, *args: Any) -> Any:
        """Return the answer of the store; None while it fails."""
        state = _STATES.setdefault(self, {})
        if time.monotonic() < state.get(method, 0.0):
            return None
        try:
            if (pid := os.getpid()) not in state:
                state[pid] = open_store(self.store, self.storage_options, self.timeout)
            return getattr(state[pid], method)(*args)
        except Exception as error:  # of any client
            state[method] = time.monotonic() + _PAUSE
            why = Secrets(self.storage_options, self.store).describe(error)
            do = "Check the store and its URL; a full one needs room, or a smaller store_bytes=."
            self._warn(StoreUnavailable(f"the store failed in {method}: {why}.", do=do))
            return None

    def _warn(self, error: StoreUnavailable | StreamError) -> None:
        if self.on_error == "raise":
            raise error.at(self.origin) from None
        text = f"{public_name(self.store)}: {error.message} Items are made again, more slowly. "
        self.once.warn(self.store, text + error.do, CacheUnused, self.origin)


def _pipes_to_keep(parent: Pipe) -> list[Pipe]:
    """Return the pipes up to ``parent`` that take single items, from the first that works."""
    pipes: list[Pipe] = []
    while traits_of(parent).per_item and len(parents_of(parent)) == 1:
        if isinstance(parent, ItemCache):  # its items count by their content
            break
        pipes.insert(0, parent)
        parent = parents_of(parent)[0]
    works = [t.voxels or t.runs_user_code or is_own(p) for p in pipes for t in [traits_of(p)]]
    return pipes[works.index(True) :] if True in works else []


def _settings(pipe: Any) -> Any:
    if not is_own(pipe) and hasattr(type(pipe), "settings"):
        return pipe.settings()
    return {k: v for k, v in vars(pipe).items() if k not in _PLACE and not is_pipe(v)}


def _version_of(pipes: Sequence[Pipe], version: str | int) -> str:
    """Return a digest of the code and settings of pipes; of names where code does not suffice."""
    each = [(type(pipe), _settings(pipe)) for pipe in pipes]
    if digest := behaviour_digest(*each):
        return digest
    name, text = ".".join(map(describe, pipes)), stable_text(each)
    if version == "":
        msg = f"the code of {name} does not show its results: it reads files, draws or has a handle"
        raise GraphError(msg, do="Give cache_items(version=1), and another one with each change.")
    if "<lambda>" in text or "<locals>" in text:
        msg = f"a function of {name} is known by its name alone, which others have, too"
        raise GraphError(msg, do="Define it at the top of a module.")
    return content_key("names", (text,))
