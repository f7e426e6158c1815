"""A patch that has not been read: which volume, which plan, how to sample it.

What a sample holds under each key after its volumes are opened. Asking for a shape or an affine
reads at most headers. ``realize`` reads the source region once, resamples it once, and applies
the value ops in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, OrientedBox, Region
from ..core.errors import PatchSizeError, UnknownFormat
from ..intensity import ValueOp, VolumeStatistics
from .convert import convert
from .no_arithmetic import NoArithmetic
from .pending import PendingPlan
from .plan import SpatialPlan
from .policy import Policy
from .resample import Source, resample

if TYPE_CHECKING:
    import torch


class VoxelsLike(Protocol):
    """What reading a region gives: stored voxels and how to turn them into values."""

    @property
    def array(self) -> NDArray[Any]:
        """(C, i, j, k), stored type, any strides and byte order."""

    @property
    def slope(self) -> float:
        """``value = array * slope + intercept``."""

    @property
    def intercept(self) -> float:
        """See ``slope``."""


class VolumeLike(Protocol):
    """What a patch asks of its volume."""

    @property
    def name(self) -> str:
        """Path or URL, without credentials."""

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K)."""

    @property
    def grid(self) -> Grid:
        """Spatial shape and affine."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values that reads stand for, native byte order."""

    def read(self, region: Region, box: OrientedBox | None = None) -> VoxelsLike:
        """Return the voxels of a region inside the volume; they are only needed in the box."""


@dataclass(frozen=True)
class VolumeFacts:
    """What value ops may ask about a volume; passed to them by a patch."""

    volume: Any
    """The volume of the patch."""
    source: Callable[[Any], VolumeStatistics] | None = None
    """Computes the statistics of a volume; by default ``volumes.volume_statistics``."""

    def statistics(self) -> VolumeStatistics:
        """Return the statistics of the whole volume; may read it, once."""
        if self.source is not None:
            return self.source(self.volume)
        from ..volumes import volume_statistics

        return volume_statistics(self.volume)


