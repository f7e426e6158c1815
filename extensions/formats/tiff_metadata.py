"""The metadata of TIFF: names of channels, steps between times, and planes that may be colours."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ...core.call_site import warn
from ...core.context import ContextKey
from ...core.errors import BadHeader, LikelyMistake, VolumeNotFound, VoxpipeError
from ...core.suggest import few_names

PLAIN = ("generic", "shaped", "uniform")
"""tifffile's kinds of series that only pages make: others have thumbnails, for instance."""
TIME_UNITS = {"s": "second", "ms": "millisecond", "µs": "microsecond", "ns": "nanosecond"}
"""Units of time of OME-Zarr by those of OME-XML."""
MAY_MISS_PLANES = ContextKey(False)
"""Whether an OME-TIFF that lacks planes is opened, of which one time point is read."""
_MOST_NAMES = 6
TIME_UNITS |= {"min": "minute", "h": "hour", "d": "day"}

# Tags of GeoTIFF, LSM, STK, FluoView, SEM, FEI, SIS, NIH Image and Micro-Manager.
_SIZE_TAGS = (33550, 34264, 34412, 33628, 33629, 34361, 34118, 34680, 34682, 33560, 43314, 51123)
_PER_INCH = {2: 1.0, 3: 2.54, 4: 25.4, 5: 25400.0}  # units in an inch; others have no unit
_RESOLUTION_UNIT = 296
# Pixels per inch that writers write without a meaning; 0 where a file has no unit.
_USUAL = (0, 72, 96)


def is_usual_resolution(pixels: float) -> bool:
    """Return whether pixels per inch are a default of writers, and so no size of pixels."""
    return any(math.isclose(pixels, usual, rel_tol=0.02) for usual in _USUAL)


def _pixels_of(file: Any) -> list[Any]:
    """Return the elements ``Pixels`` of the OME-XML of a file, one for each series."""
    if not file.is_ome or not file.ome_metadata:
        return []
    root = ElementTree.fromstring(file.ome_metadata)
    pixels = [node for node in root.iter() if node.tag.endswith("Pixels")]
    return [node for node in pixels if any(one.tag.endswith("TiffData") for one in node)]


def named_files(file: Any) -> tuple[str, ...]:
    """Return the other files that the OME-XML of an open TIFF names."""
    if not file.is_ome or not file.ome_metadata:
        return ()
    try:
        root = ElementTree.fromstring(file.ome_metadata)
    except ElementTree.ParseError as error:
        raise BadHeader(f"the OME-XML of {file.filename} makes no sense: {error}.") from error
    names = (node.attrib.get("FileName") for node in root.iter())
    return tuple(sorted({name for name in names if name and name != file.filename}))


def _labels_of_channels(file: Any, series: int) -> tuple[str, ...]:
    """Return the names of channels in the OME-XML of a series; empty without it."""
    pixels = _pixels_of(file)
    if series >= len(pixels):
        return ()
    channels = [one for one in pixels[series] if one.tag.endswith("}Channel")]
    return tuple(one.get("Name", "") for one in channels)


def _time_step(file: Any, series: int) -> tuple[float, str]:
    """Return the step between time points of a series and its unit; 1 without a unit if unknown."""
    pixels = [node.attrib for node in _pixels_of(file)][series:]
    interval = (file.imagej_metadata or {}).get("finterval")
    own = dict(pixels[0]) if pixels else {"TimeIncrement": interval}
    value, unit = own.get("TimeIncrement"), own.get("TimeIncrementUnit", "s")
    with suppress(TypeError, ValueError):
        if float(value or 0) > 0 and unit in TIME_UNITS:
            return float(value or 0), TIME_UNITS[unit]
    return 1.0, ""


def _is_named(file: Any, image: Any) -> bool:
    """Whether metadata name the axes of a series, and not its pages alone."""
    return image.kind not in PLAIN or any("axes" in one for one in file.shaped_metadata or ())


def _has_guess(file: Any, image: Any) -> bool:
    """Whether planes have the tags of colours that tifffile writes for any 3 or 4 planes."""
    page = image.keyframe
    tags = page.photometric, page.planarconfig  # RGB, each colour in a plane of its own
    return tags == (2, 2) and page.samplesperpixel in (3, 4) and not _is_named(file, image)


