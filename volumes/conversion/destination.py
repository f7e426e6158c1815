"""The destination of a conversion: written beside its place, with a journal, then moved there.

A local one gets its name by renaming the hidden folder ``.NAME.part``. A bucket renames nothing:
there the metadata are written last, without which nobody takes the objects for a volume. The
journal is a line of JSON for what is written, and one for every shard that is done; a line that
was cut off by a kill counts as not there.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ...core.errors import (
    DestinationBusy,
    DestinationExists,
    DestinationFull,
    LeadsOutside,
    VolumeError,
    VoxpipeError,
)
from ...core.sample import parse_json
from ...storage.disk_cache import (
    FAILING,
    FULL,
    READ_ONLY_ERRORS,
    boot,
    hold_lock,
    seal,
    sync_folder,
)
from ...storage.location import absolute_place, file_system, is_url, public_name, remote_errors
from ...storage.ranges import open_regular
from ...storage.remote_answers import is_conflict
from ...storage.volume_cache import LOCK_TIMEOUT
from ..formats.zarr_nodes import METADATA_FILES
from ..header import Triple

GROUP = "zarr.json"
_JOURNAL = "journal.jsonl"
_LOCK = "lock"
# What ``rename`` says of a place that is not free.
_THERE = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
# What zarr-python writes a file as, until it is whole and gets its name.
_PARTIAL_FILES = "*.partial"


class LocalDestination:
    """A folder on a local disk."""

    def __init__(self, path: Path, sums: Path | None = None) -> None:
        self.name = str(path)
        # Where check sums of what is written are kept, if anywhere.
        self._path, self._sums = path, sums
        # In the same folder, and so on the same disk: renaming is one step there only.
        self.folder = path.with_name(f".{path.name}.part")
        """Where it is written until it is whole."""
        self._group = self.folder / "group"

    def record(self) -> dict[str, Any] | None:
        """Return what voxpipe noted in the group, empty for what it did not write."""
        if not os.path.lexists(self._path):
            return None
        with suppress(OSError):
            return _record_in(_read(self._path / GROUP))
        return {}

    def is_group(self) -> bool:
        """Whether zarr metadata are there."""
        return any((self._path / file).exists() for file in METADATA_FILES)

    def is_folder(self) -> bool:
        """Whether a folder is there, in whose place no file can be put."""
        return self._path.is_dir() and not self._path.is_symlink()

    def make_way(self) -> None:
        """Do nothing: what is there stays until the new volume is whole."""

    @contextmanager
    def lock(self, timeout: float) -> Iterator[None]:
        """Hold the kernel's lock on the partial folder, which a dead writer does not."""
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            what = f"nothing can be written at {self._path.parent}: {error.strerror}."
            raise VolumeError(what, do="Give a place that you may write to.") from error
        if self.folder.is_symlink():
            what = f"{self.folder} is a link, and what is written there would lie elsewhere."
            raise LeadsOutside(what, do="Remove it.")
        # A writer that finishes takes the folder, and the lock file in it, away.
        with hold_lock(self.folder / _LOCK, time.monotonic() + timeout, self._busy) as lock:
            try:
                yield
            except (OSError, VolumeError):
                # Where no shard of it is written there is nothing to continue.
                with suppress(OSError, VolumeError):
                    lines = _read(self.folder / _JOURNAL).split(b"\n")
                    is_begun = any(line.startswith(b"[") for line in lines)
                    if not is_begun and lock.is_named:
                        self.drop()
                raise
            finally:
                # After drop() another process may hold a new lock of this name, and write here.
                if lock.is_named:
                    self._tidy()

    def _tidy(self) -> None:
        """Remove the partial folder if nothing is left to do in it; the caller holds its lock."""
        has_journal = (self.folder / _JOURNAL).exists()
        # A writer that was killed when all was in its place has left the rest.
        is_done = has_journal and self._path.exists() and not self._group.exists()
        with suppress(OSError):
            if is_done:
                self.drop()
            elif not has_journal:
                (self.folder / _LOCK).unlink()
                self.folder.rmdir()

    def drop(self) -> None:
        """Remove what is being written; the caller holds its lock."""
        # The lock goes last: after it another process may write here, and its files must stay.
        self.clear()
        with suppress(OSError):
            (self.folder / _LOCK).unlink()
            self.folder.rmdir()

    def clear(self) -> None:
        """Remove what another run has left, which goes on no more; the caller holds the lock."""
        with suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != _LOCK:
                    path.unlink()

    def _busy(self) -> DestinationBusy:
        do = "Wait for it; if it hangs, end it, and what it has written will be continued."
        return DestinationBusy(f"another process is writing {self.name}.", do=do)

    def finished_shards(self, key: str) -> set[Triple]:
        """Return the shards in the journal; an unfinished volume of another key is dropped."""
        # What a writer left when the machine went down may not have reached the disk.
        key = f"{key} {boot()}"
        shards = _parse(_read(self.folder / _JOURNAL), key)
        if shards is None:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._group)
            (self.folder / _JOURNAL).write_bytes(_first_line(key))
            return set()
        for file in self._group.rglob(_PARTIAL_FILES):
            file.unlink()
        # What follows must begin a line of its own.
        with open(self.folder / _JOURNAL, "ab") as journal:
            journal.write(b"\n")
        return shards

    def store(self, array: str) -> Any:
        """Return a store in the partial folder."""
        import zarr

        return zarr.storage.LocalStore(self._group / array)

    def note(self, shard: Triple) -> None:
        """Append a line to the journal."""
        with open(self.folder / _JOURNAL, "ab") as journal:
            journal.write(json.dumps(shard).encode() + b"\n")

    def publish(self, document: Mapping[str, Any], *, overwrite: bool) -> None:
        """Rename the partial group; what stood there before goes in the moment before."""
        (self._group / GROUP).write_text(json.dumps(document, indent=2), "utf-8")
        seal(self._group, self._sums)
        old = self.folder / "old"
        with suppress(FileNotFoundError):
            shutil.rmtree(old)  # of an earlier writer, killed in the next lines
        if overwrite and self._path.exists():
            os.rename(self._path, old)
        try:
            os.rename(self._group, self._path)
        except OSError as error:
            if old.exists() and not self._path.exists():
                os.rename(old, self._path)
            if error.errno not in _THERE:
                raise
            what = f"{self.name} appeared while it was being written: {error.strerror}."
            raise DestinationExists(what, do="Give another place, or overwrite=True.") from error
        sync_folder(self._path.parent)
        self.drop()


