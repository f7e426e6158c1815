"""Boxes of a case, moved as its volumes are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from ...core import Sample
from ...core.errors import SampleError
from ...graph import Pipe
from ..datapipe import PerItem, chained, wrong_item
from .moving import entry, kept_beside, moving_with, names_of


@chained("move_boxes")
class MoveBoxes(PerItem):
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

    def __init__(
        self,
        parent: Pipe,
        keys: str | Collection[str] = "boxes",
        *,
        of: str | None = None,
        least: float = 0.5,
        with_: str | Collection[str] = (),
    ) -> None:
        super().__init__(parent)
        self.keys, self.with_ = names_of(keys), names_of(with_)
        if self.with_ and len(self.keys) != 1:
            msg = f"with_= goes with the boxes of one key, got {self.keys}"
            raise SampleError(msg, do="Write a move_boxes() for each.").at(self.origin)
        self.of = of
        if isinstance(least, bool) or not isinstance(least, (int, float)) or not 0 <= least <= 1:
            msg = f"least is a part from 0 to 1, got {least!r}"
            raise SampleError(msg).at(self.origin)
        self.least = float(least)

    def apply(self, item: Any) -> Sample:
        """Return the sample with its boxes moved."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample", "Put move_boxes() before batch_patches().")
        plan = moving_with(item, self.of, "boxes", self.origin).whole_plan
        moved: dict[str, Any] = {}
        kept: Any = []
        for key in self.keys:
            given = entry(item, key, "move_boxes", self.origin)
            try:
                found = plan.boxes_to_output(np.reshape(np.asarray(given, float), (-1, 6)))
            except (TypeError, ValueError) as error:
                msg = f"{key!r} holds no boxes (N, 6) that can be moved: {error}"
                raise SampleError(msg).at(self.origin, item.case) from None
            found, kept = self._cut(found, plan.shape)
            moved[key] = found[kept].tolist()
        beside = kept_beside(item, self.with_, list(kept), "move_boxes", self.origin)
        return item.with_data(**moved, **beside)

    def _cut(self, boxes: Any, shape: tuple[int, int, int]) -> tuple[Any, Any]:
        """Return the boxes cut at the faces of the patch, and which of them stay."""
        if self.least == 0:
            return boxes, np.ones(len(boxes), bool)
        faces = np.array([-0.5] * 3), np.array(shape) - 0.5
        low, high = np.maximum(boxes[:, :3], faces[0]), np.minimum(boxes[:, 3:], faces[1])
        # An axis along which a box has no extent counts as inside where it is inside.
        extent, inside = boxes[:, 3:] - boxes[:, :3], np.maximum(high - low, 0)
        parts = np.where(extent > 0, inside / np.where(extent > 0, extent, 1), high >= low)
        return np.concatenate([low, high], axis=1), np.prod(parts, axis=1) >= self.least