@dataclass(frozen=True, eq=False)
class LazyPatch(NoArithmetic):
    """The voxels of one volume on the output grid of a plan, not read yet."""

    volume: VolumeLike
    """Where the voxels are stored."""
    pending: PendingPlan
    """What is done to them; one object for all patches of a sample."""
    policy: Policy
    """How they are sampled."""
    values: tuple[ValueOp, ...] = ()
    """What is done to the values afterwards, in float32."""
    statistics: Callable[[Any], VolumeStatistics] | None = None
    """Where value ops get the statistics of the volume; by default from ``volumes``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))

    def with_pending(self, pending: PendingPlan, policy: Policy | None = None) -> LazyPatch:
        """Return the patch of another pending plan, and sampled otherwise if ``policy`` is given.

        What a planner does most; ``dataclasses.replace`` takes four times as long.
        """
        patch = object.__new__(LazyPatch)
        patch.__dict__.update(self.__dict__)
        patch.__dict__["pending"] = pending
        if policy is not None:
            patch.__dict__["policy"] = policy
        return patch

    def with_value(self, op: ValueOp) -> LazyPatch:
        """Return the patch with one more value op."""
        return replace(self, values=(*self.values, op))

    @property
    def plan(self) -> SpatialPlan:
        """The plan of the sample."""
        return self.pending.plan

    @property
    def draws(self) -> dict[str, Any]:
        """What each random pipe drew for the sample, by the name of its stream."""
        return self.pending.draws

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""
        return self.volume.kind

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K) of the output."""
        i, j, k = self.plan.shape
        return (self.volume.shape[0], i, j, k)

    @property
    def grid(self) -> Grid:
        """Grid of the output."""
        return self.plan.grid

    @property
    def affine(self) -> NDArray[np.float64]:
        """4x4 float64 of the output: voxel index to world millimetres."""
        return self.plan.affine

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Distance between neighbouring voxel centres of the output, in millimetres."""
        return self.plan.grid.spacing

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the result; the same whatever random ops draw. Reads at most the header."""
        if self.policy.dtype is not None:
            return self.policy.dtype
        if self.values:
            return np.dtype(np.float32)
        keeps = all(step.op.lattice for step in self.pending.steps)
        if keeps or self.kind == "label":
            stored = np.dtype(self.volume.dtype)
            return np.dtype(np.uint8) if stored.kind == "b" else stored
        return np.dtype(np.float32)

    @property
    def source_region(self) -> Region:
        """Exactly the voxels of the volume that ``realize`` reads; empty if all is fill."""
        return self.plan.source_region(self.policy)

    def realize(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the voxels: one read, one resample, then the value ops.

        Parameters
        ----------
        out
            Where to write, (C, I, J, K) of any strides and any integer or float type, e.g. a
            slot of a batch. By default a new array of ``dtype``.

        Raises
        ------
        PatchSizeError
            ``out`` has another shape.
        """
        if out is None:
            out = np.empty(self.shape, self.dtype)
        if out.shape != self.shape:
            raise PatchSizeError(
                f"a patch of {self.volume.name} has shape {self.shape}, its slot {out.shape}",
                do="Patches of one batch need one shape; crop_or_pad gives it to them.",
            )
        in_place = not self.values or out.dtype == np.float32
        target = out if in_place else np.empty(self.shape, np.float32)
        self._resample_into(target)
        facts = VolumeFacts(self.volume, self.statistics)
        for op in self.values:
            result = op.apply(target, facts)
            if result is not target:
                target[...] = result
        if not in_place:
            out[...] = convert(target, out.dtype)
        return out

    def prefetch(self) -> Any:
        """Begin to bring in the voxels that ``realize`` is going to read.

        Returns what is to be closed once they are no longer needed; None where there is
        nothing to wait for, as with mapped files.
        """
        begin = getattr(self.volume, "prefetch", None)
        if begin is None or getattr(self.volume, "access", "view") == "view":
            return None
        region = self.source_region
        return None if region.is_empty else begin(region, *self._box(region))

    def _resample_into(self, out: NDArray[Any]) -> None:
        plan, region = self.plan, self.source_region
        start = (region.start[0], region.start[1], region.start[2])
        if region.is_empty:
            nothing = np.empty((self.shape[0], 0, 0, 0), np.uint8)
            source = Source(nothing, start, plan.bounds)
        else:
            self._refuse_complex()
            voxels = self.volume.read(region, *self._box(region))
            source = Source(voxels.array, start, plan.bounds, voxels.slope, voxels.intercept)
        resample(source, plan.matrix, self.policy, out, plan.lowered)

    def _refuse_complex(self) -> None:
        """Say so before a voxel is read; ``Volume.numpy()`` returns complex numbers."""
        if np.dtype(self.volume.dtype).kind == "c":
            raise UnknownFormat(
                f"{self.volume.name} holds complex numbers, of which no patch can be resampled.",
                do="Store magnitude and phase, or the two parts, as channels of real numbers.",
            )

    def _box(self, region: Region) -> tuple[OrientedBox, ...]:
        """Return where in its source region the patch has taps, if that may spare chunks."""
        if getattr(self.volume, "chunks", None) is None:
            return ()
        box = self.plan.source_box(self.policy)
        return () if box is None else (box,)

    def tensor(self) -> torch.Tensor:
        """Return the voxels as a tensor of its own memory."""
        import torch

        return torch.from_numpy(self.realize())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            msg = "a lazy patch has no voxels yet; it is always realized into new memory"
            raise ValueError(msg)
        voxels = self.realize()
        return voxels if dtype is None else voxels.astype(dtype, copy=False)

    def provenance(self) -> dict[str, Any]:
        """Return where the voxels come from, as plain data.

        ``file`` is the volume's name, ``region`` the voxels read, [start, stop] per axis, and
        ``matrix`` the 4x4 pull-back from index of the patch to index of the volume.
        """
        return {
            "file": self.volume.name,
            "region": [list(pair) for pair in self.source_region],
            "matrix": self.plan.matrix.tolist(),
        }

    def __repr__(self) -> str:
        return f"LazyPatch({self.volume.name}: {self.pending.describe()})"
