"""Sequences of TIFF files that are one volume: a folder of planes, or names with a pattern.

The tags of every file are read once, when the volume is opened. A read then fetches the strips or
tiles of the planes that a region touches, or their rows if nothing is compressed.
"""

from __future__ import annotations

import itertools
import math
import os
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS
from ...core.call_site import warn
from ...core.errors import (
    LikelyMistake,
    SampleError,
    UnknownFormat,
    VolumeNotFound,
    VoxpipeError,
)
from ...core.suggest import few_names
from ...storage.content import content_key
from ...storage.location import is_url, public_name
from ...storage.remote import Globs
from ...volumes.backend import Backend
from ...volumes.chunks.chunked_array import ChunkedArray
from ...volumes.chunks.ranged_chunks import RangedChunks
from ...volumes.formats.chunked_backend import (
    ChunkedBackend,
    Layout,
    check_axes,
    chunked_header,
    named_layout,
    refuse_other_axes,
)
from ...volumes.formats.raw import RawHeader, SplitRaw
from ...volumes.formats.stored_file import (
    Format,
    LocalStoredFile,
    RemoteStoredFile,
    StoredFile,
    common_store,
    import_package,
    joined_key,
    library_errors,
)
from ...volumes.header import IDENTITY
from ...volumes.registry import BackendRequest
from ...volumes.session import opening_session
from ...volumes.source import FolderVersion
from ..formats.tiff import TiffImage, kind_of, raise_complaints, read_tiff
from ..formats.tiff_metadata import warn_of_colours
from .time_points import TIMES_AS_CHANNELS, at_time

SUFFIXES = (".tif", ".tiff", ".tf8", ".btf")
_PLACEHOLDER = re.compile(r"\{([A-Za-z]+)(?::[^{}]*)?\}")
_AXES = "tcz"  # of files, in the order in which they vary: time points slowest
_NUMBER = re.compile(r"(\d+)")
_LOOKED_AT = 16  # first files of a folder by which it is recognised
_MOST_NAMES = 4
_PATTERN = "'img_t{t}_c{c}_z{z}.tif'"
# A letter or word in front of a number, and the axis that it names.
_WORDS = {
    **dict.fromkeys(("t", "time", "tp", "frame"), "t"),
    **dict.fromkeys(("c", "ch", "channel", "w", "wavelength"), "c"),
    **dict.fromkeys(("z", "slice", "plane", "s", "sl"), "z"),
}
# Words in front of numbers of positions, each of which is a volume. "s" is a slice without "z".
_POSITIONS = frozenset(
    ["s", "p", "f", "xy", "pos", "position", "series", "site", "scene", "field", "fov", "well"]
)
_WORD_PARTS = re.compile(r"([-_. ])")
_WORD = re.compile(r"([a-z]+)[-_ ]?$", re.IGNORECASE)

Coordinate = int | str
"""A number of a time point or plane, or a number or name of a channel."""


