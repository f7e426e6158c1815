"""Manifests: headers, versions and statistics of all volumes of a data set, in one JSON file.

See ``docs/decisions/0013-manifests-are-plain-json.md``. A manifest holds numbers and names only;
reading it runs no code. Locations below its folder are relative, so both can be moved together.
Credentials are never written.

The stamp of a volume, its version, is cheap to read. It has the size and modification time of a
file, the ETag of an object, or the sizes and times of the files of a zarr folder. With very many
files it covers the metadata only.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote

from ...core.errors import BadManifest, VolumeNotFound
from ...core.redact import server_of, used_name
from ...core.sample import parse_json
from ...core.suggest import path_hint
from ...storage.content import content_key, files_below
from ...storage.disk_cache import write_beside
from ...storage.file_reader import open_regular
from ...storage.fsspec_ranges import open_fsspec
from ...storage.location import (
    absolute_place,
    file_system,
    is_url,
    local_path,
    public_name,
    remote_errors,
)
from ...storage.obstore_ranges import ObstoreRanges
from ...storage.ranges import check_document
from ...storage.remote import open_remote
from ...storage.remote_ranges import ObjectEntry as Listed
from ...storage.remote_ranges import RemoteRanges
from ..formats.stored_file import LocalStoredFile
from ..formats.zarr_backend import metadata_stamp
from ..formats.zarr_nodes import METADATA_FILES
from ..header import Access, Header
from ..source import LocatedSource
from .whole_pass import Statistics

FORMAT = "voxpipe manifest"
VERSION = 1
MOST_MANIFEST_BYTES = 512 * 1024**2
"""A hundred thousand volumes with their statistics and documents, of 5 kB each."""
_OF_HEADER = (
    *("shape", "affine", "value_type", "slope", "intercept", "chunks", "access", "file_unit"),
    "names_axes",
)
# Errors of the parser below for invalid entries; NumPy parses names of types.
_SENSELESS = (KeyError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError)

# A sharded volume has dozens of objects, and one request lists a thousand. With more objects, only
# the metadata are compared.
MOST_NAMES = 1000
METADATA = (*METADATA_FILES, ".zattrs")  # files that are rewritten with a zarr folder


@dataclass(frozen=True)
class Stamp:
    """Version of the file or folder at one location."""

    how: str  # source of the version: ``"file"``, ``"listing"`` or ``"metadata"`` of a folder
    size: int  # bytes of these files
    objects: int  # number of these files
    version: str  # modification time, ETag, or a digest of those of all files; empty if unknown

    def change(self, now: Stamp) -> str:
        """Return the difference of ``now`` in words; empty if there is none.

        Examples
        --------
        >>> Stamp("file", 10, 1, "a").change(Stamp("file", 12, 1, "b"))
        'it had 10 bytes and has 12'
        """
        if self == now:
            return ""
        if self.size != now.size:
            return f"it had {self.size} bytes and has {now.size}"
        if self.objects != now.objects:
            return f"it had {self.objects} files and has {now.objects}"
        return "it was written again, with as many bytes"


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

    entries: tuple[Entry, ...]  # grouped by case
    name: str = "manifest"  # its location, for messages

    def cases(self) -> dict[str, list[Entry]]:
        """Return the entries by case, in order."""
        by_case: dict[str, list[Entry]] = {}
        for entry in self.entries:
            by_case.setdefault(entry.case, []).append(entry)
        return by_case


def read_manifest(
    location: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    follow: str = "same_folder",
) -> Manifest:
    """Read a manifest from a path or URL; ``follow`` limits the locations of its volumes.

    ``"same_folder"``: below its folder. Volumes of a manifest at a URL may also be on its host by
    the same scheme, those of a local one at the origins in its ``made_of``. ``"anywhere"``: on any
    host, which then receives the credentials.
    """
    place = os.fspath(location)
    name = public_name(place)
    options, do = storage_options or {}, "Write one: voxpipe index URL."
    content = document_at(place, options, "manifest ", do)
    return parse_manifest(content, name, folder_of(place), follow)


def write_manifest(
    manifest: Manifest,
    location: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a manifest to a path or URL, whole or not at all."""
    place = os.fspath(location)
    content = manifest_text(manifest, folder_of(place)).encode()
    if not is_url(place):
        path = absolute_place(place)
        try:
            write_beside(Path(path), [content])
        except OSError as error:
            what = f"{path} cannot be written: {error.strerror}."
            raise BadManifest(what, do="Give another place.") from error
        return
    options = storage_options or {}
    system, path = file_system(place, options)
    with remote_errors(place, options):
        system.pipe_file(path, content)


def manifest_text(manifest: Manifest, folder: str = "") -> str:
    """Return a manifest as JSON; locations below ``folder`` are written relative to it."""
    cases = [
        {"case": case, "volumes": {entry.key: _to_json(entry, folder) for entry in entries}}
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
    try:
        document = parse_json(text)
        is_ours = document["format"] == FORMAT
    except (ValueError, KeyError, TypeError):
        is_ours = False
    if not is_ours:
        raise BadManifest(f"{name} is no voxpipe manifest.", do="Write one: voxpipe index URL.")
    version = document.get("version")
    if version != VERSION:
        what = f"{name} has version {version!r}, and this voxpipe reads {VERSION}."
        raise BadManifest(what, do="Write it again (voxpipe index), or install a newer voxpipe.")
    entries: list[Entry] = []
    where = "its list of cases"
    try:
        for number, case in enumerate(document["cases"]):
            where = f"case {number}"
            for key, volume in case["volumes"].items():
                where = f"{key!r} of case {case['case']} (row {number})"
                entries.append(_entry(str(case["case"]), str(key), volume, folder))
    except _SENSELESS as error:
        what = f"{where} of {name} makes no sense: {type(error).__name__}: {error}."
        raise BadManifest(what, do="Write the manifest again: voxpipe index URL.") from error
    if follow != "anywhere":
        _refuse_elsewhere(entries, document.get("made_of"), name, folder)
    return Manifest(tuple(entries), name)


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


def _to_json(entry: Entry, folder: str) -> dict[str, Any]:
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


def _entry(case: str, key: str, volume: Mapping[str, Any], folder: str) -> Entry:
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
    statistics = volume["statistics"]
    return Entry(
        case=case,
        key=key,
        location=location,
        kind=str(volume["kind"]),
        header=header,
        stamp=Stamp(
            str(stamp["how"]), int(stamp["size"]), int(stamp["objects"]), str(stamp["version"])
        ),
        shards=_three(volume["shards"]),
        statistics=None if statistics is None else Statistics.from_json(statistics),
        options=tuple(sorted(dict(volume["options"]).items())),
        documents=tuple(_documents_in(volume.get("documents") or {})),
    )


def _three(numbers: Sequence[int] | None) -> tuple[int, int, int] | None:
    if numbers is None:
        return None
    i, j, k = (int(n) for n in numbers)
    return i, j, k


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


def stamp_at(source: LocatedSource) -> Stamp:
    """Return the stamp of the file or folder at a path or URL."""
    future = begin_stamp(source, "")
    if future is not None:
        return future.result()
    if not os.path.isdir(source.path):
        file = LocalStoredFile(source.path)
        return Stamp("file", file.size, 1, str(file.stamp[1]))
    entries = list(islice(files_below(source.path), MOST_NAMES + 1))
    if len(entries) > MOST_NAMES:
        stamp = metadata_stamp(source.path)
        return Stamp("metadata", sum(stamp[::2]), len(stamp) // 2, content_key("", stamp))
    return _as_list(entries)


def _as_list(entries: Sequence[tuple[str, int, str]]) -> Stamp:
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
