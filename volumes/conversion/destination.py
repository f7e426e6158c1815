"""Destinations of conversions: a partial group with a journal, published once it is whole.

A local group is written in the hidden folder ``.NAME.part`` and renamed. A bucket cannot rename, so
its metadata are written last: objects without metadata are no volume. The first line of the journal
(JSON) holds the key of the volume, each further line a finished shard. A line that a kill cut short
is ignored.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ...core.suggest import few_names
from ...storage.disk_cache import (
    FAILING,
    FULL,
    READ_ONLY_ERRORS,
    boot,
    hold_lock,
    seal,
    sync_folder,
)
from ...storage.file_reader import open_regular
from ...storage.location import absolute_place, file_system, is_url, public_name, remote_errors
from ...storage.remote_answers import is_conflict
from ...storage.volume_cache import LOCK_TIMEOUT
from ..formats.zarr_nodes import METADATA_FILES
from ..header import Triple
from .ome_group import RECORD, rewrite_as_zarr2

GROUP = "zarr.json"
_JOURNAL = "journal.jsonl"
_LOCK = "lock"
# Errors of ``rename`` to an existing path.
_THERE = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
# Names of files that zarr-python has not finished.
_PARTIAL_FILES = "*.partial"


class LocalDestination:
    """A folder on a local disk."""

    def __init__(self, path: Path, sums: Path | None = None) -> None:
        self.name = str(path)
        self._path, self._sums = path, sums  # sums: folder for check sums, if any
        # In the same folder and so on the same disk, where a rename is atomic.
        self.folder = path.with_name(f".{path.name}.part")
        """Folder of the unfinished group."""
        self._group = self.folder / "group"

    def record(self) -> dict[str, Any] | None:
        """Return voxpipe's record in the group: empty for foreign data, None for no data."""
        if not os.path.lexists(self._path):
            return None
        with suppress(OSError):
            return _record_in(_read(self._path / GROUP) or _read(self._path / ".zattrs"))
        return {}

    def is_group(self) -> bool:
        """Whether the destination has zarr metadata."""
        return any((self._path / file).exists() for file in METADATA_FILES)

    def is_folder(self) -> bool:
        """Whether the destination is a folder, which no file can replace."""
        return self._path.is_dir() and not self._path.is_symlink()

    def groups(self) -> list[str]:
        """Return the names of the groups in the destination, such as ``labels``."""
        names = [path.name for path in self._path.iterdir() if path.is_dir()]
        return _groups_of(names, lambda key: _read(self._path / key))

    def make_way(self) -> None:
        """Do nothing: the old group stays until the new one is whole."""

    @contextmanager
    def lock(self, timeout: float) -> Iterator[None]:
        """Hold the kernel's lock on the partial folder; it releases that of a dead writer."""
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            msg = f"nothing can be written at {self._path.parent}: {error.strerror}."
            raise VolumeError(msg, do="Give a folder that you may write to.") from error
        if self.folder.is_symlink():
            msg = f"{self.folder} is a link, so files written there would be elsewhere."
            raise LeadsOutside(msg, do="Remove it.")
        # A writer that finishes removes the folder and its lock file.
        with hold_lock(self.folder / _LOCK, time.monotonic() + timeout, self._busy) as lock:
            try:
                yield
            except (OSError, VolumeError):
                # Without a finished shard there is nothing to resume.
                with suppress(OSError, VolumeError):
                    lines = _read(self.folder / _JOURNAL).split(b"\n")
                    is_begun = any(line.startswith(b"[") for line in lines)
                    if not is_begun and lock.is_named:
                        self.drop()
                raise
            finally:
                # After drop() another process may hold a new lock file of this name.
                if lock.is_named:
                    self._tidy()

    def _tidy(self) -> None:
        """Remove a partial folder without unfinished shards; the caller holds its lock."""
        has_journal = (self.folder / _JOURNAL).exists()
        # A writer killed after its rename leaves the journal.
        is_done = has_journal and self._path.exists() and not self._group.exists()
        with suppress(OSError):
            if is_done:
                self.drop()
            elif not has_journal:
                (self.folder / _LOCK).unlink()
                self.folder.rmdir()

    def drop(self) -> None:
        """Remove the partial folder; the caller holds its lock."""
        # The lock is removed last: then another process may write here, and its files must stay.
        self.clear()
        with suppress(OSError):
            (self.folder / _LOCK).unlink()
            self.folder.rmdir()

    def clear(self) -> None:
        """Remove the files in the partial folder except the lock, which the caller holds."""
        with suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != _LOCK:
                    path.unlink()

    def _busy(self) -> DestinationBusy:
        do = "Wait for it; if it hangs, end it: the next call resumes after its finished shards."
        return DestinationBusy(f"another process is writing {self.name}.", do=do)

    def finished_shards(self, key: str) -> set[Triple]:
        """Return the shards in the journal; remove an unfinished group of another key."""
        # Shards written before a crash of the machine may not have reached the disk.
        key = f"{key} {boot()}"
        shards = _parse(_read(self.folder / _JOURNAL), key)
        if shards is None:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._group)
            (self.folder / _JOURNAL).write_bytes(_first_line(key))
            return set()
        for file in self._group.rglob(_PARTIAL_FILES):
            file.unlink()
        # The last line may be cut short.
        with open(self.folder / _JOURNAL, "ab") as journal:
            journal.write(b"\n")
        return shards

    def store(self, array: str) -> Any:
        """Return the zarr store of an array in the partial folder."""
        import zarr

        return zarr.storage.LocalStore(self._group / array)

    def note(self, shard: Triple) -> None:
        """Append a line to the journal."""
        with open(self.folder / _JOURNAL, "ab") as journal:
            journal.write(json.dumps(shard).encode() + b"\n")

    def publish(self, document: Mapping[str, Any], *, overwrite: bool) -> None:
        """Rename the partial group; with ``overwrite`` move an old one away just before."""
        if document["zarr_format"] == 2:
            rewrite_as_zarr2(self._group, document["attributes"])
        else:
            (self._group / GROUP).write_text(json.dumps(document, indent=2), "utf-8")
        seal(self._group, self._sums)
        old = self.folder / "old"
        with suppress(FileNotFoundError):
            shutil.rmtree(old)  # of an earlier writer, killed between the renames
        if overwrite and self._path.exists():
            os.rename(self._path, old)
        try:
            os.rename(self._group, self._path)
        except OSError as error:
            if old.exists() and not self._path.exists():
                os.rename(old, self._path)
            if error.errno not in _THERE:
                raise
            msg = f"{self.name} appeared while it was being written: {error.strerror}."
            raise DestinationExists(msg, do=_ELSEWHERE) from error
        sync_folder(self._path.parent)
        self.drop()


