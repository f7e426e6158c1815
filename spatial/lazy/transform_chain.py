"""The plan of one sample, not yet worked out: which volumes, which item, which ops.

A transform chain costs nothing to make and a few hundred bytes to send. It is worked out when
someone asks for the plan: headers are read, the volumes are checked to lie on one grid, every op
draws from its own stream, and the matrices compose. All patches of a sample share one
chain, so this happens once per sample and process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ...core import Stream
from ...core.affine3x4 import IDENTITY
from ...core.call_site import WarnOnce
from ...core.draws import OpStep
from ...core.errors import BadHeader, GraphError, GridMismatch, LikelyMistake, VoxpipeError
from ...core.grid import GRID_TOLERANCE
from ...core.lru_cache import cached_property
from ...core.stream import stream_identity
from ..ops.grid_op import of_source, warn_of_outside
from ..ops.op import Params, Step
from ..plans.matrices import compose_plans, flat_axes
from ..plans.plan import SpatialPlan
from .virtual_volume import VirtualVolume

S = TypeVar("S", bound=OpStep)
# Making a generator takes longer than all that is drawn from it: it is restarted for every stream.
# Out of the list while in use: one per thread, another where an op resolves a plan of its own.
SPARE_GENERATORS: list[np.random.Generator] = []


def take_generator() -> np.random.Generator:
    """Return one that is to be restarted, and put back after the last draw from it."""
    try:
        return SPARE_GENERATORS.pop()
    except IndexError:
        return Stream(0, 0, (), "").generator()


@dataclass(frozen=True, eq=False)
class TransformChain:
    """What will be done to all volumes of one sample."""

    references: Mapping[str, Any]
    """The volumes by key; the first one's grid is the source of the plan."""
    seed: int = 0  # seed of the run
    epoch: int = 0  # which pass over the data, from 0
    identity: tuple[int, ...] = ()  # which item: (case index, patch ordinal, ...)
    steps: tuple[Step, ...] = ()  # the ops, in the order of the chain
    moving: Any = None
    """A volume on another grid, whose plan this is: that of the references, but that voxels come
    from this one, at the same places in the world."""
    place: tuple[int, ...] | None = None
    """Where the patch of a ``PlacedPatch`` begins: beside the steps, which items share."""

    def __post_init__(self) -> None:
        if not self.references:
            raise ValueError("a plan needs at least one volume")

    def then(self, *steps: Step) -> TransformChain:
        """Return the plan followed by ``steps``, which draw from the identity as it is now."""
        return self.following(self.identity, join_steps(self.steps, steps, len(self.identity)))

    def following(
        self,
        identity: tuple[int, ...],
        steps: tuple[Step, ...],
        place: tuple[int, ...] | None = None,
    ) -> TransformChain:
        """Return the plan of another item by other steps, which :func:`join` made, at a place."""
        # Past the constructor: a planner makes one of these per sample and pipe.
        plan, own, names = object.__new__(TransformChain), self.__dict__, self.__dataclass_fields__
        state = own.copy() if len(own) == len(names) else {name: own[name] for name in names}
        state["identity"], state["steps"] = identity, steps
        if place is not None:
            state["place"] = place
        object.__setattr__(plan, "__dict__", state)
        return plan

    @property
    def keeps_dtype(self) -> bool:
        """Whether the ops, known or not yet drawn, move whole voxels only."""
        for step in self.steps:
            if not step.op.lattice:
                return False
        return self.moving is None

    def refuse_unplaced(self, other: Any, argument: str) -> None:
        """Raise GridMismatch where only one of the first volume and another says where it lies."""
        name, first = next(iter(self.references.items()))
        if other.has_given_affine or not hasattr(first, "has_given_affine"):
            return
        if _says_place(first) == _says_place(other):
            return
        silent = other if _says_place(first) else first
        raise GridMismatch(
            f"{argument}={other.name} and {name!r}, {first.name}, have no place in common: the "
            f"affine of {silent.name} is the identity, as if it had none",
            do=f"Give {argument}= its place, vp.Volume(..., affine=matrix); np.eye(4) if it is so.",
        )

    @property
    def first_plan(self) -> SpatialPlan:
        """The plan before the first step, of all volumes, or GridMismatch; reads headers."""
        # The grid of the first, from which the others lie less than ``GRID_TOLERANCE`` voxels away.
        grids = {}
        for key, volume in self.references.items():
            try:
                grids[key] = volume.grid
            except VoxpipeError as error:
                raise error.at(key=key)  # noqa: B904  the very same error
        (name, grid), *others = grids.items()
        first = self.references[name]
        if grid.is_singular:
            raise singular(first)
        for key, other in others:
            distance = grid.distance_in_voxels(other)
            if distance > GRID_TOLERANCE:
                raise _mismatch(name, key, self.references, distance)
        i, j, k = grid.shape
        if others and i == (j if k == 1 else k):
            first_named = plain = ""
            for key, each in self.references.items():  # no comprehension: it is a call a patch
                is_named = getattr(each, "names_axes", True)
                first_named = first_named or key * bool(is_named)
                plain = plain or key * (is_named is False)
            if first_named and plain:
                _warn_of_axes(self.references, first_named, plain)
        plan = SpatialPlan(grid, IDENTITY, grid.shape)
        if 1 in plan.source.shape and (before := getattr(first, "patch", None)) is not None:
            flat = flat_axes(before.pending.shared_plan)
            thin = (axis for axis in range(3) if plan.source.shape[axis] == 1)
            slices = [axis for axis in thin if axis not in flat]
            plan = SpatialPlan.identity(plan.source, slices)
        if isinstance(first, VirtualVolume):  # it may have more than what it was made of shows
            plan = plan.crop(first.view.start, first.view.shape)
        return plan

    @cached_property
    def plan(self) -> SpatialPlan:
        """Return the plan, worked out once; an error of a step knows where that was written."""
        plan = self.first_plan
        draws: dict[str, Params | None] = {}
        generator = take_generator()
        for step in self.steps:
            identity = stream_identity(self.identity, step.depth, step.common)
            stream = Stream(self.seed, self.epoch, identity, step.stream_name)
            try:
                step_plan = self.through_flushes(plan) if step.looks_at_stored else plan
                params = step.draw(stream.restart(generator), step_plan, self.place)
                plan = step.apply(plan, params)
            except VoxpipeError as error:
                error.at(step.origin)
                raise
            draws[step.stream_name] = params
        SPARE_GENERATORS.append(generator)
        self.__dict__.update(draws=draws, shared_plan=plan)
        if self.moving is not None:
            if self.moving.grid.is_singular:
                raise singular(self.moving)
            warn_of_outside(self.moving, plan.source)
            plan = of_source(plan, self.moving.grid)
        return plan

    @cached_property
    def draws(self) -> dict[str, Params | None]:
        """Return what each step drew, by the name of its stream; None where it does not act."""
        self.plan  # noqa: B018  enters them
        draws: dict[str, Params | None] = self.__dict__["draws"]
        return draws

    @cached_property
    def shared_plan(self) -> SpatialPlan:
        """Return the plan that the references share, whichever volume's own one :attr:`plan` is."""
        self.plan  # noqa: B018  enters it
        plan: SpatialPlan = self.__dict__["shared_plan"]
        return plan

    @property
    def from_stored(self) -> SpatialPlan:
        """The plan of the references from their stored voxels, through all flushes between."""
        # What one volume decides for all of them is decided on this: volumes of a sample may have
        # been flushed at different places, and all must get the same.
        return self.through_flushes(self.shared_plan)

    def through_flushes(self, plan: SpatialPlan) -> SpatialPlan:
        """Return a plan of this one's as it is from the stored voxels of the references."""
        first = next(iter(self.references.values()))
        if not isinstance(first, VirtualVolume):
            return plan
        return compose_plans(first.part_of(first.patch.pending.from_stored), plan)

    def __getstate__(self) -> dict[str, Any]:
        # What was worked out stays: it is worked out again in microseconds, to the same result.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def describe(self) -> str:
        """Return the ops in the words of the user; reads nothing."""
        return " · ".join(step.describe() for step in self.steps) or "as it is"


