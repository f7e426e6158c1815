"""Grid distortion: the cells of a coarse grid stretched and squeezed, axis by axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...core.validate import as_flag, as_probability, entries_of, is_finite
from ..plans.plan import SpatialPlan
from .affine_op import in_words
from .op import Drawn
from .parameters import three

POINTS_PER_CELL = 4
"""Control points of the spline per cell: straight over the middle half of each cell."""
MOST_CELLS = 16
"""Cells along an axis at most: 67 control points, 7 MB in a plan."""


@dataclass(frozen=True)
class GridDistortion:
    """Stretch or squeeze each cell of a coarse grid along each axis, by a factor of its own.

    An axis of n voxels has ``cells`` cells of ``n / cells`` voxels. A cell shows what its factor
    times as many voxels held, beginning where the cell before ended; so a factor above 1
    squeezes content. The first face of the grid stays where it is. Along each axis that
    is a chain of straight pieces. It is one displacement of the plan, whose spline rounds the
    corners: within a quarter of a cell to either side, by 1/24 of a cell times the difference of
    the two factors at most.

    Examples
    --------
    >>> GridDistortion(0.2, cells=4).describe()
    'grid distortion by 0.8 to 1.2 in 4 cells'
    """

    limit: Any = (-0.03, 0.03)
    """Factors are drawn evenly from 1 + low to 1 + high, for each cell of each axis: a pair
    (low, high), or one number x for (-x, x); above -1, so nothing folds."""
    cells: Any = 5
    """Cells along each axis: one number, or three."""
    factors: Any = None
    """Factors that are given instead: for each of the three axes one per cell, above 0."""
    keep_faces: bool = False
    """Whether the last face stays as well: the factors of an axis are divided by their mean."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "grid_distortion"
    lattice: ClassVar[bool] = False
    displaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", _as_limit(self.limit))
        cells = three("cells", self.cells, least=1)
        if self.factors is not None:
            object.__setattr__(self, "factors", _as_factors(self.factors))
            cells = tuple(len(axis) for axis in self.factors)  # type: ignore[assignment]
        if max(cells) > MOST_CELLS:
            msg = f"{self.name} has 1 to {MOST_CELLS} cells along an axis, got {max(cells)}"
            raise ValueError(msg)
        object.__setattr__(self, "cells", cells)
        object.__setattr__(self, "keep_faces", as_flag("keep_faces", self.keep_faces))
        object.__setattr__(self, "p", as_probability("p", self.p))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the factors of each axis, or None."""
        acts = generator.random() < self.p
        low, high = self.limit
        numbers = generator.random(sum(self.cells))
        drawn = np.split(1 + low + (high - low) * numbers, np.cumsum(self.cells)[:-1])
        factors = self.factors or [axis.tolist() for axis in drawn]
        return {"factors": [list(axis) for axis in factors]} if acts else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the distorted plan."""
        along, scales, shifts = [], [], []
        for n, factors in zip(plan.shape, drawn["factors"], strict=True):
            if n == 1:  # no room to move along: 2-D data stay in their plane
                along.append(np.zeros(1))
                distance = 1.0
            else:
                distance = n / len(factors) / POINTS_PER_CELL
                along.append(self._points(np.array(factors), distance))
            # The first point but one lies on the outer face of the first voxel.
            scales.append(1 / distance)
            shifts.append(0.5 / distance + 1)
        control = np.zeros((3, *(len(points) for points in along)))
        for axis, points in enumerate(along):
            control[axis] = points.reshape([-1 if other == axis else 1 for other in range(3)])
        matrix = np.diag([*scales, 1.0])
        matrix[:3, 3] = shifts
        return plan.displaced(control, matrix)

    def _points(self, factors: NDArray[np.float64], distance: float) -> NDArray[np.float64]:
        """Return control points of one axis: how far the content at each is moved, in voxels."""
        if self.keep_faces:
            factors = factors / factors.mean()
        steps = np.repeat(factors - 1, POINTS_PER_CELL) * distance
        points = np.concatenate([[0.0], np.cumsum(steps)])
        # One more on either side, in line: the spline is straight up to the faces.
        return np.concatenate([[-steps[0]], points, [points[-1] + steps[-1]]])

    def describe(self) -> str:
        """Return how much, in words."""
        cells = str(self.cells[0]) if len(set(self.cells)) == 1 else "x".join(map(str, self.cells))
        if self.factors is not None:
            how = f"by {self.factors}"
        else:
            how = f"by {1 + self.limit[0]:g} to {1 + self.limit[1]:g}"
        return f"grid distortion {how} in {cells} cells{in_words('world', self.p)}"


def _as_limit(limit: Any) -> tuple[float, float]:
    pair = (-limit, limit) if is_finite(limit) else entries_of(limit)
    if len(pair) != 2 or not all(map(is_finite, pair)) or not -1 < pair[0] <= pair[1]:
        msg = (
            "limit is a pair (low, high) with -1 < low <= high, or a number from 0 and below 1; "
            f"got {limit!r}: a factor of 0 or less would fold"
        )
        raise ValueError(msg)
    return (float(pair[0]), float(pair[1]))


def _as_factors(factors: Any) -> tuple[tuple[float, ...], ...]:
    axes = [entries_of(axis) for axis in entries_of(factors)]
    sound = len(axes) == 3 and all(
        axis and all(is_finite(f) and f > 0 for f in axis) for axis in axes
    )
    if not sound:
        msg = f"factors are three sequences of finite numbers above 0, got {factors!r}"
        raise ValueError(msg)
    return tuple(tuple(float(f) for f in axis) for axis in axes)
