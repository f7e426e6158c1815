"""DICOM: files, and series of slices in a folder, as stacks of frames.

A volume is a stack of frames, sorted along their normal. Frames that make no even stack are refused
with their positions; of several at one place, facts or file names choose one.
"""

from __future__ import annotations

import datetime
import fnmatch
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS
from ...core.call_site import shorten, warn
from ...core.errors import (
    BadHeader,
    CasesLeftOut,
    LikelyMistake,
    SampleError,
    UnknownFormat,
    VolumeChanged,
    VolumeError,
    VolumeNotFound,
)
from ...core.suggest import closest, few_names
from ...storage.content import content_key
from ...volumes.backend import Backend
from ...volumes.formats.chunked_backend import millimetres_in
from ...volumes.formats.raw import LocalRaw, RawHeader, fastest_first, world_affine
from ...volumes.formats.stored_file import Format, LocalStoredFile, import_package
from ...volumes.header import affine_entries
from ...volumes.registry import BackendRequest
from ...volumes.source import FolderVersion
from .dicom_file import FACTS, KINDS, OWNERS, SCALES, SELECTORS, DicomFile, Frame, is_dicom

# A folder with other files holds a series if any of its first files is DICOM.
_LOOKED_AT = 16
_SUFFIXES = (".dcm", ".ima")
# Tolerance of the distance between slices. Positions are decimal text of up to 16 letters.
_UNEVEN = 1e-2
# Millimetres along the normal: frames closer than this are at one place.
_ONE_PLACE = 1e-3
_SAME_STEPS = 1e-4
_MOST_NAMES = 4
_CHOOSE = "Choose the slices of one volume, by ⟦where={keyword: value}⟧ or ⟦files='pattern'⟧."


def _read(
    paths: Iterable[str], name: str, select: Sequence[str] = ()
) -> tuple[dict[str, list[Frame]], dict[str, list[VolumeError]]]:
    """Return the frames of files by their series, and the errors of files that are unsound.

    The errors of ``""`` are of files that may belong to any series.
    """
    frames: dict[str, list[Frame]] = {}
    errors: dict[str, list[VolumeError]] = {}
    for path in paths:
        series = ""
        if not (path.lower().endswith(_SUFFIXES) or is_dicom(path)):
            continue
        try:
            is_inside = os.path.realpath(os.path.dirname(path)) == os.path.realpath(name)
            place = path if is_inside else f"{path} (of {name})"
            one = DicomFile(LocalStoredFile(path, place), select)
            series = one.series
            if one.is_image:
                own = one.frames()
                frames.setdefault(series, []).extend(own)
        except VolumeError as error:
            errors.setdefault(series, []).append(error)
    return frames, errors


def _read_folder(
    folder: str, name: str, files: Any, select: Sequence[str]
) -> tuple[dict[str, list[Frame]], dict[str, list[VolumeError]]]:
    """Return frames and errors of a folder, and those of its series in folders below.

    Without an image in the folder itself, of all series below. ``files`` are names or patterns:
    no others are read.
    """
    if files is not None:
        return _read(_named_files(folder, name, files), name, select)
    frames, errors = _read(_files(folder), name, select)
    below = [path for each in itertools.islice(_folders(folder), 1, None) for path in _files(each)]
    others, unsound = _read(below, name, select)
    uids_here = {*frames} or {*others, *unsound}
    for uid in uids_here & others.keys():
        frames[uid] = frames.get(uid, []) + others[uid]
    for uid in uids_here & unsound.keys():
        errors[uid] = errors.get(uid, []) + unsound[uid]
    return frames, errors


def _folders(folder: str) -> Iterator[str]:
    """Yield a folder, and those below that are not hidden."""
    for path, below, _ in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield path


def _files(folder: str) -> list[str]:
    # Copies from macOS bring a hidden ._NAME for each file, and these come first.
    with os.scandir(folder) as entries:
        paths = [entry.path for entry in entries if not entry.name.startswith(".")]
    return sorted(path for path in paths if not os.path.isdir(path))


