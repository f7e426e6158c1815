"""Manifests: headers, versions and statistics of all volumes of a data set, in one file.

See ``docs/decisions/0013-manifests-are-plain-json.md``. A manifest is JSON, or Parquet for many
volumes (``columns.py``). It holds numbers and names only; reading it runs no code. Locations below
its folder are relative, so both can be moved together. Credentials are never written.

The stamp of a volume, its version, is cheap to read. It has the size and modification time of a
file, the ETag of an object, or the sizes and times of the files of a zarr folder. With very many
files it covers the metadata only.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote

from ...core.errors import BadManifest, VolumeNotFound
from ...core.lru_cache import cached_property
from ...core.redact import server_of, used_name
from ...core.sample import parse_json
from ...core.suggest import path_hint
from ...storage.disk_cache import write_beside
from ...storage.file_reader import open_regular
from ...storage.location import (
    absolute_place,
    file_system,
    is_url,
    local_path,
    public_name,
    remote_errors,
)
from ...storage.ranges import check_document
from ...storage.remote import open_remote
from ..header import Access, Header, triple
from ..source import Stamp, copy_with
from .columns import FORMAT, VERSION, Columns, check_format, header_stamp, write_columns
from .whole_pass import Statistics

MOST_MANIFEST_BYTES = 512 * 1024**2
"""A hundred thousand volumes with their statistics and documents, of 5 kB each."""
_OF_HEADER = (
    *("shape", "affine", "value_type", "slope", "intercept", "chunks", "access", "file_unit"),
    *("names_axes", "channel_names"),
)
# Errors of the parser below for invalid entries; NumPy parses names of types.
_SENSELESS = (KeyError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError)

_AFFINE = struct.Struct("<16d")
_MOST_DIGITS = 20  # of a version that is a time.
_MOST_ALIKE = 64  # entries to copy.
# Paths without "..", hosts, or escapes: only their beginning decides where they lead.
_PLAIN = re.compile(r"/?[^\s./\\:%\0][^/\\:%\0]*(?:/[^./\\:%\0][^/\\:%\0]*)*")


@dataclass(frozen=True)
class Entry:
    """One volume of a manifest."""

    case: str  # name of its case
    key: str  # key in the case, such as ``"image"``, ``"label"``
    location: str  # absolute path or URL, without credentials
    kind: str  # ``"intensity"`` or ``"label"``
    header: Header  # shape, affine, types, chunks, access, slope and intercept
    stamp: Stamp  # version of the volume that this entry describes
    shards: tuple[int, int, int] | None = None  # object unit in voxels, if there are shards
    statistics: Statistics | None = None  # numbers over all voxels, None if they were not computed
    options: tuple[tuple[str, Any], ...] = ()  # for the backend, e.g. ``(("level", 1),)``.
    documents: tuple[tuple[str, bytes | None], ...] = ()
    """Metadata of a zarr at a URL, None for a missing object: they save the requests of opening."""


@dataclass(frozen=True)
class Manifest:
    """Entries of the volumes of a data set."""

    entries: Sequence[Entry]  # grouped by case
    name: str = "manifest"  # its location, for messages

    def cases(self) -> dict[str, list[Entry]]:
        """Return the entries by case, in order."""
        by_case: dict[str, list[Entry]] = {}
        for entry in self.entries:
            by_case.setdefault(entry.case, []).append(entry)
        return by_case

    @cached_property
    def _by_number(self) -> list[tuple[str, list[Entry]]]:
        return [*self.cases().items()]

    @property
    def case_count(self) -> int:
        """Number of cases."""
        return len(self._by_number)

    def case(self, number: int) -> tuple[str, list[Entry]]:
        """Return name and entries of one case; those of columns are checked at their first use."""
        return self._by_number[number]

    def texts(self) -> Iterator[str]:
        """Yield a text for each entry with its location, kind, header and version."""
        for e in self.entries:
            yield f"{e.case} {e.key}={e.location} {e.kind} {e.header} {e.stamp}"

    @cached_property
    def digest(self) -> str:
        """16 hex digits over the locations, kinds, headers and versions of all entries."""
        digest = hashlib.blake2b(digest_size=8)
        for text in self.texts():
            digest.update(f"{text}\0".encode())
        return digest.hexdigest()


class ColumnEntries(Sequence[Entry]):
    """Entries that are made of columns when they are asked for; each is checked as it is made."""

    def __init__(self, columns: Columns, name: str, folder: str, follow: str) -> None:
        self.columns, self._name, self.folder, self._follow = columns, name, folder, follow
        self._alike: dict[Any, Entry] = {}  # by the cells that rows of a data set share

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(len(self))[number]]
        entry = self.later(range(len(self))[number])
        entry.whole  # noqa: B018  a row is checked here
        return entry

    def later(self, number: int) -> RowEntry:
        """Return the entry of a row, which is made and checked at its first use."""
        entry = object.__new__(RowEntry)
        case, key, kind = self.columns.names(number)
        entry.__dict__.update(case=case, key=key, kind=kind, entries=self, number=number)
        return entry

    def whole(self, number: int) -> Entry:
        """Return a checked entry without its statistics and documents."""
        case, key, kind, shape, affine, layout, how, text, place, version, *numbers = (
            self.columns.cells(number)
        )
        like = self._alike.get((kind, shape, layout, text))
        # Other rows are checked as a JSON manifest is, which takes three times as long.
        is_usual = self.folder and _PLAIN.fullmatch(place) and len(affine) == _AFFINE.size
        if like is None or not is_usual or len(version) > _MOST_DIGITS:
            return self._check_row(number, (kind, shape, layout, text))
        slope, intercept, size, count = numbers
        of_file = like.header.stamp if text else tuple(header_stamp("", size, version))
        scale = {"slope": slope, "intercept": intercept}
        header = copy_with(like.header, affine=_AFFINE.unpack(affine), stamp=of_file, **scale)
        stamp = copy_with(like.stamp, how=how, size=size, objects=count, version=version)
        location = place if place[0] == "/" else self.folder + place
        own = {"header": header, "stamp": stamp, "location": location}
        entry = copy_with(like, case=case, key=key, **own)
        if location is place and self._follow != "anywhere":
            _refuse_elsewhere([entry], self.columns.made_of, self._name, self.folder)
        return entry

    def _check_row(self, number: int, cells: Any) -> Entry:
        """Check each value of a row, and return its entry; keep one to copy."""
        case, key, volume = self.columns[number]
        with _naming(f"{key!r} of case {case} (row {number})", self._name):
            entry = entry_of_json(case, key, volume, self.folder)
        if self._follow != "anywhere":
            _refuse_elsewhere([entry], self.columns.made_of, self._name, self.folder)
        if len(self._alike) >= _MOST_ALIKE:
            self._alike.clear()
        self._alike[cells] = copy_with(entry, header=copy_with(entry.header))
        return entry

    def more(self, number: int) -> tuple[Statistics | None, Any]:
        """Return statistics and documents of a row."""
        if not self.columns.has_more:
            return None, ()
        more = {"statistics": None, **self.columns.more(number)}
        with _naming(f"row {number}", self._name):
            return _more_of(more)


class RowEntry(Entry):
    """An entry of a row, of which only case, key and kind are known before its first use."""

    whole = cached_property(lambda self: self.entries.whole(self.number))
    more = cached_property(lambda self: self.entries.more(self.number))
    location = property(lambda self: self.whole.location)
    header = property(lambda self: self.whole.header)
    stamp = property(lambda self: self.whole.stamp)
    shards = property(lambda self: self.whole.shards)
    options = property(lambda self: self.whole.options)
    statistics = property(lambda self: self.more[0])
    documents = property(lambda self: self.more[1])

    def __reduce__(self) -> Any:
        return Entry, tuple(getattr(self, field.name) for field in fields(Entry))

    def __eq__(self, other: object) -> bool:
        return bool(copy.copy(self) == other)

    __hash__ = Entry.__hash__


@dataclass(frozen=True)
class ColumnManifest(Manifest):
    """A manifest by columns; opening it makes no entry, and a copy in another process reads it."""

    entries: ColumnEntries
    read_again: Callable[[], Manifest] | None = None

    @property
    def case_count(self) -> int:  # noqa: D102
        return len(self.entries.columns.first_rows)

    def case(self, number: int) -> tuple[str, list[Entry]]:  # noqa: D102
        firsts = self.entries.columns.first_rows
        if number < 0:
            number += len(firsts)
        stop = firsts[number + 1] if number + 1 < len(firsts) else len(self.entries)
        entries: list[Entry] = [*map(self.entries.later, range(firsts[number], stop))]
        if len(entries) > 1 and len({entry.key for entry in entries}) < len(entries):
            what = f"case {entries[0].case} of {self.name} has two volumes of one key."
            raise BadManifest(what, do="Write the manifest again: voxpipe index URL.")
        return entries[0].case, entries

    def texts(self) -> Iterator[str]:  # noqa: D102
        return self.entries.columns.texts()

    @cached_property
    def digest(self) -> str:  # noqa: D102
        own = self.entries.folder, self.entries.columns.digest
        return hashlib.blake2b(repr(own).encode(), digest_size=8).hexdigest()

    def __reduce__(self) -> Any:
        return _read_again, (self.read_again, self.digest, self.name)

    def __deepcopy__(self, memo: Any) -> ColumnManifest:
        return self


def _read_again(read: Callable[[], Manifest], digest: str, name: str) -> Manifest:
    """Return the manifest of another process, which has to be the same."""
    manifest = read()
    if manifest.digest != digest:
        what = f"{name} was written again after it was opened, before a worker opened it."
        raise BadManifest(what, do="Make the pipe again with from_manifest().")
    return manifest


def read_manifest(
    location: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    follow: str = "same_folder",
) -> Manifest:
    """Read a manifest from a path or URL; ``follow`` limits the locations of its volumes.

    ``"same_folder"``: below its folder. Volumes of a manifest at a URL may also be on its host by
    the same scheme, those of a local one at the origins in its ``made_of``. ``"anywhere"``: on any
    host, which then receives the credentials.

    Raises
    ------
    VolumeNotFound
        If there is no manifest.
    BadManifest
        If it is no manifest, or is damaged.
    MissingDependency
        If it is a Parquet file and pyarrow is not installed.
    """
    place = os.fspath(location)
    name = public_name(place)
    options, do = storage_options or {}, "Write one: voxpipe index URL."
    if is_by_columns(place):
        columns = _columns_at(place, name, options, do)
        again = partial(read_manifest, absolute_place(place), storage_options, follow)
        return ColumnManifest(ColumnEntries(columns, name, folder_of(place), follow), name, again)
    content = document_at(place, options, "manifest ", do)
    return parse_manifest(content, name, folder_of(place), follow)


def is_by_columns(place: str | os.PathLike[str]) -> bool:
    """Return whether a manifest at this path or URL is a Parquet file."""
    return public_name(os.fspath(place)).lower().endswith(".parquet")


def _columns_at(place: str, name: str, options: Mapping[str, Any], do: str) -> Columns:
    if is_url(place):
        with tempfile.NamedTemporaryFile() as file:
            file.write(document_at(place, options, "manifest ", do))
            file.flush()
            return Columns(file.name, name)  # which keeps the file open
    path = local_path(place)
    try:
        os.close(open_regular(path))
    except (FileNotFoundError, NotADirectoryError):
        raise VolumeNotFound(f"there is no manifest {name}.", do=do) from None
    return Columns(path, name)


def write_entries(
    entries: Iterable[Entry],
    location: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write the manifest of entries, grouped by case; for Parquet they are not held in memory."""
    place = os.fspath(location)
    folder = folder_of(place)
    if not is_by_columns(place):
        content = manifest_text(Manifest(tuple(entries)), folder).encode()
        _write([content], place, storage_options or {})
        return
    elsewhere: set[str] = set()

    def rows() -> Iterator[tuple[str, str, dict[str, Any]]]:
        for entry in entries:
            if not _below(entry.location, folder):
                elsewhere.add(_origin(entry.location))
            yield entry.case, entry.key, json_of_entry(entry, folder)

    with tempfile.TemporaryFile() as file:
        write_columns(file, rows(), lambda: sorted(elsewhere))
        file.seek(0)
        _write(iter(partial(file.read, 1024**2), b""), place, storage_options or {})


