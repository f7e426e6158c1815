"""The metadata of TIFF: names of channels, steps between times, and planes that may be colours."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from xml.etree import ElementTree

from ...core.call_site import warn
from ...core.errors import LikelyMistake

PLAIN = ("generic", "shaped", "uniform")
"""tifffile's kinds of series that only pages make: others have thumbnails, for instance."""
TIME_UNITS = {"s": "second", "ms": "millisecond", "µs": "microsecond", "ns": "nanosecond"}
"""Units of time of OME-Zarr by those of OME-XML."""
TIME_UNITS |= {"min": "minute", "h": "hour", "d": "day"}


def _pixels_of(file: Any) -> list[Any]:
    """Return the elements ``Pixels`` of the OME-XML of a file, one for each series."""
    if not file.is_ome or not file.ome_metadata:
        return []
    root = ElementTree.fromstring(file.ome_metadata)
    pixels = [node for node in root.iter() if node.tag.endswith("Pixels")]
    return [node for node in pixels if any(one.tag.endswith("TiffData") for one in node)]


def labels_of_channels(file: Any, series: int) -> tuple[str, ...]:
    """Return the names of channels in the OME-XML of a series; empty without it."""
    pixels = _pixels_of(file)
    if series >= len(pixels):
        return ()
    channels = [one for one in pixels[series] if one.tag.endswith("}Channel")]
    return tuple(one.get("Name", "") for one in channels)


def time_step(file: Any, series: int) -> tuple[float, str]:
    """Return the step between time points of a series and its unit; 1 without a unit if unknown."""
    pixels = [node.attrib for node in _pixels_of(file)][series:]
    interval = (file.imagej_metadata or {}).get("finterval")
    own = dict(pixels[0]) if pixels else {"TimeIncrement": interval}
    value, unit = own.get("TimeIncrement"), own.get("TimeIncrementUnit", "s")
    with suppress(TypeError, ValueError):
        if float(value or 0) > 0 and unit in TIME_UNITS:
            return float(value or 0), TIME_UNITS[unit]
    return 1.0, ""


def has_guess(file: Any, image: Any) -> bool:
    """Whether planes have the tags of colours that tifffile writes for any 3 or 4 planes."""
    page, names = image.keyframe, [*(file.shaped_metadata or ())]
    tags = page.photometric, page.planarconfig  # RGB, each colour in a plane of its own
    is_named = image.kind not in PLAIN or any("axes" in one for one in names)
    return tags == (2, 2) and page.samplesperpixel in (3, 4) and not is_named


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