def _named_files(folder: str, name: str, files: Any) -> list[str]:
    """Return the files in or below a folder that names or patterns choose; each has to match."""
    root, choice = os.path.realpath(folder), set[str]()
    patterns = [files] if isinstance(files, (str, os.PathLike)) else [*files]
    for text in (os.fspath(each) for each in patterns):
        parent, pattern = os.path.split(text)
        ways = map(os.path.realpath, (os.path.join(folder, parent), parent))
        inside = (way for way in ways if os.path.isdir(way) and Path(way).is_relative_to(root))
        place = next(inside, None)
        names = [(os.path.basename(path), path) for path in (_files(place) if place else ())]
        fits = [p for base, p in names if base == pattern or fnmatch.fnmatchcase(base, pattern)]
        hits = {os.path.normpath(os.path.join(folder, os.path.relpath(p, root))) for p in fits}
        if not hits:
            what = f"{text!r} of files= matches no file in {name}."
            raise VolumeNotFound(what, do="Give names or patterns of files in this folder.")
        choice |= hits
    if not choice:
        raise VolumeNotFound(f"files= names no file in {name}.", do="Leave it out to read all.")
    return sorted(choice)


def _has_dicom(request: BackendRequest) -> bool:
    """Whether a local file, or one of the first files of a local folder, is DICOM.

    Folders below count where ``series`` or ``files`` choose slices.
    """
    path = os.fspath(request.path or "")
    paths = [path]
    if os.path.isdir(path):
        depth = None if request.reader_kwargs.keys() & {"series", "files"} else 1
        every = (_files(each) for each in itertools.islice(_folders(path), depth))
        paths = [*itertools.islice(itertools.chain.from_iterable(every), _LOOKED_AT)]
    is_name = any(one.lower().endswith(_SUFFIXES) for one in paths if os.path.isfile(one))
    return is_name or any(map(is_dicom, paths))


def open_dicom(
    request: BackendRequest,
    name: str,
    series: str = "",
    where: Mapping[str, Any] | None = None,
    files: Any = None,
) -> Backend:
    """Open a file, or the slices of one series in a folder.

    ``UnknownFormat`` if it must be chosen which are meant, ``BadHeader`` if they do not make up a
    volume.
    """
    path = os.fspath(request.path or "")
    import_package("pydicom", f"the DICOM files of {name}" if os.path.isdir(path) else name)
    select = {} if where is None else _by_keyword(where, name)
    folder = FolderVersion(path) if os.path.isdir(path) else None
    if folder is not None:
        frames = _of_series(*_read_folder(path, name, files, tuple(select)), name, series)
    else:
        if files is not None:
            raise UnknownFormat(f"{name} is a file, and files= chooses files of a folder.")
        one = DicomFile(LocalStoredFile(path, name), tuple(select))
        frames = _of_series({one.series: one.frames()}, {}, name, series)
    frames = select_frames(frames, select, name)
    is_placed = vars(request)["affine"] is not None
    fields, frames = stack(frames, name, is_placed=is_placed)
    places: dict[str, dict[int, tuple[int, Frame]]] = {}
    for k, frame in enumerate(frames):
        places.setdefault(frame.file.path, {})[frame.number] = k, frame
    sources = [next(iter(each.values()))[1].file for each in places.values()]
    # Other frames of the same files may be another volume.
    order = tuple((frame.file.path, frame.number) for frame in frames)
    sources[0].seen_as = (content_key("dicom", order),)

    def write(raw: BinaryIO) -> None:
        size = fields.voxel_bytes // len(frames)
        for file in sources:
            if not file.is_current:
                raise VolumeChanged(f"{file.name} was written again since its header was read.")
            for number, plane in DicomFile(file).planes(places[file.path]):
                k, frame = places[file.path][number]
                if frame.scale != (1.0, 0.0):
                    slope, intercept = frame.scale
                    plane = plane.astype(np.float64) * slope + intercept
                raw.seek(k * size)
                raw.write(plane.astype(fields.dtype).tobytes())

    IO_COUNTERS.count(headers=len(sources))
    backend = LocalRaw(fields, sources, name, write)
    backend.folder = folder  # a slice may be added or removed
    return backend


def _of_series(
    frames: Mapping[str, list[Frame]],
    errors: Mapping[str, Sequence[VolumeError]],
    name: str,
    series: str,
) -> list[Frame]:
    """Return the frames of a series, which may be left out where there is no other."""
    uids = sorted({*frames, *errors} - {""} or {*frames, *errors})
    uid = series or (uids[0] if len(uids) == 1 else "")
    unknown = errors.get("", ())
    # A file that cannot be read is a slice of the only series, or may be of the one that is meant.
    is_one_of_several = series and series in frames and len(frames) > 1
    for error in (*errors.get(uid, ()), *(() if is_one_of_several else unknown)):
        raise error
    if uid not in frames:
        what = f"{name} holds {len(uids)} DICOM series ({', '.join(uids) or 'no images'})"
        what += f", and not {series}." if series else "."
        raise UnknownFormat(what, do="Give the one to read as ⟦series=⟧.")
    for error in unknown:
        warn(f"{error.message} It may belong to the series {uid}.", CasesLeftOut)
    return frames[uid]