def _write(pieces: Iterable[bytes], place: str, options: Mapping[str, Any]) -> None:
    if not is_url(place):
        path = absolute_place(place)
        try:
            write_beside(Path(path), pieces)
        except OSError as error:
            what = f"{path} cannot be written: {error.strerror}."
            raise BadManifest(what, do="Give another place.") from error
        return
    system, path = file_system(place, options)
    with remote_errors(place, options):
        system.pipe_file(path, b"".join(pieces))


def manifest_text(manifest: Manifest, folder: str = "") -> str:
    """Return a manifest as JSON; locations below ``folder`` are written relative to it."""
    cases = [
        {"case": case, "volumes": {entry.key: json_of_entry(entry, folder) for entry in entries}}
        for case, entries in manifest.cases().items()
    ]
    # One line per case, for searches and line-by-line comparisons.
    lines = ",\n".join(json.dumps(case, allow_nan=False) for case in cases)
    elsewhere = {_origin(e.location) for e in manifest.entries if not _below(e.location, folder)}
    made_of = f'"made_of": {json.dumps(sorted(elsewhere))}, ' if elsewhere else ""
    return f'{{"format": "{FORMAT}", "version": {VERSION}, {made_of}"cases": [\n{lines}\n]}}\n'


def parse_manifest(
    text: str | bytes, name: str = "manifest", folder: str = "", follow: str = "same_folder"
) -> Manifest:
    """Return the manifest of a JSON text; relative locations are below ``folder``."""
    document: Any = None
    with suppress(ValueError):
        document = parse_json(text)
    check_format(document, name)
    entries: list[Entry] = []
    with _naming("its list of cases", name):
        cases = [*document["cases"]]
    for number, case in enumerate(cases):
        with _naming(f"case {number}", name):
            case_name, volumes = str(case["case"]), [*case["volumes"].items()]
        for key, volume in volumes:
            with _naming(f"{key!r} of case {case_name} (row {number})", name):
                entries.append(entry_of_json(case_name, str(key), volume, folder))
    if follow != "anywhere":
        _refuse_elsewhere(entries, document.get("made_of"), name, folder)
    return Manifest(tuple(entries), name)


