"""The unresolved plan of one sample: its volumes, item and ops.

A transform chain costs nothing to make and a few hundred bytes to send. Access to the plan resolves
it:

- headers are read,
- volumes must share one grid,
- every op draws from its own stream,
- the matrices compose.

All patches of a sample share one chain, so this happens once per sample and process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ...core import Stream
from ...core.affine3x4 import IDENTITY
from ...core.draws import OpStep
from ...core.errors import GraphError, GridMismatch, SampleError, VoxpipeError, hide_last_axis
from ...core.lru_cache import cached_property
from ...core.stream import common_identity
from ...volumes.formats.chunked_backend import PIXEL
from ...volumes.stack_source import fits_twice, letters_of, refuse_two_orders, warn_of_axes
from ..ops.axis_op import ToAxes
from ..ops.grid_op import of_source, warn_of_outside
from ..ops.op import Params, Step
from ..plans.matrices import compose_plans, flat_axes
from ..plans.plan import SpatialPlan
from .virtual_volume import VirtualVolume

S = TypeVar("S", bound=OpStep)
SPARE_GENERATORS: list[np.random.Generator] = []
"""Generators to restart for every stream: a new one costs more than its draws. One in use is not
in the list: one per thread, another where an op resolves its own plan."""


@dataclass(eq=False)
class TransformChain:
    """The spatial ops for all volumes of one sample."""

    references: Mapping[str, Any]
    """The volumes by key; the first one's grid is the source of the plan."""
    seed: int = 0  # seed of the run
    epoch: int = 0  # which pass over the data, from 0
    identity: tuple[int, ...] = ()  # which item: (case index, patch ordinal, ...)
    steps: tuple[Step, ...] = ()  # the ops, in the order of the chain
    moving: Any = None
    """A volume on another grid with the same plan in world space: only the voxels come from it."""
    place: tuple[int, ...] | None = None
    """Start of the patch of a ``PlacedPatch``; kept here because items share the steps."""

    def then(self, *steps: Step) -> TransformChain:
        """Return the plan followed by ``steps``, which draw from the identity as it is now."""
        return replace(self, steps=join_steps(self.steps, steps, len(self.identity)))

    @property
    def keeps_dtype(self) -> bool:
        """Whether all ops, with any draw, move whole voxels only."""
        for step in self.steps:
            if not step.op.lattice:
                return False
        return self.moving is None

    def refuse_unplaced(self, other: Any, argument: str = "", key: str = "") -> None:
        """Raise GridMismatch if only one of two volumes has a place in a unit of length.

        The other volume is that of an argument, or of a key.
        """
        name, first = next(iter(self.references.items()))
        if not (hasattr(other, "has_given_affine") and hasattr(first, "has_given_affine")):
            return
        if (argument and other.has_given_affine) or not _differ_in_place(first, other):
            return
        silent = first if _place_of(other) == _MILLIMETRES else other
        noun = f"{argument}={other.name}" if argument else f"{key!r}, {other.name},"
        do = f"Give {argument}= its place, vp.Volume(..., affine=matrix); np.eye(4) if it is so."
        raise GridMismatch(
            f"{noun} and {name!r}, {first.name}, have no place in common: {_no_place(silent)}",
            do=do if argument else _give_place(name, key, {**self.references, key: other}),
        )

    @property
    def first_plan(self) -> SpatialPlan:
        """Plan before the first step, for all volumes; reads headers, may raise GridMismatch."""
        # Uses the first grid; the others may differ by less than the tolerance.
        if not self.references:
            raise ValueError("a plan needs at least one volume")
        grids = {}
        for key, volume in self.references.items():
            try:
                grids[key] = volume.grid
            except VoxpipeError as error:
                raise error.at(key=key)  # noqa: B904  the very same error
        (name, grid), *others = grids.items()
        first = self.references[name]
        for key, other in others:
            if how := grid.difference(other):
                raise _mismatch(name, key, self.references, how)
        if others and fits_twice(first):
            warn_of_axes(self.references)
        plan = SpatialPlan(grid, IDENTITY, grid.shape)
        if 1 in plan.source.shape and (before := getattr(first, "patch", None)) is not None:
            flat = flat_axes(before.pending.shared_plan)
            thin = (axis for axis in range(3) if plan.source.shape[axis] == 1)
            slices = [axis for axis in thin if axis not in flat]
            plan = SpatialPlan.identity(plan.source, slices)
        if isinstance(first, VirtualVolume):  # the box may be larger than the source
            plan = plan.crop(first.view.start, first.view.shape)
        return plan

    @cached_property
    def plan(self) -> SpatialPlan:
        """Return the plan, cached; an error of a step carries the step's line."""
        plan = self.first_plan
        draws: dict[str, Params | None] = {}
        try:
            generator = SPARE_GENERATORS.pop()
        except IndexError:
            generator = Stream(0, 0, (), "").generator()
        for step in self.steps:
            identity = self.identity[: step.depth]
            identity = common_identity(identity) if step.common else identity
            stream = Stream(self.seed, self.epoch, identity, step.stream_name)
            try:
                if getattr(step.op, "unit", "mm") not in ("mm", "voxel"):
                    self._refuse_length(step.op)
                if isinstance(step.op, ToAxes) and step.op.axes:
                    self.refuse_unnamed()
                step_plan = self.through_flushes(plan) if step.looks_at_stored else plan
                params = step.draw(stream.restart(generator), step_plan, self.place)
                plan = step.apply(plan, params)
            except VoxpipeError as error:
                if plan.is_flat:
                    hide_last_axis(error)
                error.at(step.origin)
                raise
            draws[step.stream_name] = params
        SPARE_GENERATORS.append(generator)
        self.__dict__.update(draws=draws, shared_plan=plan)
        if self.moving is not None:
            warn_of_outside(self.moving, plan.source)
            plan = of_source(plan, self.moving.grid)
        return plan

    def refuse_unnamed(self) -> None:
        """Raise ``BadHeader`` if axes are named that a volume lacks, and two orders fit it."""
        moving = {} if self.moving is None else {"": self.moving}
        refuse_two_orders({**self.references, **moving})
        for volume in self.references.values():
            patch = getattr(volume, "patch", None)  # of a volume that was flushed or realized
            if patch is not None:
                patch.pending.refuse_unnamed()

    def _refuse_length(self, op: Any) -> None:
        """Raise ``SampleError`` for an op with a length, if voxels have no size."""
        first = next(iter(self.references.values()))
        unit = first.header.file_unit
        if getattr(first, "has_given_affine", False) or unit not in ("", PIXEL):
            return
        what = "numbers of pixels" if unit else "unknown: no size of voxels was read in the file"
        if unit or np.array_equal(first.affine, np.eye(4)):
            msg = f"{op.name} has lengths in {op.unit}; those of {first.name} are {what}"
            do = "Pass ⟦affine=⟧ to open_volume() to give the voxels a size, or leave unit= out."
            raise SampleError(msg, do=do)

    @cached_property
    def draws(self) -> dict[str, Params | None]:
        """Return the draws of each step by the name of its stream; None if it does not act."""
        self.plan  # noqa: B018  enters them
        draws: dict[str, Params | None] = self.__dict__["draws"]
        return draws

    @cached_property
    def shared_plan(self) -> SpatialPlan:
        """Return the shared plan of the references; :attr:`plan` may be that of ``moving``."""
        self.plan  # noqa: B018  enters it
        plan: SpatialPlan = self.__dict__["shared_plan"]
        return plan

    @property
    def from_stored(self) -> SpatialPlan:
        """Plan of the references from their stored voxels, through all flushes."""
        # All volumes of a sample need the same decisions, wherever they were flushed.
        return self.through_flushes(self.shared_plan)

    def through_flushes(self, plan: SpatialPlan) -> SpatialPlan:
        """Return a plan of this chain as one from the stored voxels of the references."""
        first = next(iter(self.references.values()))
        if not isinstance(first, VirtualVolume):
            return plan
        return compose_plans(first.part_of(first.patch.pending.from_stored), plan)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def describe(self) -> str:
        """Return the ops in the words of the user; reads nothing."""
        return " · ".join(step.describe() for step in self.steps) or "as it is"