def _by_keyword(where: Any, name: str) -> dict[str, Any]:
    """Return the values of ``where`` by keyword, of which a tag is another name."""
    from pydicom.datadict import dictionary_VR, keyword_dict, keyword_for_tag

    if not isinstance(where, Mapping):
        msg = f"where= of {name} is {shorten(where)}, and takes a dict of keywords and values"
        raise SampleError(msg, do='Write ⟦where={"EchoTime": 5.0}⟧, for instance.')
    values = {}
    for key, value in where.items():
        keyword = key
        if isinstance(key, (int, tuple)):
            with suppress(TypeError, ValueError, OverflowError):  # of a key that is no tag
                keyword = keyword_for_tag(key)
        if keyword not in keyword_dict:
            near = closest(str(key), keyword_dict, 0.6, 3)
            do = f"Did you mean {' or '.join(near)}?" if near else "Give a keyword, or a tag."
            raise SampleError(f"{key!r} in where= of {name} is no keyword of DICOM", do=do)
        if dictionary_VR(keyword_dict[keyword]) == "SQ":
            msg = f"{keyword} in where= of {name} is a sequence, which is not compared"
            raise SampleError(msg, do="Give the keyword of a value in it, or ⟦files='pattern'⟧.")
        values[keyword] = value
    return values


def select_frames(frames: Sequence[Frame], where: Mapping[str, Any], name: str) -> list[Frame]:
    """Return the frames with all the values of ``where``."""
    for key, value in where.items():
        there = {frame.facts[key]: None for frame in frames if key in frame.facts}
        frames = [one for one in frames if _is_same(one.facts.get(key), value)]
        if not frames:
            values = f"It is one of {_some(there)}." if there else "None of them has it."
            raise UnknownFormat(f"no frame of {name} has {key} {value!r}.", do=values)
    return [*frames]


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(other, (list, tuple, np.ndarray)):
        parts = str(value).split("\\")
        return len(parts) == len(other) and all(map(_is_same, parts, other))
    if isinstance(other, datetime.date):
        has_time = isinstance(other, datetime.datetime)
        other = f"{other:%Y%m%d%H%M%S}" if has_time else f"{other:%Y%m%d}"
    if not (isinstance(value, str) and isinstance(other, str)):
        with suppress(TypeError, ValueError):
            one, two = float(value), float(other)
            # Whole numbers, such as dates, are close to others that are not meant.
            if one.is_integer() and two.is_integer():
                return one == two
            return math.isclose(one, two, rel_tol=1e-6)
    return str(value) == str(other)


def _some(values: Any) -> str:
    """Return the first of some values, numbers before texts."""
    return few_names(sorted(values, key=lambda one: (isinstance(one, str), one)), _MOST_NAMES)


