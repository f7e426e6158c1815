"""Patches whose channels become one patch, in one slot of a batch; and a patch taken apart.

Patches that are sampled alike become a patch of one volume with all channels. Others, with other
value ops, sampling or position, are made one by one, each into its own channels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...core import Sample, Stream
from ...core.convert_dtype import convert_dtype
from ...core.errors import GridMismatch
from ...core.validate import entries_of
from ...intensity import Epilogue, SelectChannels, ValueStep
from ...storage.read_ahead import joint_ticket
from ...volumes import AxisMap, Volume
from ...volumes.axis_map import find_channels
from ...volumes.axis_map_source import AxisMappedSource
from ...volumes.stack_source import StackedSource
from ..plans.plan import SpatialPlan
from ..plans.policy import Policy
from ..resampling.native_resampler import SourceVoxels
from .lazy_patch import LazyPatch
from .patch_facts import PatchFacts, channel_names, times_of
from .read_plan import ReadPlan
from .transform_chain import TransformChain
from .virtual_volume import RealizedVolume, VirtualVolume


def stack_patches(patches: Sequence[LazyPatch], because: str = "") -> LazyPatch:
    """Return one patch of the channels of all, in this order; reads nothing."""
    # Output grids are compared when the patches are made. ``because`` is for ``explain``.
    first = patches[0]
    volumes: list[Any] = [getattr(patch.volume, "stored_volume", patch.volume) for patch in patches]
    if all(_is_like(patch, first) for patch in patches):
        return first.with_volume(Volume(volumes, kind=_kind_of(volumes)))
    patch = StackedPatch(_apart(volumes), first.pending, first.policy, because=because)
    members = ((one,) if one.values or not one.members else one.members for one in patches)
    return patch.with_members([*chain.from_iterable(members)])


def needs_header(patch: LazyPatch, op: SelectChannels) -> bool:
    """Whether channels are named, or counted in each of several times; may read the header."""
    return op.has_names or times_of(patch).number > 1


def select_by_name(patch: LazyPatch, op: SelectChannels) -> LazyPatch | None:
    """Return the patch of the chosen channels; None after ops that may need all channels."""
    if patch.values or patch.members or not isinstance(patch.volume, Volume):
        return None
    return patch.with_volume(patch.volume.with_axis_map(AxisMap.of_channels(op.indices)))


def select_by_number(patch: LazyPatch, op: SelectChannels) -> SelectChannels:
    """Return the op with the places of its channels at all times; reads the header."""
    names, count = channel_names(patch), patch.shape[0]
    where = patch.volume.name
    numbers = find_channels(entries_of(op.indices), names, count, where, times_of(patch))
    return SelectChannels(numbers)


def sampled_as_before(sample: Sample, policies: Collection[str]) -> Sample:
    """Return a sample just opened, whose realized volumes keep their former sampling."""
    # ``sample.patches`` are the former ones; ``policies`` names keys with a new policy.
    again, rest = {}, dict(sample.patches)
    for key, patch in sample.items():
        is_realized = isinstance(getattr(patch, "volume", None), RealizedVolume)
        before: Any = rest.pop(key, None) if is_realized else None
        if before is not None and key not in policies and before.kind == patch.kind:
            again[key] = _as_before(patch, before)
    return sample.with_data(**again).replace(patches=rest)


def _as_before(patch: LazyPatch, before: LazyPatch) -> LazyPatch:
    """Return realized voxels as a patch that is sampled as another, or as its members are."""
    if isinstance(before, StackedPatch) and not before.values:
        volume: Any = patch.volume
        counts = [member.shape[0] for member in before.members]
        if volume.shape[0] == sum(counts):  # a function may have changed the channels
            firsts = np.cumsum([0, *counts]).tolist()
            members = [
                _as_before(patch.with_volume(volume.channels_of(member, first)), member)
                for member, first in zip(before.members, firsts, strict=False)
            ]
            pending = patch.pending
            stack = StackedPatch(volume, pending, patch.policy, because=before.because)
            return stack.with_members(members)
    # The fill was set before: value ops apply to it from here on.
    how: Any = {"policy": before.policy, "fixed_fields": before.fixed_fields}
    return replace(patch, **how, filled_after=-1)


def _is_like(patch: LazyPatch, first: LazyPatch) -> bool:
    """Whether two patches differ only in their voxels, which come from files."""
    names = ("kind", "policy", "fixed_fields", "filled_after")
    alike = all(getattr(patch, name) == getattr(first, name) for name in names)
    plain = not (patch.values or patch.statistics or patch.members)
    in_file = isinstance(patch.volume, Volume) and not isinstance(patch.volume, RealizedVolume)
    same_plan = patch.pending is first.pending and patch.pending.moving is None
    return alike and plain and in_file and same_plan


def _kind_of(volumes: Sequence[Any]) -> str:
    return "label" if all(volume.kind == "label" for volume in volumes) else "intensity"


def _apart(volumes: Sequence[Any]) -> Volume:
    """Return a volume for name, header and layout of files on any grids."""
    parts = [part for volume in volumes for part in volume.parts]
    return Volume.of_source(StackedSource(parts, apart=True), _kind_of(volumes))


def read_volume_of(patch: LazyPatch) -> Any:
    """Return the volume that a patch reads: a file, a kept copy, or those of all members."""
    # The result is no ``Volume`` if a source has no storage layout.
    read: list[Any] = [leaf.volume for leaf in patch.leaves]
    for n, volume in enumerate(read):
        while isinstance(volume, VirtualVolume):
            volume = read[n] = volume.patch.volume if volume.copy is None else volume.copy
    other = next((volume for volume in read if not isinstance(volume, Volume)), None)
    if len(read) == 1 or other is not None:
        return read[0] if other is None else other
    return _apart(read)


def _mapped_parts(volume: Volume) -> tuple[Volume, ...]:
    """Return the parts of a list seen through the common axis map, each in its type."""
    source = volume._source
    if not isinstance(source, AxisMappedSource):
        return volume.parts
    parts: tuple[Volume, ...] = getattr(source.source, "parts", ())
    if not parts or any(rule.axis == 0 for rule in source.axis_map.rules):
        return volume.parts
    return tuple(part.with_axis_map(source.axis_map) for part in parts)


def unstack_patch(patch: LazyPatch, step_of: Callable[[int], ValueStep]) -> list[LazyPatch]:
    """Return a patch of each channel, which reads only that channel if possible."""
    # ``step_of`` returns the step that selects a channel, for a patch with value ops.
    count = patch.shape[0]
    if count == 1:
        return [patch]
    if patch.values:
        plain = replace(patch, values=(), filled_after=0)
        by_channel = not patch.members and all(step.op.by_channel for step in patch.values)
        apart = unstack_patch(plain, step_of) if by_channel else []
        if len(apart) != count or any(one.values for one in apart):
            return [patch.with_value(step_of(channel)) for channel in range(count)]
        how: Any = {"values": patch.values, "filled_after": patch.filled_after}
        return [replace(one, **how) for one in apart]
    parts = patch.members or patch.parts
    if isinstance(patch.volume, Volume) and len(parts) == 1:
        parts = tuple(map(patch.with_volume, _mapped_parts(patch.volume)))
    if len(parts) > 1 or patch.members:
        patches: list[LazyPatch] = []
        for part in parts:
            # Step for a channel of a member whose first channel is ``first`` of all.
            def step_of_member(channel: int, first: int = len(patches)) -> ValueStep:
                return replace(step_of(first + channel), op=SelectChannels(channel))

            patches += unstack_patch(part, step_of_member)
        return patches
    whole: Any = patch.volume
    if isinstance(whole, VirtualVolume):  # a kept copy is split by channel, too
        copies = [whole.copy and whole.copy.with_axis_map(_only(c)) for c in range(count)]
        before: Any = whole.patch
        volumes = map(whole.of_other, unstack_patch(before, step_of))
        pairs = zip(volumes, copies, strict=True)
        return [patch.with_volume(replace(one, copy=copy)) for one, copy in pairs]
    if not isinstance(whole, Volume):
        return [patch.with_value(step_of(channel)) for channel in range(count)]
    return [patch.with_volume(whole.with_axis_map(_only(channel))) for channel in range(count)]


def _only(channel: int) -> AxisMap:
    return AxisMap.from_table("C", [channel])


@dataclass(frozen=True, eq=False)
class StackedPatch(LazyPatch):
    """Patches, its ``members``, that are made one by one, each into channels of its own."""

    # Value steps follow the members' on all channels; a later spatial op applies to their result.

    because: str = ""  # place of the stacking, for ``explain``

    @property
    def commutes(self) -> bool:
        """Whether a spatial op may still apply to the members; each decides for itself."""
        return not self.values

    def with_each(self, change: Callable[[LazyPatch], LazyPatch]) -> LazyPatch:
        """Return the patch with ``change`` applied to each member."""
        # Value steps on all channels force one change on the whole.
        if self.values:
            return change(self)
        return self.with_members([member.with_each(change) for member in self.members])

    def with_value(self, step: ValueStep) -> LazyPatch:
        """Return the patch with one more value op: of each member, or of all channels together."""
        if self.values or not step.op.by_channel:
            return super().with_value(step)
        return self.with_members([member.with_value(step) for member in self.members])

    def flush_plan(self, *, soft: bool = False, because: str = "", **how: Any) -> LazyPatch:
        """Return a patch of one volume of all channels, which begins with these voxels."""
        # All channels share the sampling from here; ``with_each`` still changes each member.
        empty = replace(self.pending, steps=(), moving=None)
        plain = LazyPatch(
            self.volume, empty, self.policy, (), self.statistics, -1, fixed_fields=self.fixed_fields
        )
        return plain.on_voxels_of(self, soft, because or self.because, **how)

    def with_pending(self, pending: TransformChain, **others: Any) -> Self:
        fresh: dict[int, TransformChain] = {id(self.pending): pending}
        for member in self.members:
            fresh.setdefault(id(member.pending), replace(member.pending))
        members = [one.with_pending(fresh[id(one.pending)]) for one in self.members]
        return replace(self.with_members(members), **others)

    def with_members(self, members: Sequence[LazyPatch]) -> Self:
        """Return the patch with other members, sampled as these are."""
        # Prefer a fixed policy, and one of no label.
        first = min(members, key=lambda one: (not one.fixed_fields, one.kind == "label"))
        policy = first.policy
        same = all(one.policy.dtype == policy.dtype for one in members)
        return replace(
            self,
            members=tuple(members),
            pending=members[0].pending,
            policy=policy if same else replace(policy, dtype=None),
            fixed_fields=first.fixed_fields,
        )

    @property
    def parts(self) -> tuple[LazyPatch, ...]:
        return tuple(part for member in self.members for part in member.parts)

    def with_parts(self, parts: Sequence[LazyPatch]) -> LazyPatch:
        rest = iter(parts)
        return self.with_members(
            [one.with_parts([next(rest) for _ in one.parts]) for one in self.members]
        )

    def plan_of(self, member: LazyPatch, plan: SpatialPlan) -> SpatialPlan:
        """Return a member's plan for ``plan``, a soft crop of this patch's plan."""
        mine = self.plan
        if member.pending is self.pending:
            return plan
        shift = np.rint(np.linalg.solve(mine.matrix, plan.matrix)[:3, 3]).astype(int).tolist()
        if not any(shift) and plan.shape == mine.shape:
            return member.plan
        return member.plan.crop(shift, plan.shape)

    @property
    def draws(self) -> dict[str, Any]:
        before = {name: params for one in self.members for name, params in one.draws.items()}
        return {**before, **super().draws}

    @property
    def channels(self) -> int:
        first = self.plan.grid
        for member in self.members[1:]:
            grid = member.plan.grid
            if not (how := first.difference(grid)):
                continue
            msg = f"{self.members[0].volume.name} and {member.volume.name} are to be channels of "
            do = "Put .resample_to(one of these) right after open_volume()."
            raise GridMismatch(f"{msg}one patch, and {how}", do=do)
        return sum(member.shape[0] for member in self.members)

    def stacked_facts(self, plan: SpatialPlan) -> tuple[PatchFacts, ...]:
        """Return facts of each member, with the steps before."""
        all_facts = []
        for member in self.members:
            its = self.plan_of(member, plan)
            steps, stream = (*member.steps_before, *member.acting_on(its)), Stream(0, 0, (), "")
            facts = PatchFacts(member.volume, plan, stream, member.statistics, steps)
            all_facts.append(replace(facts, members=member.stacked_facts(its)))
        return tuple(all_facts)

    @property
    def _resampled_dtype(self) -> np.dtype[Any]:
        return np.result_type(*(member.dtype for member in self.members))

    @property
    def whole_plan(self) -> SpatialPlan:
        """That of the first member."""
        return self.members[0].whole_plan

    def reads(
        self, plan: SpatialPlan | None = None, *, through: bool = False
    ) -> tuple[ReadPlan, ...]:
        wide = self._read(self.plan if plan is None else plan).wide
        pairs = [(one, self.plan_of(one, wide)) for one in self.members]
        return tuple(read for one, its in pairs for read in one.reads(its, through=through))

    def _resample_into(
        self, reading: Any, out: NDArray[Any], epilogue: Epilogue | None, policy: Policy
    ) -> tuple[SourceVoxels, SpatialPlan]:
        counts = [member.shape[0] for member in self.members]
        ends = np.cumsum([0, *counts]).tolist()
        for member, (first, last) in zip(self.members, pairwise(ends), strict=True):
            member.realize(out[first:last], self.plan_of(member, reading.wide))
        if epilogue is not None:
            out[...] = convert_dtype(epilogue.of(out), out.dtype)
        return SourceVoxels(out, (0, 0, 0), reading.wide.bounds), reading.wide

    def prefetch(self, plan: SpatialPlan | None = None) -> Any:
        if not any(getattr(member.volume, "looks_ahead", False) for member in self.members):
            return None
        wide = self._read(self.plan if plan is None else plan).wide
        return joint_ticket(one.prefetch(self.plan_of(one, wide)) for one in self.members)