def facts_of(
    file: Any, series: int, image: Any, axes: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[float, str], bool, tuple[str, ...]]:
    """Return names of channels, the step in time, whether planes may be colours, and named axes."""
    facts = _labels_of_channels(file, series), _time_step(file, series), _has_guess(file, image)
    return *facts, axes if {"x", "y"} <= {*axes} and _is_named(file, image) else ()


def unread_sizes(file: Any, series: int) -> list[str]:
    """Return the names of metadata that give sizes of pixels, other than OME's and ImageJ's."""
    page = file.series[series].keyframe
    names = [tag.name for tag in page.tags if tag.code in _SIZE_TAGS]
    names += ["tifffile's spacing"] * any("spacing" in one for one in file.shaped_metadata or ())
    x, y = page.get_resolution()
    pixels = x * _PER_INCH.get(page.tags.valueof(_RESOLUTION_UNIT, 2), 0)
    is_usual = x == y and (x == 1 or is_usual_resolution(pixels))
    return names if is_usual else [*names, "XResolution and YResolution"]


_LETTERS = {"s": "z", "z": "c"}, {"s": "c"}  # of a stack, and of colours


def warn_of_colours(image: Any, name: str, do: str = "") -> None:
    """Warn of planes that may be a stack: the tags of the file name them as colours."""
    if image.is_guess:
        count = image.shape[image.axes.index("s")]
        stack, colours = ("".join(map(letter.get, image.axes, image.axes)) for letter in _LETTERS)
        msg = f"colours-or-planes: the {count} planes of {name} have the tags of colours, which"
        msg += f" tifffile writes for any {count} planes. They are read as {count} channels"
        do = do or f'Pass ⟦axes="{stack}"⟧ for a stack along z, ⟦axes="{colours}"⟧ for colours.'
        warn(f"{msg}. {do}", LikelyMistake)


@dataclass(frozen=True)
class MissingPlanes:
    """Planes of an OME-TIFF that are in no file."""

    count: int
    """Number of missing planes."""
    planes: int
    """Number of all planes."""
    times: frozenset[int]
    """Time points that lack planes."""
    number_of_times: int
    files: tuple[str, ...]
    """Names of missing files in the OME-XML; empty for a single file that lacks planes."""
    is_far: bool = False
    """Whether the file is at a URL: its other files are not read."""

    @classmethod
    def of(cls, image: Any, file: Any, axes: Sequence[tuple[str, int]]) -> MissingPlanes | None:
        """Return those of a series, with ``axes`` between pages; None if it has all.

        ``file`` is the open TIFF.
        """
        if image.kind != "ome":
            return None
        lead = [length for _, length in axes]
        numbers = [n for n, page in enumerate(image) if page is None and n < math.prod(lead)]
        if not numbers:
            return None
        times, letters = {0}, [axis for axis, _ in axes]
        if "t" in letters:
            times = {*np.unravel_index(numbers, lead)[letters.index("t")].tolist()}
        count = dict(axes).get("t", 1)
        folder, far = file.filehandle.dirname, not file.filehandle.is_file
        names = named_files(file)
        files = [name for name in names if not os.path.exists(os.path.join(folder, name))]
        return cls(len(numbers), math.prod(lead), frozenset(times), count, tuple(files), far)

    def facts(self, name: str) -> str:
        """Return a sentence with the missing files, or with the number of planes."""
        if self.files and not self.is_far:
            files = few_names(self.files, _MOST_NAMES)
            return f"{name} has no file for {self.count} of {self.planes} planes: {files}"
        if self.files:
            msg = f"{name} is one of {len(self.files) + 1} files of an OME-TIFF"
            return f"{msg}, and at a URL the others are not read"
        number = self.planes - self.count
        return f"{name} holds {number} of the {self.planes} planes that its OME-XML names"

    @property
    def cure(self) -> str:
        """The cure, without an end."""
        if self.files:
            return "Copy all files to one local folder" if self.is_far else "Copy the missing files"
        return "Copy or write the file again"

    def error(self, name: str) -> VoxpipeError:
        """Return the error of an image or a time point that lacks planes."""
        whole = [str(n) for n in range(self.number_of_times) if n not in self.times]
        more = f", or give a complete time point by ⟦time=⟧: {few_names(whole)}" if whole else ""
        kind = VolumeNotFound if self.files else BadHeader
        return kind(f"{self.facts(name)}.", do=f"{self.cure}{more}.")
