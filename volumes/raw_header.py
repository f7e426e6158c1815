"""Voxels that lie uncompressed in a stream of bytes: what any format's header comes down to.

A format parses its header into a :class:`RawHeader`. Mapping a file, asking a server
for ranges and decoding a compressed stream once are then the same for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Region
from ..core.errors import TruncatedVolume
from ..storage.file_reader import rows_of_box
from ..storage.ranges import Span
from .header import Access, Header, Triple

Channels = tuple[int, int]


@dataclass(frozen=True)
class RawHeader:
    """What a header says about the voxels."""

    shape: tuple[int, ...]
    """As stored, the fastest axis first."""
    dtype: np.dtype[Any]
    """Type of the numbers as stored, with its byte order."""
    offset: int
    """Where the voxels begin in the stream, in bytes."""
    affine: tuple[float, ...]
    """Voxel to world in millimetres, 16 entries row by row."""
    slope: float = 1.0
    """Factor from stored number to value, 1 where the header asks for no scaling."""
    intercept: float = 0.0
    """Value of a stored 0."""
    axes: Triple = (0, 1, 2)
    """Which stored axes are I, J, K, in rising order; the others are folded into C."""

    @property
    def channels(self) -> int:
        """Colour, time and further axes, folded; the first stored of them runs fastest."""
        return math.prod(n for axis, n in enumerate(self.shape) if axis not in self.axes)

    @property
    def voxel_bytes(self) -> int:
        """Bytes of all voxels."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """One past the last byte of the voxels in the stream."""
        return self.offset + self.voxel_bytes

    def header(self, access: Access, stamp: tuple[int, ...] = ()) -> Header:
        """Return what a backend answers."""
        i, j, k = (self.shape[axis] for axis in self.axes)
        return Header(
            (self.channels, i, j, k),
            self.affine,
            self.dtype,
            access=access,
            slope=self.slope,
            intercept=self.intercept,
            stamp=stamp,
        )

    def view(self, buffer: Any) -> NDArray[Any]:
        """Return the voxels of a mapped file, without copying: channel axes first, then I, J, K.

        There is one channel axis, unless channels are stored on both sides of I, J, K.
        """
        flat: NDArray[Any] = np.frombuffer(buffer, self.dtype, math.prod(self.shape), self.offset)
        return self._turned(flat, [n for n, _ in self._merged()])

    def row_spans(self, region: Region, channels: Channels, most: int) -> list[Span]:
        """Return the runs of bytes that hold a region, in the order of the stream.

        A run goes along the fastest axis; where that is whole, along the next too, as
        long as it has at most ``most`` bytes.
        """
        lengths, box = self.stored_box(region, channels)
        return rows_of_box(lengths, box, self.dtype.itemsize, self.offset, most)

    def stored_box(self, region: Region, channels: Channels) -> tuple[list[int], list[Span]]:
        """Return lengths of the stored axes, and what a region takes of them, slowest first."""
        lengths = [n for n, _ in self._merged()]
        return lengths[::-1], self._ranges(region, channels)[::-1]

    def of_rows(self, flat: NDArray[np.uint8], region: Region, channels: Channels) -> NDArray[Any]:
        """Return the bytes of :meth:`row_spans`, one after another, as (C, i, j, k)."""
        sizes = [last - first for first, last in self._ranges(region, channels)]
        return fold(self._turned(flat.view(self.dtype), sizes), channels, self.channels)

    def _merged(self) -> list[tuple[int, bool]]:
        """Return length and whether spatial, per stored axis; neighbouring channels as one."""
        merged: list[tuple[int, bool]] = []
        for axis, n in enumerate(self.shape):
            if axis in self.axes:
                merged.append((n, True))
            elif n == 1:
                continue
            elif merged and not merged[-1][1]:
                merged[-1] = (merged[-1][0] * n, False)
            else:
                merged.append((n, False))
        return merged

    def _ranges(self, region: Region, channels: Channels) -> list[Span]:
        """Return what to read of each merged axis: all channels where they lie on two sides."""
        spatial = iter(region)
        merged = self._merged()
        alone = sum(not is_spatial for _, is_spatial in merged) == 1
        return [
            next(spatial) if is_spatial else (channels if alone else (0, n))
            for n, is_spatial in merged
        ]

    def _turned(self, flat: NDArray[Any], sizes: list[int]) -> NDArray[Any]:
        """Return flat voxels of merged axes as a view, channel axes first, slowest first."""
        spatial = [at for at, (_, is_spatial) in enumerate(self._merged()) if is_spatial]
        others = [at for at in range(len(sizes)) if at not in spatial]
        array = flat.reshape(sizes[::-1])  # C order: the slowest axis first
        turned = array.transpose([len(sizes) - 1 - at for at in (*others[::-1], *spatial)])
        return turned if others else turned[None]


def part_of(
    view: NDArray[Any], region: Region, channels: Channels | None, count: int
) -> NDArray[Any]:
    """Return a region of (c..., I, J, K), which has ``count`` channels, as (C, i, j, k)."""
    index: Any = (..., *region.slices)
    return fold(view[index], channels or (0, count), count)


def fold(array: NDArray[Any], channels: Channels, count: int) -> NDArray[Any]:
    """Return (c..., i, j, k) as (C, i, j, k), narrowed to ``channels`` if it holds all ``count``.

    This copies only where channels are stored on both sides of the spatial axes.
    """
    if array.ndim > 4:
        array = array.reshape((count, *array.shape[-3:]))
    return array[slice(*channels)] if array.shape[0] == count else array


def check_length(header: RawHeader, actual: int, name: str) -> None:
    """Raise ``TruncatedVolume`` if a stream of ``actual`` bytes cannot hold the voxels."""
    if actual < header.end:
        raise TruncatedVolume(
            f"{name} holds {actual} bytes, and its header speaks of {header.end} "
            f"({'x'.join(map(str, header.shape))} {header.dtype.name} from byte {header.offset}).",
            do="Copy or download the file again.",
        )
