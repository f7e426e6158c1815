"""Which volumes there are below a folder: whatever a registered backend recognises by its name."""

from __future__ import annotations

import itertools
import os
import posixpath
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import VolumeNotFound
from ..formats.zarr_nodes import METADATA_FILES
from ..registry import BackendRequest, recognised
from ..stores.fsspec_ranges import with_defaults
from ..stores.location import file_system, is_url, local_path, public_name
from ..stores.remote import open_remote

IMAGE = "image"
"""The key of a volume that is the only one of its case."""
_NAMED = 3
"""Files of other formats that an error names."""
SLICES = (".dcm", ".ima", "")
"""Suffixes of the slices of a DICOM series, which is one volume: the folder."""


def find_volumes(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> dict[str, dict[str, str]]:
    """Return the volumes below a folder as paths or URLs, by case and key, sorted.

    The folder of a volume is its case, and its name without suffixes its key. Volumes that
    lie directly in the folder are cases of their own, with the key ``"image"``. Of volumes that
    differ by their format only (``ct.nii`` and ``ct.nii.gz``), the second and later ones are
    called by their whole names; the two files of a pair (``.hdr`` and ``.img``) are one volume.

    Raises
    ------
    VolumeNotFound
        There is none.
    """
    place = os.fspath(location)
    found = _remote(place, storage_options or {}) if is_url(place) else _local(place)
    by_relative = dict(found)
    cases: dict[str, dict[str, str]] = {}
    for relative in sorted(by_relative):
        if _is_second_of_pair(relative, by_relative):
            continue
        case, _, name = relative.rpartition("/")
        # Two formats of one volume are two volumes: none takes the place of another.
        if case:
            taken, key = cases.setdefault(case, {}), plain_name(name)
            taken[name if key in taken else key] = by_relative[relative]
        else:
            case = plain_name(name)
            cases[name if case in cases else case] = {IMAGE: by_relative[relative]}
    if not cases and os.path.isfile(location):
        raise VolumeNotFound(f"{place} is a file of no format that is read.", do="Check the name.")
    if not cases:
        raise _none_below(place)
    return cases


def _none_below(place: str) -> VolumeNotFound:
    """Return the error of a place without volumes; of a local one, with what is there instead."""
    if is_url(place):
        what = f"there is no volume below {public_name(place)}."
        return VolumeNotFound(what, do="Check the URL.")
    if not os.path.exists(local_path(place)):
        return VolumeNotFound(f"there is no file or folder {place}.", do="Check the path.")
    named = (name for _, _, names in os.walk(local_path(place)) for name in sorted(names))
    there = ", ".join(itertools.islice(named, _NAMED))
    what = f"there is no volume below {place}; files of no format that is read: {there or 'none'}."
    return VolumeNotFound(what, do="Check the folder, or convert them to a format that is read.")


def is_volume(location: str) -> bool:
    """Return whether a path or URL is one volume by its name; of a local folder, by its files."""
    if is_url(location):
        place = posixpath.basename(public_name(location).rstrip("/"))
        zarr = location if place.lower().endswith(".zarr") else None
        return "." in place and recognised(BackendRequest(uri=location, remote_zarr_uri=zarr))
    path = Path(local_path(location))
    return path.exists() and recognised(BackendRequest(path=path))


def plain_name(name: str) -> str:
    """Return a file name without what says its format.

    Examples
    --------
    >>> plain_name("ct_0.5mm.nii.gz"), plain_name("seg.ome.zarr"), plain_name("image")
    ('ct_0.5mm', 'seg', 'image')
    """
    name = posixpath.basename(name.rstrip("/"))
    stem, suffix = posixpath.splitext(name)
    if not stem or not suffix:
        return name
    inner, second = posixpath.splitext(stem)
    return inner if inner and second.lower() in (".nii", ".mgh", ".ome") else stem


def _is_second_of_pair(relative: str, found: Collection[str]) -> bool:
    """Whether it is the voxels of a NIfTI pair, whose header was found too."""
    lower = relative.lower()
    end = next((end for end in (".img", ".img.gz") if lower.endswith(end)), None)
    if end is None:
        return False
    stem = relative[: -len(end)]
    return any(f"{stem}{header}" in found for header in (".hdr", ".hdr.gz", ".HDR"))


def _local(location: str) -> Iterator[tuple[str, str]]:
    root = os.path.abspath(local_path(location))
    for folder, folders, files in os.walk(root):
        if folder != root and any(name in files for name in METADATA_FILES):
            folders.clear()  # what is in it belongs to the volume
            yield os.path.relpath(folder, root).replace(os.sep, "/"), folder
            continue
        series = folder != root and recognised(BackendRequest(path=Path(folder)))
        if series:  # its files are slices of one volume
            yield os.path.relpath(folder, root).replace(os.sep, "/"), folder
        # A hidden folder is nobody's data: that of an unfinished conversion, for one.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in files:
            path = os.path.join(folder, file)
            if series and os.path.splitext(file)[1].lower() in SLICES:
                continue
            if not file.startswith(".") and recognised(BackendRequest(path=Path(path))):
                yield os.path.relpath(path, root).replace(os.sep, "/"), path


def _remote(location: str, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    system, root = file_system(location, with_defaults(location, options))
    root = root.rstrip("/")
    # Not by ``system.find``: what answers too late, or not at all, is told as for any read.
    paths = [f"{root}/{key}" for key in open_remote(location, options).list()]
    groups = {path.rpartition("/")[0] for path in paths if path.endswith(METADATA_FILES)}
    places: set[str] = set()
    for path in paths:
        above = [group for group in groups if path.startswith(f"{group}/")]
        place = min(above, key=len) if above else path
        hidden = any(part.startswith(".") for part in place[len(root) :].split("/"))
        if above or (not hidden and "." in posixpath.basename(path)):
            places.add(place)
    return [
        (place[len(root) :].lstrip("/"), url)
        for place in places
        if (url := system.unstrip_protocol(place))
        and recognised(BackendRequest(uri=url, remote_zarr_uri=url if place in groups else None))
    ]
