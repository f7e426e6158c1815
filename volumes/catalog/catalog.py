"""Catalogue entries: checks of volumes, entries of manifests, and volumes of entries."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import IO, Any

import numpy as np

from ...core.errors import BadManifest, StaleEntry, VolumeError, VolumeNotFound, VoxpipeError
from ...core.lru_cache import cached_property
from ...core.redact import escape_controls, public_text, used_name
from ...core.sample import parse_json
from ...core.validate import count_text
from ...storage.content import content_key, documents_token, files_below
from ...storage.disk_cache import NO_LINK, results_folder
from ...storage.fsspec_ranges import open_fsspec
from ...storage.location import absolute_place, is_url
from ...storage.obstore_ranges import ObstoreRanges
from ...storage.read_ahead import SmallObjectCache
from ...storage.remote import open_remote
from ...storage.remote_ranges import ObjectEntry as Listed
from ...storage.remote_ranges import RemoteRanges
from ..backend import Backend
from ..chunks.ranged_chunks import register_decoder
from ..formats.nifti import contradictions
from ..formats.stored_file import LocalStoredFile
from ..formats.zarr_backend import metadata_stamp
from ..formats.zarr_nodes import METADATA_FILES
from ..header import Header, Shape
from ..registry import register_backend
from ..session import close_volumes, opening_session
from ..source import USUAL_OPTIONS, LocatedSource, Options, Stamp
from ..volume import Volume
from ..voxels import Voxels, label_numbers
from .manifest import (
    Entry,
    entry_of_json,
    json_of_entry,
)
from .whole_pass import slabs_of, volume_statistics

# A sharded volume has dozens of objects, and one request lists a thousand. With more objects, only
# the metadata are compared.
MOST_NAMES = 1000
METADATA = (*METADATA_FILES, ".zattrs")  # files that are rewritten with a zarr folder
_NOT_WHOLE = "no whole numbers"
_MOST_OPTIONS = 32  # of the backends of a manifest


@dataclass(frozen=True)
class Finding:
    """Result of the check of one volume."""

    case: str  # name of its case
    key: str  # its key in the case
    name: str  # path or URL, without credentials
    error: str = ""
    """Class of the error; empty for a sound volume. ``"Contradiction"``: a NIfTI header has two
    values of one fact. ``"NotFinite"``, ``"NotWhole"``: some voxels are not finite, or no labels.
    ``"MissingLabel"``, ``"MissingVolume"``: the case lacks this key."""
    reason: str = ""  # the problem and its cure; empty for a sound volume
    shape: Shape | None = None  # (C, I, J, K), where the header could be read
    affine: tuple[float, ...] | None = None  # its 16 entries, where the header could be read
    names_axes: bool | None = True  # as of the volume
    lengths: str = ""  # a voxel in the file's unit, such as "0.5 x 0.5 x 2 um"; empty without one
    message: str = ""  # the problem alone, of an error of this package
    do: str = ""  # its cure alone
    argument: str = ""  # of ``UnknownName``
    channel_names: tuple[str, ...] = ()  # as of the header

    @property
    def is_bad(self) -> bool:
        """Whether something is wrong."""
        return bool(self.error)

    @classmethod
    def of_missing(cls, case: str, key: str, labels: Collection[str], reason: str) -> Finding:
        """Return the finding for a volume that a case lacks."""
        return cls(case, key, "", "MissingLabel" if key in labels else "MissingVolume", reason)

    def with_error(self, error: Exception) -> Finding:
        """Return this finding with the class and text of an error."""
        kind = type(error).__name__
        if not isinstance(error, VoxpipeError):
            return replace(self, error=kind, reason=public_text(str(error)) or kind)
        message, do = error.message, error.do
        stop = ". " if not message.endswith(".") else " "
        reason = message + stop + do if do else message
        own = replace(self, error=kind, reason=reason, message=message, do=do)
        return replace(own, argument=getattr(error, "argument", ""))

    def __str__(self) -> str:
        reason = " ".join(self.reason.split()) if self.is_bad else "sound"
        text = f"{self.case}/{self.key}: {self.error + ': ' if self.error else ''}{reason}"
        return escape_controls(text, lines=False)


def examine(volume: Volume, case: str, key: str, *, voxels: bool = False) -> Finding:
    """Open a volume and read its header, or every voxel; return any error as a finding."""
    finding = Finding(case, key, volume.name)
    try:
        backend = volume.probe()
        header = backend.header
        affine = tuple(float(v) for v in np.ravel(volume.affine))
        finding = replace(finding, shape=header.shape, affine=affine, lengths=volume.lengths)
        finding = replace(finding, channel_names=header.channel_names)
        finding = replace(finding, names_axes=volume.names_axes)
        for part in volume.parts:
            files = getattr(part.probe(), "files", ())
            if files and (twice := contradictions(files[0])):
                do = "Correct the header: other programs read the other value."
                why = f"{part.name}: {twice}. {do}"
                finding = replace(finding, error="Contradiction", reason=why)
        stores_chunks = getattr(backend, "stores_chunks", None)
        # A sound mask may have no chunks, as some writers skip chunks of zeros.
        if volume.kind != "label" and stores_chunks is not None and not stores_chunks():
            why = f"{volume.name} has metadata and not one chunk. Copy its chunks too."
            return replace(finding, error="EmptyVolume", reason=why)
        odd: Counter[str] = Counter()
        as_image = volume.of_kind("intensity")
        for region in slabs_of(volume) if voxels else ():
            odd += _odd_values(as_image.read(region), volume.kind == "label")
        return _finding_of(odd, finding) if odd else finding
    except Exception as error:  # libraries raise any class for a bad file
        return finding.with_error(error)


def _odd_values(read: Voxels, is_label: bool) -> Counter[str]:
    """Count the voxels that are NaN, infinite or, in a label, no whole number."""
    array = read.array
    array.max()  # reads all pages of a mapped file
    if array.dtype.kind not in "fciu" or (array.dtype.kind in "iu" and not read.is_scaled):
        return Counter()
    counts = {}
    if array.dtype.kind in "fc":
        counts = {"NaN": np.isnan(array).sum(), "infinite": np.isinf(array).sum()}
    if is_label and array.dtype.kind != "c":
        _, flags = label_numbers(read)
        counts[_NOT_WHOLE] = 0 if flags is None else flags[np.isfinite(array)].sum()
    return +Counter({kind: int(count) for kind, count in counts.items()})


def _finding_of(odd: Mapping[str, int], sound: Finding) -> Finding:
    text = " and ".join(
        count_text(
            n, f"voxel is {'no whole number' if kind == _NOT_WHOLE else kind}", f"voxels are {kind}"
        )
        for kind, n in odd.items()
    )
    if "NaN" in odd or "infinite" in odd:
        kind, do = "NotFinite", "Replace them: interpolation and averages spread each of them."
    else:
        kind, do = "NotWhole", "Write labels with nearest neighbour, or open this key as an image."
    return replace(sound, error=kind, reason=f"{sound.name}: {text}. {do}")


def serve(
    connection: Any, voxels: bool, backends: tuple[Any, ...] = (), decoders: tuple[Any, ...] = ()
) -> None:
    """Examine the volumes that a connection delivers, ``(volume, case, key)``, until None."""
    for codec, maker in decoders:
        register_decoder(codec, maker)
    for name, matcher, factory in reversed(backends):
        register_backend(name, matcher, factory)
    try:
        connection.send(None)  # ready
    except OSError:  # other processes examined all volumes during the start of this one
        return
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        if task is None:
            return
        finding = examine(*task, voxels=voxels)
        close_volumes()
        try:
            connection.send(finding)
        except OSError:  # the parent has closed the connection
            return


def describe_volume(volume: Volume, case: str, key: str, *, statistics: bool = True) -> Entry:
    """Return the entry of a manifest for a volume."""
    source = volume.located_source
    if source is None or source.options.reader or source.options.affine:
        why = "is in memory" if source is None else "has a reader= or affine= of its own"
        why = "is of several files" if len(volume.parts) > 1 else why
        msg = f"{volume.name} {why}, which a manifest cannot describe."
        raise VolumeError(msg, do="Give the path or URL of a format that is registered.")
    if volume.axis_map_key:
        do = "Index the stored volume, and give axis_map= to open_volume() after from_manifest()."
        raise VolumeError(f"{volume.name} has an axis map, which a manifest does not hold.", do=do)
    # The stamp comes first, so that later writes make the entry stale.
    stamp = stamp_at(source)
    backend = volume.of_kind("intensity").probe()  # a label's header as it is stored
    can = statistics and backend.dtype.kind != "c"
    return Entry(
        case=case,
        key=key,
        location=_place(volume),
        kind=volume.kind,
        header=backend.header,
        stamp=stamp,
        shards=getattr(backend, "shards", None),
        statistics=volume_statistics(volume) if can else None,
        options=tuple(sorted(source.options.reader_kwargs.items())),
        documents=tuple(sorted(getattr(backend, "documents", {}).items())),
    )


_THREADS = 8


def describe_each(
    volumes: Iterable[tuple[str, str, Volume]],
    earlier: Callable[[str, str, str], Iterable[Entry]],
    statistics: bool = True,
) -> Generator[Entry | Finding, None, None]:
    """Yield the entry of each volume, in order, or the finding for an unreadable one.

    ``earlier`` returns entries of a case, key and location; a volume that is unchanged since one
    of them is not read. Threads describe volumes, and hold a few of them at a time.
    """

    def describe(task: tuple[str, str, Volume]) -> Entry | Finding:
        case, key, volume = task
        try:
            for entry in earlier(case, key, _place(volume)):
                if _still_holds(entry, volume, statistics):
                    return entry
            return describe_volume(volume, case, key, statistics=statistics)
        except Exception as error:  # libraries raise any class for a bad file
            return Finding(case, key, volume.name).with_error(error)

    running: deque[Future[Entry | Finding]] = deque()
    # Statistics need a core each; headers wait for the store.
    threads = min(_THREADS, os.cpu_count() or 1) if statistics else _THREADS
    with ThreadPoolExecutor(threads) as pool:
        try:
            for task in volumes:
                running.append(pool.submit(copy_context().run, describe, task))
                if len(running) >= 2 * threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


class PartialIndex:
    """The entries of an unfinished index in a file next to the manifest, one line each.

    The next run finds them there; :meth:`remove` ends the work. Lines are only appended, so that a
    killed run leaves whole lines and at most a part of one. The index of a remote manifest is in
    the cache directory.
    """

    def __init__(self, destination: str | os.PathLike[str]) -> None:
        place = os.fspath(destination)
        if is_url(place):
            folder = results_folder("index")
            folder.mkdir(parents=True, exist_ok=True)
            self.path = str(folder / f"{content_key(used_name(place), ())}.partial")
        else:
            self.path = f"{absolute_place(place)}.partial"
        self._lines: dict[int, int] = {}  # where a line begins, by hash of case, key and location
        try:
            self._file, self._is_own = _open_alone(self.path)
        except OSError as error:
            what = f"{self.path} cannot be written: {error.strerror}."
            raise BadManifest(what, do="Give another place.") from error
        self._stop = self._read_lines()
        self._file.truncate(self._stop)

    def _read_lines(self) -> int:
        """Note the whole lines of an earlier run, and return where they end."""
        stop = 0
        for line in self._file:
            try:
                case, key, volume = parse_json(line if line.endswith(b"\n") else b"")
                self._lines[hash((case, key, volume["location"]))] = stop
            except (ValueError, KeyError, TypeError):
                break
            stop += len(line)
        return stop

    def add(self, entry: Entry) -> int:
        """Append an entry unless it is there; return where its line begins."""
        place = hash((entry.case, entry.key, entry.location))
        if place in self._lines and self.entry_at(self._lines[place]) == entry:
            return self._lines[place]
        line = json.dumps([entry.case, entry.key, json_of_entry(entry, "")]).encode() + b"\n"
        self._file.seek(self._stop)
        self._file.write(line)
        self._file.flush()
        self._lines[place], self._stop = self._stop, self._stop + len(line)
        return self._lines[place]

    def entry_at(self, start: int) -> Entry:
        """Return the entry of the line that begins at a position."""
        line = b""
        while piece := os.pread(self._file.fileno(), 64 * 1024, start + len(line)):
            line += piece
            if b"\n" in piece:
                break
        line = line[: line.find(b"\n") + 1]
        case, key, volume = parse_json(line)
        return entry_of_json(case, key, volume, "")

    def entries_of(self, *place: str) -> Iterator[Entry]:
        """Yield the entry of a case, key and location, if the file has it."""
        return entries_of(place, self._lines, self.entry_at)

    def remove(self) -> None:
        """Remove the file: its entries are in the manifest."""
        if self._is_own:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def close(self) -> None:
        """Close the file, which stays for the next run unless it was removed."""
        self._file.close()


def entries_of(
    place: tuple[str, ...], positions: Mapping[int, int], entry_at: Callable[[int], Entry]
) -> Iterator[Entry]:
    """Yield the entry at the position of a hash, if it is of this case, key and location."""
    position = positions.get(hash(place))
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
        if position is not None:
            entry = entry_at(position)
            if (entry.case, entry.key, entry.location) == place:
                yield entry


def _open_alone(path: str) -> tuple[IO[bytes], bool]:
    """Open a file to append to, and return whether it is this one and not a temporary one.

    The file of a second process at the same time is temporary.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | NO_LINK, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return tempfile.TemporaryFile(), False
        raise
    return open(descriptor, "r+b"), True


