"""TIFF, OME-TIFF and ImageJ stacks: by strip or tile, or mapped where nothing is compressed.

tifffile reads the tags; every later read goes by the table of offsets that is made then.
"""

from __future__ import annotations

import logging
import math
import os
import re
import reprlib
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS
from ...core.call_site import shorten, warn
from ...core.errors import (
    BadHeader,
    LikelyMistake,
    UnknownFormat,
    VolumeNotFound,
    VoxpipeError,
)
from ...core.locks import ForkSafeLock
from ...core.lru_cache import cached_property
from ...core.native_library import free_of_lock
from ...core.validate import unit_word
from ...storage.content import content_key
from ...storage.ranges import ObjectRanges, check_document
from ...volumes.backend import Backend
from ...volumes.chunks.chunked_array import ChunkedArray, ChunkIndices, ChunkMap, Index
from ...volumes.chunks.ranged_chunks import RangedChunks
from ...volumes.formats.chunked_backend import (
    NO_LENGTHS,
    ChunkedBackend,
    check_axes,
    check_number,
    chunked_header,
    factors_in,
    named_layout,
    refuse_conventions,
    refuse_other_axes,
    warn_of_coordinates,
)
from ...volumes.formats.raw import RawHeader, open_raw
from ...volumes.formats.stored_file import (
    Format,
    LocalStoredFile,
    StoredFile,
    import_package,
    joined_key,
    library_errors,
)
from ...volumes.header import IDENTITY, affine_entries, stored_affine
from ...volumes.session import opening_session
from .tiff_metadata import (
    MAY_MISS_PLANES,
    PLAIN,
    MissingPlanes,
    facts_of,
    named_files,
    unread_sizes,
    warn_of_colours,
)

# tifffile's letters for a sequence of pages that nothing is said about: a stack.
_STACKS = ("i", "q")


@dataclass(frozen=True, eq=False)
class TiffImage(ChunkMap):
    """One level of one series of a TIFF: places and contents of its segments."""

    shape: tuple[int, ...]  # per stored axis: those between pages first, then those of a page
    chunks: tuple[int, ...]  # of one segment: a strip or a part of it, a tile, or a page
    axes: tuple[str, ...]  # names, lower case; x, y, z are spatial
    dtype: np.dtype[Any]  # as stored, byte order included
    fill_value: Any  # of segments that are not stored
    affine: tuple[float, ...]  # index (x, y, z) to millimetres
    files: tuple[str, ...]  # names, all in one folder
    # (segments, 3): number of the file, offset, bytes; 0 bytes for one that is not stored.
    places: NDArray[np.int64]
    decode_segment: Callable[[memoryview, int], NDArray[Any]]  # of a segment, and its number
    whole: int | None  # offset of all voxels if they are contiguous, bare and in C order
    labels: tuple[str, ...] = ()  # names of channels in OME-XML.
    time_step: tuple[float, str] = (1.0, "")  # Between time points, and its unit.
    is_guess: bool = False  # Planes that may be a stack, with the tags of colours.
    file_axes: tuple[str, ...] = ()  # Names of axes in metadata, which ``axes=`` may not contradict
    missing: MissingPlanes | None = None  # Planes that are in no file.

    @cached_property
    def _grid(self) -> tuple[int, ...]:
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))

    def locate(self, chunks: ChunkIndices) -> ObjectRanges:
        """Return the place of each segment; one of no bytes is not stored."""
        rows = np.ravel_multi_index(tuple(np.array(chunks).T), self._grid)
        file, start, length = self.places[rows].T
        return ObjectRanges(self.files, np.where(length, file, -1), start, start + length)

    def decode(self, data: memoryview, out: NDArray[Any], index: Index) -> None:
        """Decode one segment."""
        number = int(np.ravel_multi_index(index, self._grid))
        out[...] = self.decode_segment(data, number).reshape(self.chunks)


