"""Planes as RGB pixels and PNG files, in NumPy: tables of notebooks need no drawing library."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .planes import Plane

PERCENTILES = (0.5, 99.5)
"""Values that become black and white."""
_COLOURS, _STEP = 256, 24
_LIGHT, _LEAST_LIGHT, _LEAST_SPAN = (0.3, 0.59, 0.11), 85, 60  # visible on black, and no grey


def _palette() -> NDArray[np.uint8]:
    """Return the colours of classes: 8 for all kinds of colour vision (Okabe, Ito), then others.

    Each of these is as far as possible from all colours before it.
    """
    colours = [
        *((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66)),
        *((0, 114, 178), (213, 94, 0), (204, 121, 167), (170, 170, 170)),
    ]
    steps = np.arange(0, 256, _STEP)
    grid = np.stack(np.meshgrid(steps, steps, steps), -1).reshape(-1, 3)
    is_clear = (grid @ _LIGHT >= _LEAST_LIGHT) & (np.ptp(grid, axis=1) >= _LEAST_SPAN)
    grid, far = grid[is_clear], np.full(is_clear.sum(), np.inf)
    for number in range(_COLOURS):
        if number == len(colours):
            colours.append(tuple(grid[far.argmax()].tolist()))
        far = np.minimum(far, ((grid - colours[number]) ** 2).sum(axis=1))
    return np.array(colours, np.uint8)


PALETTE = _palette()
Pixels = NDArray[np.uint8]
"""(rows, columns, 3)."""
_RGB_CHANNELS = 3
_BAR_LENGTHS = [m * 10.0**p for p in range(-7, 5) for m in (1, 2, 5)]  # millimetres
_LEAST_SHARE = 1 / 8  # of the largest plane, for a plane of the same scale
_BAR_SHARE = 0.35  # of the width, at most


def window_of(arrays: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Return the values of black and white for some planes; NaN and infinite values are left out.

    Examples
    --------
    >>> window_of([np.array([0.0, np.nan, 4.0])])
    (0.02, 3.98)
    """
    finite = [np.ravel(array)[np.isfinite(np.ravel(array))] for array in arrays]
    values = np.concatenate(finite) if finite else np.zeros(0)
    if not values.size:
        return 0.0, 1.0
    low, high = np.percentile(values.astype(np.float64), PERCENTILES)
    if high <= low:
        low, high = float(values.min()), float(values.max())
    return float(low), float(high if high > low else low + 1)


def colour_of(label: int) -> tuple[int, int, int]:
    """Return the colour of a class, the same in every picture."""
    red, green, blue = PALETTE[(label - 1) % len(PALETTE)].tolist()
    return red, green, blue


def grey(plane: NDArray[Any], window: tuple[float, float]) -> Pixels:
    """Return the pixels of values (rows, columns) in a window; those that are NaN are dark red."""
    low, high = window
    ratio = (plane.astype(np.float64) - low) / (high - low)
    bytes_ = (np.clip(np.nan_to_num(ratio, nan=0.0), 0, 1) * 255).round().astype(np.uint8)
    pixels = np.repeat(bytes_[..., None], 3, axis=-1)
    pixels[np.isnan(ratio)] = (96, 0, 0)
    return pixels


def classes(plane: NDArray[Any]) -> Pixels:
    """Return the pixels of labels (rows, columns): a colour for each class, black for 0."""
    numbers = np.nan_to_num(plane).astype(np.int64)
    pixels: Pixels = PALETTE[(numbers - 1) % len(PALETTE)]
    pixels[numbers == 0] = 0
    return pixels


def is_colour(plane: NDArray[Any]) -> bool:
    """Whether the channels of a plane (C, rows, columns) are red, green and blue."""
    return len(plane) == _RGB_CHANNELS and plane.dtype == np.uint8


