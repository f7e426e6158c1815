"""A patch that has not been read: which volume, which plan, how to sample it.

What a sample holds under each key after its volumes are opened. Asking for a shape or an affine
reads at most headers. ``realize`` reads the source region once, resamples it once, and applies
the value ops in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region, Sample, Stream
from ...core.errors import GraphError, PatchSizeError, SampleError
from ...core.lru_cache import cached_property
from ...core.memory import refuse_beyond_memory
from ...core.stream import stream_identity
from ...intensity import Drawn, Epilogue, RecordedStatistics, ValueStep
from ...intensity.value_op import Halo
from ...intensity.value_step import apply_steps, fold_epilogues, types_of
from ...storage.read_ahead import Tickets
from ..plans.matrices import compose_plans
from ..plans.plan import SpatialPlan
from ..plans.policy import Policy
from ..resampling.source import Source, convert
from ..volume_like import StackedVolumes, VolumeLike, looks_ahead, made_like, patch_before
from .halo import (
    drawing_along,
    filling,
    fills_apart,
    halo_of,
    marking,
    outside_of,
    steps_before_fill,
    with_halo_of,
)
from .patch_facts import PatchFacts
from .patch_report import described, explained, provenance_of
from .pending import PendingPlan
from .read_plan import ReadPlan
from .virtual_volume import RealizedVolume, VirtualVolume

if TYPE_CHECKING:
    import torch


def _refusing(sign: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: Any) -> NoReturn:
        raise _refused(self, sign)

    return refuse


def _refused(patch: Any, sign: str) -> SampleError:
    return SampleError(
        f"{sign} needs voxels, and those of {patch!r} are not read yet",
        do="Put .realize() before: .realize().map(f).batch_patches(4); or compute on the batch, "
        "with .map(f) after batch_patches.",
    )


class NoArithmetic:
    """Makes every operator and NumPy function of elements a SampleError, which is a TypeError.

    Left to NumPy, ``1 + patch`` would read the voxels in the planner; ``patch + 1`` would be an
    error that says nothing of what to do.
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> NoReturn:
        """Refuse NumPy's element-wise functions, and operators with an array on the left."""
        raise _refused(self, f"numpy.{ufunc.__name__}")

    __add__ = __radd__ = _refusing("+")
    __sub__ = __rsub__ = _refusing("-")
    __mul__ = __rmul__ = _refusing("*")
    __truediv__ = __rtruediv__ = _refusing("/")
    __floordiv__ = __rfloordiv__ = _refusing("//")
    __mod__ = __rmod__ = _refusing("%")
    __pow__ = __rpow__ = _refusing("**")
    __neg__ = _refusing("-")
    __abs__ = _refusing("abs()")
    __lt__ = _refusing("<")
    __le__ = _refusing("<=")
    __gt__ = _refusing(">")
    __ge__ = _refusing(">=")


class _Reading(NamedTuple):
    """What is read for one plan of a patch."""

    plan: SpatialPlan
    """The plan: that of the patch, or a soft crop of it."""
    halo: Halo
    """What value ops look at around it."""
    wide: SpatialPlan
    """The plan with that."""
    reads: tuple[ReadPlan, ...]
    """One for each volume whose channels are stacked."""


# What was worked out for a patch: of no other one, and it stays where it was.
_WORKED_OUT = ("drawn", "_reading")


