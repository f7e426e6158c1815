"""Boxes of a case, moved as its volumes are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from ...core import Sample
from ...core.errors import SampleError
from ...graph import Pipe
from ...spatial import LazyPatch
from ...spatial.lazy.made_volume import whole_plan
from ..datapipe import PerItem, chained, wrong_item


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
    """

    def __init__(
        self,
        parent: Pipe,
        keys: str | Collection[str] = "boxes",
        *,
        of: str | None = None,
        least: float = 0.5,
    ) -> None:
        super().__init__(parent)
        self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self.of = of
        if isinstance(least, bool) or not isinstance(least, (int, float)) or not 0 <= least <= 1:
            msg = f"least is a part from 0 to 1, got {least!r}"
            raise SampleError(msg).at(self.origin)
        self.least = float(least)

    def apply(self, item: Any) -> Sample:
        """Return the sample with its boxes moved."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample", "Put move_boxes() before batch_patches().")
        plan = whole_plan(self._patch(item))
        moved = {}
        for key in self.keys:
            if key not in item:
                msg = f"move_boxes() is to move {key!r}, but the sample has {', '.join(item)}"
                raise SampleError(msg, do="Name entries of the case.").at(self.origin, item.case)
            try:
                found = plan.boxes_to_output(np.reshape(np.asarray(item[key], float), (-1, 6)))
            except (TypeError, ValueError) as error:
                msg = f"{key!r} holds no boxes (N, 6) that can be moved: {error}"
                raise SampleError(msg).at(self.origin, item.case) from None
            moved[key] = self._kept(found, plan.shape).tolist()
        return item.with_data(**moved)

    def _patch(self, item: Sample) -> LazyPatch:
        lazy = {key: thing for key, thing in item.items() if isinstance(thing, LazyPatch)}
        of = next(iter(lazy), None) if self.of is None else self.of
        if of not in lazy:
            told = f"the lazy volumes are {', '.join(lazy)}" if lazy else "no volume is lazy"
            msg = f"boxes move with {'one' if of is None else repr(of)}, but {told}"
            do = "Put move_boxes() after open_volume()."
            if item.patches:
                do = "Put move_boxes() before realize(): it asks plans, not voxels."
            raise SampleError(msg, do=do).at(self.origin, item.case)
        return lazy[of]

    def _kept(self, boxes: Any, shape: tuple[int, int, int]) -> Any:
        if self.least == 0:
            return boxes
        faces = np.array([-0.5] * 3), np.array(shape) - 0.5
        low, high = np.maximum(boxes[:, :3], faces[0]), np.minimum(boxes[:, 3:], faces[1])
        # An axis along which a box has no extent counts as inside where it is inside.
        extent, inside = boxes[:, 3:] - boxes[:, :3], np.maximum(high - low, 0)
        parts = np.where(extent > 0, inside / np.where(extent > 0, extent, 1), high >= low)
        return np.concatenate([low, high], axis=1)[np.prod(parts, axis=1) >= self.least]