def image_of(plane: NDArray[Any], kind: str, window: tuple[float, float] | None = None) -> Pixels:
    """Return the pixels of a plane (C, rows, columns): its colours, classes or first channel."""
    if kind == "label":
        return classes(plane[0])
    if is_colour(plane):
        return np.ascontiguousarray(np.moveaxis(plane, 0, -1))
    return grey(plane[0], window or window_of([plane[0]]))


def edges(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where the pixels of a class have a neighbour of another one; none in the background.

    Examples
    --------
    >>> edges(np.pad(np.ones((3, 3), int), 1)).sum()
    np.int64(8)
    """
    outline: NDArray[np.bool_] = np.zeros(labels.shape, bool)
    for axis in range(2):
        ahead: list[Any] = [slice(None), slice(None)]
        behind: list[Any] = [slice(None), slice(None)]
        ahead[axis], behind[axis] = slice(1, None), slice(None, -1)
        differs = labels[tuple(ahead)] != labels[tuple(behind)]
        outline[tuple(ahead)] |= differs
        outline[tuple(behind)] |= differs
    outline &= labels != 0
    return outline


def with_outlines(pixels: Pixels, labels: NDArray[Any]) -> Pixels:
    """Return pixels with the outlines of classes; nearest labels if the sizes differ."""
    rows, columns = pixels.shape[:2]
    if labels.shape != (rows, columns):
        i = (np.arange(rows) * labels.shape[0] // rows)[:, None]
        labels = labels[i, np.arange(columns) * labels.shape[1] // columns]
    outline, result = edges(labels), pixels.copy()
    result[outline] = classes(labels)[outline]
    return result


def enlarge(pixels: Pixels, size: tuple[float, float], side: int) -> Pixels:
    """Return pixels of equal height and width in millimetres, ``side`` along the longer side.

    ``size`` is the height and width of one pixel.
    """
    height, width = pixels.shape[0] * size[0], pixels.shape[1] * size[1]
    scale = side / max(height, width)
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    i = (np.arange(rows) * pixels.shape[0] // rows)[:, None]
    result: Pixels = pixels[i, np.arange(columns) * pixels.shape[1] // columns]
    return result


def png(pixels: Pixels) -> bytes:
    """Return pixels as a PNG file.

    Examples
    --------
    >>> png(np.zeros((2, 3, 3), np.uint8))[1:4]
    b'PNG'
    """
    rows, columns = pixels.shape[:2]
    lines = np.zeros((rows, 1 + 3 * columns), np.uint8)  # each begins with its filter, none
    lines[:, 1:] = pixels.reshape(rows, -1)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def data_url(pixels: Pixels) -> str:
    """Return pixels as the URL of an image inside a page."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def bar_length(width: float) -> float:
    """Return the length of a scale bar in millimetres for a picture of this width.

    Examples
    --------
    >>> bar_length(256.0)
    50.0
    """
    fitting = [one for one in _BAR_LENGTHS if one <= width * _BAR_SHARE]
    return fitting[-1] if fitting else width * _BAR_SHARE


def frames_of(planes: Sequence[Plane]) -> list[tuple[float, float]]:
    """Return height and width of the frame of each plane in millimetres; equal ones are one scale.

    It is as large as the largest plane, or as the plane itself if that would be too small to see.

    Examples
    --------
    >>> from voxpipe.extensions.pictures.planes import planes_of_array
    >>> planes = planes_of_array(np.zeros((1, 60, 30, 12)), np.eye(4), directions=False)
    >>> frames_of(planes)
    [(30.0, 60.0), (30.0, 60.0), (30.0, 60.0)]
    """
    sizes = [(p.voxels.shape[1] * p.pixel[0], p.voxels.shape[2] * p.pixel[1]) for p in planes]
    height, width = (max(lengths) for lengths in zip(*sizes, strict=True))
    least = _LEAST_SHARE * max(height, width)
    return [(height, width) if max(size) >= least else size for size in sizes]


def shared_window(planes: Sequence[Plane]) -> tuple[float, float]:
    """Return one window for planes of a volume."""
    return window_of([plane.voxels[0] for plane in planes])
