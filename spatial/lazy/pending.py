"""The plan of one sample, not yet worked out: which volumes, which item, which ops.

A pending plan costs nothing to make and a few hundred bytes to send. It is worked out when
someone asks for the plan: headers are read, the volumes are checked to lie on one grid, every op
draws from its own stream, and the matrices compose. All patches of a sample share one pending
plan, so this happens once per sample and process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ...core import Grid, Stream
from ...core.errors import BadHeader, GraphError, GridMismatch, VoxpipeError
from ...core.grid import GRID_TOLERANCE
from ...core.lru_cache import cached_property
from ...core.stream import stream_identity
from ..ops.grid_op import of_source
from ..ops.op import Drawn, Step
from ..plans.matrices import compose_plans, flat_axes
from ..plans.plan import SpatialPlan
from ..volume_like import made_like, patch_before

# A generator is made once and restarted for every stream: making one takes longer than all that
# is drawn from it. Taking it out of the list while it is in use makes one per thread that
# plans, and another where an op resolves a plan of its own.
_SPARE: list[np.random.Generator] = []


class HasGrid(Protocol):
    """What a pending plan asks of a volume."""

    @property
    def name(self) -> str:
        """Path or URL, without credentials."""

    @property
    def grid(self) -> Grid:
        """Shape and affine; may read the header."""


@dataclass(frozen=True, eq=False)
class PendingPlan:
    """What will be done to all volumes of one sample.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> import numpy as np
    >>> from voxpipe.spatial import UniformPatch
    >>> ct = SimpleNamespace(name="ct.nii", grid=Grid((32, 32, 16), np.eye(4)))
    >>> pending = PendingPlan({"image": ct}, seed=7, identity=(0, 3))
    >>> pending = pending.then(Step(UniformPatch((8, 8, 8)), "lazy_patch"))
    >>> pending.plan.shape
    (8, 8, 8)
    >>> pending.draws["lazy_patch"]["size"]
    [8, 8, 8]
    """

    references: Mapping[str, HasGrid]
    """The volumes by key; the first one's grid is the source of the plan."""
    seed: int = 0
    """Seed of the run."""
    epoch: int = 0
    """Which pass over the data, from 0."""
    identity: tuple[int, ...] = ()
    """Which item: (case index, patch ordinal, ...)."""
    steps: tuple[Step, ...] = ()
    """The ops, in the order of the chain."""
    moving: HasGrid | None = None
    """A volume on another grid, whose plan this is: that of the references, but that voxels come
    from this one, at the same places in the world."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "references", dict(self.references))
        object.__setattr__(self, "identity", tuple(self.identity))
        object.__setattr__(self, "steps", tuple(self.steps))
        if not self.references:
            msg = "a plan needs at least one volume"
            raise ValueError(msg)

    def then(self, *steps: Step) -> PendingPlan:
        """Return the plan followed by ``steps``, which draw from the identity as it is now.

        Raises
        ------
        GraphError
            The chain has a stream of this name already, so both would draw the same numbers.
        """
        return self.following(self.identity, joined(self.steps, steps, len(self.identity)))

    def following(self, identity: tuple[int, ...], steps: tuple[Step, ...]) -> PendingPlan:
        """Return the plan of another item by other steps, which :func:`joined` made."""
        # Past the constructor: what it makes sure of holds for this plan, and a planner makes
        # one of these per sample and pipe.
        plan = object.__new__(PendingPlan)
        plan.__dict__.update(
            references=self.references,
            seed=self.seed,
            epoch=self.epoch,
            identity=identity,
            steps=steps,
            moving=self.moving,
        )
        return plan

    def of_moving(self, volume: HasGrid) -> PendingPlan:
        """Return the plan of a volume on a grid of its own, which gives the same output grid.

        The ops see the grids of the references, and draw what they draw for these.
        """
        return replace(self, moving=volume)

    @property
    def keeps_dtype(self) -> bool:
        """Whether the ops, known or not yet drawn, move whole voxels only."""
        return self.moving is None and all(step.op.lattice for step in self.steps)

    def child(self, ordinal: int) -> PendingPlan:
        """Return the plan of the ``ordinal``-th item made from this one.

        Steps that are there already keep their draws: all patches of a volume that was rotated
        as a whole see the same rotation.
        """
        return self.following((*self.identity, ordinal), self.steps)

    @property
    def shared_grid(self) -> Grid:
        """The one grid on which all volumes lie; reads headers.

        Raises
        ------
        GridMismatch
            They do not.
        """
        return common_grid(self.references)

    @property
    def begun(self) -> SpatialPlan:
        """The plan before the first step; reads headers."""
        first = next(iter(self.references.values()))
        plan, before = SpatialPlan.identity(self.shared_grid), patch_before(first)
        if before is not None and 1 in plan.source.shape:
            flat = flat_axes(before.pending.shared_plan)
            thin = (axis for axis in range(3) if plan.source.shape[axis] == 1)
            slices = [axis for axis in thin if axis not in flat]
            plan = SpatialPlan.identity(plan.source, slices)
        made = made_like(first)
        # A made volume may have more than what it was made of shows.
        return plan if made is None else plan.crop(made.view.start, made.view.shape)

    @property
    def draws(self) -> dict[str, Drawn | None]:
        """What each step drew, by the name of its stream; None where it does not act."""
        return dict(self._resolved[1])

    @property
    def plan(self) -> SpatialPlan:
        """The plan, worked out once.

        Raises
        ------
        GridMismatch
            The volumes do not lie on one grid.
        VoxpipeError
            A step refuses, e.g. a crop that leaves the grid; the error knows where it was written.
        """
        return self._resolved[0]

    @property
    def shared_plan(self) -> SpatialPlan:
        """The plan that the references share, whichever volume's own one :attr:`plan` is."""
        return self._resolved[2]

    @property
    def from_stored(self) -> SpatialPlan:
        """The plan of the references from their stored voxels, through what flushes left between.

        What one volume decides for all of them is decided on this: volumes of a sample may have
        been flushed at different places, and all must get the same.
        """
        return self.whole(self.shared_plan)

    def whole(self, plan: SpatialPlan) -> SpatialPlan:
        """Return a plan of this one's as it is from the stored voxels of the references."""
        made = made_like(next(iter(self.references.values())))
        return (
            plan
            if made is None
            else compose_plans(made.part_of(made.patch.pending.from_stored), plan)
        )

    @cached_property
    def _resolved(self) -> tuple[SpatialPlan, dict[str, Drawn | None], SpatialPlan]:
        plan = self.begun
        draws: dict[str, Drawn | None] = {}
        try:
            generator = _SPARE.pop()
        except IndexError:
            generator = Stream(0, 0, (), "").generator()
        for step in self.steps:
            identity = stream_identity(self.identity, step.depth, step.shared)
            stream = Stream(self.seed, self.epoch, identity, step.stream_name)
            try:
                seen = self.whole(plan) if step.looks_at_stored else plan
                drawn = step.draw(stream.restart(generator), seen)
                plan = step.apply(plan, drawn)
            except VoxpipeError as error:
                error.at(step.origin)
                raise
            draws[step.stream_name] = drawn
        _SPARE.append(generator)
        shared = plan
        if self.moving is not None:
            if self.moving.grid.is_singular:
                raise singular(self.moving)
            plan = of_source(plan, self.moving.grid)
        return plan, draws, shared

    def __getstate__(self) -> dict[str, Any]:
        # What was worked out stays: it is worked out again in microseconds, to the same result.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def describe(self) -> str:
        """Return the ops in the words of the user; reads nothing."""
        return " · ".join(step.describe() for step in self.steps) or "as it is"