# Attributes of a page that define the meaning of its bytes.
_KIND = "shape dtype chunks bitspersample sampleformat compression predictor fillorder photometric"
_KIND += " planarconfig extrasamples subsampling"
_ORIENTATION, _PALETTE, _RESOLUTION_UNIT = 274, 320, 296
_GDAL_TAGS = (42112, 42113)  # metadata, and the number of missing voxels
_GDAL_NEUTRAL = {"scale": 1.0, "offset": 0.0}  # roles of its items that change the values
_IMAGEJ_NEUTRAL = {"cf": 0.0, "c0": 0.0, "c1": 1.0}  # a straight line
_NO_CALIBRATION = 20  # ImageJ's function of values without a calibration
_SHORT = reprlib.Repr()  # a palette has 768 numbers

# Tags of each page alone: places of its segments, and texts. Most pages share all other tags.
_OWN_TAGS = (270, 273, 279, 285, 297, 305, 306, 324, 325)
_MOST_TAGS = 4096  # of a page, as in tifffile
# Kinds of series of which tifffile parses only the first page if the voxels are contiguous.
_CHAINS = ("imagej", "shaped")


def kind_of(page: Any) -> dict[str, Any]:
    """Return the attributes that define the meaning of a page's bytes, by name."""
    kind = {name: getattr(page, name) for name in _KIND.split()}
    kind["orientation"] = page.tags.valueof(_ORIENTATION, 1)
    palette = page.tags.valueof(_PALETTE)
    kind["palette"] = None if palette is None else tuple(np.ravel(palette).tolist())
    return kind | {"byte order": page.parent.byteorder}


def _stored_tags(parent: Any, offset: int) -> tuple[bytes, int]:
    """Return the tags of a page as they are stored, without its own, and the next page's offset."""
    handle, form = parent.filehandle, parent.tiff
    handle.seek(offset)
    (count,) = struct.unpack(form.tagnoformat, handle.read(form.tagnosize))
    if count > _MOST_TAGS:
        raise ValueError(f"{count} tags of the page at {offset}")
    end = count * form.tagsize
    data = handle.read(end + form.offsetsize)
    (onward,) = struct.unpack(form.offsetformat, data[end:])
    tags = (data[at : at + form.tagsize] for at in range(0, end, form.tagsize))
    own = {struct.pack(f"{form.byteorder}H", tag) for tag in _OWN_TAGS}
    return b"".join(tag for tag in tags if tag[:2] not in own), onward


