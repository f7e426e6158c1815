"""Move points and boxes as the patch that they belong to was moved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core import Sample
from ..core.errors import SampleError, missing_key_hint
from ..core.validate import is_number
from ..graph import Pipe
from ..spatial import SpatialPlan
from ..spatial.lazy.lazy_patch import patches_of
from .datapipe import PerItem, chained_form, wrong_item

Rows = NDArray[np.float64]


class MovePlaces(PerItem):
    """A pipe that brings places from the voxels of the stored volume to those of the patch."""

    what: ClassVar[str]  # the places, as the user calls them
    columns: ClassVar[int]  # numbers of one place
    move: Callable[[SpatialPlan, Rows], Rows]  # places (N, columns), as a plan does

    def __init__(
        self,
        parent: Pipe,
        keys: str | Collection[str],
        key: str | None,
        row_keys: str | Collection[str],
    ) -> None:
        super().__init__(parent)
        self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self.row_keys = (row_keys,) if isinstance(row_keys, str) else tuple(row_keys)
        if self.row_keys and len(self.keys) != 1:
            msg = f"row_keys= goes with the {self.what} of one key, got {self.keys}"
            raise SampleError(msg, do=f"Write a move_{self.what}() for each.").at(self.origin)
        self.key = key

    def apply(self, item: Any) -> Sample:
        if not isinstance(item, Sample):
            do = f"Put {self.form_name}() before batch_patches()."
            raise wrong_item(self, item, "a sample", do)
        lazy = patches_of(item)
        of = next(iter(lazy), None) if self.key is None else self.key
        if of not in lazy:
            have = f"the lazy volumes are {', '.join(lazy)}" if lazy else "no volume is lazy"
            msg = f"{self.what} move with {'one' if of is None else repr(of)}, but {have}"
            do = f"Put {self.form_name}() after open_volume()."
            if item.patches:
                do = f"Put {self.form_name}() before realize(): it asks plans, not voxels."
            raise SampleError(msg, do=do).at(self.origin, item.case)
        plan = lazy[of].whole_plan
        entries: dict[str, Any] = {}
        mask: Any = []
        for key in (*self.keys, *self.row_keys):
            if key not in item:
                msg = f"{self.form_name}() is to move {key!r}, but the sample has {', '.join(item)}"
                do = missing_key_hint(key, "Name entries of the case.")
                raise SampleError(msg, do=do).at(self.origin, item.case)
        for key in self.keys:
            try:
                rows = np.reshape(np.asarray(item[key], float), (-1, self.columns))
                places = self.move(plan, rows)
            except (TypeError, ValueError) as error:
                msg = f"{key!r} holds no {self.what} (N, {self.columns}) that can be moved: {error}"
                raise SampleError(msg).at(self.origin, item.case) from None
            places, mask = self.within(places, plan.shape)
            entries[key] = places[mask].tolist()
        beside = {key: self._keep_rows(item, key, list(mask)) for key in self.row_keys}
        return item.with_data(**entries, **beside)

    def _keep_rows(self, sample: Sample, key: str, mask: Sequence[bool]) -> list[Any]:
        """Return an entry that goes with places, without the rows that these have lost."""
        rows: list[Any] | None = None
        with suppress(TypeError):  # a number, an array without axes
            rows = list(sample[key])
        if rows is None or len(rows) != len(mask):
            has = "no rows" if rows is None else f"{len(rows)} rows"
            msg = f"{key!r} goes with {len(mask)} rows that {self.form_name}() moves, and has {has}"
            do = "Give row_keys= entries of one row for each."
            raise SampleError(msg, do=do).at(self.origin, sample.case)
        return [row for row, is_kept in zip(rows, mask, strict=True) if is_kept]

    def within(self, rows: Rows, shape: tuple[int, int, int]) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the places as they are in a patch of ``shape``, and which of them stay."""
        raise NotImplementedError


