"""The search for volumes below a folder: all names that a registered backend recognises."""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import VolumeNotFound, VoxpipeError
from ...core.suggest import path_hint
from ...storage.file_reader import LocalRanges
from ...storage.fsspec_ranges import file_system_of
from ...storage.location import (
    WILDCARD,
    absolute_place,
    fixed_folder,
    is_url,
    local_path,
    public_name,
    readable_name,
)
from ...storage.ranges import RangeStore
from ...storage.remote import Globs, open_remote
from ..formats.zarr_array import ZarrArray, open_node
from ..formats.zarr_chunks import NotOurs
from ..formats.zarr_nodes import METADATA_FILES, images_in
from ..registry import BackendRequest, is_picture, is_recognised, registered_names, unknown_format
from ..session import opening_session

IMAGE = "image"  # key of the only volume of a case
_MOST_NAMES = 3  # files of other formats that an error names
SLICES = (".dcm", ".ima", "")  # suffixes of DICOM slices, whose folder is one volume
# nnU-Net and the Medical Segmentation Decathlon: imagesTr/, imagesTs/, labelsTr/.
_SPLIT_FOLDER = re.compile(r"(image|label)s(Tr|Ts|Va|Val)")
# nnU-Net writes each channel of a case to a file of its own: CASE_0000, CASE_0001.
_CHANNEL = re.compile(r"(.+)_(\d{4})")
# nnU-Net's preprocessed folders hold CASE and CASE_seg.
_SEGMENTATION = "_seg"
# A case rarely has more volumes; in larger folders names decide whether each is a case.
_VOLUMES_OF_A_CASE = 8
_DIGITS = re.compile(r"\d+")
_DOT_FILE = re.compile(r"(^|/)\.")
# Keys of the volumes in sibling folders with the same names.
_KEYS_OF_FOLDERS = {"images": IMAGE, "labels": "label", "masks": "mask"}


