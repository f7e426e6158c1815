"""Elastic and GridDistortion: displacements by a field of control points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...core.errors import PatchSizeError
from ...core.grid import warn_beyond
from ...core.validate import (
    LATER,
    MILLIMETRES,
    FieldChecks,
    as_count,
    as_probability,
    bounds_of,
    entries_of,
    is_finite,
    or_none,
)
from ..plans.mapping import without_noise
from ..plans.matrices import Space
from ..plans.plan import SpatialPlan
from .affine_op import WithUnit, in_words
from .op import Amount, Params, as_amount, draw_amount, per_axis, three

# Largest move of control points, as a part of their spacing, without folds in 3-D. (Choi and Lee
# 2000, "Injectivity conditions of 2D and 3D uniform cubic B-spline functions", Graphical Models 62)
ONE_TO_ONE = 1 / 2.479472335
_MOST_SIDES = 2  # control points further apart than this many volume sides get a warning
MOST_POINTS = 128
"""Control points along an axis at most; 128^3 of them are 50 MB in the plan's memory."""


@dataclass(frozen=True)
class Elastic(WithUnit):
    """Move control points at random and all voxels smoothly with them.

    A coarse lattice of control points covers the present grid, with a uniform cubic B-spline
    between them. Each point moves by up to ``amount`` along each axis, evenly distributed, so no
    voxel moves further. Nothing folds with ``amount`` below 0.403 of the spacing.

    Examples
    --------
    >>> Elastic(5, spacing=32).describe()
    'elastic 5.0 every 32'
    """

    amount: Amount
    """Largest move of a point along each axis: a number, a range drawn per axis, or three."""
    spacing: Any = 32.0
    """Distance between control points: one number, or three."""
    locked_layers: int = 0
    """Number of layers of control points at the grid's faces that stay in place. With 2 the faces
    stay, too, to 1/48 of the amount where the spacing does not fit the grid."""
    space: Space = "world"
    """``"world"``: ``unit`` along the array's axes; ``"voxel"``: voxels."""
    p: float = 1.0
    """Probability that the op acts."""
    unit: str = field(default="mm", kw_only=True, metadata=LATER)
    """Unit of amount and spacing: ``"mm"``, ``"um"``, ...; ``"voxel"`` as ``space="voxel"``."""

    name: ClassVar[str] = "elastic"
    lattice: ClassVar[bool] = False
    displaces: ClassVar[bool] = True
    checks: ClassVar[Any] = {
        "amount": as_amount,
        "spacing": partial(as_amount, positive=True),
        "locked_layers": as_count,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        distances: Any = per_axis(self.spacing)
        if any(isinstance(entry, tuple) for entry in distances):
            raise ValueError(f"spacing is a number above 0 or three, got {self.spacing!r}")
        entries = zip(per_axis(self.amount), distances, strict=True)
        for axis, (entry, distance) in enumerate(entries):
            least, most = bounds_of(entry)
            if least < 0:
                raise ValueError(f"amount is a distance of at least 0, got {self.amount!r}")
            if most >= ONE_TO_ONE * distance:
                raise ValueError(
                    f"a displacement of up to {most:g} with control points every {distance:g} "
                    f"(axis {axis}) can fold; allowed is less than {ONE_TO_ONE:.3f} of that: "
                    f"amount < {ONE_TO_ONE * distance:.3g}, or spacing > {most / ONE_TO_ONE:.3g}"
                )

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        acts = generator.random() < self.p
        amount = draw_amount(generator, self.amount)
        # 53 bits, which every JSON reader keeps.
        key = int(generator.random() * 2**53)
        return {"amount": amount, "key": key} if acts else None

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        sizes: Sequence[float] = (1.0, 1.0, 1.0)
        distances: Any = per_axis(self.spacing)
        if self.space == "world":
            sizes = [size / MILLIMETRES[self.unit] for size in plan.grid.spacing]
            most = max(*params["amount"], *distances) * MILLIMETRES[self.unit]
            if most > _MOST_SIDES * plan.source.longest:
                warn_beyond(self.name, self.unit, most, plan.source)
        spacing = [d / s for d, s in zip(distances, sizes, strict=True)]
        if not any(params["amount"]):
            return plan.interpolate()
        # Points cover all voxel centres, in the middle; rounding must not add one where they fit.
        extents = [(n - 1, d) for n, d in zip(plan.shape, spacing, strict=True)]
        counts = [math.ceil(without_noise(extent / d)) + 1 for extent, d in extents]
        if max(counts) > MOST_POINTS:
            raise PatchSizeError(
                f"elastic() needs {'x'.join(map(str, counts))} control points over "
                f"{plan.shape} voxels, and takes {MOST_POINTS} per axis at most",
                do="Give it a larger spacing, or put it after lazy_patch(), over patches.",
            )
        generator = np.random.Generator(np.random.Philox(key=int(params["key"])))
        points = 2 * generator.random((3, *counts)) - 1
        for axis, (amount, size) in enumerate(zip(params["amount"], sizes, strict=True)):
            # Nothing moves along an axis of one voxel: 2-D data stay in their plane.
            points[axis] *= amount / size if plan.shape[axis] > 1 else 0.0
            if self.locked_layers and counts[axis] > 1:
                along = np.moveaxis(points, axis + 1, 0)
                along[: self.locked_layers] = 0
                along[-self.locked_layers :] = 0
        # The outermost points come twice, so that the field is smooth where it ends.
        control = np.pad(points, [(0, 0), (1, 1), (1, 1), (1, 1)], mode="edge")
        matrix = np.diag([*(1 / d for d in spacing), 1.0])
        starts = [
            (extent - (n - 1) * d) / 2 for n, (extent, d) in zip(counts, extents, strict=True)
        ]
        matrix[:3, 3] = [1 - a / d for a, d in zip(starts, spacing, strict=True)]
        return plan.displace(control, matrix)

    def describe(self) -> str:
        each = [f"{distance:g}" for distance in entries_of(self.spacing) or [self.spacing]]
        spacing = f"({', '.join(each)})" if len(each) > 1 else each[0]
        unit = "" if self.unit in ("mm", "voxel") else f" {self.unit}"
        return f"elastic {self.amount} every {spacing}{unit}{in_words(self.space, self.p)}"


POINTS_PER_CELL = 4
"""Control points of the spline per cell: straight over the middle half of each cell."""
MOST_CELLS = 16
"""Cells along an axis at most: 67 control points, 7 MB in a plan."""


def _as_limit(name: str, limit: Any) -> tuple[float, float]:
    pair = (-limit, limit) if is_finite(limit) else entries_of(limit)
    if len(pair) != 2 or not all(map(is_finite, pair)) or not -1 < pair[0] <= pair[1]:
        raise ValueError(
            f"{name} is a pair (low, high) with -1 < low <= high, or a number from 0 and below 1; "
            f"got {limit!r}: a factor of 0 or less would fold"
        )
    return (float(pair[0]), float(pair[1]))


def _as_factors(name: str, factors: Any) -> tuple[tuple[float, ...], ...]:
    axes = [entries_of(axis) for axis in entries_of(factors)]
    sound = len(axes) == 3 and all(
        axis and all(is_finite(f) and f > 0 for f in axis) for axis in axes
    )
    if not sound:
        raise ValueError(f"{name} are three sequences of finite numbers above 0, got {factors!r}")
    return tuple(tuple(float(f) for f in axis) for axis in axes)


@dataclass(frozen=True)
class GridDistortion(FieldChecks):
    """Stretch or squeeze each cell of a coarse grid along each axis, by a factor of its own.

    An axis of n voxels has ``cells`` cells of ``n / cells`` voxels. A cell shows the content of its
    factor times as many voxels, from the end of the cell before. So a factor above 1 squeezes
    content. The first face of the grid stays in place. The map along an axis is piecewise linear,
    in one displacement of the plan. Its spline rounds the corners within a quarter of a cell, by at
    most 1/24 of a cell times the difference of the factors.

    Examples
    --------
    >>> GridDistortion(0.2, cells=4).describe()
    'grid distortion by 0.8 to 1.2 in 4 cells'
    """

    limit: Any = (-0.03, 0.03)
    """Factors are drawn evenly from 1 + low to 1 + high, for each cell of each axis. A pair (low,
    high), or one number x for (-x, x); above -1, so nothing folds."""
    cells: Any = 5
    """Cells along each axis: one number, or three; not used with ``factors``."""
    factors: Any = None
    """Factors that are given instead: for each of the three axes one per cell, above 0."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "grid_distortion"
    lattice: ClassVar[bool] = False
    displaces: ClassVar[bool] = True
    checks: ClassVar[Any] = {
        "limit": _as_limit,
        "cells": partial(three, least=1),
        "factors": or_none(_as_factors),
        "p": as_probability,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self._counts) > MOST_CELLS:
            msg = f"{self.name} has 1 to {MOST_CELLS} cells along an axis, got {max(self._counts)}"
            raise ValueError(msg)

    @property
    def _counts(self) -> tuple[int, ...]:
        return tuple(map(len, self.factors or ())) or self.cells

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        acts = generator.random() < self.p
        low, high = self.limit
        numbers = generator.random(sum(self._counts))
        by_axis = np.split(1 + low + (high - low) * numbers, np.cumsum(self._counts)[:-1])
        factors = self.factors or [axis.tolist() for axis in by_axis]
        return {"factors": [list(axis) for axis in factors]} if acts else None

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        along, scales, shifts = [], [], []
        for n, factors in zip(plan.shape, params["factors"], strict=True):
            if n == 1:  # no room to move along: 2-D data stay in their plane
                along.append(np.zeros(1))
                distance = 1.0
            else:
                distance = n / len(factors) / POINTS_PER_CELL
                along.append(self._points(np.array(factors), distance))
            # The second point is at the outer face of the first voxel.
            scales.append(1 / distance)
            shifts.append(0.5 / distance + 1)
        control = np.zeros((3, *(len(points) for points in along)))
        for axis, points in enumerate(along):
            control[axis] = points.reshape([-1 if other == axis else 1 for other in range(3)])
        matrix = np.diag([*scales, 1.0])
        matrix[:3, 3] = shifts
        return plan.displace(control, matrix)

    def _points(self, factors: NDArray[np.float64], distance: float) -> NDArray[np.float64]:
        """Return control points of one axis: how far the content at each is moved, in voxels."""
        steps = np.repeat(factors - 1, POINTS_PER_CELL) * distance
        points = np.concatenate([[0.0], np.cumsum(steps)])
        # One more on either side, in line: the spline is straight up to the faces.
        return np.concatenate([[-steps[0]], points, [points[-1] + steps[-1]]])

    def describe(self) -> str:
        counts = self._counts
        cells = str(counts[0]) if len(set(counts)) == 1 else "x".join(map(str, counts))
        if self.factors is not None:
            how = f"by {self.factors}"
        else:
            how = f"by {1 + self.limit[0]:g} to {1 + self.limit[1]:g}"
        return f"grid distortion {how} in {cells} cells{in_words('world', self.p)}"


OPS = (Elastic, GridDistortion)
