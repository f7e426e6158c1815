"""Orientation: reorder the axes of the array until they point where they are to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...core.errors import BadHeader
from ..plans.plan import SpatialPlan
from .op import Drawn

_LETTERS = ("LR", "PA", "IS")
"""Against and along x, y, z of the world, which is RAS+."""


@dataclass(frozen=True)
class Orientation:
    """Swap and mirror the axes so that each points most nearly to its letter.

    ``"RAS"``: i towards the right, j to the front, k up, which nibabel calls closest canonical.
    Nothing is interpolated, and every voxel stays in its place in the world.

    Examples
    --------
    >>> Orientation("LPS").describe()
    'orientation LPS'
    """

    axcodes: str = "RAS"
    """Three letters, one of L and R, one of P and A, one of I and S, in the order of the axes."""

    name: ClassVar[str] = "orientation"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = self.axcodes
        is_letters = isinstance(given, (str, tuple, list)) and all(
            isinstance(g, str) for g in given
        )
        letters = "".join(given).upper() if is_letters else ""
        axes = [axis for letter in letters for axis in range(3) if letter in _LETTERS[axis]]
        if len(letters) != 3 or sorted(axes) != [0, 1, 2]:
            msg = (
                "axcodes are three letters, one of L and R, one of P and A, one of I and S, "
                f"such as 'RAS', got {given!r}"
            )
            raise ValueError(msg)
        object.__setattr__(self, "axcodes", letters)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the letters."""
        return {"axcodes": self.axcodes}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan with its axes in order.

        Raises
        ------
        BadHeader
            The affine has no inverse, so its axes point nowhere.
        """
        present = directions(plan.affine)
        matrix, shape = np.zeros((4, 4)), []
        matrix[3, 3] = 1
        for new, letter in enumerate(drawn["axcodes"]):
            world, sign = next((w, s) for w in range(3) for s in (0, 1) if _LETTERS[w][s] == letter)
            old = next(axis for axis in range(3) if present[axis][0] == world)
            turns = present[old][1] != (1 if sign else -1)
            matrix[old, new] = -1 if turns else 1
            matrix[old, 3] = plan.shape[old] - 1 if turns else 0
            shape.append(plan.shape[old])
        return plan.then(matrix, shape, lattice=True)

    def describe(self) -> str:
        """Return the letters."""
        return f"orientation {self.axcodes}"


def directions(affine: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return for each axis of the array the world axis next to it, and +1 along or -1 against.

    No two axes get the same one. As nibabel's ``io_orientation``: what counts is the rotation that
    comes nearest to the affine, shears and voxel sizes taken out.

    Parameters
    ----------
    affine
        4x4, voxel index to world.

    Raises
    ------
    BadHeader
        The affine has no inverse.

    Examples
    --------
    >>> directions(np.array([[0, -2, 0, 0], [1, 0, 0, 0], [0, 0, 3, 0], [0, 0, 0, 1]]))
    [(1, 1), (0, -1), (2, 1)]
    """
    linear = np.asarray(affine, dtype=np.float64)[:3, :3]
    lengths = np.sqrt((linear**2).sum(axis=0))
    if not np.isfinite(linear).all() or np.linalg.matrix_rank(linear) < 3:
        raise BadHeader(
            f"the affine has no inverse, so its axes point nowhere: {linear.tolist()}",
            do="Pass affine= when opening the volume.",
        )
    left, _, right = np.linalg.svd(linear / lengths)
    turn = left @ right
    found = [(0, 0)] * 3
    free = [0, 1, 2]
    # The axis with the clearest direction chooses first, the earlier one where two are as clear.
    for axis in np.argsort(-np.abs(turn).max(axis=0), kind="stable").tolist():
        world = max(free, key=lambda w, a=axis: abs(turn[w, a]))  # type: ignore[misc]
        free.remove(world)
        found[axis] = (world, 1 if turn[world, axis] >= 0 else -1)
    return found