@contextmanager
def _naming(where: str, name: str) -> Iterator[None]:
    """Raise BadManifest, with the place in the manifest, for values that make no sense."""
    try:
        yield
    except _SENSELESS as error:
        what = f"{where} of {name} makes no sense: {type(error).__name__}: {error}."
        raise BadManifest(what, do="Write the manifest again: voxpipe index URL.") from error


def _refuse_elsewhere(entries: Sequence[Entry], made_of: Any, name: str, folder: str) -> None:
    """Refuse volumes whose host or scheme is not among the origins of a manifest."""
    others = [entry for entry in entries if not _below(entry.location, folder)]
    if is_url(folder):
        origins = {_origin(folder)}
    elif isinstance(made_of, list):
        origins = {origin for origin in made_of if isinstance(origin, str)}
    else:  # written by other programs: all volumes must have one origin
        origins = {_origin(entry.location) for entry in others[:1]}
    for entry in others:
        escapes = folder and entry.location.startswith(folder)
        if escapes or _origin(entry.location) not in origins:
            raise BadManifest(
                f"{entry.key!r} of case {entry.case} of {name} is at {entry.location:.200}, and "
                f"the manifest is of volumes at {', '.join(sorted(origins)) or folder:.200}.",
                do='If you trust its author: from_manifest(..., follow="anywhere").',
            )