def _ranks(frames: Sequence[Frame]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return the height of each frame along the normal, and the number of its place."""
    normal = np.cross(*frames[0].steps)
    heights = np.array([frame.place for frame in frames]) @ (normal / np.linalg.norm(normal))
    order = np.argsort(heights, kind="stable")
    ranks = np.empty(len(frames), np.intp)
    ranks[order] = np.cumsum(np.diff(heights[order], prepend=heights[order[0]]) > _ONE_PLACE)
    return heights, ranks


def selectors(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Return the facts by which frames at one place differ: each value is one volume."""
    if any(frame.place is None for frame in frames):
        return ()
    ranks = _ranks(frames)[1].tolist()
    most = max(Counter(ranks).values())
    varying = [k for k in SELECTORS if len({one.facts.get(k) for one in frames}) > 1]
    for count in (1, 2, 3) if most > 1 else ():
        for keys in itertools.combinations(varying, count):
            values = [tuple(one.facts.get(key) for key in keys) for one in frames]
            pairs = set(zip(ranks, values, strict=True))
            if len(set(values)) == most and len(pairs) == len(frames):
                return keys
    return ()


def _form(frame: Frame) -> tuple[str, ...]:
    """Return the size, pixel spacing and direction of a frame for an error."""
    lengths = np.linalg.norm(frame.steps, axis=1)
    directions = np.divide(frame.steps, lengths[:, None]).ravel()
    size, spacing = "x".join(map(str, frame.layout)), _at(lengths[::-1])
    return f"size {size}", f"pixel spacing {spacing}", f"direction {_at(directions)}"


def stack(
    frames: Sequence[Frame], name: str, *, is_placed: bool = False
) -> tuple[RawHeader, list[Frame]]:
    """Return the header of a stack of frames, and the frames in order.

    Where ``is_placed``, the user gave an affine: distances may be uneven, and frames without places
    of their own stay in the order of the file.
    """
    frames, first = [*frames], frames[0]
    for one in frames[1:]:
        apart = np.abs(np.subtract(one.steps, first.steps)).max()
        if one.layout != first.layout or apart > _SAME_STEPS:
            pairs = [*zip(_form(one), _form(first), strict=True)]
            pairs = [pair for pair in pairs if pair[0] != pair[1]] or pairs
            odd, usual = (" and ".join(texts) for texts in zip(*pairs, strict=True))
            what = f"{one.file.name} has {odd}, and {first.file.name} has {usual}"
            raise BadHeader(f"the frames of {name} differ: {what}.", do=_CHOOSE)
    step = np.cross(*first.steps)
    step *= (first.thickness or 1) / np.linalg.norm(step)
    places = {one.place for one in frames}
    if len(frames) > 1 and not (is_placed and len(places) == 1):
        if None in places:
            what = f"{name} has {len(frames)} frames, and does not say where each of them lies."
            raise BadHeader(what, do="Pass ⟦affine=⟧ to stack them in the order of the file.")
        frames, step = _in_order(frames, name, is_placed)
    _check_alike(frames, name)
    if not is_placed:
        _check_geometry(frames)
    columns, rows, channels = first.layout
    millimetres_in("mm", name)  # of every DICOM file
    affine = world_affine([*first.steps, step], frames[0].place or (0.0, 0.0, 0.0))
    layout = fastest_first((columns, rows, len(frames)), colours=channels)
    return RawHeader(layout, _value_type(frames), 0, affine_entries(affine, name)), frames


def _check_geometry(frames: Sequence[Frame]) -> None:
    """Refuse planes without a pixel spacing or direction; warn of sizes that may be missing."""
    vague = max(frames, key=lambda one: bool(one.missing))
    what, do = f"{vague.file.name} has no {vague.missing}", "Pass ⟦affine=⟧ to say where it lies."
    if vague.missing and vague.is_plane:
        raise BadHeader(f"{what}.", do=do)
    if vague.missing:
        warn(f"{what}; its pixels are taken as 1 mm wide. {do}", LikelyMistake)
    elif len(frames) == 1 and vague.is_plane and not vague.thickness:
        what = f"{vague.file.name} has no SliceThickness"
        warn(f"{what}; it is taken as 1 mm thick. {do}", LikelyMistake)


def _check_alike(frames: Sequence[Frame], name: str) -> None:
    """Refuse slices whose values mean different things; warn of those of other patients."""
    for key in (*SCALES, *KINDS, *OWNERS):
        by_value: dict[str, Frame] = {}
        for one in frames:
            by_value.setdefault(str(one.facts.get(key, "")), one)
        with_it = [one for text, one in by_value.items() if text]
        if key in SCALES and with_it and "" in by_value:
            what = f"{by_value[''].file.name} has no {key}, and {with_it[0].file.name} has one."
            raise BadHeader(what, do=f"{_CHOOSE[:-1]}, or write the file again with its {key}.")
        if key in SCALES or len(with_it) < 2:
            continue
        values = " and ".join(f"{one.facts[key]} in {one.file.name}" for one in with_it[:2])
        if key in KINDS:
            raise BadHeader(f"the slices of {name} differ in {key}: {values}.", do=_CHOOSE)
        values_text = f": {values}" if key != "PatientID" else f" ({with_it[1].file.name})"
        warn(f"the slices of {name} differ in {key}{values_text}. {_CHOOSE}", LikelyMistake)


def _in_order(frames: Sequence[Frame], name: str, is_placed: bool) -> tuple[list[Frame], Any]:
    """Return frames by their place along the normal, and the step between them."""
    heights, ranks = _ranks(frames)
    count = int(ranks.max()) + 1
    if count < len(frames):
        raise _too_many(frames, heights, ranks, name)
    order = np.argsort(heights)
    frames = [frames[n] for n in order]
    places = np.array([frame.place for frame in frames])
    step = (places[-1] - places[0]) / (count - 1)
    distance = float(np.linalg.norm(step))
    away = np.abs(places - places[0] - np.arange(count)[:, None] * step).max()
    if away > _UNEVEN * distance and not is_placed:
        gaps = np.diff(heights[order])
        usual = float(np.sort(gaps)[(len(gaps) - 1) // 2])
        wide = np.flatnonzero(np.abs(gaps - usual) > _UNEVEN * usual)
        where = [f"{gaps[n]:g} mm from {_at(places[n])} to {_at(places[n + 1])}" for n in wide]
        why = f"their corners are up to {away:g} mm off a straight line"
        if where:
            why = f"{usual:g} mm apart, but {'; '.join(where[:_MOST_NAMES])}"
        msg = f"the {count} slices of {name} are not evenly spaced: {why}."
        do = "Look for missing slices, choose those of one volume by ⟦where=⟧ or ⟦files=⟧, or pass "
        raise BadHeader(msg, do=f"{do}⟦affine=⟧ to read them as evenly spaced.")
    # A tilted gantry has two distances: along the normal, and along the table.
    apart = np.ptp(heights) / (count - 1), distance
    with_it = [one for one in frames if one.facts.get("SpacingBetweenSlices")]
    odd = [one for one in with_it if min(abs(abs(one.thickness) / d - 1) for d in apart) > _UNEVEN]
    if odd and not is_placed:
        what = f"the slices of {name} are {apart[0]:g} mm apart by their positions, which are used"
        other = f"SpacingBetweenSlices is {odd[0].thickness:g} mm in {odd[0].file.name}"
        warn(f"two-spacings: {what}; {other}. Look for missing slices.", LikelyMistake)
    return frames, step


def _at(place: Any) -> str:
    return "(" + ", ".join(f"{number:g}" for number in place) + ")"


def _too_many(
    frames: Sequence[Frame], heights: NDArray[Any], ranks: NDArray[Any], name: str
) -> UnknownFormat:
    """Return the error for several frames at one place: which facts choose some of them."""
    counts = np.bincount(ranks)
    at = int(counts.argmax())
    here = [frame for frame, rank in zip(frames, ranks, strict=True) if rank == at]
    place = f"{counts[at]} at {_at(here[0].place)}"
    what = f"the {len(frames)} slices of {name} lie at {len(counts)} places, {place}"
    keys = selectors(frames) or tuple(
        key
        for key in SELECTORS
        if len({one.facts.get(key) for one in here}) > 1
        and len({one.facts.get(key) for one in frames}) < len(frames)
    )
    if not keys:
        names = _some({f"{one.file.name}, frame {one.number}": None for one in here})
        do = "Choose slices of one volume by their names: ⟦files='phase1_*.dcm'⟧, or a list."
        return UnknownFormat(f"{what}: {names}. Nothing in their headers tells them apart.", do=do)
    values = [f"{k} ({_some({one.facts.get(k): None for one in frames})})" for k in keys]
    example = {key: here[0].facts.get(key) for key in keys[:3]}
    do = f"Choose those of one volume: ⟦where={example!r}⟧, or ⟦files='pattern'⟧."
    return UnknownFormat(f"{what}. They differ by {', '.join(values)}.", do=do)


def _value_type(frames: Sequence[Frame]) -> np.dtype[Any]:
    """Return the type of the values: as they are stored, or rescaled, each frame by its own."""
    dtypes, scales = {one.dtype for one in frames}, {one.scale for one in frames}
    if len(dtypes) == 1 and scales == {(1.0, 0.0)}:
        return frames[0].dtype
    ends = [end * one.scale[0] + one.scale[1] for one in frames for end in one.span]
    is_whole = all(number.is_integer() for number in (*ends, *itertools.chain(*scales)))
    for code in ("u1", "u2", "u4", "i1", "i2", "i4") if is_whole else ():
        if np.iinfo(code).min <= min(ends) and max(ends) <= np.iinfo(code).max:
            return np.dtype(code)
    is_small = all(one == np.float32 or (one.kind in "iu" and one.itemsize <= 2) for one in dtypes)
    return np.dtype(np.float32 if is_small else np.float64)


def series_below(
    root: str,
) -> tuple[list[tuple[str, dict[str, Any], dict[str, str]]], list[VolumeError]]:
    """Return folder, options of ``Volume`` and facts of each volume below, and all errors.

    Several folders may hold the slices of one volume. ``where`` separates volumes of one series.
    """
    series: dict[str, dict[str, list[Frame]]] = {}
    errors: list[VolumeError] = []
    unsound = set[tuple[str, str]]()
    for folder in _folders(root):
        if not any(map(is_dicom, _files(folder))):
            continue
        import_package("pydicom", f"the DICOM files of {folder}")
        frames, bad = _read(_files(folder), folder)
        errors += [error for each in bad.values() for error in each]
        unsound |= {(uid, folder) for uid in bad}
        if len(frames) == 1 and "" in bad:
            unsound |= {(uid, folder) for uid in frames}  # one of its slices cannot be read
        for uid, own in frames.items():
            series.setdefault(uid, {})[folder] = own
    volumes: list[tuple[str, dict[str, Any], dict[str, str]]] = []
    for uid, folders in sorted(series.items()):
        try:
            parts = _parts(uid, folders)
        except VolumeError as error:
            errors.append(error)
            continue
        for part in parts:
            if not any((uid, folder) in unsound for folder in part):
                own = [one for each in part for one in folders[each]]
                folder, files = os.path.commonpath(part), None
                if len(part) > 1 or any(Path(folder) in Path(other).parents for other in folders):
                    below = (os.path.relpath(one, folder) for one in part)
                    files = [os.path.normpath(os.path.join(one, "*")) for one in below]
                volumes += _volumes(uid, own, folder, files, errors)
    return sorted(volumes, key=lambda one: one[0].split(os.sep)), errors


def _parts(uid: str, folders: Mapping[str, Sequence[Frame]]) -> list[tuple[str, ...]]:
    """Return the folders of each volume of a series: all that have slices of one form.

    Folders that share all places have a volume each: phases, or copies, which are warned of.
    """
    forms: dict[Any, list[str]] = {}
    for folder, frames in folders.items():
        form = {(one.layout, *np.round(one.steps, 3).ravel().tolist()) for one in frames}
        forms.setdefault(frozenset(form), []).append(folder)
    places = {folder: {one.place for one in frames} for folder, frames in folders.items()}
    parts: list[tuple[str, ...]] = []
    for names in forms.values():
        pairs = list(itertools.combinations(names, 2))
        if not any(places[a] & places[b] for a, b in pairs):
            parts.append(tuple(names))
            continue
        for a, b in pairs:
            if not (places[a] <= places[b] or places[b] <= places[a]):
                msg = f"the series {uid} is in {a} and in {b}, and folders share some places."
                raise UnknownFormat(msg, do="Move slices of other volumes to other folders.")
            uids = [{one.facts.get("SOPInstanceUID") for one in folders[name]} for name in (a, b)]
            if uids[0] & uids[1]:
                what = f"the series {uid} in {a} is in {b} again, as two cases of the same images."
                warn(f"{what} Remove one of the copies.", LikelyMistake)
        parts += [(name,) for name in names]
    return parts


def _volumes(
    uid: str,
    every: Sequence[Frame],
    folder: str,
    files: list[str] | None,
    errors: list[VolumeError],
) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    """Yield folder, options and facts of the volumes among some slices; note errors of others."""
    keys, groups = selectors(every), dict[tuple[Any, ...], list[Frame]]()
    for one in every:
        groups.setdefault(tuple(one.facts.get(key) for key in keys), []).append(one)
    facts = {fact: str(every[0].facts.get(key, "")) for key, fact in FACTS.items()}
    facts = {fact: text for fact, text in facts.items() if text}
    for values, frames in groups.items():
        options: dict[str, Any] = {"series": uid}
        if files is not None:
            options["files"] = files
        if keys:
            options["where"] = dict(zip(keys, values, strict=True))
        try:
            stack(frames, f"the series {uid} in {folder}")
            yield folder, options, facts
        except VolumeError as error:
            errors.append(error)


_OPTIONS = ("series", "where", "files")
FORMATS = Format("dicom", (), open_dicom, _OPTIONS, "pydicom", matches=_has_dicom, rank=1)
