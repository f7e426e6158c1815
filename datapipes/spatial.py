"""Spatial pipes: each adds one op to the plan of a sample. No voxel moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar

from ..core import Sample
from ..core.errors import VoxpipeError
from ..core.sample import META
from ..graph import Pipe
from ..spatial import LazyPatch, PendingPlan, SpatialOp, Step, joined
from ..spatial.lazy.stack import StackedPatch
from ..spatial.ops.op import is_hard
from .datapipe import DataPipe, PerItem, stream_name, wrong_item
from .form import bound
from .likely_mistakes import tell_mistakes
from .sampling import SAMPLING_ARGUMENTS, Sampling, refuse_conflict
from .useless_fill import refuse_useless_fill


class SpatialPipe(PerItem):
    """A pipe that adds one op to the plan of each sample.

    Subclasses are made by ``spatial_form``; ``FuseSpatial`` makes one pipe of several.
    """

    makes: ClassVar[Any] = None
    """The op, a frozen dataclass."""
    __signature__: ClassVar[Any]
    sampling: Sampling = Sampling()
    is_step = True
    """Whether it adds steps and does nothing else, so that several are as good as one."""
    stands_apart = "gives volumes plans of their own"
    """Why it is none, in words that follow its own."""

    def __init__(self, parent: Pipe, *args: Any, **kwargs: Any) -> None:
        super().__init__(parent)
        cls = type(self)
        arguments = bound(cls.chained, cls.__signature__, args, kwargs)
        name = arguments.pop("name", "")
        sampling = {n: arguments.pop(n) for n in SAMPLING_ARGUMENTS if n in arguments}
        try:
            op: SpatialOp = cls.makes(**arguments)
            self.sampling = Sampling.of(**sampling).at(self.origin)
            refuse_conflict(self.sampling, self.origin, parent)
            refuse_useless_fill(self.sampling, self.origin, parent, [op])
        except VoxpipeError as error:
            raise error.at(self.origin)  # noqa: B904
        tell_mistakes(op, self.origin)
        self.stream_names = (stream_name(parent, name, cls.chained),)
        self.steps = (Step(op, self.stream_names[0], self.origin, shared=bool(name)),)
        self.adding = Adding(self.steps)

    def apply(self, item: Any) -> Sample:
        """Return the sample with the steps added to its plan."""
        return stepped(self, item, self.adding, self.sampling)


class Adding:
    """Adds the same steps to the plan of every sample of a pipe.

    All samples of a chain carry the same steps up to here, one object; so the joined ones are
    made, and checked for streams of one name, once and not per sample.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self._last: tuple[tuple[Step, ...], int, tuple[Step, ...]] | None = None

    def to(self, before: tuple[Step, ...], depth: int) -> tuple[Step, ...]:
        """Return ``before`` with the steps, for an identity of ``depth`` entries."""
        # Read once: another thread may iterate the same pipe.
        last = self._last
        if last is not None and last[0] is before and last[1] == depth:
            return last[2]
        after = joined(before, self.steps, depth)
        self._last = (before, depth, after)
        return after

    def __reduce__(self) -> tuple[Any, ...]:
        return (Adding, (self.steps,))


def stepped(
    pipe: DataPipe,
    sample: Any,
    adding: Adding,
    sampling: Sampling | None = None,
    *,
    ordinal: int | None = None,
) -> Sample:
    """Return ``sample``, or its ``ordinal``-th child, with steps on the plan of its patches."""
    _pending(pipe, sample)
    identity = sample.identity if ordinal is None else (*sample.identity, ordinal)
    # Volumes share a plan, but for those that a flush has given one of their own.
    # The old one is kept beside the new: one that a flush just made would leave its id to another.
    after: dict[int, tuple[PendingPlan, PendingPlan]] = {}

    def following(key: str, thing: LazyPatch) -> LazyPatch:
        patch = thing if thing.commutes or not adding.steps else thing.flushed(soft=True)
        if isinstance(patch, StackedPatch):
            return patch.with_members([following(key, member) for member in patch.members])
        if patch.pending.moving is not None and adding.steps:
            padding = patch.policy.padding if sampling is None else sampling.padding(key, patch)
            return followed(patch, padding, adding.steps, identity)
        pending = patch.pending
        if id(pending) not in after:
            steps = adding.to(pending.steps, len(identity))
            after[id(pending)] = (pending, pending.following(identity, steps))
        return patch.with_pending(after[id(pending)][1])

    lazy = {k: following(k, thing) for k, thing in sample.items() if isinstance(thing, LazyPatch)}
    if sampling is not None and sampling.changes:
        sampling.refuse_unknown(lazy, sample.case)
        for key, patch in lazy.items():
            lazy[key] = sampling.applied(key, patch)
    moved: Sample = sample.moved(lazy, identity)
    return moved


def any_moving(sample: Any) -> bool:
    """Whether a volume of a sample came from another grid."""
    return isinstance(sample, Sample) and any(
        one.pending.moving is not None
        for thing in sample.values()
        if isinstance(thing, LazyPatch)
        for one in thing.members or (thing,)
    )


def followed(
    patch: LazyPatch, padding: str, steps: Sequence[Step], identity: tuple[int, ...]
) -> LazyPatch:
    """Return a patch of a volume that came from another grid with more steps on its plan.

    What a hard crop of whole voxels leaves ends at voxels of the grid that the volume was brought
    to, between its own. Padding that repeats or mirrors these needs them, so after such a crop the
    volume is sampled anew from what it is on that grid. Fill needs none, and after an op that
    interpolates a hard crop leaves fill on any grid.
    """
    for step in steps:
        pending = patch.pending
        whole = takewhile(lambda one: one.op.lattice, pending.steps)
        cut = pending.moving is not None and any(is_hard(one.op) for one in whole)
        if cut and padding != "constant":
            patch = patch.flushed()
            pending = patch.pending
        after = joined(pending.steps, (step,), len(identity))
        patch = patch.with_pending(pending.following(identity, after))
    return patch


def pending_of(pipe: DataPipe, sample: Any) -> PendingPlan:
    """Return the plan that the lazy patches of ``sample`` share, under the sample's identity."""
    pending = _pending(pipe, sample)
    return pending.following(sample.identity, pending.steps)


def _pending(pipe: DataPipe, sample: Any) -> PendingPlan:
    if isinstance(sample, Sample):
        plans = [thing.pending for thing in sample.values() if isinstance(thing, LazyPatch)]
        if plans:
            # Not that of a volume that comes from another grid, if there is one.
            return min(plans, key=lambda pending: pending.moving is not None)
        if sample.patches:
            do = "Move realize() after the spatial pipes: they act on plans, not on voxels."
            raise wrong_item(pipe, sample, "a lazy volume", do)
    do = "Put open_volume() before it."
    if isinstance(sample, Mapping) and META in sample:
        do = f"Put {pipe.chained}() before batch_patches(): it acts on one sample."
    raise wrong_item(pipe, sample, "a sample with a lazy volume", do)
