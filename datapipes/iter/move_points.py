"""Points of a case, moved as its volumes are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from ...core import Sample
from ...core.errors import SampleError
from ...graph import Pipe
from ..datapipe import PerItem, chained, wrong_item
from .moving import entry, kept_beside, moving_with, names_of


@chained("move_points")
class MovePoints(PerItem):
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

    def __init__(
        self,
        parent: Pipe,
        keys: str | Collection[str] = "points",
        *,
        of: str | None = None,
        inside: bool = True,
        with_: str | Collection[str] = (),
    ) -> None:
        super().__init__(parent)
        self.keys, self.with_ = names_of(keys), names_of(with_)
        if self.with_ and len(self.keys) != 1:
            msg = f"with_= goes with the points of one key, got {self.keys}"
            raise SampleError(msg, do="Write a move_points() for each.").at(self.origin)
        self.of = of
        self.inside = inside

    def apply(self, item: Any) -> Sample:
        """Return the sample with its points moved."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample", "Put move_points() before batch_patches().")
        plan = moving_with(item, self.of, "points", self.origin).whole_plan
        moved: dict[str, Any] = {}
        kept: Any = []
        for key in self.keys:
            given = entry(item, key, "move_points", self.origin)
            try:
                found = plan.points_to_output(np.reshape(np.asarray(given, float), (-1, 3)))
            except (TypeError, ValueError) as error:
                msg = f"{key!r} holds no points (N, 3) that can be moved: {error}"
                raise SampleError(msg).at(self.origin, item.case) from None
            within = ((found >= -0.5) & (found <= np.array(plan.shape) - 0.5)).all(axis=1)
            kept = within if self.inside else np.ones(len(found), bool)
            moved[key] = found[kept].tolist()
        beside = kept_beside(item, self.with_, list(kept), "move_points", self.origin)
        return item.with_data(**moved, **beside)