@dataclass(frozen=True, eq=False)
class LazyPatch(NoArithmetic):
    """The voxels of one volume on the output grid of a plan, not read yet."""

    volume: VolumeLike
    """Where the voxels are stored."""
    pending: PendingPlan
    """What is done to them; one object for all patches of a sample."""
    policy: Policy
    """How they are sampled."""
    values: tuple[ValueStep, ...] = ()
    """What is done to the values afterwards."""
    statistics: Callable[[Any], RecordedStatistics] | None = None
    """Where value ops get the statistics of the volume; by default from ``volumes``."""
    filled_after: int = 0
    """How many of ``values`` came before a pipe asked for the policy's fill: it is what is outside
    after these. Below 0: one asked before a flush."""

    is_fixed: bool = False
    """Whether the policy stays, whatever later pipes ask for."""
    members: tuple[LazyPatch, ...] = ()
    """Patches that are made one by one, each into channels of its own; of a ``StackedPatch``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))

    def with_pending(self, pending: PendingPlan, policy: Policy | None = None) -> LazyPatch:
        """Return the patch of another pending plan, and sampled otherwise if ``policy`` is given.

        What a planner does most; ``dataclasses.replace`` takes four times as long.
        """
        patch = object.__new__(type(self))
        patch.__dict__.update(self.__getstate__())
        patch.__dict__["pending"] = pending
        if policy is not None:
            patch.__dict__["policy"] = policy
        return patch

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in _WORKED_OUT:
            state.pop(name, None)
        return state

    def with_volume(self, volume: VolumeLike) -> LazyPatch:
        """Return the patch of other voxels, by the same plan."""
        patch = self.with_pending(self.pending)
        patch.__dict__["volume"] = volume
        return patch

    def with_value(self, step: ValueStep) -> LazyPatch:
        """Return the patch with one more value op, which draws from the identity as it is now.

        Raises
        ------
        GraphError
            The chain has a stream of this name already.
        """
        self._refuse_same_stream(step)
        if step.depth is None:
            step = replace(step, depth=len(self.pending.identity))
        return replace(self, values=(*self.values, step))

    def _refuse_same_stream(self, step: ValueStep) -> None:
        taken = {one.stream_name for one in self.values}
        taken.update(one.stream_name for one in self.pending.steps)
        if step.stream_name in taken:
            raise GraphError(
                f"two steps draw from the stream {step.stream_name!r}",
                do="Give one of them another name.",
            ).at(step.origin)

    @property
    def leaves(self) -> tuple[LazyPatch, ...]:
        """The patches that are made by themselves: the members of a stack, theirs, or this one."""
        return tuple(leaf for one in self.members for leaf in one.leaves) or (self,)

    def with_each(self, change: Callable[[LazyPatch], LazyPatch]) -> LazyPatch:
        """Return what ``change`` makes of the patch; of a stack, of each of its members.

        As long as nothing is done to all channels together: then of the whole patch.
        """
        return change(self)

    @property
    def commutes(self) -> bool:
        """Whether a spatial op may still be done before the value ops."""
        return all(step.op.commutes for step in self.values)

    @property
    def looks_at_all(self) -> bool:
        """Whether a voxel may differ with what else is asked for: an op looks at all it is given.

        It may be one of a member, or come before a flush. What is made tile by tile is the same
        whatever is asked for.
        """
        if any(step.op.looks_at_all for step in self.values):
            return True
        if self.members:
            return any(member.looks_at_all for member in self.members)
        below: list[Any] = [part.volume for part in self.parts]
        made = [one for one in below if hasattr(one, "patch")]
        return any(one.patch.looks_at_all for one in made if not one.tiled)

    def flushed(self, *, soft: bool = False, because: str = "", **how: Any) -> LazyPatch:
        """Return a patch that begins with what this one gives: later ops interpolate anew.

        Nothing is read: of what this patch gives, the new one will ask for what it needs; if
        ``soft``, also of what lies around it, where soft crops cut. ``because`` is for ``explain``.
        """
        empty = replace(self.pending, steps=(), moving=None)
        begun = replace(self, pending=empty, values=(), filled_after=-1)
        return begun.made_of(self, soft, because, **how)

    def made_of(
        self, before: LazyPatch, soft: bool = False, because: str = "", **how: Any
    ) -> LazyPatch:
        """Return the patch on the voxels that ``before`` gives, in the place of its own."""
        made = VirtualVolume(before, soft, because, **how)
        pending = replace(self.pending, references={made.name: made})
        return replace(self, volume=made, pending=pending)

    @property
    def plan(self) -> SpatialPlan:
        """The plan of the sample; after a flush, or an op such as ``blur``, since then."""
        return self.pending.plan

    @property
    def whole_plan(self) -> SpatialPlan:
        """The plan from the stored volume, through all flushes: of places, not of padding."""
        if isinstance(self.volume, RealizedVolume):
            before: SpatialPlan = self.volume.realized_from.whole_plan
        elif isinstance(self.volume, VirtualVolume):
            before = self.volume.part_of(self.volume.patch.whole_plan)
        else:
            return self.plan
        return compose_plans(before, self.plan)

    @property
    def draws(self) -> dict[str, Any]:
        """What each random pipe drew for the sample, by the name of its stream."""
        earlier = patch_before(self.volume)
        before = {} if earlier is None else earlier.draws
        # What may act or not is recorded where it acted without further parameters, too.
        mine = {
            step.stream_name: values
            for step, values in self.drawn
            if values is None or values or hasattr(step.op, "p")
        }
        return {**before, **self.pending.draws, **mine}

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""
        return self.volume.kind

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K) of the output."""
        i, j, k = self.plan.shape
        channels = self.channels
        for step in self.values:
            channels = step.channels(channels)
        return (channels, i, j, k)

    @property
    def channels(self) -> int:
        """How many channels there are before the value steps; reads at most the header."""
        return self.volume.shape[0]

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
        return types_of(self.values, self._resampled_dtype)[-1]

    @property
    def _resampled_dtype(self) -> np.dtype[Any]:
        """Type of what comes out of the resampler, before any value op."""
        if self.pending.keeps_dtype or self.kind == "label":
            stored = np.dtype(self.volume.dtype)
            return np.dtype(np.uint8) if stored.kind == "b" else stored
        return np.dtype(np.float32)

    @property
    def parts(self) -> tuple[LazyPatch, ...]:
        """A patch of each volume whose channels are stacked; itself where there is one volume."""
        volumes = self._volumes
        return tuple(map(self.with_volume, volumes)) if len(volumes) > 1 else (self,)

    def with_parts(self, parts: Sequence[LazyPatch]) -> LazyPatch:
        """Return the patch of these in the place of its own parts."""
        if len(parts) == 1:
            return parts[0]
        whole: Any = StackedVolumes(self.volume, [part.volume for part in parts])
        return self.with_volume(whole)

    @property
    def source_region(self) -> Region:
        """Exactly the voxels that ``realize`` reads, of what it reads from; empty for all fill."""
        return self.read_plan.region

    @property
    def read_plan(self) -> ReadPlan:
        """What is read of its volume, which may be a virtual one; of stacked ones as one."""
        reading = self._read(self.plan)
        if len(reading.reads) == 1:
            return reading.reads[0]
        return ReadPlan.of(self.volume, reading.wide, self.policy)

    def reads(
        self, plan: SpatialPlan | None = None, *, through: bool = False
    ) -> tuple[ReadPlan, ...]:
        """Return what the patch, or a soft crop of it on ``plan``, reads of files.

        Whoever asks what will be read asks here: those who count, negotiate, join and explain. One
        for each file: several where the channels of several are stacked. Where a virtual volume is
        kept in a copy, that is what is read; with ``through`` what the copy was made of.
        """
        reads = self._read(self.plan if plan is None else plan).reads
        return tuple(stored for read in reads for stored in read.stored(through=through))

    def _read(self, plan: SpatialPlan) -> _Reading:
        """Return what is read for a plan, worked out once for the one that was asked for last."""
        known: _Reading | None = self.__dict__.get("_reading")
        if known is None or known.plan is not plan:
            halo = halo_of(self.acting, plan)
            wide = with_halo_of(plan, halo)
            reads = tuple(ReadPlan.of(one, wide, self.policy) for one in self._volumes)
            known = self.__dict__["_reading"] = _Reading(plan, halo, wide, reads)
        return known

    def widened(self, plan: SpatialPlan) -> SpatialPlan:
        """Return a plan with the halo that value ops look at."""
        return self._read(plan).wide

    @property
    def _volumes(self) -> tuple[Any, ...]:
        """The volumes whose channels are stacked."""
        volumes: tuple[Any, ...] = getattr(self.volume, "parts", ())
        return volumes if len(volumes) > 1 else (self.volume,)

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
            refuse_beyond_memory(self.shape, self.dtype, self)
            out = np.empty(self.shape, self.dtype)
        if out.shape != self.shape:
            raise PatchSizeError(
                f"a patch of {self.volume.name} has shape {self.shape}, its slot {out.shape}",
                do="Patches of one batch need one shape; crop_or_pad gives it to them.",
            )
        return self.realize_plan(self.plan, out)

    def realize_plan(self, plan: SpatialPlan, out: NDArray[Any]) -> NDArray[Any]:
        """Write what the patch gives on ``plan``, its own or a soft crop of that, to ``out``."""
        acting, fills = self.acting, fills_apart(self, plan)
        reading = self._read(plan)
        if not acting and fills is None:
            self._resample_into(reading, out, None, filling(self, plan))
            return out
        halo, wide = reading.halo, reading.wide
        steps = self._with_facts(acting, wide)
        early = steps_before_fill(self, acting, wide)
        marks = early > 0 or fills is not None
        epilogue, rest = fold_epilogues(steps[:early] if marks else steps)
        types = types_of([step for step, _ in acting], self._resampled_dtype)
        first = np.dtype(np.float32) if marks else types[len(acting) - len(rest)]
        channels = self.channels
        fits = wide is plan and out.shape[0] == channels
        in_place = fits and (out.dtype == first or not (rest or marks))
        array = out if in_place else np.empty((channels, *wide.shape), first)
        policy = marking(self.policy) if marks else filling(self, wide)
        source, read_by = self._resample_into(reading, array, epilogue, policy)
        outside = outside_of(source, read_by, policy, array) if marks else None
        result = apply_steps(rest, array)
        if outside is not None:
            fill = self.policy.fill if fills is None else fills
            np.copyto(result, fill, where=outside, casting="same_kind")
            result = apply_steps(steps[early:], result)
        if result is not out:
            inside = tuple(slice(h, h + n) for h, n in zip(halo, plan.shape, strict=True))
            out[...] = convert(result[(slice(None), *inside)], out.dtype)
        return out

    def prefetch(self) -> Any:
        """Begin to bring in the voxels that ``realize`` is going to read.

        Returns what is to be closed once they are no longer needed; None where there is
        nothing to wait for, as with arrays in memory, or pages that are there.
        """
        # A plan is not worked out for nothing: that reads headers, and may warn.
        return self.prefetch_plan(self.plan) if looks_ahead(self.volume) else None

    def prefetch_plan(self, plan: SpatialPlan) -> Any:
        """Begin to bring in what :meth:`realize_plan` is going to read."""
        if not looks_ahead(self.volume):
            return None
        found = [read.prefetch() for read in self._read(plan).reads]
        tickets = [ticket for ticket in found if ticket is not None]
        return Tickets(tickets) if tickets else None

    @cached_property
    def drawn(self) -> tuple[tuple[ValueStep, Drawn | None], ...]:
        """Return the value steps with what they drew; None where one does not act."""
        return tuple(
            (step, drawing_along(step, lambda: self.plan).draw(self._stream(step).generator()))
            for step in self.values
        )

    @property
    def acting(self) -> list[tuple[ValueStep, Drawn]]:
        """The value ops that act, with what they drew."""
        return [(step, values) for step, values in self.drawn if values is not None]

    def _stream(self, step: ValueStep) -> Stream:
        pending, name = self.pending, step.draws_from or step.stream_name
        identity = stream_identity(pending.identity, step.depth, step.shared)
        return Stream(pending.seed, pending.epoch, identity, name)

    def acting_on(self, plan: SpatialPlan) -> list[tuple[ValueStep, Drawn, PatchFacts]]:
        """Return the steps that act, with what they drew and what they may ask on ``plan``."""
        return self._with_facts(self.acting, plan)

    def _with_facts(
        self, acting: Sequence[tuple[ValueStep, Drawn]], plan: SpatialPlan
    ) -> list[tuple[ValueStep, Drawn, PatchFacts]]:
        """Return the steps with facts, which know the steps before, of earlier flushes too."""
        if not acting:
            return []
        before = [*self.steps_before]
        start, stacked = len(before), self.stacked_facts(plan)
        for step, drawn in acting:
            salted = f"{step.stream_name}/{step.key}" if step.key else step.stream_name
            stream = replace(self._stream(step), name=salted)
            earlier, asked = tuple(before), self.statistics
            facts = PatchFacts(self.volume, plan, stream, asked, earlier, step.mask, step.key)
            before.append((step, drawn, replace(facts, stacked=stacked) if stacked else facts))
        return before[start:]

    @property
    def steps_before(self) -> tuple[tuple[ValueStep, Drawn, PatchFacts], ...]:
        """The steps of all flushes so far, first things first; of the members of none."""
        made = made_like(self.volume)
        if made is None or self.members:
            return ()
        earlier: LazyPatch = made.patch
        return (*earlier.steps_before, *earlier.acting_on(earlier.plan))

    def stacked_facts(self, plan: SpatialPlan) -> tuple[PatchFacts, ...]:
        """Return facts of each patch whose channels were stacked, if they were, with its steps."""
        made = made_like(self.volume)
        return () if made is None else tuple(made.patch.stacked_facts(made.patch.plan))

    def _resample_into(
        self, reading: _Reading, out: NDArray[Any], epilogue: Epilogue | None, policy: Policy
    ) -> tuple[Source, SpatialPlan]:
        """Write every part to its channels; return what the first was made of, and the plan."""
        sources, first = [], 0
        for volume, read in zip(self._volumes, reading.reads, strict=True):
            last = first + volume.shape[0]
            sources.append(read.resample_into(out[first:last], policy, epilogue))
            first = last
        return sources[0], reading.reads[0].plan

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

    def explain(self) -> str:
        """Return one line: the class of the work, the bytes that are read; reads headers."""
        return explained(self)

    def provenance(self) -> dict[str, Any]:
        """Return where the voxels come from, as plain data.

        ``file`` is the volume's name, ``stored_shape`` its (C, I, J, K), ``region`` the voxels
        read, [start, stop] per axis. ``matrix`` is 4x4, from an index of the *patch* to the index
        of the *stored volume*, through all flushes: ``stored = matrix @ (i, j, k, 1)``, of voxel
        centres; displacements are left out. ``affine`` is 4x4, from an index of the patch to world
        millimetres. ``plan`` is all of it, for ``SpatialPlan.from_json``: what brings a prediction
        back to the stored grid, in another process too. Where a coarser level is read, ``level``
        says which, and the region is of that one. Where several files were stacked, the entry is
        of the first, and ``channels`` has one for each.
        """
        return provenance_of(self)

    def __repr__(self) -> str:
        return f"LazyPatch({described(self)})"


def patches_of(item: object) -> dict[str, LazyPatch]:
    """Return the lazy patches of a sample by key; none of anything else."""
    if not isinstance(item, Sample):
        return {}
    return {key: thing for key, thing in item.items() if isinstance(thing, LazyPatch)}
