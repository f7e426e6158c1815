"""Where a converted volume is written: beside its place, with a journal, then put there whole.

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
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ...core.errors import CacheBusy, DestinationBusy, DestinationExists, VolumeError
from ...core.sample import parse_json
from ...storage.disk_cache import boot, sync_files, sync_folder
from ...storage.location import (
    absolute_place,
    file_system,
    is_url,
    public_name,
    remote_errors,
)
from ...storage.locks import LEASE_SECONDS, RemoteLease, is_still, lock, open_lock
from ...storage.ranges import open_regular
from ..formats.zarr_nodes import METADATA_FILES
from ..header import Triple

GROUP = "zarr.json"
_JOURNAL = "journal.jsonl"
# What ``rename`` says of a place that is not free.
_THERE = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
# What zarr-python writes a file as, until it is whole and gets its name.
_UNFINISHED = "*.partial"


class LocalDestination:
    """A folder on a local disk."""

    def __init__(self, path: Path, sealed: Callable[[Path], None] = sync_files) -> None:
        self.name = str(path)
        self._path, self._sealed = path, sealed
        # In the same folder, and so on the same disk: renaming is one step there only.
        self._partial = path.with_name(f".{path.name}.part")
        self._group = self._partial / "group"

    def record(self) -> dict[str, Any] | None:
        """Return what voxpipe noted in the group, empty for what it did not write."""
        if not os.path.lexists(self._path):
            return None
        with suppress(OSError, ValueError, AttributeError):
            document = parse_json(_read(self._path / GROUP))
            return dict(document.get("attributes", {}).get("voxpipe", {}))
        return {}

    def is_group(self) -> bool:
        """Whether zarr metadata are there."""
        return any((self._path / file).exists() for file in METADATA_FILES)

    def make_way(self) -> None:
        """Do nothing: what is there stays until the new volume is whole."""

    @contextmanager
    def locked(self, timeout: float) -> Iterator[None]:
        """Hold the kernel's lock on the partial folder, which a dead writer does not."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._partial.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise VolumeError(
                    f"nothing can be written at {self._path.parent}: {error.strerror}.",
                    do="Give a place that you may write to.",
                ) from error
            with self._locked_file(deadline) as file:
                # A writer that finished took the folder, and the lock file in it, away.
                if file is not None and is_still(file.fileno(), self._partial / "lock"):
                    try:
                        yield
                    except (OSError, VolumeError):
                        self._drop_unless_begun()
                        raise
                    finally:
                        self._tidy()
                    return

    def _tidy(self) -> None:
        """Remove the partial folder if nothing is left to do in it; the caller holds its lock."""
        begun = (self._partial / _JOURNAL).exists()
        # A writer that was killed when all was in its place has left the rest.
        ended = begun and self._path.exists() and not self._group.exists()
        with suppress(OSError):
            if ended:
                self._remove_partial()
            elif not begun:
                (self._partial / "lock").unlink()
                self._partial.rmdir()

    def _drop_unless_begun(self) -> None:
        """Remove what is being written if no shard of it is: there is nothing to continue."""
        with suppress(OSError, VolumeError):
            lines = _read(self._partial / _JOURNAL).split(b"\n")
            if not any(line.startswith(b"[") for line in lines):
                self._remove_partial()

    def _remove_partial(self) -> None:
        # The lock goes first: who waits for it then looks at the place again.
        with suppress(FileNotFoundError):
            (self._partial / "lock").unlink()
            shutil.rmtree(self._partial)

    @contextmanager
    def _locked_file(self, deadline: float) -> Iterator[BinaryIO | None]:
        try:
            file = open_lock(self._partial / "lock")  # closed below
        except FileNotFoundError:
            yield None
            return
        with file:
            lock(file, deadline, self._busy)
            yield file

    def _busy(self) -> DestinationBusy:
        return DestinationBusy(
            f"another process is writing {self.name}.",
            do="Wait for it; if it hangs, end it, and what it has written will be continued.",
        )

    def finished(self, key: str) -> set[Triple]:
        """Return the shards in the journal; an unfinished volume of another key is dropped."""
        # What a writer left when the machine went down may not have reached the disk.
        key = f"{key} {boot()}"
        done = _parsed(_read(self._partial / _JOURNAL), key)
        if done is None:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._group)
            (self._partial / _JOURNAL).write_bytes(_first_line(key))
            return set()
        for file in self._group.rglob(_UNFINISHED):
            file.unlink()
        # What follows must begin a line of its own.
        with open(self._partial / _JOURNAL, "ab") as journal:
            journal.write(b"\n")
        return done

    def store(self, array: str) -> Any:
        """Return a store in the partial folder."""
        import zarr

        return zarr.storage.LocalStore(self._group / array)

    def note(self, shard: Triple) -> None:
        """Append a line to the journal."""
        with open(self._partial / _JOURNAL, "ab") as journal:
            journal.write(json.dumps(shard).encode() + b"\n")

    def publish(self, document: Mapping[str, Any], *, overwrite: bool) -> None:
        """Rename the partial group; what stood there before goes in the moment before."""
        (self._group / GROUP).write_text(json.dumps(document, indent=2), "utf-8")
        self._sealed(self._group)
        old = self._partial / "old"
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
            raise DestinationExists(
                f"{self.name} appeared while it was being written: {error.strerror}.",
                do="Give another place, or overwrite=True.",
            ) from error
        sync_folder(self._path.parent)
        self.drop()

    def drop(self) -> None:
        """Remove what is being written; the caller holds its lock."""
        self._remove_partial()


