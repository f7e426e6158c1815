"""How a stored array of any axes becomes (C, I, J, K), and an index of it the other way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...core import Region
from ...core.errors import BadHeader
from ..backend import Channels
from ..header import Shape, Triple
from .ome import SPATIAL


@dataclass(frozen=True)
class Layout:
    """Which stored axes are folded into C, in stored order, and which are I, J, K."""

    stored: tuple[int, ...]
    """Shape of the stored array."""
    folded: tuple[int, ...]
    """Stored axes that become C; the last of them runs fastest."""
    spatial: tuple[int | None, int | None, int | None]
    """Stored axis of I, J and K; None for one that is not stored and has length 1."""

    @property
    def shape(self) -> Shape:
        """(C, I, J, K)."""
        i, j, k = (1 if axis is None else self.stored[axis] for axis in self.spatial)
        return math.prod(self.stored[axis] for axis in self.folded), i, j, k

    def spatial_part(self, stored: Sequence[int]) -> Triple:
        """Return the entries of I, J, K of something given per stored axis, 1 where not stored."""
        i, j, k = (1 if axis is None else int(stored[axis]) for axis in self.spatial)
        return i, j, k

    def index(self, region: Region, channels: Channels) -> tuple[tuple[slice, ...], Channels]:
        """Return the index of the stored array, and the channels among those that it gives.

        Where several axes are folded, the slowest is narrowed and the others are
        read whole; the channels asked for are then a part of what is read.
        """
        index = [slice(0, length) for length in self.stored]
        for axis, (start, stop) in zip(self.spatial, region, strict=True):
            if axis is not None:
                index[axis] = slice(start, stop)
        if not self.folded:
            return tuple(index), (0, 1)
        inner = math.prod(self.stored[axis] for axis in self.folded[1:])
        first = channels[0] // inner
        index[self.folded[0]] = slice(first, -(-channels[1] // inner))
        return tuple(index), (channels[0] - first * inner, channels[1] - first * inner)

    def fold(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a stored array, or a part of it, as (C, I, J, K): a view."""
        kept = [axis for axis in self.spatial if axis is not None]
        turned = array.transpose((*self.folded, *kept))
        lengths = [1 if axis is None else array.shape[axis] for axis in self.spatial]
        return turned.reshape((math.prod(array.shape[axis] for axis in self.folded), *lengths))


def plain_layout(stored: tuple[int, ...], name: str) -> Layout:
    """Return the layout of an array without metadata: (I, J), (I, J, K) or (C, I, J, K).

    Examples
    --------
    >>> plain_layout((3, 8, 9, 10), "a.zarr").shape, plain_layout((8, 9), "b.zarr").shape
    ((3, 8, 9, 10), (1, 8, 9, 1))
    """
    if len(stored) == 2:
        return Layout(stored, (), (0, 1, None))
    if len(stored) == 3:
        return Layout(stored, (), (0, 1, 2))
    if len(stored) == 4:
        return Layout(stored, (0,), (1, 2, 3))
    raise BadHeader(
        f"the array of {name} has {len(stored)} axes and nothing says what they are.",
        do="Store two to four axes, (I, J, K) or (C, I, J, K), or write OME-Zarr metadata.",
    )


def named_layout(stored: tuple[int, ...], axes: Sequence[str], name: str) -> Layout:
    """Return the layout of an array whose axes have names.

    Examples
    --------
    >>> named_layout((2, 3, 10, 9, 8), "tczyx", "a.ome.zarr").shape
    (6, 8, 9, 10)
    """
    if len(stored) != len(axes):
        raise BadHeader(
            f"the array of {name} has {len(stored)} axes, and its metadata name {len(axes)}: "
            f"{', '.join(axes)}.",
            do="Write the metadata again.",
        )
    place = {axis: n for n, axis in enumerate(axes)}
    x, y, z = (place.get(axis) for axis in SPATIAL)
    folded = tuple(n for n, axis in enumerate(axes) if axis not in SPATIAL)
    return Layout(stored, folded, (x, y, z))
