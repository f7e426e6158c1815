"""The metadata of TIFF by OME-XML and ImageJ: names of channels, and the step between times."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from xml.etree import ElementTree

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