class RemoteDestination:
    """A folder behind a URL. An object beside it is the lock, for as long as it is renewed."""

    def __init__(self, url: str, options: Mapping[str, Any], lease_seconds: float) -> None:
        self.name = public_name(url)
        self._url, self._options = url.rstrip("/"), dict(options)
        self._system, root = file_system(url, options)
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
            found = self._get(f"{self._root}/{GROUP}")
            if found is not None:
                with suppress(ValueError, AttributeError):
                    return dict(parse_json(found).get("attributes", {}).get("voxpipe", {}))
                return {}
            # Objects without metadata are those of a writer that left its journal, or foreign.
            ours = self._system.exists(self._journal)
            return {} if not ours and self._system.exists(self._root) else None

    def is_group(self) -> bool:
        """Whether zarr metadata are there."""
        with remote_errors(self._url, self._options):
            return any(self._system.exists(f"{self._root}/{f}") for f in METADATA_FILES)

    def make_way(self) -> None:
        """Remove the group that is there, its metadata first: from then on it is no volume."""
        with remote_errors(self._url, self._options):
            for file in METADATA_FILES:
                with suppress(FileNotFoundError):
                    self._system.rm(f"{self._root}/{file}")
            with suppress(FileNotFoundError):
                self._system.rm(self._root, recursive=True)

    @contextmanager
    def locked(self, timeout: float) -> Iterator[None]:
        """Hold the lease of this place, which a dead writer does not renew."""
        with ExitStack() as held:
            with _refused():  # not around what is done meanwhile, which may read of a busy cache
                held.enter_context(self._lease.held(timeout))
            yield

    def finished(self, key: str) -> set[Triple]:
        """Return the shards in the journal, which lies beside the group."""
        with remote_errors(self._url, self._options):
            found = self._get(self._journal)
            done = _parsed(found or b"", key)
            if done is None:
                if found is not None:  # the objects of an unfinished volume of another key
                    with suppress(FileNotFoundError):
                        self._system.rm(self._root, recursive=True)
                self._lines = _first_line(key)
                self._system.pipe_file(self._journal, self._lines)
            else:
                self._lines = (found or b"") + b"\n"
        return done or set()

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
        with _refused(), remote_errors(self._url, self._options):
            self._lease.check()
            self._system.pipe_file(self._journal, self._lines)

    def publish(self, document: Mapping[str, Any], *, overwrite: bool) -> None:
        """Write the metadata, by which the group begins to exist."""
        with _refused(), remote_errors(self._url, self._options):
            self._lease.check()
            self._system.pipe_file(f"{self._root}/{GROUP}", json.dumps(document).encode())
            with suppress(FileNotFoundError):
                self._system.rm(self._journal)

    def _get(self, path: str) -> bytes | None:
        try:
            found: bytes = self._system.cat_file(path)
        except (FileNotFoundError, IsADirectoryError):
            return None
        return found


Destination = LocalDestination | RemoteDestination
"""One place for one zarr group."""


def destination_of(location: str, options: Mapping[str, Any]) -> Destination:
    """Return the destination at a path or URL."""
    if is_url(location):
        return RemoteDestination(location, options, LEASE_SECONDS)
    return LocalDestination(Path(absolute_place(location)))


def _first_line(key: str) -> bytes:
    return json.dumps({"journal": 1, "key": key}).encode() + b"\n"


def _parsed(journal: bytes, key: str) -> set[Triple] | None:
    r"""Return the finished shards; None for the journal of something else, or none."""
    first, _, rest = journal.partition(b"\n")
    try:
        if parse_json(first) != {"journal": 1, "key": key}:
            return None
    except ValueError:
        return None
    done: set[Triple] = set()
    for line in rest.split(b"\n"):
        with suppress(ValueError):
            i, j, k = parse_json(line)
            done.add((i, j, k))
    return done


def _read(path: Path) -> bytes:
    with suppress(FileNotFoundError), open(path, "rb", opener=open_regular) as file:
        return file.read()
    return b""


@contextmanager
def _refused() -> Iterator[None]:
    """Turn what a lease says into the error of a writer: nothing is read here."""
    try:
        yield
    except CacheBusy as error:
        raise DestinationBusy(error.what, do=error.do) from error