def _below(location: str, folder: str) -> bool:
    """Whether a location is below a folder, also once ``..`` in it is resolved."""
    if not folder or not location.startswith(folder):
        return False
    rest = unquote(location[len(folder) :]).replace("\\", "/")
    is_chain = "://" in rest or "::" in rest  # fsspec would read it as a URL
    return not (is_chain or rest.startswith("/") or ".." in rest.split("/"))


def _origin(location: str) -> str:
    """Return the schemes and hosts of a location."""
    return (server_of(location) or location) if is_url(location) else "local"


def folder_of(location: str) -> str:
    """Return the folder of a path or URL, with a final slash."""
    if is_url(location):
        return used_name(location).rpartition("/")[0] + "/"
    return os.path.join(os.path.dirname(absolute_place(location)), "")


def json_of_entry(entry: Entry, folder: str) -> dict[str, Any]:
    """Return an entry as JSON values; a location below ``folder`` is relative to it."""
    document = entry.header.document()
    below = entry.location[len(folder) :] if folder and entry.location.startswith(folder) else ""
    # A rest that would be read as an absolute location is not shortened.
    relative = below and not (os.path.isabs(below) or is_url(below))
    return {
        "location": below if relative else entry.location,
        "kind": entry.kind,
        **{key: document[key] for key in _OF_HEADER},
        "dtype": document["disk_dtype"],
        "shards": None if entry.shards is None else list(entry.shards),
        "options": dict(entry.options),
        "stamp": {**asdict(entry.stamp), "header": document["stamp"]},
        "statistics": None if entry.statistics is None else entry.statistics.to_json(),
        **({"documents": _documents_out(entry.documents)} if entry.documents else {}),
    }