# Three beats may fail in a row. A killed writer makes the next one wait this long.
LEASE_SECONDS = 60.0
_BEATS = 4
# While a lease lasts; each costs a request, two where a claim is watched.
_LOOKS_AT_LEASE = 60
# Leases to wait for a killed writer and a killed taker, and for the requests meanwhile.
_PATIENCE = 3


class RemoteLease:
    """The right to write at one place of a bucket: an object that its owner keeps renewing.

    It is made only where there is none (``If-None-Match``). While it is held, a thread writes it
    again and again; one that stays the same for as long as a lease lasts belongs to a writer that
    is dead, and whoever waits takes it over. Only this waiting is measured: the clocks of two
    machines never meet. Who takes a lease over first makes an object that is named by its last
    owner, the claim, so that of several that wait one succeeds. A claim that stays belongs to a
    taker that is dead, and is taken over in the same way, by an object named by both.

    Whoever begins looks first and makes its object only where there is none, so a store that knows
    no conditional requests does not lose a lease that is held. What was made there is read again,
    which finds all but two writers that begin within the same moment.
    A lease that is not renewed lasts ``seconds``.
    """

    def __init__(
        self,
        system: Any,
        path: str,
        name: str,
        seconds: float = LEASE_SECONDS,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._system, self._path, self._name = system, path, name
        self._get = partial(_object_at, system)
        self._options = dict(options or {})
        self._seconds = seconds
        self._owner = uuid.uuid4().hex
        self._beat = 0

    @contextmanager
    def hold(self, timeout: float) -> Iterator[None]:
        """Take the lease, waiting for another writer if need be, and renew it meanwhile."""
        with remote_errors(self._name, self._options):
            self._take(time.monotonic() + timeout)
        # No Event, whose set() is in Python: an interrupt of it would keep its lock.
        stop: SimpleQueue[None] = SimpleQueue()
        beating = threading.Thread(target=self._renew, args=(stop,), daemon=True)
        beating.start()
        try:
            yield
        finally:
            stop.put(None)
            beating.join()
            with remote_errors(self._name, self._options):
                if self._is_ours(self._get(self._path)):
                    with suppress(FileNotFoundError):
                        self._system.rm_file(self._path)

    def check(self) -> None:
        """Raise ``DestinationBusy`` where another writer took the lease over."""
        if not self._is_ours(self._get(self._path)):
            raise DestinationBusy(
                f"another process took over writing {self._name}, because this one had not said "
                f"for {self._seconds:g} s that it is alive.",
                do="Let the other one finish; what was written here is continued there.",
            )

    def _take(self, deadline: float) -> None:
        # The lease, and the claims of takers that did not finish; the last is being watched.
        chain: list[bytes] = []
        looks = 0
        while True:
            lease, now = self._get(self._path), time.monotonic()
            if lease is None and self._create(self._path):
                return
            # The lease, and the claim that is watched, are what they were.
            stands = bool(chain) and chain[0] == lease
            if stands and (len(chain) == 1 or self._get(self._claim(chain[:-1])) == chain[-1]):
                looks += 1
            else:
                chain, looks = [] if lease is None else [lease], 0
            # Looks are counted, not seconds: a machine that slept would find every lease old.
            if looks >= _LOOKS_AT_LEASE:
                if self._take_over(chain):
                    return
                claim, looks = self._get(self._claim(chain)), 0
                chain = [*chain, claim] if claim is not None else []
            if now >= deadline:
                raise DestinationBusy(
                    f"another process is writing {self._name}.",
                    do="Wait for it. If it was killed, give a timeout of more than "
                    f"{_PATIENCE * self._seconds:g} s, or remove {self._path} yourself; what it "
                    "has written will be continued.",
                )
            time.sleep(min(self._seconds / _LOOKS_AT_LEASE, max(0.0, deadline - now)))

    def _take_over(self, chain: Sequence[bytes]) -> bool:
        """Put our lease in the place of a dead one, unless somebody else does."""
        claim = self._claim(chain)
        if not self._create(claim):
            return False
        # Who was faster may have finished taking it over before the claim was made.
        success = self._get(self._path) == chain[0]
        if success:
            self._system.pipe_file(self._path, self._content())
        # From the last: who finds the first one gone finds our lease.
        dead = [self._claim(chain[:end]) for end in range(len(chain) - 1, 0, -1)] if success else []
        for path in (claim, *dead):
            with suppress(FileNotFoundError):
                self._system.rm_file(path)
        return success

    def _claim(self, chain: Sequence[bytes]) -> str:
        """Return the object that succeeds a dead lease and dead claims of it."""
        return ".".join((self._path, *map(_owner_of, chain)))

    def _renew(self, stop: SimpleQueue[None]) -> None:
        while True:
            with suppress(Empty):
                stop.get(timeout=self._seconds / _BEATS)
                return
            # One that fails is followed by others; ``check`` tells if all of them did.
            with suppress(Exception):
                if not self._is_ours(self._get(self._path)):
                    return
                self._beat += 1
                self._system.pipe_file(self._path, self._content())

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, "beat": self._beat}).encode()

    def _is_ours(self, content: bytes | None) -> bool:
        return content is not None and _owner_of(content) == self._owner

    def _create(self, path: str) -> bool:
        """Make an object of ours where there is none; say whether it is there."""
        content = self._content()
        try:
            self._system.pipe_file(path, content, mode="create")
        except OSError as error:  # FileExistsError, or whatever a client makes of status 412
            current = self._get(path)
            # What was in the way may be gone by now; anything else is a failure.
            if current is None and not is_conflict(error):
                raise
            # Ours if the answer to the first attempt was lost.
            return current == content
        # A store may not know the condition.
        return self._get(path) == content


