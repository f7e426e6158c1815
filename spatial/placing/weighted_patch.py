"""A patch about a voxel that is drawn as often as a map of weights says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...core import CallSite, Region
from ...core.errors import PatchSizeError
from ..ops.crop import centred_start
from ..ops.op import Drawn
from ..ops.sizes import of_grid, told_size
from ..plans import inverse
from ..plans.plan import SpatialPlan
from ..volume_like import stored_of
from .patch import UniformPatch, patch_size, source_box, warn_if_larger
from .weight_index import weight_table
from .weight_table import Floats, Integers, WeightTable

OTHERWISE = ("error", "anywhere")

# Places that are tried: a few at first, which do nearly always, and then more at once. Where half
# of what a turned box holds lies outside, one draw in 10^19 looks at every voxel.
_TRIES = (2, 6, 56)
NUMBERS = (1 + sum(_TRIES), 5)
"""What is drawn for one patch, whatever is needed of it: the first row is for what is chosen, the
others are tries: run, voxel, and the place in the voxel."""
# In voxels: more than two ways to compose a plan differ by.
_TIE = 1e-6
# Of which every one is looked at where no try fits: a few hundred milliseconds.
_MOST_VOXELS = 2**22

Fits = Callable[[Integers], NDArray[np.bool_]]
"""Says for which middles (N, 3) a patch about them will do."""


@dataclass(frozen=True)
class WeightedPatch:
    """A patch whose middle voxel is drawn in proportion to its weight, wherever the patch fits.

    The middle of a patch of n voxels is its voxel n // 2. Voxels so near a face that a patch about
    them would leave the grid have no part in the draw; if no others weigh anything, one of them
    is drawn and the patch is moved inward, so that it still holds it. On an axis on which the
    patch fits in one place only, every voxel counts.

    Examples
    --------
    >>> from voxpipe.core import Grid
    >>> from voxpipe.volumes import Volume
    >>> weights = np.zeros((32, 32, 32), np.float32)
    >>> weights[20, 20, 20], weights[8, 8, 8] = 0.75, 0.25
    >>> op = WeightedPatch((8, 8, 8), Volume(weights), "probability")
    >>> plan = SpatialPlan.identity(Grid(weights.shape, np.eye(4)))
    >>> generator = np.random.default_rng(0)
    >>> starts = [op.draw(generator, plan)["start"] for _ in range(100)]
    >>> starts.count([16, 16, 16]), starts.count([4, 4, 4])
    (75, 25)
    """

    size: Any
    """Number of voxels: one number, of 2-D data in their plane, or one per axis, of which None
    keeps an axis."""
    weights: Any = field(compare=False, repr=False)
    """The ``Volume`` of the weights; on any grid."""
    key: str = "weights"
    """What the user calls it."""
    otherwise: str = "error"
    """``"error"`` or ``"anywhere"``: what happens where nothing weighs anything."""
    origin: CallSite | None = field(default=None, compare=False, repr=False)
    """Where the user wrote it."""
    token: str = ""
    """Of the weights: ops are equal if these are."""
    regional: bool = False
    """Whether the grid is a part that was drawn as the region of this patch."""

    name: ClassVar[str] = "lazy_patch"
    lattice: ClassVar[bool] = True
    asks_stored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", patch_size(self.size, one=True))
        object.__setattr__(self, "weights", stored_of(self.weights))
        object.__setattr__(self, "token", self.weights.token)
        if self.otherwise not in OTHERWISE:
            msg = f"otherwise is one of {OTHERWISE}, got {self.otherwise!r}"
            raise PatchSizeError(msg)

    @property
    def where(self) -> str:
        """Where patches are drawn, in words."""
        return f"by the weights of {self.key!r}"

    def table(self, plan: SpatialPlan) -> WeightTable | None:
        """Return the weights of the volume of a plan; None if they must not be read now."""
        return weight_table(self.weights, plan.source)

    def ready(self, plan: SpatialPlan) -> None:
        """Read the weights now."""
        self.table(plan)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the box."""
        numbers = generator.random(NUMBERS)
        table = self.table(plan)
        if table is None:  # an estimate: where patches lie does not change what they cost
            return UniformPatch(self.size, self.origin).placed(numbers[0, :3].tolist(), plan)
        size = of_grid(self.size, plan)
        whole = np.zeros(3, np.int64), np.array(plan.shape) - 1
        for low, high in (self._middles(size, plan), whole):
            middle = drawn_middle(table, low, high, numbers, plan, spread=True)
            if middle is not None:
                return {"start": start_about(middle, size, plan).tolist(), "size": list(size)}
        if self.otherwise == "anywhere":
            return UniformPatch(self.size, self.origin).placed(numbers[0, :3].tolist(), plan)
        what = "all its weights are 0" if not table.total else "no weight above 0 lies there"
        raise PatchSizeError(
            f"{self.weights.name} ({self.key!r}) says nowhere that a patch shall have its middle "
            f"in what patches are cut from: {what}",
            do='Give otherwise="anywhere", or leave such cases out.',
        )

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the patch."""
        warn_if_larger(drawn["size"], plan.shape, self.origin)
        return plan.crop(drawn["start"], drawn["size"])

    def describe(self) -> str:
        """Return the patch in words."""
        return f"patch {told_size(self.size)} {self.where}"

    def _middles(self, size: tuple[int, ...], plan: SpatialPlan) -> tuple[Integers, Integers]:
        """Return the first and last voxels that are the middle of a patch that fits."""
        low, high = [], []
        for axis, (n, s) in enumerate(zip(plan.shape, size, strict=True)):
            one_place = n < s or (n == s and not (self.regional and _is_cut(plan, axis)))
            low.append(0 if one_place else s // 2)
            high.append(n - 1 if one_place else n - s + s // 2)
        return np.array(low), np.array(high)


def _is_cut(plan: SpatialPlan, axis: int) -> bool:
    """Return whether a grid ends before its source does: there are other regions beside it."""
    column = np.abs(plan.matrix[:3, axis])
    along = int(np.argmax(column))
    return bool(plan.shape[axis] * column[along] < plan.source.shape[along] - 0.5)


def start_about(middles: Integers, size: tuple[int, ...], plan: SpatialPlan) -> Integers:
    """Return where patches about voxels (..., 3) start, moved inward where they would hang over."""
    shape = np.array(plan.shape)
    starts = np.clip(middles - np.array(size) // 2, 0, np.maximum(shape - size, 0))
    found: Integers = np.where(shape < size, centred_start(plan.shape, size), starts)
    return found


def drawn_middle(
    table: WeightTable,
    low: Integers,
    high: Integers,
    numbers: Floats,
    plan: SpatialPlan,
    will_do: Fits | None = None,
    *,
    box: Region | None = None,
    spread: bool = False,
) -> Integers | None:
    """Return a voxel of the grid of a plan that is drawn from a table; None if there is none.

    Parameters
    ----------
    table
        What the voxels of the source weigh.
    low, high
        The first and the last voxel that may be drawn.
    numbers
        In [0, 1), of the shape ``NUMBERS``.
    plan
        From the source to the grid.
    will_do
        Which voxels are right otherwise; by default all.
    box
        A box of the source that holds them, where that is known.
    spread
        Whether a voxel of the source counts with all its extent, so that one that is several voxels
        of the grid is any of them. Else it counts with its middle, and a voxel of the grid that
        looks just it up is taken rather than one that is near.
    """
    # A place that is not in the middle of a voxel may be the nearest one to one beside the box.
    edge = 0 if plan.is_copy else 1
    if box is None:
        box = source_box(plan.crop((low - edge).tolist(), (high - low + 1 + 2 * edge).tolist()))
    near: Integers | None = None
    for tries in np.split(numbers[1:], np.cumsum(_TRIES)[:-1]):
        voxels = table.pick(box, tries[:, :2])
        if voxels is None:
            return None
        moved = spread and not plan.is_copy
        places = voxels + tries[:, 2:] - 0.5 if moved else voxels
        middles, fits = _fitting(places.astype(np.float64), low, high, plan)
        if will_do is not None:
            fits &= will_do(middles)
        just = fits if spread else fits & _looked_up(voxels, middles, plan)
        if just.any():
            found: Integers = middles[np.argmax(just)]
            return found
        if near is None and fits.any():
            near = middles[np.argmax(fits)]
    if near is not None:
        return near
    # Little of what the box weighs will do.
    voxels, weights = table.every(box, _MOST_VOXELS)
    middles, fits = _fitting(voxels.astype(np.float64), low, high, plan)
    if will_do is not None:
        fits[fits] = will_do(middles[fits])
    if not fits.any():
        return None
    upto = np.cumsum(weights[fits])
    chosen = int(np.searchsorted(upto, numbers[0, 3] * upto[-1], side="right"))
    chosen_one: Integers = middles[fits][min(chosen, len(upto) - 1)]
    return chosen_one


def _looked_up(voxels: Integers, middles: Integers, plan: SpatialPlan) -> NDArray[np.bool_]:
    """Return which middles are nearest to the very voxels of the source; of a field, all."""
    if plan.is_copy or plan.is_displaced:
        return np.ones(len(voxels), np.bool_)
    places = middles @ plan.matrix[:3, :3].T + plan.matrix[:3, 3]
    same: NDArray[np.bool_] = (np.rint(places) == voxels).all(axis=1)
    return same


def _fitting(
    places: Floats, low: Integers, high: Integers, plan: SpatialPlan
) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the voxels of the grid that source places are nearest to, and which will do."""
    found, reached = inverse.reached(plan, places)
    # Never on the edge between two: volumes of a sample compute this place differently.
    middles = np.rint(found + _TIE).astype(np.int64)
    fits: NDArray[np.bool_] = ((middles >= low) & (middles <= high)).all(axis=1) & reached
    return middles, fits
