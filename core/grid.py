"""The grid of a volume: its shape and affine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .affine3x4 import Affine3x4, affine3x4, apply, inverse, linear_of, product
from .call_site import WarnOnce
from .errors import LikelyMistake
from .lru_cache import cached_property
from .region import Region
from .validate import MILLIMETRES

Affine = NDArray[np.float64]
"""A 4x4 matrix of float64 that acts on homogeneous column vectors."""

GRID_TOLERANCE = 1e-2
"""Largest distance between the corners of one case's grids, in voxels. Affines that went
through float32 headers differ by about 1e-4 voxels; a real misalignment is a voxel or more."""
_LEAST_IN_MM = 0.1  # below it spacings are printed in micrometres, then in nanometres
_SMALLEST = float(np.finfo(float).tiny)
XYZ, PLAIN = "xyz", "ijk"
AS_READ = (XYZ, PLAIN)
"""Orders of axes as they are read: with names, and without."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A lattice of voxel centres in world millimetres, RAS+.

    ``affine @ (i, j, k, 1)`` is the world position of the *centre* of voxel
    ``(i, j, k)``, as in nibabel.

    Examples
    --------
    >>> grid = Grid((10, 10, 5), np.diag([1.0, 1.0, 2.0, 1.0]))
    >>> grid.spacing
    (1.0, 1.0, 2.0)
    >>> grid.centre_index
    (4.5, 4.5, 2.0)
    """

    shape: tuple[int, int, int]
    """Number of voxels on each axis, (I, J, K)."""
    affine: Affine
    """4x4 float64, voxel index to world millimetres."""
    axes: str = XYZ
    """Names of the axes in their order; ``"ijk"`` where a file does not name them. A name less
    hides the last axis, of one voxel."""

    def __post_init__(self) -> None:
        shape = tuple(map(int, self.shape))
        if len(shape) != 3:
            raise ValueError(f"a grid has three axes (2-D data have K = 1), got shape {self.shape}")
        affine = np.array(self.affine, dtype=np.float64)
        if affine.shape != (4, 4):
            raise ValueError(f"an affine is 4x4, got {affine.shape}")
        affine.setflags(write=False)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "affine", affine)

    @cached_property
    def region(self) -> Region:
        """All voxels."""
        return Region((0, 0, 0), self.shape)

    @cached_property
    def rows(self) -> Affine3x4:
        """Return the first three rows of the affine, as plain floats."""
        return affine3x4(self.affine)

    @cached_property
    def is_singular(self) -> bool:
        """Whether the affine has no inverse; True if it has NaN."""
        a, b, c, _, d, e, f, _, g, h, i, _ = self.rows
        determinant = a * (e * i - f * h) + b * (f * g - d * i) + c * (d * h - e * g)
        return not abs(determinant) >= _SMALLEST

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Distance between neighbouring voxel centres on each axis, in millimetres."""
        lengths = np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0))
        return (float(lengths[0]), float(lengths[1]), float(lengths[2]))

    @cached_property
    def longest(self) -> float:
        """Length of the longest side in millimetres, outer faces included."""
        return max(n * s for n, s in zip(self.shape, self.spacing, strict=True))

    @property
    def centre_index(self) -> tuple[float, float, float]:
        """Voxel index of the centre, between two voxels where a length is even."""
        i, j, k = self.shape
        return ((i - 1) / 2, (j - 1) / 2, (k - 1) / 2)

    @cached_property
    def centre(self) -> NDArray[np.float64]:
        """World position of the centre, in millimetres."""
        centre: NDArray[np.float64] = self.affine[:3, :3] @ self.centre_index + self.affine[:3, 3]
        return centre

    def corners(self) -> NDArray[np.float64]:
        """Return the (8, 3) voxel indices of the corners, half a voxel outside of the centres."""
        ends = [(-0.5, n - 0.5) for n in self.shape]
        return np.array(np.meshgrid(*ends, indexing="ij"), dtype=np.float64).reshape(3, -1).T

    def distance_in_voxels(self, other: Grid) -> float:
        """Return the largest distance between the corners of two grids, in voxels of this grid.

        The distance is infinite if the shapes differ or this affine is singular. Measured at
        the corners and in voxels, one tolerance fits every spacing and extent.
        """
        if self.shape != other.shape or self.is_singular:
            return float("inf")
        if self.rows == other.rows:
            return 0.0
        # The displacement is linear in the voxel index: largest at a corner.
        off = affine3x4(other.affine - self.affine)
        back = inverse(linear_of(self.rows))
        matrix, shifts = product(back, linear_of(off)), apply(back, off[3::4])
        farthest = []
        for axis, shift in enumerate(shifts):
            each = matrix[3 * axis : 3 * axis + 3]
            ends = [m * (n - 1) for m, n in zip(each, self.shape, strict=True)]
            farthest.append(shift + sum(min(end, 0.0) for end in ends))
            farthest.append(shift + sum(max(end, 0.0) for end in ends))
        distances = list(map(abs, farthest))
        return max(distances) if math.isfinite(sum(distances)) else float("inf")

    def difference(self, other: Grid) -> str:
        """Return how another grid differs; empty if no corner is beyond ``GRID_TOLERANCE``."""
        distance = self.distance_in_voxels(other)
        if distance <= GRID_TOLERANCE:
            return ""
        if self.shape != other.shape:
            return f"have different shapes, {self.shape} and {other.shape}"
        return f"lie {distance:.3g} voxels apart (at most {GRID_TOLERANCE:g} is accepted)"

    def covers(self, other: Grid) -> bool:
        """Whether it has the extent of another grid, within a voxel; planes have any thickness."""
        if not np.isfinite([self.affine, other.affine]).all() or other.is_singular:
            return False
        to_other = np.linalg.inv(other.affine) @ self.affine
        corners = to_other[:3, :3] @ self.corners().T + to_other[:3, 3:]
        lengths = np.array(other.shape)
        off = np.maximum(abs(corners.min(axis=1) + 0.5), abs(corners.max(axis=1) - lengths + 0.5))
        is_near = off <= np.maximum(1.0, abs(to_other[:3, :3]).max(axis=1)) + 1e-3  # rounding
        return bool((is_near | ((lengths == 1) & (min(self.shape) == 1))).all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return NotImplemented
        return self.shape == other.shape and bool(np.array_equal(self.affine, other.affine))

    def __hash__(self) -> int:
        return hash((self.shape, self.affine.tobytes()))

    def to_json(self) -> dict[str, Any]:
        """Return the grid as plain data."""
        return {"shape": list(self.shape), "affine": self.affine.tolist()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Grid:
        """Return the grid that :meth:`to_json` described."""
        return cls(data["shape"], np.array(data["affine"]))

    def __repr__(self) -> str:
        unit = unit_for(self.spacing)
        spacing = " ".join(f"{s / MILLIMETRES[unit]:g}" for s in self.spacing)
        return f"Grid({'x'.join(map(str, self.shape))} at {spacing} {unit})"


def numbers_of_axes(axes: str) -> tuple[int, int, int]:
    """Return the axes of the world in the order of names; a missing name is that of the last one.

    Examples
    --------
    >>> numbers_of_axes("zyx"), numbers_of_axes("yx"), numbers_of_axes("ij")
    ((2, 1, 0), (1, 0, 2), (0, 1, 2))
    """
    names = PLAIN if axes[0] in PLAIN else XYZ
    first, *others = (*axes, *(name for name in names if name not in axes))
    return (names.index(first), names.index(others[0]), names.index(others[1]))


_BEYOND = WarnOnce()


def unit_for(spacing: Sequence[float]) -> str:
    """Return the unit in which people write such lengths in millimetres: mm, um or nm."""
    largest = max(spacing)
    if largest >= _LEAST_IN_MM:
        return "mm"
    return "um" if largest >= _LEAST_IN_MM / 1e3 else "nm"


def warn_beyond(name: str, unit: str, length: float, grid: Grid) -> None:
    """Warn of a length above the longest side of a volume: once for each op, unit and size.

    Volumes of one power of ten count as one size, as those of a data set.
    """
    size = math.floor(math.log10(grid.longest))
    others = "" if name == "spacing" else ', or unit="voxel"'
    text = (
        f"length-beyond-volume: {name} of {length:g} mm is more than the longest side of the "
        f'volume, {grid.longest:g} mm; the amount is in {unit}. Write unit="um", or another '
        f"unit of length{others}."
    )
    _BEYOND.warn((name, unit, size), text, LikelyMistake)
