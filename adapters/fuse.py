"""The adapter that fuses spatial pipes into one plan, sampled straight into the batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from ..datapipes.iter import (
    BatchPatches,
    Cache,
    Flush,
    FusedSpatial,
    Realize,
    SpatialPipe,
    ValuePipe,
)
from ..datapipes.values import ChoicePipe
from ..graph import Pipe, Refused, RewriteResult, Rule, Site, describe, parents_of, with_parents
from ..spatial import Step
from ..spatial.ops.op import displaces
from ..spatial.plans.stages import BY_NUMPY, KERNEL_DISPLACEMENTS
from .adapter import Adapter
from .profile import Timer


def refuse_numpy_steps(site: Site) -> Refused | None:
    """Refuse a pipe that displaces voxels after as many others in its plan as the kernel does."""
    pipe, names = site.pipe, _displacing(site.pipe)
    if not names:
        return None
    # Upstream to where the plan begins: where voxels are sampled anew, of some volumes at least.
    while len(parents := parents_of(pipe)) == 1 and not _breaking(parents[0], of_all=True):
        (pipe,) = parents
        names = [*_displacing(pipe), *names]
    if len(names) <= KERNEL_DISPLACEMENTS:
        return None
    return Refused(f"{', '.join(names)} meet in one plan: {BY_NUMPY}")


def _displacing(pipe: Pipe) -> list[str]:
    """Return the names of the steps of a pipe that displace voxels."""
    steps: Sequence[Step] = ()
    if isinstance(pipe, (ChoicePipe, FusedSpatial)) or (
        isinstance(pipe, SpatialPipe) and pipe.is_step
    ):
        steps = pipe.steps
    return [step.stream_name for step in steps if displaces(step.op)]


def _breaking(pipe: Pipe, *, of_all: bool = False) -> str:
    """Return what of a pipe makes later spatial ops wait, of all volumes or of any, or nothing."""
    if isinstance(pipe, (Cache, Flush)):
        return "" if of_all and pipe.keys is not None else describe(pipe)
    if isinstance(pipe, ValuePipe):
        return "" if pipe.step.op.commutes else describe(pipe)
    change = pipe.change if isinstance(pipe, ChoicePipe) else None
    if change is None or change.step.op.commutes:
        return ""
    return f"{change.step.op.waited_for}, {describe(pipe)},"


_LOG = logging.getLogger("voxpipe.fusion")

Pair = tuple[Pipe, Pipe]


class FuseSpatial(Adapter):
    """Merge neighbouring spatial pipes, and leave ``realize()`` to the batch where that is equal.

    ::

        lazy_patch                     lazy_patch
        rotate                   →     rotate + flip
        flip                           batch_patches
        realize
        batch_patches

    Each volume of a sample is then read once and interpolated once, and no tensor of a
    single patch exists. Items and draws stay the same. Give it before ``Profile``: a
    timed pipe between two spatial ones keeps them apart, and the refusal says so.

    What was fused and what was refused, with the reason, is in the ``changes`` of what
    ``rewrite`` returns and in a loader's ``explain()``; and it is logged under
    ``"voxpipe.fusion"`` at level DEBUG.
    """

    def rules(self) -> Sequence[Rule]:
        return (
            Rule("fuse spatial", _neighbours, lambda pair: FusedSpatial(*pair)),
            Rule("change values lazily", _realized_before_values, _change_lazily),
            Rule("realize in the batch", partial(_realized_before, BatchPatches), _skip_first),
            Rule("resample by the kernel", refuse_numpy_steps, _skip_first),  # it only refuses
        )

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        result = super().rewrite(pipe)
        for change in result.changes:
            _LOG.debug("%s", change)
        return result


def _neighbours(site: Site) -> Pair | Refused | None:
    """Two spatial pipes, one feeding only the other."""
    second = site.pipe
    if isinstance(second, ChoicePipe) and second.steps:
        return _kept_apart(second.parent)
    if not isinstance(second, SpatialPipe):
        return None
    first = second.parent
    if isinstance(first, Timer) and isinstance(first.parent, (SpatialPipe, FusedSpatial)):
        return Refused("a timed pipe stands between; give FuseSpatial before Profile")
    if not isinstance(first, (SpatialPipe, FusedSpatial)):
        return _kept_apart(first)
    for pipe in (first, second):
        if isinstance(pipe, SpatialPipe) and not pipe.is_step:
            return Refused(f"{pipe.describe()} {pipe.stands_apart}")
    if site.is_shared(first):
        return Refused(f"{first.describe()} has another reader")
    return first, second


def _kept_apart(pipe: Pipe) -> Refused | None:
    """Return why a spatial pipe that reads ``pipe`` begins a plan of its own, if it does."""
    by, moves = "", False
    while isinstance(pipe, (Cache, Flush, ValuePipe, ChoicePipe, Timer)):
        by = _breaking(pipe) or by
        moves = moves or bool(by and isinstance(pipe, ChoicePipe) and pipe.steps)
        pipe = pipe.parent
    if not by or not (moves or isinstance(pipe, (SpatialPipe, FusedSpatial))):
        return None
    return Refused(f"{by} stands before it, so voxels are sampled anew after that")


def _realized_before(reader: type, site: Site) -> Pair | Refused | None:
    if not isinstance(site.pipe, reader):
        return None
    parent = parents_of(site.pipe)[0]
    if not isinstance(parent, Realize):
        return None
    if site.is_shared(parent):
        return Refused("realize() has another reader, which needs the tensors")
    return parent, site.pipe


def _realized_before_values(site: Site) -> Pair | Refused | None:
    """Return what makes the same of a patch, whether or not there is a volume around it."""
    pair = _realized_before(ValuePipe, site)
    if not isinstance(pair, tuple):
        return pair
    assert isinstance(site.pipe, ValuePipe)
    op = site.pipe.step.op
    if op.looks_around:
        why = "looks at voxels around a patch, of which realize() leaves none"
        return Refused(f"{op.name} {why}; put it before realize()")
    if not op.commutes:
        return Refused(f"{op.name} does not treat every voxel alike; put it before realize()")
    return pair


def _change_lazily(pair: Pair) -> Pipe:
    realize, values = pair
    return with_parents(realize, [with_parents(values, parents_of(realize))])


def _skip_first(pair: Pair) -> Pipe:
    return with_parents(pair[1], parents_of(pair[0]))
