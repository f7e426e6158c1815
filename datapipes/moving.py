"""What pipes have in common that move places, boxes or points, with a lazy volume of a sample."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core import Origin, Sample
from ..core.errors import SampleError, about_lacking
from ..graph import Pipe
from ..spatial import LazyPatch, SpatialPlan
from .datapipe import PerItem, wrong_item

Rows = NDArray[np.float64]


class Moving(PerItem):
    """A pipe that brings places from the voxels of the stored volume to those of the patch.

    A subclass says what its places are, how a plan moves them, and which of them stay.
    """

    what: ClassVar[str]
    """The places, as the user calls them; the chained form is ``move_`` and this."""
    columns: ClassVar[int]
    """Numbers of one place."""

    def __init__(
        self,
        parent: Pipe,
        keys: str | Collection[str],
        of: str | None,
        with_: str | Collection[str],
    ) -> None:
        super().__init__(parent)
        self.keys, self.with_ = _names_of(keys), _names_of(with_)
        if self.with_ and len(self.keys) != 1:
            msg = f"with_= goes with the {self.what} of one key, got {self.keys}"
            raise SampleError(msg, do=f"Write a move_{self.what}() for each.").at(self.origin)
        self.of = of

    def apply(self, item: Any) -> Sample:
        """Return the sample with its places moved."""
        pipe = f"move_{self.what}"
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample", f"Put {pipe}() before batch_patches().")
        plan = _moving_with(item, self.of, self.what, self.origin).whole_plan
        moved: dict[str, Any] = {}
        kept: Any = []
        for key in self.keys:
            given = _entry(item, key, pipe, self.origin)
            try:
                rows = np.reshape(np.asarray(given, float), (-1, self.columns))
                found = self.to_output(plan, rows)
            except (TypeError, ValueError) as error:
                msg = f"{key!r} holds no {self.what} (N, {self.columns}) that can be moved: {error}"
                raise SampleError(msg).at(self.origin, item.case) from None
            found, kept = self.within(found, plan.shape)
            moved[key] = found[kept].tolist()
        beside = _kept_beside(item, self.with_, list(kept), pipe, self.origin)
        return item.with_data(**moved, **beside)

    def to_output(self, plan: SpatialPlan, rows: Rows) -> Rows:
        """Return places (N, ``columns``) where ``plan`` moves them."""
        raise NotImplementedError

    def within(self, rows: Rows, shape: tuple[int, int, int]) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the places as they are in a patch of ``shape``, and which of them stay."""
        raise NotImplementedError


def _moving_with(sample: Any, of: str | None, what: str, origin: Origin | None) -> LazyPatch:
    """Return the patch whose plan moves places: the one of key ``of``, or the first lazy one.

    Raises
    ------
    SampleError
        There is none.
    """
    lazy = {key: thing for key, thing in sample.items() if isinstance(thing, LazyPatch)}
    key = next(iter(lazy), None) if of is None else of
    if key not in lazy:
        told = f"the lazy volumes are {', '.join(lazy)}" if lazy else "no volume is lazy"
        msg = f"{what} move with {'one' if key is None else repr(key)}, but {told}"
        do = f"Put move_{what}() after open_volume()."
        if sample.patches:
            do = f"Put move_{what}() before realize(): it asks plans, not voxels."
        raise SampleError(msg, do=do).at(origin, sample.case)
    return lazy[key]


def _entry(sample: Sample, key: str, pipe: str, origin: Origin | None) -> Any:
    """Return what a sample has under ``key``.

    Raises
    ------
    SampleError
        Nothing.
    """
    if key not in sample:
        msg = f"{pipe}() is to move {key!r}, but the sample has {', '.join(sample)}"
        do = about_lacking(key, "Name entries of the case.")
        raise SampleError(msg, do=do).at(origin, sample.case)
    return sample[key]


def _kept_beside(
    sample: Sample, keys: Collection[str], kept: Sequence[bool], pipe: str, origin: Origin | None
) -> dict[str, list[Any]]:
    """Return the entries that go with boxes or points, without the rows that these have lost.

    Raises
    ------
    SampleError
        One is missing, or has another number of rows.
    """
    found = {}
    for key in keys:
        try:
            rows = list(_entry(sample, key, pipe, origin))
        except TypeError:
            rows = None
        if rows is None or len(rows) != len(kept):
            has = "no rows" if rows is None else f"{len(rows)} rows"
            msg = f"{key!r} goes with {len(kept)} rows that {pipe}() moves, and has {has}"
            do = "Give with_= entries of one row for each."
            raise SampleError(msg, do=do).at(origin, sample.case)
        found[key] = [row for row, is_kept in zip(rows, kept, strict=True) if is_kept]
    return found


def _names_of(keys: str | Collection[str]) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return (keys,) if isinstance(keys, str) else tuple(keys)