def join_steps(before: tuple[S, ...], steps: Sequence[S], depth: int) -> tuple[S, ...]:
    """Return ``before`` followed by ``steps``, which draw from ``depth`` entries of an identity."""
    # Two that draw from one stream would draw the same numbers: a GraphError.
    names = {step.stream_name for step in before}
    for step in steps:
        if step.stream_name in names:
            msg = f"two steps draw from the stream {step.stream_name!r}"
            raise GraphError(msg, do="Give one of them another name.").at(step.origin)
        names.add(step.stream_name)
    at_depth = (replace(step, depth=depth) if step.depth is None else step for step in steps)
    return (*before, *at_depth)


def _transpose_shape(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the shape of the transposed grid: (K, J, I), or (J, I, 1) of a plane."""
    i, j, k = shape
    return (j, i, 1) if k == 1 else (k, j, i)


_AXES_ONCE = WarnOnce()


def _warn_of_axes(volumes: Mapping[str, Any], first: str, plain: str) -> None:
    """Warn where one volume names its axes, another does not, and both orders have one shape."""
    letters = _letters(volumes[plain])
    text = (
        f"axes-not-named: {first!r} ({volumes[first].name}) names its axes, and {plain!r} "
        f"({volumes[plain].name}) does not; their shape fits in both orders. Write "
        f"open_volume(axes={{{plain!r}: {letters!r}}}) for an array as SimpleITK, tifffile or zarr "
        f"give it, and {letters[::-1]!r} for one as nibabel does."
    )
    # Once for each data set: cases lie in one folder, or in folders side by side.
    folder = os.path.dirname(os.path.dirname(volumes[plain].name))
    _AXES_ONCE.warn((first, plain, folder), text, LikelyMistake)


def _letters(volume: Any) -> str:
    return "yx" if volume.shape[3] == 1 else "zyx"


def _says_place(volume: Any) -> bool:
    """Whether a volume has another affine than the one that stands for none, or was given one."""
    return volume.has_given_affine or not np.array_equal(volume.affine, np.eye(4))


def _mismatch(first: str, key: str, volumes: Mapping[str, Any], distance: float) -> GridMismatch:
    """Return the error of two volumes, by key, that lie ``distance`` voxels apart."""
    one, other = volumes[first], volumes[key]
    grid, its = one.grid, other.grid
    affine = f"open_volume(affine={{{key!r}: matrix}})"
    # Voxels without a stated place would be resampled to a made-up one.
    is_stated = not any(np.array_equal(each.affine, np.eye(4)) for each in (grid, its))
    resample = f"Put .resample_to({first!r}) right after open_volume(), or "
    if grid.shape == its.shape:
        how = f"lie {distance:.3g} voxels apart (at most {GRID_TOLERANCE:g} is accepted)"
        place = f"ive the right affine where a header is wrong or a format has none: {affine}."
        do = f"{resample}g{place}" if is_stated else f"G{place}"
    else:
        how = f"have different shapes, {grid.shape} and {its.shape}"
        resample = resample if is_stated else f"Say where the voxels lie: {affine}, or "
        do = f"{resample}leave one out: open_volume(keys=[{first!r}])."
        # (C, I, J) or (I, J, C), beside (I, J, 1).
        pairs = [(grid.shape, its.shape), (its.shape, grid.shape)]
        if any(b[2] == 1 and b[:2] in (a[1:], a[:2]) for a, b in pairs):
            do = "Give the channels of a plane first and K = 1 last, (C, I, J, 1)."
        if its.shape == _transpose_shape(grid.shape):
            how += "; transposed, perhaps"
            both = [k for k in (key, first) if getattr(volumes[k], "names_axes", 1) is False]
            plain = both[0] if both else None
            do = f"Store one of them in the axes of the other, or open_volume(keys=[{first!r}])."
            if plain is not None:
                letters = _letters(volumes[plain])
                do = f"Name the axes of its array: open_volume(axes={{{plain!r}: {letters!r}}})."
    return GridMismatch(f"{first!r} and {key!r} {how}: {one.name} and {other.name}", do=do)


def singular(volume: Any) -> BadHeader:
    """Return the error of a volume whose affine has no inverse."""
    msg = f"the affine of {volume.name} cannot be inverted: {volume.grid.affine[:3].tolist()}"
    return BadHeader(msg, do="Pass affine= when opening, or mend the header.")