def _tags_of_pages(pages: Any, first: Any) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number of each page but the first, and its stored tags if they say all of it."""
    if getattr(pages, "kind", "") in _CHAINS and pages.dataoffset is not None:
        offset, offsets = first.offset, set[int]()
        for number in range(len(pages)):
            if not offset:  # one page describes all voxels
                return
            if offset in offsets:
                raise ValueError(f"the chain of pages is circular at {offset}")
            offsets.add(offset)
            tags, offset = _stored_tags(first.parent, offset)
            if number:
                yield number, tags
        return
    for number, page in enumerate(pages):
        if page is None or page is first or not page.offset:  # of no tags of its own
            continue
        # Long values are stored elsewhere: equal offsets mean equal values in one file only.
        is_here = page.parent is first.parent and not page.parent.filehandle.closed
        yield number, _stored_tags(page.parent, page.offset)[0] if is_here else None


def _refuse_other_kinds(pages: Any, first: Any, name: str) -> None:
    # tifffile takes the tags of the first page for those of all. Parsing those of 3,000 pages takes
    # ten times as long as the rest of opening: equal bytes are parsed once.
    kind_of_first, equal = kind_of(first), set[bytes | None]()
    gdal: dict[Any, None] = {tuple(map(first.tags.valueof, _GDAL_TAGS)): None}
    if kind_of_first["orientation"] != 1:
        what = f"{name} says that its pages are turned: orientation {kind_of_first['orientation']}."
        raise UnknownFormat(what, do="Write it with orientation 1, or pass reader=.")
    for number, tags in _tags_of_pages(pages, first):
        if tags is not None and tags in equal:
            continue
        equal.add(tags)
        page = pages[number]
        handle = page.parent.filehandle
        is_closed = handle.closed
        if is_closed:  # of another file of an OME-TIFF
            handle.open()
        with closing(handle) if is_closed else nullcontext():
            page = page.aspage()
            kind = kind_of(page)
            gdal[tuple(map(page.tags.valueof, _GDAL_TAGS))] = None
        for key, value in kind.items():
            if value != kind_of_first[key]:
                one, two = (_SHORT.repr(getattr(v, "name", v)) for v in (value, kind_of_first[key]))
                what = f"page {page.index} of {name} differs from page {first.index} in {key}"
                do = "Write all pages alike. Where they are several images, give ⟦series=⟧."
                raise UnknownFormat(f"{what}: {one}, not {two}.", do=do)
    for text, missing in gdal:
        if missing is not None:  # which is a warning
            refuse_conventions({"GDAL_NODATA": missing}, name)
        for item in ElementTree.fromstring(text).iter("Item") if text else ():
            refuse_conventions({str(item.get("role")): item.text}, name, _GDAL_NEUTRAL)


def _series_number(all_series: Sequence[Any], series: int | None, name: str) -> int:
    """Return the number of a series: the first, unless others may be parts of the same volume."""
    first: Any = all_series[0]
    others = [one for one in all_series[1:] if series is None and not one.keyframe.is_reduced]
    for other in others:
        if first.kind == other.kind == "generic" and first.keyframe.shape == other.keyframe.shape:
            _refuse_other_kinds([other.keyframe], first.keyframe, name)
    is_one_of_alike = any((first.shape, first.dtype) == (one.shape, one.dtype) for one in others)
    if is_one_of_alike or (others and first.kind in PLAIN):
        # A writer that is called for each page makes an image of each.
        shapes = Counter(f"{'x'.join(map(str, one.shape))} {one.dtype}" for one in all_series)
        counts = ", ".join(f"{count} of {form}" for form, count in [*shapes.items()][:4])
        do = "Give ⟦series=N⟧ for one of them, or write the stack as one image, in one call."
        raise UnknownFormat(f"{name} holds {len(all_series)} images: {counts}.", do=do)
    check_number(series or 0, len(all_series), "series", name)
    return series or 0


def read_tiff(file: Any, level: int, series: int | None, name: str) -> TiffImage:
    """Return one level of one series of an open TIFF."""
    series = _series_number(file.series, series, name)
    pyramid = file.series[series]
    check_number(level, len(pyramid.levels), "level", name)
    image = pyramid.levels[level]
    frame = image.keyframe
    if frame.dtype is None or not frame.shape:
        raise UnknownFormat(f"the pages of {name} hold no plain numbers.", do="Convert them.")
    between, inside = _axes_of(image, tuple(frame.shape), name)
    lead = tuple(length for _, length in between)
    axes = _name_axes(tuple(axis for axis, _ in between + inside))
    pages = math.prod(lead)
    _refuse_other_kinds(image, frame, name)
    if (imagej := file.imagej_metadata or {}).get("cf") != _NO_CALIBRATION:
        refuse_conventions(imagej, name, _IMAGEJ_NEUTRAL)
    dtype = np.dtype(frame.dtype.str).newbyteorder(file.byteorder)
    files: tuple[str, ...] = (file.filename,)
    # An OME-TIFF may say that all of its planes are in another file.
    is_here = frame.parent.filehandle.path == file.filehandle.path
    contiguous = is_here and image.dataoffset is not None and frame.is_memmappable
    # One page may describe all voxels. tifffile leaves out pages that ImageJ's sizes do not count.
    length = len(file.pages if image.kind == "imagej" else image)
    if length != pages and not (contiguous and length == 1):
        msg = f"{length} pages of {name} do not form {between}."
        raise UnknownFormat(msg, do="Convert the file to OME-TIFF or zarr.")
    if image.kind == "ome":
        _refuse_unused_pages(file, frame, name)
    if contiguous:
        inner, whole = tuple(frame.shape), image.dataoffset
        starts = whole + np.arange(pages, dtype=np.int64) * frame.nbytes
        places = np.stack([starts * 0, starts, starts * 0 + frame.nbytes], axis=1)

        def decode_segment(data: memoryview, number: int) -> NDArray[Any]:
            return np.frombuffer(data, dtype)

    else:
        inner, depth = _segment_shape(frame), 1 if frame.imagedepth == 1 else None
        per_page, whole = math.prod(frame.chunked), None
        # Each segment has an offset in the tags.
        if per_page > file.filehandle.size:
            raise BadHeader(f"{name} says that a page has {per_page} segments.")
        # Padded to the whole segment, the last strip too. Each page may have its own tables.
        options: dict[str, Any] = {"_fullsize": True}
        if frame.jpegheader is not None:
            options["jpegheader"] = frame.jpegheader
        tables = [getattr(page, "jpegtables", None) for page in image]
        decode = free_of_lock(frame.decode)  # made once; it does not look at the file again

        def decode_segment(data: memoryview, number: int) -> NDArray[Any]:
            page, number = divmod(number, per_page)
            own = options if tables[page] is None else options | {"jpegtables": tables[page]}
            return np.asarray(decode(bytes(data), number, **own)[0])[:depth]

        files, places = _segments(image, per_page, file.filehandle)
    shape, chunks = lead + tuple(frame.shape), (1,) * len(lead) + inner
    affine = stored_affine(_affine, file, series, pyramid, image, name)
    form = shape, chunks, axes, dtype, frame.nodata, affine
    missing = MissingPlanes.of(image, file, between)
    facts = facts_of(file, series, image, tuple(axis for axis, _ in between + inside))
    return TiffImage(*form, files, places, decode_segment, whole, *facts, missing)


def _segment_shape(frame: Any) -> tuple[int, ...]:
    # tifffile leaves out the axis of colours that are stored in separate planes. It leaves out the
    # depth of a page of one plane, and not that of its tiles, where the other planes are padding.
    chunks = tuple(frame.chunks[frame.imagedepth == 1 < frame.tiledepth :])
    return (1,) * (len(frame.shape) - len(chunks)) + chunks


def _refuse_unused_pages(file: Any, frame: Any, name: str) -> None:
    """Raise ``BadHeader`` for a page like those of an image that the OME-XML does not name."""
    pages = (page for series in file.series for page in series if page is not None)
    numbers = {page.index for page in pages if page.parent is file}
    for number in {*range(len(file.pages))} - numbers if numbers else ():  # else in other files
        page = file.pages[number].aspage()
        if (page.shape, page.dtype) == (frame.shape, frame.dtype):
            msg = f"{name} has {len(file.pages)} pages, and its OME-XML names {len(numbers)}."
            raise BadHeader(msg, do="Write it again, with the sizes of all of its planes.")


def _axes_of(
    image: Any, form: tuple[int, ...], name: str
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the names and lengths of the axes between pages, and of those in a page."""
    # A series may name the axes of its pages anew; their lengths must be equal.
    axes = [*zip(image.get_axes(False).lower(), map(int, image.get_shape(False)), strict=True)]
    while len(axes) > len(form) and tuple(n for _, n in axes)[-len(form) :] != form:
        if axes.pop()[1] != 1:
            break
    split = len(axes) - len(form)
    if tuple(n for _, n in axes[max(split, 0) :]) != form:
        msg = f"the axes of {name}, {image.axes} of {image.shape}, do not end in a page of {form}."
        raise UnknownFormat(msg, do="Convert the file to OME-TIFF or zarr.")
    return [axis for axis in axes[:split] if axis[1] > 1], axes[split:]