def _object_at(system: Any, path: str) -> bytes | None:
    try:
        content: bytes = system.cat_file(path)
    except (FileNotFoundError, IsADirectoryError):
        return None
    return content


def _owner_of(content: bytes) -> str:
    """Return who holds a lease; an object that is none belongs to nobody."""
    with suppress(ValueError, TypeError, KeyError):
        return str(uuid.UUID(parse_json(content)["owner"]).hex)
    return "nobody"


class RemoteDestination:
    """A folder behind a URL. An object beside it is the lock, for as long as it is renewed."""

    def __init__(self, url: str, options: Mapping[str, Any], lease_seconds: float) -> None:
        self.name = public_name(url)
        self._url, self._options = url.rstrip("/"), dict(options)
        self._system, root = file_system(url, options)
        self._get = partial(_object_at, self._system)
        self._root = root.rstrip("/")
        folder, _, last = self._root.rpartition("/")
        self._journal = f"{folder}/.{last}.part.jsonl"
        self._lease = RemoteLease(
            self._system, f"{folder}/.{last}.part.lock", self.name, lease_seconds, self._options
        )
        self._lines = b""

    def record(self) -> dict[str, Any] | None:
        """Return what voxpipe noted in the group; empty for what it did not write."""
        with remote_errors(self._url, self._options):
            content = self._get(f"{self._root}/{GROUP}")
            if content is not None:
                return _record_in(content)
            # Objects without metadata are those of a writer that left its journal, or foreign.
            ours = self._system.exists(self._journal)
            return {} if not ours and self._system.exists(self._root) else None

    def is_group(self) -> bool:
        """Whether zarr metadata are there."""
        with remote_errors(self._url, self._options):
            return any(self._system.exists(f"{self._root}/{f}") for f in METADATA_FILES)

    def is_folder(self) -> bool:
        """Whether objects are below this place."""
        with remote_errors(self._url, self._options):
            return bool(self._system.isdir(self._root))

    def make_way(self) -> None:
        """Remove the group that is there, its metadata first: from then on it is no volume."""
        with remote_errors(self._url, self._options):
            for file in METADATA_FILES:
                with suppress(FileNotFoundError):
                    self._system.rm(f"{self._root}/{file}")
            with suppress(FileNotFoundError):
                self._system.rm(self._root, recursive=True)

    def lock(self, timeout: float) -> AbstractContextManager[None]:
        """Hold the lease of this place, which a dead writer does not renew."""
        return self._lease.hold(timeout)

    def finished_shards(self, key: str) -> set[Triple]:
        """Return the shards in the journal, which lies beside the group."""
        with remote_errors(self._url, self._options):
            journal = self._get(self._journal)
            shards = _parse(journal or b"", key)
            if shards is None:
                if journal is not None:  # the objects of an unfinished volume of another key
                    with suppress(FileNotFoundError):
                        self._system.rm(self._root, recursive=True)
                self._lines = _first_line(key)
                self._system.pipe_file(self._journal, self._lines)
            else:
                self._lines = (journal or b"") + b"\n"
        return shards or set()

    def store(self, array: str) -> Any:
        """Return a store at the place itself."""
        import zarr

        with remote_errors(self._url, self._options):
            return zarr.storage.FsspecStore.from_url(
                f"{self._url}/{array}", storage_options=self._options
            )

    def note(self, shard: Triple) -> None:
        """Write the journal again, one line longer."""
        self._lines += json.dumps(shard).encode() + b"\n"
        with remote_errors(self._url, self._options):
            self._lease.check()
            self._system.pipe_file(self._journal, self._lines)

    def publish(self, document: Mapping[str, Any], *, overwrite: bool) -> None:
        """Write the metadata, by which the group begins to exist."""
        with remote_errors(self._url, self._options):
            self._lease.check()
            self._system.pipe_file(f"{self._root}/{GROUP}", json.dumps(document).encode())
            with suppress(FileNotFoundError):
                self._system.rm(self._journal)


