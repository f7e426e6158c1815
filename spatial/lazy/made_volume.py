"""A volume that is made on demand: what a patch gives, for ops that cannot wait.

Where an op needs voxels as they are after the ops before it, those become a volume of their own,
on the grid of the plan so far. It is as lazy as a file: a read of a region realizes that region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, OrientedBox, Region
from ..ops.op import is_hard
from ..plans.one_after_another import one_after_another
from ..plans.policy import INTENSITY, Policy
from ..volume_like import stored_of

if TYPE_CHECKING:
    from ..plans.plan import SpatialPlan
    from .lazy_patch import LazyPatch


# In voxels: the box around a turned volume is not one voxel larger for what rounding adds.
_ROUNDING = 1e-6


class Made(NamedTuple):
    """Voxels that were computed."""

    array: NDArray[Any]
    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True, eq=False)
class MadeVolume:
    """What ``patch`` gives, region by region."""

    patch: LazyPatch
    """How the voxels are made."""
    soft: bool = False
    """Whether there is more of them than the patch: all that its volume has around it."""
    because: str = ""
    """After what, in words, where no op of the patch tells: a flush, and where it was written."""

    access = "made"
    """No file: voxels are computed."""
    looks_ahead = True
    """What they are computed of may lie in one."""
    chunks = None
    """Any region may be asked for."""

    @property
    def name(self) -> str:
        """Path or URL of the stored volume, without credentials."""
        return self.patch.volume.name

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""
        return self.patch.kind

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K)."""
        i, j, k = self.box.shape
        return (self.patch.shape[0], i, j, k)

    @property
    def grid(self) -> Grid:
        """Grid of the plan so far, with what is around it."""
        return self.part(Region.of_shape(self.box.shape)).grid

    @cached_property
    def box(self) -> Region:
        """What there is, in voxels of the patch: the patch itself, or more."""
        plan = self.patch.plan
        whole = Region.of_shape(plan.shape)
        if not self.soft:
            return whole
        low, high = np.array(plan.bounds.start) - 0.5, np.array(plan.bounds.stop) - 0.5
        try:
            found = plan.boxes_to_output([[*low, *high]])[0]
        except ValueError:  # no way back
            return whole
        start = np.minimum(np.ceil(found[:3] - _ROUNDING), whole.start).astype(int)
        stop = np.maximum(np.floor(found[3:] + _ROUNDING) + 1, whole.stop).astype(int)
        return Region(tuple(start.tolist()), tuple(stop.tolist()))

    @property
    def view(self) -> Region:
        """Where the patch lies in what there is."""
        return Region(
            tuple(-a for a in self.box.start),
            tuple(n - a for n, a in zip(self.patch.plan.shape, self.box.start, strict=True)),
        )

    def part(self, region: Region) -> SpatialPlan:
        """Return the plan by which a region is made of what the patch is made of."""
        return self.part_of(self.patch.plan, region)

    def part_of(self, plan: SpatialPlan, region: Region | None = None) -> SpatialPlan:
        """Return a plan to the patch as one to a region of what there is, by default all."""
        asked = Region.of_shape(self.box.shape) if region is None else region
        start = [a + b for a, b in zip(self.box.start, asked.start, strict=True)]
        return plan.crop(start, asked.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the voxels."""
        return self.patch.dtype

    @property
    def stored(self) -> Any:
        """The volume that lies in a file, below any number of these."""
        return stored_of(self.patch.volume)

    @property
    def draws(self) -> Mapping[str, Any]:
        """What the ops so far drew."""
        return self.patch.draws

    def read(self, region: Region, box: OrientedBox | None = None) -> Made:
        """Return the voxels of a region, all of them: ``box`` spares no work here."""
        plan = self.part(region)
        out = np.empty((self.shape[0], *region.shape), self.dtype)
        return Made(self.patch.realize_plan(plan, out))

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Any:
        """Begin to bring in what :meth:`read` is going to ask for."""
        return self.patch.prefetch_plan(self.part(region))


def made_of(
    patch: LazyPatch, before: LazyPatch, soft: bool = False, because: str = ""
) -> LazyPatch:
    """Return ``patch`` on the voxels that ``before`` gives, in the place of those that it had."""
    made = MadeVolume(before, soft, because)
    pending = replace(patch.pending, references={made.name: made})
    return replace(patch, volume=made, pending=pending)


class StoredRead(NamedTuple):
    """What a patch reads of a file, through any number of made volumes."""

    volume: Any
    """The stored volume, or a level of it."""
    region: Region
    """The voxels that are read of that."""
    level: int = 0
    """How many levels coarser than the volume; 0 for itself."""
    plan: SpatialPlan | None = None
    """The plan by which they are resampled; None where nothing is read."""
    policy: Policy = INTENSITY
    """How they are sampled."""
    made_bytes: int = 0
    """Bytes of the voxels that are made on the way, beside those of the patch."""


def stored_read(patch: LazyPatch, plan: SpatialPlan | None = None) -> StoredRead:
    """Return what a patch reads of the first volume whose channels it has."""
    return stored_reads(patch, plan)[0]


def stored_reads(patch: LazyPatch, plan: SpatialPlan | None = None) -> tuple[StoredRead, ...]:
    """Return what a patch, or a soft crop of it on ``plan``, reads; through made volumes.

    One for each file: several where the channels of several are stacked.
    """
    if patch.members:
        together: Any = patch
        wide = patch.widened(patch.plan if plan is None else plan)
        plans = [(one, together.plan_of(one, wide)) for one in patch.members]
        return tuple(read for one, its in plans for read in stored_reads(one, its))
    return tuple(read for part in patch.parts for read in _reads_of_part(part, plan))


def _reads_of_part(patch: LazyPatch, plan: SpatialPlan | None) -> tuple[StoredRead, ...]:
    volume, wide, level = patch.reads_from(plan)
    region = wide.source_region(patch.policy)
    if not isinstance(volume, MadeVolume):
        return (StoredRead(volume, region, level, wide, patch.policy),)
    if region.is_empty:
        return (StoredRead(volume.stored, region),)
    first, *others = stored_reads(volume.patch, volume.part(region))
    made = region.size * volume.shape[0] * volume.dtype.itemsize
    return (first._replace(made_bytes=first.made_bytes + made), *others)


def whole_plan(patch: LazyPatch) -> SpatialPlan:
    """Return one plan from the stored volume to a patch, through any number of made ones.

    For places: it says where voxels come from, and nothing of where padding began in between.
    """
    if not isinstance(patch.volume, MadeVolume):
        return patch.plan
    before = patch.volume.part_of(whole_plan(patch.volume.patch))
    return one_after_another(before, patch.plan)


def interpolations(patch: LazyPatch) -> tuple[int, int]:
    """Return how often the voxels of a patch are interpolated, and how often only copied."""
    if len(patch.parts) > 1 or patch.members:
        interpolated, copied = map(sum, zip(*map(interpolations, patch.parts), strict=True))
        return interpolated, copied
    is_copy = int(patch.plan.is_copy)
    if not isinstance(patch.volume, MadeVolume):
        return 1 - is_copy, is_copy
    more, copies = interpolations(patch.volume.patch)
    return more + 1 - is_copy, copies + is_copy


def breaks(patch: LazyPatch) -> tuple[str, ...]:
    """Return what breaks the fusion of a patch, first things first, and where it was written."""
    if patch.members:
        return tuple(dict.fromkeys(what for member in patch.members for what in breaks(member)))
    if not isinstance(patch.volume, MadeVolume):
        return ()
    made = patch.volume.patch
    by = [step for step in made.values if not step.op.commutes]
    told = [f"{step.op.waited_for}{f' at {step.origin}' if step.origin else ''}" for step in by]
    because = dict.fromkeys(step.op.late_because for step in by if step.op.late_because)
    why = f" ({'; '.join(because)})" if because else ""
    by_flush = patch.volume.because or "flush"
    return (*breaks(made), (" and ".join(told) or _cut(made) or by_flush) + why)


def _cut(made: LazyPatch) -> str:
    """Return the hard crop after which a volume from another grid begins anew, if one does."""
    steps = made.pending.steps if made.pending.moving is not None else ()
    last = next((step for step in reversed(steps) if is_hard(step.op)), None)
    if last is None:
        return ""
    place = f" at {last.origin}" if last.origin else ""
    return f"{last.op.name}{place} (a hard crop of a volume that was brought to another grid)"
