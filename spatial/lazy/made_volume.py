"""A volume that is made on demand: what a patch gives, for ops that cannot wait.

Where an op needs voxels as they are after the ops before it, those become a volume of their own,
on the grid of the plan so far. It is as lazy as a file: a read of a region realizes that region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, OrientedBox, Region
from ..plans.clip import Clip
from ..plans.displacement import Displacement
from ..plans.stages import Stage

if TYPE_CHECKING:
    from ..plans.plan import SpatialPlan
    from .lazy_patch import LazyPatch


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
        return self.patch.shape

    @property
    def grid(self) -> Grid:
        """Grid of the plan so far."""
        return self.patch.grid

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the voxels."""
        return self.patch.dtype

    @property
    def stored(self) -> Any:
        """The volume that lies in a file, below any number of these."""
        return getattr(self.patch.volume, "stored", self.patch.volume)

    @property
    def draws(self) -> Mapping[str, Any]:
        """What the ops so far drew."""
        return self.patch.draws

    def read(self, region: Region, box: OrientedBox | None = None) -> Made:
        """Return the voxels of a region, all of them: ``box`` spares no work here."""
        plan = self.patch.plan.crop(region.start, region.shape)
        out = np.empty((self.shape[0], *region.shape), self.dtype)
        return Made(self.patch.realize_plan(plan, out))

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Any:
        """Begin to bring in what :meth:`read` is going to ask for."""
        return self.patch.prefetch_plan(self.patch.plan.crop(region.start, region.shape))


def made_of(patch: LazyPatch, before: LazyPatch) -> LazyPatch:
    """Return ``patch`` on the voxels that ``before`` gives, in the place of those that it had."""
    made = MadeVolume(before)
    pending = replace(patch.pending, references={made.name: made})
    return replace(patch, volume=made, pending=pending)


def stored_read(patch: LazyPatch, plan: SpatialPlan | None = None) -> tuple[Any, Region]:
    """Return what a patch reads: the stored volume or a level of it, and which voxels of that.

    Through any number of made volumes.
    """
    volume, wide, _ = patch.reads_from(plan)
    region = wide.source_region(patch.policy)
    if not isinstance(volume, MadeVolume):
        return volume, region
    if region.is_empty:
        return volume.stored, region
    return stored_read(volume.patch, volume.patch.plan.crop(region.start, region.shape))


def whole_plan(patch: LazyPatch) -> SpatialPlan:
    """Return one plan from the stored volume to a patch, through any number of made ones.

    For places: it says where voxels come from, and nothing of where padding began in between.
    """
    after = patch.plan
    if not isinstance(patch.volume, MadeVolume):
        return after
    before = whole_plan(patch.volume.patch)
    matrix, back = before.matrix, before.to_output
    moved: list[Stage] = [
        stage.after(back)
        if isinstance(stage, Clip)
        else Displacement(np.tensordot(matrix[:3, :3], stage.control, axes=1), stage.matrix @ back)
        for stage in after.stages
    ]
    stages = (*before.stages, *moved)
    whole = matrix @ after.matrix
    return type(after)(before.source, whole, after.shape, None, stages, keeps_dtype=False)


def interpolations(patch: LazyPatch) -> tuple[int, int]:
    """Return how often the voxels of a patch are interpolated, and how often only copied."""
    is_copy = int(patch.plan.is_copy)
    if not isinstance(patch.volume, MadeVolume):
        return 1 - is_copy, is_copy
    more, copies = interpolations(patch.volume.patch)
    return more + 1 - is_copy, copies + is_copy


def breaks(patch: LazyPatch) -> tuple[str, ...]:
    """Return what breaks the fusion of a patch, first things first, and where it was written."""
    if not isinstance(patch.volume, MadeVolume):
        return ()
    made = patch.volume.patch
    by = [step for step in made.values if not step.op.commutes]
    told = [f"{step.op.waited_for}{f' at {step.origin}' if step.origin else ''}" for step in by]
    return (*breaks(made), " and ".join(told) or "flush")
