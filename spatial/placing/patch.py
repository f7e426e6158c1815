"""Patches: soft crops at a random place, on a regular grid, or at a given place."""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ...core import CallSite, Region
from ...core.call_site import warn
from ...core.errors import PatchSizeError
from ...core.validate import LATER, FieldChecks, as_flag, entries_of, is_integer
from ..ops.op import Params, as_triple, centred_start, random_start, size_of, size_on, size_text
from ..plans.plan import SpatialPlan
from ..plans.pull_back import extremes


class PatchLargerThanVolume(UserWarning):
    """A patch exceeds the volume on both sides; the padding rule fills the rest."""


def patch_size(name: str, value: Any) -> tuple[int, int, int]:
    """Return the size of a patch as three positive integers; PatchSizeError for anything else."""
    try:
        return as_triple("a patch", value, low=1)
    except ValueError as error:
        do = "Give (I, J, K) in voxels; 2-D data have K = 1."
        raise PatchSizeError(str(error), do=do) from None


def size_in_plane(name: str, value: Any) -> Any:
    """Return the size of a patch; also one number, which leaves flat axes alone, or with None."""
    if is_integer(value) or None in entries_of(value):
        return size_of("a patch", value)
    return patch_size(name, value)


class PatchOp(FieldChecks):
    """A spatial op that cuts a patch: a soft crop of the box that it drew."""

    name: ClassVar[str] = "lazy_patch"
    lattice: ClassVar[bool] = True
    places: ClassVar[bool] = True
    size: Any
    origin: CallSite | None
    allow_smaller: bool = False

    def size_on(self, plan: SpatialPlan) -> tuple[int, int, int]:
        """Return the size of the patch on the grid of a plan."""
        return size_on(self.size, plan, allow_smaller=self.allow_smaller)

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        larger = [axis for axis, s in enumerate(params["size"]) if s > plan.shape[axis]]
        if larger:
            # The text names no case, so that Python shows it once.
            axes, line = ", ".join(map(str, larger)), f"\n  at {self.origin}" * bool(self.origin)
            text = (
                f"a volume is smaller than the patch {tuple(params['size'])} on axis {axes}; it is "
                "centred, and the rest follows the padding rule. Give a smaller ⟦patch⟧ to avoid "
                f"that.{line}"
            )
            warn(text, PatchLargerThanVolume, self.origin)
        return plan.crop(params["start"], params["size"])


@dataclass(frozen=True)
class UniformPatch(PatchOp):
    """A patch whose start is drawn uniformly within the present grid.

    An axis that is shorter than the patch is centred in it, with a warning.
    """

    size: Any
    """Voxels: one number (of 2-D data in their plane), or one per axis; None keeps an axis."""
    origin: CallSite | None = field(default=None, compare=False, repr=False)
    """Where the user wrote it, for the warning."""
    allow_smaller: bool = field(default=False, metadata=LATER)
    """Whether an axis that is shorter than the patch gives a shorter patch."""

    checks: ClassVar[Any] = {"size": size_in_plane, "allow_smaller": as_flag}

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        size = size_on(self.size, plan, allow_smaller=self.allow_smaller)
        start = random_start(generator.random(3).tolist(), plan.shape, size)
        return {"start": start, "size": list(size)}

    def describe(self) -> str:
        return f"patch {size_text(self.size)} anywhere"


@dataclass(frozen=True)
class FixedPatch(PatchOp):
    """A patch at a given place, which may hang over the grid."""

    start: Sequence[int]  # first voxel on each axis; it may be negative
    size: Sequence[int]  # number of voxels on each axis
    origin: CallSite | None = field(default=None, compare=False, repr=False)
    """Where the user wrote it, for the warning."""

    window: ClassVar[Params | None] = None
    """Facts for ``stitch()`` about the other patches of a grid."""
    is_quiet: ClassVar[bool] = False
    """Whether no warning is given if the patch is larger than the volume."""

    checks: ClassVar[Any] = {"start": as_triple, "size": patch_size}

    def among(self, window: Params, *, is_quiet: bool = False) -> FixedPatch:
        """Return the patch as one of a grid; equal to a plain one at the same place."""
        patch = copy.copy(self)
        patch.__dict__.update(window=window, is_quiet=is_quiet)
        return patch

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        params: dict[str, Any] = {"start": list(self.start), "size": list(self.size)}
        return params if self.window is None else params | {"window": dict(self.window)}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        if self.is_quiet:
            return plan.crop(params["start"], params["size"])
        return super().then(plan, params)

    def describe(self) -> str:
        return f"patch {'x'.join(map(str, self.size))} at {', '.join(map(str, self.start))}"


class PlacedPatch(FixedPatch):
    """A patch at its item's ``place``, so that all items share one step."""

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        raise PatchSizeError("nothing says where a placed patch begins", do="Use FixedPatch.")

    def at_place(self, place: Sequence[int]) -> Params:
        """Return the parameters for an item whose patch begins at ``place``."""
        return {"start": list(place), "size": list(self.size)}

    def describe(self) -> str:
        return f"patch {'x'.join(map(str, self.size))} where its sample says"


def _as_overlap(name: str, value: Any) -> tuple[int, int, int]:
    return as_triple(name, (value,) * 3 if is_integer(value) else value, low=0)