def _name_axes(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes; a stack of pages without a known axis becomes z."""
    stack = next((axis for axis in axes if axis in _STACKS), None)
    return axes if "z" in axes else tuple("z" if axis == stack else axis for axis in axes)


def _segments(image: Any, per_page: int, first: Any) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the files and the place of each segment of each page; no bytes of a missing page."""
    files: dict[str, int] = {first.name: 0}
    places = np.zeros((len(image), per_page, 3), np.int64)
    for n, page in enumerate(image):
        if page is None:
            continue
        other = page.parent.filehandle
        # Those of folders below by their way there.
        is_beside = other.dirname == first.dirname
        place = other.name if is_beside else os.path.relpath(other.path, first.dirname)
        number = files.setdefault(place, len(files))
        offsets, counts = page.dataoffsets[:per_page], page.databytecounts[:per_page]
        places[n, : len(offsets), 0] = number
        places[n, : len(offsets), 1] = offsets
        places[n, : len(counts), 2] = counts
    return tuple(files), places.reshape(-1, 3)


def _spatial_shape(image: Any) -> tuple[int, int, int]:
    lengths = dict(zip(image.get_axes(False).lower(), image.get_shape(False), strict=True))
    x, y, z = (int(lengths.get(axis, 1)) for axis in "xyz")
    return x, y, z


def _affine(file: Any, series: int, pyramid: Any, image: Any, name: str) -> tuple[float, ...]:
    """Return the affine of a level of a pyramid: voxels of all levels cover the same place."""
    finest, shape = _spatial_shape(pyramid), _spatial_shape(image)
    spacing = _spacing(file, series, finest, name)
    if spacing is None:
        warn_of_coordinates(unread_sizes(file, series), name, "resolutions in")
    if spacing is None and finest == shape:
        return IDENTITY
    steps, spaces = np.divide(finest, shape), np.array(spacing or (1.0, 1.0, 1.0))
    matrix = np.diag([*(spaces * steps), 1.0])
    matrix[:3, 3] = spaces * (steps - 1) / 2
    return affine_entries(matrix, name)


_AFFINE = "Pass ⟦affine=numpy.diag([x, y, z, 1])⟧, with the voxel size in millimetres."


def _spacing(
    file: Any, series: int, finest: tuple[int, ...], name: str
) -> tuple[float, float, float] | None:
    """Return millimetres between voxels along x, y, z; None where the file does not say."""
    try:
        if file.ome_metadata:
            return _ome_spacing(file.ome_metadata, series, len(file.series), finest, name)
        if file.imagej_metadata:
            return _imagej_spacing(file.imagej_metadata, file.pages[0], name)
    except BadHeader:
        raise
    except (ElementTree.ParseError, ValueError, TypeError, ZeroDivisionError) as error:
        raise BadHeader(f"the spacing in {name} makes no sense: {error}.", do=_AFFINE) from error
    return None


def _ome_spacing(
    text: str, series: int, images: int, finest: tuple[int, ...], name: str
) -> tuple[float, float, float] | None:
    """Return the spacing of OME-XML; its images are the series of the file, in order."""
    root = ElementTree.fromstring(text)
    for node in root.iter():
        if node.tag.endswith("BinaryOnly"):
            main = shorten(node.get("MetadataFile"))
            msg = f"{name} is a part of an OME-TIFF, and its metadata are in {main}."
            do = f"Open {main} if it is a TIFF, or pass ⟦affine=⟧ to read this part alone."
            raise BadHeader(msg, do=do)
    # tifffile makes no series of an image without planes.
    pixels = [node for node in root.iter() if node.tag.endswith("Pixels")]
    pixels = [node for node in pixels if any(one.tag.endswith("TiffData") for one in node)]
    if len(pixels) != images:
        msg = f"the OME-XML of {name} describes {len(pixels)} images, and the file has {images}."
        raise BadHeader(msg, do=_AFFINE)
    attributes = pixels[series].attrib
    for axis, length in zip("XYZ", finest, strict=True):
        size = int(attributes.get(f"Size{axis}", length))
        # Planes of several angles, for instance, count to z.
        if size % length if axis == "Z" else size != length:
            msg = f"image {series} in the OME-XML of {name} has Size{axis} {size}, not {length}."
            raise BadHeader(msg, do=_AFFINE)
    sizes = {a: n for a in "XYZ" if (n := attributes.get(f"PhysicalSize{a}")) is not None}
    if not sizes:
        return None
    units = {a: attributes.get(f"PhysicalSize{a}Unit", "µm") or "pixel" for a in sizes}
    factors = factors_in(units, name)
    lengths = {a: factors[a] * _positive(size) for a, size in sizes.items()}
    silent = [a for a in "XYZ" if a not in sizes and attributes.get(f"Size{a}", "1") != "1"]
    silent_units = [a for a, unit in units.items() if unit_word(unit) in NO_LENGTHS]
    no_lengths = [units[a] for a in silent_units if lengths[a] != 1]
    if silent or no_lengths:
        what = f"gives sizes in {no_lengths[0]!r}" if no_lengths else "has PhysicalSize"
        what += "" if no_lengths else f"{', '.join(sizes)} and no PhysicalSize{', '.join(silent)}"
        how = "no unit of length, so sizes are in pixels" if no_lengths else "read as 1 millimetre"
        warn(f"unknown-unit: {name} {what}, which is {how}. {_AFFINE}", LikelyMistake)
    x, y, z = (lengths.get(axis, 1.0) for axis in "XYZ")
    return x, y, z


def _imagej_spacing(metadata: dict[str, Any], page: Any, name: str) -> tuple[float, float, float]:
    """Return ImageJ's spacing: pixels per unit in the tags, the unit and z in its text."""
    # Without a unit the ratio of lengths is known.
    in_tag = {2: "inch", 3: "cm"}.get(page.tags.valueof(_RESOLUTION_UNIT), "")
    words = {a: metadata.get(f"{a}unit", metadata.get("unit", in_tag)) for a in "xyz"}
    sizes = factors_in({a: str(word) or "pixel" for a, word in words.items()}, name)
    in_text = {*map(unit_word, map(str, words.values()))}
    if in_tag and in_text != {in_tag} and not in_text.issubset(NO_LENGTHS):
        msg = f"two-spacings: {name} has the unit {words['x']!r} in its text and {in_tag} in its"
        warn(f"{msg} tag ResolutionUnit; the text is used, as by ImageJ. {_AFFINE}", LikelyMistake)
    for axis, tag in ("x", "XResolution"), ("y", "YResolution"):
        if tag in page.tags:
            pixels, length = page.tags[tag].value
            sizes[axis] /= _positive(pixels / length)
    x, y, z = sizes["x"], sizes["y"], sizes["z"] * _positive(metadata.get("spacing", 1.0))
    if in_text.issubset(NO_LENGTHS) and (x, y, z) != (1.0, 1.0, 1.0):
        msg = f"unknown-unit: {name} gives voxels of {x:.4g} x {y:.4g} x {z:.4g} without a unit of"
        warn(f"{msg} length, so sizes are in pixels. {_AFFINE}", LikelyMistake)
    return x, y, z


def _positive(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{value!r} is no length")
    return number


# Complaints that change the voxels: the chain of pages, their series, and tags of the layout.
# Broken private tags of microscopes do not.
_LAYOUT_TAGS = "25[6-9]|26[26]|27[03789]|284|317|32[02-5]|33[089]|347"
_SERIOUS = re.compile(
    rf"page offset|offset to page|tag list|series|circular|TiffTag ({_LAYOUT_TAGS})\b"
)
_LOGGER = "tifffile"
# Without a handler of the user, Python would print its records to the terminal.
logging.getLogger(_LOGGER).addHandler(logging.NullHandler())
_LEVELS = ForkSafeLock()


@contextmanager
def raise_complaints(name: str) -> Iterator[None]:
    """Raise tifffile's logged errors on the layout of a file, in this thread, as ``BadHeader``."""
    # Other messages are logged as usual. Its errors omit the cause, which such a message has.
    logger, thread, messages = logging.getLogger(_LOGGER), threading.get_ident(), list[str]()

    def listen(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if record.levelno >= logging.ERROR and record.thread == thread and _SERIOUS.search(message):
            messages.append(message)
        return True

    with _LEVELS:
        before = logger.level
        # The user may have silenced it.
        if not logger.isEnabledFor(logging.ERROR):
            logger.setLevel(logging.ERROR)
        logger.addFilter(listen)
        try:
            yield
        except Exception as error:
            if isinstance(error, VoxpipeError) or not messages:
                raise
        finally:
            logger.removeFilter(listen)
            logger.setLevel(before)
    if messages:
        raise BadHeader(f"the tags of {name} make no sense: {messages[0]}.")


# Tags of four million segments, or OME-XML of a hundred thousand planes.
_MOST_TAG_BYTES = 64 * 1024**2


def open_tiff(
    file: StoredFile, level: int = 0, series: int | None = None, axes: Any = None
) -> Backend:
    """Return the backend of a TIFF: of bare voxels on a local disk as raw, else by segments."""
    name, is_local = file.name, isinstance(file, LocalStoredFile)
    tifffile = import_package("tifffile", name)
    with file.open() as stream, library_errors(f"the tags of {name} make no sense"):
        # By its path, so that the other files of an OME-TIFF are found in its folder.
        source: Any = file.path if isinstance(file, LocalStoredFile) else _Tags(stream, name)
        base = name.rpartition("/")[2]
        with raise_complaints(name), tifffile.TiffFile(source, name=base) as tiff:
            # A missing file is reported with its missing planes.
            for reference in named_files(tiff) if is_local else ():
                with suppress(VolumeNotFound):
                    file.beside(reference)
            image = read_tiff(tiff, level, series, name)
        if image.missing is not None and not MAY_MISS_PLANES.get():
            raise image.missing.error(name)
        if not is_local:  # a store of one object, whose name is empty
            image = replace(image, files=("",) * len(image.files))
        if axes is None:
            warn_of_colours(image, name)
        names = image.axes if axes is None else check_axes(axes, image.shape, name)
        refuse_other_axes(axes, image.file_axes, image.shape, name)
        if axes is None and not {"x", "y"} <= {*names}:
            msg = f"{name} names its axes {', '.join(names)}, without x or y"
            raise BadHeader(msg, do=f'Name all {len(names)} by ⟦axes="zyx"⟧, for instance.')
        layout = named_layout(image.shape, names, name, image.labels)
        step, unit = image.time_step
        layout = replace(layout, times=layout.times.at(step, 0.0, unit))
        header = chunked_header(layout, image.chunks, image.dtype, name, image.affine)
    if is_local and image.whole is not None:
        fields = RawHeader(layout, image.dtype, image.whole, image.affine)
        return open_raw(fields, [file], name)
    IO_COUNTERS.count(headers=1)
    # Others may be rewritten alone.
    files = [file, *(file.beside(other) for other in image.files[1:])] if is_local else [file]
    token = content_key(joined_key([one.cache_key for one in files]), (level, series or 0))
    size = math.prod(image.chunks) * image.dtype.itemsize
    # Each is decoded by tifffile, all else is voxpipe's.
    source = RangedChunks(file.store, image, image, token, size, name)
    form, cache = (image.shape, image.chunks, image.dtype), opening_session().chunks
    array = ChunkedArray(*form, image.fill_value, source=source, cache=cache, token=token)
    backend = ChunkedBackend(array, layout, files, header, name)
    is_stored = bool(image.places[:, 2].any())
    backend.stores_chunks = lambda: is_stored  # type: ignore[method-assign]
    backend.missing_planes = image.missing  # type: ignore[attr-defined]
    return backend


class _Tags:
    """A file of which tags are read: none is as long as all of a file of a hostile server."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name

    def read(self, size: int = -1) -> bytes:
        """Read as many bytes; ``BadHeader`` for more than a tag has."""
        check_document(size if size >= 0 else 1 << 62, self._name, _MOST_TAG_BYTES)
        return bytes(self._file.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


_OPTIONS = ("level", "series", "axes")
FORMATS = Format("tiff", (".tif", ".tiff", ".tf8", ".btf"), open_tiff, _OPTIONS, "tifffile")
