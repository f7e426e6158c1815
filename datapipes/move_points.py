"""Points of a case, moved as its volumes are."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ..graph import Pipe
from ..spatial import SpatialPlan
from .forms import chained
from .moving import Moving, Rows


@chained("move_points")
class MovePoints(Moving):
    """Bring points from the voxels of the stored volume to those of the patch.

    Integers are voxel centres. It stands after the spatial pipes. No voxel is read.

    Parameters
    ----------
    keys
        Entries of the case that hold points (N, 3): lists, or arrays that ``open_volume`` was told
        to leave alone by its ``keys=``.
    of
        Volume whose plan moves them; by default the first lazy one.
    inside
        Whether points outside the patch are left out.
    with_
        Entries of one row per point, such as their classes: of these the same rows are left out. It
        takes one key of points.

    Raises
    ------
    SampleError
        A key is missing, holds no points, or a displacement that folds leads nowhere.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"image": np.zeros((8, 8, 8)), "points": [[7, 3, 3], [0, 0, 0]], "of": ["a", "b"]}
    >>> pipe = from_cases([case]).open_volume(keys=["image"]).flip(0).crop((0, 2, 2), (4, 4, 4))
    >>> sample = next(iter(pipe.move_points(with_="of")))
    >>> sample["points"], sample["of"]
    ([[0.0, 1.0, 1.0]], ['a'])
    """

    what = "points"
    columns = 3

    def __init__(
        self,
        parent: Pipe,
        keys: str | Collection[str] = "points",
        *,
        of: str | None = None,
        inside: bool = True,
        with_: str | Collection[str] = (),
    ) -> None:
        super().__init__(parent, keys, of, with_)
        self.inside = inside

    def to_output(self, plan: SpatialPlan, rows: Rows) -> Rows:
        """Return the points where ``plan`` moves them."""
        return plan.points_to_output(rows)

    def within(self, rows: Rows, shape: tuple[int, int, int]) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the points as they are, and which of them stay."""
        inside = ((rows >= -0.5) & (rows <= np.array(shape) - 0.5)).all(axis=1)
        return rows, np.asarray(inside) if self.inside else np.ones(len(rows), bool)