@chained_form("move_boxes")
class MoveBoxes(MovePlaces):
    """Bring boxes from the voxels of the stored volume to those of the patch.

    A box is (i, j, k, i, j, k), its lowest and its highest corner; integers are voxel centres. Put
    it after the spatial pipes. No voxel is read.

    Parameters
    ----------
    keys
        Entries of the case that hold boxes (N, 6): lists, or arrays that are not among the
        ``keys=`` of ``open_volume``.
    key
        Volume whose plan moves them; by default the first lazy one.
    min_fraction
        Part of a box inside the patch, at least; others are left out. Parts outside are cut off.
        Every box stays whole for 0, also those outside.
    row_keys
        Entries of one row per box, such as their classes, which lose the same rows. It requires one
        key of boxes.

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

    Boxes as an array, with their classes: ``keys=`` names the volumes.

    >>> boxes = np.array([[0, 1, 2, 3, 4, 5], [6, 6, 6, 7, 7, 7]])
    >>> case = {"image": np.zeros((8, 8, 8)), "boxes": boxes, "classes": ["cyst", "tumour"]}
    >>> pipe = from_cases([case]).open_volume(keys=["image"]).crop((5, 5, 5), (3, 3, 3))
    >>> sample = next(iter(pipe.move_boxes(row_keys="classes")))
    >>> sample["boxes"], sample["classes"]
    ([[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]], ['tumour'])
    """

    what = "boxes"
    columns = 6
    move = staticmethod(SpatialPlan.boxes_to_output)

    def __init__(
        self,
        parent: Pipe,
        keys: str | Collection[str] = "boxes",
        *,
        key: str | None = None,
        min_fraction: float = 0.5,
        row_keys: str | Collection[str] = (),
    ) -> None:
        super().__init__(parent, keys, key, row_keys)
        if not is_number(min_fraction) or not 0 <= min_fraction <= 1:
            raise SampleError(f"min_fraction is from 0 to 1, got {min_fraction!r}").at(self.origin)
        self.min_fraction = float(min_fraction)

    def within(self, rows: Rows, shape: tuple[int, int, int]) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the boxes cut at the faces of the patch, and which of them stay."""
        if self.min_fraction == 0:
            return rows, np.ones(len(rows), bool)
        faces = np.array([-0.5] * 3), np.array(shape) - 0.5
        low, high = np.maximum(rows[:, :3], faces[0]), np.minimum(rows[:, 3:], faces[1])
        # An axis along which a box has no extent counts as inside where it is inside.
        extent, inside = rows[:, 3:] - rows[:, :3], np.maximum(high - low, 0)
        parts = np.where(extent > 0, inside / np.where(extent > 0, extent, 1), high >= low)
        return np.concatenate([low, high], axis=1), np.prod(parts, axis=1) >= self.min_fraction


@chained_form("move_points")
class MovePoints(MovePlaces):
    """Bring points from the voxels of the stored volume to those of the patch.

    Integers are voxel centres. Put it after the spatial pipes. No voxel is read.

    Parameters
    ----------
    keys
        Entries of the case that hold points (N, 3), as those of boxes in ``move_boxes``.
    inside
        Whether points outside the patch are left out.
    key, row_keys
        As of ``move_boxes``.

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
    >>> sample = next(iter(pipe.move_points(row_keys="of")))
    >>> sample["points"], sample["of"]
    ([[0.0, 1.0, 1.0]], ['a'])
    """

    what = "points"
    columns = 3
    move = staticmethod(SpatialPlan.points_to_output)

    def __init__(
        self,
        parent: Pipe,
        keys: str | Collection[str] = "points",
        *,
        key: str | None = None,
        inside: bool = True,
        row_keys: str | Collection[str] = (),
    ) -> None:
        super().__init__(parent, keys, key, row_keys)
        self.inside = inside

    def within(self, rows: Rows, shape: tuple[int, int, int]) -> tuple[Rows, NDArray[np.bool_]]:
        inside = ((rows >= -0.5) & (rows <= np.array(shape) - 0.5)).all(axis=1)
        return rows, np.asarray(inside) if self.inside else np.ones(len(rows), bool)
