"""A patch that has not been read: its volume, plan and sampling policy.

A sample holds one under each key after its volumes are opened. Shape and affine need at most
headers. ``realize`` reads and resamples the region once, then applies the value ops in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region, Sample, Stream, ViewableVoxels
from ...core.convert_dtype import convert_dtype
from ...core.errors import PatchSizeError
from ...core.grid import XYZ
from ...core.lru_cache import cached_property
from ...core.memory import beyond_memory, usable_memory
from ...core.stream import common_identity
from ...intensity import Epilogue, Params, RecordedStatistics, ValueStep
from ...intensity.native_values import change_values
from ...intensity.value_op import Halo
from ...intensity.value_step import apply_steps, fold_epilogues, total_halo, types_of
from ...storage.read_ahead import joint_ticket
from ...volumes import Volume
from ..ops.axis_op import ToAxes
from ..ops.crop import widen
from ..ops.op import Step
from ..plans.matrices import compose_plans
from ..plans.plan import SpatialPlan
from ..plans.policy import LEVEL, Policy
from ..plans.stages import Clip
from ..resampling.native_resampler import SourceVoxels
from ..resampling.resample import outside_of
from . import patch_report
from .patch_facts import PatchFacts
from .patch_report import NoArithmetic, describe_patch
from .read_plan import ReadPlan, bounded_halo, provenance, select_first
from .transform_chain import SPARE_GENERATORS, TransformChain, join_steps
from .virtual_volume import RealizedVolume, StackedVolumes, VirtualVolume

if TYPE_CHECKING:
    import torch

# A smaller matrix entry moves no voxel by as much as the precision of plans.
_FLAT = 1e-9


class _Reading(NamedTuple):
    """The reads for one plan of a patch: its own, or a soft crop of it."""

    plan: SpatialPlan
    halo: Halo  # margin that value ops read around the plan
    wide: SpatialPlan  # the plan with the halo
    reads: tuple[ReadPlan, ...]  # one per stacked volume
    selects: int = 0  # number of first value steps (channel selections) done by the read


@dataclass(frozen=True, eq=False)
class LazyPatch(NoArithmetic, ViewableVoxels):
    """The voxels of one volume on the output grid of a plan, not read yet."""

    volume: Any
    """The stored volume: any object with name, kind, shape, grid, dtype and ``read()``."""
    pending: TransformChain
    """The spatial ops; one object for all patches of a sample."""
    policy: Policy
    """Sampling of the voxels."""
    values: tuple[ValueStep, ...] = ()
    """The value ops, applied after the resampling."""
    statistics: Callable[[Any], RecordedStatistics] | None = None
    """Source of volume statistics for value ops; by default from ``volumes``."""
    filled_after: int = 0
    """Number of ``values`` before the pipe that set the policy's fill: outside voxels get the fill
    after these. Below 0: the fill was set before a flush."""
    fixed_fields: tuple[str, ...] = ()
    """Fields of the policy that later pipes leave unchanged."""
    members: tuple[LazyPatch, ...] = ()
    """Patches of a ``StackedPatch``; each writes its own channels."""

    def with_pending(self, pending: TransformChain, **others: Any) -> Self:
        """Return the patch of another chain, with ``others`` of its fields."""
        # Planners call this most; ``dataclasses.replace`` takes ten times as long.
        patch, own = object.__new__(type(self)), self.__dict__
        fresh = len(own) == len(self.__dataclass_fields__)  # no cached property yet
        patch.__dict__.update(own if fresh else self.__getstate__())
        patch.__dict__.update(others, pending=pending)
        return patch

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def with_volume(self, volume: Any) -> LazyPatch:
        """Return the patch of other voxels, by the same plan."""
        return replace(self, volume=volume)

    def with_value(self, step: ValueStep) -> LazyPatch:
        """Return the patch with one more value op, which draws from the identity as it is now."""
        before: tuple[Any, ...] = (*self.values, *self.pending.steps)
        *_, step = join_steps(before, (step,), len(self.pending.identity))
        return replace(self, values=(*self.values, step))

    @property
    def leaves(self) -> tuple[LazyPatch, ...]:
        """The patches that are made by themselves: the members of a stack, theirs, or this one."""
        return tuple(leaf for one in self.members for leaf in one.leaves) or (self,)

    def with_each(self, change: Callable[[LazyPatch], LazyPatch]) -> LazyPatch:
        """Return ``change(self)``; a stack changes each of its members."""
        # A stack with value ops on all channels changes as a whole.
        return change(self)

    @property
    def commutes(self) -> bool:
        """Whether a spatial op may still be done before the value ops."""
        return all(step.op.commutes for step in self.values)

    @property
    def looks_at_all(self) -> bool:
        """Whether a voxel may depend on the region that is read: an op uses all its input."""
        # The op may belong to a member or come before a flush. Tiles are the same for every region.
        if any(step.op.looks_at_all for step in self.values):
            return True
        if self.members:
            return any(member.looks_at_all for member in self.members)
        volumes = [part.volume for part in self.parts if isinstance(part.volume, VirtualVolume)]
        return any(one.patch.looks_at_all for one in volumes if not one.is_tiled)

    def flush_plan(self, *, soft: bool = False, because: str = "", **how: Any) -> LazyPatch:
        """Return a patch that begins with the voxels of this one; later ops interpolate again."""
        # Reads nothing: the new patch reads its input when needed. With ``soft`` it also reads
        # around this patch, where soft crops cut. ``because`` is for ``explain``.
        empty = replace(self.pending, steps=(), moving=None)
        patch = replace(self, pending=empty, values=(), filled_after=-1)
        return patch.on_voxels_of(self, soft, because, **how)

    def on_voxels_of(
        self, before: LazyPatch, soft: bool = False, because: str = "", **how: Any
    ) -> LazyPatch:
        """Return the patch on the voxels that ``before`` gives, in the place of its own."""
        volume = VirtualVolume(before, soft, because, **how)
        pending = replace(self.pending, references={volume.name: volume})
        return replace(self, volume=volume, pending=pending)

    def in_axes(self, axes: str) -> LazyPatch:
        """Return the patch with its axes in the order of these names; unnamed axes stay."""
        own = self.plan.axes
        if own == axes or not {*own} <= {*XYZ}:
            return self
        # Values are made in the order of the chain, so that they keep their bits.
        is_plain = self.pending.keeps_dtype and not (self.values or self.members)
        patch = self if is_plain else self.flush_plan(is_tiled=True)
        step = Step(ToAxes(axes), f"axes {axes} after {len(patch.pending.steps)}")
        return patch.with_pending(patch.pending.then(step))

    @property
    def plan(self) -> SpatialPlan:
        """The plan of the sample; after a flush, or an op such as ``blur``, since then."""
        return self.pending.plan

    @property
    def whole_plan(self) -> SpatialPlan:
        """The plan from the stored volume through all flushes: of places, not of padding."""
        if isinstance(self.volume, RealizedVolume):
            before = self.volume.patch.whole_plan
        elif isinstance(self.volume, VirtualVolume):
            before = self.volume.part_of(self.volume.patch.whole_plan)
        else:
            return self.pending.plan
        return compose_plans(before, self.pending.plan)

    @property
    def draws(self) -> dict[str, Any]:
        """Draws of each random pipe for the sample, by the name of its stream."""
        earlier, spatial = getattr(self.volume, "patch", None), self.pending.draws
        draws: dict[str, Any] = {} if earlier is None else {**earlier.draws}
        pairs: Any = [(step, spatial[step.stream_name]) for step in self.pending.steps]
        for step, params in (*pairs, *(self.value_draws if self.values else ())):
            # An op with ``p`` is recorded even if it acted without parameters.
            if params is None or params or hasattr(step.op, "p"):
                draws[step.stream_name] = params
        return draws

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""
        return str(self.volume.kind)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """(C, I, J, K) of the output; (C, I, J) of 2-D data after ``to_axes()``."""
        plan = self.pending.plan
        channels = self.channels
        for step in self.values:
            channels = step.channels(channels)
        return (channels, *(plan.shape[:2] if len(plan.axes) == 2 else plan.shape))

    @property
    def channels(self) -> int:
        """How many channels there are before the value steps; reads at most the header."""
        return int(self.volume.shape[0])

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
        """Type of the result, the same for all draws; reads at most the header."""
        if self.policy.dtype is not None:
            return self.policy.dtype
        first = self._resampled_dtype
        return types_of(self.values, first)[-1] if self.values else first

    @property
    def _resampled_dtype(self) -> np.dtype[Any]:
        """Type of the resampler's output, before any value op."""
        if self.pending.keeps_dtype or self.volume.kind == "label":
            dtype = np.dtype(self.volume.dtype)
            return np.dtype(np.uint8) if dtype.kind == "b" else dtype
        return np.dtype(np.float32)

    @property
    def parts(self) -> tuple[LazyPatch, ...]:
        """A patch of each volume whose channels are stacked; itself where there is one volume."""
        volumes = getattr(self.volume, "parts", ())
        return tuple(map(self.with_volume, volumes)) if len(volumes) > 1 else (self,)

    def with_parts(self, parts: Sequence[LazyPatch]) -> LazyPatch:
        """Return the patch with ``parts`` in place of its own."""
        if len(parts) == 1:
            return parts[0]
        whole: Any = StackedVolumes(self.volume, [part.volume for part in parts])
        return self.with_volume(whole)

    @property
    def source_region(self) -> Region:
        """The region of ``read_plan.volume`` that ``realize`` reads; empty for all fill."""
        return self.read_plan.region

    @property
    def read_plan(self) -> ReadPlan:
        """The read of its volume, which may be virtual; stacked volumes count as one."""
        reading = self._read(self.plan)
        if len(reading.reads) == 1:
            return reading.reads[0]
        return ReadPlan.of(self.volume, reading.wide, self.policy)

    def reads(
        self, plan: SpatialPlan | None = None, *, through: bool = False
    ) -> tuple[ReadPlan, ...]:
        """Return the file reads of the patch, or of a soft crop of it on ``plan``."""
        # Single source for counting, negotiation, joined reads and ``explain``: one read per file.
        # A kept copy counts as the file; ``through`` returns the reads of the copy's source.
        reads = self._read(self.pending.plan if plan is None else plan).reads
        if len(reads) == 1 and not isinstance(reads[0].volume, VirtualVolume):  # most patches
            return reads
        return tuple(one for read in reads for one in read.file_reads(through=through))

    def _read(self, plan: SpatialPlan) -> _Reading:
        """Return the reads for a plan; the last plan's reads are cached."""
        memo: _Reading | None = self.__dict__.get("_reading")
        if memo is not None and memo.plan is plan:
            return memo
        halo, wide, size = (0, 0, 0), plan, 0
        if self.values:
            i, j, k = total_halo(self.acting, plan.grid)
            if i or j or k:  # no halo along an axis with one voxel
                axes = _axes_of(plan)
                halo = (i * (0 in axes), j * (1 in axes), k * (2 in axes))
                if any(h > n for h, n in zip(halo, plan.shape, strict=True)):
                    halo, size = bounded_halo(halo, plan, self.policy, self.acting, self.channels)
            wide = _with_halo(plan, halo)
        volumes = () if self.members else getattr(self.volume, "parts", ())
        selects = 0
        if not self.members and len(volumes) < 2:
            volumes, is_stored = (self.volume,), isinstance(self.volume, Volume)
            if is_stored and self.values and self.policy.antialias != LEVEL:
                volume, selects = select_first(self.volume, self.values)
                volumes = (volume,)
        reads = tuple(map(ReadPlan.of, volumes, repeat(wide), repeat(self.policy)))
        if selects:
            reads = (replace(reads[0], stored_channels=self.channels),)
        if size and reads:
            reads = (replace(reads[0], made_bytes=size), *reads[1:])
        reading = self.__dict__["_reading"] = _Reading(plan, halo, wide, reads, selects)
        return reading

    def widen(self, plan: SpatialPlan) -> SpatialPlan:
        """Return a plan with the halo of the value ops."""
        return self._read(plan).wide

    def realize(
        self, out: NDArray[Any] | None = None, plan: SpatialPlan | None = None
    ) -> NDArray[Any]:
        """Return the voxels: one read, one resample, then the value ops.

        Parameters
        ----------
        out
            Array for the result, (C, I, J, K) of any strides and any integer or float type, e.g. a
            slot of a batch; of 2-D data after ``to_axes()`` also (C, I, J). By default a new array
            of ``dtype``, of the shape of the patch.
        plan
            A soft crop of the own plan; by default that itself.

        Raises
        ------
        PatchSizeError
            ``out`` has another shape.
        """
        if plan is None:
            plan = self.pending.plan
        shape = (self.shape[0], *plan.shape)
        if len(plan.axes) == 2 and (out is None or out.ndim == len(plan.shape)):
            result = np.empty(shape[:-1], self.dtype) if out is None else out
            self.realize(result[..., None], plan)
            return result
        if out is None:
            dtype = self.dtype
            if 0 < usable_memory() < math.prod(shape) * dtype.itemsize:
                raise beyond_memory(shape, dtype, self)
            out = np.empty(shape, dtype)
        elif out.shape != shape:
            msg = f"a patch of {self.volume.name} has shape {shape}, its slot {out.shape}"
            do = "Patches of one batch need one shape; crop_or_pad gives it to them."
            raise PatchSizeError(msg, do=do)
        reading, fills, policy = self._read(plan), None, self.policy
        if self.filled_after < 0:
            policy, fills = self._filled_before(plan)
        acting = self.acting if self.values else []
        if acting or fills is not None:
            self._realize_values(reading, acting, policy, fills, out)
        elif len(reading.reads) == 1:  # most patches
            reading.reads[0].resample_into(out, policy, None)
        else:
            self._resample_into(reading, out, None, policy)
        return out

    def _realize_values(
        self,
        reading: _Reading,
        acting: Sequence[tuple[ValueStep, Params]],
        policy: Policy,
        fills: NDArray[np.float32] | None,
        out: NDArray[Any],
    ) -> None:
        """Write the voxels after the value ops, and fill the voxels outside."""
        plan, halo, wide, reads, selects = reading
        steps = self._with_facts(acting, wide)
        early = self._steps_before_fill(acting, wide)
        if selects:
            steps, acting, early = steps[selects:], acting[selects:], max(early - selects, 0)
        marks = early > 0 or fills is not None
        epilogue, rest = fold_epilogues(steps[:early] if marks else steps)
        types = types_of([step for step, _ in acting], self._resampled_dtype)
        first = np.dtype(np.float32) if marks else types[len(acting) - len(rest)]
        channels = reads[0].volume.shape[0] if selects else self.channels
        fits = wide is plan and out.shape[0] == channels
        in_place = fits and (out.dtype == first or not (rest or marks))
        array = out if in_place else np.empty((channels, *wide.shape), first)
        if marks:
            policy = replace(self.policy, fill=np.nan, dtype=None)
        source, read_by = self._resample_into(reading, array, epilogue, policy)
        outside = outside_of(source, read_by, policy, array) if marks else None
        result = apply_steps(rest, array)
        if outside is not None:
            fill = self.policy.fill if fills is None else fills
            np.copyto(result, fill, where=outside, casting="same_kind")
            result = apply_steps(steps[early:], result)
        if result is not out:
            out[...] = convert_dtype(_inside(result, halo, plan.shape), out.dtype)

    def prefetch(self, plan: SpatialPlan | None = None) -> Any:
        """Begin to prefetch the voxels that ``realize`` reads."""
        # Returns a ticket to close after the read. None if no wait is needed: arrays in memory,
        # cached pages. A plan is not computed only for this: it reads headers, and may warn.
        if not getattr(self.volume, "looks_ahead", False):
            return None
        reads = self._read(self.pending.plan if plan is None else plan).reads
        if len(reads) == 1 and not reads[0].region.is_empty:  # most patches
            return reads[0].volume.prefetch(reads[0].region)
        tickets = [one.volume.prefetch(one.region) for one in reads if not one.region.is_empty]
        return joint_ticket(tickets)

    @cached_property
    def value_draws(self) -> tuple[tuple[ValueStep, Params | None], ...]:
        """Return the value steps with their draws; None where a step does not act."""
        pairs = []
        try:
            generator = SPARE_GENERATORS.pop()
        except IndexError:
            generator = Stream(0, 0, (), "").generator()
        by_channel = any(step.op.draws_channels for step in self.values)
        channels = self.channels if by_channel else 0
        for step in self.values:
            op = step.op
            if op.draws_axis:  # an axis with more than one voxel
                op = op.along(_axes_of(self.plan, self.plan.slices))
            op = op.of_channels(channels) if op.draws_channels else op
            pairs.append((step, step.draw(self._stream(step).restart(generator), op)))
            channels = step.channels(channels) if by_channel else 0
        SPARE_GENERATORS.append(generator)
        return tuple(pairs)

    @property
    def acting(self) -> list[tuple[ValueStep, Params]]:
        """The value ops that act, with their draws."""
        return [(step, values) for step, values in self.value_draws if values is not None]

    def _stream(self, step: ValueStep) -> Stream:
        pending, name = self.pending, step.draws_from or step.stream_name
        identity = pending.identity[: step.depth]
        identity = common_identity(identity) if step.common else identity
        return Stream(pending.seed, pending.epoch, identity, name)

    def acting_on(self, plan: SpatialPlan) -> list[tuple[ValueStep, Params, PatchFacts]]:
        """Return the steps that act, with their draws and their facts on ``plan``."""
        return self._with_facts(self.acting, plan)

    def _with_facts(
        self, acting: Sequence[tuple[ValueStep, Params]], plan: SpatialPlan
    ) -> list[tuple[ValueStep, Params, PatchFacts]]:
        """Return the steps with facts, which know the steps before, of earlier flushes too."""
        if not acting:
            return []
        before = [*self.steps_before]
        start, members = len(before), self.stacked_facts(plan)
        for step, params in acting:
            name = f"{step.stream_name}/{step.key}" if step.key else step.stream_name
            stream, steps = replace(self._stream(step), name=name), tuple(before)
            facts = PatchFacts(
                self.volume, plan, stream, self.statistics, steps, step.mask, step.key, members
            )
            before.append((step, params, facts))
        return before[start:]

    @property
    def steps_before(self) -> tuple[tuple[ValueStep, Params, PatchFacts], ...]:
        """Steps of all flushes so far, in order; empty for stacks."""
        if self.members or not isinstance(self.volume, VirtualVolume):
            return ()
        earlier: Any = self.volume.patch
        return (*earlier.steps_before, *earlier.acting_on(earlier.plan))

    def stacked_facts(self, plan: SpatialPlan) -> tuple[PatchFacts, ...]:
        """Return facts of each stacked patch with its steps; empty if none was stacked."""
        if not isinstance(self.volume, VirtualVolume):
            return ()
        earlier: Any = self.volume.patch
        return tuple(earlier.stacked_facts(earlier.plan))

    def _resample_into(
        self, reading: _Reading, out: NDArray[Any], epilogue: Epilogue | None, policy: Policy
    ) -> tuple[SourceVoxels, SpatialPlan]:
        """Write every part to its channels; return the first part's voxels and plan."""
        sources, first = [], 0
        for read in reading.reads:
            last = first + read.volume.shape[0]
            sources.append(read.resample_into(out[first:last], policy, epilogue))
            first = last
        return sources[0], reading.reads[0].plan

    # Fill in the units of the values where a pipe set the fill, after the first value ops.
    #
    # Value ops act after the one interpolation, so they also change the resampler's fill. A fill
    # that was set after some value ops must stay exact. Therefore the outside is NaN during these
    # ops, and the fill is written after them. The plan decides which voxels are outside: NaN from
    # the file or from an op stays NaN.

    def _steps_before_fill(self, acting: Sequence[tuple[ValueStep, Any]], plan: SpatialPlan) -> int:
        """Return the number of acting steps before the fill; 0 if no voxel is outside."""
        # Ops on channels and labels keep any type and have no NaN: they pass the fill through.
        if self.filled_after <= 0 or not _leaves_some(self.policy, plan):
            return 0
        before = {id(step) for step in self.values[: self.filled_after]}
        first = [step for step, _ in acting if id(step) in before]
        return 0 if all(step.op.keeps_dtype for step in first) else len(first)

    def _filled_before(self, plan: SpatialPlan) -> tuple[Policy, NDArray[np.float32] | None]:
        """Return the policy with the fill after a flush, and each channel's fill if they differ."""
        # After a flush of a stack each channel has the fill that its value ops made: (C, 1, 1, 1).
        if not _leaves_some(self.policy, plan):
            return self.policy, None
        fills = self._fills()
        policy = replace(self.policy, fill=float(fills[0]))
        if (fills == fills[0]).all() or np.isnan(fills).all():
            return policy, None
        return policy, np.asarray(fills, np.float32).reshape(-1, 1, 1, 1)

    def _fills(self) -> NDArray[np.float64]:
        """Return the fill of each channel, or one fill for all."""
        # A fill from before a flush or realize() passes through the pointwise ops since then.
        before = getattr(self.volume, "patch", None)
        if self.filled_after >= 0 or before is None:
            return np.array([self.policy.fill])
        fills: NDArray[np.float64] = before._fills_after_values()
        return fills

    def _fills_after_values(self) -> NDArray[np.float64]:
        if self.members and self.filled_after <= 0:
            each = [(one._fills_after_values(), one.shape[0]) for one in self.members]
            fills = np.concatenate([np.broadcast_to(fill, count) for fill, count in each])
            fills = fills[:1] if (fills == fills[0]).all() else fills
        else:
            fills = self._fills()
        late = {id(step) for step in self.values[max(self.filled_after, 0) :]}
        for step, params, facts in self.acting_on(self.plan):
            if id(step) in late and step.op.pointwise:
                voxels = fills.astype(np.float32).reshape(-1, 1, 1, 1)
                fills = np.ravel(step.op.apply(voxels, params, facts)).astype(np.float64)
        return fills

    def changed_by_last(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the result of the last value op on voxels that the patch has without it."""
        # The voxels have no volume around them, so the halo repeats their outermost voxels.
        if self.plan.is_flat and array.ndim == len(self.plan.shape):
            return self.changed_by_last(array[..., None])[..., 0]
        if not self.values:  # a stack: each member has the op
            ends = np.cumsum([0, *(member.channels for member in self.members)]).tolist()
            apart = zip(self.members, pairwise(ends), strict=True)
            return np.concatenate([one.changed_by_last(array[a:b]) for one, (a, b) in apart])
        step, params = self.value_draws[-1]
        if params is None:
            return array.astype(step.op.dtype(array.dtype))
        halo = step.op.halo(params, self.plan.grid)
        if step.op.keeps_faces:
            halo = (min(halo[0], 1), min(halo[1], 1), min(halo[2], 1))
        wide = np.pad(array, [(0, 0), *((h, h) for h in halo)], mode="edge")
        epilogue, rest = fold_epilogues(self.acting_on(_with_halo(self.plan, halo))[-1:])
        if epilogue is not None:  # same bits as in the resampler
            wide = wide.astype(np.float32, copy=False)
            change_values(wide, [epilogue])
        return np.ascontiguousarray(_inside(apply_steps(rest, wide), halo, array.shape[1:]))

    def tensor(self) -> torch.Tensor:
        """Return the voxels as a tensor of its own memory."""
        import torch

        return torch.from_numpy(self.realize())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a lazy patch has no voxels yet: it is realized into new memory")
        voxels = self.realize()
        return voxels if dtype is None else voxels.astype(dtype, copy=False)

    explain = patch_report.explain
    provenance = provenance

    def __repr__(self) -> str:
        return f"LazyPatch({describe_patch(self)})"


def patches_of(item: object) -> dict[str, LazyPatch]:
    """Return the lazy patches of a sample by key; none of anything else."""
    if not isinstance(item, Sample):
        return {}
    return {key: thing for key, thing in item.items() if isinstance(thing, LazyPatch)}


def _axes_of(plan: SpatialPlan, slices: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the axes of the output along which the volume has more than one voxel."""
    # ``slices``: source axes that count as longer than 1, so that a flush changes no draw.
    moves = np.abs(plan.matrix[:3, :3]) > _FLAT
    flat = [n == 1 and axis not in slices for axis, n in enumerate(plan.source.shape)]
    return tuple(axis for axis in range(3) if moves[np.logical_not(flat), axis].any())


def _with_halo(plan: SpatialPlan, halo: Halo) -> SpatialPlan:
    return widen(plan, [(h, h) for h in halo]) if any(halo) else plan


def _inside(array: NDArray[Any], halo: Halo, shape: Sequence[int]) -> NDArray[Any]:
    inside = [slice(h, h + n) for h, n in zip(halo, shape, strict=True)]
    return array[(slice(None), *inside)]


def _leaves_some(policy: Policy, plan: SpatialPlan) -> bool:
    return policy.padding == "constant" or any(isinstance(stage, Clip) for stage in plan.stages)
