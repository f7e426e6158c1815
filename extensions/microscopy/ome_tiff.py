"""OME-TIFF files, written by tifffile: planes in tiles, coarser levels as SubIFDs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.validate import MILLIMETRES
from ...volumes.conversion.convert_plan import spacing_of, unit_to_write
from ...volumes.conversion.ome_group import reduce_blocks
from ...volumes.formats.chunked_backend import PIXEL
from ...volumes.formats.stored_file import import_package
from ...volumes.header import Header
from ..formats.tiff_metadata import TIME_UNITS

# Voxels along each axis of a tile: a multiple of 16.
_TILE = 256
# Voxels along the longest axis of a plane that has no coarser level by default.
_SMALL = 256
# Bytes from which offsets have 64 bits, as in tifffile.
_BIG = 2**32 - 2**25
# Units of OME-XML by our names.
_UNITS = {"um": "µm", "nm": "nm", "mm": "mm", "angstrom": "Å", "cm": "cm", "m": "m"}
_UNITS |= {PIXEL: "pixel"}
_TIMES = {word: letters for letters, word in TIME_UNITS.items()}


def write_ome_tiff(
    voxels: Path,
    target: Path,
    header: Header,
    *,
    is_label: bool = False,
    mark: str = "",
    levels: int | None = None,
) -> None:
    """Write an OME-TIFF from a file of bare voxels, (C, K, J, I) in C order.

    Several time points among the channels become an axis of time.

    Planes are compressed by zlib, in tiles. Coarser levels halve I and J, as viewers expect, and
    keep K. One plane and its levels are in memory.

    The arguments are those of `Writer`. The tag Software holds ``mark``. By default there are
    levels down to 256 voxels.
    """
    tifffile = import_package("tifffile", str(target))
    channels, i, j, k = header.shape
    times = header.times.number
    lead = (times,) * (times > 1) + (channels // times,)
    count = _levels(max(i, j), levels)
    size = math.prod(header.shape) * header.disk_dtype.itemsize
    tile = (_TILE, _TILE) if max(i, j) > _TILE else None
    how: dict[str, Any] = {"photometric": "minisblack", "compression": "zlib", "tile": tile}
    how |= {"dtype": header.disk_dtype, "software": f"voxpipe {mark}".strip()}
    with tifffile.TiffWriter(target, ome=True, bigtiff=size > _BIG) as writer:
        for level in range(count):
            shape = *lead, k, *(-(-n // 2**level) for n in (j, i))
            planes = _planes(voxels, header, level, is_label=is_label)
            own: dict[str, Any] = {"subfiletype": 1} if level else {"subifds": count - 1}
            own |= {"metadata": None} if level else {"metadata": _metadata(header)}
            data = _tiles(planes) if tile else planes
            writer.write(data, shape=shape, **how, **own)


# The writer of an axis of time is chosen for such volumes.
write_ome_tiff.keeps_times = True  # type: ignore[attr-defined]
# OME-XML has sizes of voxels, and neither directions nor an origin.
write_ome_tiff.keeps_place = False  # type: ignore[attr-defined]


def _levels(length: int, levels: int | None) -> int:
    """Return the number of levels of planes of this length.

    Examples
    --------
    >>> _levels(2048, None), _levels(2048, 2), _levels(100, None)
    (4, 2, 1)
    """
    most = max(0, (length - 1).bit_length())
    usual = max(0, math.ceil(math.log2(length / _SMALL)))
    return 1 + min(usual if levels is None else levels - 1, most)


def _planes(path: Path, header: Header, level: int, *, is_label: bool) -> Iterator[NDArray[Any]]:
    """Yield the planes (J, I) of a level, of channel after channel."""
    channels, i, j, k = header.shape
    with open(path, "rb") as file:
        for channel in header.times.first(range(channels)).ravel().tolist():
            file.seek(channel * k * j * i * header.disk_dtype.itemsize)
            for _ in range(k):
                plane = np.fromfile(file, header.disk_dtype, i * j).reshape(1, j, i)
                for _ in range(level):
                    plane = reduce_blocks(plane, (1, 2, 2), is_label=is_label)
                yield plane[0]


def _tiles(planes: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the tiles of planes, filled up with zeros."""
    for plane in planes:
        for y in range(0, plane.shape[0], _TILE):
            for x in range(0, plane.shape[1], _TILE):
                part = plane[y : y + _TILE, x : x + _TILE]
                tile = np.zeros((_TILE, _TILE), plane.dtype)
                tile[: part.shape[0], : part.shape[1]] = part
                yield tile


def _metadata(header: Header) -> dict[str, Any]:
    """Return tifffile's names of OME-XML: axes, sizes with their unit, channels."""
    unit = unit_to_write(header)
    unit = unit if unit in _UNITS else "mm"
    times = header.times
    fields: dict[str, Any] = {"axes": "TCZYX" if times.number > 1 else "CZYX"}
    if times.number > 1 and times.unit in _TIMES:
        fields |= {"TimeIncrement": times.step, "TimeIncrementUnit": _TIMES[times.unit]}
    for axis, length in zip("XYZ", spacing_of(header), strict=True):
        fields[f"PhysicalSize{axis}"] = float(f"{length / MILLIMETRES.get(unit, 1.0):.12g}")
        fields[f"PhysicalSize{axis}Unit"] = _UNITS[unit]
    if names := getattr(header, "channel_names", ()):
        fields["Channel"] = {"Name": times.first(names)[0].tolist()}
    return fields
