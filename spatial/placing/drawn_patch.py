"""Patches about a drawn voxel: by a mask, by the classes of a label, or by weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...core import CallSite, Region
from ...core.call_site import warn
from ...core.errors import MissingLabel, PatchSizeError
from ...core.validate import LATER, as_choice, entries_of, is_finite, is_number, or_none
from ...intensity.value_op import same_as
from ..ops.foreground_crop import ByStoredVolume, Selection, stored_volume
from ..ops.op import Params, centred_start, random_start, size_text
from ..plans.plan import SpatialPlan
from .patch import GridPatch, PatchOp, UniformRegion, nearest_box, size_in_plane
from .sampling_mask import (
    EACH,
    OTHER,
    Classes,
    Label,
    SamplingMask,
    box_counts,
    cell_for,
    sampling_mask,
    weight_table,
)
from .weight_table import NUMBERS, Integers, Triple, WeightTable, draw_middle

# Shares are quotients of whole numbers in float64.
_ROUNDING = 1e-9

_as_fallback = partial(as_choice, choices=("error", "anywhere"))


def _as_share(name: str, value: Any) -> Any:
    if not is_number(value) or not 0 <= value <= 1:
        raise PatchSizeError(f"{name} is a part from 0 to 1, got {value!r}")
    return value


class _DrawnPatch(ByStoredVolume, PatchOp):
    """Shared behaviour of patches that are placed by a volume."""

    size: Any
    fallback: str
    checks: ClassVar[Any] = {"size": size_in_plane, "fallback": _as_fallback}

    def _anywhere(self, numbers: NDArray[np.float64], plan: SpatialPlan) -> Params:
        size = self.size_on(plan)
        start = random_start(numbers[0, :3].tolist(), plan.shape, size)
        return {"start": start, "size": list(size)}


def weights_of(name: str, weights: Any) -> tuple[tuple[Label, float], ...]:
    """Return class weights as pairs, in the order of the labels; PatchSizeError for others."""
    entries = list(weights.items()) if isinstance(weights, Mapping) else weights
    if entries is None or (isinstance(entries, (tuple, list)) and not entries):
        return ()
    pairs = [entries_of(entry) for entry in entries_of(entries)]
    sound = all(
        len(pair) == 2
        and (pair[0] == OTHER or (is_finite(pair[0]) and int(pair[0]) == pair[0]))
        and is_finite(pair[1])
        and pair[1] >= 0
        for pair in pairs
    )
    if not sound or not any(weight for _, weight in pairs):
        raise PatchSizeError(
            f"{name} maps labels to weights from 0, got {weights!r}",
            do="Write {0: 1, 1: 2}, for instance: label 1 is in the middle twice as often; "
            f"{{0: 1, {OTHER!r}: 1}} for all labels that are not listed together.",
        )
    plain = [(a if a == OTHER else int(a), float(weight)) for a, weight in pairs]
    return tuple(sorted(plain, key=lambda pair: (pair[0] == OTHER, pair[0])))


@dataclass(frozen=True)
class MaskedPatch(_DrawnPatch):
    """A patch about a voxel drawn from a mask, within the present grid.

    Each voxel of the class is equally likely to be the middle of the patch, voxel n // 2 of n. Near
    a face the patch is moved inward and still holds it. This is exact for stored volumes, and for
    their crops, flips and quarter turns. After ops that interpolate, the middle is a voxel whose
    nearest source voxel is of the class, or the nearest one to such a voxel.

    With ``oversample`` only a share of the patches uses the mask; the others are anywhere.
    """

    size: Any
    """Voxels: one number (of 2-D data in their plane), or one per axis; None keeps an axis."""
    mask: Any = field(compare=False, repr=False)  # mask ``Volume``, on any grid
    key: str = "mask"  # the user's key
    min_fraction: float = 0.0  # least part of the patch inside the drawn class
    class_weights: Any = ()
    """How often each label is drawn, as a mapping; ``"other"`` stands for all labels that are not
    listed. Empty: all that is not 0 is one class."""
    fallback: str = "error"
    """``"error"`` or ``"anywhere"``, for a mask without such a place."""
    origin: CallSite | None = field(default=None, compare=False, repr=False)
    """Where the user wrote it."""
    token: str = ""  # of the mask: ops are equal if their masks are
    mask_labels: Classes = ()
    """Labels of the mask for each class, where they were renumbered."""
    oversample: float | None = None
    """Share of the patches about the mask; None for all of them."""
    is_forced: bool | None = None
    """With ``oversample``: whether this patch uses the mask; None draws it."""
    selection: Selection | None = None
    """Makes the mask out of the volume, by a function of the user."""
    allow_smaller: bool = field(default=False, metadata=LATER)

    sometimes_drawn: ClassVar[tuple[str, ...]] = ("class",)
    volume_field: ClassVar[str] = "mask"
    checks: ClassVar[Any] = {
        "mask": stored_volume,
        "class_weights": weights_of,
        "min_fraction": _as_share,
        "oversample": or_none(_as_share),
    }

    @property
    def where(self) -> str:
        """Where patches are drawn, in words."""
        by = f"{self.selection.describe()} of " if self.selection else ""
        return f"inside {by}{self.key!r}"

    @property
    def classes(self) -> Classes:
        """Labels of the classes; empty if all labels except 0 are one class."""
        labels = tuple(label for label, _ in self.class_weights)
        return labels or (() if self.oversample is None else (EACH,))

    def at_position(self, position: int, size: int) -> MaskedPatch:
        """Return the op for a position in a batch: about the mask or not."""
        # The last patches of a batch use the mask, as in nnU-Net: see :func:`first_forced`.
        if self.oversample is None or self.is_forced is not None:
            return self
        return replace(self, is_forced=position >= first_forced(size, self.oversample))

    def table(self, plan: SpatialPlan) -> SamplingMask | None:
        """Return the mask's tables on the source of a plan; None if it must not be read now."""
        cell: Triple | None = None
        if self.min_fraction:
            # A random turn must not need a new mask every time.
            cell = cell_for(self._across(plan) if plan.is_copy else self.size_on(plan))
        classes = self.mask_labels or self.classes
        return sampling_mask(self.mask, plan.source, cell, classes, selection=self.selection)

    def touched_patches(self, plan: SpatialPlan, grid: GridPatch) -> NDArray[np.bool_] | None:
        """Return which patches of a grid hold enough of the mask; None if it must not be read."""
        if plan.is_displaced:
            msg = "which patches of a grid touch a mask is not known after a displacement"
            raise PatchSizeError(msg, do="Put lazy_patch() before it, or leave mask= out.")
        counts = box_counts(self.mask, plan.grid, grid, self.selection)
        if counts is None:
            return None
        stays: NDArray[np.bool_] = counts / math.prod(grid.size) >= self.min_fraction - _ROUNDING
        return stays & (counts > 0)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        numbers = generator.random(NUMBERS)
        if self.min_fraction and not plan.is_copy:
            msg = "how much of a patch a mask covers is known of whole voxels only, and the volume "
            do = "Put lazy_patch() before such pipes, or leave min_fraction out."
            raise PatchSizeError(f"{msg}has been turned or scaled before", do=do)
        is_forced = self.is_forced
        if is_forced is None:  # outside batches it is drawn
            is_forced = self.oversample is None or float(numbers[0, 4]) < self.oversample
        if not is_forced:
            return self._anywhere(numbers, plan)
        mask = self.table(plan)
        if mask is None:  # an estimate: the place of a patch does not change its cost
            return self._anywhere(numbers, plan)
        self._warn_of_missing(mask)
        size = self.size_on(plan)
        present = nearest_box(plan)
        mask = self._with_all(mask, present, plan)
        for index in self._order(mask, present, numbers[0, 0]):
            middle = self._middle(mask, index, present, numbers, plan)
            if middle is not None:
                start = start_about(middle, size, plan).tolist()
                params: dict[str, Any] = {"start": start, "size": list(size)}
                pairs = self.class_weights
                label = pairs[index][0] if pairs else mask.labels[index]
                return params if label is None else {**params, "class": label}
        if self.fallback == "anywhere" or self.oversample is not None:
            return self._anywhere(numbers, plan)
        raise self._nowhere(mask)

    def describe(self) -> str:
        size = size_text(self.size)
        weights = ", ".join(f"{label}: {weight:g}" for label, weight in self.class_weights)
        where = f"by the classes {{{weights}}} of" if weights else "inside"
        where += f" {self.selection.describe()} of" if self.selection else ""
        least = f", at least {self.min_fraction:g} of it" if self.min_fraction else ""
        part = ""
        if self.oversample is not None:
            part = f", {self.oversample:.3g} of them, the others anywhere"
        return f"patch {size} {where} {self.key!r}{least}{part}"

    def _with_all(self, mask: SamplingMask, present: Region, plan: SpatialPlan) -> SamplingMask:
        """Return the mask, or one of the box alone if a class happens to have no place there."""
        # An inexact table samples a class, so a small crop may miss all its sampled places.
        if mask.is_exact or present == plan.source.region or present.is_empty:
            return mask
        if all(table.is_exact or table.has_some(present) for table in mask.tables):
            return mask
        classes = self.mask_labels or self.classes
        if classes == (EACH,):
            classes = mask.labels
        cell = None if mask.shares is None else mask.shares.cell
        part = sampling_mask(self.mask, plan.source, cell, classes, present, self.selection)
        return part or mask

    def _warn_of_missing(self, mask: SamplingMask) -> None:
        """Warn if a listed label is missing and the mask has unknown labels."""
        if not self.class_weights:
            return
        totals = [table.voxels for table in mask.tables]
        # Without any listed label: an error, or ``fallback`` applies.
        if all(totals) or not any(totals) or sum(totals) == math.prod(mask.tables[0].shape):
            return
        missing = [label for label, total in zip(self.classes, totals, strict=True) if not total]
        # The text names no case, so that Python shows it once.
        text = (
            f"class_weights lists {', '.join(map(repr, missing))}, which a mask does not hold; it "
            "holds labels that are not listed"
        )
        do = f"List the labels that there are, or write {OTHER!r} for all that are not listed."
        warn(f"{text}\n  {do}", MissingLabel, self.origin)

    def _order(self, mask: SamplingMask, present: Region, number: float) -> list[int]:
        """Return the drawn class, then the others in the order of draws without it."""
        all_weights = [weight for _, weight in self.class_weights] or [1.0] * len(mask.tables)
        weights = dict(enumerate(all_weights))
        whole = present == Region.of_shape(mask.tables[0].shape) if mask.tables else False
        there = [
            n
            for n, weight in weights.items()
            if weight > 0 and mask.tables[n].voxels and (whole or mask.tables[n].has_some(present))
        ]
        order = []
        while there:
            upto = np.cumsum([weights[index] for index in there])
            place = int(np.searchsorted(upto, number * upto[-1], side="right"))
            order.append(there.pop(min(place, len(there) - 1)))
        return order

    def _middle(
        self,
        mask: SamplingMask,
        index: int,
        present: Region,
        numbers: NDArray[np.float64],
        plan: SpatialPlan,
    ) -> NDArray[np.int64] | None:
        """Return the middle of a patch about a class; None if no place has the share."""

        def has_share(middles: NDArray[np.int64]) -> NDArray[np.bool_]:
            assert mask.shares is not None
            size, matrix = self.size_on(plan), plan.matrix
            starts = start_about(middles, size, plan)
            one, other = (
                np.rint(corner @ matrix[:3, :3].T + matrix[:3, 3]).astype(np.int64)
                for corner in (starts, starts + np.array(size) - 1)
            )
            which = index if self.class_weights else 0
            shares = mask.shares.share(which, np.minimum(one, other), self._across(plan))
            enough: NDArray[np.bool_] = shares >= self.min_fraction - _ROUNDING
            return enough

        low, high = np.zeros(3, np.int64), np.array(plan.shape) - 1
        will_do = has_share if self.min_fraction else None
        box = present if plan.is_copy else None
        return draw_middle(mask.tables[index], low, high, numbers, plan, will_do, box=box)

    def _across(self, plan: SpatialPlan) -> tuple[int, ...]:
        """Return the size along the source axes; approximate for a turned plan."""
        reach = np.abs(plan.matrix[:3, :3]) @ np.array(self.size_on(plan))
        return tuple(max(1, round(float(n))) for n in reach)

    def _nowhere(self, mask: SamplingMask) -> PatchSizeError:
        labels = [label for label, _ in self.class_weights]
        what = f"labels {labels}" if labels else "voxels other than 0"
        least = (
            f" with {self.min_fraction:g} of a patch {self.size} inside"
            if self.min_fraction
            else ""
        )
        size = sum(table.voxels for table in mask.tables)
        return PatchSizeError(
            f"{self.mask.name} ({self.key!r}) has no place{least} among its {size} {what}, in what "
            "patches are cut from",
            do='Give fallback="anywhere", a smaller min_fraction, or leave such cases out.',
        )


