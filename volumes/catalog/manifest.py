"""A manifest: what is known of every volume of a data set, so that nobody opens a header again.

One JSON file, see ``docs/decisions/0013-manifests-are-plain-json.md``. It holds numbers and
names only; reading it runs no code. Locations below the folder of the manifest are kept
relative to it, so that both can be moved together. Credentials are never written.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote

from ...core.errors import BadManifest, VolumeNotFound
from ...core.redact import origin_of, used_name
from ...core.sample import parse_json
from ...storage.disk_cache import write_beside
from ...storage.location import (
    absolute_place,
    file_system,
    is_url,
    local_path,
    public_name,
    remote_errors,
)
from ...storage.ranges import check_document, open_regular
from ...storage.remote import open_remote
from ..header import Access, Header
from .file_version import Stamp
from .statistics import Statistics

FORMAT = "voxpipe manifest"
VERSION = 1
MOST_MANIFEST_BYTES = 512 * 1024**2
"""A hundred thousand volumes with their statistics and documents, of 5 kB each."""
# What documents that are no manifest make the code below raise; NumPy parses names of types.
_OF_HEADER = ("shape", "affine", "value_type", "slope", "intercept", "chunks", "access")
_SENSELESS = (KeyError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError)


@dataclass(frozen=True)
class Entry:
    """One volume of a manifest."""

    case: str
    """Name of its case."""
    key: str
    """What it is in the case: ``"image"``, ``"label"``."""
    location: str
    """Absolute path or URL, without credentials."""
    kind: str
    """``"intensity"`` or ``"label"``."""
    header: Header
    """Shape, affine, types, chunks, access, slope and intercept."""
    stamp: Stamp
    """Which version of it this speaks of."""
    shards: tuple[int, int, int] | None = None
    """Object unit in voxels, None where there are no shards."""
    statistics: Statistics | None = None
    """Numbers over all voxels, None if they were not computed."""
    hash: str = ""
    """Digest over every stored byte, empty if it was not computed."""
    options: tuple[tuple[str, Any], ...] = ()
    """For the backend, e.g. ``(("level", 1),)``."""
    documents: tuple[tuple[str, bytes | None], ...] = ()
    """Of a zarr behind a URL: the small objects that say how it is stored, None for one that is
    not there. Who has them opens it without a request."""


@dataclass(frozen=True)
class Manifest:
    """What is known of every volume of a data set."""

    entries: tuple[Entry, ...]
    """The volumes of a case follow each other."""
    name: str = "manifest"
    """Where it was read from; what messages call it."""

    def cases(self) -> dict[str, list[Entry]]:
        """Return the entries by case, in order."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.case, []).append(entry)
        return found


def read_manifest(
    location: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    follow: str = "beside",
) -> Manifest:
    """Read a manifest from a path or URL, whose volumes may lie as far away as ``follow`` says.

    ``"beside"``: below it; or, of one behind a URL, on the same host and reached by the same
    scheme; of a local one where it says that it was made of. ``"anywhere"``: on any host, and
    credentials go there.
    """
    place = os.fspath(location)
    name = public_name(place)
    content = _content(place, storage_options or {})
    return parse_manifest(content, name, folder_of(place), follow)


