"""Boxes of a case, moved as its volumes are."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ..core.amounts import is_number
from ..core.errors import SampleError
from ..graph import Pipe
from ..spatial import SpatialPlan
from .forms import chained
from .moving import Moving, Rows


@chained("move_boxes")
class MoveBoxes(Moving):
    """Bring boxes from the voxels of the stored volume to those of the patch.

    A box is (i, j, k, i, j, k), its lowest and its highest corner; integers are voxel centres. It
    stands after the spatial pipes. No voxel is read.

    Parameters
    ----------
    keys
        Entries of the case that hold boxes (N, 6): lists, or arrays that ``open_volume`` was told
        to leave alone by its ``keys=``.
    of
        Volume whose plan moves them; by default the first lazy one.
    least
        Part of a box that lies in the patch, at least; others are left out. What hangs over is
        cut off. 0 keeps every box whole, also those outside.
    with_
        Entries of one row per box, such as their classes: of these the same rows are left out. It
        takes one key of boxes.

    Raises
    ------
    SampleError
        A key is missing, or holds no boxes.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"image": np.zeros((8, 8, 8), np.int16), "boxes": [[0, 1, 2, 3, 4, 5]]}
    >>> pipe = from_cases([case]).open_volume(keys=["image"]).flip(0).crop((2, 2, 2), (6, 6, 6))
    >>> next(iter(pipe.move_boxes()))["boxes"]
    [[2.0, -0.5, 0.0, 5.0, 2.0, 3.0]]

    Boxes as an array, with their classes: ``keys=`` says what is a volume.

    >>> boxes = np.array([[0, 1, 2, 3, 4, 5], [6, 6, 6, 7, 7, 7]])
    >>> case = {"image": np.zeros((8, 8, 8)), "boxes": boxes, "classes": ["cyst", "tumour"]}
    >>> pipe = from_cases([case]).open_volume(keys=["image"]).crop((5, 5, 5), (3, 3, 3))
    >>> sample = next(iter(pipe.move_boxes(with_="classes")))
    >>> sample["boxes"], sample["classes"]
    ([[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]], ['tumour'])
    """

    what = "boxes"
    columns = 6

    def __init__(
        self,
        parent: Pipe,
        keys: str | Collection[str] = "boxes",
        *,
        of: str | None = None,
        least: float = 0.5,
        with_: str | Collection[str] = (),
    ) -> None:
        super().__init__(parent, keys, of, with_)
        if not is_number(least) or not 0 <= least <= 1:
            msg = f"least is a part from 0 to 1, got {least!r}"
            raise SampleError(msg).at(self.origin)
        self.least = float(least)

    def to_output(self, plan: SpatialPlan, rows: Rows) -> Rows:
        """Return the boxes where ``plan`` moves them."""
        return plan.boxes_to_output(rows)

    def within(self, rows: Rows, shape: tuple[int, int, int]) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the boxes cut at the faces of the patch, and which of them stay."""
        if self.least == 0:
            return rows, np.ones(len(rows), bool)
        faces = np.array([-0.5] * 3), np.array(shape) - 0.5
        low, high = np.maximum(rows[:, :3], faces[0]), np.minimum(rows[:, 3:], faces[1])
        # An axis along which a box has no extent counts as inside where it is inside.
        extent, inside = rows[:, 3:] - rows[:, :3], np.maximum(high - low, 0)
        parts = np.where(extent > 0, inside / np.where(extent > 0, extent, 1), high >= low)
        return np.concatenate([low, high], axis=1), np.prod(parts, axis=1) >= self.least