def joined(before: tuple[Step, ...], steps: Sequence[Step], depth: int) -> tuple[Step, ...]:
    """Return ``before`` followed by ``steps``, which draw from ``depth`` entries of an identity.

    Raises
    ------
    GraphError
        Two of them draw from one stream, and so would draw the same numbers.
    """
    taken = {step.stream_name for step in before}
    for step in steps:
        if step.stream_name in taken:
            raise GraphError(
                f"two steps draw from the stream {step.stream_name!r}",
                do="Give one of them another name.",
            ).at(step.origin)
        taken.add(step.stream_name)
    placed = (replace(step, depth=depth) if step.depth is None else step for step in steps)
    return (*before, *placed)


def common_grid(volumes: Mapping[str, HasGrid]) -> Grid:
    """Return the grid of the first volume, having checked that the others lie on it.

    Raises
    ------
    GridMismatch
        One of them has another shape, or lies ``GRID_TOLERANCE`` voxels or more away.
    """
    (first_key, first), *others = volumes.items()
    grid = _grid_of(first_key, first)
    if grid.is_singular:
        raise singular(first)
    for key, volume in others:
        distance = grid.distance_in_voxels(_grid_of(key, volume))
        if distance <= GRID_TOLERANCE:
            continue
        if grid.shape != volume.grid.shape:
            how = f"have different shapes, {grid.shape} and {volume.grid.shape}"
            do = (
                f"Put .resample_to({first_key!r}) right after open_volume(), or leave one out: "
                f"open_volume(keys=[{first_key!r}])."
            )
            if _is_plane_with_channels(grid.shape, volume.grid.shape):
                do = "Give the channels of a plane first and K = 1 last, (C, I, J, 1)."
        else:
            how = f"lie {distance:.3g} voxels apart (at most {GRID_TOLERANCE:g} is accepted)"
            do = (
                f"Put .resample_to({first_key!r}) right after open_volume(), or give the right one "
                "where a header is wrong or a format has none: "
                f"open_volume(affine={{{key!r}: matrix}})."
            )
        raise GridMismatch(
            f"{first_key!r} and {key!r} {how}: {first.name} and {volume.name}",
            do=do,
        )
    return grid


def _grid_of(key: str, volume: HasGrid) -> Grid:
    """Return the grid of a volume; an error of its header says under which key it is."""
    try:
        return volume.grid
    except VoxpipeError as error:
        raise error.at(key=key)  # noqa: B904  the very same error


def _is_plane_with_channels(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether one of the shapes looks like (C, I, J) or (I, J, C), beside (I, J, 1)."""
    pairs = [(tuple(one), tuple(other)), (tuple(other), tuple(one))]
    return any(b[2] == 1 and b[:2] in (a[1:], a[:2]) for a, b in pairs)


def singular(volume: HasGrid) -> BadHeader:
    """Return the error of a volume whose affine has no inverse."""
    return BadHeader(
        f"the affine of {volume.name} cannot be inverted: {volume.grid.affine[:3].tolist()}",
        do="Pass affine= when opening, or mend the header.",
    )
