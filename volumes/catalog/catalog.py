"""From volumes to a manifest, and from a manifest to volumes whose headers are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from ...core.errors import StaleEntry, VolumeError, VolumeNotFound, VoxpipeError
from ...core.redact import used_name
from ...storage.content import content_key
from ...storage.read_ahead import DOCUMENTS
from ..backend import Backend
from ..formats.zarr_backend import documents_token
from ..header import Header
from ..source import LocatedSource, Options
from ..volume import Volume
from .examine import Finding
from .file_version import Stamp, begin_stamp, content_hash, stamp_at
from .manifest import Entry, Manifest
from .statistics import Statistics, volume_statistics


def describe_volume(
    volume: Volume, case: str, key: str, *, statistics: bool = True, full_hash: bool = False
) -> Entry:
    """Return the entry of a manifest for a volume."""
    located = volume.located
    if located is None or located.options.reader or located.options.affine:
        why = "is in memory" if located is None else "has a reader= or affine= of its own"
        why = "is of several files" if len(volume.parts) > 1 else why
        raise VolumeError(
            f"{volume.name} {why}, which a manifest cannot say.",
            do="Give the path or URL of a format that is registered.",
        )
    if volume.rearranged:
        raise VolumeError(
            f"{volume.name} has an axis map, which a manifest does not hold.",
            do="Index what is stored, and give axis_map= to open_volume() after from_manifest().",
        )
    # First of all: what is written while the rest is read makes the entry stale.
    stamp = stamp_at(located)
    backend = volume.probe()
    can = statistics and backend.dtype.kind != "c"
    return Entry(
        case=case,
        key=key,
        location=located.path or used_name(located.location),
        kind=volume.kind,
        header=backend.header,
        stamp=stamp,
        shards=getattr(backend, "shards", None),
        statistics=volume_statistics(volume) if can else None,
        hash=content_hash(located) if full_hash else "",
        options=tuple(sorted(located.options.reader_kwargs.items())),
        documents=tuple(sorted(getattr(backend, "documents", {}).items())),
    )


def index_cases(
    volumes: Iterable[tuple[str, str, Volume]],
    *,
    statistics: bool = True,
    full_hash: bool = False,
    known: Manifest | None = None,
) -> tuple[Manifest, tuple[Finding, ...]]:
    """Return the manifest of volumes, and what is wrong with those that cannot be read.

    Notes
    -----
    A case of which one volume is bad is left out as a whole.
    """
    before = {(e.case, e.key, e.location): e for e in known.entries} if known else {}
    entries: list[Entry] = []
    bad: list[Finding] = []
    for case, key, volume in volumes:
        try:
            earlier = before.get((case, key, _place(volume)))
            if earlier is None or not _still_holds(earlier, volume, statistics, full_hash):
                earlier = describe_volume(
                    volume, case, key, statistics=statistics, full_hash=full_hash
                )
            entries.append(earlier)
        except Exception as error:  # a bad file may raise anything in whatever library reads it
            bad.append(Finding.of_error(error, case, key, volume.name))
    left_out = {finding.case for finding in bad}
    return Manifest(tuple(e for e in entries if e.case not in left_out)), tuple(bad)


def _place(volume: Volume) -> str:
    located = volume.located
    return "" if located is None else located.path or used_name(located.location)


def _still_holds(entry: Entry, volume: Volume, statistics: bool, full_hash: bool) -> bool:
    located = volume.located
    return (
        located is not None
        and entry.kind == volume.kind
        and entry.options == tuple(sorted(located.options.reader_kwargs.items()))
        and (not statistics or entry.header.dtype.kind == "c" or _is_complete(entry.statistics))
        and bool(entry.hash or not full_hash)
        and entry.stamp == stamp_at(located)
    )


def _is_complete(statistics: Statistics | None) -> bool:
    """Whether everything is there; an earlier version computed no percentiles."""
    return statistics is not None and bool(statistics.percentiles)


def catalogued(
    entry: Entry,
    manifest: str = "manifest",
    storage_options: Mapping[str, Any] | None = None,
    follow: str = "beside",
) -> Volume:
    """Return the volume of an entry. No file is touched before voxels are read.

    ``follow`` as of ``Volume``.
    """
    source = CataloguedSource(entry, manifest, storage_options or {}, follow)
    return Volume.of_source(source, entry.kind)


class CataloguedSource:
    """A path or URL of which a manifest says the header."""

    def __init__(
        self,
        entry: Entry,
        manifest: str,
        storage_options: Mapping[str, Any],
        follow: str = "beside",
    ) -> None:
        options = Options(
            storage_options=dict(storage_options),
            reader_kwargs=dict(entry.options),
            follow=follow,
        )
        self.located = LocatedSource(entry.location, options)
        self.entry, self.manifest = entry, manifest
        self.name = self.located.name
        self.token = content_key(self.located.token, (entry.stamp,))

    @property
    def statistics(self) -> Statistics | None:
        """What the manifest says about the voxels."""
        return self.entry.statistics

    @property
    def names_content(self) -> bool:
        """Whether the token tells all that is stored; of very many chunks only the metadata."""
        return self.entry.stamp.how != "metadata"

    def known_header(self) -> Header:
        """Return the header as the manifest says it."""
        return self.entry.header

    def open(self) -> Backend:
        """Open the volume, if it is still the one of the manifest."""
        check = VersionCheck(self)
        if not check.begun:
            check()
        self._seed_documents()
        try:
            backend = self.located.open()
        except VoxpipeError:
            check()  # what has changed says more than that it cannot be opened
            raise
        backend.version_check = check
        if not backend.header.agrees_with(self.entry.header):
            # The stamp may be that of the metadata alone; or another version reads it otherwise.
            raise self.stale(
                f"its header said {_facts(self.entry.header)} and says {_facts(backend.header)}"
            )
        return backend

    def _seed_documents(self) -> None:
        """Let what is opened find its metadata in the manifest; whether they hold is checked."""
        documents = {
            (key,): None if data is None else memoryview(data) for key, data in self.entry.documents
        }
        if documents and not self.located.path:
            DOCUMENTS.keep(self._documents_token(), documents)

    def _documents_token(self) -> str:
        return documents_token(self.located.location, self.located.options.storage_options)

    def change(self, begun: Future[Stamp] | None) -> str:
        """Return how the volume differs from the manifest, in words; empty if it does not."""
        try:
            now = stamp_at(self.located) if begun is None else begun.result()
        except VolumeNotFound:
            return "it is gone"
        return self.entry.stamp.change(now)

    def stale(self, change: str) -> StaleEntry:
        """Return the error that says so, and forget what it is no more."""
        DOCUMENTS.forget_all(self._documents_token())
        entry = self.entry
        return StaleEntry(
            f"{entry.key!r} of case {entry.case} in {self.manifest} is stale: {change} "
            f"({self.name}).",
            do="Write the manifest again (voxpipe index), or put the file back.",
        )


class VersionCheck:
    """Compares a volume with its manifest, once: begun when it is opened, there when it is read.

    Where the store can be asked beside everything else, nobody waits for it: a volume is opened
    with what the manifest says, and its chunks are on their way meanwhile.
    """

    def __init__(self, source: CataloguedSource) -> None:
        self._source = source
        self._begun = begin_stamp(source.located, source.entry.stamp.how)
        self._passed = False

    @property
    def begun(self) -> bool:
        """Whether the answer is on its way."""
        return self._begun is not None

    def __call__(self) -> None:
        """Wait for the answer; ``StaleEntry`` where the volume has changed."""
        if self._passed:
            return
        begun, self._begun = self._begun, None
        change = self._source.change(begun)
        if change:
            raise self._source.stale(change)
        self._passed = True


def _facts(header: Header) -> str:
    return f"{header.shape} {header.disk_dtype}, chunks {header.chunks}, affine {header.affine}"