Destination = LocalDestination | RemoteDestination  # one place for one zarr group


def destination_of(location: str, options: Mapping[str, Any]) -> Destination:
    """Return the destination at a path or URL."""
    if is_url(location):
        return RemoteDestination(location, options, LEASE_SECONDS)
    return LocalDestination(Path(absolute_place(location)))


def part_folder(place: str) -> Path:
    """Return the hidden folder in which a local place is written until it is whole."""
    return LocalDestination(Path(absolute_place(place))).folder


# Places that this process writes at.
_WRITERS: dict[tuple[int, str], object] = {}


@contextmanager
def hold(target: Destination, place: str) -> Iterator[None]:
    """Hold the lock of a place: another process waits for it, this one would wait for itself.

    DestinationBusy where this process holds it, or another one for too long.
    """
    own, mark = (os.getpid(), os.path.normcase(absolute_place(place))), object()
    if _WRITERS.setdefault(own, mark) is not mark:
        what = f"this process is writing {target.name} already."
        raise DestinationBusy(what, do="Give each result a place of its own.")
    try:
        with target.lock(LOCK_TIMEOUT):
            yield
    finally:
        del _WRITERS[own]


def check_destination(target: Destination, *, overwrite: bool, is_file: bool = False) -> bool:
    """Return whether something is at a place that is going to be replaced.

    DestinationExists where it may not be: without ``overwrite``, or where it is nothing of that
    sort. Ask it before the work, with the lock of the place in hand.
    """
    if target.record() is None:
        return False
    if not overwrite:
        what = f"{target.name} is there already."
        raise DestinationExists(what, do="Give another place, or overwrite=True.")
    if target.is_folder() if is_file else not target.is_group():
        what = f"{target.name} is {'a folder' if is_file else 'no zarr group'}, "
        do = "Give another place, or remove it yourself."
        raise DestinationExists(f"{what}and nothing else is overwritten.", do=do)
    return True