def find_volumes(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> dict[str, dict[str, str]]:
    """Return the volumes below a folder, or those that a glob matches, by case and key.

    Names of a glob's matches are relative to the folder before its first wildcard. A glob also
    includes the volumes below the folders that it matches.

    The folder of a volume is its case. Its key is its name without suffixes and without the name
    of the case: ``"T1w"`` of ``sub-01/anat/sub-01_T1w.nii``, ``"image"`` if nothing is left. In a
    folder of many cases, each volume is a case with the key ``"image"``:

    - directly in the given folder; ``CASE_seg`` next to ``CASE`` is its key ``"seg"``;
    - in ``imagesTr``, ``imagesTs`` and ``labelsTr`` of nnU-Net and the Decathlon, with the key
      ``"label"`` for labels. nnU-Net's channels ``CASE_0000``, ``CASE_0001`` have the keys
      ``"image_0000"``, ``"image_0001"``, a single channel ``"image"``;
    - in a folder of more than 8 volumes whose names differ by numbers, unless the names of its
      sibling folders do, too. Volumes of one name in such sibling folders (``images/``,
      ``labels/``) are one case.

    Volumes that differ by format only (``ct.nii`` and ``ct.nii.gz``) have, except for the first,
    their whole names as keys. The two files of a pair (``.hdr`` and ``.img``) are one volume.
    Hidden files and folders are skipped, and so are pictures unless a glob names their suffix.
    """
    folders, places = list_below(location, storage_options)
    alike = Counter(map(_without_number, folders))
    flat = {
        folder
        for folder, names in folders.items()
        if not folder or (_are_cases(names) and alike[_without_number(folder)] == 1)
    }
    siblings = Counter(posixpath.dirname(folder) for folder in flat if folder)
    keys = _keys({folder: names for folder, names in folders.items() if folder not in flat})
    cases: dict[tuple[str, str], dict[str, str]] = {}
    for folder, names in folders.items():
        parent, last = posixpath.split(folder)
        split = _SPLIT_FOLDER.fullmatch(last)
        if split:
            labels = folders.get(posixpath.join(parent, f"labels{split[2]}"), ())
            entries = _of_split(names, split[1], {plain_name(label) for label in labels})
        elif folder in flat:
            key = last if siblings[parent] > 1 else IMAGE
            entries = _of_flat(names, _KEYS_OF_FOLDERS.get(last, key))
        else:
            parent, entries = "", ((folder, keys[name], name) for name in names)
        for case, key, name in entries:
            whole = posixpath.basename(name)
            volumes = cases.setdefault(
                (split[2] if split else "", posixpath.join(parent, case)), {}
            )
            # Two formats of one volume are two volumes: none replaces the other.
            if key not in volumes:
                volumes[key] = places[name]
            elif split or folder in flat:
                cases["", posixpath.join(parent, whole)] = {key: places[name]}
            else:
                volumes[whole] = places[name]
    # A case name in two splits gets the split as a prefix.
    count = Counter(case for _, case in cases)
    return {
        case if count[case] == 1 or not split else f"{split}/{case}": volumes
        for (split, case), volumes in cases.items()
    }


def find_by_folder(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> dict[str, dict[str, str]]:
    """Return the volumes as :func:`find_volumes` does, where every folder is one case."""
    folders, places = list_below(location, storage_options)
    cases: dict[str, dict[str, str]] = {}
    for folder, names in folders.items():
        for name in names:
            key, whole = plain_name(name), posixpath.basename(name)
            if folder:
                volumes = cases.setdefault(folder, {})
                volumes[whole if key in volumes else key] = places[name]
            else:
                cases[whole if key in cases else key] = {IMAGE: places[name]}
    return cases


def cases_without_label(
    cases: Mapping[str, Mapping[str, str]], labels: Collection[str]
) -> list[tuple[str, str]]:
    """Return case and key of each label that a case lacks and most of its group have.

    Cases are grouped by the folder of their images, or by the parent of folders with one image
    each. So cases of ``imagesTs`` need no label because those of ``imagesTr`` have one.
    """
    images = {
        case: next((p for k, p in v.items() if k not in labels), "") for case, v in cases.items()
    }
    counts = Counter(map(posixpath.dirname, images.values()))
    groups: dict[str, list[str]] = {}
    for case, image in images.items():
        folder = posixpath.dirname(image)
        where = folder if counts[folder] > 1 else posixpath.dirname(folder)
        groups.setdefault(where if image else "", []).append(case)
    return [
        (case, key)
        for group in groups.values()
        for key in labels
        if 2 * sum(key in cases[case] for case in group) > len(group)
        for case in group
        if key not in cases[case]
    ]


def list_below(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the names of volumes by folder, relative to the location, and the place of each."""
    place, options = os.fspath(location), storage_options or {}
    where: dict[str, Any] = {"uri": place} if is_url(place) else {"path": Path(local_path(place))}
    if "{" in place and is_recognised(BackendRequest(**where, source=place)):
        name = posixpath.basename(place)  # a pattern of files that are one volume
        return {"": [name]}, {name: place}
    places = dict(_below_matches(place, options) if is_glob(place) else _list(place, options))
    folders: dict[str, list[str]] = {}
    for name in sorted(places):
        if not _is_second_of_pair(name, places):
            folders.setdefault(name.rpartition("/")[0], []).append(name)
    if folders:
        return folders, places
    if os.path.isfile(local_path(place)):
        raise unknown_format(place, registered_names())
    if is_glob(place):
        msg = f"there is no volume in the matches of {public_name(place)}."
        raise VolumeNotFound(msg, do="Check the pattern.")
    if is_url(place):
        raise VolumeNotFound(f"there is no volume below {public_name(place)}.", do="Check the URL.")
    if not os.path.exists(local_path(place)):
        do = path_hint(local_path(place))
        raise VolumeNotFound(f"there is no file or folder {place}.", do=do)
    files = (name for _, _, names in os.walk(local_path(place)) for name in sorted(names))
    there = ", ".join(itertools.islice(files, _MOST_NAMES)) or "none"
    msg = f"there is no volume below {place}; files of no format that is read: {there}."
    do = "Check the folder, or convert them to a format that is read. Pictures need their suffix "
    do += f"in a pattern: {os.path.join(place, '*.png')!r}."
    raise VolumeNotFound(msg, do=do)


def _are_cases(names: Sequence[str]) -> bool:
    """Whether each volume of a folder is a case: many names that differ by numbers only."""
    kinds = {_DIGITS.sub("0", plain_name(name)) for name in names}
    return len(names) > _VOLUMES_OF_A_CASE and 4 * len(kinds) <= len(names)


def _without_number(folder: str) -> str:
    parent, name = posixpath.split(folder)
    return posixpath.join(parent, _DIGITS.sub("0", name))


def _keys(folders: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the key of each volume in folders that are one case each."""
    short = {name: _short(folder, name) for folder, names in folders.items() for name in names}
    plain = Counter(plain_name(name) for name in short)
    alike: dict[tuple[str, str], set[str]] = {}
    for folder, names in folders.items():
        for name in names:
            alike.setdefault((folder, short[name]), set()).add(plain_name(name))
    common = Counter(key for _, key in alike)

    def is_better(folder: str, name: str) -> bool:
        whole, key = plain_name(name), short[name]
        # A number identifies a case; a word does if other cases have the rest of the name.
        has_number = _short(folder, name, _DIGITS) == key
        return len(alike[folder, key]) == 1 and (
            (has_number and plain[whole] == 1) if key == IMAGE else (has_number or common[key] > 1)
        )

    return {
        name: short[name] if is_better(folder, name) else plain_name(name)
        for folder, names in folders.items()
        for name in names
    }


def _short(folder: str, name: str, having: re.Pattern[str] = re.compile("")) -> str:
    """Return the name of a volume without the names of its folders."""
    rest = plain_name(name)
    for part in filter(having.search, folder.split("/")):
        rest = re.sub(rf"(?<![^\W_]){re.escape(part)}(?![^\W_])[-_. ]*", "", rest).rstrip("-_. ")
    return f"{IMAGE}_{rest}" if rest[:1].isdigit() and rest != plain_name(name) else rest or IMAGE


def _of_split(
    names: Sequence[str], key: str, labels: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield case, key and name of the volumes of ``imagesTr`` or ``labelsTr``."""
    matches = {name: _CHANNEL.fullmatch(plain_name(name)) for name in names}
    channels = {match[2] for match in matches.values() if match}
    is_split = (
        key == IMAGE and all(matches.values()) and not any(plain_name(n) in labels for n in names)
    )
    for name, match in matches.items():
        if is_split and match:
            yield match[1], key if len(channels) == 1 else f"{key}_{match[2]}", name
        else:
            yield plain_name(name), key, name


def _of_flat(names: Sequence[str], key: str) -> Iterator[tuple[str, str, str]]:
    """Yield case, key and name of volumes that are one case each."""
    cases = {plain_name(name) for name in names}
    for name in names:
        case = plain_name(name)
        image = case.removesuffix(_SEGMENTATION)
        is_segmentation = image != case and image in cases
        yield (image, "seg", name) if is_segmentation else (case, key, name)


def is_volume(location: str) -> bool:
    """Return whether the name of a path or URL, or the files of a local folder, are one volume."""
    if is_url(location):
        if is_glob(location):
            return False
        place = posixpath.basename(public_name(location).rstrip("/"))
        zarr = location if place.lower().endswith(".zarr") else None
        return "." in place and is_recognised(BackendRequest(uri=location, remote_zarr_uri=zarr))
    path = local_path(location)
    # Accepts any text; one that is too long for a path does not exist.
    if not (os.path.exists(path) and is_recognised(BackendRequest(path=Path(path)))):
        return False
    return not (os.path.isdir(path) and _images_in(LocalRanges(path)))


def is_glob(location: str) -> bool:
    """Return whether a location has wildcards and is no existing path.

    Examples
    --------
    >>> is_glob("scans/*/"), is_glob("scans/"), is_glob("https://host/a.nii?sig=*")
    (True, False, False)
    """
    if is_url(location):
        return "*" in public_name(location)
    path = local_path(location)
    return bool(WILDCARD.search(path)) and not os.path.lexists(path)


def matches_volumes(pattern: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a glob matches volumes, and no folder of volumes."""
    kinds = [
        None if is_volume(place) else is_folder
        for _, place, is_folder in _matches(pattern, storage_options or {})
    ]
    return None in kinds and True not in kinds


def _matches(pattern: str, options: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return for each match its name below the fixed folder, its place, and if it is a folder."""
    system, path, paths = Globs(options).match(pattern)
    root, matches = fixed_folder(path)[0], []
    for match, is_folder in paths.items():
        place = system.unstrip_protocol(match) if is_url(pattern) else match
        is_folder = is_folder if is_url(pattern) else os.path.isdir(place)
        matches.append((readable_name(match[len(root) :].strip("/"), place), place, is_folder))
    matches = [match for match in matches if not _DOT_FILE.search(match[0])]
    if not matches:
        what = f"nothing matches {public_name(pattern)}."
        file = posixpath.basename(public_name(pattern)) or "ct.nii.gz"
        do = f"Check the pattern; did you mean image={file} below a folder of cases?"
        raise VolumeNotFound(what, do=do)
    return matches


def _below_matches(pattern: str, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the volumes that a glob matches, and those below the folders that it matches."""
    volumes: set[str] = set()
    for name, place, is_folder in _matches(pattern, options):
        if _outermost(name, volumes) is not None:
            continue  # a part of that volume
        if is_picture(place, pattern):
            continue
        if is_volume(place):
            volumes.add(name)
            yield name, place
        elif is_folder:
            for below, volume in _list(place, options):
                yield posixpath.join(name, below).rstrip("/"), volume


def plain_name(name: str) -> str:
    """Return a file name without the suffixes of its format.

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
    return inner if inner and second.lower() in (".nii", ".img", ".mgh", ".ome") else stem


def _is_second_of_pair(relative: str, names: Collection[str]) -> bool:
    """Whether a file is the voxels of a pair whose header is listed too."""
    lower = relative.lower()
    end = next((end for end in (".img", ".img.gz") if lower.endswith(end)), None)
    if end is None:
        return False
    stem = relative[: -len(end)]
    return any(f"{stem}{header}" in names for header in (".hdr", ".hdr.gz", ".HDR"))


def _outermost(path: str, places: Collection[str]) -> str | None:
    """Return the outermost of ``places`` that is ``path`` or a folder above it."""
    above = itertools.accumulate(path.split("/"), "{}/{}".format)
    return next((place for place in above if place in places), None)


def _list(place: str, options: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    return _remote(place, options) if is_url(place) else _local(place)


def _images_in(store: RangeStore) -> list[str]:
    """Return the images in a plate or a group of several; nothing for an image itself."""
    with suppress(VoxpipeError, NotOurs, AttributeError, KeyError, TypeError, ImportError):
        node = open_node(store, store.name, opening_session().chunks, "")
        return [] if isinstance(node, ZarrArray) else [*images_in(node)]
    return []


def _local(location: str) -> Iterator[tuple[str, str]]:
    root = absolute_place(location)
    for folder, folders, files in os.walk(root):
        is_zarr = any(name in files for name in METADATA_FILES)
        images = _images_in(LocalRanges(folder)) if is_zarr else []
        if images or (is_zarr and folder != root):
            folders.clear()  # they are parts of the volume
            for path in [os.path.join(folder, image) for image in images] or [folder]:
                yield os.path.relpath(path, root).replace(os.sep, "/"), path
            continue
        series = folder != root and is_recognised(BackendRequest(path=Path(folder)))
        if series:  # its files are slices of one volume
            yield os.path.relpath(folder, root).replace(os.sep, "/"), folder
        # Hidden folders are no data: those of unfinished conversions, for example.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in files:
            path = os.path.join(folder, file)
            if series and os.path.splitext(file)[1].lower() in SLICES:
                continue
            is_shown = not file.startswith(".") and not is_picture(file)
            if is_shown and is_recognised(BackendRequest(path=Path(path))):
                yield os.path.relpath(path, root).replace(os.sep, "/"), path


def _remote(location: str, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    system, root = file_system_of(location, options)
    root, unstrip = root.rstrip("/"), system.unstrip_protocol
    # Not by ``system.find``: timeouts and failures then raise the errors of any read.
    paths = [f"{root}/{key}" for key in open_remote(location, options).list()]
    groups = {path.rpartition("/")[0] for path in paths if path.endswith(METADATA_FILES)}
    places: set[str] = set()
    # An image has arrays and groups of labels; other groups of groups may be a plate.
    parents = set(map(posixpath.dirname, groups))
    above = {posixpath.dirname(p) for p in parents & groups if posixpath.basename(p) != "labels"}
    images: dict[str, list[str]] = {}
    for place in sorted(above & groups, key=len):
        if _outermost(place, images) is None:
            its = _images_in(open_remote(unstrip(place), options))
            images |= {place: its} if its else {}
    groups = {group for group in groups if _outermost(group, images) is None}
    groups |= {f"{place}/{image}" for place, its in images.items() for image in its}
    for path in paths:
        group = _outermost(path, groups)
        place = path if group is None else group
        is_named = group is not None or ("." in posixpath.basename(path) and not is_picture(path))
        if is_named and not _DOT_FILE.search(place[len(root) :]):
            places.add(place)
    return [
        (readable_name(place[len(root) :].lstrip("/"), url), url)
        for place in places
        if (url := unstrip(place))
        and is_recognised(BackendRequest(uri=url, remote_zarr_uri=url if place in groups else None))
    ]
