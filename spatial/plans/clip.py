"""Clip: a hard crop made after an op that interpolates, outside which everything is fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .pull_back import Matrix


@dataclass(frozen=True, eq=False)
class Clip:
    """A box in a grid of its own.

    Examples
    --------
    >>> Clip(np.eye(4), (2, 2, 2)) == Clip(np.eye(4), (2, 2, 2))
    True
    """

    matrix: Matrix
    """4x4 float64, to the index in the cropped grid: from the source index in a plan, from the
    output index where ``resample`` is called."""
    shape: tuple[int, int, int]
    """Shape of the cropped grid."""

    def __post_init__(self) -> None:
        # Adding zero turns -0.0 into 0.0, which would tell equal clips apart by their bytes.
        matrix = np.array(self.matrix, dtype=np.float64) + 0.0
        if matrix.shape != (4, 4):
            msg = f"the matrix of a clip is 4x4, got {matrix.shape}"
            raise ValueError(msg)
        matrix.setflags(write=False)
        i, j, k = self.shape
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "shape", (int(i), int(j), int(k)))

    def after(self, matrix: Matrix) -> Clip:
        """Return the clip of what ``matrix`` (4x4) leads here from."""
        return Clip(self.matrix @ matrix, self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the clip as plain data."""
        return {"matrix": self.matrix.tolist(), "shape": list(self.shape)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Clip):
            return NotImplemented
        return self.shape == other.shape and bool(np.array_equal(self.matrix, other.matrix))

    def __hash__(self) -> int:
        return hash((self.shape, self.matrix.tobytes()))
