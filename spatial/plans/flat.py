"""A strided array as one run of memory, so that a gather needs one offset per voxel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Flat:
    """The channels of a (C, i, j, k) array, each as a one-dimensional view of its memory."""

    channels: tuple[NDArray[Any], ...]
    """Per channel, the elements from its lowest to its highest address."""
    strides: tuple[int, int, int]
    """Elements between neighbours on each spatial axis; negative where an axis runs backwards."""
    origin: int
    """Offset of voxel (0, 0, 0)."""

    @classmethod
    def of(cls, array: NDArray[Any]) -> Flat:
        """Return the memory of ``array``; a copy is made only where elements are not aligned.

        The view may span many more elements than the array has, when it is a box in a large
        map: they are addressed, never touched.

        Examples
        --------
        >>> box = np.arange(100).reshape(1, 4, 5, 5)[:, 1:3, :, ::-1]
        >>> flat = Flat.of(box)
        >>> i, j, k = flat.strides
        >>> int(flat.channels[0][flat.origin + 1 * i + 2 * j + 0 * k]) == int(box[0, 1, 2, 0])
        True
        """
        size = array.itemsize
        if not array.flags.aligned or any(s % size for s in array.strides):
            array = array.copy()
        steps = [s // size for s in array.strides[1:]]
        reach = [(n - 1) * s for n, s in zip(array.shape[1:], steps, strict=True)]
        lowest = tuple(-1 if s < 0 else 0 for s in steps)
        length = sum(abs(r) for r in reach) + 1
        channels = tuple(
            np.lib.stride_tricks.as_strided(
                channel[tuple(slice(a, None) for a in lowest)], (length,), (size,), writeable=False
            )
            for channel in array
        )
        return cls(channels, (steps[0], steps[1], steps[2]), -sum(r for r in reach if r < 0))
