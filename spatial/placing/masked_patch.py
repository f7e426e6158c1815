"""A patch that is drawn where a mask says so, or by the class in its middle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...core import Origin, Region
from ...core.amounts import entries_of, is_number
from ...core.errors import MissingLabel, PatchSizeError
from ...core.origin import warn
from ..ops.crop import centred_start
from ..ops.op import Drawn
from ..ops.sizes import of_grid, told_size
from ..plans import inverse
from ..plans.plan import SpatialPlan
from ..volume_like import stored_of
from .mask_index import OTHER, Classes, Label, sampling_mask
from .patch import UniformPatch, patch_size, warn_if_larger
from .sampling_mask import SamplingMask, cell_for
from .source_box import source_box
from .uniform_region import UniformRegion
from .weighted_patch import WeightedPatch

# Places that are tried at once. Where one in fifty has the share that is asked for, three draws in
# four find it among these; all others look at every cell, which takes milliseconds.
_TRIES = 64
# In voxels: more than two ways to compose a plan differ by.
_TIE = 1e-6
# Shares are quotients of whole numbers in float64.
_ROUNDING = 1e-9
OTHERWISE = ("error", "anywhere")


@dataclass(frozen=True)
class MaskedPatch:
    """A patch about a voxel that is drawn from a mask, so that it lies in the present grid.

    The voxel lies in a cell of the mask's grid that holds voxels of the class, and each cell is as
    likely as it holds such voxels. A patch that is cut from a volume as it is stored, or from a
    flip or quarter turn of it, holds that cell whole, and so a voxel of the class at least. (Of a
    crop, a cell on its face may have its voxels outside.)

    Examples
    --------
    >>> from voxpipe.core import Grid
    >>> from voxpipe.volumes import Volume
    >>> label = np.zeros((32, 32, 32), np.uint8)
    >>> label[20:24, 20:24, 20:24] = 1
    >>> op = MaskedPatch((8, 8, 8), Volume(label), "label")
    >>> plan = SpatialPlan.identity(Grid(label.shape, np.eye(4)))
    >>> drawn = op.draw(np.random.default_rng(0), plan)
    >>> all(12 < start < 24 for start in drawn["start"])
    True
    """

    size: Any
    """Number of voxels: one number, of 2-D data in their plane, or one per axis, of which None
    keeps an axis."""
    mask: Any = field(compare=False, repr=False)
    """The ``Volume`` that says where; on any grid."""
    key: str = "mask"
    """What the user calls it."""
    min_share: float = 0.0
    """Part of the patch that voxels of the drawn class take up at least."""
    class_weights: Any = ()
    """How often each label is drawn, as a mapping; ``"other"`` stands for all labels that are not
    listed. Empty: all that is not 0 is one class."""
    otherwise: str = "error"
    """``"error"`` or ``"anywhere"``: what happens where the mask has no such place."""
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """Where the user wrote it."""
    token: str = ""
    """Of the mask: ops are equal if their masks are."""
    stored: Classes = ()
    """The labels of the mask that each class is, where they were given other numbers."""

    name: ClassVar[str] = "lazy_patch"
    lattice: ClassVar[bool] = True
    asks_stored: ClassVar[bool] = True
    sometimes_drawn: ClassVar[tuple[str, ...]] = ("class",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", patch_size(self.size, one=True))
        object.__setattr__(self, "class_weights", weights_of(self.class_weights))
        object.__setattr__(self, "mask", stored_of(self.mask))
        object.__setattr__(self, "token", self.mask.token)
        share: Any = self.min_share
        if not is_number(share) or not 0 <= share <= 1:
            msg = f"min_share is a part from 0 to 1, got {self.min_share!r}"
            raise PatchSizeError(msg)
        if self.otherwise not in OTHERWISE:
            msg = f"otherwise is one of {OTHERWISE}, got {self.otherwise!r}"
            raise PatchSizeError(msg)

    @property
    def where(self) -> str:
        """Where patches are drawn, in words."""
        return f"inside {self.key!r}"

    @property
    def classes(self) -> Classes:
        """Labels that are told apart; none if all that is not 0 is one class."""
        return tuple(label for label, _ in self.class_weights)

    def sampling_mask(self, plan: SpatialPlan) -> SamplingMask | None:
        """Return what the mask says of the volume of a plan; None if it must not be read now."""
        # A random turn must not ask for another mask every time.
        size = self._across(plan) if plan.is_copy else of_grid(self.size, plan)
        return sampling_mask(self.mask, plan.source, cell_for(size), self.stored or self.classes)

    def ready(self, plan: SpatialPlan) -> None:
        """Read the mask now."""
        self.sampling_mask(plan)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the box, and the class that was drawn if classes are told apart."""
        # All numbers that may be needed, whichever are: the first row chooses, the rest are tries.
        numbers = generator.random((_TRIES + 1, 4))
        if self.min_share and not plan.is_copy:
            raise PatchSizeError(
                "how much of a patch a mask covers is known of whole voxels only, and the volume "
                "has been turned or scaled before",
                do="Put lazy_patch() before such pipes, or leave min_share out.",
            )
        mask = self.sampling_mask(plan)
        if mask is None:  # an estimate: where patches lie does not change what they cost
            return self._anywhere(numbers[0], plan)
        self._warn_of_missing(mask)
        present = source_box(plan)
        for index in self._order(mask, present, numbers[0, 0]):
            start = self._place(mask, index, present, numbers, plan)
            if start is not None:
                size = list(of_grid(self.size, plan))
                drawn: dict[str, Any] = {"start": start, "size": size}
                return {**drawn, "class": self.classes[index]} if self.classes else drawn
        if self.otherwise == "anywhere":
            return self._anywhere(numbers[0], plan)
        raise self._nowhere(mask)

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the patch."""
        warn_if_larger(drawn["size"], plan.shape, self.origin)
        return plan.crop(drawn["start"], drawn["size"])

    def describe(self) -> str:
        """Return the patch in words."""
        size = told_size(self.size)
        weights = ", ".join(f"{label}: {weight:g}" for label, weight in self.class_weights)
        where = f"by the classes {{{weights}}} of" if weights else "inside"
        least = f", at least {self.min_share:g} of it" if self.min_share else ""
        return f"patch {size} {where} {self.key!r}{least}"

    def _warn_of_missing(self, mask: SamplingMask) -> None:
        """Warn where a listed label is missing, and there are others that are not listed."""
        totals = [mask.total(index) for index in range(len(self.classes))]
        # Without any of them there is an error, or the user asked for none.
        if all(totals) or not any(totals) or sum(totals) == math.prod(mask.shape):
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
        """Return the class that is drawn, then the others as they would be without it."""
        weights = dict(enumerate(weight for _, weight in self.class_weights)) or {0: 1.0}
        there = [i for i, weight in weights.items() if weight > 0 and mask.is_present(i, present)]
        order = []
        while there:
            upto = np.cumsum([weights[index] for index in there])
            place = int(np.searchsorted(upto, number * upto[-1], side="right"))
            order.append(there.pop(min(place, len(there) - 1)))
        return order

    def _place(
        self,
        mask: SamplingMask,
        index: int,
        present: Region,
        numbers: NDArray[np.float64],
        plan: SpatialPlan,
    ) -> list[int] | None:
        """Return where the patch starts; None where no place has the share."""
        voxels = mask.pick(index, present, numbers[1:])
        if voxels is None:
            return None
        starts, fits = self._fitting(mask, index, voxels, plan)
        if fits.any():
            return [int(n) for n in starts[np.argmax(fits)]]
        # Few places fit: the middles of all cells, each as likely as its cell.
        voxels, weights = mask.middles(index, present)
        starts, fits = self._fitting(mask, index, voxels, plan)
        if not fits.any():
            return None
        upto = np.cumsum(np.where(fits, weights, 0))
        chosen = np.searchsorted(upto, numbers[0, 1] * upto[-1], side="right")
        return [int(n) for n in starts[min(int(chosen), len(upto) - 1)]]

    def _fitting(
        self, mask: SamplingMask, index: int, voxels: NDArray[np.int64], plan: SpatialPlan
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return where patches about source voxels start, and which of them will do."""
        shape, size = np.array(plan.shape), np.array(of_grid(self.size, plan))
        places, reached = inverse.reached(plan, voxels.astype(np.float64))
        # Never on the edge between two: volumes of a sample compute this place differently.
        middle = np.rint(places + _TIE).astype(np.int64)
        fits: Any = ((middle >= 0) & (middle < shape)).all(axis=1) & reached
        starts = np.clip(middle - size // 2, 0, np.maximum(shape - size, 0))
        starts = np.where(shape < size, centred_start(plan.shape, size.tolist()), starts)
        if self.min_share:
            fits[self._shares(mask, index, starts, plan) < self.min_share - _ROUNDING] = False
        return starts, fits

    def _shares(
        self, mask: SamplingMask, index: int, starts: NDArray[np.int64], plan: SpatialPlan
    ) -> NDArray[np.float64]:
        """Return what part of the patches that start there is of a class; of a copy only."""
        matrix = plan.matrix
        one, other = (
            np.rint(corner @ matrix[:3, :3].T + matrix[:3, 3]).astype(np.int64)
            for corner in (starts, starts + np.array(of_grid(self.size, plan)) - 1)
        )
        return mask.share(index, np.minimum(one, other), self._across(plan))

    def _across(self, plan: SpatialPlan) -> tuple[int, ...]:
        """Return the size along the axes of the source; about it, where the plan is turned."""
        reach = np.abs(plan.matrix[:3, :3]) @ np.array(of_grid(self.size, plan))
        return tuple(max(1, round(float(n))) for n in reach)

    def _anywhere(self, numbers: NDArray[np.float64], plan: SpatialPlan) -> Drawn:
        return UniformPatch(self.size, self.origin).placed(numbers[:3].tolist(), plan)

    def _nowhere(self, mask: SamplingMask) -> PatchSizeError:
        what = f"labels {list(self.classes)}" if self.classes else "voxels other than 0"
        least = f" with {self.min_share:g} of a patch {self.size} inside" if self.min_share else ""
        held = sum(mask.total(index) for index in range(len(mask.counts)))
        return PatchSizeError(
            f"{self.mask.name} ({self.key!r}) has no place{least} among its {held} {what}, in what "
            "patches are cut from",
            do='Give otherwise="anywhere", a smaller min_share, or leave such cases out.',
        )


@dataclass(frozen=True)
class MaskedRegion:
    """The region of :class:`UniformRegion` in which a patch by a mask or weights would begin.

    Examples
    --------
    >>> from voxpipe.volumes import Volume
    >>> patch = MaskedPatch((96, 96, 96), Volume(np.ones((4, 4, 4))), "label")
    >>> MaskedRegion(UniformRegion((256,) * 3, (96,) * 3, (64,) * 3), patch).describe()
    "regions of 256x256x256 from multiples of 64x64x64, inside 'label'"
    """

    region: UniformRegion
    """Its extent and where it begins."""
    patch: MaskedPatch | WeightedPatch
    """What is drawn to find it."""

    name: ClassVar[str] = "lazy_patch"
    lattice: ClassVar[bool] = True
    asks_stored: ClassVar[bool] = True

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the box."""
        return self.region.around(self.patch.draw(generator, plan)["start"], plan)

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the region."""
        return self.region.then(plan, drawn)

    def describe(self) -> str:
        """Return the regions in words."""
        return f"{self.region.describe()}, {self.patch.where}"


def weights_of(given: Any) -> tuple[tuple[Label, float], ...]:
    """Return class weights as pairs, in the order of the labels.

    Raises
    ------
    PatchSizeError
        They are no whole labels with weights, or none is above 0.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else _as_pairs(given)
    if pairs is not None and not pairs:
        return ()
    sound = pairs is not None and all(_is_label(a) and _is_weight(w) for a, w in pairs)
    if pairs is None or not sound or not any(weight for _, weight in pairs):
        raise PatchSizeError(
            f"class_weights maps labels to weights from 0, got {given!r}",
            do="Write {0: 1, 1: 2}, for instance: label 1 is in the middle twice as often; "
            f"{{0: 1, {OTHER!r}: 1}} for all labels that are not listed together.",
        )
    plain = [(a if a == OTHER else int(a), float(weight)) for a, weight in pairs]
    return tuple(sorted(plain, key=lambda pair: (pair[0] == OTHER, pair[0])))


def _as_pairs(given: Any) -> list[tuple[Any, Any]] | None:
    """Return pairs as such, None where it is something else."""
    entries = () if given is None else given
    if not isinstance(entries, (tuple, list)):
        return None
    pairs = [entries_of(entry) for entry in entries]
    return None if any(len(pair) != 2 for pair in pairs) else [(a, b) for a, b in pairs]


def _is_label(label: Any) -> bool:
    return label == OTHER or (_is_finite(label) and int(label) == label)


def _is_weight(weight: Any) -> bool:
    return _is_finite(weight) and weight >= 0


def _is_finite(number: Any) -> bool:
    return isinstance(number, (int, float, np.number)) and math.isfinite(number)