@dataclass(frozen=True)
class PlaneFiles:
    """The files of a sequence, by axis."""

    axes: tuple[str, ...]
    """Letters of the axes between files, slowest first."""
    values: tuple[tuple[Coordinate, ...], ...]
    """Numbers or names along each axis, in order."""
    places: tuple[str, ...]
    """Paths or URLs, in C order of the axes; empty for a file that is missing at a time point."""

    @property
    def existing(self) -> tuple[str, ...]:
        """Paths or URLs of the files that are there."""
        return tuple(filter(None, self.places))

    @property
    def gaps(self) -> dict[int, list[str]]:
        """Names of the missing files by time point, both counted from 0: ``"t=1 c=GFP z=2"``."""
        gaps: dict[int, list[str]] = {}
        size = len(self.places) // len(self.values[0])
        for number, key in enumerate(itertools.product(*map(enumerate, self.values))):
            if not self.places[number]:
                gaps.setdefault(number // size, []).append(_key_text(self.axes, key))
        return gaps

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Names of the channels, or their numbers in the names of the files."""
        return tuple(map(str, dict(zip(self.axes, self.values, strict=True)).get("c", ())))

    def time_text(self, time: int) -> str:
        """Return a time point counted from 0, and the number of its files if that is another."""
        return _both(time, self.values[0][time])

    def at_time(self, time: Any, name: str) -> PlaneFiles:
        """Return the files of one time point, counted from 0; all for None or ``"channels"``.

        ``VolumeNotFound`` names files of it that are missing.
        """
        if time in (None, *TIMES_AS_CHANNELS):
            self._refuse_gaps(name, self.gaps)
            return self
        count = len(self.values[self.axes.index("t")]) if "t" in self.axes else 1
        if isinstance(time, bool) or not isinstance(time, int) or not 0 <= time < count:
            have = f"0 to {self.time_text(count - 1)}" if count > 1 else "only 0"
            do = 'Give a number from 0, or ⟦time="channels"⟧ for all of them as channels.'
            raise SampleError(f"{name} has no time point {time!r}, but {have}", do=do)
        if "t" not in self.axes:
            return self
        gaps = self.gaps
        self._refuse_gaps(name, {time: gaps[time]} if time in gaps else {})
        # t is the first axis.
        size = len(self.places) // count
        part = self.places[time * size : (time + 1) * size]
        return PlaneFiles(self.axes[1:], self.values[1:], part)

    def _refuse_gaps(self, name: str, gaps: Mapping[int, Sequence[str]]) -> None:
        """Raise the error of files that are missing at time points."""
        if not gaps:
            return
        have = f"{len(self.existing)} of {len(self.places)} files are there"
        texts = few_names([text for row in gaps.values() for text in row], _MOST_NAMES)
        do = "Copy the missing files; each combination of t, c and z is a plane of the volume."
        whole = [self.time_text(n) for n in range(len(self.values[0])) if n not in self.gaps]
        if whole:
            do = f"Copy the missing files, or give a complete time point: {few_names(whole)}."
        do += " ⟦allow_gaps=True⟧ closes only numbers that no file has."
        raise VolumeNotFound(f"{name} has no file for {texts}: {have}.", do=do)


def natural_key(name: str) -> tuple[tuple[int, Any], ...]:
    """Return a sort key by which numbers in names are ordered by their values.

    Examples
    --------
    >>> sorted(["z10.tif", "z2.tif"], key=natural_key)
    ['z2.tif', 'z10.tif']
    """
    parts = _NUMBER.split(name)
    return tuple((1, int(part)) if n % 2 else (0, part) for n, part in enumerate(parts))


def without_word(text: str) -> str:
    """Return the beginning of a name without the word in front of a number.

    Examples
    --------
    >>> without_word("img_t"), without_word("scan-channel"), without_word("mouse")
    ('img', 'scan', 'mouse')
    """
    word = _WORD.search(text)
    is_axis = word is not None and word[1].lower() in _WORDS
    return (text[: word.start()] if word and is_axis else text).rstrip("-_ ")


def is_pattern(place: str) -> bool:
    """Return whether a path or URL has placeholders of axes, ``{z}`` for instance.

    Examples
    --------
    >>> is_pattern("exp/img_t{t}_z{z}.tif"), is_pattern("exp/{case}.nii"), is_pattern("a.tif")
    (True, False, False)
    """
    return has_fields(place) and {*_PLACEHOLDER.findall(place)} <= {*_AXES}


def has_fields(place: str) -> bool:
    """Return whether a path or URL of TIFF files has fields, also unknown ones.

    Examples
    --------
    >>> has_fields("exp/img_t{T}_p{p}.tif"), has_fields("exp/{case}.nii")
    (True, False)
    """
    return bool(_PLACEHOLDER.search(place)) and place.lower().endswith(SUFFIXES)


def files_of_pattern(
    pattern: str, options: Mapping[str, Any], *, allow_gaps: bool = False
) -> PlaneFiles:
    """Return the files that a pattern matches, with ``{t}``, ``{c}`` and ``{z}`` for numbers.

    A channel may also have a name: ``{c}`` matches ``DAPI``.

    Raises
    ------
    SampleError
        The pattern has an unknown or repeated placeholder.
    VolumeNotFound
        No file matches, or no time point has all its files.
    """
    letters = _PLACEHOLDER.findall(pattern)
    if not letters or not {*letters} <= {*_AXES} or len({*letters}) < len(letters):
        raise _wrong_fields(pattern, letters)
    system, _, matches = Globs(options).match(_PLACEHOLDER.sub("*", pattern))
    regex, by_value = _regex(pattern), dict[tuple[Coordinate, ...], str]()
    axes = tuple(axis for axis in _AXES if axis in letters)
    for match, is_folder in matches.items():
        place = system.unstrip_protocol(match) if is_url(pattern) else match
        parts = None if is_folder else regex.search(place.replace(os.sep, "/"))
        if parts is not None:
            texts = parts.group(*axes) if len(axes) > 1 else [parts[axes[0]]]
            values = tuple(int(text) if text.isdecimal() else text for text in texts)
            if values in by_value:
                raise _two_of_one(by_value[values], place)
            by_value[values] = place
    if not by_value:
        msg = f"no file matches {public_name(pattern)}."
        raise VolumeNotFound(msg, do="Check the folder, and write {t}, {c}, {z} for numbers.")
    return _in_order(axes, by_value, public_name(pattern), allow_gaps=allow_gaps)


def _wrong_fields(pattern: str, letters: Sequence[str]) -> SampleError:
    """Return the error of a pattern with unknown, repeated or no placeholders."""
    usual, unknown = few_names(f"{{{axis}}}" for axis in _AXES), sorted({*letters} - {*_AXES})
    fields = few_names(f"{{{letter}}}" for letter in unknown or letters) or "no field"
    do = f"Write each of {usual} at most once, and one of them."
    if unknown:
        do = f"Write the number in place of {{{unknown[0]}}}; each position is a volume of its own."
    if lower := [letter for letter in unknown if letter.lower() in _AXES]:
        do = f"Write {{{lower[0].lower()}}} for {{{lower[0]}}}."
    msg = f"the pattern {public_name(pattern)} has {fields}, and the known fields are {usual}"
    return SampleError(msg, do=do)


def _regex(pattern: str) -> re.Pattern[str]:
    """Return an expression for the last parts of a path, after the folder without placeholders."""
    parts = pattern.replace(os.sep, "/").split("/")
    first = next(n for n, part in enumerate(parts) if _PLACEHOLDER.search(part))
    text = "/".join(parts[first:])
    pieces, end = ["(?:^|/)"], 0
    for match in _PLACEHOLDER.finditer(text):
        pieces.append(re.escape(text[end : match.start()]))
        pieces.append(f"(?P<{match[1]}>{'[^/]+?' if match[1] == 'c' else '[0-9]+'})")
        end = match.end()
    return re.compile("".join([*pieces, re.escape(text[end:]), "$"]))


def files_of_folder(folder: str, name: str, *, allow_gaps: bool = False) -> PlaneFiles:
    """Return the planes of a local folder: all TIFF files, by the one number that differs.

    Raises
    ------
    UnknownFormat
        The names differ in several numbers, or in something else.
    VolumeNotFound
        Numbers are missing.
    """
    every = (name for name in os.listdir(folder) if not name.startswith("."))
    names = sorted((n for n in every if n.lower().endswith(SUFFIXES)), key=natural_key)
    split = [_NUMBER.split(each) for each in names]
    texts = {tuple(parts[::2]) for parts in split}
    if len(texts) > 1:
        usual = max(texts, key=[tuple(parts[::2]) for parts in split].count)
        other = next(n for n, s in zip(names, split, strict=True) if tuple(s[::2]) != usual)
        like = next(n for n, s in zip(names, split, strict=True) if tuple(s[::2]) == usual)
        msg = f"{name} holds {like} and {other}, whose names differ in more than numbers."
        do = "Name the planes by ⟦pattern='z{z}.tif'⟧, or move the other files."
        if by_words := _suggestion_of_words(names, split):
            do = f"If the words are channels, pass ⟦pattern={by_words!r}⟧. Or move the others."
        raise UnknownFormat(msg, do=f"{do} One file of several planes is opened by its own path.")
    columns = list(zip(*(parts[1::2] for parts in split), strict=True))
    varying = [n for n, column in enumerate(columns) if len(set(map(int, column))) > 1]
    if len(varying) > 1:
        msg = f"the names in {name} differ in {len(varying)} numbers, from {names[0]} to "
        pattern = _suggestion(split[0], varying)
        do = f"Say which is which: ⟦pattern={pattern!r}⟧; {{t}}, {{c}} and {{z}} are numbers."
        count = len(_PLACEHOLDER.findall(pattern))
        if count < len(varying):
            do += " A number that stays, such as a position, is a volume of its own."
        if not count:
            do = f"Each position is a volume of its own: open {names[0]} by its path."
        raise UnknownFormat(f"{msg}{names[-1]}.", do=do)
    if not varying and len(names) > 1:
        raise _two_of_one(names[0], names[1])
    column = columns[varying[0]] if varying else ("0",)
    by_value: dict[tuple[Coordinate, ...], str] = {}
    for number, each in zip(column, names, strict=True):
        if (int(number),) in by_value:
            raise _two_of_one(by_value[(int(number),)], each)
        by_value[(int(number),)] = os.path.join(folder, each)
    return _in_order(("z",), by_value, name, allow_gaps=allow_gaps)


def _suggestion(parts: Sequence[str], varying: Sequence[int], axes: str = _AXES) -> str:
    """Return a pattern for a name, with the axes that its words suggest."""
    pieces, free = list(parts), list(axes)
    letters: dict[int, str] = {}
    matches = {n: _WORD.search(parts[2 * n]) for n in varying}
    words = {n: match[1].lower() if match else "" for n, match in matches.items()}
    for n in sorted(varying, key=lambda n: words[n] in _POSITIONS):
        axis = _WORDS.get(words[n])
        if axis in free:
            letters[n] = axis
            free.remove(axis)
    is_said = bool(letters)  # then other words are no axes
    for n in reversed(varying):
        is_other = words[n] in _POSITIONS or (is_said and bool(words[n]))
        if n not in letters and free and not is_other:
            letters[n] = free.pop()
    for n, axis in letters.items():
        pieces[2 * n + 1] = f"{{{axis}}}"
    return "".join(pieces)


def _suggestion_of_words(names: Sequence[str], split: Sequence[Sequence[str]]) -> str:
    """Return a pattern for names that differ in one word and in numbers; empty for others."""
    texts = list(zip(*(parts[::2] for parts in split), strict=False))
    if len({*map(len, split)}) > 1:
        return ""
    apart = [n for n, column in enumerate(texts) if len({*column}) > 1]
    words = [[*map(_WORD_PARTS.split, column)] for column in (texts[n] for n in apart)]
    if len(apart) != 1 or len({*map(len, words[0])}) > 1:
        return ""
    columns = [n for n, column in enumerate(zip(*words[0], strict=True)) if len({*column}) > 1]
    if len(columns) != 1 or len({parts[columns[0]] for parts in words[0]}) == len(names):
        return ""
    parts, first = [*split[0]], [*words[0][0]]
    first[columns[0]] = "{c}"
    parts[2 * apart[0]] = "".join(first)
    numbers = zip(*(one[1::2] for one in split), strict=True)
    varying = [n for n, column in enumerate(numbers) if len({*map(int, column)}) > 1]
    return _suggestion(parts, varying, "tz")


def _in_order(
    axes: tuple[str, ...],
    by_value: Mapping[tuple[Coordinate, ...], str],
    name: str,
    *,
    allow_gaps: bool,
) -> PlaneFiles:
    """Return files in C order of their axes; ``VolumeNotFound`` for gaps of all time points."""
    columns = list(zip(*by_value, strict=True))
    values = [tuple(sorted({*column}, key=lambda v: natural_key(str(v)))) for column in columns]
    do = "Copy the missing files, or pass ⟦allow_gaps=True⟧ to close the gaps."
    for place, (axis, row) in enumerate(zip(axes, values, strict=True)):
        numbers = [value for value in row if isinstance(value, int)]
        if len(numbers) < len(row) or allow_gaps:  # channels with names
            continue
        gaps = sorted({*range(numbers[0], numbers[-1])} - {*numbers})
        if axis == "t" and len(gaps) < len(numbers):
            values[place] = tuple(range(numbers[0], numbers[-1] + 1))
        elif gaps:
            few = few_names(map(str, gaps), _MOST_NAMES)
            msg = f"{name} has {len(numbers)} numbers of {axis} from {numbers[0]} to {numbers[-1]}"
            raise VolumeNotFound(f"{msg}; missing: {few}.", do=do)
    every = itertools.product(*values)
    files = PlaneFiles(axes, tuple(values), tuple(by_value.get(key, "") for key in every))
    if "t" not in axes or len(files.gaps) == len(values[0]):
        files.at_time(None, name)
    return files


def _key_text(axes: Sequence[str], key: Sequence[tuple[int, Coordinate]]) -> str:
    """Return times and channels as arguments count them, and planes by the numbers of files."""
    parts = [
        f"{axis}={value if axis == 'z' or isinstance(value, str) else _both(place, value)}"
        for axis, (place, value) in zip(axes, key, strict=True)
    ]
    return " ".join(parts)


def _both(place: int, value: Coordinate) -> str:
    return str(place) if place == value else f"{place} (file number {value})"


def _two_of_one(first: str, second: str) -> UnknownFormat:
    msg = f"{public_name(first)} and {public_name(second)} have the same numbers."
    return UnknownFormat(msg, do="Move one of them, or name the planes by ⟦pattern='z{z}.tif'⟧.")


def read_planes(
    files: Sequence[StoredFile], name: str
) -> tuple[TiffImage, list[NDArray[np.int64]], list[Callable[..., Any]]]:
    """Return the image of the first file, and the places and the decoder of each file.

    ``UnknownFormat`` names a file of another shape or kind than the first.
    """
    tifffile = import_package("tifffile", name)
    first: TiffImage | None = None
    kind: dict[str, Any] = {}
    places, decoders = list[NDArray[np.int64]](), list[Callable[..., Any]]()
    for file in files:
        with file.open() as stream, library_errors(f"the tags of {file.name} make no sense"):
            tiff = tifffile.TiffFile(stream, name=posixpath.basename(file.name))
            with tiff, raise_complaints(file.name):
                image = read_tiff(tiff, 0, None, file.name)
                frame = tiff.series[0].keyframe
                own = kind_of(frame) | {"axes": image.axes, "shape": image.shape}
                has_tables = getattr(frame, "jpegtables", None) is not None
        if len(image.files) > 1:
            msg = f"{file.name} is a part of an OME-TIFF of {len(image.files)} files."
            raise UnknownFormat(msg, do=f"Open {file.name} alone: it finds the others.")
        if first is None:
            first, kind = image, own
        for key, value in own.items():
            if value != kind[key]:
                msg = f"{file.name} differs from {files[0].name} in {key}: {value}, not {kind[key]}"
                do = "Write all planes alike, or move this file out of the sequence."
                raise UnknownFormat(f"{msg}.", do=do)
        places.append(image.places)
        decoders.append(image.decode_segment if has_tables else first.decode_segment)
        if image.whole is None:
            first = replace(first, whole=None)
    assert first is not None
    return first, places, decoders


@dataclass(frozen=True)
class PatternVersion:
    """The files that a pattern matched when a volume was opened."""

    look: Callable[..., PlaneFiles]
    """Returns the files that it matches now."""
    places: tuple[str, ...]

    @property
    def is_current(self) -> bool:
        """Whether the pattern matches the same files."""
        try:
            return self.look(allow_gaps=True).existing == self.places
        except VoxpipeError:
            return False


def open_sequence(
    request: BackendRequest,
    name: str,
    pattern: str | None = None,
    time: Any = None,
    allow_gaps: bool = False,
    axes: Any = None,
) -> Backend:
    """Return the backend of the planes of a folder, or of the files of a pattern."""
    whole = planes_of(request, name, pattern, allow_gaps=allow_gaps)
    # Without {t} each file may hold all time points of its channel.
    in_files = time is not None and "t" not in whole.axes
    files, places = whole.at_time(None if in_files else time, name), whole.existing
    counts = dict(zip(files.axes, map(len, files.values), strict=True))
    every = [_file_at(place, request) for place in files.places]
    image, segments, decoders = read_planes(every, name)
    warn_of_colours(image, name, "Write a stack by tifffile with photometric='minisblack'.")
    if axes is not None:
        image = _with_axes(axes, image, whole, name)
    lead = tuple(map(len, files.values))
    letters = (*files.axes, *image.axes)
    if len({*letters}) < len(letters):
        twice = next(axis for axis in files.axes if axis in image.axes)
        msg = f"each file of {name} has several planes along {twice}: shape {image.shape}, axes "
        do = f"Open one file by its path, or leave {{{twice}}} out of the pattern."
        if pattern is None and not is_pattern(name):
            do = "Open one file by its path, '*.tif' for one case a file, or pass ⟦pattern=⟧."
        raise UnknownFormat(f"{msg}{', '.join(image.axes)}.", do=do)
    if image.affine != IDENTITY and counts.get("z", 1) > 1:
        msg = f"unknown-z: the planes of {name} have a width and a height, and no distance along z"
        do = "Pass ⟦affine=numpy.diag([x, y, z, 1])⟧, with the voxel size in millimetres."
        warn(f"{msg}, which is read as 1 mm. {do}", LikelyMistake)
    layout = named_layout(lead + image.shape, letters, name, files.channel_names)
    backend = _backend(every, image, segments, decoders, lead, letters, layout, name)
    if request.path is not None and os.path.isdir(request.path):
        backend.folder = FolderVersion(os.fspath(request.path))
    elif request.path is not None:
        backend.folder = PatternVersion(partial(planes_of, request, name, pattern), places)
    return at_time(backend, time, name) if in_files else backend


def _with_axes(axes: Any, image: TiffImage, files: PlaneFiles, name: str) -> TiffImage:
    """Return the image of one file with the axes that ``axes=`` gives it, after those of files."""
    count = len(files.axes)
    letters = check_axes(axes, (*map(len, files.values), *image.shape), name)
    if tuple(letters[:count]) != files.axes:
        msg = f"axes={axes!r} was given for {name}, whose files lie along {', '.join(files.axes)}"
        do = "If their numbers count something else, write a pattern, ⟦pattern='f{t}.tif'⟧."
        raise SampleError(msg, do=do)
    refuse_other_axes(letters[count:], image.file_axes, image.shape, name)
    return replace(image, axes=tuple(letters[count:]))


def _backend(
    files: Sequence[StoredFile],
    image: TiffImage,
    places: Sequence[NDArray[np.int64]],
    decoders: Sequence[Callable[..., Any]],
    lead: tuple[int, ...],
    letters: tuple[str, ...],
    layout: Layout,
    name: str,
) -> SplitRaw | ChunkedBackend:
    shape = lead + image.shape
    IO_COUNTERS.count(headers=1)
    if image.whole is not None:
        starts = [int(rows[0, 1]) for rows in places]
        fields = RawHeader(layout, image.dtype, starts[0], image.affine)
        return SplitRaw(fields, files, name, lead=len(lead), counts=[1] * len(files), starts=starts)
    chunks, per_file = (1,) * len(lead) + image.chunks, len(places[0])
    table = np.concatenate(places)
    table[:, 0] = np.repeat(np.arange(len(files)), per_file)
    store, keys = common_store(files)

    def decode_segment(data: memoryview, number: int) -> NDArray[Any]:
        file, segment = divmod(number, per_file)
        return np.asarray(decoders[file](data, segment))

    own: dict[str, Any] = {"shape": shape, "chunks": chunks, "axes": letters, "places": table}
    whole = replace(image, **own, files=tuple(keys), decode_segment=decode_segment)
    header = chunked_header(layout, chunks, image.dtype, name, image.affine)
    token = content_key(joined_key([one.cache_key for one in files]), ("sequence", lead))
    size = math.prod(chunks) * image.dtype.itemsize
    source = RangedChunks(store, whole, whole, token, size, name)
    form, cache = (shape, chunks, image.dtype), opening_session().chunks
    array = ChunkedArray(*form, image.fill_value, source=source, cache=cache, token=token)
    return ChunkedBackend(array, layout, files, header, name)


def planes_of(
    request: BackendRequest, name: str, pattern: str | None = None, *, allow_gaps: bool = False
) -> PlaneFiles:
    """Return the files of a request: of a pattern, or the planes of a folder."""
    place = os.fspath(request.path) if request.path else request.uri or ""
    if pattern is not None:
        if not isinstance(pattern, str):
            raise SampleError(f"pattern= of {name} is {pattern!r}", do=f"Write {_PATTERN}.")
        place = posixpath.join(place, pattern)
    elif not has_fields(place):
        return files_of_folder(place, name, allow_gaps=allow_gaps)
    return files_of_pattern(place, request.storage_options, allow_gaps=allow_gaps)


def _file_at(place: str, request: BackendRequest) -> StoredFile:
    if is_url(place):
        return RemoteStoredFile(place, request.storage_options)
    return LocalStoredFile(place, "", request.io, request.follow)


def _is_pattern(request: BackendRequest) -> bool:
    """Whether a request names the files of a sequence by a pattern."""
    place = os.fspath(request.path) if request.path else request.uri or ""
    pattern = request.reader_kwargs.get("pattern")
    if isinstance(pattern, str):
        return pattern.lower().endswith(SUFFIXES)
    return has_fields(place) and (request.path is None or not os.path.exists(place))


def _is_folder(request: BackendRequest) -> bool:
    """Whether a request names a local folder that the user gave and that holds TIFF files.

    A search for cases also asks for folders, without their source. Each TIFF there is a case.
    """
    if request.source is None or request.path is None or not os.path.isdir(request.path):
        return False
    with os.scandir(request.path) as entries:
        names = (entry.name for entry in itertools.islice(entries, _LOOKED_AT))
        return any(n.lower().endswith(SUFFIXES) and not n.startswith(".") for n in names)


_HOW = (open_sequence, ("pattern", "time", "allow_gaps", "axes"), "tifffile")
FORMATS = (
    # Before the format of one TIFF, whose suffix a pattern has too.
    Format("tiff-sequence", (), *_HOW, matches=_is_pattern, rank=-1),
    # After DICOM, whose folders may hold a picture.
    Format("tiff-folder", (), *_HOW, matches=_is_folder, rank=2),
)