def _place(volume: Volume) -> str:
    source = volume.located_source
    return "" if source is None else source.path or used_name(source.location)


def _still_holds(entry: Entry, volume: Volume, statistics: bool) -> bool:
    source = volume.located_source
    return (
        source is not None
        and entry.kind == volume.kind
        and entry.options == tuple(sorted(source.options.reader_kwargs.items()))
        and (not statistics or entry.header.dtype.kind == "c" or entry.statistics is not None)
        and entry.stamp == stamp_at(source)
    )


def sources_of(
    manifest: str, storage_options: Mapping[str, Any], follow: str = "same_folder"
) -> Callable[[Entry], CataloguedSource]:
    """Return a function that returns the source of an entry; it can be pickled."""
    places = partial(_place_of, {}, dict(storage_options), follow)
    return partial(CataloguedSource, manifest, places)


def _place_of(
    by_text: dict[str, Options], storage_options: dict[str, Any], follow: str, entry: Entry
) -> LocatedSource:
    """Return the path or URL of an entry; options are pickled once for many volumes."""
    options = by_text.get(key := repr(entry.options))
    if options is None:
        own = Options(None, None, storage_options, dict(entry.options), follow=follow)
        if len(by_text) >= _MOST_OPTIONS:
            by_text.clear()
        options = by_text[key] = USUAL_OPTIONS if vars(own) == vars(USUAL_OPTIONS) else own
    return LocatedSource(entry.location, options)


