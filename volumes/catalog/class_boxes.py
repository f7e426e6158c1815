"""The box that each class of a label volume lies in, found while it is read for other reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Box = tuple[int, int, int, int, int, int]
"""Start I, J, K and stop I, J, K; half open."""

# Between the smallest and the largest label: beyond, they are instances, of which nobody asks.
MOST_LABELS = 4096


class ClassBoxes:
    """Boxes of whole numbers, from a volume that comes in pieces.

    Examples
    --------
    >>> boxes = ClassBoxes()
    >>> boxes.add(np.array([[[[0, 7, 7]]]]), (4, 0, 0))
    >>> boxes.table()
    ((0, (4, 0, 0, 5, 1, 1)), (7, (4, 0, 1, 5, 1, 3)))
    """

    def __init__(self) -> None:
        self._boxes: dict[int, list[int]] | None = {}

    def add(self, stored: NDArray[Any], start: Sequence[int]) -> None:
        """Take in a piece, (C, i, j, k), that begins at ``start``; floats end it all."""
        if self._boxes is None or stored.size == 0:
            return
        low = int(stored.min()) if stored.dtype.kind in "iu" else 0
        if stored.dtype.kind not in "iu" or int(stored.max()) - low >= MOST_LABELS:
            self._boxes = None
            return
        wide = stored if stored.dtype.kind == "u" else stored.astype(np.int64)
        codes = (wide - wide.dtype.type(low)).astype(np.int16)  # 12 bits
        there = np.flatnonzero(np.bincount(codes.ravel(order="K"))).tolist()
        presence = _one_by_one if len(there) <= _FEW else _at_once
        for axis, (first, present) in enumerate(zip(start, presence(codes, there), strict=True)):
            for code, row in zip(there, present, strict=True):
                places = np.flatnonzero(row)
                box = self._boxes.setdefault(low + code, [2**62] * 3 + [0] * 3)
                box[axis] = min(box[axis], first + int(places[0]))
                box[axis + 3] = max(box[axis + 3], first + int(places[-1]) + 1)
        if len(self._boxes) > MOST_LABELS:
            self._boxes = None

    def table(self) -> tuple[tuple[int, Box], ...]:
        """Return (number, box) in the order of the numbers; nothing if it came to an end."""
        found = sorted((self._boxes or {}).items())
        return tuple((number, (b[0], b[1], b[2], b[3], b[4], b[5])) for number, b in found)


# Of so many classes, looking at each takes less time than counting all at once.
_FEW = 24


def _one_by_one(codes: NDArray[np.int16], there: Sequence[int]) -> list[list[Any]]:
    """Return for each axis, and each code, at which indices it occurs."""
    found: list[list[Any]] = [[], [], []]
    for code in there:
        here: Any = (codes == code).any(axis=0)
        plane = here.any(axis=2)
        found[0].append(plane.any(axis=1))
        found[1].append(plane.any(axis=0))
        found[2].append(here.any(axis=(0, 1)))
    return found


def _at_once(codes: NDArray[np.int16], there: Sequence[int]) -> list[list[Any]]:
    """Return the same, by counting pairs of code and index."""
    found: list[list[Any]] = []
    for axis, length in enumerate(codes.shape[1:], start=1):
        index = np.arange(length, dtype=np.int32)
        index = index.reshape([-1 if other == axis else 1 for other in range(4)])
        pairs = codes.astype(np.int32) * length + index
        seen = np.bincount(pairs.ravel(), minlength=(there[-1] + 1) * length)
        present = seen.reshape(-1, length) > 0
        found.append([present[code] for code in there])
    return found