def join_steps(before: tuple[S, ...], steps: Sequence[S], depth: int) -> tuple[S, ...]:
    """Return ``before`` followed by ``steps``, which draw from ``depth`` entries of an identity."""
    # Two steps on one stream would draw equal numbers: a GraphError.
    names = {step.stream_name for step in before}
    for step in steps:
        if step.stream_name in names:
            msg = f"two steps draw from the stream {step.stream_name!r}"
            raise GraphError(msg, do="Give one of them another name.").at(step.origin)
        names.add(step.stream_name)
    at_depth = (replace(step, depth=depth) if step.depth is None else step for step in steps)
    return (*before, *at_depth)


# The places of volumes.
_MILLIMETRES, _PIXELS, _SILENT = "millimetres", "pixels", ""
# Spacing 1, origin 0 and no directions, in RAS.
_DEFAULT_OF_ITK = np.diag([-1.0, -1.0, 1.0, 1.0])


def _place_of(volume: Any) -> str:
    """Return the unit of the place of a volume; empty where it has none."""
    if getattr(volume, "has_given_affine", False):
        return _MILLIMETRES
    unit = getattr(getattr(volume, "header", None), "file_unit", "")
    if unit == PIXEL:
        return _PIXELS
    return _SILENT if not unit and _is_default(volume) else _MILLIMETRES


