"""Voxels that exist: an array here, a tensor for the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Realized:
    """An array that the user sees as a tensor of the same memory.

    A worker that only realizes plans has no torch, whose import takes a second and 190 MB;
    the tensor is made where the batch is handed over.
    """

    array: NDArray[Any]
    """Any shape and type that torch has too."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array."""
        return self.array.dtype
