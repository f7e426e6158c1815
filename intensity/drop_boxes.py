"""Drop boxes: parts of the image are taken away."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import ParameterRange, as_number, bounds_of, parse_range
from .noise import philox
from .random_op import RandomValueOp
from .value_op import Drawn, Facts

Triple = tuple[int, int, int]

_PER_WORD = 2.0**-32


@dataclass(frozen=True)
class DropBoxes(RandomValueOp):
    """Fill boxes with one value, strewn evenly over the lattice of the result.

    Space is cut into cubes as large as the largest box; in each of them a box begins, or none.
    So patches that overlap agree, wherever they begin. Boxes lie along the axes of the result,
    whatever spatial ops come later.

    With edges from ``low`` to ``high``, cubes are ``high`` voxels wide, and the chance of a box in
    each is ``fraction / ((low + high) / (2 high)) ** 3``. It begins at any voxel of its cube, and
    each of its edges is any whole number from ``low`` to ``high``, all equally likely.

    References
    ----------
    DeVries and Taylor, "Improved regularization of convolutional neural networks with cutout",
    arXiv:1708.04552 (2017): one box there, as many as make up a fraction here.

    Examples
    --------
    >>> DropBoxes((4, 12), 0.1).describe()
    'drop_boxes size (4.0, 12.0) fraction 0.1 fill 0'
    """

    size: ParameterRange
    """Edge in voxels, drawn for each edge of each box: a whole number >= 1, or (low, high)."""
    fraction: ParameterRange
    """About which part of all voxels is taken away, overlaps not counted: a number, or (low,
    high)."""
    fill: float = 0.0
    """The value inside."""

    name: ClassVar[str] = "drop_boxes"
    amounts: ClassVar[Any] = {"fraction": {"least": 0.0}}
    keyed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", parse_range("size", self.size, least=1))
        if any(edge != round(edge) for edge in bounds_of(self.size)):
            msg = f"size is a whole number of voxels, or (low, high) of such, got {self.size!r}"
            raise ValueError(msg)
        object.__setattr__(self, "fill", as_number("fill", self.fill))
        highest = self.fraction[1] if isinstance(self.fraction, tuple) else self.fraction
        if highest > self._most:
            msg = (
                f"fraction is a part of all voxels, and no number of boxes: those of size "
                f"{self.size} take away at most {self._most:.3g}, got {highest!r}"
            )
            raise ValueError(msg)

    @property
    def _edges(self) -> tuple[int, int]:
        low, high = bounds_of(self.size)
        return round(low), round(high)

    @property
    def _most(self) -> float:
        """The fraction where every cube has a box."""
        low, high = self._edges
        return float(((low + high) / 2 / high) ** 3)

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        shape = (array.shape[1], array.shape[2], array.shape[3])
        key, _ = facts.key_from(drawn["key"])
        for box in self._boxes(shape, drawn["fraction"] / self._most, facts.corner, key):
            array[(slice(None), *box)] = self.fill
        return array

    def _boxes(
        self, shape: Triple, chance: float, corner: Triple, key: int
    ) -> Iterator[tuple[slice, ...]]:
        """Yield the boxes that reach into an array, as slices of it."""
        low, high = self._edges
        cells = [
            np.arange(math.floor((c - high) / high), (c + n - 1) // high + 1)
            for c, n in zip(corner, shape, strict=True)
        ]
        i, j, k = np.meshgrid(*cells, indexing="ij")
        first = [w * _PER_WORD for w in philox((i, j, k, np.zeros_like(i)), key)]
        second = [w * _PER_WORD for w in philox((i, j, k, np.ones_like(i)), key)]
        for at in np.argwhere(first[3] < chance):
            place = tuple(at)
            slices = []
            for axis in range(3):
                size = low + int(second[axis][place] * (high - low + 1))
                begin = cells[axis][at[axis]] * high + int(first[axis][place] * high)
                start = int(begin) - corner[axis]
                slices.append(slice(max(start, 0), max(start + size, 0)))
            yield tuple(slices)

    def describe(self) -> str:
        """Return the amounts in words."""
        return self.in_words(size=self.size, fraction=self.fraction, fill=self.fill)