class CataloguedSource:
    """A path or URL with its header from a manifest."""

    def __init__(
        self, manifest: str, place_of: Callable[[Entry], LocatedSource], entry: Entry
    ) -> None:
        self.manifest, self._place_of, self.entry = manifest, place_of, entry

    def __getstate__(self) -> dict[str, Any]:
        names = "manifest", "entry", "located_source"
        return {name: getattr(self, name) for name in names}

    @cached_property
    def located_source(self) -> LocatedSource:
        """Path or URL, made at its first use: planners need none."""
        return self._place_of(self.entry)

    @property
    def name(self) -> str:
        """The location without credentials."""
        return self.located_source.name

    @property
    def names_content(self) -> bool:
        """Whether the token covers all content; with very many chunks only the metadata."""
        return self.entry.stamp.how != "metadata"

    @cached_property
    def token(self) -> str:
        """Equal for one place and version, in every process."""
        return content_key(self.located_source.token, (self.entry.stamp,))

    @property
    def statistics(self) -> Any:
        """The statistics in the manifest."""
        return self.entry.statistics

    def known_header(self) -> Header:
        """Return the header in the manifest."""
        return self.entry.header

    def open(self) -> Backend:
        """Open the volume; raise StaleEntry where it differs from the manifest."""
        # A remote stamp is requested in the background. Meanwhile the volume is opened with the
        # documents in the manifest, and its chunks are requested.
        cache = opening_session().ahead.documents
        waiting = [begin_stamp(self.located_source, self.entry.stamp.how)]

        def check() -> None:
            if waiting:  # emptied once the check has passed
                future, waiting[0] = waiting[0], None
                if change := self.change(future):
                    raise self.stale(change, cache)
                waiting.clear()

        if waiting[0] is None:
            check()
        entries = () if self.located_source.path else self.entry.documents
        documents = {(key,): None if data is None else memoryview(data) for key, data in entries}
        if documents:
            # The backend finds these in place of requests; check() compares their version.
            cache.keep(self._documents_token(), documents)
        try:
            backend = self.located_source.open()
        except VoxpipeError:
            check()  # StaleEntry is more precise than the failure to open
            raise
        backend.version_check = check
        if not backend.header.agrees_with(self.entry.header):
            # A stamp may cover the metadata only; or another voxpipe reads them otherwise.
            before, now = (
                f"{h.shape} {h.disk_dtype}, chunks {h.chunks}, affine {h.affine}"
                for h in (self.entry.header, backend.header)
            )
            raise self.stale(f"its header was {before} and is {now}", cache)
        # The stamp of the manifest is of the first file alone.
        has_more = len(getattr(backend, "files", ())) > 1
        if has_more and backend.header.stamp != self.entry.header.stamp:
            raise self.stale("another of its files was written again", cache)
        return backend

    def _documents_token(self) -> str:
        return documents_token(
            self.located_source.location, self.located_source.options.storage_options
        )

    def change(self, future: Future[Stamp] | None) -> str:
        """Return the difference between volume and manifest in words; empty if none."""
        try:
            now = stamp_at(self.located_source, future)
        except VolumeNotFound:
            return "it is gone"
        return self.entry.stamp.change(now)

    def stale(self, change: str, cache: SmallObjectCache) -> StaleEntry:
        """Return the error for a changed volume, and drop its cached documents."""
        cache.forget(self._documents_token())
        entry = self.entry
        return StaleEntry(
            f"{entry.key!r} of case {entry.case} in {self.manifest} is stale: {change} "
            f"({self.name}).",
            do="Write the manifest again (voxpipe index), or put the file back.",
        )


