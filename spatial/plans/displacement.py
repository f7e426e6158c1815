"""Displacement: a smooth field on a coarse control grid, added to where voxels come from.

The field is a uniform cubic B-spline and never exists as an array of its own: the resampler works
it out on the fly. Every value is a weighted mean of control points, so the largest of them bounds
it, and with it the voxels that a plan needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.lru_cache import cached_property
from .pull_back import Matrix, coordinate

Floats = NDArray[np.float64]
Moves = tuple[tuple[float, float], ...]
"""Smallest and largest displacement per source axis, in voxels."""


@dataclass(frozen=True, eq=False, repr=False)
class Displacement:
    """How far each place moves, in source voxels.

    Examples
    --------
    >>> control = np.zeros((3, 4, 4, 4))
    >>> control[0] = 2.5  # every point moves by the same amount, so everything does
    >>> field = Displacement(control, np.diag([0.25, 0.25, 0.25, 1]))
    >>> i, j, k = np.ogrid[:8, :8, :8]
    >>> bool(np.allclose(field.at((i, j, k))[0], 2.5)), field.bounds[0]
    (True, (2.5, 2.5))
    """

    control: Floats
    """(3, a, b, c) float64: displacement along each source axis, in source voxels. Point ``p`` lies
    at control index ``p``; beyond the ends the last point repeats."""
    matrix: Matrix
    """4x4 float64, to the index in the control grid: from the source index in a plan, from the
    output index where ``resample`` is called."""

    def __repr__(self) -> str:
        """Return how many control points there are: a plan with all of them fills a screen."""
        return f"Displacement({' x '.join(map(str, self.control.shape[1:]))} control points)"

    def __post_init__(self) -> None:
        # Adding zero turns -0.0 into 0.0, which would tell equal fields apart by their bytes.
        control = np.array(self.control, dtype=np.float64, order="C") + 0.0
        matrix = np.array(self.matrix, dtype=np.float64) + 0.0
        if control.ndim != 4 or control.shape[0] != 3 or 0 in control.shape:
            msg = f"control points are (3, a, b, c) with a, b, c >= 1, got {control.shape}"
            raise ValueError(msg)
        if matrix.shape != (4, 4) or not np.isfinite(matrix).all():
            msg = f"the matrix of a displacement is a finite 4x4 matrix, got {self.matrix!r}"
            raise ValueError(msg)
        if not np.isfinite(control).all():
            msg = "control points are finite, got infinity or NaN among them"
            raise ValueError(msg)
        control.setflags(write=False)
        matrix.setflags(write=False)
        object.__setattr__(self, "control", control)
        object.__setattr__(self, "matrix", matrix)

    @cached_property
    def bounds(self) -> Moves:
        """Return the smallest and largest displacement that is possible, per source axis."""
        return _bounds(self.control)

    def bounds_between(self, lows: Sequence[float], highs: Sequence[float]) -> Moves:
        """Return the smallest and the largest displacement inside a box, per source axis.

        Parameters
        ----------
        lows, highs
            Smallest and largest place in the box on each axis, as the matrix takes them.
        """
        # The extremes of an affine map of a box, row by row: that of each summand.
        parts = self.matrix[:3, :3] * np.array([lows, highs], dtype=np.float64)[:, None, :]
        low = parts.min(axis=0).sum(axis=1) + self.matrix[:3, 3]
        high = parts.max(axis=0).sum(axis=1) + self.matrix[:3, 3]
        inside = []
        for a, b, size in zip(low.tolist(), high.tolist(), self.control.shape[1:], strict=True):
            # One more than the four taps on either side, whatever is rounded on the way.
            first = math.floor(min(max(a, 0.0), size - 1.0)) - 2
            last = math.floor(min(max(b, 0.0), size - 1.0)) + 3
            inside.append(slice(max(first, 0), min(last, size - 1) + 1))
        return _bounds(self.control[(slice(None), *inside)])

    def after(self, matrix: Matrix) -> Displacement:
        """Return the field of what ``matrix`` (4x4) leads here from."""
        field = object.__new__(Displacement)  # the points are shared, they may be many
        moved = self.matrix @ matrix + 0.0
        moved.setflags(write=False)
        field.__dict__.update(control=self.control, matrix=moved)
        return field

    def at(self, index: Sequence[NDArray[np.int64]]) -> Floats:
        """Return the displacement, (3, ...) float64, of whole indices.

        Parameters
        ----------
        index
            Indices i, j, k, as three arrays that broadcast against each other.
        """
        return self._at([coordinate(row, *index) for row in self.matrix[:3]])

    def at_places(self, places: Sequence[Floats]) -> Floats:
        """Return the displacement, (3, ...) float64, of places between voxels.

        Parameters
        ----------
        places
            Three arrays of float64 coordinates, of one shape.
        """
        x, y, z = places
        return self._at([row[0] * x + row[1] * y + row[2] * z + row[3] for row in self.matrix[:3]])

    def _at(self, found: Sequence[Floats]) -> Floats:
        cells, weights = [], []
        for along, size in zip(found, self.control.shape[1:], strict=True):
            place = np.clip(along, 0, size - 1)
            cell = np.floor(place)
            weights.append(_weights(place - cell))
            taps = [np.clip(cell.astype(np.intp) + n - 1, 0, size - 1) for n in range(4)]
            cells.append(taps)
        total = np.zeros((3, *np.broadcast_shapes(*(place.shape for place in found))))
        # One index into the points of an axis, which NumPy looks up much faster than three.
        points = self.control.reshape(3, -1)
        _, rows, columns = self.control.shape[1:]
        for a, b in itertools.product(range(4), repeat=2):
            row = (cells[0][a] * rows + cells[1][b]) * columns
            across = weights[0][a] * weights[1][b]
            for c in range(4):
                place, weight = row + cells[2][c], across * weights[2][c]
                for axis in range(3):
                    total[axis] += weight * points[axis].take(place)
        return total

    def to_json(self) -> dict[str, Any]:
        """Return the field as plain data."""
        return {"control": self.control.tolist(), "matrix": self.matrix.tolist()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Displacement):
            return NotImplemented
        return bool(
            np.array_equal(self.control, other.control)
            and np.array_equal(self.matrix, other.matrix)
        )

    def __hash__(self) -> int:
        return hash((self.control.tobytes(), self.matrix.tobytes()))


def _bounds(control: Floats) -> Moves:
    return tuple((float(points.min()), float(points.max())) for points in control)


def _weights(t: Floats) -> list[Floats]:
    """Return the four weights of the uniform cubic B-spline at ``t`` within a cell."""
    s = 1 - t
    return [
        s**3 / 6,
        (3 * t**3 - 6 * t**2 + 4) / 6,
        (3 * s**3 - 6 * s**2 + 4) / 6,
        t**3 / 6,
    ]