def write_manifest(
    manifest: Manifest,
    location: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a manifest to a path or URL; others see all of it or nothing."""
    place = os.fspath(location)
    content = manifest_text(manifest, folder_of(place)).encode()
    if not is_url(place):
        path = absolute_place(place)
        try:
            write_beside(Path(path), [content])
        except OSError as error:
            raise BadManifest(
                f"{path} cannot be written: {error.strerror}.", do="Give another place."
            ) from error
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
    # One case a line: it can be searched, and compared line by line with an earlier one.
    lines = ",\n".join(json.dumps(case, allow_nan=False) for case in cases)
    elsewhere = {_origin(e.location) for e in manifest.entries if not _below(e.location, folder)}
    made_of = f'"made_of": {json.dumps(sorted(elsewhere))}, ' if elsewhere else ""
    return f'{{"format": "{FORMAT}", "version": {VERSION}, {made_of}"cases": [\n{lines}\n]}}\n'


def parse_manifest(
    text: str | bytes, name: str = "manifest", folder: str = "", follow: str = "beside"
) -> Manifest:
    """Return the manifest that a JSON text holds; relative locations are below ``folder``."""
    try:
        document = parse_json(text)
        is_ours = document["format"] == FORMAT
    except (ValueError, KeyError, TypeError):
        is_ours = False
    if not is_ours:
        raise BadManifest(f"{name} is no voxpipe manifest.", do="Write one: voxpipe index URL.")
    version = document.get("version")
    if version != VERSION:
        raise BadManifest(
            f"{name} has version {version!r}, and this voxpipe reads {VERSION}.",
            do="Write it again (voxpipe index), or install a newer voxpipe.",
        )
    entries: list[Entry] = []
    where = "its list of cases"
    try:
        for number, case in enumerate(document["cases"]):
            where = f"case {number}"
            for key, volume in case["volumes"].items():
                where = f"{key!r} of case {case['case']}"
                entries.append(_entry(str(case["case"]), str(key), volume, folder))
    except _SENSELESS as error:
        raise BadManifest(
            f"{where} of {name} makes no sense: {type(error).__name__}: {error}.",
            do="Write the manifest again: voxpipe index URL.",
        ) from error
    if follow != "anywhere":
        _refuse_elsewhere(entries, document.get("made_of"), name, folder)
    return Manifest(tuple(entries), name)


def _refuse_elsewhere(entries: Sequence[Entry], made_of: Any, name: str, folder: str) -> None:
    """Refuse volumes on other hosts, or reached in other ways, than a manifest is made of."""
    found = [entry for entry in entries if not _below(entry.location, folder)]
    if is_url(folder):
        known = {_origin(folder)}
    elif isinstance(made_of, list):
        known = {origin for origin in made_of if isinstance(origin, str)}
    else:  # an earlier version did not say it: then they have to be all alike
        known = {_origin(entry.location) for entry in found[:1]}
    for entry in found:
        escapes = folder and entry.location.startswith(folder)
        if escapes or _origin(entry.location) not in known:
            raise BadManifest(
                f"{entry.key!r} of case {entry.case} of {name} is at {entry.location:.200}, and "
                f"the manifest is of volumes at {', '.join(sorted(known)) or folder:.200}.",
                do='If you trust who made it: from_manifest(..., follow="anywhere").',
            )


def _below(location: str, folder: str) -> bool:
    """Whether a location lies below a folder, also once ``..`` in it is resolved."""
    if not folder or not location.startswith(folder):
        return False
    rest = unquote(location[len(folder) :]).replace("\\", "/")
    chained = "://" in rest or "::" in rest  # a URL after all, as fsspec reads it
    return not (chained or rest.startswith("/") or ".." in rest.split("/"))


def _origin(location: str) -> str:
    """Return by which schemes a location is reached, and on which hosts."""
    return (origin_of(location) or location) if is_url(location) else "local"


def folder_of(location: str) -> str:
    """Return the folder of a path or URL, with a slash at its end."""
    if is_url(location):
        return used_name(location).rpartition("/")[0] + "/"
    return os.path.join(os.path.dirname(absolute_place(location)), "")


def _to_json(entry: Entry, folder: str) -> dict[str, Any]:
    known = entry.header.document()
    below = entry.location[len(folder) :] if folder and entry.location.startswith(folder) else ""
    # What would itself be read as an absolute place stays one.
    relative = below and not (os.path.isabs(below) or is_url(below))
    return {
        "location": below if relative else entry.location,
        "kind": entry.kind,
        **{key: known[key] for key in _OF_HEADER},
        "dtype": known["disk_dtype"],
        "shards": None if entry.shards is None else list(entry.shards),
        "options": dict(entry.options),
        "stamp": {**asdict(entry.stamp), "header": known["stamp"]},
        "hash": entry.hash or None,
        "statistics": None if entry.statistics is None else entry.statistics.to_json(),
        **({"documents": _documents_out(entry.documents)} if entry.documents else {}),
    }


def _documents_out(documents: Sequence[tuple[str, bytes | None]]) -> dict[str, Any]:
    """Return metadata as the JSON that they are, and other bytes in base64."""
    found: dict[str, Any] = {}
    for key, data in documents:
        parsed = None
        if data is not None:
            with suppress(ValueError):
                parsed = parse_json(data)
        plain = isinstance(parsed, dict) or data is None
        found[key] = parsed if plain else base64.b64encode(data or b"").decode()
    return found


def _documents_in(found: Mapping[str, Any]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple(
        (
            str(key),
            None
            if value is None
            else json.dumps(value).encode()
            if isinstance(value, dict)
            else base64.b64decode(value, validate=True),
        )
        for key, value in sorted(found.items())
    )


def _entry(case: str, key: str, found: Mapping[str, Any], folder: str) -> Entry:
    stamp = dict(found["stamp"])
    header = Header.of_document(
        {**found, "disk_dtype": str(found["dtype"]), "stamp": stamp.pop("header")}
    )
    odd = min(header.shape) < 1 or len(header.affine) != 16
    if odd or header.access not in get_args(Access):
        msg = f"shape {header.shape}, {len(header.affine)} entries of the affine, {header.access!r}"
        raise ValueError(msg)
    location = str(found["location"])
    if not (is_url(location) or os.path.isabs(location)):
        location = folder + location
    statistics = found["statistics"]
    return Entry(
        case=case,
        key=key,
        location=location,
        kind=str(found["kind"]),
        header=header,
        stamp=Stamp(
            str(stamp["how"]), int(stamp["size"]), int(stamp["objects"]), str(stamp["version"])
        ),
        shards=_three(found["shards"]),
        statistics=None if statistics is None else Statistics.from_json(statistics),
        hash=str(found["hash"] or ""),
        options=tuple(sorted(dict(found["options"]).items())),
        documents=_documents_in(found.get("documents") or {}),
    )


def _three(numbers: Sequence[int] | None) -> tuple[int, int, int] | None:
    if numbers is None:
        return None
    i, j, k = (int(n) for n in numbers)
    return i, j, k


def _content(place: str, options: Mapping[str, Any]) -> bytes:
    if is_url(place):
        with remote_errors(place, options):
            found = open_remote(place, options).get("", MOST_MANIFEST_BYTES)
        if found is None:
            raise _no_manifest(public_name(place))
        return bytes(found)
    try:
        with open(local_path(place), "rb", opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            check_document(size, place, MOST_MANIFEST_BYTES)
            return file.read(MOST_MANIFEST_BYTES)
    except FileNotFoundError:
        raise _no_manifest(place) from None


def _no_manifest(place: str) -> VolumeNotFound:
    return VolumeNotFound(f"there is no manifest {place}.", do="Write one: voxpipe index URL.")
