"""Batches that an actor keeps for other loaders of the same epoch, such as trials of a search.

The key of a batch has everything that decides on it: payload, script, job, seed and epoch. Volumes
in the job count by their content keys. Jobs of two passes have different names of the pass, which
the digest leaves out. If a part has no stable pickle, each loader has its own batch.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import pickle
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...batching.job import BatchResult, Job
from ...reading_services.transport.messages import pack
from ...volumes import Volume
from ...volumes.array_source import ArraySource, SharedArraySource
from .actor import NodeUnpickler
from .stream import StreamCarrier

_SCRIPT_KEYS = ("init_main_from_name", "init_main_from_path")
# Attributes of volumes that differ between passes, or follow from the content key.
_OF_PASS = {"_pass", "_stamp", "_first", "_header", "_grid", "_session", "_is_fresh", "_renews"}


class StoredBatch(NamedTuple):
    """A batch of an actor, as it was made."""

    batch: Any
    bytes: int
    seconds: float  # time of making it
    warnings: tuple[warnings.WarningMessage, ...]


class BatchStore:
    """The last batches of an actor, within a bound of bytes; only the thread in turn changes it."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self.bytes = 0
        self._batches: OrderedDict[tuple[Any, ...], StoredBatch] = OrderedDict()

    def get(self, key: tuple[Any, ...]) -> StoredBatch | None:
        """Return the batch of a key."""
        return self._batches.get(key)

    def has_job(self, digest: str) -> bool:
        """Whether a batch of this job is kept, of any payload."""
        return any(key[0] == digest for key in [*self._batches])  # a copy, for other threads

    def put(self, key: tuple[Any, ...], one: StoredBatch) -> None:
        """Keep a batch instead of the oldest ones."""
        self._batches[key] = one
        self.bytes += one.bytes
        while self.bytes > self.most_bytes:
            self.bytes -= self._batches.popitem(last=False)[1].bytes


class _JobPickler(pickle.Pickler):
    """Pickles a job without names of its pass; ``volumes`` are those in it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.volumes: list[Volume] = []

    def reducer_override(self, thing: Any) -> Any:
        """Return volumes by their content, and voxels in memory by a digest."""
        if isinstance(thing, Volume):
            self.volumes.append(thing)
            own = {name: v for name, v in vars(thing).items() if name not in _OF_PASS}
            return Volume, (_require_key(thing.content_key), own)
        if isinstance(thing, (ArraySource, SharedArraySource)):
            backend = thing.open()
            return Volume, (_require_key(backend.content_key), backend.header)
        return NotImplemented


def _require_key(key: str) -> str:
    if not key:
        raise ValueError("the content of a volume has no key")
    return key


@dataclass(frozen=True)
class JobWithKey(Job):
    """A job with the digest of its pickle, which is empty if it is not stable."""

    digest: str = ""
    volumes: tuple[Volume, ...] = ()


class _StoredJob(NamedTuple):
    """A job whose batch is kept: its reads are not prefetched."""

    job: JobWithKey


def key_job(job: Job) -> JobWithKey:
    """Return a job with its digest; reads the headers of its volumes."""
    file = io.BytesIO()
    pickler = _JobPickler(file)
    try:
        pickler.dump(job)
    except Exception:  # of a user's object, or of a missing file, which the making raises
        return JobWithKey(**vars(job))
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    return JobWithKey(**vars(job), digest=digest, volumes=tuple(pickler.volumes))


class _Thread(threading.local):
    seconds = 0.0
    """Time of making the kept batch that this thread sends; 0 for one that it has made."""


STORE, LAST_HIT = BatchStore(), _Thread()
_LAST_PAYLOAD = {"payload": ""}  # the payload whose settings and values this process has


class SharingUnpickler(NodeUnpickler):
    """Loads payloads whose makers keep batches, and jobs with their keys."""

    def __init__(self, data: bytes, script: Mapping[str, str]) -> None:
        super().__init__(data, script)
        self._data = data

    def load(self) -> Any:
        """Return the object; a payload is a tuple with a maker of batches."""
        thing = super().load()
        if isinstance(thing, Job):
            if not STORE.most_bytes:
                return thing
            job = key_job(thing)
            return _StoredJob(job) if job.digest and STORE.has_job(job.digest) else job
        if not isinstance(thing, tuple):
            return thing
        settings, backends, decoders, maker, values = thing
        data, script = self._data, self._script
        where = sorted(item for item in script.items() if item[0] in _SCRIPT_KEYS)
        digest = hashlib.sha256(data + repr(where).encode()).hexdigest()
        _LAST_PAYLOAD["payload"] = digest
        sharer = SharingMaker(maker, digest, lambda: NodeUnpickler(data, script).load())
        return settings, backends, decoders, sharer, values


class SharingMaker:
    """Makes batches of one loader, and keeps them for others."""

    def __init__(self, maker: Any, payload: str, adopt: Callable[[], Any]) -> None:
        self._maker, self._payload, self._adopt = maker, payload, adopt

    @property
    def last(self) -> Any:
        """Call site of the last pipe, for errors; None if it is not known."""
        return getattr(self._maker, "last", None)

    def run(self, job: Any, seed: int, epoch: int) -> Any:
        """Return the batch of ``job``: a kept one, or one that is kept from now on."""
        LAST_HIT.seconds = 0.0
        job = job.job if isinstance(job, _StoredJob) else job
        key = getattr(job, "digest", ""), self._payload, seed, epoch
        if key[0] and (hit := STORE.get(key)) is not None:
            for volume in job.volumes:
                volume.refuse_change()
            _repeat(hit.warnings)
            LAST_HIT.seconds = hit.seconds
            return hit.batch
        if _LAST_PAYLOAD["payload"] != self._payload:  # another loader had the last turn
            self._adopt()
            _LAST_PAYLOAD["payload"] = self._payload
        record, start = list[warnings.WarningMessage](), time.perf_counter()
        try:
            with warnings.catch_warnings(record=True) as record:
                batch = self._maker.run(job, seed, epoch)
        finally:
            _repeat(record)
        if key[0] and not isinstance(batch, BatchResult):
            _keep(key, batch, time.perf_counter() - start, record)
        return batch


def _keep(key: Any, batch: Any, seconds: float, record: list[warnings.WarningMessage]) -> None:
    """Keep a copy of a batch, unless it has parts that cannot travel."""
    carrier = StreamCarrier()
    with contextlib.suppress(Exception):  # of a user's object; sending the batch raises it
        data, numbers = pack(batch, carrier)
        carrier.note_sent(numbers)
        size = len(data) + sum(part.nbytes for part in carrier.take_parts())
        if size <= STORE.most_bytes:  # memory of the batch itself is used again
            STORE.put(key, StoredBatch(copy.deepcopy(batch), size, seconds, tuple(record)))


def _repeat(record: Iterable[warnings.WarningMessage]) -> None:
    for entry in record:
        warnings.warn_explicit(entry.message, entry.category, entry.filename, entry.lineno)