def _is_default(volume: Any) -> bool:
    """Whether a volume has the affine of images without a place, ITK's among them."""
    affine = volume.grid.affine
    return np.array_equal(affine, np.eye(4)) or np.array_equal(affine, _DEFAULT_OF_ITK)


def _differ_in_place(one: Any, other: Any) -> bool:
    """Whether a resampling of one volume onto the other would mix units."""
    is_same = _place_of(one) == _place_of(other)
    return not is_same and not np.array_equal(one.grid.affine, other.grid.affine)


def _no_place(volume: Any) -> str:
    """Return why a volume has no place."""
    if _place_of(volume) == _PIXELS:
        return f"the lengths of {volume.name} are numbers of pixels"
    own = "the identity" if volume.grid.affine[0, 0] > 0 else "ITK's default"
    return f"the affine of {volume.name} is {own}, as if it had none"


def _give_place(first: str, key: str, volumes: Mapping[str, Any]) -> str:
    """Return the cure where one of two volumes, by key, has no place."""
    if _place_of(volumes[key]) == _MILLIMETRES:
        first, key = key, first
    matrix = f"⟦open_volume(affine={{{key!r}: matrix}})⟧; np.eye(4) if it is so."
    if volumes[first].grid.shape != volumes[key].grid.shape:
        return f"Say where the voxels of {key!r} lie: {matrix}"
    same = f"⟦open_volume(affine={{{key!r}: {first!r}}})⟧"
    return f"Give {key!r} the place of {first!r}: {same}. Or give it another: {matrix}"


def _mismatch(first: str, key: str, volumes: Mapping[str, Any], how: str) -> GridMismatch:
    """Return the error of two volumes, by key, that differ as ``how`` says."""
    one, other = volumes[first], volumes[key]
    grid, its = one.grid, other.grid
    differ = _differ_in_place(one, other)
    # Resampling needs a stated place of both.
    places = [(name, volumes[name]) for name in (first, key)]
    silent = [n for n, v in places if _is_default(v) or (differ and _place_of(v) != _MILLIMETRES)]
    matrices = ", ".join(f"{name!r}: matrix" for name in silent or [key])
    affine, is_stated = f"⟦open_volume(affine={{{matrices}}})⟧", not silent
    resample = f"Put .resample_to({first!r}) right after open_volume(), or "
    if grid.shape == its.shape:
        place = f"ive the right affine where a header is wrong or a format has none: {affine}."
        do = f"{resample}g{place}" if is_stated else f"G{place}"
        if differ:
            how += f", and {_no_place(volumes[silent[-1]])}"
            do = _give_place(first, key, volumes)
    else:
        say = f"Say where the voxels lie, {affine}, and then resample_to({first!r}), or "
        resample = resample if is_stated else say
        do = f"{resample}leave one out: open_volume(keys=[{first!r}])."
        # (C, I, J) or (I, J, C), next to (I, J, 1).
        pairs = [(grid.shape, its.shape), (its.shape, grid.shape)]
        if any(b[2] == 1 and b[:2] in (a[1:], a[:2]) for a, b in pairs):
            do = "Give the channels of a plane first and K = 1 last, (C, I, J, 1)."
        i, j, k = grid.shape
        if its.shape == ((j, i, 1) if k == 1 else (k, j, i)):
            how += "; transposed, perhaps"
            both = [k for k in (key, first) if not getattr(volumes[k], "names_axes", True)]
            plain = both[0] if both else None
            do = f"Store one of them in the axes of the other, or open_volume(keys=[{first!r}])."
            if plain is not None:
                letters = letters_of(volumes[plain])
                do = f"Name the axes of it: ⟦open_volume(axes={{{plain!r}: {letters!r}}})⟧."
    return GridMismatch(f"{first!r} and {key!r} {how}: {one.name} and {other.name}", do=do)