# Wait for a killed writer.
LEASE_SECONDS = 60.0
_BEATS = 4  # renewals per lease: three may fail in a row
_LOOKS_AT_LEASE = 60  # polls per lease, of one request each, two where a claim is watched
_PATIENCE = 3  # leases to wait: for a killed writer, a killed taker, and the requests
_ELSEWHERE = "Give another place, or ⟦overwrite=True⟧."


class RemoteLease:
    """The write lock of a place in a bucket: an object that its owner renews.

    - A writer creates the object only where it is missing (``If-None-Match``). A thread renews it.
    - An object that stays the same for ``seconds`` belongs to a dead writer, and a waiting process
      takes it over. Each process measures its own wait, so clocks of machines are not compared.
    - A taker first creates the claim, an object named after the last owner, so that only one of
      several takers succeeds. A claim that stays belongs to a dead taker. Another taker replaces
      it in the same way, by an object named after both.
    - For stores without conditional requests, a writer looks before it creates the object, and
      reads it afterwards. Only two writers that begin at the same moment remain undetected.
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
        """Wait for the lease, and renew it inside the ``with`` block."""
        with remote_errors(self._name, self._options):
            self._take(time.monotonic() + timeout)
        # No Event: its set() is Python code, and an interrupt inside would leave its lock held.
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
            msg = f"another process took over writing {self._name}, because this one had not "
            do = "Let the other one finish; it resumes after the shards written here."
            raise DestinationBusy(f"{msg}renewed its lease for {self._seconds:g} s.", do=do)

    def _take(self, deadline: float) -> None:
        # The lease and the claims of unfinished takers; the last one is watched.
        chain: list[bytes] = []
        looks = 0
        while True:
            lease, now = self._get(self._path), time.monotonic()
            if lease is None and self._create(self._path):
                return
            is_same = bool(chain) and chain[0] == lease
            if is_same and (len(chain) == 1 or self._get(self._claim(chain[:-1])) == chain[-1]):
                looks += 1
            else:
                chain, looks = [] if lease is None else [lease], 0
            # Polls are counted, not seconds: after a suspend every lease would seem old.
            if looks >= _LOOKS_AT_LEASE:
                if self._take_over(chain):
                    return
                claim, looks = self._get(self._claim(chain)), 0
                chain = [*chain, claim] if claim is not None else []
            if now >= deadline:
                raise DestinationBusy(
                    f"another process is writing {self._name}.",
                    do="Wait for it. If it was killed, give a timeout of more than "
                    f"{_PATIENCE * self._seconds:g} s, or remove {self._path} yourself; the next "
                    "call resumes after its finished shards.",
                )
            time.sleep(min(self._seconds / _LOOKS_AT_LEASE, max(0.0, deadline - now)))

    def _take_over(self, chain: Sequence[bytes]) -> bool:
        """Replace a dead lease by ours; return False where another process does."""
        claim = self._claim(chain)
        if not self._create(claim):
            return False
        # Another taker may have finished before the claim was created.
        success = self._get(self._path) == chain[0]
        if success:
            self._system.pipe_file(self._path, self._content())
        # The last first: a taker that misses the first claim then reads our lease.
        dead = [self._claim(chain[:end]) for end in range(len(chain) - 1, 0, -1)] if success else []
        for path in (claim, *dead):
            with suppress(FileNotFoundError):
                self._system.rm_file(path)
        return success

    def _claim(self, chain: Sequence[bytes]) -> str:
        """Return the path of the claim on a dead lease and its dead claims."""
        return ".".join((self._path, *map(_owner_of, chain)))

    def _renew(self, stop: SimpleQueue[None]) -> None:
        while True:
            with suppress(Empty):
                stop.get(timeout=self._seconds / _BEATS)
                return
            # Further renewals follow one that fails; ``check`` raises if all of them did.
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
        """Create our object where there is none; return whether it is in the store."""
        content = self._content()
        try:
            self._system.pipe_file(path, content, mode="create")
        except OSError as error:  # FileExistsError, or a client's error for status 412
            current = self._get(path)
            # The other object may be removed by now; any other error is a failure.
            if current is None and not is_conflict(error):
                raise
            # Equal if the response to our first attempt was lost.
            return current == content
        # A store may ignore the condition.
        return self._get(path) == content


def _object_at(system: Any, path: str) -> bytes | None:
    try:
        content: bytes = system.cat_file(path)
    except (FileNotFoundError, IsADirectoryError):
        return None
    return content


def _owner_of(content: bytes) -> str:
    """Return the owner of a lease; a constant for other objects."""
    with suppress(ValueError, TypeError, KeyError):
        return str(uuid.UUID(parse_json(content)["owner"]).hex)
    return "nobody"


class RemoteDestination:
    """A folder at a URL, locked by a lease object next to it."""

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
        """Return voxpipe's record in the group: empty for foreign data, None for no data."""
        with remote_errors(self._url, self._options):
            content = self._get(f"{self._root}/{GROUP}")
            if content is not None:
                return _record_in(content)
            # Objects without metadata are foreign unless a writer has left its journal.
            ours = self._system.exists(self._journal)
            return {} if not ours and self._system.exists(self._root) else None

    def is_group(self) -> bool:
        """Whether the destination has zarr metadata."""
        with remote_errors(self._url, self._options):
            return any(self._system.exists(f"{self._root}/{f}") for f in METADATA_FILES)

    def is_folder(self) -> bool:
        """Whether objects are below the destination."""
        with remote_errors(self._url, self._options):
            return bool(self._system.isdir(self._root))

    def groups(self) -> list[str]:
        """Return the names of the groups in the destination, such as ``labels``."""
        with remote_errors(self._url, self._options):
            self._system.invalidate_cache(self._root)
            paths = self._system.ls(self._root, detail=False)
            names = [path.rstrip("/").rpartition("/")[2] for path in paths]
            return _groups_of(names, lambda key: self._get(f"{self._root}/{key}"))

    def make_way(self) -> None:
        """Remove the old group, its metadata first: from then on it is no volume."""
        with remote_errors(self._url, self._options):
            for file in METADATA_FILES:
                with suppress(FileNotFoundError):
                    self._system.rm(f"{self._root}/{file}")
            with suppress(FileNotFoundError):
                self._system.rm(self._root, recursive=True)

    def lock(self, timeout: float) -> AbstractContextManager[None]:
        """Hold the lease of this destination, which a dead writer does not renew."""
        return self._lease.hold(timeout)

    def finished_shards(self, key: str) -> set[Triple]:
        """Return the shards in the journal; remove an unfinished group of another key."""
        with remote_errors(self._url, self._options):
            journal = self._get(self._journal)
            shards = _parse(journal or b"", key)
            if shards is None:
                if journal is not None:
                    with suppress(FileNotFoundError):
                        self._system.rm(self._root, recursive=True)
                self._lines = _first_line(key)
                self._system.pipe_file(self._journal, self._lines)
            else:
                self._lines = (journal or b"") + b"\n"
        return shards or set()

    def store(self, array: str) -> Any:
        """Return the zarr store of an array at the destination itself."""
        import zarr

        with remote_errors(self._url, self._options):
            return zarr.storage.FsspecStore.from_url(
                f"{self._url}/{array}", storage_options=self._options
            )

    def note(self, shard: Triple) -> None:
        """Write the journal again with one more line."""
        self._lines += json.dumps(shard).encode() + b"\n"
        with remote_errors(self._url, self._options):
            self._lease.check()
            self._system.pipe_file(self._journal, self._lines)

    def publish(self, document: Mapping[str, Any], *, overwrite: bool) -> None:
        """Write the metadata, which make the objects a group."""
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
    """Return the hidden folder of an unfinished local destination."""
    return LocalDestination(Path(absolute_place(place))).folder


