"""What of a grid stays in its place when its voxels get another size: edges or centres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from ...core.rows import Rows, Vector, affine
from ..amounts import as_choice
from ..plans.matrices import about_centre, scaling

Extent = Literal["edges", "centers"]
"""``"edges"``: a voxel is a box, and the outer faces of the first and the last box count;
``"centers"``: a voxel is a point, and the first and the last point count."""
EXTENTS = ("edges", "centers")


def as_extent(value: str) -> Extent:
    """Return ``value`` if it names an extent.

    Raises
    ------
    ValueError
        It does not.
    """
    return cast("Extent", as_choice("extent", value, EXTENTS))


def stepping(steps: Sequence[float], before: Sequence[int], after: Sequence[int]) -> Rows:
    """Return the pull-back of ``after`` voxels that are ``steps`` apart, about the same centre.

    Parameters
    ----------
    steps
        Distance of neighbours on each axis, in present voxels.
    before, after
        Shape of the present and of the new grid.

    Examples
    --------
    >>> stepping((2, 1, 1), (8, 8, 8), (4, 8, 8))[:4]
    (2, 0.0, 0.0, 0.5)
    """
    return about_centre(scaling(steps), before, after)


def stepping_from_first(steps: Sequence[float]) -> Rows:
    """Return the pull-back of voxels that are ``steps`` apart, the first one where it was."""
    nowhere: Vector = (0.0, 0.0, 0.0)
    return affine(scaling(steps), nowhere)