@dataclass(frozen=True)
class WeightedPatch(_DrawnPatch):
    """A patch whose middle voxel is drawn in proportion to its weight, wherever the patch fits.

    The middle of a patch of n voxels is its voxel n // 2. Voxels too near to a face for a centred
    patch are not drawn. If only these have weights, one of them is drawn and the patch is moved
    inward. On an axis with only one place for the patch, every voxel counts.
    """

    size: Any
    """Voxels: one number (of 2-D data in their plane), or one per axis; None keeps an axis."""
    weights: Any = field(compare=False, repr=False)  # weights ``Volume``, on any grid
    key: str = "weights"  # the user's key
    fallback: str = "error"
    """``"error"`` or ``"anywhere"``, if all weights are 0."""
    origin: CallSite | None = field(default=None, compare=False, repr=False)
    """Where the user wrote it."""
    token: str = ""  # token of the weights: ops with equal weights are equal
    regional: bool = False  # whether the grid is a region drawn for this patch
    allow_smaller: bool = field(default=False, metadata=LATER)

    volume_field: ClassVar[str] = "weights"
    checks: ClassVar[Any] = {"weights": stored_volume}

    @property
    def where(self) -> str:
        """Where patches are drawn, in words."""
        return f"by the weights of {self.key!r}"

    def table(self, plan: SpatialPlan) -> WeightTable | None:
        """Return the weight table on the source of a plan; None if it must not be read now."""
        return weight_table(self.weights, plan.source)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        numbers = generator.random(NUMBERS)
        table = self.table(plan)
        if table is None:  # an estimate: the place of a patch does not change its cost
            return self._anywhere(numbers, plan)
        size = self.size_on(plan)
        whole = np.zeros(3, np.int64), np.array(plan.shape) - 1
        for low, high in (self._middles(size, plan), whole):
            middle = draw_middle(table, low, high, numbers, plan, spread=True)
            if middle is not None:
                return {"start": start_about(middle, size, plan).tolist(), "size": list(size)}
        if self.fallback == "anywhere":
            return self._anywhere(numbers, plan)
        why = "all its weights are 0" if not table.total else "no weight above 0 lies there"
        msg = f"{self.weights.name} ({self.key!r}) has no positive weight where a patch centre may "
        do = 'Give fallback="anywhere", or leave such cases out.'
        raise PatchSizeError(f"{msg}lie: {why}", do=do)

    def describe(self) -> str:
        return f"patch {size_text(self.size)} {self.where}"

    def _middles(self, size: tuple[int, ...], plan: SpatialPlan) -> tuple[Integers, Integers]:
        """Return the first and last possible middle of a patch that fits."""
        low, high = [], []
        for axis, (n, s) in enumerate(zip(plan.shape, size, strict=True)):
            # Whether the grid ends before its source: then other regions follow it.
            column = np.abs(plan.matrix[:3, axis])
            along = int(np.argmax(column))
            is_cut = n * column[along] < plan.source.shape[along] - 0.5
            one_place = n < s or (n == s and not (self.regional and is_cut))
            low.append(0 if one_place else s // 2)
            high.append(n - 1 if one_place else n - s + s // 2)
        return np.array(low), np.array(high)


def start_about(middles: Integers, size: tuple[int, ...], plan: SpatialPlan) -> Integers:
    """Return the starts of patches about voxels (..., 3), moved inward at faces."""
    shape = np.array(plan.shape)
    starts = np.clip(middles - np.array(size) // 2, 0, np.maximum(shape - size, 0))
    places: Integers = np.where(shape < size, centred_start(plan.shape, size), starts)
    return places


@dataclass(frozen=True)
class MaskedRegion:
    """The region of :class:`UniformRegion` in which a patch by a mask or weights would begin."""

    region: UniformRegion  # its extent and alignment
    patch: MaskedPatch | WeightedPatch  # the patch that decides about the region

    name: ClassVar[str] = "lazy_patch"
    lattice: ClassVar[bool] = True
    places: ClassVar[bool] = True
    looks_at_stored: ClassVar[bool] = True
    then = same_as("region.then")

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        return self.region.around(self.patch.draw(generator, plan)["start"], plan)

    def describe(self) -> str:
        return f"{self.region.describe()}, {self.patch.where}"


def first_forced(size: int, oversample: float) -> int:
    """Return the first position of a batch whose patch is about foreground.

    nnU-Net 2.8's rule (``_oversample_last_XX_percent``), with Python's ``round`` (half to even).

    Examples
    --------
    >>> [size - first_forced(size, 1 / 3) for size in (1, 2, 3, 4, 5, 6, 12)]
    [0, 1, 1, 1, 2, 2, 4]
    """
    return round(size * (1 - oversample))