# Destinations that this process is writing.
_WRITERS: dict[tuple[int, str], object] = {}


@contextmanager
def hold(target: Destination, place: str) -> Iterator[None]:
    """Hold the lock of a destination.

    DestinationBusy where this process holds it, as it would wait for itself, or another for long.
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
    """Return whether the destination holds data to be replaced.

    DestinationExists for data without ``overwrite`` or of another sort (folder, foreign files).
    Call it before the work, under the lock of the destination.
    """
    if target.record() is None:
        return False
    if not overwrite:
        raise DestinationExists(f"{target.name} is there already.", do=_ELSEWHERE)
    if target.is_folder() if is_file else not target.is_group():
        what = f"{target.name} is {'a folder' if is_file else 'no zarr group'}, "
        do = "Give another place, or remove it yourself."
        raise DestinationExists(f"{what}and nothing else is overwritten.", do=do)
    if not is_file and (groups := target.groups()):
        what = f"{target.name} holds the groups {few_names(groups)}, which overwrite= would delete."
        raise DestinationExists(what, do="Give another place, or remove them yourself.")
    return True


def _groups_of(names: Sequence[str], read: Callable[[str], bytes | None]) -> list[str]:
    """Return the folders that are groups of zarr; that of labels may lack metadata."""
    groups = {name for name in names if name == "labels" or read(f"{name}/.zgroup")}
    for name in names:
        with suppress(ValueError, AttributeError):
            document = parse_json(read(f"{name}/{GROUP}") or b"{}")
            groups |= {name} if document.get("node_type") == "group" else set()
    return sorted(groups)


def upload(local: Path, url: str, options: Mapping[str, Any], *, overwrite: bool) -> None:
    """Copy a file to a URL."""
    system, path = file_system(url, options)
    with remote_errors(public_name(url), options):
        check_destination(destination_of(url, options), overwrite=overwrite, is_file=True)
        system.put_file(str(local), path)


@contextmanager
def disk_errors(action: str, place: str, do: str = "") -> Iterator[None]:
    """Raise errors of a full or failing disk as ours; ``action`` names the failed operation."""
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
            do = f"Make room and try again: finished shards are kept. {do}".strip()
            message = f"the disk of {place} is full: {error.strerror}."
            raise DestinationFull(message, do=do) from error
        if error.errno not in FAILING | READ_ONLY_ERRORS:
            raise
        do = "Check the disks of both, and try again."
        raise VolumeError(f"{action}: {error.strerror}.", do=do) from error


def _record_in(document: bytes) -> dict[str, Any]:
    with suppress(ValueError, AttributeError):
        content = parse_json(document)
        return dict(content.get(RECORD) or content.get("attributes", {}).get("voxpipe", {}))
    return {}


def _first_line(key: str) -> bytes:
    return json.dumps({"journal": 1, "key": key}).encode() + b"\n"


def _parse(journal: bytes, key: str) -> set[Triple] | None:
    """Return the finished shards; None for a journal of another key or no journal."""
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
