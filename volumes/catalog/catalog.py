"""Catalogue entries: checks of volumes, what a manifest says of them, volumes of its entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.errors import StaleEntry, VolumeError, VolumeNotFound, VoxpipeError
from ...core.redact import public_text, used_name
from ...core.validate import count_text
from ...storage.content import content_key
from ...storage.read_ahead import SmallObjectCache
from ..backend import Backend
from ..chunks.ranged_chunks import register_decoder
from ..formats.nifti import contradictions
from ..formats.zarr_backend import documents_token
from ..header import Header, Shape
from ..registry import register_backend
from ..session import close_volumes, opening_session
from ..source import LocatedSource, Options
from ..volume import Volume
from ..voxels import Voxels, label_numbers
from .manifest import Entry, Manifest, Stamp, begin_stamp, content_hash, stamp_at
from .whole_pass import slabs_of, volume_statistics

_NOT_WHOLE = "no whole numbers"


@dataclass(frozen=True)
class Finding:
    """What was found at one volume."""

    case: str  # name of its case
    key: str  # what it is in the case
    name: str  # path or URL, without credentials
    error: str = ""
    """Class of the error; ``"Contradiction"`` for a NIfTI header that says one fact twice and
    differently, ``"NotFinite"`` or ``"NotWhole"`` for what is odd about the voxels,
    ``"MissingLabel"`` or ``"MissingVolume"`` where a case has none; empty for a sound volume."""
    reason: str = ""  # what is wrong, and what to do; empty for a sound volume
    shape: Shape | None = None  # (C, I, J, K), where the header could be read
    affine: tuple[float, ...] | None = None  # its 16 entries, where the header could be read
    lengths: str = ""  # a voxel in the file's unit, such as "0.5 x 0.5 x 2 um"; empty without one

    @property
    def is_bad(self) -> bool:
        """Whether something is wrong."""
        return bool(self.error)

    @classmethod
    def of_missing(cls, case: str, key: str, labels: Collection[str], reason: str) -> Finding:
        """Return the finding of a volume that a case lacks."""
        return cls(case, key, "", "MissingLabel" if key in labels else "MissingVolume", reason)

    def with_error(self, error: Exception) -> Finding:
        """Return what an error says about this volume."""
        kind = type(error).__name__
        reason = public_text(str(error))
        if isinstance(error, VoxpipeError):
            stop = "" if error.what.endswith(".") or not error.do else "."
            reason = f"{error.what}{stop} {error.do}"
        return replace(self, error=kind, reason=reason.strip() or kind)

    def __str__(self) -> str:
        reason = " ".join(self.reason.split()) if self.is_bad else "sound"
        return f"{self.case}/{self.key}: {self.error + ': ' if self.error else ''}{reason}"


def examine(volume: Volume, case: str, key: str, *, voxels: bool = False) -> Finding:
    """Open a volume and read its header, or every voxel; any error becomes a finding."""
    finding = Finding(case, key, volume.name)
    try:
        backend = volume.probe()
        header = backend.header
        affine = tuple(float(v) for v in np.ravel(volume.affine))
        finding = replace(finding, shape=header.shape, affine=affine, lengths=volume.lengths)
        for part in volume.parts:
            files = getattr(part.probe(), "files", ())
            if files and (twice := contradictions(files[0])):
                do = "Correct the header: other programs read the other value."
                why = f"{part.name}: {twice}. {do}"
                finding = replace(finding, error="Contradiction", reason=why)
        stores_chunks = getattr(backend, "stores_chunks", None)
        # A sound mask may have no chunk: some writers skip chunks of zeros.
        if volume.kind != "label" and stores_chunks is not None and not stores_chunks():
            why = f"{volume.name} has metadata and not one chunk. Copy its chunks too."
            return replace(finding, error="EmptyVolume", reason=why)
        odd: Counter[str] = Counter()
        as_image = volume.of_kind("intensity")
        for region in slabs_of(volume) if voxels else ():
            odd += _odd_values(as_image.read(region), volume.kind == "label")
        return _finding_of(odd, finding) if odd else finding
    except Exception as error:  # a bad file may raise anything in whatever library reads it
        return finding.with_error(error)


def _odd_values(read: Voxels, is_label: bool) -> Counter[str]:
    """Count the voxels that are NaN, infinite or, in a label, no whole number."""
    array = read.array
    array.max()  # a mapped page is read when it is looked at
    if array.dtype.kind not in "fciu" or (array.dtype.kind in "iu" and not read.is_scaled):
        return Counter()
    counts = {}
    if array.dtype.kind in "fc":
        counts = {"NaN": np.isnan(array).sum(), "infinite": np.isinf(array).sum()}
    if is_label and array.dtype.kind != "c":
        _, flags = label_numbers(read)
        counts[_NOT_WHOLE] = 0 if flags is None else flags[np.isfinite(array)].sum()
    return +Counter({what: int(count) for what, count in counts.items()})


def _finding_of(odd: Mapping[str, int], sound: Finding) -> Finding:
    """Return what is told of odd voxels."""
    text = " and ".join(
        count_text(
            n, f"voxel is {'no whole number' if what == _NOT_WHOLE else what}", f"voxels are {what}"
        )
        for what, n in odd.items()
    )
    if "NaN" in odd or "infinite" in odd:
        kind, do = "NotFinite", "Replace them: each spreads to what is interpolated or averaged."
    else:
        kind, do = "NotWhole", "Write labels with nearest neighbour, or open this key as an image."
    return replace(sound, error=kind, reason=f"{sound.name}: {text}. {do}")


def serve(
    connection: Any, voxels: bool, backends: tuple[Any, ...] = (), decoders: tuple[Any, ...] = ()
) -> None:
    """Examine the volumes that arrive, ``(volume, case, key)`` each, until None or the end."""
    for codec, maker in decoders:
        register_decoder(codec, maker)
    for name, matcher, factory in reversed(backends):
        register_backend(name, matcher, factory)
    try:
        connection.send(None)  # ready
    except OSError:  # all was examined by others while this process started
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
        except OSError:  # whoever asked has left
            return


def describe_volume(
    volume: Volume, case: str, key: str, *, statistics: bool = True, full_hash: bool = False
) -> Entry:
    """Return the entry of a manifest for a volume."""
    source = volume.located_source
    if source is None or source.options.reader or source.options.affine:
        why = "is in memory" if source is None else "has a reader= or affine= of its own"
        why = "is of several files" if len(volume.parts) > 1 else why
        what = f"{volume.name} {why}, which a manifest cannot say."
        raise VolumeError(what, do="Give the path or URL of a format that is registered.")
    if volume.axis_map_key:
        do = "Index what is stored, and give axis_map= to open_volume() after from_manifest()."
        raise VolumeError(f"{volume.name} has an axis map, which a manifest does not hold.", do=do)
    # First of all: what is written while the rest is read makes the entry stale.
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
        hash=content_hash(source) if full_hash else "",
        options=tuple(sorted(source.options.reader_kwargs.items())),
        documents=tuple(sorted(getattr(backend, "documents", {}).items())),
    )


def index_cases(
    volumes: Iterable[tuple[str, str, Volume]],
    *,
    statistics: bool = True,
    full_hash: bool = False,
    previous: Manifest | None = None,
) -> tuple[Manifest, tuple[Finding, ...]]:
    """Return the manifest of volumes, and what is wrong with those that cannot be read.

    They come as ``(case, key, volume)``, those of one case one after another; a case of which one
    is bad is left out. Of those in an earlier manifest that did not change since, nothing is read.
    """
    before = {(e.case, e.key, e.location): e for e in previous.entries} if previous else {}
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
            bad.append(Finding(case, key, volume.name).with_error(error))
    left_out = {finding.case for finding in bad}
    return Manifest(tuple(e for e in entries if e.case not in left_out)), tuple(bad)


def _place(volume: Volume) -> str:
    source = volume.located_source
    return "" if source is None else source.path or used_name(source.location)


def _still_holds(entry: Entry, volume: Volume, statistics: bool, full_hash: bool) -> bool:
    source = volume.located_source
    # An earlier version computed no percentiles.
    is_complete = entry.statistics is not None and bool(entry.statistics.percentiles)
    return (
        source is not None
        and entry.kind == volume.kind
        and entry.options == tuple(sorted(source.options.reader_kwargs.items()))
        and (not statistics or entry.header.dtype.kind == "c" or is_complete)
        and bool(entry.hash or not full_hash)
        and entry.stamp == stamp_at(source)
    )


def catalog_volume(
    entry: Entry,
    manifest: str = "manifest",
    storage_options: Mapping[str, Any] | None = None,
    follow: str = "beside",
) -> Volume:
    """Return the volume of an entry. No file is touched before voxels are read."""
    options = Options(None, None, dict(storage_options or {}), dict(entry.options), follow=follow)
    return Volume.of_source(CataloguedSource(entry, manifest, options), entry.kind)


class CataloguedSource:
    """A path or URL of which a manifest says the header."""

    def __init__(self, entry: Entry, manifest: str, options: Options) -> None:
        self.located_source = LocatedSource(entry.location, options)
        self.entry, self.manifest = entry, manifest
        self.name = self.located_source.name
        self.token = content_key(self.located_source.token, (entry.stamp,))
        # Whether the token tells all that is stored; of very many chunks only the metadata.
        self.names_content = entry.stamp.how != "metadata"
        self.statistics = entry.statistics

    def known_header(self) -> Header:
        """Return the header as the manifest says it."""
        return self.entry.header

    def open(self) -> Backend:
        """Open the volume, if it is still the one of the manifest."""
        # Where the store can be asked beside everything else, nobody waits for it: the volume is
        # opened with what the manifest says, and its chunks are on their way meanwhile.
        cache = opening_session().ahead.documents
        waiting = [begin_stamp(self.located_source, self.entry.stamp.how)]

        def check() -> None:
            if waiting:  # until it has passed once
                future, waiting[0] = waiting[0], None
                change = self.change(future)
                if change:
                    raise self.stale(change, cache)
                waiting.clear()

        if waiting[0] is None:
            check()
        documents = {
            (key,): None if data is None else memoryview(data) for key, data in self.entry.documents
        }
        if documents and not self.located_source.path:
            # What is opened finds its metadata in the manifest; whether they hold is checked.
            cache.keep(self._documents_token(), documents)
        try:
            backend = self.located_source.open()
        except VoxpipeError:
            check()  # what has changed says more than that it cannot be opened
            raise
        backend.version_check = check
        if not backend.header.agrees_with(self.entry.header):
            # The stamp may be that of the metadata alone; or another version reads it otherwise.
            before, says = (
                f"{h.shape} {h.disk_dtype}, chunks {h.chunks}, affine {h.affine}"
                for h in (self.entry.header, backend.header)
            )
            raise self.stale(f"its header said {before} and says {says}", cache)
        return backend

    def _documents_token(self) -> str:
        return documents_token(
            self.located_source.location, self.located_source.options.storage_options
        )

    def change(self, future: Future[Stamp] | None) -> str:
        """Return how the volume differs from the manifest, in words; empty if it does not."""
        try:
            now = stamp_at(self.located_source) if future is None else future.result()
        except VolumeNotFound:
            return "it is gone"
        return self.entry.stamp.change(now)

    def stale(self, change: str, cache: SmallObjectCache) -> StaleEntry:
        """Return the error that says so, and forget what it is no more."""
        cache.forget(self._documents_token())
        entry = self.entry
        return StaleEntry(
            f"{entry.key!r} of case {entry.case} in {self.manifest} is stale: {change} "
            f"({self.name}).",
            do="Write the manifest again (voxpipe index), or put the file back.",
        )