def _documents_out(documents: Sequence[tuple[str, bytes | None]]) -> dict[str, Any]:
    """Return JSON documents as values, and other bytes in base64."""
    values: dict[str, Any] = {}
    for key, data in documents:
        values[key] = None if data is None else base64.b64encode(data).decode()
        with suppress(ValueError):
            value = parse_json(data or b"")
            values[key] = value if isinstance(value, dict) else values[key]
    return values


def _documents_in(values: Mapping[str, Any]) -> Iterator[tuple[str, bytes | None]]:
    for key, value in sorted(values.items()):
        if isinstance(value, dict):
            yield str(key), json.dumps(value).encode()
        else:
            yield str(key), None if value is None else base64.b64decode(value, validate=True)


def entry_of_json(case: str, key: str, volume: Mapping[str, Any], folder: str) -> Entry:
    """Return the entry of :func:`json_of_entry`; refuse values that make no sense."""
    stamp = dict(volume["stamp"])
    header = Header.of_document(
        {**volume, "disk_dtype": str(volume["dtype"]), "stamp": stamp.pop("header")}
    )
    odd = min(header.shape) < 1 or len(header.affine) != 16
    if odd or header.access not in get_args(Access):
        msg = f"shape {header.shape}, {len(header.affine)} entries of the affine, {header.access!r}"
        raise ValueError(msg)
    location = volume["location"]
    if not isinstance(location, str) or not location.strip() or "\0" in location:
        raise ValueError(f"its location is {location!r}")
    if not (is_url(location) or os.path.isabs(location)):
        location = folder + location
    statistics, documents = _more_of(volume)
    return Entry(
        case=case,
        key=key,
        location=location,
        kind=str(volume["kind"]),
        header=header,
        stamp=Stamp(
            str(stamp["how"]), int(stamp["size"]), int(stamp["objects"]), str(stamp["version"])
        ),
        shards=triple(volume["shards"]),
        statistics=statistics,
        options=tuple(sorted(dict(volume["options"]).items())),
        documents=documents,
    )


def _more_of(volume: Mapping[str, Any]) -> tuple[Statistics | None, Any]:
    statistics, documents = volume["statistics"], volume.get("documents") or {}
    own = None if statistics is None else Statistics.from_json(statistics)
    return own, tuple(_documents_in(documents))


def document_at(place: str, options: Mapping[str, Any], noun: str = "", do: str = "") -> bytes:
    """Return a document; raise VolumeNotFound, called ``noun``, where it is missing."""
    if is_url(place):
        with remote_errors(place, options):
            content = open_remote(place, options).get("", MOST_MANIFEST_BYTES)
        if content is not None:
            return bytes(content)
    else:
        path = local_path(place)
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            open(path, "rb", opener=open_regular) as file,
        ):
            check_document(os.fstat(file.fileno()).st_size, place, MOST_MANIFEST_BYTES)
            return file.read(MOST_MANIFEST_BYTES)
        do = do or path_hint(path)
    raise VolumeNotFound(f"there is no {noun}{public_name(place)}.", do=do)