@dataclass(frozen=True)
class GridPatch(FieldChecks):
    """Patches side by side until they cover a grid; the last ones are moved inward to fit.

    Not an op itself: how many there are depends on the volume. Each is a ``FixedPatch``.

    Examples
    --------
    >>> [patch.start[0] for patch in GridPatch((4, 8, 8), overlap=(2, 0, 0)).patches((9, 8, 8))]
    [0, 2, 4, 5]
    """

    size: Sequence[int]  # number of voxels on each axis
    overlap: Any = 0
    """Voxels that neighbours share, on every axis or per axis; below the size."""
    origin: CallSite | None = field(default=None, compare=False, repr=False)
    """Where the user wrote it, for the warning."""

    checks: ClassVar[Any] = {"size": patch_size, "overlap": _as_overlap}

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(map(operator.ge, self.overlap, self.size)):
            msg = f"overlap must be smaller than the patch {self.size}, got {self.overlap}"
            raise ValueError(msg)

    def patches(self, shape: Sequence[int]) -> tuple[FixedPatch, ...]:
        """Return the patches that cover a grid of ``shape``, in C order."""
        starts = positions(shape, self.size, self.overlap)
        window = {"grid": [*shape], "overlap": [*self.overlap]}
        patches = (FixedPatch(start, self.size, self.origin) for start in starts)
        return tuple(patch.among(window) for patch in patches)

    def describe(self) -> str:
        return f"patches {'x'.join(map(str, self.size))} side by side, overlap {self.overlap}"


def positions(
    shape: Sequence[int], size: Sequence[int], overlap: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the starts of patches that cover ``shape``, in C order.

    Neighbours share ``overlap`` voxels. The last patch on an axis shares more if it is moved inward
    to end with the grid. An axis that is shorter than the patch has one patch, centred.

    Parameters
    ----------
    shape, size, overlap
        Voxels on each axis; any number of axes; ``0 <= overlap < size``.

    Examples
    --------
    >>> positions((10, 3), (4, 4), (0, 0))
    [(0, 0), (4, 0), (6, 0)]
    """
    offsets = centred_start(shape, size)
    axes = [
        [c] if n <= s else [*range(0, n - s, s - o), n - s]
        for n, s, o, c in zip(shape, size, overlap, offsets, strict=True)
    ]
    return list(itertools.product(*axes))


def nearest_box(plan: SpatialPlan) -> Region:
    """Return the box of source voxels that are nearest to some place of the output."""
    low, high = extremes(plan.rows, plan.shape, plan.moves)
    box = Region(tuple(map(math.floor, low)), tuple(math.ceil(v) + 1 for v in high))
    return box.intersect(plan.source.region)


@dataclass(frozen=True)
class UniformRegion(FieldChecks):
    """A drawn region, in which a patch is then drawn like in a volume of its own.

    A region is the union of the patches that start in one block of places, so every start has one
    region. It is drawn with the probability of its block, so each start is as likely as without
    regions. An axis that is shorter than the patch stays whole.
    """

    region: Sequence[int]  # most voxels on each axis
    size: Sequence[int]  # size of the patches
    align: Sequence[int]
    """Regions begin at multiples of this: the chunks in which the volume is stored."""

    name: ClassVar[str] = "lazy_patch"
    lattice: ClassVar[bool] = True
    places: ClassVar[bool] = True
    checks: ClassVar[Any] = {
        "region": partial(as_triple, low=1),
        "size": patch_size,
        "align": partial(as_triple, low=1),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        region, size, align = self.region, self.size, self.align
        least = tuple(s + a - 1 for s, a in zip(size, align, strict=True))
        if any(r < n for r, n in zip(region, least, strict=True)):
            msg = f"a region of {region} does not hold every patch of {size} that begins in its "
            do = f"Make the region at least {least}, or align smaller."
            raise PatchSizeError(f"{msg}first {align} voxels", do=do)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        places = [n - s + 1 for n, s in zip(plan.shape, self.size, strict=True)]
        pairs = zip(generator.random(3).tolist(), places, strict=True)
        return self.around([min(int(u * n), n - 1) if n > 0 else 0 for u, n in pairs], plan)

    def around(self, place: Sequence[int], plan: SpatialPlan) -> Params:
        """Return the box of the region of the patch that starts at ``place``."""
        start, extent = [], []
        every = zip(place, plan.shape, self.region, self.size, self.align, strict=True)
        for at, n, r, s, a in every:
            block = (r - s + 1) // a * a
            is_longer = n >= s
            first = at // block * block if is_longer else 0
            start.append(first)
            extent.append(min(block + s - 1, n - first) if is_longer else n)
        return {"start": start, "size": extent}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        # Soft, so that turned patches may read across its faces.
        return plan.crop(params["start"], params["size"])

    def describe(self) -> str:
        region, align = ("x".join(map(str, v)) for v in (self.region, self.align))
        return f"regions of {region} from multiples of {align}"


def usual_align(region: Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
    """Return the largest divisors of a region that leave room for a patch."""
    return tuple(
        max((d for d in range(1, r - s + 2) if r % d == 0), default=1)
        for r, s in zip(region, size, strict=True)
    )