def upload(local: Path, url: str, options: Mapping[str, Any], *, overwrite: bool) -> None:
    """Copy a file to a URL."""
    system, path = file_system(url, options)
    with remote_errors(public_name(url), options):
        check_destination(destination_of(url, options), overwrite=overwrite, is_file=True)
        system.put_file(str(local), path)


@contextmanager
def disk_errors(what: str, place: str, do: str = "") -> Iterator[None]:
    """Turn what a disk says while something is written into our errors; ``what`` failed then."""
    try:
        yield
    except OSError as error:
        if isinstance(error, VoxpipeError):
            raise
        if error.errno == errno.EFBIG:
            message = f"a file of {place} is longer than may be written: {error.strerror}."
            do = f"Raise this process's limit (ulimit -f), or choose another disk. {do}".strip()
            raise DestinationFull(message, do=do) from error
        if error.errno in FULL:
            do = f"Make room and try again: what is written is continued. {do}".strip()
            message = f"the disk of {place} is full: {error.strerror}."
            raise DestinationFull(message, do=do) from error
        if error.errno not in FAILING | READ_ONLY_ERRORS:
            raise
        do = "Check the disks of both, and try again."
        raise VolumeError(f"{what}: {error.strerror}.", do=do) from error


def _record_in(document: bytes) -> dict[str, Any]:
    with suppress(ValueError, AttributeError):
        return dict(parse_json(document).get("attributes", {}).get("voxpipe", {}))
    return {}


def _first_line(key: str) -> bytes:
    return json.dumps({"journal": 1, "key": key}).encode() + b"\n"


def _parse(journal: bytes, key: str) -> set[Triple] | None:
    r"""Return the finished shards; None for the journal of something else, or none."""
    first, _, rest = journal.partition(b"\n")
    try:
        if parse_json(first) != {"journal": 1, "key": key}:
            return None
    except ValueError:
        return None
    shards: set[Triple] = set()
    for line in rest.split(b"\n"):
        with suppress(ValueError):
            i, j, k = parse_json(line)
            shards.add((i, j, k))
    return shards


def _read(path: Path) -> bytes:
    with suppress(FileNotFoundError), open(path, "rb", opener=open_regular) as file:
        return file.read()
    return b""