def stamp_at(source: LocatedSource, future: Future[Stamp] | None = None) -> Stamp:
    """Return the stamp of the file, the folder or the files of a pattern at a path or URL."""
    future = begin_stamp(source, "") if future is None else future
    with contextlib.suppress(VolumeNotFound):
        return _local_stamp(source) if future is None else future.result()
    files = getattr(source.open(), "files", ())  # those that a reader finds by the place
    entries = [
        (file.name, file.size, repr(file.stamp[1:]) if file.stamp else file.content_key)
        for file in files
    ]
    return _as_list(entries) if entries else Stamp("listing", 0, 0, "")


def _local_stamp(source: LocatedSource) -> Stamp:
    """Return the stamp of a local file or folder."""
    if not os.path.isdir(source.path):
        file = LocalStoredFile(source.path)
        return Stamp("file", file.size, 1, str(file.stamp[1]))
    entries = list(islice(files_below(source.path), MOST_NAMES + 1))
    if len(entries) > MOST_NAMES:
        stamp = metadata_stamp(source.path)
        return Stamp("metadata", sum(stamp[::2]), len(stamp) // 2, content_key("", stamp))
    return _as_list(entries)


def _as_list(entries: Sequence[tuple[str, int, str]]) -> Stamp:
    # Labels that are added to an image do not change it.
    if any(entry[0] in METADATA_FILES for entry in entries):
        entries = [entry for entry in entries if not entry[0].startswith("labels/")]
    version = content_key("", tuple(sorted((f"/{key}", *rest) for key, *rest in entries)))
    return Stamp("listing", sum(size for _, size, _ in entries), len(entries), version)


def begin_stamp(source: LocatedSource, how: str) -> Future[Stamp] | None:
    """Request the stamp of a URL in the background; return None for local paths.

    ``how``, that of an earlier stamp, decides whether a file or a folder is requested first.
    """
    if source.path:
        return None
    place = source.location, source.options.storage_options
    store = open_remote(*place)
    # A forked child reads through fsspec, and compares versions with its parent, which may use
    # obstore. If their versions differ, both use fsspec, which takes a second to import.
    if isinstance(store, ObstoreRanges) and not store.versions_as_fsspec:
        store = open_fsspec(*place)
    return store.begin(_request_stamp(store, source.name, how))


async def _request_stamp(store: RemoteRanges, name: str, how: str) -> Stamp:
    """Return a stamp; one request is enough where the first guess, file or folder, is right."""
    folder_first = how != "file" if how else ".zarr" in name
    for folder in (folder_first, not folder_first):
        if not folder:
            entry = await store.entry_async("")
            if entry is not None:
                return Stamp("file", entry.size, 1, entry.version)
            continue
        entries = await store.entries_async(MOST_NAMES)
        if len(entries) > MOST_NAMES:
            return _metadata(await asyncio.gather(*map(store.entry_async, METADATA)))
        if entries:
            return _as_list(entries)
    raise VolumeNotFound(f"there is nothing at {name}.", do="Check the URL.")


def _metadata(entries: Sequence[Listed | None]) -> Stamp:
    """Return the stamp of the metadata of a remote zarr folder."""
    rows = [tuple(entry) for entry in entries if entry is not None]
    size = sum(entry.size for entry in entries if entry is not None)
    return Stamp("metadata", size, len(rows), content_key("", tuple(rows)))
